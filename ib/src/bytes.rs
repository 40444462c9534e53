//! Fields at fixed offsets of arrays, most significant byte first. The offsets are constants of the
//! formats, so every test of a format would find an offset beyond the array.

pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

pub(crate) fn be24(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(crate) fn be64(b: &[u8], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}

/// Returns the `N` bytes at `at`.
pub(crate) fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}

pub(crate) fn put(b: &mut [u8], at: usize, field: &[u8]) {
    b[at..at + field.len()].copy_from_slice(field);
}

/// Writes the low 24 bits of `v` to three bytes; the byte after them stays.
pub(crate) fn put24(b: &mut [u8], at: usize, v: u32) {
    put(b, at, &v.to_be_bytes()[1..]);
}
