//! Messages that find no receive, and wait for one: over a link, and in an RNIC with itself.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::sim::{LinkConfig, PORT, Pair, TO_BASE, pattern};
use heddle_engine::{SharedBroken, SharedReceives};
use heddle_iwarp::{QpConfig, QpEvent, Side};
use heddle_mr::MrAttr;
use heddle_rnic::{Event, RnicConfig};
use heddle_types::{
    Access, CloseReason, ConnId, ConnectedState, CqeStatus, RecvWr, SendWr, Sge, TermCode,
    wr::MAX_SGES,
};

const WAIT: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
/// Bytes of a message, which takes several segments.
const LEN: usize = 4000;
const MEMORY: usize = 1 << 20;

/// The place of both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Link,
    Inside,
}

const PLACES: [Place; 2] = [Place::Link, Place::Inside];

/// A connection over which host 1 has received a first message.
struct Harness {
    p: Pair,
    a: ConnId,
    b: ConnId,
    source: MrAttr,
    sink: MrAttr,
}

impl Harness {
    fn new(place: Place, wait: Duration, link: LinkConfig) -> Harness {
        let change = |c: &mut RnicConfig| c.rnr_wait = wait;
        let mut p = match place {
            Place::Link => Pair::with_config(3, link, MEMORY, change),
            Place::Inside => Pair::inside(3, link, MEMORY, change),
        };
        let crc = place == Place::Link;
        let qps = [0, 1].map(|h| QpConfig { pd: p.hosts[h].pd, crc, ..QpConfig::default() });
        let [a, b] = p.connect_to(PORT, [&qps[0], &qps[1]]);
        assert_eq!(p.rnic(0).is_handing(a), place == Place::Inside);
        let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
        let source = p.register(0, 0, MEMORY, rights);
        let sink = p.register(1, 0, MEMORY, rights);
        p.hosts[0].mem.write(0, &pattern(9, MEMORY));
        let mut harness = Harness { p, a, b, source, sink };
        harness.send_write(0, 0, 8);
        harness.p.run(SECOND, |p| !p.hosts[0].completions.is_empty());
        harness.p.hosts[0].completions.clear();
        harness
    }

    /// Returns the SGE of message `n`, which has its own bytes in host 0's memory, and goes to the
    /// same place in host 1's.
    fn sge(mr: MrAttr, n: usize) -> [Sge; 1] {
        [Sge { stag: mr.stag, to: TO_BASE + (n * LEN) as u64, len: LEN as u32 }]
    }

    fn send(&mut self, n: usize) {
        let sge = Self::sge(self.source, n);
        let wr = SendWr::send(n as u64, &sge);
        self.p.driver(0).rnic.post_send(self.a, &wr).unwrap();
    }

    fn send_write(&mut self, id: u64, at: usize, len: u32) {
        let sge = [Sge { stag: self.source.stag, to: TO_BASE + at as u64, len }];
        let wr = SendWr::write(id, &sge, self.sink.stag, TO_BASE + at as u64);
        self.p.driver(0).rnic.post_send(self.a, &wr).unwrap();
    }

    fn receive(&mut self, n: usize) {
        let wr = RecvWr { wr_id: n as u64, sges: &Self::sge(self.sink, n) };
        self.p.driver(1).rnic.post_recv(self.b, &wr).unwrap();
    }

    /// Returns the status of each message that host 1 has received.
    fn received(&self) -> Vec<(u64, CqeStatus)> {
        self.p.hosts[1].completions.iter().map(|(_, c)| (c.wr_id, c.status)).collect()
    }

    fn has(&self, n: usize) -> bool {
        self.p.hosts[1].mem.read(n * LEN, LEN) == self.p.hosts[0].mem.read(n * LEN, LEN)
    }

    fn runs(&self) -> bool {
        let runs = |id| self.p.rnic(0).qp(id).is_some_and(|q| q.state() == ConnectedState::Rts);
        let far = self.p.rnic(1).qp(self.b).is_some_and(|q| q.state() == ConnectedState::Rts);
        runs(self.a) && far
    }

    fn waits(&self) -> u64 {
        self.p.rnic(1).counters().rnr_waits
    }
}

fn successes(upto: u64) -> Vec<(u64, CqeStatus)> {
    (0..upto).map(|n| (n, CqeStatus::Success)).collect()
}

#[test]
fn test_messages_wait_for_receives_and_come_in_order() {
    for place in PLACES {
        let mut harness = Harness::new(place, WAIT, LinkConfig::default());
        for n in 0..5 {
            harness.send(n);
        }
        harness.p.pass(WAIT / 2);
        assert!(harness.runs() && harness.received().is_empty(), "{place:?}");
        assert_eq!(harness.waits(), 1, "{place:?}");
        // Each receive comes later than the wait allows for all of them, but the stream makes
        // progress.
        for n in 0..5 {
            harness.receive(n);
            harness.p.pass(WAIT * 3 / 4);
            assert_eq!(harness.received(), successes(n as u64 + 1), "{place:?}");
            assert!(harness.has(n) && harness.runs(), "{place:?}");
        }
        let sent = harness.p.hosts[0].completions.iter().map(|(_, c)| (c.wr_id, c.status));
        assert_eq!(sent.collect::<Vec<_>>(), successes(5), "{place:?}");
        // No message waits any more, and the RNIC looks at none.
        harness.p.pass(WAIT);
        assert!(harness.runs(), "{place:?}");
    }
}

#[test]
fn test_message_does_not_wait_when_receive_is_posted_in_time() {
    for place in PLACES {
        let mut harness = Harness::new(place, WAIT, LinkConfig::default());
        harness.receive(0);
        harness.send(0);
        harness.p.run(SECOND, |p| !p.hosts[1].completions.is_empty());
        assert_eq!((harness.received(), harness.waits()), (successes(1), 0), "{place:?}");
    }
}

#[test]
fn test_message_without_receive_ends_stream_after_rnr_wait() {
    for place in PLACES {
        for wait in [Duration::ZERO, WAIT] {
            let mut harness = Harness::new(place, wait, LinkConfig::default());
            harness.send(0);
            harness.p.pass(wait.saturating_sub(Duration::from_millis(100)));
            assert_eq!(harness.runs() && harness.waits() == 1, !wait.is_zero(), "{place:?}");
            harness.p.pass(Duration::from_millis(300));
            let told = |host: usize, by| {
                let code = TermCode::DDP_NO_BUFFER;
                harness.p.hosts[host].events.iter().any(|e| {
                    matches!(e, Event::Qp { event, .. } if *event == QpEvent::Terminated { by, code })
                })
            };
            assert!(told(0, Side::Remote) && told(1, Side::Local), "{place:?} {wait:?}");
            assert!(harness.received().is_empty());
        }
    }
}

#[test]
fn test_later_messages_do_not_overtake_a_waiting_message() {
    for place in PLACES {
        let mut harness = Harness::new(place, WAIT, LinkConfig::default());
        let before = harness.p.hosts[1].mem.read(3 * LEN, 64);
        harness.send(0);
        harness.send_write(7, 3 * LEN, 64);
        harness.p.pass(SECOND);
        assert_eq!(harness.p.hosts[1].mem.read(3 * LEN, 64), before, "{place:?}");
        harness.receive(0);
        harness.p.run(SECOND, |p| p.hosts[0].completions.len() == 2);
        harness.p.pass(Duration::from_millis(1));
        assert!(
            harness.p.hosts[1].mem.read(3 * LEN, 64) == harness.p.hosts[0].mem.read(3 * LEN, 64)
        );
    }
}

/// Neither end has a receive for the other's message, and each gets the message after it posts one.
#[test]
fn test_messages_of_both_ends_may_wait_at_the_same_time() {
    for place in PLACES {
        let mut harness = Harness::new(place, WAIT, LinkConfig::default());
        harness.send(0);
        let back = [Sge { stag: harness.sink.stag, to: TO_BASE, len: 100 }];
        let b = harness.b;
        harness.p.driver(1).rnic.post_send(b, &SendWr::send(50, &back)).unwrap();
        harness.p.pass(SECOND);
        assert!(
            harness.runs() && !harness.received().contains(&(0, CqeStatus::Success)),
            "{place:?}"
        );
        harness.receive(0);
        harness.p.pass(SECOND / 2);
        assert!(
            harness.received().contains(&(0, CqeStatus::Success)) && harness.has(0),
            "{place:?}"
        );
        let a = harness.a;
        let wr = RecvWr { wr_id: 60, sges: &Harness::sge(harness.source, 9) };
        harness.p.driver(0).rnic.post_recv(a, &wr).unwrap();
        harness.p.pass(SECOND / 2);
        let had =
            |host: usize, id| harness.p.hosts[host].completions.iter().any(|(_, c)| c.wr_id == id);
        assert!(harness.runs() && had(0, 60) && had(1, 50), "{place:?}");
    }
}

/// The application posts its receive when its Read is complete.
#[test]
fn test_read_response_is_handed_over_ahead_of_a_message_that_waits() {
    let mut harness = Harness::new(Place::Inside, WAIT, LinkConfig::default());
    harness.send(0);
    harness.p.pass(SECOND);
    let to = [Sge { stag: harness.sink.stag, to: TO_BASE + 8 * LEN as u64, len: LEN as u32 }];
    let (b, far) = (harness.b, harness.source.stag);
    harness
        .p
        .driver(1)
        .rnic
        .post_send(b, &SendWr::read(70, &to, far, TO_BASE + 8 * LEN as u64))
        .unwrap();
    harness.p.pass(Duration::from_millis(10));
    assert_eq!(harness.received(), [(70, CqeStatus::Success)]);
    assert!(harness.has(8));
    harness.receive(0);
    harness.p.pass(Duration::from_millis(10));
    assert!(harness.received().contains(&(0, CqeStatus::Success)) && harness.has(0));
}

#[test]
fn test_peer_that_closes_behind_a_message_that_waits_has_it_delivered() {
    for place in PLACES {
        let mut harness = Harness::new(place, WAIT, LinkConfig::default());
        harness.send(0);
        let (now, a) = (harness.p.now, harness.a);
        harness.p.driver(0).rnic.disconnect(now, a);
        harness.p.pass(SECOND);
        let closed = |harness: &Harness| {
            harness.p.hosts[1].events.iter().any(|e| matches!(e, Event::PeerClosed { .. }))
        };
        assert!(!closed(&harness), "{place:?}");
        harness.receive(0);
        harness.receive(1);
        harness.p.pass(SECOND);
        let all = vec![(0, CqeStatus::Success), (1, CqeStatus::Flushed)];
        assert_eq!(harness.received(), all, "{place:?}");
        assert!(harness.has(0) && closed(&harness), "{place:?}");
    }
}

#[test]
fn test_connection_with_a_message_that_waits_ends_as_any_other() {
    for place in PLACES {
        for host in 0..2 {
            let mut harness = Harness::new(place, WAIT, LinkConfig::default());
            harness.send(0);
            harness.p.pass(SECOND);
            let id = [harness.a, harness.b][host];
            harness.p.driver(host).rnic.abort(id);
            harness.p.pass(2 * WAIT);
            for host in 0..2 {
                let events = &harness.p.hosts[host].events;
                let over = |e: &Event| {
                    let Event::Closed { reason, .. } = e else { return false };
                    matches!(reason, CloseReason::Aborted | CloseReason::Reset)
                };
                assert!(events.iter().any(over), "{place:?} {events:?}");
            }
            // A new connection finds no trace of the old one.
            let qps = [0, 1].map(|h| QpConfig {
                pd: harness.p.hosts[h].pd,
                crc: place == Place::Link,
                ..QpConfig::default()
            });
            [harness.a, harness.b] = harness.p.connect_to(PORT + 1, [&qps[0], &qps[1]]);
            harness.p.hosts.iter_mut().for_each(|h| h.completions.clear());
            harness.receive(1);
            harness.send(1);
            harness.p.run(SECOND, |p| !p.hosts[1].completions.is_empty());
            assert_eq!(harness.received(), [(1, CqeStatus::Success)], "{place:?}");
        }
    }
}

/// Receives to which some thread adds.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<VecDeque<(u64, Sge)>>>);

impl SharedReceives for Shared {
    fn take(&mut self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, SharedBroken> {
        let Some((id, sge)) = self.0.lock().unwrap().pop_front() else { return Ok(None) };
        sges.push(sge);
        Ok(Some(id))
    }
}

/// An application that posts to a shared queue rings no doorbell of a queue pair.
#[test]
fn test_receives_of_a_shared_queue_are_found_without_a_doorbell() {
    for place in PLACES {
        let mut harness = Harness::new(place, WAIT, LinkConfig::default());
        let shared = Shared::default();
        let (b, queue) = (harness.b, shared.clone());
        let rnic = &mut harness.p.driver(1).rnic;
        rnic.post_with(b, |qp| qp.share_receives(Box::new(queue))).unwrap();
        for n in 0..2 {
            harness.send(n);
        }
        harness.p.pass(SECOND);
        assert!(harness.runs() && harness.received().is_empty(), "{place:?}");
        for n in 0..2 {
            shared.0.lock().unwrap().push_back((n as u64, Harness::sge(harness.sink, n)[0]));
            harness.p.pass(Duration::from_millis(500));
            assert_eq!(harness.received(), successes(n as u64 + 1), "{place:?}");
            assert!(harness.has(n), "{place:?}");
        }
    }
}

/// The link loses, reorders and duplicates frames, and the application posts each receive at any
/// time.
#[test]
fn test_messages_wait_under_loss() {
    for seed in 0..20 {
        let link =
            LinkConfig { loss: 0.05, reorder: 0.05, duplicate: 0.05, ..LinkConfig::default() };
        let mut harness = Harness::new(Place::Link, Duration::from_secs(30), link);
        let late = Duration::from_micros(50 << (seed % 12));
        let (count, mut posted) = (100, 0);
        for n in 0..count {
            harness.send(n);
        }
        while harness.received().len() < count {
            if posted < count && harness.received().len() == posted {
                harness.p.pass(late);
                harness.receive(posted);
                posted += 1;
            }
            assert!(harness.p.step(), "seed {seed}: nothing happens any more");
        }
        assert_eq!(harness.received(), successes(count as u64), "seed {seed}");
        assert!((0..count).all(|n| harness.has(n)), "seed {seed}");
        assert!(harness.waits() > 0, "seed {seed}");
    }
}
