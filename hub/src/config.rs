//! Resources of one application.

use heddle_shm::PageSize;
use heddle_verbs::DeviceLimits;

/// Resources that an application gets of its own.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// Bytes of memory that the application can register without bringing its own; 0 for none.
    pub memory: usize,
    /// Bytes for the application's queues.
    pub queues: usize,
    /// True if another process can be given the memory (the memory is not on hugepages then).
    pub shared: bool,
    /// Page size of the memory, where it is for this process alone. The memory lies at the
    /// processor socket of the thread that opens the device.
    pub pages: PageSize,
    /// Most objects of each kind that the application can have.
    pub limits: DeviceLimits,
    /// True if a registration waits a little for memory that is about to become free.
    pub patient: bool,
}

impl Default for DeviceConfig {
    /// Returns 64 MiB of memory and 16 MiB of queues for this process, with the usual limits.
    fn default() -> Self {
        DeviceConfig {
            memory: 64 << 20,
            queues: 16 << 20,
            shared: false,
            pages: PageSize::Auto,
            limits: DeviceLimits::default(),
            patient: true,
        }
    }
}
