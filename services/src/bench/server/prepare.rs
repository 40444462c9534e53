//! A client from its greeting on until its memory is ready, and the end of a bidirectional run: the
//! server clears, fills and compares memory in pieces.

use heddle_verbs::{
    Access, Data, Device, DeviceError, Mr, OwnedPd, PostError, Qp, RecvWr, Reservation, SendOp,
    SendWr,
};

use super::super::hello::{Hello, Region, Welcome};
use super::super::{CREDIT_LEN, pattern, send_window};
use super::serving::{CREDITS, GRANT, Serving};
use super::source;
use crate::bench::Op;
use crate::connections::wr_id;

/// A connection, with the objects that it has from the start.
pub(super) struct Client {
    pub(super) hello: Hello,
    pub(super) pd: OwnedPd,
    pub(super) qp: Qp,
    /// The source of the grant or refusal.
    pub(super) talk: Mr,
    pub(super) stage: Stage,
}

/// How far the preparation of a connection's memory is.
pub(super) enum Stage {
    /// The client has not asked for memory, or was refused.
    Greeted,
    /// Some of the memory is not cleared yet.
    Clearing(Reservation),
    /// This many bytes are filled with the pattern that the client reads.
    Filling(Mr, usize),
    /// The client has its memory.
    Serving(Box<Serving>),
}

/// Why a connection cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Client {
    /// Prepares or compares a piece of memory. Returns true after the last, when the client has been
    /// informed.
    #[cold]
    pub(super) fn prepare(&mut self, device: &Device, place: usize) -> Result<bool, PrepareError> {
        let local = match core::mem::replace(&mut self.stage, Stage::Greeted) {
            Stage::Clearing(mut memory) => {
                if !memory.clear(PIECE) {
                    self.stage = Stage::Clearing(memory);
                    return Ok(false);
                }
                let rights = match self.hello.op {
                    Op::Write => Access::REMOTE_WRITE.with(Access::REMOTE_READ),
                    // The destination of the server's own Reads is in the same region.
                    Op::Read if self.hello.bidirectional => {
                        Access::REMOTE_READ.with(Access::LOCAL_WRITE)
                    }
                    Op::Read => Access::REMOTE_READ,
                    Op::Send | Op::SendImm => Access::LOCAL_WRITE,
                    Op::WriteImm => Access::REMOTE_WRITE,
                    Op::FetchAdd | Op::CmpSwap => Access::REMOTE_ATOMIC.with(Access::REMOTE_READ),
                };
                let local = device.register_reserved(self.pd.id(), memory, rights)?;
                if let Some(first) = first_filled(&self.hello) {
                    self.stage = Stage::Filling(local, first);
                    return Ok(false);
                }
                local
            }
            Stage::Filling(local, at) => {
                let at = self.fill(&local, at);
                if at < end_filled(&self.hello) && self.hello.size > 0 {
                    self.stage = Stage::Filling(local, at);
                    return Ok(false);
                }
                local
            }
            Stage::Serving(mut serving) => {
                let Serving { source, local, .. } = &mut *serving;
                let tally = source.as_mut().and_then(|s| s.compare(local, PIECE));
                self.stage = Stage::Serving(serving);
                if let Some(tally) = tally {
                    self.say(place, &tally.encode())?;
                }
                return Ok(tally.is_some());
            }
            Stage::Greeted => return Ok(true),
        };
        let credits = device.alloc_mr(self.pd.id(), CREDITS as usize * CREDIT_LEN, Access::NONE)?;
        let serving = Serving::new(self.hello, self.qp.clone(), local, credits);
        let window = send_window(self.hello.mode, self.hello.depth);
        if self.hello.op.takes_buffer() {
            (0..window).try_for_each(|b| serving.post_buffer(place, b))?;
        }
        let len = if matches!(self.hello.op, Op::Send | Op::SendImm) {
            0
        } else {
            region_of(&self.hello)
        };
        if self.hello.bidirectional {
            (0..source::MESSAGES).try_for_each(|n| {
                self.qp.post_recv(&RecvWr { wr_id: wr_id(place, n), sges: &[] })
            })?;
        }
        let region = Region { stag: serving.local.stag(), to: serving.local.to(), len };
        self.stage = Stage::Serving(Box::new(serving));
        self.say(place, &Welcome { window, region }.encode())?;
        Ok(true)
    }

    /// Fills a piece from `at` on with the pattern that the client reads, and returns where the
    /// next piece begins.
    fn fill(&self, local: &Mr, at: usize) -> usize {
        let size = self.hello.size as usize;
        let (slot, within) = (at.checked_div(size).unwrap_or(0), at.checked_rem(size).unwrap_or(0));
        let slot = slot % self.hello.depth as usize;
        let mut piece = vec![0; PIECE.min(size - within)];
        pattern::fill_from(&mut piece, self.hello.seed, slot as u64, within as u64 / 8);
        local.write(at, &piece);
        at + piece.len()
    }

    pub(super) fn say(&self, place: usize, text: &[u8]) -> Result<(), PostError> {
        self.talk.write(0, text);
        self.qp.post_send(&SendWr {
            wr_id: wr_id(place, GRANT),
            op: SendOp::Send { solicited: true, invalidate: None },
            data: Data::Sges(&[self.talk.sge(0, text.len())]),
            signaled: true,
            fence: false,
        })
    }
}

/// Returns the number of receive buffers for a client: for its messages, or for the one that asks
/// for its memory.
pub(super) fn receives(hello: &Hello) -> u32 {
    if hello.op.takes_buffer() {
        send_window(hello.mode, hello.depth)
    } else if hello.bidirectional {
        source::MESSAGES
    } else {
        1
    }
}

/// Returns the number of requests that the server has outstanding for a client: its credits, a
/// grant or tally, and its own operations.
pub(super) fn sends(hello: &Hello) -> u32 {
    CREDITS + 1 + if hello.bidirectional { hello.depth } else { 0 }
}

/// Returns the room that a client needs in each completion queue.
pub(super) fn completions(hello: &Hello) -> u32 {
    receives(hello).max(sends(hello))
}

/// Returns the bytes of the region that the client's operations reach.
fn region_of(hello: &Hello) -> u64 {
    let window = send_window(hello.mode, hello.depth);
    let slots = if hello.op.takes_buffer() { window } else { hello.depth };
    (u64::from(slots) * u64::from(hello.size)).max(1)
}

/// Returns the first byte to fill with the pattern: of the client's Reads, or of the server's own
/// Writes, which leave from beyond the client's region.
fn first_filled(hello: &Hello) -> Option<usize> {
    match hello.op {
        Op::Read => Some(0),
        Op::Write if hello.bidirectional => usize::try_from(region_of(hello)).ok(),
        _ => None,
    }
}

/// Returns the end of the bytes to fill with the pattern.
fn end_filled(hello: &Hello) -> usize {
    let end = if hello.op == Op::Write { memory_of(hello) } else { region_of(hello) };
    usize::try_from(end).unwrap_or(usize::MAX)
}

/// Returns the bytes of memory that a client asks for.
pub(super) fn memory_of(hello: &Hello) -> u64 {
    region_of(hello) * if hello.bidirectional { 2 } else { 1 }
}

/// Bytes cleared, filled or compared in one step, which takes some 20 microseconds.
const PIECE: usize = 256 << 10;
