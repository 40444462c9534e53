//! The events and errors that waiting applications get when a worker panics, or when their RNIC is
//! stopped.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::RecvTimeoutError;

use heddle_types::CloseReason;
use heddle_verbs::{
    Access, Connection, ConnectionError, CqeStatus, DisconnectReason, ListenFailure, Listener,
    PostError, RecvWr, SendWr,
};

use super::*;

mod ask;
mod control;
mod peers;
mod ports;
mod sleeping;
mod workers;

/// Far longer than anything takes here, and far shorter than a wait in vain.
const PROMPT: Duration = Duration::from_secs(10);

/// Orders of a test to a worker, in place of its work.
#[derive(Clone, Default)]
struct Orders {
    /// The worker panics.
    panic: Arc<AtomicBool>,
    /// The worker does nothing.
    pause: Arc<AtomicBool>,
}

impl Orders {
    fn turn(&self, worker: &mut Worker) -> bool {
        assert!(!self.panic.load(Ordering::Relaxed), "on purpose");
        if self.pause.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
            return false;
        }
        let busy = worker.poll();
        if !busy {
            // On a machine with few processors the other threads need time too.
            thread::yield_now();
        }
        busy
    }
}

/// Two RNICs, each with a thread that spins; one test runs at a time.
struct Pair {
    orders: [Orders; 2],
    node: Node,
    peer: Node,
    _turn: MutexGuard<'static, ()>,
}

fn pair(name: &str) -> Pair {
    let (eal, turn) = crate::testing::eal();
    let addr = |n: u8| vec![format!("10.0.0.{n}/24").parse().unwrap()];
    // Pools outlive a test, so each has few frames.
    let (memory, frames) = (1 << 20, 2047);
    let config = |n| EndpointConfig { memory, frames, ..EndpointConfig::new(addr(n)) };
    let (a, b) = (config(1), config(2));
    let (a, b) = Endpoint::ring_pair(&eal, name, &a, &b).unwrap();
    let cpus = allowed_cpus();
    let orders = [Orders::default(), Orders::default()];
    let [ours, theirs] = orders.clone();
    let node = Node::run(&eal, a, &Lcores::new(&cpus[..1]), move |_, w| ours.turn(w)).unwrap();
    let peer =
        Node::run(&eal, b, &Lcores::new(&cpus[cpus.len() - 1..]), move |_, w| theirs.turn(w))
            .unwrap();
    Pair { orders, node, peer, _turn: turn }
}

impl Pair {
    /// Opens a connection of the peer to a listener of the node. Returns the listener, and the
    /// connection at the node and at the peer.
    fn connect(&self) -> (Listener, Connection, Connection) {
        self.connect_at("10.0.0.1:7174")
    }

    /// As [`connect`](Self::connect), at another address of the node.
    fn connect_at(&self, addr: &str) -> (Listener, Connection, Connection) {
        let listener = self.node.device().bind(addr).unwrap();
        let connecting = self.peer.device().dial(addr).unwrap();
        let here = listener.accept().unwrap();
        (listener, here, connecting.wait().unwrap())
    }
}

/// Returns the worker's answer, or `None` once the control plane has dropped the question. A test
/// that waits in vain fails by its time limit, and does not take silence for a refusal.
fn answer_of(requests: &Requests) -> Option<Box<WorkerSnapshot>> {
    match ask(requests, 0)?.recv_timeout(3 * PROMPT) {
        Ok(answer) => Some(answer),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("the control plane keeps the question"),
    }
}

/// Returns the reason for a connection's end, which has to come before long.
fn end_of(conn: &mut Connection) -> DisconnectReason {
    let until = Instant::now() + PROMPT;
    loop {
        match conn.end() {
            Some(reason) => return reason,
            None if Instant::now() > until => panic!("it has not ended"),
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Returns the nanoseconds that control threads of this process have run.
fn control_time() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let time = |task: &Path| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let stat = std::fs::read_to_string(task.join("schedstat")).ok()?;
        (name.trim() == "heddle-ctl").then(|| stat.split(' ').next()?.parse::<u64>().ok())?
    };
    tasks.filter_map(|t| time(&t.unwrap().path())).sum()
}

/// Returns true if a descriptor has been woken, or is woken before long.
fn is_woken(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let most = Timespec { tv_sec: PROMPT.as_secs().cast_signed(), tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&most)).unwrap() == 1
}

#[test]
fn test_waiting_threads_are_told_when_worker_panics() {
    let p = pair("lost0");
    let (listener, mut here, there) = p.connect();
    let memory = here.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    let sges = [memory.sge(0, 64)];
    here.post_recv(&RecvWr { wr_id: 1, sges: &sges }).unwrap();
    // This write is usually sent, and not acknowledged: TCP refers to its memory when the worker
    // ends.
    p.orders[1].pause.store(true, Ordering::Relaxed);
    let write = |wr_id| SendWr::write(wr_id, &sges, memory.stag(), memory.to());
    here.post_send(&write(2)).unwrap();
    thread::sleep(Duration::from_millis(100));
    // The worker does not take this write any more.
    p.orders[0].pause.store(true, Ordering::Relaxed);
    here.post_send(&write(3)).unwrap();

    thread::scope(|s| {
        let accepts = s.spawn(|| {
            let error = listener.accept().err();
            (error, Instant::now())
        });
        let waits = s.spawn(|| {
            let seen = [(); 3].map(|()| here.wait(3 * PROMPT).unwrap());
            (seen.map(|c| (c.wr_id, c.status)), Instant::now())
        });
        let requests = p.node.requests.clone();
        let asks = s.spawn(move || answer_of(&requests));
        // All three threads usually sleep by now.
        thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        p.orders[0].panic.store(true, Ordering::Relaxed);
        let (accepted, at) = accepts.join().unwrap();
        let error = accepted.unwrap();
        assert!(matches!(error, ConnectionError::Listen(ListenFailure::WorkerLost)), "{error}");
        assert!(at - start < PROMPT);
        let (mut seen, at) = waits.join().unwrap();
        seen.sort_unstable_by_key(|c| c.0);
        assert_eq!(seen, [1, 2, 3].map(|wr_id| (wr_id, CqeStatus::Flushed)));
        assert!(at - start < PROMPT);
        assert!(asks.join().unwrap().is_none(), "the worker is gone");
    });

    assert!(is_woken(here.event_fd().unwrap()) && is_woken(listener.fd().unwrap()));
    assert_eq!(here.end(), Some(DisconnectReason::WorkerLost));
    let post = here.post_recv(&RecvWr { wr_id: 4, sges: &sges });
    assert_eq!(post, Err(PostError::Ended));
    // The error stays, for a second call and for new objects.
    for _ in 0..2 {
        let error = listener.request(Duration::ZERO).unwrap_err();
        assert!(matches!(error, ConnectionError::Listen(ListenFailure::WorkerLost)), "{error}");
    }
    let error = p.node.device().bind("10.0.0.1:7175").unwrap_err();
    assert!(matches!(error, ConnectionError::Listen(ListenFailure::WorkerLost)), "{error}");
    let error = p.node.device().dial("10.0.0.2:7174").unwrap().wait().unwrap_err();
    assert!(matches!(error, ConnectionError::Connect(_)), "{error}");
    assert!(!p.node.is_running() && p.node.snapshot().workers[0].counters.is_none());
    // Memory comes back when the frames that are still on the wire have arrived.
    p.orders[1].pause.store(false, Ordering::Relaxed);
    drop(memory);
    let end = Instant::now() + PROMPT;
    let registry = p.node.hub().registry();
    while registry.reclaim() > 0 && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(registry.draining(), 0);

    // The control thread sleeps. Its ten naps in a second take far less than a tenth of that
    // second.
    let before = control_time();
    thread::sleep(Duration::from_secs(1));
    let busy = control_time() - before;
    assert!(busy < 100_000_000, "control threads ran for {busy} ns of a second");
    drop(there);
}

#[test]
fn test_waiting_threads_are_told_when_rnic_stops() {
    let Pair { node, peer, _turn, .. } = pair("lost1");
    let device = node.device().clone();
    let listener = device.bind("10.0.0.1:7174").unwrap();
    let connecting = peer.device().dial("10.0.0.1:7174").unwrap();
    let mut here = listener.accept().unwrap();
    let _there = connecting.wait().unwrap();
    let counted = node.stop();
    assert_eq!((counted.ctl.control.worker_panics, counted.ctl.cm.established), (0, 1));
    assert_eq!(here.end(), Some(DisconnectReason::WorkerLost));
    let error = listener.accept().unwrap_err();
    assert!(matches!(error, ConnectionError::Listen(ListenFailure::WorkerLost)), "{error}");
}

/// All memory that a pool has lent comes back at once, over and over.
#[test]
fn test_pool_memory_is_free_again_as_soon_as_its_region_is_dropped() {
    let p = pair("lost2");
    let device = p.node.device();
    let (pd, len) = (device.alloc_pd().unwrap(), device.memory().unwrap().len());
    for round in 0..100 {
        let mr = device.alloc_mr(pd, len, Access::NONE).unwrap_or_else(|e| panic!("{round}: {e}"));
        assert!(device.alloc_mr(pd, 64, Access::NONE).is_err(), "it is all taken");
        drop(mr);
    }
}
