//! Data that lies apart from the other bytes of a call or reply.
//!
//! A transport that moves data by RDMA keeps the data in memory of its own. Peers and workers may
//! write to this memory at any time, so the service cannot borrow it. READ and WRITE therefore ask
//! that memory to exchange data with the file, and the system does the exchange: the service copies
//! no byte.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, pread, pwrite};

/// The arguments of a call.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    /// All bytes of the arguments; if the data lies apart, only the bytes in front of the data,
    /// which end with the data's length.
    pub bytes: &'a [u8],
    /// The data of a WRITE, if it lies apart.
    pub data: Option<&'a dyn Source>,
}

impl<'a> Arguments<'a> {
    /// Makes arguments that lie in one place.
    pub const fn of(bytes: &'a [u8]) -> Arguments<'a> {
        Arguments { bytes, data: None }
    }
}

/// The data of a WRITE.
#[allow(clippy::len_without_is_empty, reason = "whether there is any is nobody's question")]
pub trait Source {
    /// Returns the length of the data in bytes.
    fn len(&self) -> usize;

    /// Writes up to `len` bytes of the data, from the byte at index `from` on, to `file` at its
    /// offset `at`. Returns the number of bytes written.
    ///
    /// # Errors
    /// The errors of `pwrite(2)`.
    fn write_to(&self, from: usize, len: usize, file: BorrowedFd<'_>, at: u64)
    -> io::Result<usize>;
}

impl Source for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn write_to(
        &self,
        from: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize> {
        let bytes = self.get(from..).unwrap_or(&[]);
        Ok(pwrite(file, bytes.get(..len).unwrap_or(bytes), at)?)
    }
}

/// Where the data of a READ can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Into the sink, apart from the other results.
    Direct,
    /// Into the reply, after the other results.
    Inline,
    /// Nowhere for now: the client has to ask again.
    None,
    /// Nowhere for now: the service has to begin the call again when there is room.
    Later,
}

/// Takes the data of a READ.
pub trait Sink {
    /// Returns the highest number of bytes that the sink takes.
    fn most(&self) -> usize {
        usize::MAX
    }

    /// Decides where `len` bytes go. The service asks once in a call, before it reads anything.
    fn take(&mut self, len: usize) -> Room;

    /// Reads up to `len` bytes of `file`, from its offset `at` on, into the taken room, after its
    /// first `to` bytes. Returns the number of bytes read.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    fn read_from(
        &mut self,
        to: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize>;
}

/// A sink that takes nothing: data goes into the reply, after the other results.
#[derive(Clone, Copy, Debug, Default)]
pub struct InReply;

impl Sink for InReply {
    fn take(&mut self, _: usize) -> Room {
        Room::Inline
    }

    fn read_from(&mut self, _: usize, _: usize, _: BorrowedFd<'_>, _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Reads into ordinary memory, and returns the number of bytes read.
pub(super) fn read_into(room: &mut [u8], file: BorrowedFd<'_>, at: u64) -> io::Result<usize> {
    Ok(pread(file, room, at)?)
}

/// Calls `step` until all `len` bytes are moved or `step` moves no more; `step` receives the number
/// of bytes moved so far and the number left. Returns the number of bytes moved, and an error only
/// if no byte was moved.
pub(super) fn all(
    len: usize,
    mut step: impl FnMut(usize, usize) -> io::Result<usize>,
) -> Result<usize, Errno> {
    let mut moved = 0;
    while moved < len {
        match step(moved, len - moved) {
            Ok(0) => break,
            Ok(n) => moved += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if moved == 0 => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
            Err(_) => break,
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_transfer_continues_in_steps_until_all_is_moved() {
        let step = |steps: &'static [Result<usize, Errno>]| {
            let mut steps = steps.iter();
            let mut seen = Vec::new();
            let moved = all(10, |done, left| {
                seen.push((done, left));
                Ok((*steps.next().expect("a step more"))?)
            });
            (moved, seen)
        };
        assert_eq!(step(&[Ok(10)]), (Ok(10), vec![(0, 10)]));
        let interrupted = step(&[Ok(3), Err(Errno::INTR), Ok(7)]);
        assert_eq!(interrupted, (Ok(10), vec![(0, 10), (3, 7), (3, 7)]));
        assert_eq!(step(&[Ok(4), Ok(0)]).0, Ok(4));
        assert_eq!(step(&[Ok(4), Err(Errno::NOSPC)]).0, Ok(4));
        assert_eq!(step(&[Err(Errno::NOSPC)]).0, Err(Errno::NOSPC));
    }
}
