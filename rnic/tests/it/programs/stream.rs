//! The model's knowledge of one stream: the posts of each end, and possible errors.

use std::collections::VecDeque;

use heddle_types::{
    BindError, CloseReason, ConnId, CqeOp, CqeStatus, MrFault, PostError, Stag, TermCode,
};

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
    /// Something in the program may have ended the stream.
    pub excused: bool,
    /// The link damaged a frame of the stream so that only MPA can detect it: the receiver may wait
    /// for ever, and bytes that TCP has acknowledged need not have arrived.
    pub poisoned: bool,
    /// The link loses all frames of the stream.
    pub cut: bool,
    /// An end was reset over a link that loses frames. TCP sends a reset once; an end that misses
    /// the reset and has nothing in flight does not learn of it.
    pub reset_unheard: bool,
}

impl Stream {
    pub fn excuse(&mut self, codes: &[Code]) {
        self.excused = true;
        self.codes.extend(codes);
    }

    /// Returns true if an end may wait for ever.
    pub fn hangs(&self) -> bool {
        self.cut || self.poisoned || self.reset_unheard
    }

    pub fn check_code(&self, code: TermCode) {
        let code = (code.layer, code.etype, code.code);
        assert!(self.excused, "Terminate {code:?} for no reason");
        assert!(self.codes.contains(&code), "Terminate {code:?} where {:?} may be", self.codes);
    }
}

/// An end of a stream.
#[derive(Debug, Default)]
pub struct End {
    pub requests: VecDeque<Request>,
    pub buffers: VecDeque<Buffer>,
    /// Sends and Immediate Data of this end, and how many of them the other end has received.
    pub messages: Vec<Message>,
    pub delivered: usize,
    /// The number of its requests, and of the last request that waits for Reads.
    pub seq: u32,
    pub fence: u32,
    /// The first request that cannot be carried out: no request after it is carried out.
    pub bad_from: Option<u32>,
    /// The time when the stream was over for this end: the RNIC places nothing after it.
    pub over: Option<u64>,
    pub closing: bool,
    /// A request of the send queue has failed, not only by a flush.
    pub failed: bool,
    pub named: bool,
    /// The region of its own requests is unregistered.
    pub local_gone: bool,
    /// The region from which its windows and fast registrations derive is unregistered.
    pub parent_gone: bool,
    pub windows: Vec<Window>,
    /// Messages that the peer has posted receives for, beyond those of the program.
    pub granted: usize,
    /// STags of the peer in requests that failed: these requests may be on their way all the same.
    pub astray: Vec<Stag>,
    pub closed: Option<CloseReason>,
    pub told: Told,
}

/// Counts of the reports that the application got.
#[derive(Debug, Default)]
pub struct Told {
    pub first: u32,
    pub ended: u32,
    /// Terminates of the peer, with the headers that they repeat.
    pub headers: u32,
    pub peer_closed: u32,
}

/// A region that belongs to the stream, over memory that others reach in other ways.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub stag: Stag,
    pub at: usize,
    pub len: usize,
    /// The peer has posted its invalidation, or the application has unregistered it.
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
    /// Local memory that belongs to the queue pair until the request completes.
    pub held: Option<(usize, usize)>,
    pub effect: Effect,
    /// The index of the request's message, if it is one.
    pub message: Option<usize>,
    /// The region of the peer that the request names.
    pub names: Option<Stag>,
    pub bad: Bad,
}

/// Why a request cannot be carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Bad {
    #[default]
    No,
    /// The request breaks the rules of requests.
    Refused(PostError),
    /// The request names wrong local memory.
    Local,
    /// The request asks for a change of the STag table that the table refuses.
    Bind(BindError),
    /// The request names wrong memory of the peer.
    Remote,
}

/// The effect of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    None,
    /// Stores at the peer: place in the peer's history.
    Write(usize),
    /// Fetches from the peer.
    Read(usize),
    /// Changes a word of the peer: index of the word, and index among the lane's operations.
    Atomic(usize, usize),
    /// Makes an STag of this end valid, by its place in the list.
    Bind(usize, Stag),
    /// Makes an STag of this end invalid.
    Unbind(usize, Stag),
}

/// A posted receive buffer.
#[derive(Debug)]
pub struct Buffer {
    pub id: u64,
    pub at: usize,
    pub len: usize,
}

/// A message that arrives in a buffer.
#[derive(Clone, Debug)]
pub struct Message {
    pub seq: u32,
    pub data: Vec<u8>,
    pub solicited: bool,
    pub invalidate: Option<Stag>,
    pub immediate: Option<u64>,
    /// Receives that the sender has posted for answers to this message.
    pub grant: usize,
}

impl End {
    /// Checks that a send request can have this status at its place in the order: the stream ends
    /// for at most one request, and all other requests after the end are flushed. A request that
    /// was complete before the end still succeeds.
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
                // A request that breaks the rules has this status, whenever it is flushed.
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
            CqeStatus::LocalLength | CqeStatus::RetryExceeded | CqeStatus::RnrRetryExceeded => {
                panic!("{r:?}: {status:?}")
            }
        };
        assert!(!(named && self.named), "two requests ended the stream");
        self.named |= named;
        self.failed = true;
    }
}
