//! smoltcp's TCP as the peer: other authors wrote it from the same RFCs.

use core::time::Duration;
use std::collections::VecDeque;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};

use super::net::{Faults, Station};
use super::transfer::pattern;
use super::*;

const LONG: Duration = Duration::from_secs(600);
const LEN: usize = 1 << 20;

/// A port in memory.
#[derive(Default)]
struct Port {
    rx: VecDeque<Vec<u8>>,
    tx: VecDeque<Vec<u8>>,
}

struct Rx(Vec<u8>);
struct Tx<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut b = vec![0; len];
        let r = f(&mut b);
        self.0.push_back(b);
        r
    }
}

impl Device for Port {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: SmolInstant) -> Option<(Rx, Tx<'_>)> {
        let f = self.rx.pop_front()?;
        Some((Rx(f), Tx(&mut self.tx)))
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut c = DeviceCapabilities::default();
        c.medium = Medium::Ethernet;
        c.max_transmission_unit = 1514;
        c
    }
}

/// A smoltcp host at B with one socket, which sends `out` and then closes, and keeps the received
/// bytes.
struct Smol {
    port: Port,
    iface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    out: Vec<u8>,
    sent: usize,
    got: Vec<u8>,
    closed: bool,
}

fn smol_time(now: Instant) -> SmolInstant {
    SmolInstant::from_micros(i64::try_from(now.as_nanos() / 1000).unwrap())
}

impl Smol {
    fn new(out: Vec<u8>) -> Smol {
        let mut port = Port::default();
        let mut cfg = Config::new(HardwareAddress::Ethernet(EthernetAddress(MAC_B)));
        cfg.random_seed = 7;
        let mut iface = Interface::new(cfg, &mut port, SmolInstant::ZERO);
        iface.update_ip_addrs(|a| a.push(IpCidr::new(B.into(), 24)).unwrap());
        let buf = || tcp::SocketBuffer::new(vec![0; 256 * 1024]);
        let mut sockets = SocketSet::new(vec![]);
        let handle = sockets.add(tcp::Socket::new(buf(), buf()));
        Smol { port, iface, sockets, handle, out, sent: 0, got: vec![], closed: false }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn state(&mut self) -> tcp::State {
        self.socket().state()
    }

    fn poll(&mut self, now: Instant) {
        self.iface.poll(smol_time(now), &mut self.port, &mut self.sockets);
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        while socket.can_recv() {
            let got = &mut self.got;
            socket
                .recv(|b| {
                    got.extend_from_slice(b);
                    (b.len(), ())
                })
                .unwrap();
        }
        if socket.can_send() && self.sent < self.out.len() {
            self.sent += socket.send_slice(&self.out[self.sent..]).unwrap();
        }
        if self.sent == self.out.len() && socket.may_send() && !self.closed {
            socket.close();
            self.closed = true;
        }
        self.iface.poll(smol_time(now), &mut self.port, &mut self.sockets);
    }
}

impl Station for Smol {
    fn handle(&mut self, now: Instant, frame: &[u8]) {
        self.port.rx.push_back(frame.to_vec());
        self.poll(now);
    }

    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.port.tx.is_empty() {
            self.poll(now);
        }
        self.port.tx.pop_front()
    }

    fn next_timeout(&mut self, now: Instant) -> Option<Instant> {
        let at = self.iface.poll_at(smol_time(now), &self.sockets)?;
        let ns = u64::try_from(at.total_micros()).unwrap() * 1000;
        // smoltcp counts microseconds; a timer due in this microsecond is due in the next.
        Some(Instant::from_nanos(ns).max(now + Duration::from_micros(1)))
    }

    fn tick(&mut self, now: Instant) {
        self.poll(now);
    }
}

fn net(seed: u64, faults: Faults) -> Net<Host, Smol> {
    let mut n = Net::new(Host::new(config_a()), Smol::new(pattern(LEN, 2)), seed);
    n.faults = faults;
    n
}

/// Sends 1 MiB each way at once, then both ends close.
fn exchange(n: &mut Net<Host, Smol>, a: ConnId) {
    let data = pattern(LEN, 1);
    n.a.send(a, &data);
    n.a.stack.close(a);
    n.run("transfer", LONG, |n| n.a.got(a).len() == LEN && n.b.got.len() == LEN);
    assert!(n.b.got == data && n.a.got(a) == pattern(LEN, 2), "wrong bytes");
    n.run("close", LONG, |n| {
        n.a.says(a, ConnEvent::Closed)
            && n.a.says(a, ConnEvent::PeerClosed)
            && matches!(n.b.state(), tcp::State::TimeWait | tcp::State::Closed)
    });
    n.a.stack.release(a);
    n.run("the end", LONG, |n| n.a.stack.connections() == 0 && n.b.state() == tcp::State::Closed);
}

fn active(seed: u64, faults: Faults) -> Net<Host, Smol> {
    let mut n = net(seed, faults);
    n.b.socket().listen(PORT).unwrap();
    let a = n.a.stack.connect(n.now, b_addr(), None).unwrap();
    n.run("connect", LONG, |n| n.a.says(a, ConnEvent::Connected));
    exchange(&mut n, a);
    n
}

fn passive(seed: u64, faults: Faults) -> Net<Host, Smol> {
    let mut n = net(seed, faults);
    n.a.stack.listen(None, PORT, 4).unwrap();
    let socket = n.b.sockets.get_mut::<tcp::Socket<'_>>(n.b.handle);
    socket.connect(n.b.iface.context(), (A, PORT), 5000).unwrap();
    n.run("accept", LONG, |n| n.a.accepted().is_some());
    let a = n.a.accepted().unwrap();
    exchange(&mut n, a);
    n
}

/// smoltcp holds an ACK back for 10 ms. The sender may need a probe or two to learn this, but no
/// timeout.
fn nothing_lost(n: &Net<Host, Smol>) {
    let c = n.a.stack.conn_counters();
    assert_eq!((c.timeouts, c.fast_retransmits), (0, 0));
    assert!(n.a.retransmitted <= c.tail_probes && c.tail_probes <= 2, "{c:?}");
}

#[test]
fn test_smoltcp_listens() {
    let n = active(1, Faults::default());
    nothing_lost(&n);
    assert_eq!(n.a.stack.counters().rx_bad_tcp_checksum, 0);
}

#[test]
fn test_smoltcp_connects() {
    let n = passive(1, Faults::default());
    nothing_lost(&n);
}

#[test]
fn test_smoltcp_listens_over_a_bad_wire() {
    for seed in 1..=3 {
        active(seed, Faults { loss: 0.01, reorder: 0.02, duplicate: 0.01 });
    }
}

#[test]
fn test_smoltcp_connects_over_a_bad_wire() {
    for seed in 4..=6 {
        passive(seed, Faults { loss: 0.01, reorder: 0.02, duplicate: 0.01 });
    }
}

#[test]
fn test_smoltcp_refuses() {
    let mut n = net(1, Faults::default());
    let a = n.a.stack.connect(n.now, b_addr(), None).unwrap();
    n.run("refusal", LONG, |n| n.a.says(a, ConnEvent::Refused));
}

#[test]
fn test_smoltcp_is_refused() {
    let mut n = net(1, Faults::default());
    let socket = n.b.sockets.get_mut::<tcp::Socket<'_>>(n.b.handle);
    socket.connect(n.b.iface.context(), (A, PORT), 5000).unwrap();
    n.run("refusal", LONG, |n| n.b.state() == tcp::State::Closed);
    assert_eq!(n.a.stack.counters().tx_resets, 1);
}
