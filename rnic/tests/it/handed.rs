//! Two applications of one RNIC: a queue pair takes the FPDUs of the other without a frame.

use std::time::Duration;

use crate::sim::{LinkConfig, Pair, TO_BASE, pattern};
use heddle_iwarp::{QpConfig, QpEvent, Side};
use heddle_mr::MrAttr;
use heddle_rnic::Event;
use heddle_tcp::ConnConfig;
use heddle_types::{
    Access, AtomicOp, CloseReason, ConnId, CqeOp, CqeStatus, Queue, RecvWr, SendOp, SendWr, Sge,
    TermCode, mpa::RtrConfig,
};

const MEMORY: usize = 4 << 20;
/// Bytes of the long messages of these tests.
const LONG: usize = 3 << 20;
const SECOND: Duration = Duration::from_secs(1);

fn ends(p: &Pair, change: impl Fn(usize, &mut QpConfig)) -> [QpConfig; 2] {
    [0, 1].map(|host| {
        let mut qp = QpConfig { pd: p.hosts[host].pd, crc: false, ..QpConfig::default() };
        change(host, &mut qp);
        qp
    })
}

fn connect(p: &mut Pair, port: u16) -> [ConnId; 2] {
    let qps = ends(p, |_, _| {});
    p.connect_to(port, [&qps[0], &qps[1]])
}

/// Connects two applications, and lets the connection carry a first message.
fn joined() -> (Pair, [ConnId; 2]) {
    let mut p = Pair::inside(7, LinkConfig::default(), MEMORY, |_| {});
    let ids = connect(&mut p, 7000);
    open(&mut p, ids);
    (p, ids)
}

/// Sends a first message, after which the responder may send (RFC 5044 section 7.1.2).
fn open(p: &mut Pair, [a, b]: [ConnId; 2]) {
    assert!(p.rnic(0).is_handing(a) && p.rnic(0).is_handing(b));
    p.driver(0).post_send(a, &SendWr::write_inline(0, &[], Default::default(), 0)).unwrap();
    p.run(SECOND, |p| !p.hosts[0].completions.is_empty());
    p.hosts[0].completions.clear();
    p.hosts.iter_mut().for_each(|h| h.events.clear());
}

fn sge(mr: MrAttr, at: usize, len: usize) -> Sge {
    Sge { stag: mr.stag, to: TO_BASE + at as u64, len: len as u32 }
}

fn told(p: &Pair, host: usize) -> Vec<(u64, CqeStatus)> {
    p.hosts[host].completions.iter().map(|(_, c)| (c.wr_id, c.status)).collect()
}

fn closed(p: &Pair, host: usize) -> Option<CloseReason> {
    p.hosts[host].events.iter().find_map(|e| match e {
        Event::Closed { reason, .. } => Some(*reason),
        _ => None,
    })
}

/// Returns the side that ended the stream, and the code.
fn terminated(p: &Pair, host: usize) -> Option<(Side, TermCode)> {
    p.hosts[host].events.iter().find_map(|e| match e {
        Event::Qp { event: QpEvent::Terminated { by, code }, .. } => Some((*by, *code)),
        _ => None,
    })
}

/// Hands over one turn's worth, and does nothing else.
fn hand_over(p: &mut Pair) {
    let now = p.now;
    let h = p.driver(0);
    h.rnic.hand_over(now, &h.mem);
}

fn post(p: &mut Pair, host: usize, conn: ConnId, wr: &SendWr<'_>) {
    p.driver(host).rnic.post_send(conn, wr).unwrap();
}

const ALL: Access = Access::LOCAL_WRITE
    .with(Access::REMOTE_WRITE)
    .with(Access::REMOTE_READ)
    .with(Access::REMOTE_ATOMIC);

#[test]
fn test_handed_over_operation_takes_one_copy_and_no_frame() {
    let (mut p, [a, b]) = joined();
    let here = p.register(0, 0, MEMORY, ALL);
    let there = p.register(1, 0, MEMORY, ALL);
    let (frames, placed) = (p.frames, p.hosts[0].mem.placed());
    // The lengths exceed a piece, and a connection's turn.
    for (n, len) in [(1, 8), (2, 33), (3, 5000), (4, 200_001)] {
        let bytes = pattern(n, len);
        p.hosts[0].mem.write(0, &bytes);
        let far = (there.stag, TO_BASE + 7);
        post(&mut p, 0, a, &SendWr::write(n, &[sge(here, 0, len)], far.0, far.1));
        p.run(SECOND, |p| !p.hosts[0].completions.is_empty());
        assert_eq!(p.hosts[1].mem.read(7, len), bytes);
        post(&mut p, 0, a, &SendWr::read(n, &[sge(here, 1 << 20, len)], far.0, far.1));
        let at = 2 << 20;
        p.driver(1).rnic.post_recv(b, &RecvWr::new(n, &[sge(there, at, len)])).unwrap();
        post(&mut p, 0, a, &SendWr::send(n, &[sge(here, 0, len)]));
        p.run(SECOND, |p| p.hosts[0].completions.len() == 3);
        assert_eq!(p.hosts[0].mem.read(1 << 20, len), bytes);
        assert_eq!(p.hosts[1].mem.read(at, len), bytes);
        assert_eq!(told(&p, 0), [(n, CqeStatus::Success); 3]);
        let lens = p.hosts[0].completions.iter().map(|(_, c)| c.len as usize);
        assert_eq!(lens.collect::<Vec<_>>(), [len; 3]);
        assert_eq!(told(&p, 1), [(n, CqeStatus::Success)]);
        p.hosts.iter_mut().for_each(|h| h.completions.clear());
    }
    let all: u64 = [8, 33, 5000, 200_001].iter().sum();
    assert_eq!(p.hosts[0].mem.placed() - placed, 3 * all, "one copy of each");
    // The responder sends requests as well.
    p.hosts[0].mem.write(0, &5u64.to_ne_bytes());
    let op =
        SendOp::Atomic { stag: here.stag, to: TO_BASE, op: AtomicOp::FetchAdd { add: 3, mask: 0 } };
    let sges = [sge(there, 0, 8)];
    post(&mut p, 1, b, &SendWr { op, ..SendWr::send(9, &sges) });
    p.driver(0).rnic.post_recv(a, &RecvWr::new(10, &[])).unwrap();
    let immediate = SendWr::write_immediate(11, &[], here.stag, TO_BASE, 0xabcd);
    post(&mut p, 1, b, &immediate);
    p.run(SECOND, |p| p.hosts[1].completions.len() == 2);
    assert_eq!(p.hosts[1].mem.read(0, 8), 5u64.to_ne_bytes());
    assert_eq!(p.hosts[0].mem.read(0, 8), 8u64.to_ne_bytes());
    let received = &p.hosts[0].completions[0].1;
    assert_eq!((received.wr_id, received.immediate), (10, Some(0xabcd)));
    assert_eq!(p.frames, frames);
    let (c, q) = (p.rnic(0).counters(), p.rnic(0).qp_counters());
    assert_eq!((c.tx_fpdus, c.handed_connections, q.tx_snapshot_bytes), (0, 1, 0));
    assert_eq!(c.handed_fpdus, q.tx_fpdus);
    assert_eq!(q.tx_fpdus, q.rx_fpdus);
}

#[test]
fn test_fpdus_go_in_frames_with_crc_or_markers_or_without_handover() {
    for case in 0..5 {
        let mut p = Pair::inside(7, LinkConfig::default(), MEMORY, |c| c.hand_over = case != 4);
        let qps = ends(&p, |host, qp| match case {
            0 => qp.crc = true,
            1 => (qp.send_markers, qp.recv_markers) = (host == 0, host == 1),
            2 => (qp.send_markers, qp.recv_markers) = (host == 1, host == 0),
            3 => (qp.send_markers, qp.recv_markers) = (true, true),
            _ => {}
        });
        let [a, b] = p.connect_to(7000, [&qps[0], &qps[1]]);
        assert!(!p.rnic(0).is_handing(a) && !p.rnic(0).is_handing(b), "{case}");
        let here = p.register(0, 0, MEMORY, ALL);
        let there = p.register(1, 0, MEMORY, ALL);
        let bytes = pattern(1, 5000);
        p.hosts[0].mem.write(0, &bytes);
        let (stag, to) = (there.stag, TO_BASE);
        post(&mut p, 0, a, &SendWr::write(1, &[sge(here, 0, 5000)], stag, to));
        p.run(SECOND, |p| told(p, 0) == [(1, CqeStatus::Success)]);
        assert_eq!(p.hosts[1].mem.read(0, 5000), bytes);
        let c = p.rnic(0).counters();
        assert!(c.tx_fpdus > 0 && c.handed_fpdus == 0, "{case}");
    }
}

/// FPDUs that are in flight when the second end starts would arrive after those that are handed
/// over.
#[test]
fn test_connection_ends_are_not_joined_while_frames_carry_fpdus() {
    let mut p = Pair::inside(7, LinkConfig::default(), MEMORY, |_| {});
    let qps = ends(&p, |_, _| {});
    let [a, b] = p.establish(7000);
    let there = p.register(1, 0, MEMORY, ALL);
    let enter = |p: &mut Pair, host: usize, conn| {
        let mode = heddle_rnic::FpduMode { startup_len: 0, reply: vec![], qp: qps[host].clone() };
        let h = p.driver(host);
        h.rnic.enter_fpdu_mode(conn, mode).unwrap();
        h.rnic.start(&h.mem, conn);
    };
    enter(&mut p, 0, a);
    post(&mut p, 0, a, &SendWr::write_inline(1, &[7; 100], there.stag, TO_BASE));
    p.pass(Duration::from_micros(5));
    enter(&mut p, 1, b);
    assert!(!p.rnic(0).is_handing(a) && !p.rnic(0).is_handing(b));
    p.run(SECOND, |p| told(p, 0) == [(1, CqeStatus::Success)]);
    assert_eq!(p.hosts[1].mem.read(0, 100), [7; 100]);
}

/// The RNIC hands over the message that says "ready to receive" like any other, and this message
/// lets the responder send.
#[test]
fn test_peer_to_peer_start_up_lets_the_responder_speak_first() {
    use heddle_types::mpa::{Rtr, RtrSet};
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        let mut p = Pair::inside(7, LinkConfig::default(), MEMORY, |_| {});
        let qps = ends(&p, |host, qp| {
            qp.rtr = [RtrConfig::Send(rtr), RtrConfig::Expect(RtrSet::of(rtr))][host];
        });
        let [a, b] = p.connect_to(7000, [&qps[0], &qps[1]]);
        p.driver(0).post_recv(a, &RecvWr::new(1, &[])).unwrap();
        p.driver(1).post_send(b, &SendWr::send(2, &[])).unwrap();
        p.run(SECOND, |p| (0..2).all(|host| p.hosts[host].completions.len() == 1));
        assert_eq!(
            (told(&p, 0)[0], told(&p, 1)[0]),
            ((1, CqeStatus::Success), (2, CqeStatus::Success))
        );
        assert_eq!(p.rnic(0).counters().tx_fpdus, 0, "{rtr:?}");
    }
}

#[test]
fn test_long_message_leaves_turns_to_other_connections_and_frames() {
    let (mut p, [a, _]) = joined();
    let [c, _] = connect(&mut p, 7001);
    let (here, there) = (p.register(0, 0, MEMORY, ALL), p.register(1, 0, MEMORY, ALL));
    p.hosts[0].mem.write(0, &pattern(3, LONG));
    post(&mut p, 0, a, &SendWr::write(1, &[sge(here, 0, LONG)], there.stag, TO_BASE));
    let far = TO_BASE + LONG as u64;
    post(&mut p, 0, c, &SendWr::write_inline(2, &[9; 8], there.stag, far));
    let before = p.rnic(0).counters().handed_bytes;
    hand_over(&mut p);
    // The amount that a turn hands over is bounded, and the short message was part of it.
    let turn = p.rnic(0).counters().handed_bytes - before;
    assert!((512 << 10..(512 << 10) + (33 << 10)).contains(&turn), "{turn} bytes");
    p.collect_all();
    assert_eq!(told(&p, 0), [(2, CqeStatus::Success)]);
    assert!(p.rnic(0).has_handed() && !p.rnic(0).is_idle(p.now));
    for _ in 0..LONG / (512 << 10) {
        hand_over(&mut p);
    }
    p.collect_all();
    assert_eq!(told(&p, 0)[1], (1, CqeStatus::Success));
    assert_eq!(p.hosts[1].mem.read(0, LONG), pattern(3, LONG));
    assert!(!p.rnic(0).has_handed());
}

/// Each side reports the same code, and the peer learns of it by a Terminate; memory placed before
/// stays, and nothing is placed after it.
#[test]
fn test_memory_removed_during_a_long_message_ends_the_stream() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Gone {
        WriteSink,
        WriteSource,
        ReadSource,
        ReadSink,
        Receive,
    }
    use Gone::{ReadSink, ReadSource, Receive, WriteSink, WriteSource};
    for (gone, code, request) in [
        (WriteSink, (1, 1, 0), CqeStatus::RemoteAccess(code(1, 1, 0))),
        (WriteSource, (0, 0, 0), CqeStatus::LocalProtection),
        (ReadSource, (0, 1, 0), CqeStatus::RemoteAccess(code(0, 1, 0))),
        (ReadSink, (1, 1, 0), CqeStatus::LocalProtection),
        (Receive, (0, 0, 0), CqeStatus::RemoteOperation(code(0, 0, 0))),
    ] {
        let (mut p, [a, b]) = joined();
        let (here, there) = (p.register(0, 0, MEMORY, ALL), p.register(1, 0, MEMORY, ALL));
        let bytes = pattern(1, LONG);
        let (from, to) = if matches!(gone, ReadSource | ReadSink) { (1, 0) } else { (0, 1) };
        p.hosts[from].mem.write(0, &bytes);
        let sges = [sge(here, 0, LONG)];
        match gone {
            WriteSink | WriteSource => {
                post(&mut p, 0, a, &SendWr::write(1, &sges, there.stag, TO_BASE))
            }
            ReadSource | ReadSink => {
                post(&mut p, 0, a, &SendWr::read(1, &sges, there.stag, TO_BASE))
            }
            Receive => {
                p.driver(1).rnic.post_recv(b, &RecvWr::new(5, &[sge(there, 0, LONG)])).unwrap();
                post(&mut p, 0, a, &SendWr::send(1, &sges));
            }
        }
        post(&mut p, 0, a, &SendWr::write_inline(2, &[1; 8], there.stag, TO_BASE + LONG as u64));
        p.driver(1).rnic.post_recv(b, &RecvWr::new(6, &[])).unwrap();
        hand_over(&mut p);
        p.collect_all();
        assert_eq!(told(&p, 0), [], "{gone:?}");
        let placed = p.hosts[to].mem.read(0, LONG);
        let stag = if matches!(gone, WriteSource | ReadSink) { here.stag } else { there.stag };
        p.hosts[0].mrs.deregister(stag).unwrap();
        p.run(SECOND, |p| p.hosts[0].completions.len() == 2);
        // A Write that does not wait for the Read before it is carried out while the peer answers
        // the Read.
        let behind = if from == 1 { CqeStatus::Success } else { CqeStatus::Flushed };
        assert_eq!(told(&p, 0), [(1, request), (2, behind)], "{gone:?}");
        assert_eq!(p.hosts[to].mem.read(0, LONG), placed, "{gone:?}: placed behind the end");
        let done = placed.iter().zip(&bytes).take_while(|(a, b)| a == b).count();
        assert!((256 << 10..LONG).contains(&done), "{gone:?}: {done}");
        let recvs = match gone {
            Receive => vec![(5, CqeStatus::LocalProtection), (6, CqeStatus::Flushed)],
            _ => vec![(6, CqeStatus::Flushed)],
        };
        assert_eq!(told(&p, 1), recvs, "{gone:?}");
        let code = TermCode { layer: code.0, etype: code.1, code: code.2 };
        let [here, there] = [0, 1].map(|host| terminated(&p, host).unwrap());
        let by_requester = matches!(gone, WriteSource | ReadSink);
        let sides =
            if by_requester { (Side::Local, Side::Remote) } else { (Side::Remote, Side::Local) };
        assert_eq!((here, there), ((sides.0, code), (sides.1, code)), "{gone:?}");
        let headers = |host: usize| {
            let terminate = |e: &&Event| matches!(e, Event::PeerTerminate { .. });
            p.hosts[host].events.iter().filter(terminate).count()
        };
        assert_eq!([headers(0), headers(1)], if by_requester { [0, 1] } else { [1, 0] });
        p.run(60 * SECOND, |p| (0..2).all(|host| closed(p, host).is_some()));
        assert_eq!(
            [0, 1].map(|host| closed(&p, host)),
            [Some(CloseReason::Orderly); 2],
            "{gone:?}"
        );
    }
}

fn code(layer: u8, etype: u8, code: u8) -> TermCode {
    TermCode { layer, etype, code }
}

/// The RNIC reports a peer's refusal of a request before anything else: no other request has the
/// status of the refusal, and requests accepted before have their success.
#[test]
fn test_only_refused_request_gets_status_of_terminate() {
    for (what, bad) in [CqeOp::Write, CqeOp::Send, CqeOp::Read, CqeOp::FetchAdd].iter().zip(0..) {
        let (mut p, [a, b]) = joined();
        let (here, there) = (p.register(0, 0, MEMORY, ALL), p.register(1, 0, 4096, ALL));
        let sges = [sge(here, 0, 100)];
        p.driver(1).rnic.post_recv(b, &RecvWr::new(7, &[])).unwrap();
        for id in 0..3u64 {
            post(&mut p, 0, a, &SendWr::write(id, &sges, there.stag, TO_BASE));
        }
        let beyond = TO_BASE + 4096;
        let eight = [sge(here, 0, 8)];
        match bad {
            0 => post(&mut p, 0, a, &SendWr::write(3, &sges, there.stag, beyond)),
            // The Send is longer than its receive.
            1 => post(&mut p, 0, a, &SendWr::send(3, &sges)),
            2 => post(&mut p, 0, a, &SendWr::read(3, &sges, there.stag, beyond)),
            _ => post(&mut p, 0, a, &SendWr::fetch_add(3, &eight, there.stag, beyond, 1)),
        }
        for id in 4..6u64 {
            post(&mut p, 0, a, &SendWr::write(id, &sges, there.stag, TO_BASE));
        }
        p.run(SECOND, |p| p.hosts[0].completions.len() == 6);
        let all = told(&p, 0);
        assert!(all[..3].iter().all(|c| c.1 == CqeStatus::Success), "{what:?}: {all:?}");
        assert!(
            matches!(all[3].1, CqeStatus::RemoteAccess(_) | CqeStatus::RemoteOperation(_)),
            "{what:?}: {all:?}"
        );
        assert!(all[4..].iter().all(|c| c.1 == CqeStatus::Flushed), "{what:?}: {all:?}");
        assert_eq!(p.hosts[0].completions.iter().filter(|c| c.1.queue == Queue::Sq).count(), 6);
    }
}

#[test]
fn test_orderly_close_comes_behind_a_long_message_and_flushes_receives() {
    let (mut p, [a, b]) = joined();
    let (here, there) = (p.register(0, 0, MEMORY, ALL), p.register(1, 0, MEMORY, ALL));
    let bytes = pattern(1, LONG);
    p.hosts[0].mem.write(0, &bytes);
    p.driver(1).rnic.post_recv(b, &RecvWr::new(6, &[])).unwrap();
    post(&mut p, 0, a, &SendWr::write(1, &[sge(here, 0, LONG)], there.stag, TO_BASE));
    hand_over(&mut p);
    let now = p.now;
    p.driver(0).rnic.disconnect(now, a);
    let late = p.driver(0).rnic.post_send(a, &SendWr::send(2, &[]));
    assert!(late.is_ok(), "it completes as refused");
    p.run(SECOND, |p| p.hosts[0].completions.len() == 2);
    assert_eq!(told(&p, 0)[0], (1, CqeStatus::Success));
    assert_eq!(p.hosts[1].mem.read(0, LONG), bytes);
    // The other half goes on, without frames, until it is closed too.
    p.run(SECOND, |p| p.hosts[1].events.iter().any(|e| matches!(e, Event::PeerClosed { .. })));
    assert_eq!(told(&p, 1), [(6, CqeStatus::Flushed)]);
    post(&mut p, 1, b, &SendWr::write_inline(8, &[3; 9], here.stag, TO_BASE));
    p.run(SECOND, |p| told(p, 1).len() == 2);
    assert_eq!(told(&p, 1)[1], (8, CqeStatus::Success));
    assert_eq!(p.hosts[0].mem.read(0, 9), [3; 9]);
    assert_eq!(p.rnic(0).counters().tx_fpdus, 0);
    p.driver(1).rnic.disconnect(now, b);
    p.run(60 * SECOND, |p| (0..2).all(|host| closed(p, host).is_some()));
    assert_eq!([0, 1].map(|host| closed(&p, host)), [Some(CloseReason::Orderly); 2]);
}

/// TCP bounds a close in which nothing moves, and sees nothing of FPDUs that are handed over.
#[test]
fn test_close_outlasts_limit_while_peer_hands_over_and_is_reset_in_silence() {
    let limit = ConnConfig::default().close_stall;
    let (mut p, [a, b]) = joined();
    let here = p.register(0, 0, MEMORY, ALL);
    let (now, mut last) = (p.now, p.now);
    p.driver(0).rnic.disconnect(now, a);
    p.run(SECOND, |p| p.hosts[1].events.iter().any(|e| matches!(e, Event::PeerClosed { .. })));
    for i in 0..4 {
        p.pass(limit * 3 / 4);
        last = p.now;
        assert_eq!(closed(&p, 0), None, "after {i} messages");
        post(&mut p, 1, b, &SendWr::write_inline(i, &[7; 40], here.stag, TO_BASE));
        p.run(SECOND, |p| p.hosts[1].completions.len() > i as usize);
    }
    p.run(limit * 2, |p| (0..2).all(|host| closed(p, host).is_some()));
    assert!(p.now - last >= limit);
    assert_eq!(
        (closed(&p, 0), closed(&p, 1)),
        (Some(CloseReason::TimedOut), Some(CloseReason::Reset))
    );
}

/// Either application is killed, or resets the connection, in the middle of a long message.
#[test]
fn test_reset_in_the_middle_flushes_both_ends_and_spares_others() {
    for (who, released) in [(0, false), (1, false), (0, true), (1, true)] {
        let (mut p, ids) = joined();
        let others = connect(&mut p, 7001);
        open(&mut p, others);
        let (here, there) = (p.register(0, 0, MEMORY, ALL), p.register(1, 0, MEMORY, ALL));
        p.hosts[0].mem.write(0, &pattern(1, LONG));
        p.driver(1).rnic.post_recv(ids[1], &RecvWr::new(6, &[])).unwrap();
        let long = [sge(here, 0, LONG)];
        post(&mut p, 0, ids[0], &SendWr::write(1, &long, there.stag, TO_BASE));
        post(&mut p, 0, ids[0], &SendWr::send(2, &[]));
        hand_over(&mut p);
        let placed = p.hosts[1].mem.read(0, LONG);
        p.driver(who).rnic.abort(ids[who]);
        p.collect_all();
        if released {
            // Another connection gets the place of the released connection.
            p.driver(who).rnic.release(ids[who]);
        }
        hand_over(&mut p);
        // The requester finds out at once, and learns the rest by frames.
        assert!(who == 0 || !p.rnic(0).is_handing(ids[0]));
        p.run(60 * SECOND, |p| closed(p, 1 - who).is_some());
        assert_eq!(closed(&p, 1 - who), Some(CloseReason::Reset));
        assert_eq!(told(&p, 0), [(1, CqeStatus::Flushed), (2, CqeStatus::Flushed)], "{who}");
        assert_eq!(told(&p, 1), [(6, CqeStatus::Flushed)], "{who}");
        assert_eq!(p.hosts[1].mem.read(0, LONG), placed, "{who}: placed behind the end");
        p.hosts.iter_mut().for_each(|h| h.completions.clear());
        let new = connect(&mut p, 7002);
        open(&mut p, new);
        for conn in [others[0], new[0]] {
            post(&mut p, 0, conn, &SendWr::write_inline(9, &[4; 8], there.stag, TO_BASE));
            p.run(SECOND, |p| told(p, 0) == [(9, CqeStatus::Success)]);
            p.hosts[0].completions.clear();
        }
        assert_eq!(p.pinned(0), 0);
    }
}

/// The last messages of a connection whose other end no longer exists go by frames, by which TCP
/// finds that out.
#[test]
fn test_message_behind_the_end_of_the_peer_is_flushed() {
    for released in [false, true] {
        let (mut p, [a, b]) = joined();
        let here = p.register(0, 0, MEMORY, ALL);
        p.driver(1).rnic.abort(b);
        if released {
            p.driver(1).rnic.release(b);
        }
        post(&mut p, 0, a, &SendWr::send(1, &[sge(here, 0, 5000)]));
        hand_over(&mut p);
        p.run(60 * SECOND, |p| closed(p, 0).is_some());
        assert_eq!(told(&p, 0), [(1, CqeStatus::Flushed)]);
        assert_eq!(p.rnic(0).counters().handed_fpdus, 1, "that which opened the stream");
        assert_eq!(p.pinned(0), 0);
    }
}
