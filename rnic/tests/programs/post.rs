//! From the operations of a program to work requests, and what they ought to do.

use heddle_base::{Random, Seed};
use heddle_iwarp::qp::PostError;
use heddle_iwarp::rdmap::AtomicOp;
use heddle_iwarp::{CqeOp, Data, RecvWr, SendOp, SendWr, Sge, Stag};
use heddle_rnic::RnicError;

use crate::memory::Store;
use crate::program::{Kind, Op, pick};
use crate::sim::{TO_BASE, pattern};
use crate::stream::{Bad, Buffer, Effect, Message, NO_BUFFER, Request, TOO_LONG};
use crate::words::{Atom, Change};
use crate::world::{SHARED, WORDS, WORDS_AT, World};

/// No region has it.
pub const NOWHERE: Stag = Stag(0x0055_5507);

/// A request that is being put together.
pub struct Draft {
    pub what: CqeOp,
    pub op: SendOp,
    pub sges: Vec<Sge>,
    pub inline: Option<Vec<u8>>,
    pub len: usize,
    pub held: Option<(usize, usize)>,
    pub fence: bool,
    pub effect: Planned,
    pub message: Option<Message>,
    /// Octets of the buffer that is posted for the message; none is, if absent.
    pub buffer: Option<usize>,
    pub names: Option<Stag>,
    pub bad: Bad,
}

pub enum Planned {
    None,
    Write(usize, Vec<u8>),
    Read(usize),
    Atomic(usize, Change),
}

impl Draft {
    pub fn new(what: CqeOp, op: SendOp) -> Draft {
        Draft {
            what,
            op,
            sges: Vec::new(),
            inline: None,
            len: 0,
            held: None,
            fence: false,
            effect: Planned::None,
            message: None,
            buffer: None,
            names: None,
            bad: Bad::No,
        }
    }

    pub fn bad(mut self, bad: Bad) -> Draft {
        self.bad = bad;
        self.effect = Planned::None;
        self
    }
}

impl World {
    /// Does what an operation of the program says.
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
            kind => {
                if let Some(draft) = self.draft(r, s, me, kind) {
                    self.post(r, s, me, draft);
                }
            }
        }
    }

    fn draft(&mut self, r: &mut Random, s: usize, me: usize, kind: Kind) -> Option<Draft> {
        match kind {
            Kind::Send => self.send(r, s, me, None),
            Kind::Immediate => Some(immediate(r)),
            Kind::SendInvalidate => {
                let i = self.streams[s].ends[1 - me].windows.iter().position(|w| !w.gone)?;
                let stag = self.streams[s].ends[1 - me].windows[i].stag;
                let mut draft = self.send(r, s, me, Some(stag))?;
                // What the region was read for has to be done.
                draft.fence = true;
                Some(draft)
            }
            Kind::EmptyNowhere => {
                let to = r.next_u64();
                let write = r.chance(0.5) || self.streams[s].plan.ord[me] == 0;
                Some(if write {
                    Draft::new(CqeOp::Write, SendOp::Write { stag: NOWHERE, to })
                } else {
                    Draft::new(CqeOp::Read, SendOp::Read { stag: NOWHERE, to })
                })
            }
            Kind::Write | Kind::WriteImmediate => {
                self.write(r, s, me, kind == Kind::WriteImmediate)
            }
            Kind::Read => {
                let len = size(r);
                let (stag, at, len) = self.target(r, s, me, len);
                let sink = self.allocate(me, len)?;
                let op = SendOp::Read { stag, to: at as u64 + TO_BASE };
                let sges = if len == 0 && r.chance(0.5) {
                    vec![]
                } else {
                    vec![self.sge(s, me, sink, len)]
                };
                let held = Some((sink, len));
                let (effect, names) = (Planned::Read(at), Some(stag));
                Some(Draft { sges, len, held, effect, names, ..Draft::new(CqeOp::Read, op) })
            }
            _ => self.atomic(r, s, me, 0),
        }
    }

    pub fn send(
        &mut self,
        r: &mut Random,
        s: usize,
        me: usize,
        invalidate: Option<Stag>,
    ) -> Option<Draft> {
        let solicited = r.chance(0.3);
        let len = size(r);
        let op = SendOp::Send { solicited, invalidate };
        let message = Message {
            seq: 0,
            data: pattern(r.next_u64(), len),
            solicited,
            invalidate,
            immediate: None,
        };
        let draft =
            Draft { len, buffer: Some(len + r.below(40) as usize), ..Draft::new(CqeOp::Send, op) };
        let mut draft = self.with_data(r, (s, me), draft, &message.data)?;
        draft.message = Some(message);
        Some(draft)
    }

    fn write(&mut self, r: &mut Random, s: usize, me: usize, more: bool) -> Option<Draft> {
        let len = size(r);
        let (stag, at, len) = self.target(r, s, me, len);
        let to = at as u64 + TO_BASE;
        let text = pattern(r.next_u64(), len);
        let mut draft = Draft::new(CqeOp::Write, SendOp::Write { stag, to });
        if more {
            let from = immediate(r);
            let (data, solicited) = match from.op {
                SendOp::Immediate { data, solicited } => (data, solicited),
                _ => unreachable!("made so"),
            };
            draft.op = SendOp::WriteImmediate { stag, to, data, solicited };
            (draft.message, draft.buffer) = (from.message, from.buffer);
        }
        draft.len = len;
        draft.names = Some(stag);
        draft = self.with_data(r, (s, me), draft, &text)?;
        if len > 0 {
            draft.effect = Planned::Write(at, text);
        }
        Some(draft)
    }

    /// An operation on one of the words, or `off` octets beside it.
    pub fn atomic(&mut self, r: &mut Random, s: usize, me: usize, off: u64) -> Option<Draft> {
        // Few words, so that many meet.
        let word = r.below(WORDS as u64) as usize;
        let change = if word == 0 || r.chance(0.5) {
            let mask =
                if word == 0 { 0 } else { pick(r, &[0, 0x8000_0000_8000_0000, u64::MAX, 1 << 63]) };
            Change::Add { add: r.next_u64(), mask }
        } else {
            // Small numbers, so that some are equal.
            let (compare_mask, swap_mask) =
                (pick(r, &[0, 1, 3, u64::MAX]), pick(r, &[7, u64::MAX]));
            Change::Swap { compare: r.below(4), compare_mask, swap: r.below(4), swap_mask }
        };
        let op = match change {
            Change::Add { add, mask } => AtomicOp::FetchAdd { add, mask },
            Change::Swap { compare, compare_mask, swap, swap_mask } => {
                AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask }
            }
        };
        let stag = self.regions[1 - me].atomics.stag;
        let to = (WORDS_AT + 8 * word) as u64 + TO_BASE + off;
        let sink = self.allocate(me, 8)?;
        let sges = vec![self.sge(s, me, sink, 8)];
        let op = SendOp::Atomic { stag, to, op };
        let (held, effect) = (Some((sink, 8)), Planned::Atomic(word, change));
        Some(Draft { sges, len: 8, held, effect, ..Draft::new(CqeOp::Atomic, op) })
    }

    /// Where a Write or Read of so many octets goes: anywhere in what all share, or in a region of
    /// this stream alone.
    fn target(&mut self, r: &mut Random, s: usize, me: usize, len: usize) -> (Stag, usize, usize) {
        let windows = &self.streams[s].ends[1 - me].windows;
        if r.chance(0.3)
            && let Some(w) = windows.iter().find(|w| !w.gone)
        {
            let len = len.min(w.len);
            return (w.stag, w.at + r.below((w.len - len) as u64 + 1) as usize, len);
        }
        let len = len.min(SHARED);
        let at = r.below((SHARED - len) as u64 + 1) as usize;
        (self.regions[1 - me].shared.stag, at, len)
    }

    /// Puts data into memory of a request, in pieces, or into the request.
    pub fn with_data(
        &mut self,
        r: &mut Random,
        (s, me): (usize, usize),
        draft: Draft,
        data: &[u8],
    ) -> Option<Draft> {
        if data.len() <= 512 && r.chance(0.3) {
            return Some(Draft { inline: Some(data.to_vec()), ..draft });
        }
        let at = self.allocate(me, data.len())?;
        self.pair.hosts[me].mem.write(at, data);
        let sges = self.pieces(r, (s, me), at, data.len());
        Some(Draft { sges, held: Some((at, data.len())), ..draft })
    }

    /// `len` octets from `at` on as one to five SGEs, some of them empty.
    fn pieces(&self, r: &mut Random, (s, me): (usize, usize), at: usize, len: usize) -> Vec<Sge> {
        let mut cuts: Vec<usize> =
            (0..r.below(5)).map(|_| r.below(len as u64 + 1) as usize).collect();
        cuts.sort_unstable();
        cuts.push(len);
        let mut from = 0;
        let all = cuts.into_iter().map(|upto| {
            let sge = self.sge(s, me, at + from, upto - from);
            from = upto;
            sge
        });
        all.collect()
    }

    pub fn sge(&self, s: usize, me: usize, at: usize, len: usize) -> Sge {
        let stag = self.regions[me].local[s].stag;
        Sge { stag, to: at as u64 + TO_BASE, len: len as u32 }
    }

    /// Posts, and enters what is to come of it.
    pub fn post(&mut self, r: &mut Random, s: usize, me: usize, mut d: Draft) {
        self.tick();
        let (now, lane) = (self.now, 2 * s + me);
        let end = &self.streams[s].ends[me];
        let uses_local = d.inline.is_none() && d.len > 0;
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
        match self.pair.hosts[me].rnic.post_send(self.streams[s].ids[me], &wr) {
            Ok(()) => {}
            Err(RnicError::Post(PostError::Full)) => {
                let depth = self.streams[s].plan.depth[me] as usize;
                assert!(end.requests.len() >= depth, "full with {}", end.requests.len());
                return;
            }
            Err(e) => {
                assert!(end.over.is_some(), "{e}");
                return;
            }
        }
        let end = &mut self.streams[s].ends[me];
        let seq = end.seq;
        end.seq += 1;
        if fence {
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
                    start: now,
                    // Too late already, if the peer has ended.
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
            self.post_buffer(r, s, 1 - me, len);
        }
    }

    fn post_buffer(&mut self, r: &mut Random, s: usize, me: usize, len: usize) {
        let Some(at) = self.allocate(me, len) else {
            return self.streams[s].excuse(&[NO_BUFFER, TOO_LONG]);
        };
        let sges = self.pieces(r, (s, me), at, len);
        let id = 1_000_000 + at as u64;
        let posted =
            self.pair.hosts[me].rnic.post_recv(self.streams[s].ids[me], &RecvWr::new(id, &sges));
        match posted {
            Ok(()) => self.streams[s].ends[me].buffers.push_back(Buffer { id, at, len }),
            Err(e) => assert!(self.streams[s].ends[me].over.is_some(), "{e}"),
        }
    }
}

/// Immediate Data alone, with a buffer for it.
fn immediate(r: &mut Random) -> Draft {
    let (data, solicited) = (r.next_u64(), r.chance(0.3));
    let message =
        Message { seq: 0, data: vec![], solicited, invalidate: None, immediate: Some(data) };
    let d = Draft::new(CqeOp::Immediate, SendOp::Immediate { data, solicited });
    Draft { message: Some(message), buffer: Some(r.below(20) as usize), ..d }
}

fn size(r: &mut Random) -> usize {
    match r.below(10) {
        0 => 0,
        1..=3 => 1 + r.below(40) as usize,
        4..=8 => r.below(1700) as usize,
        _ => r.below(6000) as usize,
    }
}
