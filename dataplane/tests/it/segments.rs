//! Drivers' treatment of the frames that we send: several segments, also of odd length, with
//! payload in registered memory, up to the MTU, at 1500 and at 9000 bytes.
//!
//! Devices of the kernel need root (CAP_NET_ADMIN and CAP_NET_RAW). Their tests are ignored, by
//! name; `cargo test -p heddle-dataplane --test it segments -- --ignored` runs them, and without
//! root they fail.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common::*;
use heddle_base::Sum;
use heddle_dataplane::*;

/// Returns the pool for all ports of an MTU, because pools are never freed.
fn pool_at(mtu: u16) -> Mempool {
    static POOLS: [OnceLock<Mempool>; 2] = [OnceLock::new(), OnceLock::new()];
    let (one, count) = if mtu > 1500 { (&POOLS[1], 8191) } else { (&POOLS[0], 16_383) };
    *one.get_or_init(|| Mempool::new(&eal(), &MempoolConfig::for_mtu(count, mtu)).unwrap())
}

/// Opens a device.
fn open_at(vdev: &str, mtu: u16) -> (Port, RxQueue, TxQueue) {
    let source = PortSource::Vdev(vdev.parse().unwrap());
    let config = PortConfig { mtu, ..PortConfig::new(pool_at(mtu)) };
    let mut port = Port::open(&eal(), &source, &config).unwrap();
    assert_eq!(port.mtu(), mtu);
    let (rx, tx) = port.take_queues().pop().unwrap();
    (port, rx, tx)
}

/// Headers of Ethernet, IPv4 and TCP up to the payload.
const HEADERS: usize = 14 + 20 + 20;

/// Returns a TCP segment as a worker sends it: headers; payload in registered memory; pad and CRC.
/// The port computes the checksum if it reports that it can.
fn segment(caps: PortCaps, pool: Mempool, memory: &Memory, payload: usize) -> Mbuf {
    let total = 20 + 20 + payload + 4;
    let mut h = vec![0xff; 6];
    h.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]);
    h.extend((total as u16).to_be_bytes());
    h.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 99, 0, 1, 10, 99, 0, 2]);
    h.extend([0x1b, 0x58, 0x1c, 0x06, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let ip_sum = Sum::of(&h[14..34]).complement();
    h[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let data = memory.gather(7, payload);
    let mut tcp = pseudo_header(&h, total - 20);
    let offload = caps.tx_tcp_checksum;
    if !offload {
        tcp.extend(&h[34..]);
        tcp.extend(&data);
        tcp.extend([5; 4]);
    }
    let sum = Sum::of(&tcp).complement();
    let sum = if offload { !sum } else { sum };
    h[50..52].copy_from_slice(&sum.to_be_bytes());
    let mut m = frame(pool, &h);
    m.chain(memory.external(pool, 7, payload as u16).unwrap()).unwrap();
    m.chain(frame(pool, &[5; 4])).unwrap();
    if offload {
        let tcp_checksum = true;
        m.set_tx_offload(TxOffload {
            l2_len: 14,
            l3_len: 20,
            l4_len: 20,
            tcp_checksum,
            ..Default::default()
        });
    }
    m
}

fn pseudo_header(frame: &[u8], len: usize) -> Vec<u8> {
    let mut p = frame[26..34].to_vec();
    p.extend([0, 6]);
    p.extend((len as u16).to_be_bytes());
    p
}

/// Checks that frames sent through `tx` arrive whole, and with the right checksum.
fn exchange(port: &Port, tx: &mut TxQueue, rx: &mut RxQueue) {
    let mtu = usize::from(port.mtu());
    let pool = pool_at(port.mtu());
    let memory = Memory::new(16 << 10);
    memory.place(0, &bytes(9, 16 << 10));
    let longest = mtu - 20 - 20 - 4;
    for payload in [1, 32, 301, 1200, 1201, longest - 1, longest] {
        let m = segment(port.caps(), pool, &memory, payload);
        let (mut sent, mut burst, mut got) = (content(&m), Burst::new(), Burst::new());
        burst.push(m);
        let end = Instant::now() + Duration::from_secs(2);
        let arrived = loop {
            tx.burst(&mut burst);
            rx.burst(&mut got);
            let tcp = got.drain(..).map(|f| content(&f)).find(|f| {
                f.len() >= HEADERS
                    && f[12..14] == [8, 0]
                    && f[26..34] == [10, 99, 0, 1, 10, 99, 0, 2]
            });
            if let Some(f) = tcp {
                break f;
            }
            assert!(Instant::now() < end, "{port}: payload of {payload} bytes did not arrive");
            std::thread::sleep(Duration::from_micros(100));
        };
        let mut tcp = pseudo_header(&arrived, arrived.len() - 34);
        tcp.extend(&arrived[34..]);
        assert!(Sum::of(&tcp).is_valid(), "{port}: checksum with {payload} bytes");
        sent[50..52].copy_from_slice(&arrived[50..52]);
        assert!(arrived == sent, "{port}: {payload} bytes are not those that were sent");
    }
    eprintln!("{port}: {:?}, {:?}", port.caps(), tx.counters());
}

#[test]
#[ignore = "needs root: makes a veth pair"]
fn test_af_packet_sends_chains_whole() {
    for mtu in [1500, 9000] {
        let veth = Veth::new("hdlp", mtu);
        let (port, _rx, mut tx) = open_at(&format!("net_af_packet0,iface={}", veth.0), mtu);
        let (_b, mut rx, _tx) = open_at(&format!("net_af_packet1,iface={}", veth.1), mtu);
        assert!(tx.supports_multi_segs());
        exchange(&port, &mut tx, &mut rx);
    }
}

#[test]
#[ignore = "needs root: makes a veth pair"]
fn test_af_xdp_sends_linearized_frames() {
    // Frames of this device lie in pages, so they have no more than 3 KiB or so.
    let veth = Veth::new("hdlx", 1500);
    let (port, _rx, mut tx) = open_at(&format!("net_af_xdp0,iface={}", veth.0), 1500);
    let (_b, mut rx, _tx) = open_at(&format!("net_af_packet2,iface={}", veth.1), 1500);
    assert!(!tx.supports_multi_segs());
    exchange(&port, &mut tx, &mut rx);
    assert_eq!(tx.counters().tx_linearized, tx.counters().tx_frames);
}

#[test]
#[ignore = "needs root: makes a tap interface"]
fn test_tap_sends_chains_whole() {
    let name = "hdltap";
    let (port, mut tap_rx, mut tx) = open_at("net_tap0,iface=hdltap", 1500);
    up_and_quiet(name);
    let (far, mut rx, mut far_tx) = open_at("net_af_packet3,iface=hdltap", 1500);
    // The port does not leave the checksum to the device, and the device's interface, whose address
    // is that of the other end here, is another station.
    assert!(!port.caps().tx_tcp_checksum);
    assert_ne!(port.mac(), far.mac());
    assert_eq!(port.mac()[0] & 3, 2);
    exchange(&port, &mut tx, &mut rx);
    exchange(&far, &mut far_tx, &mut tap_rx);
    drop((port, tap_rx, tx));
    // The port refuses an MTU beyond the limit of 22.11's driver, instead of losing frames. The driver
    // of 24.11 carries larger ones.
    let config = PortConfig { mtu: 9000, ..PortConfig::new(pool_at(9000)) };
    let source = PortSource::Vdev("net_tap1,iface=hdltap1".parse().unwrap());
    match Port::open(&eal(), &source, &config) {
        Ok(mut port) => {
            up_and_quiet("hdltap1");
            let (_far, mut rx, _tx) = open_at("net_af_packet4,iface=hdltap1", 9000);
            let (_rx, mut tx) = port.take_queues().pop().unwrap();
            exchange(&port, &mut tx, &mut rx);
        }
        Err(e) => assert!(matches!(e, PortError::Limit { wanted: 9000, max: 1500.., .. }), "{e}"),
    }
}

#[test]
fn test_memif_sends_chains_whole() {
    let dir = tempfile::tempdir().unwrap();
    for mtu in [1500, 9000] {
        let socket = dir.path().join(format!("m{mtu}"));
        let arg = |n: u8, role: &str| {
            let socket = socket.display();
            format!("net_memif{n},role={role},id=0,socket={socket},socket-abstract=no")
        };
        let (a, mut rx, _tx) = open_at(&arg(0, "server"), mtu);
        let (b, b_rx, mut tx) = open_at(&arg(1, "client"), mtu);
        let end = Instant::now() + Duration::from_secs(30);
        while !(a.link().up && b.link().up) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(a.link().up && b.link().up, "{:?} {:?}", a.link(), b.link());
        exchange(&b, &mut tx, &mut rx);
        // The driver learns of the end of its peer on a thread of its own, and does not expect to
        // be closed meanwhile: the link is down when that thread begins, and nothing reports when
        // it is done.
        drop((tx, b_rx, b));
        let end = Instant::now() + Duration::from_secs(30);
        while a.link().up && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
