//! The service on a TCP socket of the host, and a client's transport over one.
//!
//! Kernels ask MOUNT by TCP also when they mount over RDMA. All programs of the service are there. Each
//! connection has a thread, which answers its calls one after the other; their number is bounded, in all
//! and for each address, and a peer that is silent within a message is left. Where there are as many
//! connections as may be, one of an address that has more than the newcomer's is ended for the newcomer: the
//! one that has been without a call for the longest. A call that must not be
//! carried out twice and comes again is answered from a cache of replies.

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

/// How much a server takes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections, each with a thread and up to 2 MiB of buffers.
    pub connections: usize,
    /// Of them, those of one address.
    pub of_address: usize,
    /// How long a connection may be silent.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 64, of_address: 16, idle: Duration::from_secs(600) }
    }
}

/// Connections there are, so that they can be ended.
#[derive(Debug, Default)]
struct Streams {
    all: HashMap<u64, Stream>,
    /// Calls that were begun, on all of them.
    calls: u64,
}

#[derive(Debug)]
struct Stream {
    ip: IpAddr,
    stream: TcpStream,
    /// Its last call, or the connection itself, was begun when there had been so many calls.
    used: u64,
    /// A call is being carried out.
    is_busy: bool,
}

impl Streams {
    fn of(&self, ip: IpAddr) -> usize {
        self.all.values().filter(|of| of.ip == ip).count()
    }

    /// The connection to be ended for one of an address that has `has` of them.
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

/// A server. It stops when it is dropped: nobody listens then, and connections are closed. Their threads end
/// by themselves, each after the call that it has: nobody waits for a disk.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: UnixStream,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers at `listener` for `service`.
    ///
    /// # Errors
    /// When there is no thread or descriptor to be had.
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

    /// Where it answers.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections there are.
    pub fn connections(&self) -> usize {
        self.shared.streams().all.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its other end becomes readable.
        let _ = self.stop.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // One that panicked has ended as well.
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
                    // Out of descriptors, or a connection that was gone again: it can pass.
                    tracing::warn!(error = %e, "cannot accept a connection for NFS");
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }
        for Stream { stream, .. } in self.streams().all.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Makes room for a connection of `peer`; whether there is any.
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
            // Its thread sees the end of the stream.
            let _ = stream.shutdown(Shutdown::Both);
        }
        ended.is_some()
    }

    /// A thread for a new connection, if there may be one more.
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
        // Those that are accepted are as the listener is on some systems.
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
                // Not a call: there is nobody to talk to.
                break;
            }
            record::write(&mut stream, &reply)?;
        }
        Ok(())
    }
}

/// A connection that ends, however it does.
struct Gone<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.shared.streams().all.remove(&self.number);
    }
}
