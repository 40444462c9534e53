//! RNICs on threads of their own, a running server, and threads that wait for their calls through
//! one client.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::common::*;
use heddle_ctl::{EndpointConfig, Node};
use heddle_rpc::{CallError, Client, ClientConfig, Server, ServerConfig};

#[test]
fn test_threads_make_blocking_calls_through_one_client() {
    const THREADS: u32 = 4;
    const CALLS: u32 = 25;
    let (eal, _turn) = eal();
    let config = |n: u8| EndpointConfig {
        frames: 2047,
        ..EndpointConfig::new(vec![format!("10.0.0.{n}/24").parse().unwrap()])
    };
    let (a, b) = Node::ring_pair(&eal, "rpcthreads", &config(1), &config(2)).unwrap();
    let mut server = Server::bind(b.device(), addr(), ServerConfig::default()).unwrap();
    let held = Held::default();
    let program = program(server.memory().clone(), held.clone());
    server.register(PROGRAM, 1..=1, BINDING, program).unwrap();
    let stopper = server.stopper();
    let serving = thread::spawn(move || server.run().map(|()| server.counters()));

    let config = ClientConfig { binding: Box::new(BINDING), ..ClientConfig::default() };
    let client = Client::new(a.device(), addr(), config).unwrap();
    let start = Arc::new(Barrier::new(THREADS as usize));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (client, start) = (client.clone(), start.clone());
            thread::spawn(move || {
                start.wait();
                for n in 0..CALLS {
                    let (number, len) = (thread * CALLS + n, (n as usize * 997) % 20_000);
                    let call = echo(&client, number, len, n % 2 == 0, n % 3 == 0).unwrap();
                    check_echo(&call.wait().unwrap(), number, len);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(client.outstanding(), 0);

    // A thread drives the client and sleeps with no call to wait for; a short call by another
    // thread wakes it in time.
    let driver = thread::spawn({
        let client = client.clone();
        move || client.run()
    });
    let mut call = client.call(LATER).timeout(Duration::from_millis(300)).send().unwrap();
    let outcome = std::iter::repeat_with(|| {
        thread::sleep(Duration::from_millis(5));
        call.try_take()
    });
    let outcome = outcome.take(4000).flatten().next().expect("its time is over");
    assert_eq!(outcome.unwrap_err(), CallError::TimedOut { sent: true });
    // The sleeping thread of a server notices an answer that comes from another thread.
    let call = client.call(LATER).send().unwrap();
    let request = std::iter::repeat_with(|| {
        thread::sleep(Duration::from_millis(5));
        let mut held = held.lock().unwrap();
        if held.len() == 2 { held.pop() } else { None }
    });
    let request = request.take(4000).flatten().next().expect("the call has come");
    let mut results = heddle_rpc::Body::new();
    results.u32(9).unwrap();
    request.reply(Ok(results));
    assert_eq!(call.wait().unwrap().reader().u32(), Ok(9));

    client.close();
    driver.join().unwrap();
    stopper.stop();
    let counters = serving.join().unwrap().unwrap();
    assert_eq!(counters.calls, u64::from(THREADS * CALLS) + 2);
}
