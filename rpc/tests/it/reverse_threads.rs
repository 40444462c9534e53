//! Calls to a client, and programs of a client that call its server. The RNICs, the server and the
//! client have threads of their own and wait for each other.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use heddle_ctl::{EndpointConfig, Node};
use heddle_rpc::binding::Table;
use heddle_rpc::client::ServeError;
use heddle_rpc::server::{CallerEvent, CallsConfig, Stopper};
use heddle_rpc::{
    Body, CallError, Caller, Client, ClientConfig, Procedure, Refusal, Request, Server,
    ServerConfig, Speaks,
};

const BACK: u32 = 0x2000_0002;
/// Takes a number; replies with the server's answer when PLAIN gets this number.
const ASK: Procedure = Procedure { program: BACK, version: 1, procedure: 1 };
/// Takes a number; replies with the same number.
const SAME: Procedure = Procedure { procedure: 2, ..ASK };
/// Takes a number; another thread sends the reply.
const ELSEWHERE: Procedure = Procedure { procedure: 3, ..ASK };
/// A procedure of the server: takes a number; replies with the client's answer when SAME gets this
/// number.
const RELAY: Procedure = Procedure { program: PROGRAM + 8, version: 1, procedure: 1 };

const ROUNDS: u32 = 6;

struct Scene {
    client: Client,
    callers: mpsc::Receiver<Caller>,
    stopper: Stopper,
    serving: thread::JoinHandle<()>,
    nodes: (Node, Node),
}

fn number(number: u32) -> Body {
    let mut body = Body::new();
    body.u32(number).unwrap();
    body
}

fn read(body: &Body) -> u32 {
    body.reader().u32().unwrap()
}

fn scene(eal: &heddle_dataplane::Eal, name: &str, speaks: Speaks) -> Scene {
    let config = |n: u8| EndpointConfig {
        frames: 2047,
        ..EndpointConfig::new(vec![format!("10.0.0.{n}/24").parse().unwrap()])
    };
    let (a, b) = Node::ring_pair(eal, name, &config(1), &config(2)).unwrap();
    let mut config =
        ServerConfig { calls: Some(Arc::new(CallsConfig::default())), ..ServerConfig::default() };
    config.transport.speaks = speaks;
    let mut server = Server::bind(b.device(), addr(), config).unwrap();
    let plain = program(server.memory().clone(), Held::default());
    server.register(PROGRAM, 1..=1, BINDING, plain).unwrap();
    // A program that waits for the client does so on a thread of its own.
    let relay = |request: Request| {
        drop(thread::spawn(move || {
            let caller = request.caller().unwrap();
            let call = caller.call(SAME).arguments(request.arguments.clone());
            let outcome = call.wait().map_err(|_| Refusal::SystemErr);
            request.reply(outcome);
        }));
    };
    server.register(RELAY.program, 1..=1, Table(&[]), relay).unwrap();
    let (sender, callers) = mpsc::channel();
    server.watch(move |event| {
        if let CallerEvent::Connected(caller) = event {
            sender.send(caller).unwrap();
        }
    });
    let stopper = server.stopper();
    let serving = thread::spawn(move || server.run().unwrap());
    let mut config = ClientConfig { binding: Box::new(BINDING), ..ClientConfig::default() };
    config.transport.speaks = speaks;
    let client = Client::new(a.device(), addr(), config).unwrap();
    Scene { client, callers, stopper, serving, nodes: (a, b) }
}

/// Gives the client a program that calls the server before it answers.
fn serve(client: &Client) {
    let own = client.clone();
    let program = move |request: Request| match request.procedure {
        ASK => {
            let number = read(&request.arguments);
            let mut arguments = Body::new();
            arguments.opaque(&number.to_be_bytes()).unwrap();
            let said = own.call(PLAIN).arguments(arguments).wait().unwrap();
            let said = said.reader().opaque(4).unwrap().to_vec();
            let mut results = Body::new();
            results.u32(u32::from_be_bytes(said.try_into().unwrap())).unwrap();
            // A running program may not add another program.
            let more = own.serve(BACK + 1, 1..=1, Table(&[]), |_: Request| {});
            assert_eq!(more, Err(ServeError::InProgram));
            request.reply(Ok(results));
        }
        SAME => {
            let arguments = request.arguments.clone();
            request.reply(Ok(arguments));
        }
        ELSEWHERE => drop(thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            let arguments = request.arguments.clone();
            request.reply(Ok(arguments));
        })),
        _ => request.reply(Err(Refusal::ProcUnavail)),
    };
    client.serve(BACK, 1..=1, Table(&[]), program).unwrap();
}

fn end(scene: Scene, driver: thread::JoinHandle<()>) {
    scene.client.close();
    driver.join().unwrap();
    scene.stopper.stop();
    scene.serving.join().unwrap();
    drop(scene.nodes);
}

#[test]
fn test_programs_of_a_client_call_its_server_and_wait() {
    let (eal, _turn) = eal();
    for (name, speaks) in [("rpcback1", Speaks::V1), ("rpcback2", Speaks::V2)] {
        let scene = scene(&eal, name, speaks);
        serve(&scene.client);
        let driver = thread::spawn({
            let client = scene.client.clone();
            move || client.run()
        });
        // In version 1 the server learns of its client from a call.
        scene.client.call(RELAY).arguments(number(1)).wait().unwrap();
        let caller = scene.callers.recv_timeout(Duration::from_secs(60)).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (caller, client) = (caller.clone(), scene.client.clone());
                thread::spawn(move || {
                    for n in 0..ROUNDS {
                        let n = thread * ROUNDS + n;
                        for procedure in [ASK, SAME] {
                            let call = caller.call(procedure).arguments(number(n));
                            assert_eq!(read(&call.wait().unwrap()), n);
                        }
                        let call = client.call(RELAY).arguments(number(n));
                        assert_eq!(read(&call.wait().unwrap()), n);
                    }
                    let call = caller.call(ELSEWHERE).arguments(number(7));
                    assert_eq!(read(&call.wait().unwrap()), 7);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(scene.client.served().calls, 1 + 4 * (3 * u64::from(ROUNDS) + 1));
        end(scene, driver);
    }
}

#[test]
fn test_wait_inside_own_step_is_refused_and_other_waits_time_out() {
    let (eal, _turn) = eal();
    let scene = scene(&eal, "rpcwait", Speaks::V2);
    let held = Held::default();
    let to = held.clone();
    let program = move |request: Request| to.lock().unwrap().push(request);
    scene.client.serve(BACK, 1..=1, Table(&[]), program).unwrap();
    let driver = thread::spawn({
        let client = scene.client.clone();
        move || client.run()
    });
    let caller = scene.callers.recv_timeout(Duration::from_secs(60)).unwrap();
    // The client does not answer.
    let begin = Instant::now();
    let call = caller.call(SAME).timeout(Duration::from_millis(200)).send().unwrap();
    assert_eq!(call.wait().unwrap_err(), CallError::TimedOut { sent: true });
    assert!(begin.elapsed() >= Duration::from_millis(200));
    // A wait also ends when no thread steps the server. Here the server's thread is in a step that
    // waits itself.
    let (outcome, said) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU32::new(0)));
    let waker = {
        struct Waits(Caller, Arc<Mutex<Option<CallError>>>, Arc<AtomicU32>);
        impl std::task::Wake for Waits {
            fn wake(self: Arc<Self>) {
                let outcome = self.0.call(SAME).wait();
                *self.1.lock().unwrap() = outcome.err();
                self.2.store(1, Ordering::Release);
            }
        }
        Arc::new(Waits(caller.clone(), outcome.clone(), said.clone())).into()
    };
    let mut call =
        std::pin::pin!(caller.call(SAME).timeout(Duration::from_secs(60)).send().unwrap());
    let mut context = std::task::Context::from_waker(&waker);
    assert!(call.as_mut().poll(&mut context).is_pending());
    let answer = |held: &Held| held.lock().unwrap().pop();
    let end_of = Instant::now() + Duration::from_secs(60);
    // The held requests include the call that timed out, whose answer is ignored.
    while said.load(Ordering::Acquire) == 0 {
        assert!(Instant::now() < end_of, "the waker has not come");
        if let Some(request) = answer(&held) {
            request.reply(Ok(number(1)));
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(outcome.lock().unwrap().take(), Some(CallError::OwnStep));
    end(scene, driver);
}

#[test]
fn test_event_loop_wakes_for_calls_back_and_answers_of_other_threads() {
    let (eal, _turn) = eal();
    let scene = scene(&eal, "rpcloop", Speaks::V2);
    serve(&scene.client);
    let (client, done) = (scene.client.clone(), Arc::new(AtomicU32::new(0)));
    let event_loop = thread::spawn({
        let done = done.clone();
        move || {
            while done.load(Ordering::Acquire) == 0 {
                client.step();
                if !client.arm() {
                    continue;
                }
                // In place of epoll, the test looks only at the descriptor.
                let left = client.timeout().unwrap_or(Duration::from_secs(60));
                let until = Instant::now() + left;
                while !readable(&client) && Instant::now() < until {
                    if done.load(Ordering::Acquire) == 1 {
                        return;
                    }
                    thread::sleep(Duration::from_micros(200));
                }
            }
        }
    });
    let caller = scene.callers.recv_timeout(Duration::from_secs(60)).unwrap();
    for n in 0..20 {
        for procedure in [SAME, ELSEWHERE, ASK] {
            let call = caller.call(procedure).arguments(number(n));
            assert_eq!(read(&call.wait().unwrap()), n);
        }
    }
    done.store(1, Ordering::Release);
    event_loop.join().unwrap();
    end(scene, thread::spawn(|| {}));
}

/// Returns true if the descriptor, which does not block, is readable.
fn readable(client: &Client) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let fd = client.fd().unwrap();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}
