//! What is known of one stream: what each end has posted, and what may be wrong with it.

use std::collections::VecDeque;

use heddle_iwarp::qp::PostError;
use heddle_iwarp::rdmap::TermCode;
use heddle_iwarp::{BindError, CqeOp, CqeStatus, MrFault, Stag};
use heddle_rnic::CloseReason;
use heddle_tcp::ConnId;

use crate::programs::program::StreamPlan;

/// Layer, type and code of a Terminate, as the RFCs number them.
pub type Code = (u8, u8, u8);

pub const LOCAL: Code = (0, 0, 0);
pub const RDMAP_STAG: Code = (0, 1, 0);
pub const RDMAP_BOUNDS: Code = (0, 1, 1);
pub const RDMAP_ACCESS: Code = (0, 1, 2);
pub const RDMAP_ASSOCIATION: Code = (0, 1, 3);
pub const CANNOT_INVALIDATE: Code = (0, 1, 9);
pub const STREAM_BROKEN: Code = (0, 2, 7);
pub const DDP_STAG: Code = (1, 1, 0);
pub const DDP_BOUNDS: Code = (1, 1, 1);
pub const DDP_ASSOCIATION: Code = (1, 1, 2);
pub const CRC: Code = (2, 0, 2);
pub const NO_BUFFER: Code = (1, 2, 2);
pub const TOO_LONG: Code = (1, 2, 5);

#[derive(Debug)]
pub struct Stream {
    pub plan: StreamPlan,
    pub ids: [ConnId; 2],
    pub port: u16,
    pub ends: [End; 2],
    /// Terminates that something in the program explains.
    pub codes: Vec<Code>,
    /// Something in the program may have ended it.
    pub excused: bool,
    /// A frame of it was damaged such that only MPA can see it: the receiver may wait for ever, and
    /// what TCP has acknowledged need not have arrived.
    pub poisoned: bool,
    /// Nothing of it gets through.
    pub cut: bool,
    /// An end was reset over a link that loses frames. TCP sends a reset once; who misses it, and
    /// has nothing in flight, does not hear of the end.
    pub reset_unheard: bool,
}

impl Stream {
    pub fn excuse(&mut self, codes: &[Code]) {
        self.excused = true;
        self.codes.extend(codes);
    }

    /// Whether an end may wait for ever.
    pub fn hangs(&self) -> bool {
        self.cut || self.poisoned || self.reset_unheard
    }

    pub fn check_code(&self, code: TermCode) {
        let code = (code.layer, code.etype, code.code);
        assert!(self.excused, "Terminate {code:?} for no reason");
        assert!(self.codes.contains(&code), "Terminate {code:?} where {:?} may be", self.codes);
    }
}

/// One end.
#[derive(Debug, Default)]
pub struct End {
    pub requests: VecDeque<Request>,
    pub buffers: VecDeque<Buffer>,
    /// Sends and Immediate Data of this end, and how many of them the other has been given.
    pub messages: Vec<Message>,
    pub delivered: usize,
    /// Of its requests, and the last that waits for Reads.
    pub seq: u32,
    pub fence: u32,
    /// The first request that cannot be carried out: nothing behind it is.
    pub bad_from: Option<u32>,
    /// When its stream was over for it: nothing is placed behind that.
    pub over: Option<u64>,
    pub closing: bool,
    /// A request of its send queue has failed; with more than a flush.
    pub failed: bool,
    pub named: bool,
    /// The region of its own requests is gone.
    pub local_gone: bool,
    /// That which its windows and fast registrations derive from.
    pub parent_gone: bool,
    pub windows: Vec<Window>,
    /// Messages that the peer has posted receives for, beyond those of the program.
    pub granted: usize,
    /// STags of the peer's in requests that failed: they may be on their way all the same.
    pub astray: Vec<Stag>,
    pub closed: Option<CloseReason>,
    pub told: Told,
}

/// What the application has been told, how often.
#[derive(Debug, Default)]
pub struct Told {
    pub first: u32,
    pub ended: u32,
    /// Terminates of the peer, with what they repeat.
    pub headers: u32,
    pub peer_closed: u32,
}

/// A region that belongs to the stream, over memory that others reach otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub stag: Stag,
    pub at: usize,
    pub len: usize,
    /// The peer has posted its invalidation, or the application has taken it back.
    pub gone: bool,
    pub deregistered: bool,
}

/// A posted send request.
#[derive(Debug)]
pub struct Request {
    pub id: u64,
    pub what: CqeOp,
    pub len: u32,
    pub signaled: bool,
    pub seq: u32,
    pub start: u64,
    /// Local memory that is the queue pair's until it completes.
    pub held: Option<(usize, usize)>,
    pub effect: Effect,
    /// Its message, if it is one.
    pub message: Option<usize>,
    /// The region it names there.
    pub names: Option<Stag>,
    pub bad: Bad,
}

/// Why a request cannot be carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Bad {
    #[default]
    No,
    /// Its own rules.
    Refused(PostError),
    /// Its own memory.
    Local,
    /// It asks the STag table for what may not be.
    Bind(BindError),
    /// The peer's memory.
    Remote,
}

/// What carrying it out does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    None,
    /// Stores at the peer: place in its history.
    Write(usize),
    /// Fetches from there.
    Read(usize),
    /// Changes a word there: which, and which of the lane's operations.
    Atomic(usize, usize),
    /// Makes an STag of this end valid, by its place in the list.
    Bind(usize, Stag),
    /// Makes one invalid.
    Unbind(usize, Stag),
}

/// A posted receive buffer.
#[derive(Debug)]
pub struct Buffer {
    pub id: u64,
    pub at: usize,
    pub len: usize,
}

/// What arrives in a buffer.
#[derive(Clone, Debug)]
pub struct Message {
    pub seq: u32,
    pub data: Vec<u8>,
    pub solicited: bool,
    pub invalidate: Option<Stag>,
    pub immediate: Option<u64>,
    /// Receives that the sender has posted for answers to it.
    pub grant: usize,
}

impl End {
    /// The status of a send request is one that it can have, and has its place in the order: there
    /// is one request at most that the stream ended for, and only flushes are beside it. What was
    /// complete before the end has its success all the same.
    pub fn check_status(&mut self, r: &Request, status: CqeStatus, codes: &[Code]) {
        let named = match status {
            CqeStatus::Success => {
                let here = matches!(r.bad, Bad::Refused(_) | Bad::Local | Bad::Bind(_));
                assert!(!here, "{r:?} succeeded");
                return;
            }
            CqeStatus::Flushed => false,
            CqeStatus::LocalQpOperation(why) => {
                assert_eq!(r.bad, Bad::Refused(why));
                if why == PostError::Closing {
                    return;
                }
                // Any that breaks the rules says so, whenever it is flushed.
                false
            }
            CqeStatus::LocalProtection => {
                assert!(r.bad == Bad::Local || self.local_gone || self.parent_gone, "{r:?}");
                true
            }
            CqeStatus::RemoteAccess(c) | CqeStatus::RemoteOperation(c) => {
                assert!(codes.contains(&(c.layer, c.etype, c.code)), "{c} where {codes:?} may be");
                true
            }
            CqeStatus::LocalBind(why) => {
                let gone = self.parent_gone && why == BindError::Memory(MrFault::InvalidStag);
                assert!(gone || r.bad == Bad::Bind(why), "{r:?}: {status:?}");
                true
            }
            CqeStatus::LocalLength => panic!("{r:?}: {status:?}"),
        };
        assert!(!(named && self.named), "two requests ended the stream");
        self.named |= named;
        self.failed = true;
    }
}
