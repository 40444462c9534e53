//! A frame as its receiver reads it.

use heddle_base::{Chunks, Sum};
use heddle_dpdk_sys as sys;

use super::{Mbuf, RxChecksum, segment_bytes, segment_ptr};

impl Mbuf {
    /// Asks the cache for the headers of the frame (those of TCP and of DDP end in the second
    /// line) and for what describes its second segment.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect on memory and takes any address; SSE is part of x86-64.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let data = segment_ptr(self.head());
            _mm_prefetch::<_MM_HINT_T0>(data.cast());
            _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(64).cast());
            _mm_prefetch::<_MM_HINT_T0>(self.head().next.cast_const().cast());
        }
    }
}

impl Chunks for Mbuf {
    #[inline]
    fn len(&self) -> usize {
        self.pkt_len()
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        let first = self.data();
        if off < first.len() { &first[off..] } else { later_chunk(self.head(), off - first.len()) }
    }

    /// Walks the chain once.
    #[inline]
    fn for_each_chunk(&self, mut off: usize, mut len: usize, mut f: impl FnMut(&[u8])) {
        let mut m = self.head();
        while len > 0 {
            let bytes = segment_bytes(m);
            if off < bytes.len() {
                let n = len.min(bytes.len() - off);
                f(&bytes[off..off + n]);
                (off, len) = (0, len - n);
            } else {
                off -= bytes.len();
            }
            // SAFETY: null or a valid mbuf of the same chain, borrowed as long as self is.
            let Some(next) = (unsafe { m.next.as_ref() }) else { break };
            m = next;
        }
    }
}

/// The bytes `off` behind the end of `m`, up to the end of the segment they are in.
fn later_chunk(mut m: &sys::rte_mbuf, mut off: usize) -> &[u8] {
    // SAFETY: null or a valid mbuf of the same chain, borrowed as long as `m` is.
    while let Some(next) = unsafe { m.next.as_ref() } {
        m = next;
        let bytes = segment_bytes(m);
        if off < bytes.len() {
            return &bytes[off..];
        }
        off -= bytes.len();
    }
    &[]
}

impl heddle_tcp::RxFrame for Mbuf {
    #[inline]
    fn checksum(&self) -> heddle_tcp::RxChecksum {
        use heddle_tcp::RxChecksum as Told;
        match (self.rx_ip_checksum(), self.rx_l4_checksum()) {
            (RxChecksum::Bad, _) | (_, RxChecksum::Bad) => Told::Bad,
            (RxChecksum::Good, RxChecksum::Good) => Told::Good,
            _ => Told::Unknown,
        }
    }

    #[inline]
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        // The first segment has what is asked for first: the TCP header.
        let first = self.data().get(off..)?;
        let n = first.len().min(len);
        let mut sum = crate::raw::sum(&first[..n]);
        let (mut m, mut done) = (self.head(), n);
        while done < len {
            // SAFETY: null or a valid mbuf of the same chain, borrowed as long as self is.
            m = unsafe { m.next.as_ref() }?;
            let bytes = segment_bytes(m);
            let n = bytes.len().min(len - done);
            sum = sum.add_at(done, crate::raw::sum(&bytes[..n]));
            done += n;
        }
        Some(sum)
    }
}
