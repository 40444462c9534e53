//! Virtual devices without requirements: net_null and net_pcap, and errors that name the device.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use crate::common::*;
use heddle_dataplane::*;

#[test]
fn test_null_device_gives_and_takes_frames() {
    let pool = pool(1023);
    let (port, mut rx, mut tx) = open("net_null0,size=512", pool).unwrap();
    assert_eq!(port.driver(), "net_null");
    let mut burst = Burst::new();
    assert_eq!(rx.burst(&mut burst), 32);
    assert!(burst.iter().all(|m| m.pkt_len() == 512 && m.segments() == 1));
    assert_eq!(rx.burst(&mut burst), 0, "no room, no frame");
    // The driver frees a chain as a whole.
    let mut chain = frame(pool, &[1; 60]);
    chain.chain(burst.pop().unwrap()).unwrap();
    burst.push(chain);
    assert_eq!(tx.burst(&mut burst), 32);
    assert_eq!((tx.counters().tx_linearized, port.stats().tx_frames), (0, 32));
    drop((port, rx, tx));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_port_stays_open_until_its_last_queue_is_dropped() {
    let pool = pool(255);
    let (port, mut rx, tx) = open("net_null7", pool).unwrap();
    drop((port, tx));
    let mut burst = Burst::new();
    assert_eq!(rx.burst(&mut burst), 32);
    assert!(open("net_null7", pool).unwrap_err().to_string().contains("net_null7"));
    drop(rx);
    assert!(open("net_null7", pool).is_ok(), "closed with its last handle");
}

/// Returns a classic pcap file with these frames: Ethernet, little-endian, microseconds.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut f = Vec::new();
    for w in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        f.extend(w.to_le_bytes());
    }
    for (i, frame) in frames.iter().enumerate() {
        for w in [1_700_000_000, i as u32, frame.len() as u32, frame.len() as u32] {
            f.extend(w.to_le_bytes());
        }
        f.extend(frame);
    }
    f
}

/// Returns the frames of such a file.
fn frames_of(file: &[u8]) -> Vec<Vec<u8>> {
    let mut at = 24;
    let mut all = Vec::new();
    while at < file.len() {
        let len = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        all.push(file[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    all
}

#[test]
fn test_pcap_reads_and_writes_frames() {
    let pool = pool(1023);
    let dir = tempfile::tempdir().unwrap();
    let (i, o) = (dir.path().join("in.pcap"), dir.path().join("out.pcap"));
    let sent: Vec<_> = [60, 61, 1514, 700, 128].iter().map(|&n| bytes(n as u8, n)).collect();
    std::fs::write(&i, pcap(&sent)).unwrap();
    let vdev = format!("net_pcap0,rx_pcap={},tx_pcap={}", i.display(), o.display());
    let (port, mut rx, mut tx) = open(&vdev, pool).unwrap();
    assert_eq!(port.driver(), "net_pcap");
    assert!(tx.supports_multi_segs());

    let mut burst = Burst::new();
    assert_eq!(rx.burst(&mut burst), 5);
    for (m, want) in burst.iter().zip(&sent) {
        assert_eq!(&content(m), want);
    }
    // Send the frames back out, and another frame of three segments with payload in registered
    // memory.
    let memory = Memory::new(4096);
    memory.place(0, &bytes(77, 4096));
    let mut m = frame(pool, &[3; 54]);
    m.chain(memory.external(pool, 5, 1400).unwrap()).unwrap();
    m.chain(frame(pool, &[4; 8])).unwrap();
    let last = content(&m);
    burst.push(m);
    assert_eq!(tx.burst(&mut burst), 6);
    assert_eq!(tx.counters().tx_linearized, 0);
    assert_eq!(rx.burst(&mut burst), 0, "the file is at its end");
    drop((port, rx, tx));
    assert_eq!((pool.in_use(), memory.references()), (0, 0));

    let written = frames_of(&std::fs::read(&o).unwrap());
    assert_eq!(written[..5], sent[..]);
    assert_eq!(written[5], last, "a chain is written whole");
}

#[test]
fn test_bad_devices_are_errors_that_name_them() {
    let pool = pool(255);
    for (vdev, why) in [
        ("net_bogus0", "no driver"),
        ("net_null0x,foo=2", "arguments"),
        ("net_pcap9", "No rx or tx queues"),
        ("net_pcap8,rx_pcap=/nonexistent.pcap", "/nonexistent.pcap"),
        ("net_tap9,iface=", ""),
        ("pcap0", "net_"),
        ("net_null0,", "empty"),
    ] {
        let e = open(vdev, pool).unwrap_err().to_string();
        assert!(e.contains(vdev), "{vdev}: {e}");
        assert!(e.contains(why), "{vdev}: {e}");
        assert!(!e.contains('\n'), "one line: {e:?}");
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_missing_device_is_an_error() {
    let source = PortSource::Device("0000:3b:00.0".into());
    let e = Port::open(&eal(), &source, &PortConfig::new(pool(255))).unwrap_err();
    assert!(matches!(e, PortError::NotFound(ref d) if d == "0000:3b:00.0"), "{e}");
}

#[test]
fn test_a_port_that_is_open_cannot_be_taken_by_its_name() {
    let pool = pool(1023);
    let (port, mut rx, mut tx) = open("net_null3", pool).unwrap();
    let source = PortSource::Device("net_null3".into());
    // Opening fails with a possible configuration and with an impossible one.
    for pools in [vec![pool], vec![pool; 2000]] {
        let config = PortConfig { pools, ..PortConfig::new(pool) };
        let e = Port::open(&eal(), &source, &config).unwrap_err();
        assert!(matches!(e, PortError::InUse(ref d) if d == "net_null3"), "{e}");
    }
    let mut burst = Burst::new();
    assert_eq!(rx.burst(&mut burst), 32, "it works on");
    assert_eq!(tx.burst(&mut burst), 32);
    assert_eq!(port.stats().rx_frames, 32);
}

#[test]
fn test_dropped_port_stops_eal_device_and_leaves_it_attached() {
    use heddle_dpdk_sys as sys;
    let pool = pool(1023);
    let _ = eal();
    // Add the device as the EAL would when it probes.
    // SAFETY: the EAL runs; the strings are NUL-terminated and copied.
    let rc =
        unsafe { sys::rte_eal_hotplug_add(c"vdev".as_ptr(), c"net_null4".as_ptr(), c"".as_ptr()) };
    assert_eq!(rc, 0);
    let source = PortSource::Device("net_null4".into());
    let config = PortConfig { pools: vec![pool; 2000], ..PortConfig::new(pool) };
    let e = Port::open(&eal(), &source, &config).unwrap_err();
    assert!(matches!(e, PortError::Limit { .. }), "{e}");
    for _ in 0..2 {
        let mut port = Port::open(&eal(), &source, &PortConfig::new(pool)).unwrap();
        let (mut rx, _tx) = port.take_queues().pop().unwrap();
        let mut burst = Burst::new();
        assert_eq!(rx.burst(&mut burst), 32);
    }
    // SAFETY: as above, and no port uses the device.
    let rc = unsafe { sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), c"net_null4".as_ptr()) };
    assert_eq!(rc, 0, "it was not removed with its port");
}

#[test]
fn test_too_many_queues_is_an_error() {
    let p = pool(255);
    let config = PortConfig { pools: vec![p; 2000], ..PortConfig::new(p) };
    let source = PortSource::Vdev("net_null5".parse().unwrap());
    let e = Port::open(&eal(), &source, &config).unwrap_err();
    assert!(matches!(e, PortError::Limit { wanted: 2000, .. }), "{e}");
    assert!(open("net_null5", p).is_ok(), "removed after the error");
}
