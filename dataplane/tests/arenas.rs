//! What happens to registered memory as a whole: apart from other tests, whose mappings and
//! registrations would get in the way, and one at a time.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::sync::Mutex;

use common::*;
use heddle_dataplane::*;

static ALONE: Mutex<()> = Mutex::new(());

/// Header, payload in registered memory, trailer: the shape of a sent FPDU.
fn fpdu(pool: Mempool, arena: &Arena, off: usize, len: u16) -> Mbuf {
    let mut m = frame(pool, &bytes(1, 66));
    m.chain(Mbuf::external(&pool, arena, off, len).unwrap()).unwrap();
    m.chain(frame(pool, &[9; 4])).unwrap();
    m
}

fn pair(name: &str, pool: Mempool) -> ((RxQueue, TxQueue), (RxQueue, TxQueue)) {
    let config = PortConfig::new(pool);
    let (mut a, mut b) = Port::ring_pair(&eal(), name, 64, &config, &config).unwrap();
    (a.take_queues().pop().unwrap(), b.take_queues().pop().unwrap())
}

#[test]
fn test_arena_outlives_its_handle_while_a_frame_refers_to_it() {
    let _alone = ALONE.lock().unwrap();
    let pool = pool(255);
    let arena = Arena::new(&eal(), 3 << 20).unwrap();
    let data = bytes(3, 5000);
    arena.place(0, &data).unwrap();
    let ((_, mut tx), (mut rx, _)) = pair("outlive", pool);
    let mut burst = Burst::new();
    burst.push(fpdu(pool, &arena, 100, 1400));
    tx.burst(&mut burst);
    let base = arena.base().as_ptr() as usize;
    drop(arena);
    assert!(is_mapped(base), "a frame still refers to it");
    let mut got = Burst::new();
    rx.burst_as_sent(&mut got);
    assert_eq!(content(&got[0])[66..1466], data[100..1500]);
    drop(got);
    assert!(!is_mapped(base), "the last reference is gone");
    assert_eq!(pool.in_use(), 0);
}

fn is_mapped(addr: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|l| {
        let (from, rest) = l.split_once('-').unwrap();
        let to = rest.split(' ').next().unwrap();
        let at = |s| usize::from_str_radix(s, 16).unwrap();
        (at(from)..at(to)).contains(&addr)
    })
}

#[test]
fn test_many_arenas_end_in_an_error() {
    let _alone = ALONE.lock().unwrap();
    let mut all = Vec::new();
    let e = loop {
        match Arena::new(&eal(), 4096) {
            Ok(a) => all.push(a),
            Err(e) => break e,
        }
        assert!(all.len() < 1000);
    };
    assert!(matches!(e, ArenaError::Register { .. }) && all.len() > 50, "{e} {}", all.len());
    all.clear();
    assert!(Arena::new(&eal(), 4096).is_ok(), "they are registered no more");
}
