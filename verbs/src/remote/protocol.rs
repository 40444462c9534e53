//! The documents on the control socket once a connection has become an application's device.
//!
//! Each document is one JSON document on a line, like everything on that socket
//! ([`heddle_socket`]): requests with the `op` and `args` below, answers, and events that the
//! server sends without a request. Numbers are those of JSON; bytes of private data are arrays of
//! numbers, durations are `{"secs":n,"nanos":n}`, addresses are text. The server carries out
//! requests in the order in which they come, and answers them in that order, except those that map
//! memory (`device-open`, `add-region`), which take longer. The server sends no answer to a request
//! with the number 0, and only counts its errors.
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
//! `device-open` brings the area (the file of [`Area`](heddle_rings::Area): queues and doorbells, in
//! the layout of [`ring::layout`](heddle_rings::layout)) and, if the device has any, the memory from
//! which the client registers. `add-region` brings more of that. Each is a file in memory that the
//! client has made and mapped ([`Region::shared`](heddle_shm::Region::shared)), of the size stated in
//! whole pages, and not sealed against writing. The server maps and seals the file before it
//! touches a byte: from then on the file keeps its size and its pages, and no process can make
//! another writable mapping of it. So a client can bring a file only once.
//!
//! A sparse region is a file that has pages only where its owner has written, and may be larger
//! than memory. The server answers `register-mr` of a part of a sparse region after it has
//! populated that part. The server refuses a part in which the client has left a hole, and counts
//! each page as memory once while a registration includes it.
//!
//! A request with `waker` gives the client's number for one of its threads. The answer to the first
//! request with a number brings the descriptor on which that thread sleeps
//! ([`Waker::for_process`](heddle_shm::Waker::for_process)). The server makes this descriptor, because
//! no worker may write to, poll or close an object that a client made. The number is free again
//! when every queue with that number is destroyed.
//!
//! A request takes its descriptors whether the server carries it out or refuses it. They come with
//! the whole line of the request, and a descriptor that belongs to no request ends the connection.
//!
//! # Names
//!
//! Completion queues and shared receive queues are named by their place in the area, queue pairs
//! and protection domains by their numbers, listeners and connections by the names in answers and
//! events, and all other objects by numbers from the answers. The server looks every name up among
//! the objects of this session: names of other sessions mean nothing.
//!
//! # Events
//!
//! Events are [`heddle_types::Event`] as serde writes them. The client reports with `taken` how many
//! events its application has taken; while the application has thousands to take, its listeners
//! refuse peers. After `watch`, events of the device and its objects ([`DeviceEvent`]) come too,
//! and do not count:
//!
//! ```text
//! < {"v":1,"device":{"qp-fatal":7}}
//! ```

use heddle_types::{Access, Event};
use serde::{Deserialize, Serialize};

use crate::device::DeviceEvent;

/// The first request of a connection that becomes a device.
pub const OPEN: &str = "device-open";

/// A request. Sizes are in bytes, depths in requests or completions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", content = "args", rename_all = "kebab-case")]
pub enum Request {
    /// The first request: opens the device. [`Opened`].
    DeviceOpen(Open),
    /// Creates a protection domain. [`NewPd`].
    CreatePd,
    /// Frees a protection domain: no object can be made in it any more.
    DeallocPd(PdName),
    /// Creates a completion queue. [`Block`], and perhaps a descriptor to sleep on.
    CreateCq(CreateCq),
    /// Resizes a completion queue. [`Resized`].
    ResizeCq(ResizeCq),
    /// Creates a shared receive queue. [`Block`], and perhaps a descriptor to sleep on.
    CreateSrq(CreateSrq),
    /// Creates a queue pair. [`NewQp`].
    CreateQp(CreateQp),
    /// Resets a queue pair. The answer only confirms that.
    ResetQp(QpName),
    /// Destroys the client's handle of an object, like the next two requests.
    DestroyCq(Block),
    /// See [`Request::DestroyCq`].
    DestroySrq(Block),
    /// See [`Request::DestroyCq`].
    DestroyQp(QpName),
    /// Registers memory of the device, with its contents. [`NewMr`].
    AllocMr(AllocMr),
    /// Sets memory aside. [`SetAside`].
    Reserve(Len),
    /// Registers memory that was set aside. [`NewMr`].
    RegisterReserved(RegisterReserved),
    /// Frees memory that was set aside.
    DestroyReserved(Id),
    /// Brings memory of the application's own; the descriptor comes with the request. [`Id`].
    AddRegion(AddRegion),
    /// Registers a part of memory of the application's own. [`NewMr`].
    RegisterMr(RegisterMr),
    /// Forgets memory of the application's own when no part of it is registered any more.
    DestroyRegion(Id),
    /// Unregisters a region unless a window or fast registration of it is valid. [`Deregistered`].
    DeregisterMr(Id),
    /// Unregisters a region in any case, with its windows and fast registrations.
    DestroyMr(Id),
    /// Allocates an STag for fast registrations. [`NewStag`].
    AllocFast(AllocFast),
    /// Allocates a window of type 1, or of type 2 for a queue pair. [`NewStag`].
    AllocWindow(AllocWindow),
    /// Binds a window of type 1. [`WindowBound`].
    BindWindow(BindWindow),
    /// Makes a window of type 1 show no memory any more.
    UnbindWindow(Id),
    /// Frees an STag for fast registrations or windows.
    DestroyStag(Id),
    /// Asks how many STags there are. [`crate::MrUsage`] as [`Usage`].
    Usage(OfPd),
    /// Listens for connections. [`Listening`].
    Listen(Listen),
    /// Stops a listener.
    Unlisten(Listening),
    /// Makes a connection. [`Connecting`].
    Connect(Connect),
    /// Accepts a connection request.
    Accept(Accept),
    /// Rejects a connection request.
    Reject(Reject),
    /// Ends a connection.
    Disconnect(Connecting),
    /// Reports that the application has taken events.
    Taken(Count),
    /// Ends everything. The server refuses later requests.
    Close,
    /// Reserves an address for a listener. [`ReservedAddr`].
    ReserveAddr(ReserveAddr),
    /// Frees a reserved address.
    DestroyReservedAddr(Id),
    /// Ends a queue pair, whatever its state.
    FailQp(QpName),
    /// Asks for the RNIC's ports. [`Ports`].
    Ports,
    /// Asks for events of the device and its objects from here on.
    Watch,
}

impl Request {
    /// Returns the number of descriptors that come with the request.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::DeviceOpen(open) => 1 + usize::from(open.memory > 0),
            Request::AddRegion(_) => 1,
            _ => 0,
        }
    }
}

/// A connection event that the server sends without a request.
pub type Told = heddle_socket::Event<Event>;

/// An event of the device or of its objects that the server sends without a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToldOfDevice {
    /// Always [`heddle_socket::document::VERSION`].
    pub v: u32,
    /// The event itself.
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

/// Every right; its index here is its bit in a document.
const RIGHTS: [Access; 6] = [
    Access::LOCAL_WRITE,
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_INVALIDATE,
    Access::REMOTE_ATOMIC,
    Access::BIND,
];

/// Returns the rights of a document. Bit 0 allows Sends and Read Responses to be placed, then come
/// remote write, remote read, remote invalidation, remote atomic operations, and windows. Returns
/// `None` if other bits are set.
pub fn access(bits: u8) -> Option<Access> {
    let all = Access::NONE;
    let rights = RIGHTS.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
    (bits >> RIGHTS.len() == 0).then(|| rights.fold(all, |sum, (_, right)| sum.with(*right)))
}

/// Returns the bits of rights, as in a document.
pub fn bits(access: Access) -> u8 {
    let held = RIGHTS.iter().enumerate().filter(|(_, right)| access.has(**right));
    held.fold(0, |sum, (i, _)| sum | 1 << i)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_access_rights_round_trip() {
        for n in 0..=255u8 {
            match access(n) {
                Some(rights) => assert_eq!((bits(rights), n < 64), (n, true)),
                None => assert!(n >= 64),
            }
        }
        assert!(access(6).unwrap().has(Access::REMOTE_READ));
    }

    #[test]
    fn test_requests_and_events_match_documented_json() {
        let text = r#"{"op":"device-open","args":{"memory":1,"queues":2,"name":"x"}}"#;
        let r: Request = serde_json::from_str(text).unwrap();
        assert!(matches!(&r, Request::DeviceOpen(o) if o.memory == 1 && o.queues == 2));
        assert_eq!(serde_json::to_string(&r).unwrap(), text);
        assert!(text.contains(OPEN));
        let text = r#"{"op":"create-pd"}"#;
        assert_eq!(serde_json::to_string(&Request::CreatePd).unwrap(), text);
        let listening = Event::Listening { id: heddle_types::ListenerId(31) };
        let told = Told { v: 1, event: listening };
        let line = serde_json::to_string(&told).unwrap();
        assert_eq!(line, r#"{"v":1,"event":{"Listening":{"id":31}}}"#);
    }
}
