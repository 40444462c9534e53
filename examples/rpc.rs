//! A user's own program over RPC-over-RDMA: a store of values by number. A value of 1 MiB goes to
//! the server by RDMA Read and comes back by RDMA Write, and no processor copies the value on the
//! way.
//!
//! `cargo run --example rpc`; with `-- --socket PATH` and `--listen ADDR:PORT` or `--connect
//! ADDR:PORT` one side of the example runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::{collections::HashMap, time::Duration};

use heddle::rpc::binding::{Entry, Reply, ReplySize, Table};
use heddle::rpc::{Body, Client, ClientConfig, Procedure, Refusal, Request, Server, ServerConfig};

mod common;

const PUT: Procedure = Procedure { program: 0x2000_0001, version: 1, procedure: 1 };
const GET: Procedure = Procedure { procedure: 2, ..PUT };
const MAX: u32 = 1 << 20;
/// PUT takes a number and a value; GET takes a number and returns a value. RDMA may place the
/// values.
#[rustfmt::skip]
const STORE: Table<'static> = Table(&[
    Entry { procedure: PUT, arguments: Some(|s| { s.u32()?; s.item() }), results: None, reply: Reply::Fixed(0) },
    Entry { procedure: GET, arguments: None, results: Some(|s| s.item()),
            reply: Reply::Of(|_| Ok(ReplySize { stream: 4, item: MAX })) },
]);

fn serve(mut server: Server) -> common::Result<()> {
    let (memory, mut values) = (server.memory().clone(), HashMap::new());
    server.register(PUT.program, 1..=1, STORE, move |request: Request| {
        let mut carry_out = || -> Result<Body, Refusal> {
            let (mut arguments, mut results) = (request.arguments.reader(), Body::new());
            let number = arguments.u32()?;
            match request.procedure {
                PUT => drop(values.insert(number, arguments.opaque(MAX)?.to_buffer(&memory)?)),
                GET => drop(results.item(values.get(&number).ok_or(Refusal::SystemErr)?.clone())?),
                _ => return Err(Refusal::ProcUnavail),
            }
            Ok(results)
        };
        let outcome = carry_out();
        request.reply(outcome);
    })?;
    while server.connections() > 0 || server.counters().connections == 0 {
        server.step();
        server.wait(Duration::from_secs(1));
    }
    println!("server: {} calls", server.counters().calls);
    Ok(())
}

fn main() -> common::Result<()> {
    let bind = |device: &_, at| Ok(Server::bind(device, at, ServerConfig::default())?);
    common::run(
        "rpc",
        bind,
        |_, server| serve(server),
        |device, at| {
            let config = ClientConfig { binding: Box::new(STORE), ..ClientConfig::default() };
            let client = Client::new(device, at, config)?;
            let (mut value, mut number) = (Body::new(), Body::new());
            value.u32(7)?.item(client.memory().take_copy(&[7; MAX as usize])?)?;
            client.call(PUT).arguments(value).wait()?;
            number.u32(7)?;
            let room = client.buffer(MAX as usize)?;
            let results = client.call(GET).arguments(number).room(room).wait()?;
            let value = results.reader().opaque(MAX)?.to_vec();
            println!("client: {} bytes of 7: {}", value.len(), value.iter().all(|o| *o == 7));
            Ok(())
        },
    )
}
