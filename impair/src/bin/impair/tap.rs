//! A tap device: the frames that the host sends through an interface can be read, and written
//! frames arrive there.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::ioctl::{Opcode, Updater, ioctl};

/// The kernel's `TUNSETIFF`, which gives the descriptor an interface.
const TUNSETIFF: Opcode = 0x4004_54ca;
/// Whole Ethernet frames, and nothing before them.
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;

const NAME: usize = 16;

/// The kernel's `struct ifreq`.
#[repr(C, align(8))]
struct IfReq {
    name: [u8; NAME],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<IfReq>() == 40);

/// The descriptor of a tap device, which goes away with it.
pub(crate) struct Tap(File);

impl Tap {
    /// Makes an interface of this name in the namespace of the process. It stays usable when the
    /// interface moves to another namespace.
    pub(crate) fn new(name: &str) -> io::Result<Tap> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
        let mut request = IfReq { name: [0; NAME], flags: IFF_TAP | IFF_NO_PI, rest: [0; 22] };
        // The last byte stays zero and ends the name.
        match request.name[..NAME - 1].get_mut(..name.len()) {
            Some(place) if !name.is_empty() => place.copy_from_slice(name.as_bytes()),
            _ => {
                let why = format!("the name of an interface has 1 to {} bytes", NAME - 1);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        // SAFETY: this request reads and writes a `struct ifreq`, whose 40 bytes these are.
        unsafe { ioctl(&file, Updater::<TUNSETIFF, IfReq>::new(&mut request))? };
        Ok(Tap(file))
    }

    /// Reads the next frame that the host has sent; `None` if there is none.
    pub(crate) fn read<'b>(&mut self, buf: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        match self.0.read(buf) {
            Ok(n) => Ok(Some(&buf[..n])),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            // The interface is down.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Hands a frame to the host. Returns false if the host did not take it.
    pub(crate) fn write(&mut self, frame: &[u8]) -> bool {
        self.0.write(frame).is_ok_and(|n| n == frame.len())
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
