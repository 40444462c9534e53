//! TIME-WAIT that makes room for a new connection of the same addresses and ports (RFC 6191).

use core::time::Duration;

use heddle_types::ConnectError;

use super::net::Faults;
use super::transfer::{pair, pattern};
use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Connects from `port`, sends `len` bytes, and closes first, so that TIME-WAIT is A's.
fn one(n: &mut Net<Host, Host>, port: Option<u16>, len: usize) -> Result<u16, ConnectError> {
    n.b.events.clear();
    let a = n.a.stack.connect(n.now, b_addr(), port)?;
    n.run("connect", LONG, |n| n.a.says(a, ConnEvent::Connected) && n.b.accepted().is_some());
    let b = n.b.accepted().unwrap();
    let data = pattern(len, 9);
    n.a.send(a, &data);
    n.run("bytes", LONG, |n| n.b.got(b).len() == len);
    assert!(n.b.got(b) == data);
    n.a.stack.close(a);
    n.run("FIN", LONG, |n| n.b.says(b, ConnEvent::PeerClosed));
    n.b.stack.close(b);
    n.run("the end", LONG, |n| n.a.says(a, ConnEvent::Closed) && n.b.says(b, ConnEvent::Closed));
    let port = n.a.stack.local_addr(a).unwrap().port();
    n.a.stack.release(a);
    n.b.stack.release(b);
    n.a.events.clear();
    Ok(port)
}

#[test]
fn test_own_time_wait_is_reused_after_a_second_and_not_before() {
    let mut n = pair(1, Faults::default());
    one(&mut n, Some(1234), 10).unwrap();
    assert_eq!(n.a.stack.connections(), 1, "TIME-WAIT");
    n.now = n.now + Duration::from_millis(900);
    assert_eq!(one(&mut n, Some(1234), 10), Err(ConnectError::PortInUse));
    n.now = n.now + Duration::from_millis(200);
    one(&mut n, Some(1234), 10).unwrap();
    assert_eq!((n.a.stack.connections(), n.a.stack.counters().time_wait_reused), (1, 1));
}

/// When neither side has timestamps, the peer cannot recognise a SYN as new.
#[test]
fn test_own_time_wait_without_timestamps_is_not_reused() {
    let mut cfg = config_a();
    cfg.conn.timestamps = false;
    let mut n = Net::new(Host::new(cfg), Host::new(config_b()), 1);
    n.b.stack.listen(None, PORT, 8).unwrap();
    one(&mut n, Some(1234), 10).unwrap();
    n.now = n.now + Duration::from_secs(30);
    assert_eq!(one(&mut n, Some(1234), 10), Err(ConnectError::PortInUse));
}

#[test]
fn test_connection_in_use_or_not_released_is_not_reused() {
    let mut n = pair(1, Faults::default());
    let a = n.a.stack.connect(n.now, b_addr(), Some(1234)).unwrap();
    n.run("connect", LONG, |n| n.a.says(a, ConnEvent::Connected) && n.b.accepted().is_some());
    let b = n.b.accepted().unwrap();
    n.now = n.now + Duration::from_secs(5);
    assert_eq!(n.a.stack.connect(n.now, b_addr(), Some(1234)), Err(ConnectError::PortInUse));
    n.a.stack.close(a);
    n.run("FIN", LONG, |n| n.b.says(b, ConnEvent::PeerClosed));
    n.b.stack.close(b);
    n.run("the end", LONG, |n| n.a.says(a, ConnEvent::Closed));
    n.now = n.now + Duration::from_secs(5);
    assert_eq!(n.a.stack.conn(a).unwrap().state(), State::TimeWait);
    assert_eq!(n.a.stack.connect(n.now, b_addr(), Some(1234)), Err(ConnectError::PortInUse));
    n.a.stack.release(a);
    assert!(n.a.stack.connect(n.now, b_addr(), Some(1234)).is_ok());
}

/// A host opens a thousand connections a second to one port of one host, for 25 s: more than there
/// are ports.
#[test]
fn test_ports_do_not_run_out_at_a_thousand_connections_a_second() {
    let cfg = |mac, ip| StackConfig { max_conns: 1 << 15, ..config(mac, ip) };
    let (a, b) = (Host::new(cfg(MAC_A, A)), Host::new(cfg(MAC_B, B)));
    let mut n = Net::new(a, b, 1);
    n.b.stack.listen(None, PORT, 8).unwrap();
    let start = n.now;
    for i in 0..25_000u64 {
        n.now = n.now.max(start + Duration::from_millis(i));
        one(&mut n, None, 1).unwrap_or_else(|e| panic!("connection {i}: {e}"));
    }
    assert!(n.now - start < Duration::from_secs(26));
    let c = n.a.stack.counters();
    assert_eq!((c.time_wait_evicted, n.a.stack.connections()), (0, 16_384));
    assert_eq!(c.time_wait_reused, 25_000 - 16_384, "free ports go first");
}

/// A fast connection is ahead of the clock of initial numbers (RFC 6528). The next connection still
/// begins beyond it, for us and for the peer, or segments that are still in flight would fit in.
#[test]
fn test_reused_connection_is_numbered_beyond_the_last_on_both_sides() {
    let mut n = pair(1, Faults::default());
    // A connects to B and ends first; then B does the same to A, from and to the same ports.
    n.a.stack.listen(None, 1234, 8).unwrap();
    one(&mut n, Some(1234), 4 << 20).unwrap();
    let old = n.a.stack.time_wait.len();
    assert_eq!(old, 1);
    let end = n.a.stack.conns.iter().next().unwrap().conn.snd_end();
    n.now = n.now + Duration::from_millis(1100);
    assert!(n.now < Instant::from_nanos(4 * 4_000_000 * 1000), "the clock is behind");
    let id = n.a.stack.connect(n.now, b_addr(), Some(1234)).unwrap();
    let iss = n.a.stack.conns.iter().next().unwrap().iss;
    assert!(iss.after(end), "{iss:?} {end:?}");
    n.run("connect", LONG, |n| n.a.says(id, ConnEvent::Connected));
    n.a.stack.abort(id);
    n.a.stack.release(id);
    n.run("reset", LONG, |n| n.b.stack.connections() == 0);
    // The passive side follows RFC 6191.
    n.now = n.now + Duration::from_secs(5);
    one(&mut n, Some(1234), 4 << 20).unwrap();
    let end = n.a.stack.conns.iter().next().unwrap().conn.snd_end();
    n.now = n.now + Duration::from_millis(1100);
    n.b.stack.unlisten(ms(1), None, PORT);
    let id = n.b.stack.connect(n.now, (A, 1234).into(), Some(PORT)).unwrap();
    n.run("connect", LONG, |n| n.b.says(id, ConnEvent::Connected));
    let iss = n.a.stack.half_opens.iter().next().unwrap().1.iss;
    assert!(iss.after(end), "{iss:?} {end:?}");
    assert_eq!(n.a.stack.counters().time_wait_reused, 2);
}

/// Leaves B in TIME-WAIT after a connection of A:1 that ended at sequence number 102, the number after
/// the FIN, with timestamps up to 5001 or without.
fn after(stamps: bool) -> Stack<ByteQueue> {
    let mut b = listening_b(4);
    let ts = |val| stamps.then_some(crate::Timestamps { val, ecr: 0 });
    let mut put = |seg: crate::TxSegment| {
        b.handle_frame(ms(1), &tcp_frame((A, 1), (B, PORT), &seg, b"")[..]);
        let id = events(&mut b).first().map(|e| e.0);
        let out = frames(&mut b, ms(1));
        (id, out.first().map(|f| read_tcp(f).1.seq.0))
    };
    let (_, iss) = put(crate::TxSegment { timestamps: ts(5000), ..syn(100) });
    let next = iss.unwrap().wrapping_add(1);
    let (id, _) = put(crate::TxSegment { timestamps: ts(5001), ..segment(101, next, Flags::ACK) });
    let id = id.unwrap();
    b.close(id);
    frames(&mut b, ms(1));
    let fin = segment(101, next.wrapping_add(1), Flags::FIN.with(Flags::ACK));
    let fin = crate::TxSegment { timestamps: ts(5001), ..fin };
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, PORT), &fin, b"")[..]);
    b.release(id);
    frames(&mut b, ms(1));
    events(&mut b);
    assert_eq!((b.time_wait.len(), b.connections()), (1, 1));
    b
}

#[test]
fn test_syn_ends_time_wait_by_each_rule_of_rfc_6191() {
    let (earlier, same, later) = (Some(5000), Some(5001), Some(5002));
    // Whether the old connection had timestamps; the SYN's timestamp and number; whether it opens a
    // connection.
    for (stamps, val, seq, opens) in [
        (true, later, 50, true),
        (true, later, 200, true),
        (true, same, 50, false),
        (true, same, 102, false),
        (true, same, 103, true),
        (true, earlier, 50, false),
        (true, earlier, 200, false),
        (true, None, 50, false),
        (true, None, 200, true),
        (false, earlier, 50, true),
        (false, later, 200, true),
        (false, None, 50, false),
        (false, None, 200, true),
    ] {
        let mut b = after(stamps);
        let asks = crate::TxSegment {
            timestamps: val.map(|val| crate::Timestamps { val, ecr: 0 }),
            ..syn(seq)
        };
        b.handle_frame(ms(2), &tcp_frame((A, 1), (B, PORT), &asks, b"")[..]);
        let (_, answer) = read_tcp(&frames(&mut b, ms(2))[0]);
        let case = format!("{stamps} {val:?} {seq}");
        assert_eq!(answer.flags.has(Flags::SYN), opens, "{case}");
        assert_eq!(b.time_wait.len(), usize::from(!opens), "{case}");
        let expected = if opens { seq + 1 } else { 102 };
        assert_eq!((answer.ack.0, b.connections()), (expected, 1), "{case}");
    }
}
