//! Rings that join two ports, or a port to itself.

use std::ffi::CString;
use std::ptr::NonNull;

use heddle_dpdk_sys as sys;

use super::claim::Claim;
use super::error::PortError;
use super::lock::control;
use crate::eal;

/// The rings of a pair: `[0]` carries frames from side a to side b, `[1]` back. A port that is
/// joined to itself is side a, and has no rings in `[1]`.
#[derive(Debug)]
pub(crate) struct RingPair {
    name: String,
    ways: [Vec<NonNull<sys::rte_ring>>; 2],
    /// There is one port, whose frames come back to it.
    looped: bool,
}

// SAFETY: the rings are used through the two ports, one producer and one consumer each; this
// struct itself only frees them.
unsafe impl Send for RingPair {}
// SAFETY: as above.
unsafe impl Sync for RingPair {}

impl RingPair {
    /// Makes rings that join queue `i` of one side to queue `i` of the other.
    pub(crate) fn new(name: &str, capacity: u32, queues: usize) -> Result<RingPair, PortError> {
        RingPair::make(name, capacity, queues, false)
    }

    /// Makes rings that join each queue of one port to itself.
    pub(crate) fn looped(name: &str, capacity: u32, queues: usize) -> Result<RingPair, PortError> {
        RingPair::make(name, capacity, queues, true)
    }

    fn make(name: &str, capacity: u32, queues: usize, looped: bool) -> Result<RingPair, PortError> {
        let bad = |why: &str| PortError::BadDevice {
            device: name.escape_debug().to_string(),
            why: why.into(),
        };
        // The longest name derived from `name` has 8 more characters, and RTE_RING_NAMESIZE limits
        // it.
        let fits = !name.is_empty() && name.len() <= 16;
        if !fits || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return Err(bad("a pair's name has 1 to 16 letters, digits, '_' and '-'"));
        }
        if queues == 0 || queues > 16 {
            return Err(bad("1 to 16 queues are possible"));
        }
        let mut pair = RingPair { name: name.into(), ways: [Vec::new(), Vec::new()], looped };
        for way in 0..if looped { 1 } else { 2 } {
            for q in 0..queues {
                let ring = ring(&format!("{name}.{way}.{q}"), capacity)
                    .map_err(|why| PortError::Setup { device: name.into(), step: "ring", why })?;
                pair.ways[way].push(ring);
            }
        }
        Ok(pair)
    }

    pub(crate) fn is_looped(&self) -> bool {
        self.looped
    }

    /// Makes the port of a side; returns the port and its name on the virtual bus.
    pub(crate) fn port(&self, side: usize) -> Result<(Claim, CString), PortError> {
        let name = format!("{}.{}", self.name, ["a", "b"][side]);
        let c_name = CString::new(name.as_str()).unwrap_or_default();
        let mut tx: Vec<_> = self.ways[side].iter().map(|r| r.as_ptr()).collect();
        let from = if self.looped { side } else { 1 - side };
        let mut rx: Vec<_> = self.ways[from].iter().map(|r| r.as_ptr()).collect();
        let n = u32::try_from(tx.len()).unwrap_or(u32::MAX);
        let _control = control();
        eal::clear_log();
        // SAFETY: the EAL runs; both arrays have `n` valid rings and are copied; the name is
        // NUL-terminated and copied. The rings outlive the port: its device holds this pair.
        let id = unsafe {
            sys::rte_eth_from_rings(c_name.as_ptr(), rx.as_mut_ptr(), n, tx.as_mut_ptr(), n, 0)
        };
        // A port that was just made has no owner.
        let Some(claim) = u16::try_from(id).ok().and_then(Claim::take) else {
            let why = eal::reason(eal::last_errno());
            return Err(PortError::Setup { device: name, step: "joining rings", why });
        };
        Ok((claim, CString::new(format!("net_ring_{name}")).unwrap_or_default()))
    }
}

fn ring(name: &str, capacity: u32) -> Result<NonNull<sys::rte_ring>, String> {
    // RING_F_SP_ENQ | RING_F_SC_DEQ: one producer and one consumer, because a queue has one owner,
    // and so has the pair of queues that a loop joins.
    const SINGLE: u32 = 1 | 2;
    let c_name = CString::new(name).unwrap_or_default();
    // One slot is always empty, and the number of slots is a power of two.
    let slots = capacity.clamp(1, 1 << 20).saturating_add(1).next_power_of_two();
    // SAFETY: the EAL runs; the name is NUL-terminated and copied; -1 is any socket.
    let r = unsafe { sys::rte_ring_create(c_name.as_ptr(), slots, -1, SINGLE) };
    NonNull::new(r).ok_or_else(|| eal::error_text(eal::last_errno()))
}

impl Drop for RingPair {
    fn drop(&mut self) {
        for r in self.ways.iter().flatten() {
            // SAFETY: both ports are closed (their devices held this pair), so no thread uses the
            // ring; the mbuf chains that are left in the ring belong to it.
            unsafe {
                sys::heddle_ring_drain_mbufs(r.as_ptr());
                sys::rte_ring_free(r.as_ptr());
            }
        }
    }
}
