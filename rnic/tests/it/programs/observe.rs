//! The reports that applications get, and whether they are right.

use heddle_iwarp::{QpEvent, Side, rdmap::Terminate};
use heddle_rnic::Event;
use heddle_types::{CloseReason, ConnId, ConnectedState, Cqe, CqeOp, CqeStatus, PostError, Queue};

use crate::programs::derived::{Derived, Phase};
use crate::programs::memory::Look;
use crate::programs::regions::qpn;
use crate::programs::stream::{Bad, CRC, Effect, LOCAL, NO_BUFFER, Request, TOO_LONG};
use crate::programs::world::{GUARD, SHARED, World};

/// The byte that the application writes into its memory after a completion.
const FOREIGN: u8 = 0xf0;

impl World {
    /// Takes in the reports to the applications.
    pub fn observe(&mut self) {
        self.tick();
        for port in self.pair.damaged.drain(..) {
            if let Some(s) = self.streams.iter_mut().find(|s| s.port == port) {
                s.poisoned = true;
                // If a Terminate is damaged, only the FIN after it arrives.
                s.excuse(&[CRC, LOCAL]);
                self.outcome.count("damaged", 1);
            }
        }
        for me in 0..2 {
            self.hand_out(me);
            for event in std::mem::take(&mut self.pair.hosts[me].events) {
                self.handle_event(me, event);
            }
        }
        self.notice_ends();
        // Handle receive completions first: the acknowledgment of a message is reported after its
        // arrival.
        let told = [0, 1].map(|me: usize| std::mem::take(&mut self.pair.hosts[me].completions));
        for queue in [Queue::Rq, Queue::Sq] {
            for (me, all) in told.iter().enumerate() {
                for (conn, cqe) in all.iter().filter(|(_, cqe)| cqe.queue == queue) {
                    let s = self.stream_of(me, *conn);
                    match queue {
                        Queue::Rq => self.received(s, me, cqe),
                        Queue::Sq => self.sent(s, me, cqe),
                    }
                }
            }
        }
        (0..2).for_each(|me| self.check_held(me));
        for s in 0..self.streams.len() {
            for me in 0..2 {
                self.use_grants(s, me);
                if self.streams[s].ends[me].closed.is_some() {
                    self.finish_queues(s, me);
                }
            }
        }
    }

    fn stream_of(&self, me: usize, conn: ConnId) -> usize {
        self.streams.iter().position(|s| s.ids[me] == conn).expect("a stream of this host")
    }

    fn handle_event(&mut self, me: usize, event: Event) {
        let (Event::Qp { conn, .. }
        | Event::PeerTerminate { conn, .. }
        | Event::PeerClosed { conn }
        | Event::Closed { conn, .. }) = event
        else {
            panic!("{event:?} of a stream that runs");
        };
        let s = self.stream_of(me, conn);
        let stream = &mut self.streams[s];
        assert_eq!(stream.ends[me].closed, None, "{event:?} behind the end");
        match event {
            Event::Qp { event: QpEvent::FirstFpdu, .. } => stream.ends[me].told.first += 1,
            Event::Qp { event: QpEvent::Terminated { by, code }, .. } => {
                stream.check_code(code);
                stream.ends[me].told.ended += 1;
                if by == Side::Local && stream.plan.shared[me] {
                    let code = (code.layer, code.etype, code.code);
                    self.outcome.count("no shared buffer", u64::from(code == NO_BUFFER));
                }
                let by = if by == Side::Local { "here" } else { "there" };
                self.outcome.count(format!("terminated {by}"), 1);
            }
            Event::Qp { event: QpEvent::Failed { code }, .. } => {
                stream.check_code(code);
                stream.ends[me].told.ended += 1;
            }
            // Only the peer's application can cause a truncated stream.
            Event::Qp { event: QpEvent::Truncated(cut), .. } => {
                assert!(stream.excused, "{cut:?}");
                stream.ends[me].told.ended += 1;
                self.outcome.count(format!("truncated {cut:?}"), 1);
            }
            Event::PeerTerminate { terminate, .. } => {
                stream.check_code(Terminate::from(&*terminate).code);
                stream.ends[me].told.headers += 1;
                assert!(stream.ends[me].told.headers <= stream.ends[me].told.ended);
            }
            Event::PeerClosed { .. } => stream.ends[me].told.peer_closed += 1,
            Event::Closed { reason, .. } => {
                assert!(stream.excused || reason == CloseReason::Orderly, "{reason:?}");
                stream.ends[me].closed = Some(reason);
                self.outcome.count(format!("{reason:?}"), 1);
                self.revoke_bound(s, me);
            }
            other => panic!("{other:?}"),
        }
        let told = &self.streams[s].ends[me].told;
        assert!(told.first <= 1 && told.ended <= 1 && told.peer_closed <= 1, "{told:?}: twice");
    }

    /// Notes the streams that are over at an end: the RNIC places nothing there any more.
    fn notice_ends(&mut self) {
        for (s, stream) in self.streams.iter_mut().enumerate() {
            for me in 0..2 {
                let qp = self.pair.rnic(me).qp(stream.ids[me]);
                let lives = qp.is_some_and(|q| {
                    matches!(q.state(), ConnectedState::Rts | ConnectedState::Closing)
                });
                if !lives && stream.ends[me].over.is_none() {
                    stream.ends[me].over = Some(self.now);
                    self.stores[me].cap(2 * s + 1 - me, self.now);
                }
            }
        }
    }

    /// Handles the completion of a receive buffer.
    fn received(&mut self, s: usize, me: usize, cqe: &Cqe) {
        let (now, lane) = (self.now, 2 * s + 1 - me);
        let buffer = self.streams[s].ends[me].buffers.pop_front().expect("a buffer nobody posted");
        assert_eq!(cqe.wr_id, buffer.id, "buffers in order");
        let host = &self.pair.hosts[me];
        if cqe.status == CqeStatus::Success {
            let sender = &mut self.streams[s].ends[1 - me];
            let m = sender.messages.get(sender.delivered).expect("a message nobody sent").clone();
            sender.delivered += 1;
            assert!(
                sender.bad_from.is_none_or(|bad| m.seq < bad),
                "{m:?} behind {:?}",
                sender.bad_from
            );
            assert_eq!((cqe.solicited, cqe.immediate), (m.solicited, m.immediate));
            assert_eq!((cqe.len as usize, cqe.invalidated), (m.data.len(), m.invalidate));
            assert!(m.data.len() <= buffer.len, "longer than the buffer");
            assert_eq!(host.mem.read(buffer.at, m.data.len()), m.data, "{m:?}");
            let rest = host.mem.read(buffer.at + m.data.len(), buffer.len - m.data.len());
            assert!(rest.iter().all(|b| *b == GUARD), "bytes behind the message");
            if let Some(stag) = m.invalidate {
                let qpn = qpn(s, me);
                assert!(host.mrs.check_invalidate(host.pd, qpn, stag).is_err(), "still valid");
                self.outcome.count("invalidated", 1);
                if let Some(d) = self.derived[me].iter_mut().find(|d| d.stag == stag) {
                    // The queue pair may have ended since, which is reported first.
                    let over = self.streams[s].ends[me].closed.is_some() && d.phase == Phase::Gone;
                    assert!(over || d.phase == Phase::Taken, "{d:?}");
                    d.phase = if over { Phase::Gone } else { Phase::Free };
                    self.outcome.count("invalidated by the peer", 1);
                }
            }
            self.outcome.count("Recv", 1);
            self.streams[s].ends[me].granted += m.grant;
            self.outcome.count("immediate", u64::from(m.immediate.is_some()));
            // STags bound before the message are bound now: the message is how the peer learns of
            // them.
            let told = |d: &&mut Derived| {
                d.stream == Some(s) && matches!(d.phase, Phase::Posted(seq) if seq < m.seq)
            };
            self.derived[1 - me].iter_mut().filter(told).for_each(|d| d.phase = Phase::Bound);
            // Earlier Writes are in place, and so is the Write that the message belongs to.
            self.stores[me].settle(lane, m.seq + 1, now);
            self.tick();
            self.look(me, "with the message");
        } else {
            let stream = &self.streams[s];
            assert!(
                matches!(cqe.status, CqeStatus::Flushed | CqeStatus::LocalLength)
                    || cqe.status == CqeStatus::LocalProtection && stream.ends[me].local_gone,
                "{cqe:?}"
            );
            let long = stream.codes.contains(&TOO_LONG);
            assert!(long || cqe.status != CqeStatus::LocalLength, "{cqe:?}");
            let end = &stream.ends[me];
            assert!(
                end.over.is_some() || end.told.peer_closed > 0,
                "{cqe:?} of a stream that goes on"
            );
            if stream.plan.shared[me] {
                self.outcome.count("shared and not complete", 1);
            }
            self.count_status(cqe);
        }
        self.give_back(me, buffer.at, buffer.len);
    }

    /// Handles the completion of a send request, and of the silent requests before it.
    fn sent(&mut self, s: usize, me: usize, cqe: &Cqe) {
        loop {
            let r = self.streams[s].ends[me].requests.pop_front();
            let r = r.unwrap_or_else(|| panic!("a request nobody posted, or twice: {cqe:?}"));
            let last = r.id == cqe.wr_id;
            assert!(last || !r.signaled, "{r:?} has been left out before {cqe:?}");
            let status = if last { cqe.status } else { CqeStatus::Success };
            if last {
                assert_eq!(cqe.op, r.what);
                let len = if cqe.status.is_success() { r.len } else { 0 };
                assert_eq!(cqe.len, len, "{cqe:?}");
                assert!(r.signaled || !cqe.status.is_success(), "{r:?} was to be silent");
                self.count_status(cqe);
            }
            self.completed(s, me, &r, status);
            if last {
                return;
            }
        }
    }

    fn completed(&mut self, s: usize, me: usize, r: &Request, status: CqeStatus) {
        let stream = &mut self.streams[s];
        let codes = std::mem::take(&mut stream.codes);
        stream.ends[me].check_status(r, status, &codes);
        stream.codes = codes;
        let late = r.bad == Bad::Refused(PostError::Closing);
        assert!(stream.excused || status.is_success() || late, "{r:?}: {status:?}");
        if status.is_success() {
            self.succeeded(s, me, r);
            let derived = |stag| self.derived[1 - me].iter().any(|d| stag == Some(d.stag));
            if r.names.is_some() && derived(r.names) {
                self.outcome.count(format!("{:?} by a window", r.what), 1);
            }
        } else {
            self.streams[s].ends[me].astray.extend(r.names);
        }
        if let Some((at, len)) = r.held {
            self.give_back(me, at, len);
        }
    }

    fn succeeded(&mut self, s: usize, me: usize, r: &Request) {
        let (now, peer, lane) = (self.now, 1 - me, 2 * s + me);
        let stream = &self.streams[s];
        // The bytes that TCP has acknowledged are in place, unless the peer's stream was over by
        // then.
        let proven = stream.ends[peer].over.is_none() && !stream.poisoned;
        assert!(r.bad == Bad::No || !proven, "{r:?} succeeded");
        if let (Some(i), true) = (r.message, proven) {
            assert!(stream.ends[me].delivered > i, "{r:?} is complete and did not arrive");
        }
        match r.effect {
            Effect::Write(i) if proven => {
                self.stores[peer].settle(lane, r.seq + 1, now);
                let (at, len) = (self.stores[peer].stores[i].at, r.len as usize);
                self.tick();
                let found = self.pair.hosts[peer].mem.read(at, len);
                self.stores[peer].check(at, &found, Look::at(self.now), "complete Write");
            }
            Effect::Read(at) => {
                assert_eq!(r.bad, Bad::No);
                let look = Look { lane: Some(lane), seq: r.seq, start: r.start, end: now };
                if let Some((sink, len)) = r.held {
                    let found = self.pair.hosts[me].mem.read(sink, len);
                    self.stores[peer].check(at, &found, look, "Read");
                }
            }
            Effect::Atomic(word, i) => {
                let (sink, _) = r.held.unwrap();
                let found = self.pair.hosts[me].mem.read(sink, 8).try_into().unwrap();
                let atom = &mut self.words[peer][word].lanes[lane][i];
                atom.found = Some((now, u64::from_ne_bytes(found)));
            }
            Effect::Bind(i, stag) => self.bound(me, i, stag),
            Effect::Unbind(i, stag) => self.unbound(me, i, stag),
            _ => assert!(!matches!(r.what, CqeOp::FetchAdd | CqeOp::CmpSwap), "{r:?}"),
        }
    }

    fn count_status(&mut self, cqe: &Cqe) {
        let what = match cqe.status {
            CqeStatus::LocalQpOperation(PostError::BindData) => "refused: BindData".into(),
            CqeStatus::LocalBind(why) => format!("{why:?}"),
            CqeStatus::Success => format!("{:?}", cqe.op),
            CqeStatus::Flushed => "flushed".into(),
            other => format!("{other:?}").split('(').next().unwrap_or_default().into(),
        };
        self.outcome.count(what, 1);
    }

    /// Gives memory back to the application, which overwrites it.
    fn give_back(&mut self, me: usize, at: usize, len: usize) {
        self.pair.hosts[me].mem.write(at, &vec![FOREIGN; len]);
        self.back[me].push((at, len, FOREIGN));
    }

    /// Handles the last report of an end: the requests that have not completed must be silent ones.
    fn finish_queues(&mut self, s: usize, me: usize) {
        while let Some(r) = self.streams[s].ends[me].requests.pop_front() {
            assert!(!r.signaled, "{r:?} did not complete");
            self.completed(s, me, &r, CqeStatus::Success);
        }
        assert!(self.streams[s].ends[me].buffers.is_empty(), "buffers did not complete");
    }

    /// Looks at all shared memory.
    pub fn look(&mut self, host: usize, who: &str) {
        let found = self.pair.hosts[host].mem.read(0, SHARED);
        self.stores[host].check(0, &found, Look::at(self.now), who);
        self.probe(host);
    }
}
