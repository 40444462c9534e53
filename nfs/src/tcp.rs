//! The service on a TCP socket of the host, and a client's transport over one.
//!
//! Kernels ask MOUNT by TCP also when they mount over RDMA. All programs of the service are there. Each
//! connection has a thread, which answers its calls one after the other; their number is bounded, in all
//! and for each address, and a peer that is silent within a message is left.

mod client;

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

/// Streams of the connections there are, so that they can be ended.
type Streams = HashMap<u64, (IpAddr, TcpStream)>;

#[derive(Debug)]
struct Shared {
    service: Arc<Service>,
    limits: Limits,
    streams: Mutex<Streams>,
}

/// A server. It stops when it is dropped: connections are closed, and threads have ended then.
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
        let shared = Arc::new(Shared { service, limits, streams: Mutex::default() });
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
        self.shared.streams().len()
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
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for number in 0.. {
            let mut ready =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            let polled = poll(&mut ready, None);
            if polled.is_ok() && ready.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
                break;
            }
            threads.retain(|thread| !thread.is_finished());
            match listener.accept() {
                Ok((stream, peer)) => threads.extend(self.accept(number, stream, peer)),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => {
                    // Out of descriptors, or a connection that was gone again: it can pass.
                    tracing::warn!(error = %e, "cannot accept a connection for NFS");
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }
        for (_, stream) in self.streams().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// A thread for a new connection, if there may be one more.
    fn accept(
        self: &Arc<Self>,
        number: u64,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<JoinHandle<()>> {
        {
            let mut streams = self.streams();
            let of_address = streams.values().filter(|(ip, _)| *ip == peer.ip()).count();
            if streams.len() >= self.limits.connections || of_address >= self.limits.of_address {
                tracing::warn!(%peer, "too many connections for NFS: one is refused");
                return None;
            }
            streams.insert(number, (peer.ip(), stream.try_clone().ok()?));
        }
        let shared = Arc::clone(self);
        let builder = thread::Builder::new().name("nfs-tcp-conn".into());
        let spawned = builder.spawn(move || {
            let _gone = Gone { shared: &shared, number };
            if let Err(error) = shared.serve(&stream) {
                tracing::debug!(%peer, %error, "an NFS connection over TCP ended");
            }
        });
        spawned
            .inspect_err(|e| {
                tracing::warn!(%peer, error = %e, "no thread for a connection of NFS");
                self.streams().remove(&number);
            })
            .ok()
    }

    fn serve(&self, mut stream: &TcpStream) -> Result<(), RecordError> {
        // Those that are accepted are as the listener is on some systems.
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.limits.idle))?;
        stream.set_write_timeout(Some(self.limits.idle))?;
        let mut reader = BufReader::new(stream);
        let (mut call, mut reply) = (Vec::new(), Vec::new());
        while record::read(&mut reader, &mut call, MESSAGE_MAX)? {
            reply.clear();
            if self.service.handle(&call, &mut reply).is_none() {
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
        self.shared.streams().remove(&self.number);
    }
}
