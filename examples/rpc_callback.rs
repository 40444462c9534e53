//! A server that calls its clients: a client watches a value, and the server informs it when
//! another client has changed the value, as NFS version 4 recalls delegations. The call goes to a
//! program of the client, on the connection that the client has made.
//!
//! `cargo run --example rpc_callback`; with `-- --socket PATH` and `--listen ADDR:PORT` or
//! `--connect ADDR:PORT` one side of the example runs on the RNIC of a running `heddle serve`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::{Arc, mpsc};
use std::time::Duration;

use heddle::rpc::binding::Table;
use heddle::rpc::server::CallsConfig;
use heddle::rpc::{Body, Caller, Client, ClientConfig, Procedure, Refusal, Request};
use heddle::rpc::{Server, ServerConfig};

mod common;

/// Procedures of the server: WATCH takes no arguments, SET takes a value.
const WATCH: Procedure = Procedure { program: 0x2000_0003, version: 1, procedure: 1 };
const SET: Procedure = Procedure { procedure: 2, ..WATCH };
/// A procedure of its clients, which takes the new value.
const CHANGED: Procedure = Procedure { program: 0x2000_0004, version: 1, procedure: 1 };

fn watch_and_set(watchers: &mut Vec<Caller>, request: &Request) -> Result<Body, Refusal> {
    match request.procedure {
        WATCH => watchers.push(request.caller().ok_or(Refusal::SystemErr)?.clone()),
        SET => {
            watchers.retain(Caller::is_connected);
            for watcher in watchers {
                // The call is one-way, since this thread must not wait for a reply; dropping a call
                // that awaits a reply would abandon the call.
                let told = watcher.call(CHANGED).arguments(request.arguments.clone()).one_way();
                drop(told.send());
            }
        }
        _ => return Err(Refusal::ProcUnavail),
    }
    Ok(Body::new())
}

fn main() -> common::Result<()> {
    let bind = |device: &_, at| {
        let calls = Some(Arc::new(CallsConfig::default()));
        Ok(Server::bind(device, at, ServerConfig { calls, ..ServerConfig::default() })?)
    };
    let serve = |_: &_, mut server: Server| {
        let mut watchers = Vec::new();
        server.register(WATCH.program, 1..=1, Table(&[]), move |request: Request| {
            let outcome = watch_and_set(&mut watchers, &request);
            request.reply(outcome);
        })?;
        while server.connections() > 0 || server.counters().connections == 0 {
            server.step();
            server.wait(Duration::from_secs(1));
        }
        println!("server: {} calls", server.counters().calls);
        Ok(())
    };
    common::run("rpc_callback", bind, serve, |device, at| {
        let client = Client::new(device, at, ClientConfig::default())?;
        let (changed, values) = mpsc::channel();
        client.serve(CHANGED.program, 1..=1, Table(&[]), move |request: Request| {
            let value = request.arguments.reader().u32().unwrap_or_default();
            // The receiver may have left; no thread needs the value then.
            let _ = changed.send(value);
        })?;
        // Calls arrive at any time, so a thread of its own drives the client.
        let driver = client.clone();
        let driver = std::thread::spawn(move || driver.run());
        client.call(WATCH).wait()?;
        let mut value = Body::new();
        client.call(SET).arguments(value.u32(7)?.clone()).wait()?;
        println!("client: the value is {}", values.recv_timeout(Duration::from_secs(10))?);
        client.close();
        driver.join().map_err(|_| "the client has failed".into())
    })
}
