//! RDMA Read: the client reads bytes from the server's memory, with several Reads outstanding.
//!
//! Both RNICs live in this process, and rings connect them: the example needs no NIC and no
//! privileges. `cargo run --example read`; with `-- --socket PATH` and `--listen ADDR:PORT` or
//! `--connect ADDR:PORT` one side of the example runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::time::Duration;

use heddle::connection::{AcceptParams, ConnectParams, Ends};
use heddle::queue::CqeOp;
use heddle::{Access, Device, Listener, RecvWr, SendWr, Stag};

mod common;
use common::Result;

const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a record, and the number of records.
const RECORD: usize = 4096;
const RECORDS: usize = 32;

fn server(device: &Device, listener: Listener) -> Result<()> {
    let incoming = listener.request(PATIENCE)?;
    let pd = device.alloc_pd()?;
    let ends = Ends::new(device, pd)?;
    // The client may read the table and do nothing else with it.
    let table = device.alloc_mr(pd, RECORDS * RECORD, Access::REMOTE_READ)?;
    for i in 0..RECORDS {
        table.write(i * RECORD, &[u8::try_from(i)?; RECORD]);
    }
    ends.qp.post_recv(&RecvWr::new(1, &[]))?;
    let mut private_data = table.stag().0.to_be_bytes().to_vec();
    private_data.extend(table.to().to_be_bytes());
    let params = AcceptParams { private_data, ..AcceptParams::new(ends.qp.clone()) };
    let connection = incoming.accept_with(params, ends)?;
    // Reads make no completion at the server. The table has to stay until the client says that it
    // is done.
    let done = connection.wait(PATIENCE)?;
    assert!(done.op == CqeOp::Recv && done.status.is_success(), "{done:?}");
    // Without this, the process would exit before the RNIC has acknowledged the last message.
    connection.disconnect()?;
    Ok(())
}

fn client(device: &Device, server: SocketAddr) -> Result<()> {
    let ends = Ends::new(device, device.alloc_pd()?)?;
    // ORD: the number of Reads that the client wants to have outstanding. The server grants no more
    // than it serves at a time.
    let params = ConnectParams { ord: 8, ..ConnectParams::new(ends.qp.clone()) };
    let connection = device.dial_with(server, params, ends)?.wait()?;
    println!("client: {} Reads at a time", connection.agreed().ord);
    let told = connection.private_data();
    let (Some(stag), Some(to)) = (told.first_chunk(), told.last_chunk()) else {
        return Err("the server has not said where to read".into());
    };
    let (stag, to) = (Stag(u32::from_be_bytes(*stag)), u64::from_be_bytes(*to));

    // The sink: the RNIC places the peer's answer there, which needs the right of local writing.
    let sink = connection.alloc_mr(RECORDS * RECORD, Access::LOCAL_WRITE)?;
    // The client may post more Reads than ORD: the queue pair holds back those that have to wait.
    for i in 0..RECORDS {
        let sges = [sink.sge(i * RECORD, RECORD)];
        let from = to + u64::try_from(i * RECORD)?;
        connection.post_send(&SendWr::read(u64::try_from(i)?, &sges, stag, from))?;
    }
    for i in 0..RECORDS {
        let c = connection.wait(PATIENCE)?;
        // Reads complete in the order of posting. After a successful completion the data is in
        // place.
        assert!(c.op == CqeOp::Read && c.status.is_success(), "{c:?}");
        assert_eq!((c.wr_id, c.len), (u64::try_from(i)?, u32::try_from(RECORD)?));
        let mut record = vec![0; RECORD];
        sink.read(i * RECORD, &mut record);
        assert_eq!(record, [u8::try_from(i)?; RECORD]);
    }
    println!("client: {RECORDS} records of {RECORD} bytes read");
    connection.post_send(&SendWr::send_inline(99, &[]))?;
    let sent = connection.wait(PATIENCE)?;
    assert!(sent.status.is_success(), "{sent:?}");
    connection.disconnect()?;
    Ok(())
}

fn main() -> Result<()> {
    common::run("read", |device, at| Ok(device.bind(at)?), server, client)
}
