//! Data that lies apart from the other octets of a call or reply.
//!
//! A transport that moves data by RDMA has it in memory of its own, which peers and workers may write to at
//! any time and nobody may borrow. So READ and WRITE ask that memory to exchange data with the file, and the
//! system does: no octet is copied by the service.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, pread, pwrite};

/// A call's arguments.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    /// All of them; those in front of the data, with its length at the end, when that lies apart.
    pub octets: &'a [u8],
    /// The data of a WRITE, when it lies apart.
    pub data: Option<&'a dyn Source>,
}

impl<'a> Arguments<'a> {
    /// All in one place.
    pub const fn of(octets: &'a [u8]) -> Arguments<'a> {
        Arguments { octets, data: None }
    }
}

/// Data that is to be written.
#[allow(clippy::len_without_is_empty, reason = "whether there is any is nobody's question")]
pub trait Source {
    /// Octets.
    fn len(&self) -> usize;

    /// Writes up to `len` of them, from the one numbered `from` on, to `file` at its offset `at`. How many
    /// it were.
    ///
    /// # Errors
    /// Those of `pwrite(2)`.
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
        let octets = self.get(from..).unwrap_or(&[]);
        Ok(pwrite(file, octets.get(..len).unwrap_or(octets), at)?)
    }
}

/// Where data that is read can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Into the sink, apart from the other results.
    Apart,
    /// Behind them.
    Within,
    /// Nowhere for now: the client is to ask again.
    None,
    /// Nowhere for now: the call is to be begun again when there is room.
    Later,
}

/// Takes data that is read.
pub trait Sink {
    /// Bytes that it takes at most.
    fn most(&self) -> usize {
        usize::MAX
    }

    /// Where `len` octets are to go. It is asked once in a call, before anything is read.
    fn take(&mut self, len: usize) -> Room;

    /// Reads up to `len` octets of `file`, from its offset `at` on, to behind the first `to` octets of the
    /// room that was taken. How many it were.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    fn read_from(
        &mut self,
        to: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize>;
}

/// A sink that takes nothing: data goes behind the other results.
#[derive(Clone, Copy, Debug, Default)]
pub struct InReply;

impl Sink for InReply {
    fn take(&mut self, _: usize) -> Room {
        Room::Within
    }

    fn read_from(&mut self, _: usize, _: usize, _: BorrowedFd<'_>, _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Reads into ordinary memory.
pub(super) fn read_into(room: &mut [u8], file: BorrowedFd<'_>, at: u64) -> io::Result<usize> {
    Ok(pread(file, room, at)?)
}

/// Goes on until all `len` octets are moved or `step`, which is given those that are and their number left,
/// moves no more. How many are; an error only if that is none.
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
    fn test_all_is_moved_in_as_many_steps_as_it_takes() {
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
