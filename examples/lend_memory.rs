//! Memory lent for one request: clients ask for room, the server registers a piece of its memory
//! for this client and this request alone, and the client gives the memory back with its last Send.
//! All clients share one queue of receive buffers.
//!
//! Both RNICs live in this process, and rings connect them: the example needs no NIC and no
//! privileges. `cargo run --example lend_memory`; with `-- --socket PATH` and `--listen ADDR:PORT`
//! or `--connect ADDR:PORT` one side of the example runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use heddle::connection::{AcceptParams, Ends, Incoming};
use heddle::memory::Pd;
use heddle::queue::CqeOp;
use heddle::{Access, Connection, Cqe, Device, Listener, RecvWr, SendWr, Srq, Stag};

mod common;
use common::Result;

const PATIENCE: Duration = Duration::from_secs(10);
const CLIENTS: u8 = 3;
const REQUESTS: u8 = 4;
/// Bytes that the server lends for a request, and bytes of a message: an STag and a tagged offset,
/// big-endian.
const LENT: usize = 4096;
const MESSAGE: usize = 12;
/// Marks of the work requests whose completions the sides await.
const REGISTERED: u64 = 1;
const TOLD: u64 = 2;
const GIVEN_BACK: u64 = 3;

/// Waits for the next completion, which must be a success.
fn done(connection: &Connection, op: CqeOp) -> Result<Cqe> {
    let c = connection.wait(PATIENCE)?;
    if c.op == op && c.status.is_success() { Ok(c) } else { Err(format!("{c:?}").into()) }
}

/// Serves a client; the connection takes its receive buffers from `srq`, like all others.
fn serve(device: &Device, pd: Pd, srq: &Srq, incoming: Incoming) -> Result<()> {
    let ends = Ends::with(device, pd, 256, |init| init.shared(srq))?;
    let connection = incoming.accept_with(AcceptParams::new(ends.qp.clone()), ends)?;
    let open = Access::LOCAL_WRITE.with(Access::BIND);
    let memory = connection.alloc_mr(LENT, open)?;
    // An STag for this queue pair alone; no memory is valid under it yet.
    let lent = device.alloc_fast_mr_for(connection.qp(), LENT as u64)?;
    let rights = Access::REMOTE_WRITE.with(Access::REMOTE_INVALIDATE);
    for key in 0..REQUESTS {
        done(&connection, CqeOp::Recv)?;
        // Each request gets another key: the server refuses a client that uses an earlier one.
        let stag = lent.stag(key);
        let pieces = [memory.sge(0, LENT)];
        let mut message = [0; MESSAGE];
        message[..4].copy_from_slice(&stag.0.to_be_bytes());
        // The region's offsets begin at 0, as the message tells the client.
        connection.qp().post_sends(&[
            SendWr::fast_register(REGISTERED, stag, &pieces, 0, rights),
            SendWr::send_inline(TOLD, &message),
        ])?;
        done(&connection, CqeOp::FastRegister)?;
        // The Send completes when the peer has acknowledged it, which may be after the peer's
        // answer.
        let mut given_back = None;
        for _ in 0..2 {
            let c = connection.wait(PATIENCE)?;
            match c.op {
                CqeOp::Send if c.status.is_success() => {}
                CqeOp::Recv if c.status.is_success() => given_back = c.invalidated,
                _ => return Err(format!("{c:?}").into()),
            }
        }
        // The bytes that the client wrote are in place, and the client cannot reach the memory any
        // more.
        assert_eq!(given_back, Some(stag));
        let mut bytes = vec![0; LENT];
        memory.read(0, &mut bytes);
        assert!(bytes.iter().all(|o| *o == bytes[0]));
        // Other clients may use the buffers of the two messages again.
        for _ in 0..2 {
            srq.post_recv(&RecvWr::new(0, &[]))?;
        }
    }
    // Without this, the process would exit before the RNIC has acknowledged the last message.
    connection.disconnect()?;
    Ok(())
}

fn client(device: &Device, server: SocketAddr, number: u8) -> Result<()> {
    let connection = device.dial(server)?.wait()?;
    let inbox = connection.alloc_mr(MESSAGE, Access::LOCAL_WRITE)?;
    let source = connection.alloc_mr(LENT, Access::NONE)?;
    for request in 0..REQUESTS {
        connection.post_recv(&RecvWr::new(0, &[inbox.sge(0, MESSAGE)]))?;
        connection.post_send(&SendWr::send_inline(0, &[]).unsignaled())?;
        done(&connection, CqeOp::Recv)?;
        let (mut stag, mut to) = ([0; 4], [0; 8]);
        inbox.read(0, &mut stag);
        inbox.read(4, &mut to);
        let (stag, to) = (Stag(u32::from_be_bytes(stag)), u64::from_be_bytes(to));
        source.write(0, &[16 * number + request; LENT]);
        connection.qp().post_sends(&[
            SendWr::write(0, &[source.sge(0, LENT)], stag, to).unsignaled(),
            SendWr::send_inline(GIVEN_BACK, &[]).invalidating(stag),
        ])?;
        done(&connection, CqeOp::Send)?;
    }
    println!("client {number}: {REQUESTS} requests of {LENT} bytes");
    connection.disconnect()?;
    Ok(())
}

fn server(device: &Device, listener: Listener) -> Result<()> {
    let pd = device.alloc_pd()?;
    // A buffer for each message that may be on its way from any client: after the message that
    // gives memory back, the next request may arrive before the server has returned the last
    // buffers to the queue. The buffers have no bytes.
    let srq = device.create_srq(pd, 64, 1, None)?;
    for _ in 0..3 * CLIENTS {
        srq.post_recv(&RecvWr::new(0, &[]))?;
    }
    let mut threads = Vec::new();
    for _ in 0..CLIENTS {
        let incoming = listener.request(PATIENCE)?;
        let (device, srq) = (device.clone(), srq.clone());
        threads.push(thread::spawn(move || serve(&device, pd, &srq, incoming)));
    }
    join(threads)?;
    println!("server: {} buffers are in the queue again", srq.len());
    Ok(())
}

fn join(threads: Vec<JoinHandle<Result<()>>>) -> Result<()> {
    let join = |t: JoinHandle<_>| t.join().unwrap_or_else(|_| Err("a thread has failed".into()));
    threads.into_iter().try_for_each(join)
}

fn main() -> Result<()> {
    let clients = |device: &Device, server| {
        let of = |number| {
            let device = device.clone();
            thread::spawn(move || client(&device, server, number))
        };
        join((1..=CLIENTS).map(of).collect())
    };
    common::run("lend_memory", |device, at| Ok(device.bind(at)?), server, clients)
}
