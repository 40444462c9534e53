//! A worker of several panics, and the others go on.

use super::*;

/// A node with two workers, each of which obeys a test, and the node's peer.
pub(super) struct Workers {
    orders: Vec<Orders>,
    pub(super) node: Node,
    pub(super) peer: Node,
    _turn: MutexGuard<'static, ()>,
}

/// Starts a node with `lcores` threads. With two `peers` workers on the other side, the workers are
/// joined queue by queue; with one, the node's two workers share a queue.
pub(super) fn workers(name: &str, peers: usize, lcores: usize) -> Workers {
    let (eal, turn) = crate::testing::eal();
    let addr = |n: u8| vec![format!("10.0.0.{n}/24").parse().unwrap()];
    let config = |n, workers| EndpointConfig {
        memory: 1 << 20,
        frames: 2047,
        workers,
        ..EndpointConfig::new(addr(n))
    };
    let (a, b) = Endpoint::ring_pair(&eal, name, &config(1, 2), &config(2, peers)).unwrap();
    let cpus = allowed_cpus();
    let orders = vec![Orders::default(), Orders::default()];
    let theirs = orders.clone();
    let cores: Vec<_> = (0..lcores).map(|n| cpus[n % cpus.len()]).collect();
    let turn_of = move |n: usize, w: &mut Worker| theirs[n].turn(w);
    let node = Node::run(&eal, a, &Lcores::new(cores), turn_of).unwrap();
    let last = &cpus[cpus.len() - 1..];
    let turn_of = |_: usize, w: &mut Worker| {
        let busy = w.poll();
        if !busy {
            thread::yield_now();
        }
        busy
    };
    let peer = Node::run(&eal, b, &Lcores::new(last), turn_of).unwrap();
    Workers { orders, node, peer, _turn: turn }
}

impl Workers {
    /// Returns the number of connections that each worker of the node has accepted and opened.
    fn conns(&self) -> Vec<u64> {
        let of = |w: &WorkerStatus| {
            w.counters.as_ref().map_or(0, |c| c.engine.stack.accepted + c.engine.stack.opened)
        };
        self.node.snapshot().workers.iter().map(of).collect()
    }

    /// Opens a connection of the node to the peer. Returns it at both ends, and the worker that has
    /// it.
    pub(super) fn dial(&self, listener: &Listener) -> (Connection, Connection, usize) {
        let before = self.conns();
        let connecting = self.node.device().dial("10.0.0.2:7174").unwrap();
        let there = listener.accept().unwrap();
        let here = connecting.wait().unwrap();
        let after = self.conns();
        let worker = (0..2).find(|w| after[*w] > before[*w]).unwrap();
        (here, there, worker)
    }
}

/// Writes from one end to the other, and compares the data.
pub(super) fn talk(from: &Connection, to: &Connection, mark: u8) {
    let target = to.alloc_mr(64, Access::REMOTE_WRITE).unwrap();
    to.post_recv(&RecvWr::new(1, &[])).unwrap();
    from.post_send(&SendWr::write_inline(2, &[mark; 16], target.stag(), target.to())).unwrap();
    from.post_send(&SendWr::send_inline(3, &[])).unwrap();
    assert!(to.wait(PROMPT).unwrap().status.is_success());
    for _ in 0..2 {
        assert!(from.wait(PROMPT).unwrap().status.is_success());
    }
    assert_eq!((target.load(0), target.load(15)), (mark, mark));
}

/// Makes worker `victim` panic while connections of both workers are in use.
fn kill(name: &str, peers: usize, lcores: usize, victim: usize) {
    let w = workers(name, peers, lcores);
    let listener = w.peer.device().bind("10.0.0.2:7174").unwrap();
    let mut conns: [Option<(Connection, Connection)>; 2] = [None, None];
    while conns.iter().any(Option::is_none) {
        let (here, there, worker) = w.dial(&listener);
        talk(&here, &there, 7);
        conns[worker] = Some((here, there));
    }
    let [Some(first), Some(second)] = conns else { panic!("one each") };
    let (lost, kept) = if victim == 0 { (first, second) } else { (second, first) };
    assert_eq!(w.node.running_workers(), 2);
    w.orders[victim].panic.store(true, Ordering::Relaxed);

    let (mut here, mut there) = lost;
    assert_eq!(end_of(&mut here), DisconnectReason::WorkerLost);
    assert_eq!(end_of(&mut there), DisconnectReason::Tcp(CloseReason::Reset));
    let (here, there) = kept;
    for mark in 0..50 {
        talk(&here, &there, mark);
        talk(&there, &here, mark);
    }
    assert_eq!((w.node.is_running(), w.node.running_workers()), (true, 1));
    let s = w.node.snapshot();
    let there_is = |n: usize| s.workers[n].counters.is_some();
    assert_eq!((there_is(victim), there_is(1 - victim)), (false, true));
    assert_eq!(s.ctl.control.worker_panics, 1);
    let other = s.workers[1 - victim].counters.as_ref().unwrap();
    assert_eq!(s.worker.engine.tcp, other.engine.tcp);

    // The other worker panics too, and none is left.
    w.orders[1 - victim].panic.store(true, Ordering::Relaxed);
    let (mut here, mut there) = (here, there);
    assert_eq!(end_of(&mut here), DisconnectReason::WorkerLost);
    assert_eq!(end_of(&mut there), DisconnectReason::Tcp(CloseReason::Reset));
    assert!(!w.node.is_running());
    let start = Instant::now();
    drop(w);
    assert!(start.elapsed() < PROMPT, "it ends when it is told to");
}

#[test]
fn test_worker_with_its_own_queue_fails_without_harming_others() {
    kill("alone0", 2, 2, 0);
}

/// A single thread polls both workers.
#[test]
fn test_worker_that_shares_its_thread_fails_without_harming_others() {
    kill("alone1", 2, 1, 0);
    kill("alone2", 2, 1, 1);
}

/// The surviving worker's frames come and go through the worker that is lost.
#[test]
fn test_failed_worker_with_the_queue_still_hands_frames_to_others() {
    kill("alone3", 1, 2, 0);
    kill("alone4", 1, 1, 0);
}

#[test]
fn test_worker_without_a_queue_fails_without_harming_others() {
    kill("alone5", 1, 2, 1);
}

#[test]
fn test_node_refuses_to_start_with_wrong_number_of_processors() {
    let (eal, _turn) = crate::testing::eal();
    for lcores in [0, 2] {
        let config = |n: u8| EndpointConfig {
            memory: 1 << 16,
            frames: 255,
            ..EndpointConfig::new(vec![format!("10.0.0.{n}/24").parse().unwrap()])
        };
        let name = format!("cores{lcores}");
        let (a, _b) = Endpoint::ring_pair(&eal, &name, &config(1), &config(2)).unwrap();
        let error = Node::start(&eal, a, &vec![allowed_cpus()[0]; lcores]).unwrap_err();
        assert!(matches!(error, OpenError::Lcores { workers: 1, .. }), "{error}");
    }
}

/// Workers are dealt out in turn, so that the workers of a port are at several threads. A processor
/// that is named twice has two threads.
#[test]
fn test_workers_are_distributed_round_robin_over_threads() {
    let (eal, _turn) = crate::testing::eal();
    let config = |n: u8| EndpointConfig {
        memory: 1 << 16,
        frames: 255,
        workers: 4,
        ..EndpointConfig::new(vec![format!("10.0.0.{n}/24").parse().unwrap()])
    };
    let (a, _b) = Endpoint::ring_pair(&eal, "dealt", &config(1), &config(2)).unwrap();
    let cpus = allowed_cpus();
    let cores = [cpus[0], cpus[cpus.len() - 1], cpus[0]];
    let seen = Arc::new(std::sync::Mutex::new(std::collections::BTreeMap::new()));
    let threads = seen.clone();
    let turn_of = move |n: usize, w: &mut Worker| {
        threads.lock().unwrap().insert(n, thread::current().id());
        thread::yield_now();
        w.poll()
    };
    let node = Node::run(&eal, a, &Lcores::new(cores), turn_of).unwrap();
    let until = Instant::now() + PROMPT;
    while seen.lock().unwrap().len() < 4 {
        assert!(Instant::now() < until, "a worker is not polled");
        thread::sleep(Duration::from_millis(1));
    }
    let lcores: Vec<_> = node.places().map(|p| p.lcore).collect();
    assert_eq!(lcores, [cores[0], cores[1], cores[2], cores[0]]);
    let of = seen.lock().unwrap().clone();
    assert!(of[&0] == of[&3] && of[&0] != of[&1] && of[&1] != of[&2] && of[&0] != of[&2], "{of:?}");
}
