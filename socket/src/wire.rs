//! Lines and descriptors through a Unix stream socket.
//!
//! [`send`] and [`receive`] are one system call each and wait as the socket does. [`Inbox`] puts lines
//! together and keeps the descriptors that came with them in order, within limits: what a peer may
//! make us hold is one line and a few descriptors.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors that come with one document.
pub const MAX_FDS: usize = 8;

/// Octets of the longest request a server reads.
pub const MAX_REQUEST: usize = 64 << 10;

/// Octets of the longest answer a client reads: a list of all connections is long.
pub const MAX_ANSWER: usize = 256 << 20;

/// Octets asked of the socket at a time.
const CHUNK: usize = 16 << 10;

/// Why nothing more can be read from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A line without an end.
    #[error("a line is longer than {0} octets")]
    TooLong(usize),
    /// More descriptors than belong to what was said.
    #[error("more than {MAX_FDS} descriptors came with one document")]
    TooManyFds,
    /// Descriptors that the system could not hand over: this process has too many.
    #[error("descriptors were lost on the way; this process may have too many open")]
    LostFds,
}

/// Sends octets of `bytes` from the start, and with the first of them descriptors; how many octets
/// went.
///
/// # Errors
/// The system's: [`WouldBlock`](io::ErrorKind::WouldBlock) when a socket that does not wait has no
/// room. More than [`MAX_FDS`] descriptors are [`InvalidInput`](io::ErrorKind::InvalidInput).
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty()
        && (fds.len() > MAX_FDS || !ancillary.push(SendAncillaryMessage::ScmRights(fds)))
    {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, WireError::TooManyFds));
    }
    loop {
        // A peer that is gone is an error to look at, not a signal that ends the process.
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// What [`receive`] has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many octets.
    Octets(usize),
    /// The peer has closed its side.
    End,
}

/// Reads once from `socket` into `inbox`.
///
/// # Errors
/// The system's: [`WouldBlock`](io::ErrorKind::WouldBlock) when there is nothing. A [`WireError`] is
/// [`InvalidData`](io::ErrorKind::InvalidData): close the socket.
pub fn receive(socket: impl AsFd, inbox: &mut Inbox) -> io::Result<Received> {
    let mut bytes = [0; CHUNK];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            inbox.fds.extend(fds);
        }
    }
    let lost = message.flags.contains(rustix::net::ReturnFlags::CTRUNC);
    let fine = if lost { Err(WireError::LostFds) } else { inbox.push(&bytes[..message.bytes]) };
    fine.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(if message.bytes == 0 { Received::End } else { Received::Octets(message.bytes) })
}

/// A line without its end.
pub type Line = Vec<u8>;

/// What has come from a peer and was not taken.
#[derive(Debug)]
pub struct Inbox {
    bytes: VecDeque<u8>,
    /// Octets from the front in which there is no end of a line.
    scanned: usize,
    fds: VecDeque<OwnedFd>,
    most: usize,
}

impl Inbox {
    /// An empty one that takes lines of up to `most` octets, ends not counted.
    pub fn new(most: usize) -> Inbox {
        Inbox { bytes: VecDeque::new(), scanned: 0, fds: VecDeque::new(), most }
    }

    /// Adds what has come.
    ///
    /// # Errors
    /// [`WireError`]: a line is too long, or descriptors pile up. Nothing more can be made of it.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.bytes.extend(bytes);
        if self.fds.len() > MAX_FDS {
            return Err(WireError::TooManyFds);
        }
        if self.end_of_line().is_none() && self.bytes.len() > self.most {
            return Err(WireError::TooLong(self.most));
        }
        Ok(())
    }

    /// The next line, if it is whole; lines of nothing are skipped.
    pub fn pop(&mut self) -> Option<Line> {
        loop {
            let end = self.end_of_line()?;
            let mut line: Line = self.bytes.drain(..=end).collect();
            self.scanned = 0;
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            if !line.is_empty() {
                return Some(line);
            }
        }
    }

    /// The next `n` descriptors; nothing when there are not as many.
    pub fn take_fds(&mut self, n: usize) -> Option<Vec<OwnedFd>> {
        (n <= self.fds.len()).then(|| self.fds.drain(..n).collect())
    }

    fn end_of_line(&mut self) -> Option<usize> {
        let end = self.bytes.iter().skip(self.scanned).position(|b| *b == b'\n');
        if end.is_none() {
            self.scanned = self.bytes.len();
        }
        end.map(|at| at + self.scanned)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn test_lines_come_out_whole_however_they_come_in() {
        let text = b"one\n\ntwo\r\nthree\n";
        for step in 1..=text.len() {
            let mut inbox = Inbox::new(5);
            let mut lines = Vec::new();
            for part in text.chunks(step) {
                inbox.push(part).unwrap();
                lines.extend(std::iter::from_fn(|| inbox.pop()));
            }
            assert_eq!(lines, [&b"one"[..], b"two", b"three"], "in steps of {step}");
        }
    }

    #[test]
    fn test_a_line_without_end_is_not_kept() {
        let mut inbox = Inbox::new(4);
        assert_eq!(inbox.push(b"1234"), Ok(()));
        assert_eq!(inbox.push(b"5"), Err(WireError::TooLong(4)));
        // Several whole lines together may be longer.
        assert_eq!(Inbox::new(4).push(b"1234\n1234\n"), Ok(()));
    }

    #[test]
    fn test_descriptors_come_with_their_line_and_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let files: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let line = b"{\"fds\":2}\n{\"fds\":1}\n";
        let (first, rest) = line.split_at(10);
        assert_eq!(send(&a, first, &[files[0].0.as_fd(), files[1].0.as_fd()]).unwrap(), 10);
        assert_eq!(send(&a, rest, &[files[2].0.as_fd()]).unwrap(), 10);
        drop(a);
        let mut inbox = Inbox::new(64);
        while receive(&b, &mut inbox).unwrap() != Received::End {}
        assert_eq!(inbox.pop().unwrap(), b"{\"fds\":2}");
        assert!(inbox.take_fds(4).is_none());
        for (n, f) in inbox.take_fds(3).unwrap().into_iter().enumerate() {
            rustix::io::write(&f, &[u8::try_from(n).unwrap()]).unwrap();
            let mut got = [9];
            (&files[n].1).read_exact(&mut got).unwrap();
            assert_eq!(usize::from(got[0]), n);
        }
    }

    /// What a peer sends beside what it says is closed, and so is the connection.
    #[test]
    fn test_descriptors_do_not_pile_up() {
        let (a, b) = UnixStream::pair().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let many = [theirs.as_fd(); MAX_FDS];
        assert!(send(&a, b"x", &[theirs.as_fd(); MAX_FDS + 1]).is_err());
        let mut inbox = Inbox::new(64);
        send(&a, b"x", &many).unwrap();
        receive(&b, &mut inbox).unwrap();
        send(&a, b"y", &many).unwrap();
        let error = receive(&b, &mut inbox).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop((inbox, theirs));
        // Nobody holds the other end any more.
        assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
    }
}
