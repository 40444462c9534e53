//! Descriptors whose last close lasts as long as their maker likes.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use heddle_socket::wire::send;
use socket2::SockRef;

/// The time for which each of these sockets lingers when it is closed.
const LINGER: Duration = Duration::from_secs(120);

/// Makes a socket with unsent data that lingers, and its silent peer.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    SockRef::from(&socket).set_linger(Some(LINGER)).unwrap();
    socket.set_nonblocking(true).unwrap();
    while (&socket).write(&[0; 1 << 16]).is_ok() {}
    (socket.into(), peer)
}

/// Makes a pair of sockets with `fd` in the queue of one end, and returns that end.
pub fn hiding(fd: OwnedFd) -> OwnedFd {
    let (near, far) = UnixStream::pair().unwrap();
    send(&near, b"x", &[fd.as_fd()]).unwrap();
    far.into()
}
