//! RDMA Write: the client puts bytes into the server's memory, and the server's processor has no part
//! in it. A Send behind the Write tells the server that they are there.
//!
//! Both RNICs live in this process, joined by rings: no NIC, no privileges.
//! `cargo run --example write`; with `-- --socket PATH` and `--listen ADDR:PORT` or `--connect ADDR:PORT`
//! one side of it runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::time::Duration;

use heddle::{AcceptParams, Access, CqeOp, Device, Ends, Listener, RecvWr, SendWr, Stag};

mod common;
use common::Result;

const PATIENCE: Duration = Duration::from_secs(10);
const SIZE: usize = 64 * 1024;

/// Octets of the client's memory: a pattern that the server knows.
fn pattern() -> Vec<u8> {
    (0..SIZE).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect()
}

fn server(device: &Device, listener: Listener) -> Result<()> {
    let incoming = listener.request(PATIENCE)?;
    // A queue pair reaches only regions of its own protection domain.
    let pd = device.alloc_pd()?;
    let ends = Ends::new(device, pd)?;
    let target = device.alloc_mr(pd, SIZE, Access::REMOTE_WRITE)?;
    // A receive without buffers: it takes messages without octets. It is posted before the
    // connection is accepted, for in iWARP a Send that finds no receive ends the connection.
    ends.qp.post_recv(&RecvWr::new(1, &[]))?;

    // The client has to know the STag and the tagged offset. How is the application's matter; the
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
    println!("server: {SIZE} octets are in my memory");
    // An application that went now would take the acknowledgment of the last message with it.
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

    // Local memory has to be registered as well; as a source it needs no rights.
    let source = connection.alloc_mr(SIZE, Access::NONE)?;
    source.write(0, &pattern());
    // Two pieces of it, in order, make one message.
    let sges = [source.sge(0, SIZE / 2), source.sge(SIZE / 2, SIZE / 2)];
    // Both with one doorbell. A queue completes in order: the success of the Send says that the Write
    // before it is done as well, which needs no completion of its own.
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
