//! A client from its greeting on until its memory is ready: the server clears and fills the memory
//! in pieces.

use heddle_verbs::{
    Access, Data, Device, DeviceError, Mr, OwnedPd, PostError, Qp, Reservation, SendOp, SendWr,
};

use super::super::hello::{Hello, Region, Welcome};
use super::super::{CREDIT_LEN, pattern, send_window};
use super::serving::{CREDITS, GRANT, Serving};
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
    /// Prepares a piece of memory. Returns true after all is ready and the client has been
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
                    Op::Read => Access::REMOTE_READ,
                    Op::Send | Op::SendImm => Access::LOCAL_WRITE,
                    Op::WriteImm => Access::REMOTE_WRITE,
                    Op::FetchAdd | Op::CmpSwap => Access::REMOTE_ATOMIC.with(Access::REMOTE_READ),
                };
                let local = device.register_reserved(self.pd.id(), memory, rights)?;
                if self.hello.op == Op::Read {
                    self.stage = Stage::Filling(local, 0);
                    return Ok(false);
                }
                local
            }
            Stage::Filling(local, at) => {
                let at = self.fill(&local, at);
                if at < local.len() && self.hello.size > 0 {
                    self.stage = Stage::Filling(local, at);
                    return Ok(false);
                }
                local
            }
            other => {
                self.stage = other;
                return Ok(true);
            }
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
            serving.local.len() as u64
        };
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
    if hello.op.takes_buffer() { send_window(hello.mode, hello.depth) } else { 1 }
}

/// Returns the bytes of memory that a client asks for.
pub(super) fn memory_of(hello: &Hello) -> u64 {
    let window = send_window(hello.mode, hello.depth);
    let slots = if hello.op.takes_buffer() { window } else { hello.depth };
    (u64::from(slots) * u64::from(hello.size)).max(1)
}

/// Bytes cleared or filled in one step, which takes some 20 microseconds.
const PIECE: usize = 256 << 10;
