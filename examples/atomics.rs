//! Atomic Operations and Immediate Data (RFC 7306): a counter and a lock in the server's memory,
//! and a Write that itself notifies the server.
//!
//! Both RNICs live in this process, and rings connect them: the example needs no NIC and no
//! privileges. `cargo run --example atomics`; with `-- --socket PATH` and `--listen ADDR:PORT` or
//! `--connect ADDR:PORT` one side of the example runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::time::Duration;

use heddle::connection::{AcceptParams, Ends};
use heddle::queue::CqeOp;
use heddle::{Access, Connection, Device, Listener, Mr, RecvWr, SendWr, Stag};

mod common;
use common::Result;

const PATIENCE: Duration = Duration::from_secs(10);
/// The number that the client adds to the counter, and how often.
const ADD: u64 = 3;
const TIMES: usize = 100;
/// The offsets in the region: a counter, a lock, and room for a message.
const COUNTER: usize = 0;
const LOCK: usize = 8;
const TEXT: usize = 16;
/// The lock's value while this client holds it, and while the lock is free.
const ME: u64 = 42;
const FREE: u64 = 0;

fn word(mr: &Mr, at: usize) -> u64 {
    let mut bytes = [0; 8];
    mr.read(at, &mut bytes);
    // Atomic Operations use the byte order of the machine that has the memory.
    u64::from_ne_bytes(bytes)
}

fn server(device: &Device, listener: Listener) -> Result<()> {
    let incoming = listener.request(PATIENCE)?;
    let pd = device.alloc_pd()?;
    let ends = Ends::new(device, pd)?;
    // Neither right includes the other. The device's regions begin at a page, so the counter and
    // the lock are at multiples of 8, as Atomic Operations require.
    let rights = Access::REMOTE_ATOMIC.with(Access::REMOTE_WRITE);
    let shared = device.alloc_mr(pd, 64, rights)?;
    // Immediate Data takes a receive and places no bytes, so this receive has no memory.
    ends.qp.post_recv(&RecvWr::new(1, &[]))?;
    let mut private_data = shared.stag().0.to_be_bytes().to_vec();
    private_data.extend(shared.to().to_be_bytes());
    let params = AcceptParams { private_data, ..AcceptParams::new(ends.qp.clone()) };
    let connection = incoming.accept_with(params, ends)?;
    let told = connection.wait(PATIENCE)?;
    assert!(told.op == CqeOp::Recv && told.status.is_success(), "{told:?}");
    // Everything before the Immediate Data is in place: the atomics, and the Write that carried the
    // data.
    let len = usize::try_from(told.immediate.ok_or("a Send without Immediate Data")?)?;
    let mut text = vec![0; len.min(shared.len() - TEXT)];
    shared.read(TEXT, &mut text);
    println!("server: counter {}, lock {}", word(&shared, COUNTER), word(&shared, LOCK));
    println!("server: {len} bytes: {}", String::from_utf8(text)?);
    // Without this, the process would exit before the RNIC has acknowledged the last message.
    connection.disconnect()?;
    Ok(())
}

/// Waits for an atomic operation, and returns the value that the operation found.
fn found(connection: &Connection, sink: &Mr) -> Result<u64> {
    let c = connection.wait(PATIENCE)?;
    assert!(matches!(c.op, CqeOp::FetchAdd | CqeOp::CmpSwap) && c.status.is_success(), "{c:?}");
    Ok(word(sink, 0))
}

fn client(device: &Device, server: SocketAddr) -> Result<()> {
    let connection = device.dial(server)?.wait()?;
    let told = connection.private_data();
    let (Some(stag), Some(to)) = (told.first_chunk(), told.last_chunk()) else {
        return Err("the server has not said where its memory is".into());
    };
    let (stag, to) = (Stag(u32::from_be_bytes(*stag)), u64::from_be_bytes(*to));
    let sink = connection.alloc_mr(8, Access::LOCAL_WRITE)?;
    let old = [sink.sge(0, 8)];

    for i in 0..TIMES {
        connection.post_send(&SendWr::fetch_add(1, &old, stag, to + COUNTER as u64, ADD))?;
        // No other client adds to the counter.
        assert_eq!(found(&connection, &sink)?, ADD * i as u64);
    }
    println!("client: {TIMES} times {ADD} added");

    let lock = to + LOCK as u64;
    connection.post_send(&SendWr::compare_swap(2, &old, stag, lock, FREE, ME))?;
    assert_eq!(found(&connection, &sink)?, FREE, "it was free, and is ours");
    // A compare that does not find the expected value changes nothing. The operation still
    // succeeds, and returns the value that it found.
    connection.post_send(&SendWr::compare_swap(3, &old, stag, lock, FREE, 99))?;
    println!("client: the lock is held by {}", found(&connection, &sink)?);

    let text = b"written, and told of";
    let source = connection.alloc_mr(text.len(), Access::NONE)?;
    source.write(0, text);
    let sges = [source.sge(0, text.len())];
    let at = to + TEXT as u64;
    connection.post_send(&SendWr::write_immediate(4, &sges, stag, at, text.len() as u64))?;
    let sent = connection.wait(PATIENCE)?;
    assert!(sent.status.is_success(), "{sent:?}");
    connection.disconnect()?;
    Ok(())
}

fn main() -> Result<()> {
    common::run("atomics", |device, at| Ok(device.bind(at)?), server, client)
}
