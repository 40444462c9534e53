//! Why there is no port.

use thiserror::Error;

/// Why there is no port. Each error names the device.
#[derive(Debug, Error)]
pub enum PortError {
    /// The description of the device is malformed.
    #[error("device {device}: {why}")]
    BadDevice {
        /// The description.
        device: String,
        /// The error in the description.
        why: String,
    },
    /// There is no such device.
    #[error("device {0}: there is no such device")]
    NotFound(String),
    /// The machine has the device, but DPDK has no port for it.
    #[error("device {device}: {why}")]
    Unusable {
        /// The device's name or address, as the caller gave it.
        device: String,
        /// The driver that has the device, or DPDK's log of it.
        why: String,
    },
    /// A device of that name is in use.
    #[error("device {0}: a device of this name is in use already")]
    InUse(String),
    /// The driver refused the device, or there is no such driver.
    #[error("device {device}: {why}")]
    Probe {
        /// The description of the device.
        device: String,
        /// The first line of the driver's log.
        why: String,
    },
    /// The device cannot do what the configuration asks for.
    #[error("device {device}: {what} of {wanted} asked for, at most {max} possible")]
    Limit {
        /// The device's name.
        device: String,
        /// The limited quantity.
        what: &'static str,
        /// The number that the configuration asks for.
        wanted: u32,
        /// The largest number that the device allows.
        max: u32,
    },
    /// The device needs more than the configuration gives.
    #[error("device {device}: {what} of {wanted} asked for, at least {min} needed")]
    Below {
        /// The device's name.
        device: String,
        /// The limited quantity.
        what: &'static str,
        /// The number that the configuration asks for.
        wanted: u32,
        /// The smallest number that the device needs.
        min: u32,
    },
    /// The port would have several queues, and it is unknown to which of them a flow comes.
    #[error("device {device}: {queues} queues asked for, but {why}; let workers hand frames on")]
    Spread {
        /// The device's name.
        device: String,
        /// The queues that the configuration asks for.
        queues: u16,
        /// The missing capability.
        why: String,
    },
    /// The kernel of the host uses the device too, and the configuration does not name our
    /// addresses.
    #[error("device {device}: the host's kernel uses it too; name the addresses that are ours")]
    Shared {
        /// The device's name.
        device: String,
    },
    /// The kernel of the host uses the device too, so there is no way to take the frames of VLANs.
    #[error("device {device}: the host's kernel uses it too, so a port there has no VLANs")]
    Vlans {
        /// The device's name.
        device: String,
    },
    /// A device cannot be a member of a bond.
    #[error("device {device} cannot be a member of a bond: {why}")]
    NoMember {
        /// The device's name.
        device: String,
        /// The reason.
        why: String,
    },
    /// A bond has the device.
    #[error("device {device}: it is a member of the bond {bond}")]
    Bonded {
        /// The device's name.
        device: String,
        /// The bond's name in DPDK.
        bond: String,
    },
    /// A step of setting the device up failed.
    #[error("device {device}: {step} failed: {why}")]
    Setup {
        /// The device's name.
        device: String,
        /// The step that failed.
        step: &'static str,
        /// DPDK's reason.
        why: String,
    },
}
