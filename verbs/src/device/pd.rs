//! Protection domains that end with their handle.

use heddle_types::Pd;

use super::Device;

/// A protection domain that ends when this is dropped, as by [`dealloc_pd`](Device::dealloc_pd).
/// Objects in the domain may outlive the handle, so a caller that makes no more objects in it need
/// not keep the handle.
#[derive(Debug)]
pub struct OwnedPd {
    device: Device,
    pd: Pd,
}

impl OwnedPd {
    pub(super) fn new(device: Device, pd: Pd) -> OwnedPd {
        OwnedPd { device, pd }
    }

    /// Returns the domain's number, with which the caller makes objects in it.
    pub fn id(&self) -> Pd {
        self.pd
    }
}

impl Drop for OwnedPd {
    fn drop(&mut self) {
        // Ignore the error: it means the RNIC is gone, and the domain with it. `OwnedPd` is the
        // sole owner.
        let _ = self.device.dealloc_pd(self.pd);
    }
}
