//! Which drivers take frames of several segments, by trying: what a frame with an external segment
//! looks like on the other side. These devices need root; without it the tests say so and pass.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::*;
use heddle_dataplane::*;

fn ip(args: &str) -> bool {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    out.is_ok_and(|o| o.status.success())
}

/// Two joined interfaces, removed at the end.
struct Veth(&'static str, &'static str);

impl Veth {
    fn new(a: &'static str, b: &'static str) -> Option<Veth> {
        ip(&format!("link del {a}"));
        let made = ip(&format!("link add {a} type veth peer name {b}"));
        let pair = made.then_some(Veth(a, b))?;
        // Quiet: no frames of the kernel's own.
        for i in [a, b] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{i}/disable_ipv6"), "1");
            if !ip(&format!("link set {i} up")) {
                return None;
            }
        }
        Some(pair)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.0));
    }
}

/// Sends one frame of three segments; gives what was sent and what arrived.
fn try_chain(pool: Mempool, tx: &mut TxQueue, rx: &mut RxQueue) -> (Vec<u8>, Option<Vec<u8>>) {
    let arena = Arena::new(&eal(), 4096).unwrap();
    arena.place(0, &bytes(9, 4096)).unwrap();
    // A broadcast frame of a local experimental EtherType.
    let mut header = vec![0xff; 6];
    header.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    let mut m = frame(pool, &header);
    m.chain(Mbuf::external(&pool, &arena, 7, 1200).unwrap()).unwrap();
    m.chain(frame(pool, &[5; 4])).unwrap();
    let sent = content(&m);
    let mut burst = Burst::new();
    burst.push(m);
    let end = Instant::now() + Duration::from_secs(2);
    let mut got = Burst::new();
    while Instant::now() < end {
        tx.burst(&mut burst);
        rx.burst(&mut got);
        for f in got.drain(..) {
            let c = content(&f);
            if c.len() > 14 && c[12..14] == [0x88, 0xb5] {
                return (sent, Some(c));
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    (sent, None)
}

#[test]
fn test_af_packet_sends_chains_whole() {
    let Some(veth) = Veth::new("hdlpa", "hdlpb") else {
        eprintln!("skipped: no permission to make a veth pair");
        return;
    };
    let pool = pool(4095);
    let (_a, _, mut tx) = open(&format!("net_af_packet0,iface={}", veth.0), pool).unwrap();
    let (_b, mut rx, _) = open(&format!("net_af_packet1,iface={}", veth.1), pool).unwrap();
    let (sent, got) = try_chain(pool, &mut tx, &mut rx);
    eprintln!("net_af_packet: multi_segs {}, {:?}", tx.supports_multi_segs(), tx.counters());
    assert_eq!(got.unwrap(), sent);
}

#[test]
fn test_af_xdp_sends_linearized_frames() {
    let Some(veth) = Veth::new("hdlxa", "hdlxb") else {
        eprintln!("skipped: no permission to make a veth pair");
        return;
    };
    let pool = pool(16_383);
    let (a, b) = (
        open(&format!("net_af_xdp0,iface={}", veth.0), pool),
        open(&format!("net_af_packet2,iface={}", veth.1), pool),
    );
    let ((_a, _, mut tx), (_b, mut rx, _)) = match (a, b) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(e), _) | (_, Err(e)) => {
            eprintln!("skipped: {e}");
            return;
        }
    };
    let (sent, got) = try_chain(pool, &mut tx, &mut rx);
    eprintln!("net_af_xdp: multi_segs {}, {:?}", tx.supports_multi_segs(), tx.counters());
    assert_eq!(got.unwrap(), sent);
}

#[test]
fn test_tap_sends_chains_whole() {
    let pool = pool(4095);
    let (_a, _, mut tx) = match open("net_tap0,iface=hdltap", pool) {
        Ok(p) => p,
        Err(e) => {
            eprintln!("skipped: {e}");
            return;
        }
    };
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/hdltap/disable_ipv6", "1");
    assert!(ip("link set hdltap up"));
    let (_b, mut rx, _) = open("net_af_packet3,iface=hdltap", pool).unwrap();
    let (sent, got) = try_chain(pool, &mut tx, &mut rx);
    eprintln!("net_tap: multi_segs {}, {:?}", tx.supports_multi_segs(), tx.counters());
    assert_eq!(got.unwrap(), sent);
}

#[test]
fn test_memif_sends_chains_whole() {
    let pool = pool(4095);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("m.sock");
    let arg = |n: u8, role: &str| {
        format!("net_memif{n},role={role},id=0,socket={},socket-abstract=no", socket.display())
    };
    let (a, mut rx, _) = open(&arg(0, "server"), pool).unwrap();
    let (b, _, mut tx) = open(&arg(1, "client"), pool).unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while !(a.link().up && b.link().up) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(a.link().up && b.link().up, "{:?} {:?}", a.link(), b.link());
    let (sent, got) = try_chain(pool, &mut tx, &mut rx);
    eprintln!("net_memif: multi_segs {}, {:?}", tx.supports_multi_segs(), tx.counters());
    assert_eq!(got.unwrap(), sent);
    // The driver hears of the end of its peer on a thread of its own, and does not expect to be
    // closed meanwhile.
    drop((tx, b));
    while a.link().up && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}
