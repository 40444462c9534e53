//! The fields of an mbuf.
//!
//! No other file knows the place of these fields. This file gets it from the offsets that the C
//! compiler gives, because their expressions are the same with every version of DPDK, while the
//! names in Rust's own picture of the structure are not (from 24.11 on, some fields lie in
//! anonymous unions). Each access is one load or store.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use heddle_dpdk_sys as sys;

/// A segment: an mbuf that is valid as long as this value is used, and whose fields no other thread
/// writes meanwhile (except for the count of references). Only the owner of the chain may call
/// setters.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Segment(NonNull<sys::rte_mbuf>);

macro_rules! fields {
    ($($(#[$doc:meta])* $get:ident $(, $set:ident)?: $type:ty = $at:ident;)+) => {$(
        $(#[$doc])*
        #[inline]
        pub(super) fn $get(self) -> $type {
            // SAFETY: a valid mbuf (see the type), which has this field there, aligned; any bits
            // are a value of it.
            unsafe { self.at::<$type>(sys::$at).read() }
        }

        $(
            #[inline]
            pub(super) fn $set(self, value: $type) {
                // SAFETY: as above, and the chain is the caller's.
                unsafe { self.at::<$type>(sys::$at).write(value) }
            }
        )?
    )+};
}

impl Segment {
    /// # Safety
    /// The mbuf is valid, and no other thread writes its fields, as the type's doc requires.
    #[inline]
    pub(super) unsafe fn new(m: NonNull<sys::rte_mbuf>) -> Segment {
        Segment(m)
    }

    fields! {
        /// Start of the buffer.
        buf_addr: *mut u8 = HEDDLE_MBUF_AT_BUF_ADDR;
        /// Bytes of the buffer.
        buf_len: u16 = HEDDLE_MBUF_AT_BUF_LEN;
        /// Bytes from the start of the buffer to the data.
        data_off, set_data_off: u16 = HEDDLE_MBUF_AT_DATA_OFF;
        /// Bytes of data in this segment.
        data_len, set_data_len: u16 = HEDDLE_MBUF_AT_DATA_LEN;
        /// Bytes of the whole chain; valid in its first segment.
        pkt_len, set_pkt_len: u32 = HEDDLE_MBUF_AT_PKT_LEN;
        /// Segments of the chain; valid in its first segment.
        nb_segs, set_nb_segs: u16 = HEDDLE_MBUF_AT_NB_SEGS;
        /// Facts and requests about the frame, and the kind of its buffer.
        ol_flags, set_ol_flags: u64 = HEDDLE_MBUF_AT_OL_FLAGS;
        /// Contents of the tag that was taken out of the frame; valid with its flag
        /// (`HEDDLE_MBUF_F_RX_VLAN_STRIPPED`).
        vlan_tci, set_vlan_tci: u16 = HEDDLE_MBUF_AT_VLAN_TCI;
        /// Valid with its flag (`HEDDLE_MBUF_F_RX_RSS_HASH`).
        rss_hash, set_rss_hash: u32 = HEDDLE_MBUF_AT_RSS_HASH;
        next_ptr, set_next_ptr: *mut sys::rte_mbuf = HEDDLE_MBUF_AT_NEXT;
        #[cfg(test)]
        /// `l2_len:7, l3_len:9, l4_len:8` from the lowest bit on; the rest is for features that we
        /// do not use.
        tx_offload, set_tx_offload: u64 = HEDDLE_MBUF_AT_TX_OFFLOAD;
    }

    /// Returns the number of users of the mbuf.
    #[inline]
    pub(super) fn refcnt(self) -> u16 {
        // SAFETY: as in `fields!`; every access to the count is atomic.
        unsafe { AtomicU16::from_ptr(self.at(sys::HEDDLE_MBUF_AT_REFCNT)) }.load(Ordering::Relaxed)
    }

    /// Returns the segment after this one.
    #[inline]
    pub(super) fn next(self) -> Option<Segment> {
        // A `next` of a valid chain is null or valid for as long as the chain.
        NonNull::new(self.next_ptr()).map(Segment)
    }

    #[inline]
    pub(super) fn has(self, flags: u64) -> bool {
        self.ol_flags() & flags != 0
    }

    /// Returns true if the bytes lie in memory that others may write.
    #[inline]
    pub(super) fn is_external(self) -> bool {
        self.has(sys::HEDDLE_MBUF_F_EXTERNAL)
    }

    /// Returns true if the buffer is in the mbuf itself and has no other user.
    #[inline]
    pub(super) fn is_private(self) -> bool {
        !self.has(sys::HEDDLE_MBUF_F_EXTERNAL | sys::HEDDLE_MBUF_F_INDIRECT) && self.refcnt() == 1
    }

    /// Returns the address of the data.
    #[inline]
    pub(super) fn data_ptr(self) -> *mut u8 {
        self.buf_addr().wrapping_add(usize::from(self.data_off()))
    }

    /// Returns the number of bytes that the owner can write after the data, and that no other user
    /// of the buffer can see.
    #[inline]
    pub(super) fn tailroom(self) -> usize {
        if !self.is_private() {
            return 0;
        }
        usize::from(self.buf_len())
            .saturating_sub(usize::from(self.data_off()) + usize::from(self.data_len()))
    }

    /// # Safety
    /// `at` is the offset of a field of type `T`.
    #[inline]
    unsafe fn at<T>(self, at: u32) -> *mut T {
        // SAFETY: the caller guarantees that `at` lies inside the structure.
        unsafe { self.0.as_ptr().cast::<u8>().add(at as usize).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads and writes the fields, and compares them with C's own names.
    #[test]
    fn test_mbuf_fields_match_those_of_c() {
        let mut m = Box::new(sys::rte_mbuf::default());
        let p: *mut sys::rte_mbuf = &raw mut *m;
        // SAFETY: room for an mbuf, ours alone; the callee writes numbers into it.
        let s = unsafe {
            sys::heddle_mbuf_number(p, 1);
            Segment::new(NonNull::new(p).unwrap())
        };
        let addresses = (s.buf_addr() as usize, s.next_ptr() as usize);
        assert_eq!((addresses, s.data_off(), s.refcnt(), s.nb_segs()), ((1, 10), 2, 3, 4));
        assert_eq!((s.ol_flags(), s.pkt_len(), s.data_len()), (5, 6, 7));
        assert_eq!((s.rss_hash(), s.buf_len(), s.vlan_tci()), (8, 9, 77));
        assert_eq!(s.tx_offload(), 14 | 40 << 7 | 32 << 16);
        s.set_data_off(1);
        s.set_nb_segs(2);
        s.set_ol_flags(3);
        s.set_pkt_len(4);
        s.set_data_len(5);
        s.set_next_ptr(std::ptr::without_provenance_mut(6));
        s.set_tx_offload(11 | 22 << 7 | 33 << 16);
        // SAFETY: as above; the callee only reads numbers.
        assert_eq!(unsafe { sys::heddle_mbuf_digits(p) }, 123_456_112_233);
    }
}
