//! Why there is no port.

use thiserror::Error;

/// Why there is no port. Each names the device.
#[derive(Debug, Error)]
pub enum PortError {
    /// The description is malformed.
    #[error("device {device}: {why}")]
    BadDevice {
        /// As it was given.
        device: String,
        /// What is wrong.
        why: String,
    },
    /// There is no such device.
    #[error("device {0}: there is no such device")]
    NotFound(String),
    /// The machine has the device, and DPDK has no port for it.
    #[error("device {device}: {why}")]
    Unusable {
        /// As it was given.
        device: String,
        /// What it is bound to, or what DPDK said of it.
        why: String,
    },
    /// A device of that name is in use.
    #[error("device {0}: a device of this name is in use already")]
    InUse(String),
    /// The driver refused it, or there is no such driver.
    #[error("device {device}: {why}")]
    Probe {
        /// As it was given.
        device: String,
        /// The driver's first complaint.
        why: String,
    },
    /// The device cannot do what the configuration asks.
    #[error("device {device}: {what} of {wanted} asked for, at most {max} possible")]
    Limit {
        /// Its name.
        device: String,
        /// What is limited.
        what: &'static str,
        /// Asked for.
        wanted: u32,
        /// Possible.
        max: u32,
    },
    /// The device needs more than the configuration gives.
    #[error("device {device}: {what} of {wanted} asked for, at least {min} needed")]
    Below {
        /// Its name.
        device: String,
        /// What is limited.
        what: &'static str,
        /// Asked for.
        wanted: u32,
        /// Needed.
        min: u32,
    },
    /// It has several queues, and nobody can say which of them a flow comes to.
    #[error("device {device}: {queues} queues asked for, but {why}; let workers hand frames on")]
    Spread {
        /// Its name.
        device: String,
        /// Asked for.
        queues: u16,
        /// What is missing.
        why: String,
    },
    /// The kernel of the host uses it too, and it was not said what is ours.
    #[error("device {device}: the host's kernel uses it too; name the addresses that are ours")]
    Shared {
        /// Its name.
        device: String,
    },
    /// A step of setting it up failed.
    #[error("device {device}: {step} failed: {why}")]
    Setup {
        /// Its name.
        device: String,
        /// The step.
        step: &'static str,
        /// DPDK's reason.
        why: String,
    },
}
