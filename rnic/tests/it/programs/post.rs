//! The path from the operations of a program to work requests and their expected results.

use crate::programs::derived::{Derived, Phase};
use crate::programs::draft::{Draft, GRANTED, Planned};
use crate::programs::memory::Store;
use crate::programs::program::{Kind, Op, pick};
use crate::programs::stream::{Bad, Buffer, Effect, Message, NO_BUFFER, Request, TOO_LONG};
use crate::programs::words::Atom;
use crate::programs::world::{SHARED, World};
use crate::sim::pattern;
use heddle_base::{Random, Seed};
use heddle_types::{Access, CqeOp, Data, PostError, RecvWr, SendOp, SendWr};

impl World {
    /// Carries out an operation of the program.
    pub fn carry_out(&mut self, op: &Op) {
        let mut random = Random::new(&Seed::from_u64(op.random));
        let r = &mut random;
        let (s, me) = (op.stream, op.side);
        match op.kind {
            Kind::Wrong(wrong) => self.do_wrong(r, s, me, wrong),
            Kind::Store => {
                let len = 1 + r.below(200) as usize;
                let at = r.below((SHARED - len) as u64) as usize;
                let data = pattern(op.random, len);
                self.pair.hosts[me].mem.write(at, &data);
                self.tick();
                self.stores[me].store(self.now, at, data);
            }
            Kind::Read | Kind::Atomic if self.streams[s].plan.ord[me] == 0 => {}
            Kind::Bind => self.bind_or_invalidate(r, s, me),
            Kind::BindWindow => self.rebind_window(r, me),
            Kind::UseOnce => {
                let read = self.streams[s].plan.ord[me] > 0 && r.chance(0.5);
                let kind = if read { Kind::Read } else { pick(r, &[Kind::Write, Kind::Send]) };
                self.use_once(r, s, me, kind, false);
            }
            Kind::Grant => self.grant(r, s, me),
            kind => {
                if let Some(draft) = self.draft(r, s, me, kind) {
                    self.post(r, s, me, draft);
                }
            }
        }
    }

    /// Posts a request, and notes its expected result. Returns true if the request will be carried
    /// out, as far as the model knows.
    pub fn post(&mut self, r: &mut Random, s: usize, me: usize, mut d: Draft) -> bool {
        self.tick();
        let (now, lane) = (self.now, 2 * s + me);
        let end = &self.streams[s].ends[me];
        let local = self.regions[me].local[s].stag;
        let uses_local = d.sges.iter().any(|sge| sge.stag == local && sge.len > 0);
        if end.over.is_some() {
            d = Draft { message: None, effect: Planned::None, ..d };
        } else if end.closing {
            d = Draft { message: None, ..d.bad(Bad::Refused(PostError::Closing)) };
        } else if uses_local && end.local_gone && d.bad == Bad::No {
            d = d.bad(Bad::Local);
        }
        let (id, signaled) = (u64::from(end.seq), !r.chance(0.25));
        let fence = d.fence || r.chance(0.15);
        let data = d.inline.as_deref().map_or(Data::Sges(&d.sges), Data::Inline);
        let wr = SendWr { wr_id: id, op: d.op, data, signaled, fence };
        match self.pair.driver(me).post_send(self.streams[s].ids[me], &wr) {
            Ok(()) => {}
            Err(PostError::Full) => {
                let depth = self.streams[s].plan.depth[me] as usize;
                assert!(end.requests.len() >= depth, "full with {}", end.requests.len());
                return false;
            }
            Err(e) => {
                assert!(end.over.is_some(), "{e}");
                return false;
            }
        }
        let end = &mut self.streams[s].ends[me];
        let seq = end.seq;
        end.seq += 1;
        if fence || d.what == CqeOp::LocalInvalidate {
            end.fence = seq;
        }
        if !matches!(d.bad, Bad::No | Bad::Refused(PostError::Closing)) {
            end.bad_from.get_or_insert(seq);
        }
        let message = d.message.map(|m| {
            end.messages.push(Message { seq, ..m });
            end.messages.len() - 1
        });
        let fence = end.fence;
        let effect = match d.effect {
            Planned::None => Effect::None,
            Planned::Write(at, data) => {
                let store = Store {
                    lane: Some(lane),
                    seq,
                    fence,
                    unordered: self.streams[s].plan.markers[1 - me],
                    start: now,
                    // The Write is too late already if the peer has ended.
                    end: self.streams[s].ends[1 - me].over,
                    certain: false,
                    at,
                    data,
                };
                self.stores[1 - me].stores.push(store);
                Effect::Write(self.stores[1 - me].stores.len() - 1)
            }
            Planned::Read(at) => Effect::Read(at),
            Planned::Atomic(word, change) => {
                let all = &mut self.words[1 - me][word].lanes[lane];
                all.push(Atom { change, start: now, found: None });
                Effect::Atomic(word, all.len() - 1)
            }
            Planned::Bind(i, stag, view) => {
                self.derived[me][i].name(stag, view, Phase::Posted(seq));
                Effect::Bind(i, stag)
            }
            Planned::Unbind(i) => {
                self.derived[me][i].phase = Phase::Leaving;
                Effect::Unbind(i, self.derived[me][i].stag)
            }
        };
        let invalidates = match d.op {
            SendOp::Send { invalidate, .. } if !matches!(d.bad, Bad::Refused(_)) => invalidate,
            _ => None,
        };
        let [a, b] = &mut self.streams[s].ends;
        let (end, peer) = if me == 0 { (a, b) } else { (b, a) };
        for w in peer.windows.iter_mut().filter(|w| Some(w.stag) == invalidates) {
            w.gone = true;
        }
        let may = |d: &Derived| d.alone && d.view.access.has(Access::REMOTE_INVALIDATE);
        let taken = |d: &&mut Derived| Some(d.stag) == invalidates && d.is_for(s) && may(d);
        for d in self.derived[1 - me].iter_mut().filter(taken) {
            d.phase = Phase::Taken;
        }
        let goes = end.over.is_none() && d.bad == Bad::No;
        end.requests.push_back(Request {
            id,
            what: d.what,
            len: d.len as u32,
            signaled,
            seq,
            start: now,
            held: d.held,
            effect,
            message,
            names: d.names,
            bad: d.bad,
        });
        if let (Some(len), Some(_)) = (d.buffer, message) {
            if self.late.is_some() {
                self.owed[s][1 - me].push_back(len);
            } else {
                self.post_buffer(r, s, 1 - me, len);
            }
        }
        goes
    }

    /// Posts receives, more than some turns take, and lets the peer know how many: by a Send of the
    /// same queue pair, or by another way than this stream. The peer may use all of them at once.
    fn grant(&mut self, r: &mut Random, s: usize, me: usize) {
        let count = pick(r, &[3, 20, 70, 250]);
        let me = if self.streams[s].plan.grants[me] { me } else { 1 - me };
        let end = &self.streams[s].ends[me];
        // The receive queue must keep room for the other receives of the program.
        if end.over.is_some() || end.closing || end.buffers.len() + count > 400 {
            return;
        }
        if r.chance(0.4) {
            for _ in 0..count {
                self.post_buffer(r, s, me, GRANTED);
            }
            self.outcome.count("granted beside the stream", count as u64);
            self.streams[s].ends[1 - me].granted += count;
            return self.use_grants(s, 1 - me);
        }
        let Some(mut draft) = self.send(r, s, me, None) else { return };
        for _ in 0..count {
            self.post_buffer(r, s, me, GRANTED);
        }
        if let Some(message) = &mut draft.message {
            message.grant = count;
        }
        self.outcome.count("granted", count as u64);
        self.post(r, s, me, draft);
    }

    /// Sends messages for the receives that the peer has posted, as far as the queue takes them.
    pub fn use_grants(&mut self, s: usize, me: usize) {
        let mut random = Random::new(&Seed::from_u64(self.now));
        while self.streams[s].ends[me].granted > 0 {
            let end = &mut self.streams[s].ends[me];
            if end.over.is_some() || end.closing || end.told.peer_closed > 0 {
                end.granted = 0;
                return;
            }
            let len = random.below(GRANTED as u64 + 1) as usize;
            let draft = self.send_of(&mut random, (s, me), None, len);
            let draft = draft.map(|d| Draft { buffer: None, ..d });
            let before = self.streams[s].ends[me].seq;
            if let Some(draft) = draft {
                self.post(&mut random, s, me, draft);
            }
            if self.streams[s].ends[me].seq == before {
                return;
            }
            self.streams[s].ends[me].granted -= 1;
        }
    }

    /// Posts receives that are late, `all` of them or some of each stream. Returns true if there
    /// were any.
    pub fn post_late(&mut self, all: bool) -> bool {
        let Some(mut r) = self.late.take() else { return false };
        let mut posted = false;
        for s in 0..self.streams.len() {
            for me in 0..2 {
                while (all || r.chance(0.3))
                    && let Some(len) = self.owed[s][me].pop_front()
                {
                    self.post_buffer(&mut r, s, me, len);
                    posted = true;
                }
            }
        }
        self.late = Some(r);
        posted
    }

    fn post_buffer(&mut self, r: &mut Random, s: usize, me: usize, len: usize) {
        if self.streams[s].plan.shared[me] {
            return self.post_shared(r, me);
        }
        // Earlier messages may leave a granted receive to this message, and the reverse.
        let len = if self.streams[s].plan.grants[me] { len.max(GRANTED) } else { len };
        let Some(at) = self.allocate(me, len) else {
            return self.streams[s].excuse(&[NO_BUFFER, TOO_LONG]);
        };
        let sges = self.pieces(r, self.regions[me].local[s].stag, at, len);
        let id = 1_000_000 + at as u64;
        let posted =
            self.pair.driver(me).post_recv(self.streams[s].ids[me], &RecvWr::new(id, &sges));
        match posted {
            Ok(()) => self.streams[s].ends[me].buffers.push_back(Buffer { id, at, len }),
            Err(e) => assert!(self.streams[s].ends[me].over.is_some(), "{e}"),
        }
    }
}
