//! Converts errors of the device to errno values.

use heddle_verbs::{BindError, DeviceError, RegisterError};
use libc::{EACCES, EAGAIN, EBUSY, EINVAL, EIO, ENOMEM};

/// Sets the calling thread's `errno`.
pub(super) fn set(errno: i32) {
    // SAFETY: the C library returns a pointer to a live number of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the calling thread's `errno`.
pub(super) fn get() -> i32 {
    // SAFETY: as in `set`.
    unsafe { *libc::__errno_location() }
}

/// Returns the errno of an error of the device.
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
        DeviceError::Socket(_) | DeviceError::Gone | DeviceError::Ended { .. } => EIO,
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

/// Returns the errno of a failed bind of a window.
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

/// Prints on standard error that the RNIC of this process has ended. The program itself learns of
/// flushed requests and of a fatal event, whose reason it cannot know.
///
/// The program's requests are flushed after this, so this does not wait: a program whose standard
/// error takes nothing for a while does without the line.
pub(crate) fn report_end(error: &DeviceError) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::Write;
    let stderr = std::io::stderr();
    let ready = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let polled = poll(&mut fds, Some(&ready));
    // A write to a pipe without a reader would end the program by SIGPIPE.
    if polled.is_ok() && fds[0].revents() == PollFlags::OUT {
        // A pipe that is ready takes PIPE_BUF bytes. Ignore errors: a program without standard
        // error cannot show the reason.
        let line = format!("libibverbs (heddle): {error}\n");
        let _ = stderr.lock().write_all(line.as_bytes());
    }
}

/// Returns advice to the user about a device that the library could not open.
fn advice(error: &DeviceError) -> String {
    use heddle_socket::FaultKind as Kind;
    let DeviceError::Refused(fault) = error else {
        let variable = crate::rnic::SOCKET;
        return format!(
            "`heddle run -- PROGRAM` starts one; {variable} names the socket of another"
        );
    };
    let advice = match fault.kind {
        Kind::Quota => {
            "The rule for this user in the RNIC's file sets what its programs have together; \
             `heddle status` shows which have it"
        }
        Kind::Denied => "The rules in the RNIC's file say who may use it",
        _ => "`heddle status` shows its state",
    };
    advice.to_owned()
}

/// Returns the errno of a device that could not be opened, and prints the reason on standard error
/// once: the program itself only prints that it found no device.
pub(super) fn opening(error: &DeviceError) -> i32 {
    use std::io::Write;
    use std::sync::Once;
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let socket = crate::rnic::socket();
        // Ignore errors: a program without standard error cannot show the reason.
        let _ = writeln!(
            std::io::stderr(),
            "libibverbs (heddle): cannot open the RNIC at {}: {error}. {}",
            socket.display(),
            advice(error),
        );
    });
    match error {
        DeviceError::Refused(fault) if fault.kind == heddle_socket::FaultKind::Denied => EACCES,
        _ => libc::ENODEV,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_socket::{Fault, FaultKind};

    #[test]
    fn test_error_advice_matches_the_cause() {
        let refused = |kind| advice(&DeviceError::Refused(Fault { kind, text: String::new() }));
        assert!(advice(&DeviceError::Gone).contains("heddle run"));
        for kind in [FaultKind::Quota, FaultKind::Denied, FaultKind::Busy] {
            assert!(!refused(kind).contains("heddle run"), "{kind:?}");
        }
        assert!(refused(FaultKind::Quota).contains("rule"));
    }
}
