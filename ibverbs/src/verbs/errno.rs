//! Which errno an error of the device is.

use heddle_verbs::{BindError, DeviceError, RegisterError};
use libc::{EACCES, EAGAIN, EBUSY, EINVAL, EIO, ENOMEM};

/// Sets the calling thread's `errno`.
pub(super) fn set(errno: i32) {
    // SAFETY: the C library returns a pointer to a live number of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// The errno of an error of the device.
pub(super) fn of(error: &DeviceError) -> i32 {
    match error {
        DeviceError::Limit { .. }
        | DeviceError::ForeignPd(_)
        | DeviceError::ForeignCq
        | DeviceError::ForeignSrq
        | DeviceError::ForeignQp(_)
        | DeviceError::CqTooSmall { .. }
        | DeviceError::QpState(_)
        | DeviceError::QpDead
        | DeviceError::MrOfDevice
        | DeviceError::WakerWithoutFd => EINVAL,
        DeviceError::CqResizing
        | DeviceError::SrqInUse { .. }
        | DeviceError::QpInUse
        | DeviceError::MrBound { .. } => EBUSY,
        DeviceError::TooMany { .. } | DeviceError::Area(_) | DeviceError::Region(_) => ENOMEM,
        DeviceError::Register(error) => match error {
            RegisterError::OutOfRange | RegisterError::Mr(_) => EINVAL,
            RegisterError::NoMemory { .. }
            | RegisterError::TooManyRegions
            | RegisterError::Quota { .. } => ENOMEM,
        },
        DeviceError::Refused(fault) => of_fault(fault),
        DeviceError::Address(..) => libc::EADDRNOTAVAIL,
        DeviceError::Overloaded => EAGAIN,
        DeviceError::Socket(_) | DeviceError::Gone => EIO,
    }
}

fn of_fault(fault: &heddle_socket::Fault) -> i32 {
    use heddle_socket::FaultKind as Kind;
    match fault.kind {
        Kind::Denied => EACCES,
        Kind::NotFound | Kind::Invalid => EINVAL,
        Kind::Busy => EAGAIN,
        Kind::Quota => ENOMEM,
        Kind::Malformed | Kind::Version | Kind::Failed => EIO,
    }
}

/// The errno of a window that could not be bound.
pub(super) fn of_bind(error: BindError) -> i32 {
    match error {
        BindError::Rights => EACCES,
        BindError::Stag
        | BindError::Valid
        | BindError::Memory(_)
        | BindError::Scattered
        | BindError::Length => EINVAL,
    }
}

/// The errno of a device that could not be opened, which is said on standard error once: a program prints no more
/// than that it found no device.
pub(super) fn opening(error: &DeviceError) -> i32 {
    use std::io::Write;
    use std::sync::Once;
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let socket = crate::rnic::socket();
        // A program without standard error has no use for it.
        let _ = writeln!(
            std::io::stderr(),
            "libibverbs (heddle): cannot open the RNIC at {}: {error}. `heddle run -- PROGRAM` starts one; \
             {} names the socket of another",
            socket.display(),
            crate::rnic::SOCKET,
        );
    });
    match error {
        DeviceError::Refused(fault) if fault.kind == heddle_socket::FaultKind::Denied => EACCES,
        _ => libc::ENODEV,
    }
}
