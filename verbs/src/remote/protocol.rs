//! What is said on the control socket once a connection has become an application's device.
//!
//! One JSON document on a line, as everything on that socket ([`heddle_socket`]): requests with `op` and
//! `args` below, answers, and events that nobody asked for. Numbers are those of JSON; octets of private
//! data are arrays of numbers, durations `{"secs":n,"nanos":n}`, addresses text. Requests are carried out
//! in the order in which they come, and answered in that order but for those that map memory
//! (`device-open`, `add-region`), which take longer. A request with the number 0 is answered by nothing;
//! what is wrong with it is only counted.
//!
//! ```text
//! > {"v":1,"id":1,"op":"device-open","args":{"memory":67108864,"queues":16777216,"name":"rping"}}
//! < {"v":1,"id":1,"fds":2,"ok":{"app":7,"workers":1,"area":16777216,"bells":0,"memory":67108864,…}}
//! > {"v":1,"id":2,"op":"create-pd"}
//! < {"v":1,"id":2,"ok":{"pd":12}}
//! > {"v":1,"id":3,"op":"create-cq","args":{"depth":256,"waker":true}}          (and a descriptor)
//! < {"v":1,"id":3,"ok":{"off":34816,"words":40}}
//! > {"v":1,"id":9,"op":"listen","args":{"addr":"10.0.0.1:7174","params":{…}}}
//! < {"v":1,"id":9,"ok":{"listener":31}}
//! < {"v":1,"event":{"Listening":{"id":31}}}
//! > {"v":1,"id":0,"op":"taken","args":{"count":1}}
//! ```
//!
//! # Descriptors
//!
//! The answer to `device-open` brings the area (the file of [`Area`](crate::ring::Area): queues and
//! doorbells, laid out as [`ring::layout`](crate::ring::layout) has it) and, if there is any, the memory
//! that registrations are made of. A request with `waker` brings one, the waking end of a pair of
//! sockets ([`Waker::fd`](crate::Waker::fd)); `add-region` brings a file in memory that is sealed against
//! shrinking ([`Region::shared`](crate::Region::shared)).
//!
//! # Names
//!
//! Completion queues and shared receive queues are named by where they lie in the area, queue pairs and
//! protection domains by their numbers, listeners and connections by those that answers and events
//! give them, all else by numbers of the answers. Every name is looked up among what this session was
//! given: those of others mean nothing.
//!
//! # Events
//!
//! [`heddle_cm::Event`] as serde writes it. Their receiver says with `taken` how many its application
//! has taken; while thousands are not, its listeners refuse peers.

use core::net::SocketAddr;
use core::time::Duration;

use heddle_cm::{Event, ListenParams, Protocol};
use heddle_iwarp::{Access, BindError};
use serde::{Deserialize, Serialize};

use crate::limits::{Atomics, DeviceLimits};

/// The first request of a connection that becomes a device.
pub const OPEN: &str = "device-open";

/// A request. Sizes are octets, depths requests or completions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", content = "args", rename_all = "kebab-case")]
pub enum Request {
    /// The first: what the device is to have. [`Opened`].
    DeviceOpen(Open),
    /// [`NewPd`].
    CreatePd,
    /// A waker may come with it. [`Block`].
    CreateCq(CreateCq),
    /// [`Resized`].
    ResizeCq(ResizeCq),
    /// A waker may come with it. [`Block`].
    CreateSrq(CreateSrq),
    /// [`NewQp`].
    CreateQp(CreateQp),
    /// Makes a queue pair as new. Nothing is answered but that it is.
    ResetQp(QpName),
    /// Each of these gives a handle up.
    DestroyCq(Block),
    /// See [`Request::DestroyCq`].
    DestroySrq(Block),
    /// See [`Request::DestroyCq`].
    DestroyQp(QpName),
    /// Registers memory of the device, with what is in it. [`NewMr`].
    AllocMr(AllocMr),
    /// Sets memory aside. [`SetAside`].
    Reserve(Len),
    /// Registers what was set aside. [`NewMr`].
    RegisterReserved(RegisterReserved),
    /// Gives what was set aside back.
    DestroyReserved(Id),
    /// Memory of the application's own, which comes with it. [`Id`].
    AddRegion(Len),
    /// Registers a part of that. [`NewMr`].
    RegisterMr(RegisterMr),
    /// Forgets it when nothing of it is registered any more.
    DestroyRegion(Id),
    /// Deregisters a region unless something that derives from it is valid. [`Deregistered`].
    DeregisterMr(Id),
    /// Deregisters it whatever derives from it.
    DestroyMr(Id),
    /// An STag for fast registrations. [`NewStag`].
    AllocFast(AllocFast),
    /// A window of type 1, or of type 2 for a queue pair. [`NewStag`].
    AllocWindow(AllocWindow),
    /// Binds a window of type 1. [`WindowBound`].
    BindWindow(BindWindow),
    /// It shows nothing any more.
    UnbindWindow(Id),
    /// Gives an STag of the last two back.
    DestroyStag(Id),
    /// How many STags there are. [`crate::MrUsage`] as [`Usage`].
    Usage(OfPd),
    /// [`Listening`].
    Listen(Listen),
    /// Stops listening.
    Unlisten(Listening),
    /// [`Connecting`].
    Connect(Connect),
    /// Accepts a connection request.
    Accept(Accept),
    /// Rejects one.
    Reject(Reject),
    /// Ends a connection.
    Disconnect(Connecting),
    /// The application has taken events.
    Taken(Count),
    /// Ends everything. Requests after it are refused.
    Close,
}

/// What the server says of its own accord.
pub type Told = heddle_socket::Event<Event>;

macro_rules! documents {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($(#[$of])* pub $field: $type,)*
            }
        )*
    };
}

documents! {
    /// What a device is opened with.
    Open {
        /// Octets of memory to register from; none at 0.
        memory: u64,
        /// Octets for queues.
        queues: u64,
        /// Who asks, for people.
        name: String,
    }

    /// A device.
    Opened {
        /// The application's number.
        app: u64,
        /// Workers there are.
        workers: usize,
        /// Octets of the area, whose descriptor is the first that comes.
        area: usize,
        /// Where in it the doorbells lie.
        bells: usize,
        /// Octets of the memory, whose descriptor is the second; none at 0.
        memory: usize,
        /// What can be had.
        limits: Limits,
    }

    /// [`DeviceLimits`](crate::DeviceLimits).
    Limits {
        /// Queue pairs.
        qps: u32,
        /// Requests of a queue.
        qp_wrs: u32,
        /// Pieces of a request.
        sges: u16,
        /// Octets of a request that stand in it.
        inline: u16,
        /// Completion queues.
        cqs: u32,
        /// Completions of one.
        cqes: u32,
        /// Shared receive queues.
        srqs: u32,
        /// Receives of one.
        srq_wrs: u32,
        /// Regions and fast registrations.
        mrs: u32,
        /// Those of one protection domain.
        mrs_per_pd: u32,
        /// Windows.
        mws: u32,
        /// Those of one protection domain.
        mws_per_pd: u32,
        /// Octets of a region.
        mr_size: u64,
        /// Protection domains.
        pds: u32,
        /// Reads served at a time.
        ird: u16,
        /// Reads outstanding at a time.
        ord: u16,
        /// Octets of a message.
        message: u32,
        /// A bit for each size of page.
        page_sizes: u64,
        /// 0: there are no atomic operations; 1: with others of the RNIC; 2: with processors too.
        atomics: u8,
    }

    /// A protection domain.
    NewPd {
        /// Its number.
        pd: u32,
    }

    /// A completion queue.
    CreateCq {
        /// Completions it is to hold.
        depth: u32,
        /// Whether a waker comes with this.
        waker: bool,
    }

    /// A queue in the area.
    Block {
        /// Octets from the area's start.
        off: usize,
        /// Words of 64 bits.
        words: usize,
    }

    /// Another size for a completion queue.
    ResizeCq {
        /// The queue's place.
        cq: usize,
        /// Completions it is to hold.
        depth: u32,
    }

    /// What became of it.
    Resized {
        /// It has more completions than would find room: so many. Done at 0.
        held: u64,
        /// It is being resized already.
        resizing: bool,
    }

    /// A shared receive queue.
    CreateSrq {
        /// Its protection domain.
        pd: u32,
        /// Receives it is to hold.
        depth: u32,
        /// Pieces of one.
        max_sge: u16,
        /// Whether a waker comes with this.
        waker: bool,
    }

    /// A queue pair.
    CreateQp {
        /// Its protection domain.
        pd: u32,
        /// Places of its completion queues.
        send_cq: usize,
        /// The same.
        recv_cq: usize,
        /// Place of its shared receive queue.
        srq: Option<usize>,
        /// Requests.
        sq_depth: u32,
        /// Requests.
        rq_depth: u32,
        /// Pieces of a request.
        max_send_sge: u16,
        /// The same.
        max_recv_sge: u16,
        /// Octets.
        max_inline: u16,
    }

    /// A queue pair there is.
    QpName {
        /// Its number.
        qp: u32,
    }

    /// A new queue pair.
    NewQp {
        /// Its number.
        qp: u32,
        /// Its doorbell.
        bell: u32,
        /// Octets from the area's start.
        off: usize,
        /// Words of 64 bits.
        words: usize,
    }

    /// A region of the device's memory.
    AllocMr {
        /// Its protection domain.
        pd: u32,
        /// Octets.
        len: usize,
        /// Its rights, as [`access`] reads them.
        access: u8,
        /// The tagged offset of its first octet.
        to: Option<u64>,
        /// The only queue pair that may use it.
        qp: Option<u32>,
    }

    /// A number of octets.
    Len {
        /// Octets.
        len: usize,
    }

    /// Something the session has a number for.
    Id {
        /// The number.
        id: u64,
    }

    /// Memory that was set aside.
    SetAside {
        /// Its name.
        id: u64,
        /// Octets from the memory's start.
        off: usize,
    }

    /// Which is registered.
    RegisterReserved {
        /// Its name.
        id: u64,
        /// The protection domain.
        pd: u32,
        /// Its rights.
        access: u8,
    }

    /// A region of the application's own memory.
    RegisterMr {
        /// Its protection domain.
        pd: u32,
        /// The memory's name.
        region: u64,
        /// First octet.
        off: usize,
        /// Octets.
        len: usize,
        /// Its rights.
        access: u8,
        /// The tagged offset of its first octet.
        to: u64,
        /// The only queue pair that may use it.
        qp: Option<u32>,
    }

    /// A region that is registered.
    NewMr {
        /// Its name.
        id: u64,
        /// Its STag.
        stag: u32,
        /// The tagged offset of its first octet.
        to: u64,
        /// Octets from the start of the memory.
        off: usize,
    }

    /// What became of a region.
    Deregistered {
        /// Windows and fast registrations that keep it; it is gone at 0.
        bound: u32,
    }

    /// An STag for fast registrations.
    AllocFast {
        /// Its protection domain.
        pd: u32,
        /// The only queue pair that may use it.
        qp: Option<u32>,
        /// Most octets.
        len: u64,
    }

    /// An STag for a window.
    AllocWindow {
        /// Its protection domain.
        pd: u32,
        /// The queue pair of one of type 2.
        qp: Option<u32>,
    }

    /// An STag without memory of its own.
    NewStag {
        /// Its name.
        id: u64,
        /// As it is now.
        stag: u32,
    }

    /// What a window is to show.
    BindWindow {
        /// The window's name.
        id: u64,
        /// The region's STag.
        mr: u32,
        /// The tagged offset there.
        at: u64,
        /// Octets.
        len: u32,
        /// What peers call the first.
        to: u64,
        /// Their rights.
        access: u8,
    }

    /// Whether it does.
    WindowBound {
        /// Its STag now.
        stag: u32,
        /// Why it shows what it showed.
        refused: Option<BindError>,
    }

    /// A protection domain, or all.
    OfPd {
        /// Its number.
        pd: Option<u32>,
    }

    /// [`MrUsage`](crate::MrUsage).
    Usage {
        /// Regions and fast registrations there are.
        regions: u32,
        /// Windows there are.
        windows: u32,
        /// Attempts that were refused.
        refused: u64,
        /// Most of each.
        most_regions: u32,
        /// The same.
        most_windows: u32,
    }

    /// A listener to be.
    Listen {
        /// Where.
        addr: SocketAddr,
        /// How.
        params: ListenParams,
    }

    /// A listener.
    Listening {
        /// Its name.
        listener: u64,
    }

    /// A connection to make.
    Connect {
        /// The peer.
        remote: SocketAddr,
        /// The address to connect from; the RNIC chooses when absent.
        #[serde(default)]
        local: Option<std::net::IpAddr>,
        /// The queue pair's number.
        qp: u32,
        /// The start-up dialogue.
        protocol: Protocol,
        /// Reads we take.
        ird: u16,
        /// Reads we want.
        ord: u16,
        /// For the peer's application.
        private_data: Vec<u8>,
        /// How long it may take.
        timeout: Duration,
    }

    /// A connection.
    Connecting {
        /// Its name.
        conn: u64,
    }

    /// An answer to a connection request.
    Accept {
        /// The connection's name.
        conn: u64,
        /// The queue pair's number.
        qp: u32,
        /// Reads we take.
        ird: u16,
        /// Reads we want.
        ord: u16,
        /// For the peer's application.
        private_data: Vec<u8>,
    }

    /// The other answer.
    Reject {
        /// The connection's name.
        conn: u64,
        /// For the peer's application.
        private_data: Vec<u8>,
        /// Reads we need to have outstanding.
        needs_ord: Option<u16>,
    }

    /// A number of events.
    Count {
        /// How many.
        count: u32,
    }
}

/// Every right, by its bit in a document.
const RIGHTS: [Access; 6] = [
    Access::LOCAL_WRITE,
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_INVALIDATE,
    Access::REMOTE_ATOMIC,
    Access::BIND,
];

/// Rights as a document has them: bit 0 is to be placed into by Sends and Read Responses, then remote
/// write, remote read, remote invalidation, remote atomic operations, and windows. `None` with other
/// bits.
pub fn access(bits: u8) -> Option<Access> {
    let all = Access::NONE;
    let rights = RIGHTS.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
    (bits >> RIGHTS.len() == 0).then(|| rights.fold(all, |sum, (_, right)| sum.with(*right)))
}

/// The same the other way.
pub fn bits(access: Access) -> u8 {
    let held = RIGHTS.iter().enumerate().filter(|(_, right)| access.has(**right));
    held.fold(0, |sum, (i, _)| sum | 1 << i)
}

impl From<&DeviceLimits> for Limits {
    fn from(l: &DeviceLimits) -> Limits {
        Limits {
            qps: l.max_qps,
            qp_wrs: l.max_qp_wrs,
            sges: l.max_sges,
            inline: l.max_inline,
            cqs: l.max_cqs,
            cqes: l.max_cqes,
            srqs: l.max_srqs,
            srq_wrs: l.max_srq_wrs,
            mrs: l.max_mrs,
            mrs_per_pd: l.max_mrs_per_pd,
            mws: l.max_mws,
            mws_per_pd: l.max_mws_per_pd,
            mr_size: l.max_mr_size,
            pds: l.max_pds,
            ird: l.max_ird,
            ord: l.max_ord,
            message: l.max_message,
            page_sizes: l.page_sizes,
            atomics: match l.atomics {
                Atomics::None => 0,
                Atomics::Rnic => 1,
                Atomics::Global => 2,
            },
        }
    }
}

impl From<&Limits> for DeviceLimits {
    /// No more than an RNIC of this build can have, whatever the document says.
    fn from(l: &Limits) -> DeviceLimits {
        let said = DeviceLimits {
            max_qps: l.qps,
            max_qp_wrs: l.qp_wrs,
            max_sges: l.sges,
            max_inline: l.inline,
            max_cqs: l.cqs,
            max_cqes: l.cqes,
            max_srqs: l.srqs,
            max_srq_wrs: l.srq_wrs,
            max_mrs: l.mrs,
            max_mrs_per_pd: l.mrs_per_pd,
            max_mws: l.mws,
            max_mws_per_pd: l.mws_per_pd,
            max_mr_size: l.mr_size,
            max_pds: l.pds,
            max_ird: l.ird,
            max_ord: l.ord,
            max_message: l.message,
            page_sizes: l.page_sizes,
            atomics: match l.atomics {
                0 => Atomics::None,
                1 => Atomics::Rnic,
                _ => Atomics::Global,
            },
        };
        DeviceLimits { max_message: l.message, ..said.within(&DeviceLimits::MOST) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_rights_are_written_and_read_back() {
        for n in 0..=255u8 {
            match access(n) {
                Some(rights) => assert_eq!((bits(rights), n < 64), (n, true)),
                None => assert!(n >= 64),
            }
        }
        assert!(access(6).unwrap().has(Access::REMOTE_READ));
    }

    #[test]
    fn test_limits_are_written_and_read_back() {
        let limits = DeviceLimits { max_qps: 3, max_ird: 5, ..DeviceLimits::default() };
        assert_eq!(DeviceLimits::from(&Limits::from(&limits)), limits);
        let lies = Limits { qps: u32::MAX, sges: u16::MAX, ..Limits::from(&limits) };
        let read = DeviceLimits::from(&lies);
        assert_eq!(read.max_qps, DeviceLimits::MOST.max_qps);
        assert_eq!(read.max_sges, DeviceLimits::MOST.max_sges);
    }

    #[test]
    fn test_requests_are_as_documented() {
        let text = r#"{"op":"device-open","args":{"memory":1,"queues":2,"name":"x"}}"#;
        let r: Request = serde_json::from_str(text).unwrap();
        assert!(matches!(&r, Request::DeviceOpen(o) if o.memory == 1 && o.queues == 2));
        assert_eq!(serde_json::to_string(&r).unwrap(), text);
        assert!(text.contains(OPEN));
        let text = r#"{"op":"create-pd"}"#;
        assert_eq!(serde_json::to_string(&Request::CreatePd).unwrap(), text);
        let listening = Event::Listening { id: heddle_cm::ListenerId(31) };
        let told = Told { v: 1, event: listening };
        let line = serde_json::to_string(&told).unwrap();
        assert_eq!(line, r#"{"v":1,"event":{"Listening":{"id":31}}}"#);
    }
}
