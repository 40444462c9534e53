//! Workers on DPDK's virtual devices: one queue for two workers, and two queues among which a rule
//! of the kernel distributes frames.
//!
//! Devices of the kernel need root; their tests are ignored, by name.

use std::process::Command;

use crate::common::eal;
use heddle_ctl::{Endpoint, OpenPort, PortSetup, RnicSetup};
use heddle_dataplane::{Eal, PortSource};
use heddle_tcp::Cidr;

use super::rig::*;
use super::shared;

/// Opens an RNIC on a device, with the address of side `n`.
fn open(eal: &Eal, n: u8, vdev: &str, (workers, queues): (usize, usize)) -> Endpoint {
    let addrs = vec![Cidr::new(addr(n).ip(), 24).unwrap()];
    let setup =
        PortSetup { workers, queue_pairs: Some(queues), frames: 2047, ..PortSetup::new(addrs) };
    let source = PortSource::Vdev(vdev.parse().unwrap());
    let port = OpenPort::open(eal, &source, &setup).unwrap();
    let rnic = RnicSetup { memory: 8 << 20, queues: 64 << 20, max_conns: 256, ..RnicSetup::new() };
    Endpoint::assemble(eal, vec![port], &rnic).unwrap()
}

/// Runs 64 connections and everything that is shared; `steered`: whether workers handed frames on.
fn run(rig: &mut Rig, steered: [bool; 2]) {
    shared::use_everything(rig);
    for (side, steered) in steered.into_iter().enumerate() {
        let s = rig.sides[side].snapshot().worker.steer;
        assert_eq!(s.rx_steered > 0, steered, "side {side}: {s:?}");
        assert_eq!(s.steer_gone, 0);
    }
}

fn memif(queues: usize) {
    let (eal, turn) = eal();
    let dir = std::env::temp_dir().join(format!("heddle-{}-{queues}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let socket = dir.join("memif");
    let arg = |n: usize, role: &str| {
        let socket = socket.display();
        format!("net_memif{n},role={role},id=0,socket={socket},socket-abstract=no")
    };
    let a = open(&eal, 1, &arg(60 + queues, "server"), (2, queues));
    let b = open(&eal, 2, &arg(70 + queues, "client"), (2, queues));
    let mut rig = Rig::inline(a, b, turn);
    rig.until("a link", |r| r.ports().iter().all(|p| p.link().up).then_some(()));
    run(&mut rig, [true, true]);
    drop(rig);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn test_two_workers_share_one_memif_queue() {
    memif(1);
}

#[test]
fn test_two_workers_use_two_memif_queues() {
    memif(2);
}

fn ip(args: &str) {
    let out = Command::new("ip").args(args.split_whitespace()).output().unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

fn up_and_quiet(interface: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1");
    ip(&format!("link set {interface} up"));
}

/// A veth pair, removed on drop.
struct Veth;

impl Drop for Veth {
    fn drop(&mut self) {
        ip("link del hdlw0");
    }
}

/// The kernel decides by a hash of its own which queue of a packet socket gets a frame.
#[test]
#[ignore = "needs root: makes a veth pair"]
fn test_two_workers_use_two_af_packet_queues() {
    let (eal, turn) = eal();
    ip("link add hdlw0 type veth peer name hdlw1");
    let _veth = Veth;
    up_and_quiet("hdlw0");
    up_and_quiet("hdlw1");
    let a = open(&eal, 1, "net_af_packet60,iface=hdlw0", (2, 2));
    let b = open(&eal, 2, "net_af_packet61,iface=hdlw1", (2, 2));
    run(&mut Rig::inline(a, b, turn), [true, true]);
}

#[test]
#[ignore = "needs root: makes a tap interface"]
fn test_two_workers_share_one_tap_queue() {
    let (eal, turn) = eal();
    let a = open(&eal, 1, "net_tap60,iface=hdlwt", (2, 1));
    up_and_quiet("hdlwt");
    let b = open(&eal, 2, "net_af_packet62,iface=hdlwt", (1, 1));
    run(&mut Rig::inline(a, b, turn), [true, false]);
}
