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
//! < {"v":1,"id":1,"ok":{"app":7,"workers":1,"bells":0,…}}
//! > {"v":1,"id":2,"op":"create-pd"}
//! < {"v":1,"id":2,"ok":{"pd":12}}
//! > {"v":1,"id":3,"op":"create-cq","args":{"depth":256,"waker":1}}
//! < {"v":1,"id":3,"fds":1,"ok":{"off":34816,"words":40}}
//! > {"v":1,"id":9,"op":"listen","args":{"addr":"10.0.0.1:7174","params":{…}}}
//! < {"v":1,"id":9,"ok":{"listener":31}}
//! < {"v":1,"event":{"Listening":{"id":31}}}
//! > {"v":1,"id":0,"op":"taken","args":{"count":1}}
//! ```
//!
//! # Descriptors
//!
//! `device-open` brings the area (the file of [`Area`](crate::ring::Area): queues and doorbells, laid out as
//! [`ring::layout`](crate::ring::layout) has it) and, if there is any, the memory that registrations are made
//! of. `add-region` brings more of that. Each is a file in memory that the client has made and mapped
//! ([`Region::shared`](crate::Region::shared)), of the size it says in whole pages, and not sealed against
//! writing. The server maps and seals it before it touches it: from then on it keeps its size and its pages,
//! and nobody can make another writable mapping of it. So it can be brought once.
//!
//! A sparse region is a file that has pages only where its owner has written, and may be larger than memory.
//! `register-mr` of a part of it is answered when the server has populated that part. A part in which the
//! client has left a hole is refused, and each page counts as memory once while a registration has it.
//!
//! A request with `waker` gives the client's number for one of its
//! threads. The answer to the first request with a number brings the descriptor on which that thread
//! sleeps ([`Waker::for_process`](crate::Waker::for_process)): the server makes it, because nothing that a
//! client made is written to, polled or closed by a worker. The number is free again when every queue
//! with it is destroyed.
//!
//! A request takes its descriptors whether it is carried out or refused. They come with its whole line, and
//! one that belongs to no request ends the connection.
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
//! has taken; while thousands are not, its listeners refuse peers. After `watch`, what happens to the device
//! and its objects ([`DeviceEvent`]) comes too, and is not counted:
//!
//! ```text
//! < {"v":1,"device":{"qp-fatal":7}}
//! ```

use heddle_cm::Event;
use heddle_iwarp::Access;
use serde::{Deserialize, Serialize};

use crate::device::DeviceEvent;

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
    /// Gives a protection domain back: nothing can be made in it any more.
    DeallocPd(PdName),
    /// [`Block`], and perhaps a descriptor to sleep on.
    CreateCq(CreateCq),
    /// [`Resized`].
    ResizeCq(ResizeCq),
    /// [`Block`], and perhaps a descriptor to sleep on.
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
    AddRegion(AddRegion),
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
    /// Reserves an address for a listener. [`ReservedAddr`].
    ReserveAddr(ReserveAddr),
    /// Gives it back.
    DestroyReservedAddr(Id),
    /// Ends a queue pair, whatever it does.
    FailQp(QpName),
    /// The ports. [`Ports`].
    Ports,
    /// What happens to the device and its objects is told from here on.
    Watch,
}

impl Request {
    /// Descriptors that come with it.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::DeviceOpen(open) => 1 + usize::from(open.memory > 0),
            Request::AddRegion(_) => 1,
            _ => 0,
        }
    }
}

/// What the server says of its own accord.
pub type Told = heddle_socket::Event<Event>;

/// The same of the device and its objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToldOfDevice {
    /// [`heddle_socket::document::VERSION`].
    pub v: u32,
    /// What happened.
    pub device: DeviceEvent,
}

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

pub mod bounds;
mod connections;
mod limits;
mod memory;
mod opening;
mod queues;

pub use connections::{
    Accept, Connect, Connecting, Count, Listen, Listening, Reject, ReserveAddr, ReservedAddr,
};
pub use memory::{
    AddRegion, AllocFast, AllocMr, AllocWindow, BindWindow, Deregistered, Id, Len, NewMr, NewStag,
    OfPd, RegisterMr, RegisterReserved, SetAside, Usage, WindowBound,
};
pub use opening::{Limits, Open, Opened, Ports};
pub use queues::{
    Block, CreateCq, CreateQp, CreateSrq, NewPd, NewQp, PdName, QpName, ResizeCq, Resized,
};

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
