//! Send and receive: an echo. The server keeps receive buffers posted at all times, and the client
//! never has more messages in flight than there are buffers.
//!
//! Both RNICs live in this process, and rings connect them: the example needs no NIC and no
//! privileges. `cargo run --example send_recv`; with `-- --socket PATH` and `--listen ADDR:PORT` or
//! `--connect ADDR:PORT` one side of the example runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use heddle::connection::{AcceptParams, Ends};
use heddle::queue::{CqeOp, CqeStatus};
use heddle::{Access, Connection, Device, Listener, Mr, Qp, RecvWr, SendWr};

mod common;
use common::Result;

const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a buffer (the default limit of inline data of a queue pair), and the number of buffers
/// that each side has posted.
const BUFFER: usize = 64;
const BUFFERS: usize = 16;
const MESSAGES: u64 = 1000;

/// Posts a buffer. A single region holds all buffers; the number of a buffer is the mark of its
/// work requests.
fn post_buffer(qp: &Qp, buffers: &Mr, i: usize) -> Result<()> {
    let sges = [buffers.sge(i * BUFFER, BUFFER)];
    Ok(qp.post_recv(&RecvWr::new(u64::try_from(i)?, &sges))?)
}

fn server(device: &Device, listener: Listener) -> Result<()> {
    let incoming = listener.request(PATIENCE)?;
    let pd = device.alloc_pd()?;
    let ends = Ends::new(device, pd)?;
    let buffers = device.alloc_mr(pd, BUFFERS * BUFFER, Access::LOCAL_WRITE)?;
    // Posted before the server accepts: the first message may come at once, and iWARP has no
    // "receiver not ready".
    for i in 0..BUFFERS {
        post_buffer(&ends.qp, &buffers, i)?;
    }
    let params = AcceptParams::new(ends.qp.clone());
    let mut connection = incoming.accept_with(params, ends)?;
    let mut echoed = 0;
    loop {
        let c = connection.wait(PATIENCE)?;
        let i = usize::try_from(c.wr_id)?;
        match (c.op, c.status) {
            (CqeOp::Recv, CqeStatus::Success) => {
                let mut message = vec![0; usize::try_from(c.len)?];
                buffers.read(i * BUFFER, &mut message);
                // Post the buffer first, and answer then: a client that has the answer knows that a
                // buffer is free again, and may send one more message. Posting copies inline data,
                // so the server may reuse the memory; and the server needs no completion of a Send
                // that succeeds.
                post_buffer(connection.qp(), &buffers, i)?;
                connection.post_send(&SendWr::send_inline(0, &message).unsignaled())?;
                echoed += 1;
            }
            // The connection has ended, and the posted requests come back flushed. The end of the
            // connection reports the reason once.
            (_, CqeStatus::Flushed) => break,
            _ => return Err(format!("{c:?}").into()),
        }
    }
    for _ in 0..100 {
        if let Some(reason) = connection.end() {
            println!("server: {echoed} messages echoed; the connection was {reason}");
            assert_eq!(echoed, MESSAGES);
            return Ok(());
        }
        thread::sleep(PATIENCE / 1000);
    }
    Err("receives were flushed, and the connection has not ended".into())
}

fn client(device: &Device, server: SocketAddr) -> Result<()> {
    let connection = device.dial(server)?.wait()?;
    let buffers = connection.alloc_mr(BUFFERS * BUFFER, Access::LOCAL_WRITE)?;
    let (mut sent, mut heard) = (0, 0);
    while heard < MESSAGES {
        // Each echo frees a buffer at the server, so never more than BUFFERS messages are in
        // flight.
        while sent < MESSAGES && sent < heard + BUFFERS as u64 {
            post_buffer(connection.qp(), &buffers, usize::try_from(sent)? % BUFFERS)?;
            let text = format!("message {sent}");
            connection.post_send(&SendWr::send_inline(0, text.as_bytes()).unsignaled())?;
            sent += 1;
        }
        echo(&connection, &buffers, heard)?;
        heard += 1;
    }
    println!("client: {heard} echoes");
    connection.disconnect()?;
    Ok(())
}

/// Waits for the echo of message `n`.
fn echo(connection: &Connection, buffers: &Mr, n: u64) -> Result<()> {
    let c = connection.wait(PATIENCE)?;
    // A failure of an unsignaled Send would arrive here as well.
    if c.op != CqeOp::Recv || !c.status.is_success() {
        return Err(format!("{c:?}").into());
    }
    let mut text = vec![0; usize::try_from(c.len)?];
    buffers.read(usize::try_from(c.wr_id)? * BUFFER, &mut text);
    // Messages arrive in the order in which they were sent.
    assert_eq!(text, format!("message {n}").as_bytes());
    Ok(())
}

fn main() -> Result<()> {
    common::run("send_recv", |device, at| Ok(device.bind(at)?), server, client)
}
