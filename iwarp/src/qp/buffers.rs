//! Memory of FPDUs that have to own their bytes, used again and again.

/// Buffers that no FPDU uses at the moment.
#[derive(Debug, Default)]
pub struct Buffers(Vec<Vec<u8>>);

/// Buffers kept for use again; beyond it, each goes back to the allocator.
const MAX_SPARE: usize = 1024;

impl Buffers {
    /// Makes `buffer` at least `len` bytes long, their content arbitrary; one that has no memory
    /// gets some that was used before, if there is any.
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

    /// Keeps a buffer for later.
    #[inline]
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.0.len() < MAX_SPARE {
            self.0.push(buffer);
        }
    }
}
