//! What a device has at most.

use heddle_iwarp::qp::{MAX_INLINE, MAX_MESSAGE, MAX_SGES};

use crate::device::{MAX_CQ_DEPTH, MAX_DEPTH};
use crate::error::DeviceError;
use crate::memory::MrLimits;
use crate::ring::BELLS;

/// What one application can have of an RNIC: its numbers are those of `ibv_query_device`. A request
/// beyond one of them is refused as [`DeviceError::Limit`] or [`DeviceError::TooMany`], which name it.
///
/// They are given to [`Hub::open`](crate::Hub::open) in
/// [`DeviceConfig::limits`](crate::DeviceConfig), where they are cut to what the RNIC has
/// ([`DeviceLimits::MOST`]). Queues also need room in the device's area and regions need memory, so an
/// application can meet an end before its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs at a time.
    pub max_qps: u32,
    /// Work requests of one send or receive queue.
    pub max_qp_wrs: u32,
    /// SGEs of a work request of a queue pair.
    pub max_sges: u16,
    /// SGEs of an RDMA Read: its sink is named by one STag (RFC 5040 section 4.4). A property, and nobody's to
    /// choose.
    pub max_sge_rd: u16,
    /// Inline octets of a send request.
    pub max_inline: u16,
    /// Completion queues at a time.
    pub max_cqs: u32,
    /// Completions of one of them, for each worker.
    pub max_cqes: u32,
    /// Shared receive queues at a time.
    pub max_srqs: u32,
    /// Receives of one.
    pub max_srq_wrs: u32,
    /// Memory regions and fast registrations at a time; those that are deregistered count until
    /// their memory is back. All applications share the places of the RNIC's table, which may be
    /// fewer together.
    pub max_mrs: u32,
    /// Those of one protection domain.
    pub max_mrs_per_pd: u32,
    /// Memory windows of both types at a time, in the same table.
    pub max_mws: u32,
    /// Those of one protection domain.
    pub max_mws_per_pd: u32,
    /// Octets of one.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pds: u32,
    /// Reads and atomic operations that one queue pair serves at a time (IRD). Each is kept until it
    /// is answered, so this bounds what a peer can have kept; queue pairs share nothing of it.
    pub max_ird: u16,
    /// Reads and atomic operations that one queue pair may have outstanding (ORD).
    pub max_ord: u16,
    /// Octets of one message.
    pub max_message: u32,
    /// Sizes of page a region can be made of, a bit for each: memory is addressed to the octet, so
    /// every power of two from 4 KiB on is one.
    pub page_sizes: u64,
    /// What atomic operations are atomic with.
    pub atomics: Atomics,
}

/// With what an atomic operation of a peer is atomic (RFC 7306 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// There are none.
    None,
    /// With those of all queue pairs of the RNIC.
    Rnic,
    /// With those of the processors as well: they are carried out by a processor's atomic instruction
    /// on an aligned word.
    Global,
}

/// `value` as the narrower number that it fits.
const fn narrow(value: usize) -> u16 {
    assert!(value <= u16::MAX as usize);
    #[expect(clippy::cast_possible_truncation, reason = "asserted")]
    let narrow = value as u16;
    narrow
}

/// A queue pair has a doorbell of its own.
#[expect(clippy::cast_possible_truncation, reason = "a few thousand")]
const MAX_QPS: u32 = BELLS as u32;

impl DeviceLimits {
    /// What an RNIC can give to any application.
    pub const MOST: DeviceLimits = DeviceLimits {
        max_qps: MAX_QPS,
        max_qp_wrs: MAX_DEPTH,
        max_sges: narrow(MAX_SGES),
        max_sge_rd: 1,
        max_inline: narrow(MAX_INLINE),
        max_cqs: 1 << 16,
        max_cqes: MAX_CQ_DEPTH,
        max_srqs: 1 << 12,
        max_srq_wrs: MAX_DEPTH,
        max_mrs: u32::MAX,
        max_mrs_per_pd: u32::MAX,
        max_mws: u32::MAX,
        max_mws_per_pd: u32::MAX,
        max_mr_size: 1 << 47,
        max_pds: 1 << 20,
        // 14 bits of the start-up frame (RFC 6581 section 9), of which all ones says "no number".
        max_ird: 0x3ffe,
        max_ord: 0x3ffe,
        max_message: MAX_MESSAGE,
        page_sizes: !0xfff,
        atomics: Atomics::Global,
    };

    /// STags of the application.
    pub(crate) const fn mrs(&self) -> MrLimits {
        MrLimits { regions: self.max_mrs, windows: self.max_mws }
    }

    /// STags of one of its protection domains.
    pub(crate) const fn mrs_per_pd(&self) -> MrLimits {
        MrLimits { regions: self.max_mrs_per_pd, windows: self.max_mws_per_pd }
    }

    /// What is within both.
    pub(crate) fn within(&self, most: &DeviceLimits) -> DeviceLimits {
        let (a, b) = (self, most);
        DeviceLimits {
            max_qps: a.max_qps.min(b.max_qps),
            max_qp_wrs: a.max_qp_wrs.min(b.max_qp_wrs),
            max_sges: a.max_sges.min(b.max_sges),
            max_inline: a.max_inline.min(b.max_inline),
            max_cqs: a.max_cqs.min(b.max_cqs),
            max_cqes: a.max_cqes.min(b.max_cqes),
            max_srqs: a.max_srqs.min(b.max_srqs),
            max_srq_wrs: a.max_srq_wrs.min(b.max_srq_wrs),
            max_mrs: a.max_mrs.min(b.max_mrs),
            max_mrs_per_pd: a.max_mrs_per_pd.min(b.max_mrs_per_pd),
            max_mws: a.max_mws.min(b.max_mws),
            max_mws_per_pd: a.max_mws_per_pd.min(b.max_mws_per_pd),
            max_mr_size: a.max_mr_size.min(b.max_mr_size),
            max_pds: a.max_pds.min(b.max_pds),
            max_ird: a.max_ird.min(b.max_ird),
            max_ord: a.max_ord.min(b.max_ord),
            // Properties, and nobody's to choose.
            max_sge_rd: b.max_sge_rd,
            max_message: b.max_message,
            page_sizes: b.page_sizes,
            atomics: b.atomics,
        }
    }
}

impl Default for DeviceLimits {
    /// 128 Reads each way, 4,096 protection domains, 4,096 completion queues; for the rest as much as
    /// there is.
    fn default() -> Self {
        DeviceLimits {
            max_ird: 128,
            max_ord: 128,
            max_pds: 4096,
            max_cqs: 4096,
            ..DeviceLimits::MOST
        }
    }
}

/// Whether `value` is one of those that can be had.
pub(crate) fn within(
    what: &'static str,
    value: u32,
    least: u32,
    most: u32,
) -> Result<(), DeviceError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(DeviceError::Limit {
            what,
            value: value.into(),
            least: least.into(),
            most: most.into(),
        })
    }
}

/// How many of something an application has, and a place among them.
pub(crate) mod count {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::account::Reserved;
    use crate::error::DeviceError;

    /// Counts what there is at a time.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Count(Arc<AtomicU32>);

    /// One of them, and what is reserved for it; the place is free again when dropped.
    #[derive(Debug)]
    pub(crate) struct Place(Count, Vec<Reserved>);

    impl Place {
        /// The same, for which that much is taken of an account.
        pub(crate) fn paid(mut self, by: Vec<Reserved>) -> Place {
            self.1 = by;
            self
        }
    }

    impl Count {
        /// One more, if there are fewer than `most`.
        pub(crate) fn take(&self, what: &'static str, most: u32) -> Result<Place, DeviceError> {
            let more = |n: u32| n.checked_add(1).filter(|n| *n <= most);
            let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
            taken
                .map(|_| Place(self.clone(), Vec::new()))
                .map_err(|_| DeviceError::TooMany { what, most })
        }

        /// How many there are.
        pub(crate) fn now(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            self.0.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_limits_are_cut_to_what_there_is() {
        let asked = DeviceLimits { max_qps: u32::MAX, max_ird: 3, ..DeviceLimits::default() };
        let got = asked.within(&DeviceLimits::MOST);
        assert_eq!((got.max_qps, got.max_ird), (DeviceLimits::MOST.max_qps, 3));
    }

    #[test]
    fn test_places_are_counted_and_come_back() {
        let count = count::Count::default();
        let places: Vec<_> = (0..2).map(|_| count.take("x", 2).unwrap()).collect();
        assert_eq!(count.take("x", 2).err(), Some(DeviceError::TooMany { what: "x", most: 2 }));
        drop(places);
        assert_eq!(count.now(), 0);
        assert!(count.take("x", 2).is_ok());
    }
}
