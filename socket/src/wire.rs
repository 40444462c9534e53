//! Lines and descriptors through a Unix stream socket.
//!
//! [`send`] and [`receive`] are one system call each and wait as the socket does. [`Inbox`]
//! assembles lines and keeps the descriptors that came with them in order, within limits: a peer
//! may make us hold one line and a few descriptors.
//!
//! # Descriptors of a peer that is not trusted
//!
//! The last close of a descriptor takes as long as the peer that made it likes: a TCP socket
//! lingers, and such a socket may lie in the queue of another. Even receiving can close a
//! descriptor, because the kernel drops descriptors that do not fit. A thread that serves several
//! peers therefore calls [`receive_bytes`], which leaves descriptors in the socket's queue, calls
//! [`take`] on a thread that may wait, and has its [`Inbox`] close descriptors on that thread
//! ([`Inbox::closing_by`]). Nor does such a thread close the peer's socket itself: the queue may
//! hold more descriptors.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};

use crate::descriptor;

/// Most descriptors that come with one document.
pub const MAX_FDS: usize = 8;

/// Bytes of the longest request that a server reads.
pub const MAX_REQUEST: usize = 64 << 10;

/// Bytes of the longest answer that a client reads: a list of all connections is long.
pub const MAX_ANSWER: usize = 256 << 20;

/// Most bytes that one read takes from the socket.
const CHUNK: usize = 16 << 10;

/// Why nothing more can be read from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A line exceeds the limit without an end.
    #[error("a line is longer than {0} bytes")]
    TooLong(usize),
    /// More descriptors came than belong to one document.
    #[error("more than {MAX_FDS} descriptors came with one document")]
    TooManyFds,
    /// The system could not hand over descriptors: this process has too many open.
    #[error("descriptors were lost on the way; this process may have too many open")]
    LostFds,
    /// Descriptors came that no request asked for, or that came before the end of their request's
    /// line.
    #[error("descriptors came that belong to no request")]
    StrayFds,
}

impl WireError {
    /// Returns this error as an error of the socket: [`InvalidData`](io::ErrorKind::InvalidData).
    pub fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }
}

/// Sends bytes from the start of `bytes`, and descriptors with the first byte. Returns how many
/// bytes the socket took.
///
/// # Errors
/// The system's error: [`WouldBlock`](io::ErrorKind::WouldBlock) when a non-blocking socket has no
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
        // NOSIGNAL: a peer that has closed causes an error to handle, not a signal that ends the
        // process.
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// The result of [`receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many bytes arrived.
    Bytes(usize),
    /// The peer has closed its side.
    End,
}

/// Reads once from `socket` into `inbox`.
///
/// # Errors
/// The system's error: [`WouldBlock`](io::ErrorKind::WouldBlock) when nothing has arrived. A
/// [`WireError`] is [`InvalidData`](io::ErrorKind::InvalidData): close the socket.
pub fn receive(socket: impl AsFd, inbox: &mut Inbox) -> io::Result<Received> {
    inbox.add(take(socket)?)
}

/// Does the same as [`receive`], but reads nothing that brings descriptors: returns `None` when the
/// next bytes bring some. The socket has to be non-blocking, and the caller has to have called
/// [`guard`] with it.
///
/// # Errors
/// As [`receive`].
pub fn receive_bytes(socket: impl AsFd, inbox: &mut Inbox) -> io::Result<Option<Received>> {
    let mut bytes = [0; CHUNK];
    // Without a buffer for descriptors a peek reports that some come (CTRUNC), and closes none:
    // they stay in the queue.
    let seen = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        let mut none = RecvAncillaryBuffer::default();
        match recvmsg(&socket, &mut into, &mut none, RecvFlags::PEEK) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    if seen.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        return Ok(None);
    }
    if seen.bytes == 0 {
        return Ok(Some(Received::End));
    }
    // Read no more than the peek has seen: descriptors may have arrived after these bytes.
    let (got, _) = loop {
        match recv(&socket, &mut bytes[..seen.bytes], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    inbox.push(&bytes[..got]).map_err(WireError::into_io)?;
    Ok(Some(Received::Bytes(got)))
}

/// Prepares a socket for [`receive_bytes`]. Without this, a read past a byte that was sent out of
/// band drops this byte and the descriptors that came with it.
///
/// # Errors
/// The system's error.
pub fn guard(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_oobinline(socket, true)?)
}

/// Ends both directions of a socket that has been given to [`guard`]. Returns true if nothing is
/// left in the socket's queue, so that the socket closes at once. From here on the peer can queue
/// nothing, and can still read what we sent.
pub fn end(socket: impl AsFd) -> bool {
    // Ignore the error: a peer that has closed its socket has ended the connection already.
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    let (mut byte, mut none) = ([0; 1], RecvAncillaryBuffer::default());
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let seen = recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut none, flags);
    seen.is_ok_and(|m| m.bytes == 0 && !m.flags.contains(rustix::net::ReturnFlags::CTRUNC))
}

/// Bytes and descriptors of one read. A dropped `RawRead` closes its descriptors at once.
#[derive(Debug)]
pub struct RawRead {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    lost: bool,
}

/// Reads once from `socket`, for [`Inbox::add`].
///
/// # Errors
/// The system's error: [`WouldBlock`](io::ErrorKind::WouldBlock) when nothing has arrived.
pub fn take(socket: impl AsFd) -> io::Result<RawRead> {
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
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some.map(descriptor::aside));
        }
    }
    let lost = message.flags.contains(rustix::net::ReturnFlags::CTRUNC);
    Ok(RawRead { bytes: bytes[..message.bytes].to_vec(), fds, lost })
}

/// A function that closes a descriptor on a thread that may wait.
pub type Close = Arc<dyn Fn(OwnedFd) + Send + Sync>;

/// A descriptor that a peer has sent. Its [`Inbox`] decides where it is closed.
pub struct ForeignFd {
    fd: Option<OwnedFd>,
    close: Option<Close>,
}

impl ForeignFd {
    /// Returns the descriptor to a caller that trusts the peer: closing it may wait.
    pub fn into_fd(mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// Returns the descriptor without giving it away.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }
}

impl fmt::Debug for ForeignFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForeignFd").field(&self.fd).finish()
    }
}

impl Drop for ForeignFd {
    fn drop(&mut self) {
        if let (Some(fd), Some(close)) = (self.fd.take(), &self.close) {
            close(fd);
        }
    }
}

/// A line without its line end.
pub type Line = Vec<u8>;

/// Lines and descriptors that have come from a peer and were not taken yet.
pub struct Inbox {
    bytes: VecDeque<u8>,
    /// Bytes from the front that contain no line end.
    scanned: usize,
    fds: VecDeque<ForeignFd>,
    most: usize,
    close: Option<Close>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("bytes", &self.bytes.len()).field("fds", &self.fds).finish()
    }
}

impl Inbox {
    /// Returns an empty inbox that takes lines of up to `most` bytes, line ends not counted.
    pub fn new(most: usize) -> Inbox {
        Inbox { bytes: VecDeque::new(), scanned: 0, fds: VecDeque::new(), most, close: None }
    }

    /// Returns an inbox as [`new`](Inbox::new) does, whose descriptors `close` closes.
    pub fn closing_by(most: usize, close: Close) -> Inbox {
        Inbox { close: Some(close), ..Inbox::new(most) }
    }

    /// Adds the bytes and descriptors that [`take`] has read.
    ///
    /// # Errors
    /// A [`WireError`], as [`InvalidData`](io::ErrorKind::InvalidData).
    pub fn add(&mut self, taken: RawRead) -> io::Result<Received> {
        let RawRead { bytes, fds, lost } = taken;
        let close = &self.close;
        self.fds.extend(fds.into_iter().map(|fd| ForeignFd { fd: Some(fd), close: close.clone() }));
        let fine = if lost { Err(WireError::LostFds) } else { self.push(&bytes) };
        fine.map_err(WireError::into_io)?;
        Ok(if bytes.is_empty() { Received::End } else { Received::Bytes(bytes.len()) })
    }

    /// Checks that no descriptors are left once the caller has taken all lines: a descriptor comes
    /// with the whole line of its request, and the request takes the descriptor.
    ///
    /// # Errors
    /// [`WireError::StrayFds`].
    pub fn check_fds(&self) -> Result<(), WireError> {
        if self.fds.is_empty() { Ok(()) } else { Err(WireError::StrayFds) }
    }

    /// Adds bytes that have arrived.
    ///
    /// # Errors
    /// [`WireError`]: a line is too long, or descriptors pile up. The inbox is of no use after
    /// that.
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

    /// Returns the next line, if it is whole; skips empty lines.
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

    /// Returns the next `n` descriptors, or `None` when there are fewer.
    pub fn take_fds(&mut self, n: usize) -> Option<Vec<ForeignFd>> {
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
    fn test_inbox_returns_whole_lines_for_any_size_of_pieces() {
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
    fn test_inbox_refuses_line_longer_than_its_limit() {
        let mut inbox = Inbox::new(4);
        assert_eq!(inbox.push(b"1234"), Ok(()));
        assert_eq!(inbox.push(b"5"), Err(WireError::TooLong(4)));
        // Several whole lines together may be longer.
        assert_eq!(Inbox::new(4).push(b"1234\n1234\n"), Ok(()));
    }

    #[test]
    fn test_inbox_delivers_descriptors_in_order_with_their_lines() {
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
            rustix::io::write(f.fd().unwrap(), &[u8::try_from(n).unwrap()]).unwrap();
            let mut got = [9];
            (&files[n].1).read_exact(&mut got).unwrap();
            assert_eq!(usize::from(got[0]), n);
        }
    }

    /// The receiver closes descriptors that a peer sends beside its documents, and closes the
    /// connection.
    #[test]
    fn test_receiver_refuses_descriptors_beyond_its_limit_and_closes_them() {
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
        // The read returns 0 because no process holds the other end any more.
        assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn test_byte_read_leaves_line_with_descriptor_in_the_socket() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut hidden, sent) = UnixStream::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        guard(&b).unwrap();
        let mut inbox = Inbox::new(64);
        let read = |inbox: &mut Inbox| receive_bytes(&b, inbox).map_err(|e| e.kind());
        assert_eq!(read(&mut inbox), Err(io::ErrorKind::WouldBlock));
        send(&a, b"plain\n", &[]).unwrap();
        send(&a, b"with\n", &[sent.as_fd()]).unwrap();
        drop(sent);
        // The kernel may hand over both lines at once, so the test reads only after it has sent the
        // descriptor.
        let mut seen = read(&mut inbox).unwrap();
        if seen == Some(Received::Bytes(6)) {
            seen = read(&mut inbox).unwrap();
        }
        assert_eq!(seen, None);
        assert_eq!(read(&mut inbox), Ok(None), "it stays");
        hidden.set_nonblocking(true).unwrap();
        let closed = hidden.read(&mut [0]).map_err(|e| e.kind());
        assert_eq!(closed, Err(io::ErrorKind::WouldBlock), "a look closed it");
        while inbox.fds.is_empty() {
            inbox.add(take(&b).unwrap()).unwrap();
        }
        assert_eq!(inbox.check_fds(), Err(WireError::StrayFds));
        drop(inbox);
        assert_eq!(hidden.read(&mut [0]).unwrap(), 0);
        drop(a);
        assert_eq!(read(&mut Inbox::new(64)), Ok(Some(Received::End)));
    }

    #[test]
    fn test_ended_socket_closes_at_once_if_nothing_is_queued() {
        let pair = || {
            let (a, b) = UnixStream::pair().unwrap();
            guard(&b).unwrap();
            (a, b)
        };
        let (mut a, b) = pair();
        send(&b, b"answer", &[]).unwrap();
        assert!(end(&b), "nothing was sent to it");
        let late = send(&a, b"x", &[b.as_fd()]).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::BrokenPipe);
        drop(b);
        let mut answer = String::new();
        a.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");

        let (a, b) = pair();
        send(&a, b"x", &[a.as_fd()]).unwrap();
        assert!(!end(&b), "a descriptor is in its queue");
        let (a, b) = pair();
        drop(a);
        assert!(end(&b), "its peer is gone");
    }

    /// By default a read skips a byte sent out of band, which closes the descriptors that came with
    /// the byte.
    #[test]
    fn test_receiver_notices_descriptors_sent_out_of_band() {
        let (a, b) = UnixStream::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        guard(&b).unwrap();
        let (_kept, sent) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [sent.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        match sendmsg(&a, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::OOB) {
            // Linux before 5.15 does not support this.
            Err(rustix::io::Errno::OPNOTSUPP) => return,
            sent => assert_eq!(sent.unwrap(), 1),
        }
        send(&a, b"line\n", &[]).unwrap();
        let mut inbox = Inbox::new(64);
        assert_eq!(receive_bytes(&b, &mut inbox).unwrap(), None);
    }

    #[test]
    fn test_inbox_closes_dropped_descriptors_through_its_closer() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (to, closer) = std::sync::mpsc::channel();
        let mut inbox = Inbox::closing_by(64, Arc::new(move |fd| to.send(fd).unwrap()));
        send(&a, b"x\n", &[theirs.as_fd()]).unwrap();
        drop(theirs);
        receive(&b, &mut inbox).unwrap();
        drop(inbox.take_fds(1).unwrap());
        drop(closer.try_recv().unwrap());
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
    }
}
