//! A single thread with a single epoll serves any number of connections: the server sleeps until
//! the descriptor of its connection events or the descriptor of its completion queue is readable.
//!
//! Both RNICs live in this process, and rings connect them: the example needs no NIC and no
//! privileges. `cargo run --example events_epoll`; with `-- --socket PATH` and `--listen ADDR:PORT`
//! or `--connect ADDR:PORT` one side of the example runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use heddle::connection::{AcceptParams, CmEvent, EventQueue, ListenParams};
use heddle::device::Sleeper;
use heddle::queue::{Arm, CqeOp, CqeStatus, QpInit, Qpn};
use heddle::{Access, Device, Mr, Qp, RecvWr, SendWr};

mod common;
use common::Result;

const PATIENCE: Duration = Duration::from_secs(10);
const CLIENTS: usize = 3;
const BUFFER: usize = 64;

struct Epoll(OwnedFd);

const EVENTS: u64 = 0;
const COMPLETIONS: u64 = 1;

impl Epoll {
    fn new() -> io::Result<Epoll> {
        // SAFETY: the call takes no memory, and its result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has just made this descriptor, and no other code owns it.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn add(&self, fd: BorrowedFd<'_>, what: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: what };
        let (epoll, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: both descriptors are open, and the entry is live; the kernel copies it.
        match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until a descriptor is readable, and returns its number.
    fn wait(&self) -> io::Result<u64> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let millis = i32::try_from(PATIENCE.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `event` is live and has room for one entry.
        match unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, millis) } {
            1 => Ok(event.u64),
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Makes a listener whose events the server awaits along with its completions.
fn listen(device: &Device, at: SocketAddr) -> Result<(EventQueue, Sleeper)> {
    let sleeper = Sleeper::with_fd()?;
    let events = EventQueue::new(Some(sleeper.waker()));
    device.listen(at, ListenParams::default(), &events)?;
    sleeper.sleep(PATIENCE, || !events.is_empty());
    let Some(CmEvent::Listening { .. }) = events.poll() else { return Err("no listener".into()) };
    Ok((events, sleeper))
}

fn server(device: &Device, (events, sleeper): (EventQueue, Sleeper)) -> Result<()> {
    let completions = Sleeper::with_fd()?;
    let cq = device.create_cq(256, Some(completions.waker()))?;
    let (pd, epoll) = (device.alloc_pd()?, Epoll::new()?);
    epoll.add(sleeper.fd().ok_or("no descriptor")?, EVENTS)?;
    epoll.add(completions.fd().ok_or("no descriptor")?, COMPLETIONS)?;
    let mut peers: HashMap<Qpn, (Qp, Mr)> = HashMap::new();
    let (mut echoed, mut ended) = (0, 0);
    // A completion queue wakes the server only when the queue is armed.
    cq.arm(Arm::Next);
    while ended < CLIENTS {
        match epoll.wait()? {
            EVENTS => {
                // Clear first, and look then: an event that comes in between makes the descriptor
                // readable again.
                sleeper.clear();
                while let Some(event) = events.poll() {
                    match event {
                        CmEvent::ConnectRequest { id, .. } => {
                            // All queue pairs share one completion queue, which needs room for all
                            // posted requests: 4 in each direction here.
                            let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(4, 4))?;
                            let mr = device.alloc_mr(pd, BUFFER, Access::LOCAL_WRITE)?;
                            qp.post_recv(&RecvWr::new(0, &[mr.sge(0, BUFFER)]))?;
                            device.accept(id, AcceptParams::new(qp.clone()))?;
                            peers.insert(qp.qpn(), (qp, mr));
                        }
                        CmEvent::Established { remote, .. } => println!("server: {remote}"),
                        CmEvent::Disconnected { qpn, .. } => {
                            peers.remove(&qpn);
                            ended += 1;
                        }
                        other => return Err(format!("{other:?}").into()),
                    }
                }
            }
            _ => {
                completions.clear();
                // Arm first, and poll then until the queue is empty: a later completion wakes the
                // server.
                cq.arm(Arm::Next);
                while let Some(c) = cq.poll() {
                    let Some((qp, mr)) = peers.get(&c.qpn) else { continue };
                    match (c.op, c.status) {
                        (CqeOp::Recv, CqeStatus::Success) => {
                            let mut message = vec![0; usize::try_from(c.len)?];
                            mr.read(0, &mut message);
                            // Post the buffer first, and answer then: the client sends its next
                            // message after the answer.
                            qp.post_recv(&RecvWr::new(0, &[mr.sge(0, BUFFER)]))?;
                            qp.post_send(&SendWr::send_inline(0, &message).unsignaled())?;
                            echoed += 1;
                        }
                        // The request's connection has ended; `Disconnected` says why.
                        (_, CqeStatus::Flushed) => {}
                        _ => return Err(format!("{c:?}").into()),
                    }
                }
                cq.check()?;
            }
        }
    }
    println!("server: {echoed} messages echoed for {ended} clients");
    Ok(())
}

fn client(device: &Device, server: SocketAddr, n: usize) -> Result<()> {
    let connection = device.dial(server)?.wait()?;
    let buffer = connection.alloc_mr(BUFFER, Access::LOCAL_WRITE)?;
    for i in 0..3 {
        connection.post_recv(&RecvWr::new(1, &[buffer.sge(0, BUFFER)]))?;
        let text = format!("client {n}, message {i}");
        connection.post_send(&SendWr::send_inline(2, text.as_bytes()).unsignaled())?;
        let c = connection.wait(PATIENCE)?;
        assert!(c.op == CqeOp::Recv && c.status.is_success(), "{c:?}");
        let mut echo = vec![0; usize::try_from(c.len)?];
        buffer.read(0, &mut echo);
        assert_eq!(echo, text.as_bytes());
    }
    connection.disconnect()?;
    Ok(())
}

fn main() -> Result<()> {
    common::run("events_epoll", listen, server, |device, server| {
        (0..CLIENTS).try_for_each(|n| client(device, server, n))
    })
}
