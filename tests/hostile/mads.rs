//! InfiniBand's connection management from peers that break its rules: requests with invalid
//! private data, messages about absent connections or about connections of others, and floods of
//! bytes.
//!
//! A connection of InfiniBand and an honest stream of iWARP continue beside them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use heddle::connection::DisconnectReason;
use heddle::counters::IbCounters;
use heddle_ib::cm::{Answered, Failover, Mad, Message, Rej, Rep, Req};
use heddle_ib::roce::UdPacket;
use heddle_ib::testing::{PORT, Peer, dreq, rtu};
use heddle_ib::{CommId, Qpn, TimeCode};
use heddle_types::ib::RejReason;

use crate::errors::honest_session;
use crate::net::{Lab, SERVER};
use crate::target::{PATIENCE, PLAIN, Target};
use crate::tcp::{Host, address};
use crate::traffic::{Company, Traffic};

/// Offsets in a REQ's private data of the version and the destination in the annex's header.
const VERSION_AT: usize = 0;
const DST_AT: usize = 20;

/// The pause after each datagram of a connection that keeps within the target's budget for one
/// connection: eight datagrams a second after the first 32. A test that needs many rounds to judge
/// the company's speed uses up those 32.
const OWN_BUDGET: Duration = Duration::from_millis(130);

fn peer(from: Ipv4Addr) -> Peer {
    Peer { addr: from.into(), to: SERVER.into() }
}

fn req(from: Ipv4Addr, name: u32) -> Req {
    peer(from).req(PLAIN, CommId(name), TimeCode::new(17))
}

fn packet(from: Ipv4Addr, tid: u64, message: Message) -> Vec<u8> {
    peer(from).packet(tid, message)
}

fn put(host: &Host, from: Ipv4Addr, packet: &[u8]) {
    let path = host.path(from);
    host.send(&[&path.to.0[..], &path.from.0, &[8, 0], packet].concat());
}

fn say(host: &Host, from: Ipv4Addr, tid: u64, message: Message) {
    put(host, from, &packet(from, tid, message));
}

/// Receives messages for `to` until `take` accepts one.
fn wait<T>(host: &mut Host, to: Ipv4Addr, take: impl FnMut(Message) -> Option<T>) -> T {
    wait_and(host, to, take, |_| ())
}

/// Repeats `message` until `take` finds its answer, because a busy machine loses datagrams.
fn ask<T>(
    host: &mut Host,
    from: Ipv4Addr,
    (tid, message): (u64, Message),
    take: impl FnMut(Message) -> Option<T>,
) -> T {
    let packet = packet(from, tid, message);
    put(host, from, &packet);
    wait_and(host, from, take, |host| put(host, from, &packet))
}

/// Receives like `wait`, and calls `again` after each second without a message that `take` accepts.
fn wait_and<T>(
    host: &mut Host,
    to: Ipv4Addr,
    mut take: impl FnMut(Message) -> Option<T>,
    again: impl Fn(&Host),
) -> T {
    let start = Instant::now();
    let mut next = Duration::from_secs(1);
    loop {
        for bytes in std::mem::take(&mut host.datagrams) {
            let Ok(ud) = UdPacket::parse_gsi(&bytes) else { continue };
            let message = Mad::parse(ud.payload).expect("a message of the class").message;
            if ud.repr.dst == IpAddr::from(to)
                && let Some(found) = take(message)
            {
                return found;
            }
        }
        let waited = start.elapsed();
        assert!(waited < PATIENCE, "no answer");
        if waited > next {
            next += Duration::from_secs(1);
            again(host);
        }
        host.poll(Duration::from_millis(20));
    }
}

fn rej(host: &mut Host, to: Ipv4Addr) -> Box<Rej> {
    wait(host, to, |m| if let Message::Rej(rej) = m { Some(rej) } else { None })
}

/// An established connection of InfiniBand, whose peer is honest.
struct Conn {
    from: Ipv4Addr,
    name: CommId,
    rep: Box<Rep>,
}

impl Conn {
    fn new(host: &mut Host, target: &Target, from: Ipv4Addr, name: u32) -> Conn {
        let asked = (7, Message::Req(Box::new(req(from, name))));
        let reply = |m| if let Message::Rep(rep) = m { Some(rep) } else { None };
        let rep = ask(host, from, asked, reply);
        let conn = Conn { from, name: CommId(name), rep };
        say(host, from, 7, conn.rtu());
        let start = Instant::now();
        let mut next = Duration::from_secs(1);
        while !target.is_established(SocketAddr::from((from, PORT))) {
            let waited = start.elapsed();
            assert!(waited < PATIENCE, "the RTU is not heard");
            // A busy machine loses frames. Peers repeat their RTU when they receive the REP again.
            if waited > next {
                next += Duration::from_secs(1);
                say(host, from, 7, conn.rtu());
            }
            host.poll(Duration::from_millis(5));
        }
        host.sync();
        conn
    }

    fn rtu(&self) -> Message {
        rtu(self.name, self.rep.local_comm_id)
    }

    fn dreq(&self, qpn: u32) -> Message {
        dreq(self.name, self.rep.local_comm_id, Qpn::new(qpn))
    }

    /// Checks that the connection still exists, and ends it in order.
    fn assert_ends_in_order(self, host: &mut Host, target: &Target) {
        let asked = (8, self.dreq(self.rep.local_qpn.get()));
        ask(host, self.from, asked, |m| matches!(m, Message::Drep(_)).then_some(()));
        let ended = target.ended(SocketAddr::from((self.from, PORT)));
        assert_eq!(ended.reason, Ok(DisconnectReason::Orderly));
    }
}

/// Returns the counters of the connection manager once it has heard what it is to hear, `n` messages
/// by `count`. It hears of a datagram after the worker, on a thread of its own.
fn heard(target: &Target, n: u64, count: impl Fn(&IbCounters) -> u64) -> IbCounters {
    let start = Instant::now();
    loop {
        let ib = target.snapshot().ctl.ib;
        if count(&ib) >= n || start.elapsed() > PATIENCE {
            return ib;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs an abuse many times beside both streams, and then checks that the target has released
/// everything.
fn beside(owned: impl Fn(&mut Host, &Target, &Conn, u32)) {
    let lab = Lab::new(1500);
    let target = Target::start(&lab);
    let mut traffic = Traffic::start(&lab);
    let mut host = Host::new(&lab, [address(1), address(2)]);
    let conn = Conn::new(&mut host, &target, address(1), 77);
    traffic.rounds(32, |traffic, n| {
        traffic.beside(Company::Honest, || honest_session(&target, &lab, PLAIN));
        traffic.beside(Company::Hostile, || owned(&mut host, &target, &conn, n));
    });
    assert_eq!(target.live(), 2, "the connection, and the stream of iWARP");
    conn.assert_ends_in_order(&mut host, &target);
    // The target still accepts a new connection.
    let next = Conn::new(&mut host, &target, address(2), 1 << 20);
    next.assert_ends_in_order(&mut host, &target);
    traffic.finish();
    target.assert_guards();
    target.assert_all_is_back();
}

/// Annex A11: reason 28 with the code of the fault in the header.
#[test]
fn test_req_whose_private_data_are_no_header_is_refused() {
    beside(|host, target, _, n| {
        let before = target.snapshot().ctl.ib.req_header;
        for (at, to) in [(VERSION_AT, 0xff), (DST_AT + 12, 99), (VERSION_AT + 1, 0)] {
            let mut req = req(address(2), 1000 + n);
            req.private_data[at] = to;
            say(host, address(2), 9, Message::Req(Box::new(req)));
            let rej = rej(host, address(2));
            assert_eq!((rej.reason, rej.remote_comm_id), (RejReason::CONSUMER, CommId(1000 + n)));
        }
        assert_eq!(target.snapshot().ctl.ib.req_header - before, 3);
    });
}

#[test]
fn test_rep_to_a_request_that_was_never_made_is_rejected() {
    beside(|host, target, conn, n| {
        let before = target.snapshot().ctl.ib;
        let rep = |remote| {
            let rep = Rep {
                local_comm_id: CommId(n + 1),
                remote_comm_id: remote,
                failover: Failover::UNSUPPORTED,
                ..(*conn.rep).clone()
            };
            Message::Rep(Box::new(rep))
        };
        say(host, address(2), 9, rep(CommId(0x7000_0000 | n)));
        let rej = rej(host, address(2));
        assert_eq!((rej.reason, rej.answered), (RejReason::INVALID_COMM_ID, Answered::REP));
        // The message also does not create a connection from the name of another peer's connection.
        say(host, address(2), 9, rep(conn.rep.local_comm_id));
        let all = |ib: &IbCounters| ib.rx_unknown + ib.rx_foreign;
        let after = heard(target, all(&before) + 2, all);
        assert_eq!(
            (after.rx_unknown - before.rx_unknown, after.rx_foreign - before.rx_foreign),
            (1, 1)
        );
    });
}

#[test]
fn test_dreq_with_a_forged_queue_pair_or_from_another_host_ends_nothing() {
    beside(|host, target, conn, n| {
        let before = target.snapshot().ctl.ib;
        let qpn = conn.rep.local_qpn.get();
        say(host, conn.from, 9, conn.dreq(qpn ^ (n + 1)));
        say(host, address(2), 9, conn.dreq(qpn));
        let all = |ib: &IbCounters| ib.rx_unexpected + ib.rx_foreign;
        let after = heard(target, all(&before) + 2, all);
        let count =
            [after.rx_unexpected - before.rx_unexpected, after.rx_foreign - before.rx_foreign];
        assert_eq!(count, [1, 1]);
        std::thread::sleep(OWN_BUDGET);
    });
}

#[test]
fn test_req_that_is_repeated_with_other_contents_is_stale() {
    beside(|host, target, conn, n| {
        let before = target.snapshot().ctl.ib;
        // First the connection's name with another queue pair, then the queue pair with another
        // name.
        let mut other = req(conn.from, conn.name.0);
        other.local_qpn = Qpn::new(500 + n);
        say(host, conn.from, 7, Message::Req(Box::new(other)));
        assert_eq!(rej(host, conn.from).reason, RejReason::STALE_CONNECTION);
        let mut other = req(conn.from, 600 + n);
        other.local_qpn = Qpn::new(conn.name.0);
        say(host, conn.from, 7, Message::Req(Box::new(other)));
        assert_eq!(rej(host, conn.from).reason, RejReason::STALE_CONNECTION);
        // A REQ with other private data is a duplicate by all its names, and gets a duplicate's
        // answer.
        let mut other = req(conn.from, conn.name.0);
        other.private_data[40] = 0xee;
        say(host, conn.from, 7, Message::Req(Box::new(other)));
        let after = heard(target, before.rx_duplicates + 1, |ib| ib.rx_duplicates);
        assert_eq!(after.req_stale - before.req_stale, 2);
        assert_eq!(after.rx_duplicates - before.rx_duplicates, 1);
    });
}

/// Sends datagrams that are no messages, three times as many in all as strangers may send at once.
#[test]
fn test_flood_of_damaged_datagrams_exhausts_no_budget() {
    beside(|host, target, conn, n| {
        let before = target.snapshot().worker.engine.stack;
        let good = packet(address(2), 9, Message::Req(Box::new(req(address(2), 1 << 21))));
        // Flip bits from the last word of the base header on, where the CRC covers everything. The
        // device has room for this many frames at a time.
        for k in 0..1024_u32 {
            let mut bad = good.clone();
            let at = 36 + usize::try_from((k * 7 + n) % 272).expect("small");
            bad[at] ^= 0x10;
            put(host, address(2), &bad);
            if k % 256 == 255 {
                host.sync();
            }
        }
        // The connection still gets the last word: the target accepts its message.
        let ib = target.snapshot().ctl.ib.rx_duplicates;
        say(host, conn.from, 7, conn.rtu());
        let after = heard(target, ib + 1, |ib| ib.rx_duplicates);
        let stack = target.snapshot().worker.engine.stack;
        let dropped = |f: fn(&heddle::counters::StackCounters) -> u64| f(&stack) - f(&before);
        assert_eq!(dropped(|c| c.udp_bad_crc), 1024);
        assert_eq!(dropped(|c| c.udp_source_limited + c.udp_limited + c.udp_conn_limited), 0);
        assert_eq!(after.rx_duplicates - ib, 1, "the RTU is heard");
        std::thread::sleep(OWN_BUDGET);
    });
}
