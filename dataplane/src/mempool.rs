//! Pools of packet buffers.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use heddle_dpdk_sys as sys;
use thiserror::Error;

use crate::eal::{self, Eal};
use crate::mbuf::{Mbuf, RawMbuf};

/// Space before the data of a fresh mbuf, in bytes.
pub const HEADROOM: u16 = {
    assert!(sys::RTE_PKTMBUF_HEADROOM <= 1024);
    #[allow(clippy::cast_possible_truncation, reason = "checked above")]
    let room = sys::RTE_PKTMBUF_HEADROOM as u16;
    room
};

/// The shape of a pool.
#[derive(Clone, Debug)]
pub struct MempoolConfig {
    /// Number of mbufs. A number that is a power of two minus one wastes least memory.
    pub count: u32,
    /// Mbufs that each registered thread keeps for itself; at most 512 and two thirds of `count`.
    pub cache: u32,
    /// Bytes of each buffer, headroom included; see [`MempoolConfig::room_for_mtu`].
    pub data_room: u16,
    /// The processor socket for the pool's memory, which should be that of the port
    /// ([`PortSource::socket`](crate::PortSource::socket)). If the socket has no memory left, the
    /// pool takes memory elsewhere, and [`Mempool::socket`] says so.
    pub socket: Option<u32>,
}

impl MempoolConfig {
    /// Returns the configuration of a pool of `count` mbufs that hold a whole frame at `mtu`.
    pub fn for_mtu(count: u32, mtu: u16) -> MempoolConfig {
        let cache = (count / 8).min(256);
        MempoolConfig { count, cache, data_room: MempoolConfig::room_for_mtu(mtu), socket: None }
    }

    /// Returns the room for the headroom and a frame with Ethernet header, two VLAN tags and CRC,
    /// and for the bytes that a slot of `net_af_packet` has beyond that; at least the 2 KiB that
    /// drivers expect.
    pub fn room_for_mtu(mtu: u16) -> u16 {
        let frame = (u32::from(mtu) + 26 + 42).max(2048);
        let room = (u32::from(HEADROOM) + frame).next_multiple_of(64);
        u16::try_from(room).unwrap_or(u16::MAX)
    }
}

/// Why there is no pool.
#[derive(Debug, Error)]
#[error("no memory for {count} packet buffers of {data_room} bytes: {why}")]
pub struct MempoolError {
    /// Buffers that the caller asked for.
    pub count: u32,
    /// Bytes of each buffer.
    pub data_room: u16,
    /// DPDK's reason.
    pub why: String,
}

#[derive(Debug)]
struct Inner {
    pool: NonNull<sys::rte_mempool>,
    data_room: u16,
    socket: Option<u32>,
    alloc_failures: AtomicU64,
}

// SAFETY: an rte_mempool made by rte_pktmbuf_pool_create with the default multi-producer,
// multi-consumer ring may be used by any thread; caches are per registered thread. The pool is
// never freed.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// A pool of packet buffers; the handle is cheap to copy.
///
/// A pool lives until the process ends: mbufs carry no reference that could keep their pool alive,
/// and a port or another thread may hold some at any time. Make one pool per worker and keep it.
#[derive(Clone, Copy, Debug)]
pub struct Mempool(&'static Inner);

/// Adds to DPDK's reason the cause that DPDK does not name: pools consist of `rings`, which a
/// plugin provides.
fn explain(why: String, rings: bool) -> String {
    if rings {
        return why;
    }
    format!("{why}: DPDK's plugin for pools made of rings, librte_mempool_ring.so, is not there")
}

static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

impl Mempool {
    /// Makes a pool.
    ///
    /// # Errors
    /// Fails if the EAL has too little memory for the pool, or the shape is impossible.
    pub fn new(_eal: &Eal, config: &MempoolConfig) -> Result<Mempool, MempoolError> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let fail =
            |why: String| MempoolError { count: config.count, data_room: config.data_room, why };
        if config.data_room < HEADROOM + 64 {
            return Err(fail("a buffer must hold the headroom and 64 bytes".into()));
        }
        let cache = config.cache.min(512).min(config.count / 3 * 2);
        let name = CString::new(format!("heddle_{id}")).unwrap_or_default();
        let make = |socket: i32| {
            eal::clear_log();
            // SAFETY: the EAL runs (`_eal`); `name` is NUL-terminated, unique in this process,
            // shorter than RTE_MEMPOOL_NAMESIZE, and copied by the callee; the callee checks the
            // numbers.
            NonNull::new(unsafe {
                sys::rte_pktmbuf_pool_create(
                    name.as_ptr(),
                    config.count,
                    cache,
                    0,
                    config.data_room,
                    socket,
                )
            })
        };
        const ANY: i32 = -1;
        let wanted = config.socket.and_then(|s| i32::try_from(s).ok());
        let there = wanted.and_then(|s| Some((make(s)?, Some(s))));
        let pool = there.or_else(|| Some((make(ANY)?, None)));
        let Some((pool, socket)) = pool else {
            let code = eal::last_errno();
            // SAFETY: reads a table that is complete once the EAL runs (`_eal`).
            let rings = unsafe { sys::heddle_has_ring_mempools() } != 0;
            return Err(fail(explain(eal::reason(code), rings)));
        };
        let inner = Inner {
            pool,
            data_room: config.data_room,
            socket: socket.and_then(|s| u32::try_from(s).ok()),
            alloc_failures: AtomicU64::new(0),
        };
        Ok(Mempool(Box::leak(Box::new(inner))))
    }

    /// Returns an empty single-segment mbuf with [`HEADROOM`]. If the pool is empty, returns `None`
    /// and counts the failure.
    #[inline]
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is a valid packet pool for the life of the process.
        let m = NonNull::new(unsafe { sys::heddle_mbuf_alloc(self.as_ptr()) });
        match m {
            // SAFETY: a fresh mbuf is valid, single, and owned by the caller alone.
            Some(m) => Some(unsafe { Mbuf::from_raw(m) }),
            None => {
                self.count_failure();
                None
            }
        }
    }

    /// Like [`Mempool::alloc_bulk`], but the mbufs are not empty yet: single segments with one
    /// reference, and other fields as their last user left them.
    #[inline]
    pub(crate) fn alloc_raw_bulk<const N: usize>(
        &self,
        out: &mut ArrayVec<RawMbuf, N>,
        n: usize,
    ) -> usize {
        let n = n.min(out.remaining_capacity());
        let count = u32::try_from(n).unwrap_or(u32::MAX);
        let len = out.len();
        // SAFETY: as in `alloc_bulk`; `RawMbuf` is a transparent `Mbuf`.
        unsafe {
            let dst = out.as_mut_ptr().add(len).cast::<*mut sys::rte_mbuf>();
            if sys::heddle_mbuf_raw_alloc_bulk(self.as_ptr(), dst, count) != 0 {
                self.count_failure();
                return 0;
            }
            out.set_len(len + n);
        }
        n
    }

    /// Appends up to `n` empty mbufs, as far as `out` has room, all or none of them; returns how
    /// many.
    #[inline]
    pub fn alloc_bulk<const N: usize>(&self, out: &mut ArrayVec<Mbuf, N>, n: usize) -> usize {
        let n = n.min(out.remaining_capacity());
        let count = u32::try_from(n).unwrap_or(u32::MAX);
        let len = out.len();
        // SAFETY: `Mbuf` is a transparent non-null pointer, the spare capacity of `out` takes `n`
        // of them; the callee writes all of them with valid mbufs that the caller owns, or none
        // and returns non-zero.
        unsafe {
            let dst = out.as_mut_ptr().add(len).cast::<*mut sys::rte_mbuf>();
            if sys::heddle_mbuf_alloc_bulk(self.as_ptr(), dst, count) != 0 {
                self.count_failure();
                return 0;
            }
            out.set_len(len + n);
        }
        n
    }

    /// Returns the bytes of each buffer, headroom included.
    pub fn data_room(&self) -> u16 {
        self.0.data_room
    }

    /// Returns the processor socket of the pool's memory; `None` if the memory may be at any.
    pub fn socket(&self) -> Option<u32> {
        self.0.socket
    }

    /// Returns the number of free mbufs, including those in caches. Exact only while no thread uses
    /// the pool.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool is valid for the life of the process.
        unsafe { sys::rte_mempool_avail_count(self.as_ptr()) }
    }

    /// Returns the number of mbufs in use.
    pub fn in_use(&self) -> u32 {
        // SAFETY: the pool is valid for the life of the process.
        unsafe { sys::rte_mempool_in_use_count(self.as_ptr()) }
    }

    /// Returns how many times an allocation found the pool empty.
    pub fn alloc_failures(&self) -> u64 {
        self.0.alloc_failures.load(Ordering::Relaxed)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.0.pool.as_ptr()
    }

    #[cold]
    pub(crate) fn count_failure(&self) {
        self.0.alloc_failures.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_pool_error_names_missing_dpdk_plugin() {
        let said = explain("Invalid argument".into(), false);
        assert!(said.contains("librte_mempool_ring"), "{said}");
        assert_eq!(explain("Cannot allocate memory".into(), true), "Cannot allocate memory");
    }

    #[test]
    fn test_room_for_mtu_holds_the_frame() {
        assert_eq!(MempoolConfig::room_for_mtu(1500), 2176);
        assert!(MempoolConfig::room_for_mtu(9000) >= HEADROOM + 9026);
        assert_eq!(MempoolConfig::room_for_mtu(u16::MAX), u16::MAX);
    }
}
