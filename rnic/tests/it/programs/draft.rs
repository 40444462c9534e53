//! Requests before they are posted: their content, and the effect that they should have.

use heddle_base::Random;
use heddle_types::{Access, AtomicOp, CqeOp, SendOp, Sge, Stag};

use crate::programs::derived::{Derived, View};
use crate::programs::program::{Kind, pick};
use crate::programs::shared::SHARED_BUFFER;
use crate::programs::stream::{Bad, Message};
use crate::programs::words::Change;
use crate::programs::world::{SHARED, WORDS, WORDS_AT, World};
use crate::sim::{TO_BASE, pattern};

/// An STag that no region has.
pub const NOWHERE: Stag = Stag(0x0055_5507);

/// Bytes of a receive that is granted, and the most bytes of a message that may get such a receive.
pub const GRANTED: usize = 64;

/// A request in preparation.
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
    /// Bytes of the buffer to post for the message; no buffer if absent.
    pub buffer: Option<usize>,
    pub names: Option<Stag>,
    pub bad: Bad,
}

pub enum Planned {
    None,
    Write(usize, Vec<u8>),
    Read(usize),
    Atomic(usize, Change),
    /// Gives an STag that derives from a region, by its place in the list, another name and memory.
    Bind(usize, Stag, View),
    /// Invalidates an STag that derives from a region.
    Unbind(usize),
}

/// The target of a request: an STag of the peer, a tagged offset, the address that the offset
/// stands for, and the number of bytes.
struct Target {
    stag: Stag,
    to: u64,
    at: usize,
    len: usize,
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
    pub fn draft(&mut self, r: &mut Random, s: usize, me: usize, kind: Kind) -> Option<Draft> {
        match kind {
            Kind::Send => self.send(r, s, me, None),
            Kind::Immediate => Some(immediate(r)),
            Kind::SendInvalidate => {
                let stag = self.to_invalidate(r, s, me)?;
                let mut draft = self.send(r, s, me, Some(stag))?;
                // The Reads that the region was for must be complete.
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
                let Target { stag, to, at, len } =
                    self.target(r, s, me, (len, Access::REMOTE_READ));
                let sink = self.allocate(me, len)?;
                let op = SendOp::Read { stag, to };
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
        let len = size(r);
        // The message must fit any buffer of a shared queue.
        let plan = &self.streams[s].plan;
        let len = match (plan.shared[1 - me], plan.grants[1 - me]) {
            (true, _) => len % SHARED_BUFFER,
            // The message must also fit any granted receive.
            (_, true) => len % (GRANTED + 1),
            _ => len,
        };
        self.send_of(r, (s, me), invalidate, len)
    }

    /// Returns a Send of `len` bytes.
    pub fn send_of(
        &mut self,
        r: &mut Random,
        (s, me): (usize, usize),
        invalidate: Option<Stag>,
        len: usize,
    ) -> Option<Draft> {
        let solicited = r.chance(0.3);
        let op = SendOp::Send { solicited, invalidate };
        let message = Message {
            seq: 0,
            data: pattern(r.next_u64(), len),
            solicited,
            invalidate,
            immediate: None,
            grant: 0,
        };
        let draft =
            Draft { len, buffer: Some(len + r.below(40) as usize), ..Draft::new(CqeOp::Send, op) };
        let mut draft = self.with_data(r, (s, me), draft, &message.data)?;
        (draft.message, draft.names) = (Some(message), invalidate);
        Some(draft)
    }

    fn write(&mut self, r: &mut Random, s: usize, me: usize, more: bool) -> Option<Draft> {
        let len = size(r);
        let Target { stag, to, at, len } = self.target(r, s, me, (len, Access::REMOTE_WRITE));
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

    /// Returns an operation on one of the words, or `off` bytes beside it.
    pub fn atomic(&mut self, r: &mut Random, s: usize, me: usize, off: u64) -> Option<Draft> {
        // Use few words, so that many operations meet.
        let word = r.below(WORDS as u64) as usize;
        let change = if word == 0 || r.chance(0.5) {
            let mask =
                if word == 0 { 0 } else { pick(r, &[0, 0x8000_0000_8000_0000, u64::MAX, 1 << 63]) };
            Change::Add { add: r.next_u64(), mask }
        } else {
            // Use small numbers, so that some are equal.
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
        let (stag, to) = self.word(r, s, me, WORDS_AT + 8 * word);
        let to = to.wrapping_add(off);
        let sink = self.allocate(me, 8)?;
        let sges = vec![self.sge(s, me, sink, 8)];
        let (what, op) = (op.into(), SendOp::Atomic { stag, to, op });
        let (held, effect) = (Some((sink, 8)), Planned::Atomic(word, change));
        let names = Some(stag);
        Some(Draft { sges, len: 8, held, effect, names, ..Draft::new(what, op) })
    }

    /// Returns an STag that a stream's Send may invalidate.
    pub fn to_invalidate(&self, r: &mut Random, s: usize, me: usize) -> Option<Stag> {
        let derived = self.some_derived(r, 1 - me, |d| {
            d.is_for(s) && d.view.access.has(Access::REMOTE_INVALIDATE)
        });
        if let Some(i) = derived.filter(|_| r.chance(0.7)) {
            return Some(self.derived[1 - me][i].stag);
        }
        self.streams[s].ends[1 - me].windows.iter().find(|w| !w.gone).map(|w| w.stag)
    }

    /// Returns an STag and a tagged offset for the word at an address.
    fn word(&self, r: &mut Random, s: usize, me: usize, at: usize) -> (Stag, u64) {
        let shows = |d: &Derived| {
            let View { at: from, len, access, .. } = d.view;
            let has = access.has(Access::REMOTE_ATOMIC) && from <= at && at + 8 <= from + len;
            d.is_for(s) && has
        };
        if let Some(i) = self.some_derived(r, 1 - me, shows).filter(|_| r.chance(0.5)) {
            let d = &self.derived[1 - me][i];
            return (d.stag, d.view.to + (at - d.view.at) as u64);
        }
        (self.regions[1 - me].atomics.stag, at as u64 + TO_BASE)
    }

    /// Returns the target of a Write or Read of `len` bytes: anywhere in the memory that all
    /// streams share, in a part of it that a region of this stream alone names, or in memory of an
    /// STag that derives from a region.
    fn target(&self, r: &mut Random, s: usize, me: usize, (len, need): (usize, Access)) -> Target {
        let within = |r: &mut Random, stag, (to, at, most): (u64, usize, usize)| {
            let len = len.min(most);
            let off = r.below((most - len) as u64 + 1);
            Target { stag, to: to + off, at: at + off as usize, len }
        };
        let choice = r.below(10);
        let derived = self.some_derived(r, 1 - me, |d| d.is_for(s) && d.view.access.has(need));
        if let (5.., Some(i)) = (choice, derived) {
            let Derived { stag, view, .. } = self.derived[1 - me][i];
            return within(r, stag, (view.to, view.at, view.len));
        }
        let windows = &self.streams[s].ends[1 - me].windows;
        if let (3.., Some(w)) = (choice, windows.iter().find(|w| !w.gone)) {
            return within(r, w.stag, (w.at as u64 + TO_BASE, w.at, w.len));
        }
        within(r, self.regions[1 - me].shared.stag, (TO_BASE, 0, SHARED))
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
        let sges = self.pieces(r, self.regions[me].local[s].stag, at, data.len());
        Some(Draft { sges, held: Some((at, data.len())), ..draft })
    }

    /// Returns `len` bytes from `at` on as one to five SGEs, some of them empty.
    pub fn pieces(&self, r: &mut Random, stag: Stag, at: usize, len: usize) -> Vec<Sge> {
        let mut cuts: Vec<usize> =
            (0..r.below(5)).map(|_| r.below(len as u64 + 1) as usize).collect();
        cuts.sort_unstable();
        cuts.push(len);
        let mut from = 0;
        let all = cuts.into_iter().map(|upto| {
            let (to, len) = ((at + from) as u64 + TO_BASE, (upto - from) as u32);
            from = upto;
            Sge { stag, to, len }
        });
        all.collect()
    }

    pub fn sge(&self, s: usize, me: usize, at: usize, len: usize) -> Sge {
        let stag = self.regions[me].local[s].stag;
        Sge { stag, to: at as u64 + TO_BASE, len: len as u32 }
    }
}

/// Returns Immediate Data alone, with a buffer for it.
fn immediate(r: &mut Random) -> Draft {
    let (data, solicited) = (r.next_u64(), r.chance(0.3));
    let message = Message {
        seq: 0,
        data: vec![],
        solicited,
        invalidate: None,
        immediate: Some(data),
        grant: 0,
    };
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
