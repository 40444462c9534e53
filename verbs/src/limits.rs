//! Limits of a device.

use heddle_rings::BELLS;
use heddle_types::wr::{MAX_INLINE, MAX_MESSAGE, MAX_SGES};

use crate::device::{MAX_CQ_DEPTH, MAX_DEPTH};
use crate::error::DeviceError;
use crate::mr::MrLimits;

/// Limits of one application at an RNIC: these are the numbers of `ibv_query_device`. The device
/// refuses a request beyond a limit as [`DeviceError::Limit`] or [`DeviceError::TooMany`], which
/// name the limit.
///
/// The opener of the device gives the limits, and the RNIC cuts them to its own
/// ([`DeviceLimits::MOST`]). Queues also need room in the device's area, and regions need memory,
/// so an application can run out of these before it reaches its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs at a time.
    pub max_qps: u32,
    /// Work requests of one send or receive queue.
    pub max_qp_wrs: u32,
    /// SGEs of a work request of a queue pair.
    pub max_sges: u16,
    /// SGEs of an RDMA Read: one STag names the sink of a Read (RFC 5040 section 4.4). This number
    /// is a property of the RNIC, which no caller can choose.
    pub max_sge_rd: u16,
    /// Inline bytes of a send request.
    pub max_inline: u16,
    /// Completion queues at a time.
    pub max_cqs: u32,
    /// Completions of one completion queue, for each worker.
    pub max_cqes: u32,
    /// Shared receive queues at a time.
    pub max_srqs: u32,
    /// Receives of one shared receive queue.
    pub max_srq_wrs: u32,
    /// Memory regions and fast registrations at a time. An unregistered region counts until its
    /// memory is free again. All applications share the slots of the RNIC's table, so fewer slots
    /// than this may be available to an application.
    pub max_mrs: u32,
    /// Memory regions and fast registrations of one protection domain at a time.
    pub max_mrs_per_pd: u32,
    /// Memory windows of both types at a time, in the same table.
    pub max_mws: u32,
    /// Memory windows of one protection domain at a time.
    pub max_mws_per_pd: u32,
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pds: u32,
    /// Reads and atomic operations that one queue pair serves at a time (IRD). The queue pair keeps
    /// each until it has answered, so this limit bounds how many a peer can make us keep; queue
    /// pairs share none of these.
    pub max_ird: u16,
    /// Reads and atomic operations that one queue pair may have outstanding (ORD).
    pub max_ord: u16,
    /// Bytes of one message.
    pub max_message: u32,
    /// Page sizes that a region can be made of, one bit for each size. Addresses of registered
    /// memory are exact to the byte, so every power of two from 4 KiB on is possible.
    pub page_sizes: u64,
    /// The accesses against which atomic operations are atomic.
    pub atomics: Atomics,
}

/// The accesses against which an atomic operation of a peer is atomic (RFC 7306 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// The RNIC has no atomic operations.
    None,
    /// Atomic operations of all queue pairs of the RNIC.
    Rnic,
    /// Atomic operations of the processors as well: the RNIC carries out an operation by a
    /// processor's atomic instruction on an aligned word.
    Global,
}

/// Returns `value` as a narrower number, which has to hold it.
const fn narrow(value: usize) -> u16 {
    assert!(value <= u16::MAX as usize);
    #[expect(clippy::cast_possible_truncation, reason = "asserted")]
    let narrow = value as u16;
    narrow
}

/// Each queue pair has a doorbell of its own, so the doorbells limit the queue pairs.
#[expect(clippy::cast_possible_truncation, reason = "a few thousand")]
const MAX_QPS: u32 = BELLS as u32;

impl DeviceLimits {
    /// The most that an RNIC can give to any application.
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
        // The start-up frame has 14 bits for this number (RFC 6581 section 9); all ones mean "no
        // number".
        max_ird: 0x3ffe,
        max_ord: 0x3ffe,
        max_message: MAX_MESSAGE,
        page_sizes: !0xfff,
        atomics: Atomics::Global,
    };

    /// Returns how many STags the application may have.
    pub const fn mrs(&self) -> MrLimits {
        MrLimits { regions: self.max_mrs, windows: self.max_mws }
    }

    /// Returns how many STags one protection domain of the application may have.
    pub const fn mrs_per_pd(&self) -> MrLimits {
        MrLimits { regions: self.max_mrs_per_pd, windows: self.max_mws_per_pd }
    }

    /// Returns the smaller of both limits, field by field.
    pub fn within(&self, most: &DeviceLimits) -> DeviceLimits {
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
            // No caller can choose these: they are properties of the RNIC.
            max_sge_rd: b.max_sge_rd,
            max_message: b.max_message,
            page_sizes: b.page_sizes,
            atomics: b.atomics,
        }
    }
}

impl Default for DeviceLimits {
    /// Returns 128 Reads each way, and 4,096 queue pairs, protection domains and completion queues;
    /// all other limits are those of the RNIC.
    fn default() -> Self {
        DeviceLimits {
            max_ird: 128,
            max_ord: 128,
            max_qps: 4096,
            max_pds: 4096,
            max_cqs: 4096,
            ..DeviceLimits::MOST
        }
    }
}

/// Checks that `value` lies between `least` and `most`.
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

/// Counts the objects of an application, and hands out places up to a limit.
pub(crate) mod count {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::error::DeviceError;
    use heddle_shm::account::Reserved;

    /// Number of objects of one kind that exist now.
    #[derive(Clone, Debug, Default)]
    pub struct Count(Arc<AtomicU32>);

    /// The place of one object, and the memory reserved for the object; dropping this frees both.
    #[derive(Debug)]
    pub struct Place(Count, Vec<Reserved>);

    impl Place {
        /// Returns this place with `by`, the amounts that were taken from accounts for it.
        pub fn paid(mut self, by: Vec<Reserved>) -> Place {
            self.1 = by;
            self
        }
    }

    impl Count {
        /// Takes one more place if fewer than `most` are taken.
        pub fn take(&self, what: &'static str, most: u32) -> Result<Place, DeviceError> {
            let more = |n: u32| n.checked_add(1).filter(|n| *n <= most);
            let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
            taken
                .map(|_| Place(self.clone(), Vec::new()))
                .map_err(|_| DeviceError::TooMany { what, most })
        }

        /// Returns the number of places taken now.
        pub fn now(&self) -> u32 {
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
    fn test_device_limits_are_clamped_to_maximum() {
        let asked = DeviceLimits { max_qps: u32::MAX, max_ird: 3, ..DeviceLimits::default() };
        let got = asked.within(&DeviceLimits::MOST);
        assert_eq!((got.max_qps, got.max_ird), (DeviceLimits::MOST.max_qps, 3));
    }

    #[test]
    fn test_count_refuses_above_its_limit_and_gets_places_back() {
        let count = count::Count::default();
        let places: Vec<_> = (0..2).map(|_| count.take("x", 2).unwrap()).collect();
        assert_eq!(count.take("x", 2).err(), Some(DeviceError::TooMany { what: "x", most: 2 }));
        drop(places);
        assert_eq!(count.now(), 0);
        assert!(count.take("x", 2).is_ok());
    }
}
