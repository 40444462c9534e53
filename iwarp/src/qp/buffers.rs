//! Memory of FPDUs that own their bytes, kept for reuse.

/// Buffers that no FPDU uses at the moment.
#[derive(Debug)]
pub struct Buffers {
    spare: Vec<Vec<u8>>,
    /// Whether bytes that are copied to a buffer get their checksum in passing.
    pub(super) sums: bool,
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers::new(true)
    }
}

/// Most buffers kept for reuse; further ones go back to the allocator.
const MAX_SPARE: usize = 1024;

impl Buffers {
    /// Makes a store of buffers for FPDUs that are sent with a checksum of ours (`sums`), or with one
    /// that a port fills in.
    pub fn new(sums: bool) -> Buffers {
        Buffers { spare: Vec::new(), sums }
    }

    /// Returns true if an FPDU may owe its snapshot: the frame then gets it in passing, and no
    /// checksum of ours.
    #[inline]
    pub(super) fn may_owe(&self) -> bool {
        !self.sums
    }

    /// Makes `buffer` at least `len` bytes long, with arbitrary content. A buffer without memory
    /// gets a spare one, if there is any.
    #[inline]
    pub(super) fn take(&mut self, buffer: &mut Vec<u8>, len: usize) {
        if buffer.capacity() == 0
            && let Some(spare) = self.spare.pop()
        {
            *buffer = spare;
        }
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
    }

    /// Keeps a buffer for reuse, or frees it if [`MAX_SPARE`] are kept.
    #[inline]
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.spare.len() < MAX_SPARE {
            self.spare.push(buffer);
        }
    }
}
