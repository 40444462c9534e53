//! Memory of FPDUs that own their bytes, kept for reuse.

/// Buffers that no FPDU uses at the moment.
#[derive(Debug, Default)]
pub struct Buffers(Vec<Vec<u8>>);

/// Most buffers kept for reuse; further ones go back to the allocator.
const MAX_SPARE: usize = 1024;

impl Buffers {
    /// Makes `buffer` at least `len` bytes long, with arbitrary content. A buffer without memory
    /// gets a spare one, if there is any.
    #[inline]
    pub(super) fn take(&mut self, buffer: &mut Vec<u8>, len: usize) {
        if buffer.capacity() == 0
            && let Some(spare) = self.0.pop()
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
        if buffer.capacity() > 0 && self.0.len() < MAX_SPARE {
            self.0.push(buffer);
        }
    }
}
