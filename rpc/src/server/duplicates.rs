//! Calls that come again.
//!
//! A client whose connection is lost does not know whether its call was executed, and makes it again on
//! the next connection with the same XID. What must not be done twice is not: a call that is being
//! executed is not begun again, and one that was is given the reply it had. A call is taken for another
//! when it has the other's XID, procedure, and arguments (by a keyed digest), and comes from the same
//! address: the port is another on each connection.
//!
//! What is kept is bounded for each peer, so that one peer cannot push out the replies of others; the
//! oldest goes first. When there are too many peers, the one that called longest ago is forgotten.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::rpc::Procedure;

use super::Ticket;
use crate::message::Message;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicateLimits {
    /// Peers of which replies are kept; each is an address.
    pub peers: usize,
    /// Replies of each.
    pub replies: usize,
    /// Octets of the replies of each, and of any one reply a quarter of that: a longer one is not kept,
    /// and its call is executed again.
    pub octets: usize,
}

impl Default for DuplicateLimits {
    fn default() -> DuplicateLimits {
        DuplicateLimits { peers: 256, replies: 256, octets: 256 << 10 }
    }
}

/// What tells a call from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    peer: IpAddr,
    xid: Xid,
    procedure: Procedure,
    /// Of all of them but the peer.
    digest: u64,
}

/// By its digest, which is keyed: no other hash is needed.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

/// The hash of a digest is the digest.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, octets: &[u8]) {
        // Nothing but digests comes here.
        octets.iter().for_each(|&octet| self.0 = self.0.rotate_left(8) ^ u64::from(octet));
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a call is.
#[derive(Debug)]
pub(super) enum Verdict {
    /// New: it is to be executed, and [`Duplicates::done`] to be told the reply.
    New(Key),
    /// Being executed: it gets the reply too.
    Running,
    /// Executed before, with this reply.
    Done(Arc<Message>),
    /// Being executed for as many tickets as can wait.
    TooMany,
}

/// Most connections on which one and the same call waits: the older are mostly lost.
const WAITING: usize = 4;

/// Who waits for the reply of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tickets {
    all: [Ticket; WAITING],
    len: usize,
}

impl Tickets {
    /// Nobody.
    const NONE: Tickets = Tickets { all: [Ticket { link: 0, call: 0 }; WAITING], len: 0 };

    /// One.
    pub(super) fn of(ticket: Ticket) -> Tickets {
        let mut tickets = Tickets::NONE;
        tickets.push(ticket);
        tickets
    }

    /// One more; false when there are as many as can be.
    fn push(&mut self, ticket: Ticket) -> bool {
        let Some(room) = self.all.get_mut(self.len) else { return false };
        *room = ticket;
        self.len += 1;
        true
    }

    /// In the order in which they came.
    pub(crate) fn as_slice(&self) -> &[Ticket] {
        self.all.get(..self.len).unwrap_or(&self.all)
    }
}

#[derive(Debug)]
enum Entry {
    Running(Tickets),
    Done(Arc<Message>),
}

#[derive(Debug, Default)]
struct Peer {
    calls: HashMap<Key, Entry, BuildHasherDefault<AsItIs>>,
    /// Those that are done, the oldest first.
    done: VecDeque<Key>,
    octets: usize,
    /// When it called last: a count of calls.
    called: u64,
}

/// The calls of all connections that are being executed, and some that were.
#[derive(Debug)]
pub(super) struct Duplicates {
    peers: HashMap<IpAddr, Peer>,
    limits: DuplicateLimits,
    /// Keyed anew in each process: a peer cannot make two calls look alike.
    digests: RandomState,
    calls: u64,
}

impl Duplicates {
    pub(super) fn new(limits: DuplicateLimits) -> Duplicates {
        let (peers, digests) = (HashMap::new(), RandomState::new());
        Duplicates { peers, limits, digests, calls: 0 }
    }

    /// A digest of a call and of `parts`, which are those of its arguments that come within every message:
    /// of items that may lie apart only the lengths are, as they may come in another way when they come
    /// again.
    pub(super) fn digest<'a>(
        &self,
        call: (Xid, Procedure),
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> u64 {
        let mut hasher = self.digests.build_hasher();
        call.hash(&mut hasher);
        parts.into_iter().for_each(|part| hasher.write(part));
        hasher.finish()
    }

    /// A call with this digest has come; its reply goes to `ticket`.
    pub(super) fn call(
        &mut self,
        (ip, xid): (IpAddr, Xid),
        procedure: Procedure,
        digest: u64,
        ticket: Ticket,
    ) -> Verdict {
        let key = Key { peer: ip, xid, procedure, digest };
        if self.peers.len() >= self.limits.peers.max(1) && !self.peers.contains_key(&ip) {
            self.make_room();
        }
        self.calls += 1;
        let peer = self.peers.entry(ip).or_default();
        peer.called = self.calls;
        match peer.calls.get_mut(&key) {
            Some(Entry::Done(reply)) => Verdict::Done(reply.clone()),
            Some(Entry::Running(tickets)) => {
                if tickets.push(ticket) {
                    Verdict::Running
                } else {
                    Verdict::TooMany
                }
            }
            None => {
                peer.calls.insert(key, Entry::Running(Tickets::of(ticket)));
                Verdict::New(key)
            }
        }
    }

    /// The call has this reply: who waits for it. Kept when `keep` says so.
    pub(super) fn done(&mut self, key: Key, reply: &Arc<Message>, keep: bool) -> Tickets {
        let DuplicateLimits { replies, octets, .. } = self.limits;
        let Some(peer) = self.peers.get_mut(&key.peer) else { return Tickets::NONE };
        let Some(Entry::Running(tickets)) = peer.calls.remove(&key) else { return Tickets::NONE };
        if keep && reply.weight() <= octets / 4 && replies > 0 {
            // Registered memory is for calls under way.
            let kept = Message::flat(reply);
            peer.octets += kept.weight();
            peer.calls.insert(key, Entry::Done(kept));
            peer.done.push_back(key);
            while peer.done.len() > replies || peer.octets > octets {
                peer.forget_oldest();
            }
        }
        tickets
    }

    /// Forgets the peer that called longest ago, as there are as many as can be.
    fn make_room(&mut self) {
        // One with calls under way is needed for their replies. There are no more of those than
        // connections.
        let idle = self.peers.iter().filter(|(_, p)| p.calls.len() == p.done.len());
        if let Some(ip) = idle.min_by_key(|(_, p)| p.called).map(|(ip, _)| *ip) {
            self.peers.remove(&ip);
        }
    }

    /// Calls that are known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.peers.values().map(|p| p.calls.len()).sum()
    }
}

impl Peer {
    fn forget_oldest(&mut self) {
        let Some(key) = self.done.pop_front() else { return };
        if let Some(Entry::Done(reply)) = self.calls.remove(&key) {
            self.octets -= reply.weight();
        }
    }
}
