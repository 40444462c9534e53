//! The service on a TCP socket of the host, and a client's transport over such a socket.
//!
//! Kernels call MOUNT over TCP even when they mount over RDMA. The server answers all programs of
//! the service. Each connection has a thread, which answers the connection's calls one after the
//! other. The number of connections is bounded, in all and for each address, and the server drops a
//! peer that falls silent within a message. When all connections are taken, the server ends a
//! connection for a newcomer: the one that has been without a call for the longest, of an address
//! with more connections than the newcomer's. A cache of replies answers a repeated call that must
//! not be carried out twice.

mod client;
mod replies;

use std::collections::HashMap;
use std::io::{self, BufReader, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::Service;
use crate::record::{self, RecordError};
use crate::wire::MESSAGE_MAX;

use replies::Replies;

pub use client::TcpTransport;

/// The limits of a server's connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of connections. Each has a thread and up to 2 MiB of buffers.
    pub connections: usize,
    /// The number of connections from one address.
    pub of_address: usize,
    /// How long a connection may be silent.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 64, of_address: 16, idle: Duration::from_secs(600) }
    }
}

/// The connections of a server, so that it can end them.
#[derive(Debug, Default)]
struct Streams {
    all: HashMap<u64, Stream>,
    /// The number of calls begun on all connections.
    calls: u64,
}

#[derive(Debug)]
struct Stream {
    ip: IpAddr,
    stream: TcpStream,
    /// The value of `calls` when the last call, or the connection itself, began.
    used: u64,
    /// True while the connection's thread carries out a call.
    is_busy: bool,
}

impl Streams {
    fn of(&self, ip: IpAddr) -> usize {
        self.all.values().filter(|of| of.ip == ip).count()
    }

    /// Returns the connection to end for a newcomer whose address has `has` connections.
    fn superfluous(&self, has: usize) -> Option<u64> {
        let idle = self.all.iter().filter(|(_, of)| !of.is_busy);
        let idle = idle.map(|(number, of)| (self.of(of.ip), of.used, *number));
        let more = idle.filter(|(count, ..)| *count > has);
        more.max_by_key(|&(count, used, _)| (count, std::cmp::Reverse(used))).map(|(.., n)| n)
    }

    fn begin(&mut self, number: u64) {
        self.calls += 1;
        if let Some(stream) = self.all.get_mut(&number) {
            (stream.used, stream.is_busy) = (self.calls, true);
        }
    }

    fn end(&mut self, number: u64) {
        if let Some(stream) = self.all.get_mut(&number) {
            stream.is_busy = false;
        }
    }
}

#[derive(Debug)]
struct Shared {
    service: Arc<Service>,
    limits: Limits,
    streams: Mutex<Streams>,
    replies: Replies,
}

/// A server. Dropping the server stops it: it closes the listener and the connections. The
/// connections' threads end by themselves, each after its current call, so the drop waits for no
/// disk.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: UnixStream,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers calls at `listener` for `service`.
    ///
    /// # Errors
    /// When the system gives no thread or descriptor.
    pub fn start(
        listener: TcpListener,
        service: Arc<Service>,
        limits: Limits,
    ) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = UnixStream::pair()?;
        let shared = Arc::new(Shared {
            service,
            limits,
            streams: Mutex::default(),
            replies: Replies::default(),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            let name = thread::Builder::new().name("nfs-tcp".into());
            name.spawn(move || shared.accept_all(&listener, &stopped))?
        };
        Ok(Server { address, stop, shared, thread: Some(thread) })
    }

    /// Returns the address at which the server answers.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.streams().all.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The other end becomes readable, which stops the accepting thread.
        let _ = self.stop.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended as well, so its error is ignored.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Self>, listener: &TcpListener, stopped: &UnixStream) {
        for number in 0.. {
            let mut ready =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            let polled = poll(&mut ready, None);
            if polled.is_ok() && ready.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
                break;
            }
            match listener.accept() {
                Ok((stream, peer)) => self.accept(number, stream, peer),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => {
                    // The system has no descriptor free, or the connection has already gone: both
                    // can pass.
                    tracing::warn!(error = %e, "cannot accept a connection for NFS");
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }
        for Stream { stream, .. } in self.streams().all.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Makes room for a connection of `peer`. Returns true if there is room.
    fn make_room(&self, streams: &mut Streams, peer: SocketAddr) -> bool {
        let has = streams.of(peer.ip());
        if has >= self.limits.of_address {
            return false;
        }
        if streams.all.len() < self.limits.connections {
            return true;
        }
        let ended = streams.superfluous(has).and_then(|number| streams.all.remove(&number));
        if let Some(Stream { ip, stream, .. }) = &ended {
            tracing::info!(%ip, %peer, "a connection for NFS is ended for one of another address");
            // The connection's thread sees the end of the stream.
            let _ = stream.shutdown(Shutdown::Both);
        }
        ended.is_some()
    }

    /// Starts a thread for a new connection, if the limits allow one more.
    fn accept(self: &Arc<Self>, number: u64, stream: TcpStream, peer: SocketAddr) {
        {
            let mut streams = self.streams();
            if !self.make_room(&mut streams, peer) {
                tracing::warn!(%peer, "too many connections for NFS: one is refused");
                return;
            }
            let Ok(other) = stream.try_clone() else { return };
            let used = streams.calls;
            let new = Stream { ip: peer.ip(), stream: other, used, is_busy: false };
            streams.all.insert(number, new);
        }
        let shared = Arc::clone(self);
        let builder = thread::Builder::new().name("nfs-tcp-conn".into());
        let spawned = builder.spawn(move || {
            let _gone = Gone { shared: &shared, number };
            if let Err(error) = shared.serve(number, &stream, peer) {
                tracing::debug!(%peer, %error, "an NFS connection over TCP ended");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%peer, %error, "no thread for a connection of NFS");
            self.streams().all.remove(&number);
        }
    }

    fn serve(
        &self,
        number: u64,
        mut stream: &TcpStream,
        peer: SocketAddr,
    ) -> Result<(), RecordError> {
        // On some systems an accepted socket inherits the listener's mode.
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.limits.idle))?;
        stream.set_write_timeout(Some(self.limits.idle))?;
        let mut reader = BufReader::new(stream);
        let (mut call, mut reply) = (Vec::new(), Vec::new());
        while record::read(&mut reader, &mut call, MESSAGE_MAX)? {
            reply.clear();
            self.streams().begin(number);
            let carry_out =
                |reply: &mut Vec<u8>| self.service.handle_from(Some(peer), &call, reply).is_some();
            let is_call = self.replies.answer(peer, &call, &mut reply, carry_out);
            self.streams().end(number);
            if !is_call {
                // The message is not a call, so the peer is no client: end the connection.
                break;
            }
            record::write(&mut stream, &reply)?;
        }
        Ok(())
    }
}

/// Removes a connection from the list when dropped, however the connection ends.
struct Gone<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.shared.streams().all.remove(&self.number);
    }
}
