//! Protection domains that are given back.

use heddle_iwarp::Pd;

use super::Device;

/// A protection domain, given back when this is dropped, as by
/// [`dealloc_pd`](Device::dealloc_pd): what is in it may outlive it, so whoever makes nothing more in it
/// need not keep it.
#[derive(Debug)]
pub struct OwnedPd {
    device: Device,
    pd: Pd,
}

impl OwnedPd {
    pub(super) fn new(device: Device, pd: Pd) -> OwnedPd {
        OwnedPd { device, pd }
    }

    /// Its number, to make something in it.
    pub fn id(&self) -> Pd {
        self.pd
    }
}

impl Drop for OwnedPd {
    fn drop(&mut self) {
        // An RNIC that is gone has it back; and no one else gives back what is this one's.
        let _ = self.device.dealloc_pd(self.pd);
    }
}
