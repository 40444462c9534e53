//! The fate of each frame between workers that share a port.

use std::net::{Ipv4Addr, SocketAddr};

use heddle_base::Chunks;

use super::super::tests::eal;
use super::ring::ring;
use super::*;
use crate::{BURST, Mbuf, MempoolConfig, Port, PortConfig};

type Burst = ArrayVec<Mbuf, BURST>;

fn pool(count: u32) -> Mempool {
    Mempool::new(&eal(), &MempoolConfig::for_mtu(count, 1500)).unwrap()
}

fn frame(pool: Mempool, content: &[u8]) -> Mbuf {
    let mut m = pool.alloc().unwrap();
    m.append(content.len()).unwrap().copy_from_slice(content);
    m
}

fn numbered(pool: Mempool, n: u32) -> Mbuf {
    frame(pool, &n.to_be_bytes())
}

fn number(m: &Mbuf) -> u32 {
    u32::from_be_bytes(m.data()[..4].try_into().unwrap())
}

fn numbers(frames: &mut Burst) -> Vec<u32> {
    frames.drain(..).map(|m| number(&m)).collect()
}

#[test]
fn test_frames_come_out_in_order_and_those_without_room_stay() {
    let pool = pool(255);
    let (mut tx, mut rx) = ring(8);
    let (mut next, mut seen) = (0, 0);
    let (mut waiting, mut out) = (Burst::new(), Burst::new());
    for round in 0..100 {
        while waiting.len() < 5 {
            waiting.push(numbered(pool, next));
            next += 1;
        }
        let there = next - seen - 5;
        let room = 8 - there as usize;
        assert_eq!(tx.push_all(&mut waiting), room.min(5), "round {round}");
        rx.pop_into(&mut out, 1 + round % 4);
        for n in numbers(&mut out) {
            assert_eq!(n, seen);
            seen += 1;
        }
    }
    // Dropping the owners frees all frames that are left.
    drop((waiting, tx, rx));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_ring_works_after_indices_wrap() {
    let pool = pool(63);
    let (mut tx, mut rx) = ring(4);
    tx.start_at(usize::MAX - 1, &mut rx);
    for n in 0..5 {
        let (mut waiting, mut out) = (Burst::new(), Burst::new());
        waiting.extend((0..3).map(|i| numbered(pool, n + i)));
        assert_eq!(tx.push_all(&mut waiting), 3);
        assert_eq!(rx.pop_into(&mut out, 64), 3);
        assert_eq!(numbers(&mut out), [n, n + 1, n + 2]);
    }
    let mut waiting: Burst = (0..4).map(|i| numbered(pool, i)).collect();
    tx.push_all(&mut waiting);
    drop((tx, rx));
    assert_eq!(pool.in_use(), 0);
}

/// Either end may be dropped first, and frames may come too late.
#[test]
fn test_frames_left_in_ring_are_freed_with_its_last_end() {
    let pool = pool(63);
    for consumer_first in [true, false] {
        let (mut tx, mut rx) = ring(16);
        let mut waiting: Burst = (0..4).map(|i| numbered(pool, i)).collect();
        tx.push_all(&mut waiting);
        if consumer_first {
            assert!(!tx.is_deserted());
            drop(rx);
            assert!(tx.is_deserted());
            waiting.push(numbered(pool, 9));
            tx.push_all(&mut waiting);
            drop(tx);
        } else {
            drop(tx);
            let mut out = Burst::new();
            assert_eq!(rx.pop_into(&mut out, 2), 2);
            assert_eq!(numbers(&mut out), [0, 1]);
            drop(rx);
        }
        assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn test_two_threads_pass_everything_in_order() {
    const N: u32 = 20_000;
    let pool = pool(511);
    let (mut tx, mut rx) = ring(64);
    let taker = std::thread::spawn(move || {
        let (mut next, mut out) = (0, Burst::new());
        while next < N {
            if rx.pop_into(&mut out, 64) == 0 {
                std::thread::yield_now();
            }
            for n in numbers(&mut out) {
                assert_eq!(n, next);
                next += 1;
            }
        }
    });
    let (mut next, mut waiting) = (0, Burst::new());
    while next < N || !waiting.is_empty() {
        while next < N && waiting.len() < 40 {
            let Some(mut m) = pool.alloc() else { break };
            m.append(4).unwrap().copy_from_slice(&next.to_be_bytes());
            waiting.push(m);
            next += 1;
        }
        if tx.push_all(&mut waiting) == 0 {
            std::thread::yield_now();
        }
    }
    taker.join().unwrap();
    drop(tx);
    assert_eq!(pool.in_use(), 0);
}

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Returns a segment from a port of the peer to one of our ports.
fn segment(from: u16) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 40];
    f.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    f.extend(PEER.octets());
    f.extend(US.octets());
    f.extend(from.to_be_bytes());
    f.extend([0x1c, 0x06, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    f
}

fn arp() -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend([2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
    f.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    f
}

/// A port with one pair of queues for some workers, and the other end of the port.
struct Harness {
    ends: Vec<Ends>,
    far: (RxQueue, TxQueue),
    rss: Arc<Rss>,
    pool: Mempool,
    _ports: (Port, Port),
}

fn harness(name: &str, workers: u16) -> Harness {
    let pool = pool(4095);
    let config = PortConfig::new(pool);
    let (mut near, mut far) = Port::ring_pair(&eal(), name, 1024, &config, &config).unwrap();
    let rss = Arc::new(Rss::even(&[0x5a; 40], 128, workers).unwrap());
    let sharing = Sharing::BySoftware(rss.clone());
    let ends = share(near.take_queues(), workers, &sharing, pool, None).unwrap();
    Harness { ends, far: far.take_queues().pop().unwrap(), rss, pool, _ports: (near, far) }
}

impl Harness {
    fn send(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let mut burst: Burst = frames.into_iter().map(|f| frame(self.pool, &f)).collect();
        self.far.1.burst(&mut burst);
        assert!(burst.is_empty());
    }

    /// Returns the worker to which the rule gives segments from `port`.
    fn worker_of(&self, port: u16) -> usize {
        let (src, dst) = (SocketAddr::from((PEER, port)), SocketAddr::from((US, 0x1c06)));
        self.rss.worker(src, dst).unwrap().into()
    }

    /// Returns the frames that a worker gets in one turn.
    fn receive(&mut self, worker: usize, most: usize) -> Burst {
        let RxEnd::Steered(rx) = &mut self.ends[worker].rx else { panic!("it has no own queue") };
        let mut out = Burst::new();
        rx.receive(&mut out, most);
        out
    }

    fn counters(&self, worker: usize) -> SteerCounters {
        let mut all = self.ends[worker].rx.steer_counters();
        all.add(&self.ends[worker].tx.steer_counters());
        all
    }
}

fn content(m: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; m.len()];
    m.copy_at(0, &mut bytes);
    bytes
}

#[test]
fn test_each_segment_reaches_the_worker_of_its_flow_in_order() {
    let mut b = harness("steer0", 3);
    for lap in 0..5 {
        let sent: Vec<u16> = (0..60).map(|n| 1000 + (n * 7 + lap) % 40).collect();
        b.send(sent.iter().map(|p| segment(*p)));
        let mut seen = [0; 3];
        for (worker, seen) in seen.iter_mut().enumerate() {
            let got: Vec<_> = b.receive(worker, BURST).iter().map(content).collect();
            let want: Vec<_> = sent.iter().filter(|p| b.worker_of(**p) == worker).collect();
            assert!(got.iter().eq(want.iter().map(|p| segment(**p)).collect::<Vec<_>>().iter()));
            *seen = got.len();
        }
        assert_eq!(seen.iter().sum::<usize>(), 60);
        assert!(seen.iter().all(|n| *n > 0), "all have some: {seen:?}");
    }
    let c = [0, 1, 2].map(|w| b.counters(w));
    assert_eq!(c[0].rx_steered, c[1].rx_from_workers + c[2].rx_from_workers);
    assert_eq!((c[0].steer_full, c[0].steer_gone, c[0].rx_from_workers), (0, 0, 0));
    let pool = b.pool;
    drop(b);
    assert_eq!(pool.in_use(), 0);
}

/// If turns take few frames at a time, as in a deterministic run, no frame is lost and none changes
/// places.
#[test]
fn test_frames_beyond_turn_limit_wait_for_next_turn() {
    let mut b = harness("steer1", 2);
    let sent: Vec<u16> = (0..50).map(|n| 1000 + n).collect();
    b.send(sent.iter().map(|p| segment(*p)));
    let mut got: Vec<Vec<u8>> = Vec::new();
    for _ in 0..50 {
        let some = b.receive(0, 3);
        assert!(some.len() <= 3);
        got.extend(some.iter().map(content));
    }
    let own = sent.iter().filter(|p| b.worker_of(**p) == 0).map(|p| segment(*p));
    assert!(got.into_iter().eq(own));
}

#[test]
fn test_broadcast_frame_is_copied_for_each_worker() {
    let mut b = harness("steer2", 3);
    b.send([arp()]);
    let mut all: Vec<Mbuf> = (0..3).flat_map(|w| b.receive(w, BURST)).collect();
    assert_eq!(all.len(), 3);
    // Each copy belongs to its owner alone.
    all[0].data_mut().unwrap().fill(0);
    assert_eq!((content(&all[1]), content(&all[2])), (arp(), arp()));
    assert_eq!(b.counters(0).rx_steered, 2);
    drop(all);
    // If there is no buffer for copies, the original still arrives.
    let hoard: Vec<_> = {
        b.send([arp()]);
        std::iter::from_fn(|| b.pool.alloc()).collect()
    };
    assert_eq!(b.receive(0, BURST).len(), 1);
    assert_eq!((b.counters(0).steer_no_mbuf, b.receive(1, BURST).len()), (2, 0));
    drop(hoard);
}

#[test]
fn test_slow_worker_loses_frames_and_others_lose_none() {
    let mut b = harness("steer3", 2);
    let port_of = |b: &Harness, w| (1000..2000).find(|p| b.worker_of(*p) == w).unwrap();
    let (first, second) = (port_of(&b, 0), port_of(&b, 1));
    let mut own = 0;
    // A ring holds RING frames.
    for _ in 0..RING / 32 + 1 {
        b.send((0..32).map(|_| segment(second)));
        b.send((0..32).map(|_| segment(first)));
        own += b.receive(0, BURST).len();
    }
    assert_eq!(own, RING + 32);
    let c = b.counters(0);
    assert_eq!((c.rx_steered, c.steer_full), (RING as u64, 32));
    let mut theirs = 0;
    loop {
        match b.receive(1, BURST).len() {
            0 => break,
            n => theirs += n,
        }
    }
    assert_eq!(theirs, RING);
    // Drop a worker.
    b.ends.pop();
    b.send([segment(second), arp()]);
    assert_eq!(b.receive(0, BURST).len(), 1);
    assert_eq!(b.counters(0).steer_gone, 2);
    let pool = b.pool;
    drop(b);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_worker_without_queue_sends_through_queue_of_another() {
    let mut b = harness("steer4", 3);
    assert!(b.ends[0].tx.serves_others() && !b.ends[1].tx.serves_others());
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for lap in 0..20u8 {
        for worker in 0..3u8 {
            let bytes = |n| vec![lap, worker, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let mut burst: Burst = (0..10).map(|n| frame(b.pool, &bytes(n))).collect();
            b.ends[usize::from(worker)].tx.burst(&mut burst);
            assert!(burst.is_empty());
            sent.extend((0..10).map(bytes));
        }
        b.ends[0].tx.relay();
        let mut burst = Burst::new();
        b.far.0.burst(&mut burst);
        got.extend(burst.iter().map(content));
    }
    got.sort();
    sent.sort();
    assert_eq!(got, sent);
    assert_eq!((b.counters(1).tx_relayed, b.counters(0).tx_for_workers), (200, 400));
}

/// A worker never drops a frame to send for want of room: it waits.
#[test]
fn test_frames_to_send_wait_for_the_port() {
    let mut b = harness("steer5", 2);
    let pool = b.pool;
    let mut sent = 0;
    let mut burst = Burst::new();
    // The ring between the ports takes 1023 frames and more, the ring between workers RING, and the
    // owner has a burst in its hands.
    for _ in 0..100 {
        while !burst.is_full() {
            burst.push(frame(pool, &[0; 14]));
            sent += 1;
        }
        b.ends[1].tx.burst(&mut burst);
        b.ends[0].tx.relay();
    }
    assert_eq!(burst.len(), BURST, "it is full, and everything is still there");
    let mut got = 0;
    for _ in 0..200 {
        let mut out = Burst::new();
        b.far.0.burst(&mut out);
        got += out.len();
        drop(out);
        b.ends[0].tx.relay();
        b.ends[1].tx.burst(&mut burst);
    }
    assert_eq!(got, sent);
    // Without the owner there is no port.
    drop(b.ends.remove(0));
    burst.extend((0..5).map(|_| frame(pool, &[0; 14])));
    b.ends[0].tx.burst(&mut burst);
    assert_eq!((burst.len(), b.counters(0).steer_gone), (0, 5));
    drop(b);
    assert_eq!(pool.in_use(), 0);
}

/// A rule for another number of workers would leave frames to no worker.
#[test]
fn test_steering_rule_for_another_number_of_workers_is_refused() {
    let pool = pool(255);
    let config = PortConfig::new(pool);
    let (mut near, _far) = Port::ring_pair(&eal(), "steer6", 64, &config, &config).unwrap();
    let rss = Arc::new(Rss::even(&[0x5a; 40], 128, 3).unwrap());
    let refused = share(near.take_queues(), 2, &Sharing::BySoftware(rss), pool, None);
    assert!(refused.is_err());
}
