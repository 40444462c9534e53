//! File handles (RFC 1813 section 2.3.3, `nfs_fh3`).

use std::fmt;

use heddle_rpcrdma::xdr::{self, Reader};

use super::{Xdr, put_opaque};

const MAX: u32 = 64;

/// A handle of at most 64 bytes, which only the server that made it can interpret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    // Unused bytes are zero, so that equal handles are equal values.
    bytes: [u8; MAX as usize],
    len: usize,
}

impl Handle {
    /// Makes a handle of `bytes`; `None` for more than 64 bytes.
    pub fn new(bytes: &[u8]) -> Option<Handle> {
        let mut all = [0; MAX as usize];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Handle { bytes: all, len: bytes.len() })
    }

    /// Returns the bytes of the handle.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

impl Xdr<'_> for Handle {
    fn get(r: &mut Reader<'_>) -> Result<Handle, xdr::Error> {
        let at = r.at();
        let bytes = r.opaque(MAX)?;
        // `opaque` has checked the limit of 64 bytes, so this error cannot occur.
        let too_long = xdr::Error { at, fault: xdr::Fault::Length { len: MAX + 1, max: MAX } };
        Handle::new(bytes).ok_or(too_long)
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.as_slice());
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle(")?;
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}
