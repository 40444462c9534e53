//! RDMA Write: the client puts bytes into the server's memory without work of the server's
//! processor. A Send after the Write tells the server that the bytes have arrived.
//!
//! Both RNICs live in this process, and rings connect them: the example needs no NIC and no
//! privileges. `cargo run --example write`; with `-- --socket PATH` and `--listen ADDR:PORT` or
//! `--connect ADDR:PORT` one side of the example runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::time::Duration;

use heddle::connection::{AcceptParams, Ends};
use heddle::queue::CqeOp;
use heddle::{Access, Device, Listener, RecvWr, SendWr, Stag};

mod common;
use common::Result;

const PATIENCE: Duration = Duration::from_secs(10);
const SIZE: usize = 64 * 1024;

/// Returns the bytes of the client's memory: a pattern that the server knows.
fn pattern() -> Vec<u8> {
    (0..SIZE).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect()
}

fn server(device: &Device, listener: Listener) -> Result<()> {
    let incoming = listener.request(PATIENCE)?;
    // A queue pair reaches only regions of its own protection domain.
    let pd = device.alloc_pd()?;
    let ends = Ends::new(device, pd)?;
    let target = device.alloc_mr(pd, SIZE, Access::REMOTE_WRITE)?;
    // A receive without buffers takes messages without bytes. The server posts it before it accepts
    // the connection, since in iWARP a Send that finds no receive ends the connection.
    ends.qp.post_recv(&RecvWr::new(1, &[]))?;

    // The client has to know the STag and the tagged offset. The application decides how; the
    // private data of the MPA Reply is the shortest way.
    let mut private_data = target.stag().0.to_be_bytes().to_vec();
    private_data.extend(target.to().to_be_bytes());
    let params = AcceptParams { private_data, ..AcceptParams::new(ends.qp.clone()) };
    let connection = incoming.accept_with(params, ends)?;

    let arrived = connection.wait(PATIENCE)?;
    assert!(arrived.op == CqeOp::Recv && arrived.status.is_success(), "{arrived:?}");
    let mut got = vec![0; SIZE];
    target.read(0, &mut got);
    assert_eq!(got, pattern());
    println!("server: {SIZE} bytes are in my memory");
    // Without this, the process would exit before the RNIC has acknowledged the last message.
    connection.disconnect()?;
    Ok(())
}

fn client(device: &Device, server: SocketAddr) -> Result<()> {
    let connection = device.dial(server)?.wait()?;
    let told = connection.private_data();
    let (Some(stag), Some(to)) = (told.first_chunk(), told.last_chunk()) else {
        return Err("the server has not said where to write".into());
    };
    let (stag, to) = (Stag(u32::from_be_bytes(*stag)), u64::from_be_bytes(*to));

    // Local memory has to be registered as well; as a source the memory needs no rights.
    let source = connection.alloc_mr(SIZE, Access::NONE)?;
    source.write(0, &pattern());
    // Two pieces of the memory, in order, make one message.
    let sges = [source.sge(0, SIZE / 2), source.sge(SIZE / 2, SIZE / 2)];
    // Both requests ring one doorbell. A queue completes in order: the success of the Send implies
    // that the Write before it is done as well, so the Write needs no completion of its own.
    let write = SendWr::write(1, &sges, stag, to).unsignaled();
    let send = SendWr::send_inline(2, &[]);
    connection.qp().post_sends(&[write, send])?;
    let done = connection.wait(PATIENCE)?;
    assert!(done.wr_id == 2 && done.status.is_success(), "{done:?}");
    println!("client: acknowledged");
    connection.disconnect()?;
    Ok(())
}

fn main() -> Result<()> {
    common::run("write", |device, at| Ok(device.bind(at)?), server, client)
}
