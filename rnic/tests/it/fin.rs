//! The peer's FIN in the middle of an operation: the control plane gets an event at once, the RNIC
//! flushes all posted requests, and our own FIN follows without waiting for anything.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PD, PORT, Pair, TO_BASE};
use heddle_iwarp::{QpConfig, QpEvent, Role};
use heddle_rnic::{Event, FpduMode};
use heddle_types::{Access, CloseReason, ConnId, CqeStatus, Cut, RecvWr, SendWr, Sge, Stag};

/// Connects host 0, which sends bytes of its own, to host 1, which runs a queue pair.
fn connected() -> (Pair, ConnId, ConnId) {
    let mut p = Pair::new(1, LinkConfig::default(), 1 << 16);
    p.hosts[1].rnic.listen(None, PORT, 8).unwrap();
    let a = p.hosts[0].rnic.connect(p.now, ([10, 0, 0, 2], PORT).into()).unwrap();
    let mut b = None;
    p.run(Duration::from_secs(1), |p| {
        for e in p.hosts[1].events.drain(..) {
            if let Event::Accepted { conn, .. } = e {
                b = Some(conn);
            }
        }
        b.is_some()
    });
    (p, a, b.unwrap())
}

/// Returns the FPDUs of a Send or Write of three segments, and the length of the first.
fn stream(write: Option<Stag>) -> (Vec<u8>, usize) {
    use heddle_iwarp::{QpContext, QpEnv};
    use heddle_mr::{MrTable, testing::TestMemory};
    let mem = TestMemory::new(4096, 7);
    let mrs = MrTable::new(&heddle_base::Seed::from_u64(1), 4);
    let mr = mrs.register(PD, 0, TO_BASE, 4096, Access::LOCAL_WRITE).unwrap();
    let mut qp = QpContext::new(&QpConfig { pd: PD, ..QpConfig::default() });
    let sges = [Sge { stag: mr.stag, to: TO_BASE, len: 3000 }];
    let wr = match write {
        Some(stag) => SendWr::write(1, &sges, stag, TO_BASE),
        None => SendWr::send(1, &sges),
    };
    qp.post_send(&wr).unwrap();
    let env = QpEnv { mem: &mem, mrs: &mrs, snapshots_full: false, posted: None };
    let (mut all, mut first) = (Vec::new(), 0);
    while let Some(f) = qp.poll_transmit(&env, 1442) {
        let at = all.len();
        all.resize(at + f.len() as usize, 0);
        f.copy_to(&mem, 0, &mut all[at..]);
        first = if at == 0 { all.len() } else { first };
    }
    (all, first)
}

/// The bytes that come before the FIN.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    /// The first bytes of a Send, as many as given; the whole Send if it is shorter.
    Send(usize),
    FirstOfSend,
    FirstOfWrite,
    /// Our queue pair has a Read outstanding.
    Read,
}

/// Sends these bytes and a FIN to a queue pair that has a receive posted.
fn fin_behind(before: Before) -> (Vec<Event>, Vec<CqeStatus>, Duration) {
    let (mut p, a, b) = connected();
    let mr = p.register(1, 0, 4000, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE));
    let mode = FpduMode {
        startup_len: 0,
        reply: Vec::new(),
        qp: QpConfig { pd: PD, ..QpConfig::default() },
    };
    let h = &mut p.hosts[1];
    h.rnic.enter_fpdu_mode(b, mode).unwrap();
    let one = [Sge { stag: mr.stag, to: TO_BASE, len: 4000 }];
    h.rnic.post_recv(b, &RecvWr { wr_id: 1, sges: &one }).unwrap();
    h.rnic.start(&h.mem, b);
    let read = matches!(before, Before::Read);
    if read {
        h.rnic.post_send(b, &SendWr::read(2, &one, Stag(3), 0)).unwrap();
    }
    let (send, first_of_send) = stream(None);
    let (write, first_of_write) = stream(Some(mr.stag));
    let bytes = match before {
        Before::Nothing | Before::Read => &[],
        Before::Send(n) => &send[..n.min(send.len())],
        Before::FirstOfSend => &send[..first_of_send],
        Before::FirstOfWrite => &write[..first_of_write],
    };
    p.hosts[0].rnic.send_startup(a, bytes).unwrap();
    for _ in 0..20 {
        p.step();
    }
    p.hosts[1].events.clear();
    let start = p.now;
    p.hosts[0].rnic.disconnect(p.now, a);
    let closed = |p: &mut Pair| {
        p.hosts[1].events.iter().any(|e| matches!(e, Event::Closed { .. }))
            || (p.now.since(start) > Duration::from_secs(1))
    };
    p.run(Duration::from_secs(2), closed);
    let events = std::mem::take(&mut p.hosts[1].events);
    let done = p.hosts[1].completions.iter().map(|c| c.1.status).collect();
    let truncated = events.iter().filter(|e| matches!(e, Event::Qp { .. })).count() as u64;
    assert_eq!(p.hosts[1].rnic.counters().rx_truncated, truncated);
    (events, done, p.now.since(start))
}

#[test]
fn test_fin_inside_fpdu_message_or_read_is_reported_and_answered_at_once() {
    let cases = [
        (Before::Send(1), Cut::Fpdu),
        (Before::Send(30), Cut::Fpdu),
        (Before::Send(1500), Cut::Fpdu),
        (Before::FirstOfSend, Cut::Message),
        (Before::FirstOfWrite, Cut::Message),
        (Before::Read, Cut::Read),
    ];
    for (what, cut) in cases {
        let (events, done, took) = fin_behind(what);
        let told: Vec<_> = events
            .iter()
            .filter_map(|e| match e {
                Event::Qp { event, .. } => Some(*event),
                _ => None,
            })
            .collect();
        assert_eq!(told, [QpEvent::Truncated(cut)], "{what:?}");
        let Some(Event::Closed { reason, .. }) = events.last() else {
            panic!("{what:?}: {events:?}")
        };
        assert_eq!(*reason, CloseReason::Orderly, "{what:?}: TCP ended in order");
        assert!(took < Duration::from_millis(10), "{what:?}: {took:?}");
        assert!(done.len() == 1 + usize::from(cut == Cut::Read), "{what:?}: {done:?}");
        assert!(done.iter().all(|s| *s == CqeStatus::Flushed), "{what:?}: {done:?}");
    }
}

#[test]
fn test_fin_at_the_end_of_a_message_leaves_the_stream_half_open() {
    for before in [Before::Nothing, Before::Send(usize::MAX)] {
        let (events, done, _) = fin_behind(before);
        assert!(matches!(events[..], [Event::PeerClosed { .. }]), "{events:?}");
        assert_eq!(done.len(), 1);
    }
}

/// A responder's Sends wait for the peer's first FPDU, which never comes after a FIN: the
/// connection ends at once and in order, and not by the deadline of a close.
#[test]
fn test_fin_before_the_first_fpdu_ends_a_connection_whose_sends_wait_for_it() {
    for early in [true, false] {
        let (mut p, a, b) = connected();
        let qp = QpConfig { pd: PD, role: Role::Responder, ..QpConfig::default() };
        let mode = FpduMode { startup_len: 0, reply: Vec::new(), qp };
        let h = &mut p.hosts[1];
        h.rnic.enter_fpdu_mode(b, mode).unwrap();
        h.rnic.start(&h.mem, b);
        let send = SendWr::send_inline(1, &[7; 10]);
        if early {
            h.rnic.post_send(b, &send).unwrap();
        }
        p.hosts[0].rnic.disconnect(p.now, a);
        let start = p.now;
        if !early {
            let closed = |e: &Event| matches!(e, Event::PeerClosed { .. });
            p.run(Duration::from_secs(1), |p| p.hosts[1].events.iter().any(closed));
            p.hosts[1].rnic.post_send(b, &send).unwrap();
            p.hosts[1].rnic.disconnect(p.now, b);
        }
        let closed = |e: &Event| matches!(e, Event::Closed { .. });
        p.run(Duration::from_secs(1), |p| p.hosts[1].events.iter().any(closed));
        assert!(p.now.since(start) < Duration::from_millis(10), "{:?}", p.now.since(start));
        let events = &p.hosts[1].events;
        let cut = |e: &Event| matches!(e, Event::Qp { event: QpEvent::Truncated(Cut::Start), .. });
        assert!(events.iter().any(cut), "{events:?}");
        let Some(Event::Closed { reason, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(*reason, CloseReason::Orderly);
        let done: Vec<_> = p.hosts[1].completions.iter().map(|c| c.1.status).collect();
        assert_eq!(done, [CqeStatus::Flushed]);
    }
}
