//! Workers that sleep are woken by the threads that have work for them, and not by the end of a
//! nap.

use std::os::unix::net::UnixStream;

use heddle_dataplane::Naps;
use heddle_hub::{Policy, serve};
use heddle_verbs::remote::OpenParams;

use super::*;

/// The nap that a lost wake-up would last, and the limit for a good one.
const NAP: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_secs(1);

/// Idle time before a worker sleeps: longer than peers take to answer.
const AFTER: Duration = Duration::from_millis(20);

struct Sleepers {
    node: Node,
    peer: Node,
    _turn: MutexGuard<'static, ()>,
}

/// Starts a node of `workers` workers, on as many lcores, whose naps last `nap`, and a peer with
/// one worker that spins.
fn sleepers(name: &str, workers: usize, nap: Duration) -> Sleepers {
    let (eal, turn) = crate::testing::eal();
    let addr = |n: u8| vec![format!("10.0.0.{n}/24").parse().unwrap()];
    let config = |n, workers| EndpointConfig {
        memory: 1 << 20,
        frames: 2047,
        workers,
        ..EndpointConfig::new(addr(n))
    };
    let (a, b) = Endpoint::ring_pair(&eal, name, &config(1, workers), &config(2, 1)).unwrap();
    let cpus = allowed_cpus();
    let cores: Vec<_> = (0..workers).map(|n| cpus[n % cpus.len()]).collect();
    let idle = IdlePolicy::Backoff(Naps { after: AFTER, first: nap, longest: nap });
    let node = Node::start_with(&eal, a, &Lcores { idle, ..Lcores::new(cores) }).unwrap();
    let spins = Orders::default();
    let last = Lcores::new(&cpus[cpus.len() - 1..]);
    let peer = Node::run(&eal, b, &last, move |_, w| spins.turn(w)).unwrap();
    Sleepers { node, peer, _turn: turn }
}

/// Waits until workers without work sleep.
fn rest() {
    thread::sleep(3 * AFTER);
}

/// Returns the result of `f`, and the time that it takes.
fn time<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = f();
    (result, start.elapsed())
}

/// Asserts that posts on a connection of `device` reach the peer before the nap is over.
fn posts_are_carried_out(s: &Sleepers, device: &Device) {
    let listener = s.peer.device().bind("10.0.0.2:7174").unwrap();
    rest();
    let (conns, took) = time(|| {
        let connecting = device.dial("10.0.0.2:7174").unwrap();
        let there = listener.accept().unwrap();
        (connecting.wait().unwrap(), there)
    });
    assert!(took < SOON, "the control plane's orders waited: {took:?}");
    let (here, there) = conns;
    for round in 0..5 {
        there.post_recv(&RecvWr::new(round, &[])).unwrap();
        rest();
        let (done, took) = time(|| {
            here.post_send(&SendWr::send_inline(round, &[])).unwrap();
            here.wait(2 * NAP)
        });
        assert!(done.unwrap().status.is_success());
        assert!(took < SOON, "round {round}: a doorbell was not heard for {took:?}");
    }
}

#[test]
fn test_a_doorbell_wakes_the_worker() {
    let s = sleepers("sleep0", 1, NAP);
    posts_are_carried_out(&s, s.node.device());
}

/// The device is in the form for another process: over a socket, with its own descriptors.
#[test]
fn test_a_doorbell_of_another_process_wakes_the_worker() {
    let s = sleepers("sleep1", 1, NAP);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let hub = s.node.hub().clone();
    let server = thread::spawn(move || serve(&hub, Policy::default(), &theirs));
    let params = OpenParams {
        memory: 1 << 16,
        queues: 1 << 20,
        name: "test".into(),
        ..OpenParams::default()
    };
    let device = Device::open_on(ours, &params).unwrap();
    posts_are_carried_out(&s, &device);
    drop(device);
    server.join().unwrap().unwrap();
}

#[test]
fn test_snapshot_and_stop_do_not_wait_for_sleeping_workers() {
    let s = sleepers("sleep2", 2, NAP);
    for _ in 0..3 {
        rest();
        let (answers, took) = time(|| s.node.snapshot());
        assert!(answers.workers.iter().all(|w| w.counters.is_some()) && took < SOON, "{took:?}");
    }
    rest();
    let Sleepers { node, peer, _turn } = s;
    let ((), took) = time(|| drop(node));
    assert!(took < SOON, "it took {took:?} to stop");
    drop(peer);
}

/// Memory comes back when each worker has had a turn.
#[test]
fn test_region_is_released_while_workers_sleep() {
    let s = sleepers("sleep3", 1, NAP);
    let registry = s.node.hub().registry();
    rest();
    let device = s.node.device();
    let pd = device.alloc_pd().unwrap();
    drop(device.alloc_mr(pd, 4096, Access::LOCAL_WRITE).unwrap());
    let ((), took) = time(|| {
        while registry.draining() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(took < SOON, "{took:?}");
}

/// The first of two workers has the queue and looks at it each millisecond; the other sleeps until
/// a frame, or an order, is handed to it.
#[test]
fn test_steered_frame_wakes_the_worker_it_is_for() {
    let s = sleepers("sleep4", 2, Duration::from_millis(1));
    let listener = s.node.device().bind("10.0.0.1:7174").unwrap();
    let steered = |s: &Sleepers| {
        let of = |w: &WorkerStatus| w.counters.as_ref().unwrap().steer.rx_from_workers;
        s.node.snapshot().workers.iter().map(of).sum::<u64>()
    };
    let connect = || {
        let connecting = s.peer.device().dial("10.0.0.1:7174").unwrap();
        (listener.accept().unwrap(), connecting.wait().unwrap())
    };
    let mut conns = vec![connect()];
    // The ports of a connection decide which worker has it: one of the next few belongs to the
    // sleeper, whose frames are handed on.
    let arp = steered(&s);
    while conns.len() < 8 || steered(&s) == arp {
        assert!(conns.len() < 64, "all are the other worker's");
        conns.push(connect());
    }
    let before = steered(&s);
    for (here, there) in &conns {
        here.post_recv(&RecvWr::new(1, &[])).unwrap();
        rest();
        let (done, took) = time(|| {
            there.post_send(&SendWr::send_inline(2, &[])).unwrap();
            here.wait(PROMPT)
        });
        assert!(done.unwrap().status.is_success());
        // The limit is far below the nap of a worker that polls no queue.
        assert!(took < heddle_dataplane::idle::FULL / 4, "{took:?}");
        assert!(there.wait(PROMPT).unwrap().status.is_success());
    }
    assert!(steered(&s) > before, "none was handed on");
}
