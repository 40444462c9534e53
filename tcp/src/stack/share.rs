//! The share of the worker's time that frames of no connection have.
//!
//! Strangers' frames cost the worker time, however cheap each is, and anyone can send millions a
//! second. Budgets therefore bound the number that the stack handles while the worker is busy. A frame
//! beyond them is dropped as early as the stack knows what it is: a SYN before any hash, another
//! segment after the look-up that finds no connection.
//!
//! The stack cannot see whether other work waits for the worker. A turn that finds nothing to do
//! proves that none did: after such a turn the owner calls [`Stack::rest`](super::Stack::rest), and the
//! strangers get as many frames more as four bursts have. A worker that keeps up with everything thus
//! takes every frame; under a flood beyond its speed it takes four bursts, drops what has come
//! meanwhile, and takes the next four. Only where connections have work in every turn do strangers
//! have no more than the rate of the budgets.
//!
//! ```text
//!   frame of a stranger ──▶ common budget ──▶ handled
//!                              │ empty           ▲
//!                              ▼                 │
//!                     budget of its link and kind ──▶ empty: dropped, counted
//! ```
//!
//! Half of the rate is common. The other half is divided among links, and among the kinds of frames on
//! each link. A flood of SYNs on one VLAN thus takes nothing from the other VLANs, nor from the ACKs
//! that complete handshakes on its own.
//!
//! The budgets have no part of ARP and neighbor discovery, because connections depend on them.

use heddle_base::Instant;

use super::counters::DropReason;
use super::limit::Rate;
use crate::wire::Vid;

/// Kinds of frames that belong to no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// SYNs, of connections too: a SYN begins a connection, or nothing.
    Syn,
    /// Other TCP segments: ends of handshakes, and strays.
    Segment,
    /// ICMP and ICMPv6, except for neighbor discovery.
    Icmp,
    /// Datagrams to the UDP port.
    Datagram,
}

impl Kind {
    const ALL: usize = 4;

    fn over_share(self) -> DropReason {
        match self {
            Kind::Syn => DropReason::SynsOverShare,
            Kind::Segment => DropReason::SegmentsOverShare,
            Kind::Icmp => DropReason::IcmpOverShare,
            Kind::Datagram => DropReason::UdpOverShare,
        }
    }
}

/// Frames of strangers a second while the worker is busy: those that it handles in about a tenth of
/// its time.
pub(super) const A_SECOND: u32 = 200_000;
/// Frames at once: the connections of a job begin together, and each takes two.
pub(super) const AT_ONCE: u32 = 2048;
/// Frames after a turn without work: so few that the port's queue holds what comes meanwhile.
pub(super) const AFTER_REST: u32 = 256;

const COMMON: Rate = Rate::per_second(A_SECOND / 2, AT_ONCE);
/// Nanoseconds for a frame of the other half.
const OWN_COST: u64 = 1_000_000_000 / (A_SECOND as u64 / 2);
/// The time for which a budget of a link and a kind saves frames.
const OWN_BURST: u64 = 8_000_000;

/// The budgets of a link, one for each kind.
#[derive(Debug)]
struct OfLink {
    vid: Vid,
    budgets: [u64; Kind::ALL],
}

/// The budgets of a stack.
#[derive(Debug, Default)]
pub(super) struct Share {
    common: u64,
    /// True if the owner has rested since the last frame of a stranger.
    pub(super) rested: bool,
    /// The last frame that found no room. Within its turn, no other of its link and kind finds any.
    denied: Option<(Instant, Vid, Kind)>,
    /// Links on which frames came while the common budget was empty.
    links: Vec<OfLink>,
}

impl Share {
    /// Charges a frame that came on `vid`, one of so many links of the port.
    ///
    /// # Errors
    /// Returns the reason to drop the frame, if there is no room for it.
    #[inline]
    pub(super) fn charge(
        &mut self,
        now: Instant,
        (vid, links): (Vid, usize),
        kind: Kind,
    ) -> Result<(), DropReason> {
        if core::mem::take(&mut self.rested) {
            COMMON.add(&mut self.common, AFTER_REST.into());
            self.denied = None;
        }
        if self.denied == Some((now, vid, kind)) {
            return Err(kind.over_share());
        }
        if COMMON.allow(&mut self.common, now) || self.own(now, (vid, links), kind) {
            return Ok(());
        }
        self.denied = Some((now, vid, kind));
        Err(kind.over_share())
    }

    /// Charges a frame to the budget of its link and kind.
    #[inline(never)]
    fn own(&mut self, now: Instant, (vid, links): (Vid, usize), kind: Kind) -> bool {
        let at = self.links.iter().position(|link| link.vid == vid).unwrap_or_else(|| {
            // The others may be VLANs that the port no longer has.
            if self.links.len() >= links {
                self.links.clear();
            }
            self.links.push(OfLink { vid, budgets: [0; Kind::ALL] });
            self.links.len() - 1
        });
        let rate = Rate::of_nanos(OWN_COST * (Kind::ALL * links) as u64, OWN_BURST);
        rate.allow(&mut self.links[at].budgets[kind as usize], now)
    }
}

#[cfg(test)]
mod tests;
