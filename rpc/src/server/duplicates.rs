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
use std::hash::{BuildHasher, Hasher, RandomState};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    peer: IpAddr,
    pub(super) xid: Xid,
    pub(super) procedure: Procedure,
    digest: u64,
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

#[derive(Debug)]
enum Entry {
    /// Who waits for the reply.
    Running(Vec<Ticket>),
    Done(Arc<Message>),
}

#[derive(Debug, Default)]
struct Peer {
    calls: HashMap<Key, Entry>,
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

    /// A digest of `parts`, which are those of a call's arguments that come within every message: of
    /// items that may lie apart only the lengths are, as they may come in another way when they come
    /// again.
    pub(super) fn digest<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
        let mut hasher = self.digests.build_hasher();
        parts.into_iter().for_each(|part| hasher.write(part));
        hasher.finish()
    }

    /// A call of these arguments has come; its reply goes to `ticket`.
    pub(super) fn call(
        &mut self,
        (ip, xid): (IpAddr, Xid),
        procedure: Procedure,
        digest: u64,
        ticket: Ticket,
    ) -> Verdict {
        let key = Key { peer: ip, xid, procedure, digest };
        if !self.peers.contains_key(&ip) {
            self.make_room();
        }
        self.calls += 1;
        let peer = self.peers.entry(ip).or_default();
        peer.called = self.calls;
        match peer.calls.get_mut(&key) {
            Some(Entry::Done(reply)) => Verdict::Done(reply.clone()),
            Some(Entry::Running(tickets)) if tickets.len() < WAITING => {
                tickets.push(ticket);
                Verdict::Running
            }
            Some(Entry::Running(_)) => Verdict::TooMany,
            None => {
                peer.calls.insert(key, Entry::Running(vec![ticket]));
                Verdict::New(key)
            }
        }
    }

    /// The call has this reply: who waits for it. Kept when `keep` says so.
    pub(super) fn done(&mut self, key: Key, reply: &Arc<Message>, keep: bool) -> Vec<Ticket> {
        let DuplicateLimits { replies, octets, .. } = self.limits;
        let Some(peer) = self.peers.get_mut(&key.peer) else { return Vec::new() };
        let Some(Entry::Running(tickets)) = peer.calls.remove(&key) else { return Vec::new() };
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
        if peer.calls.is_empty() {
            self.peers.remove(&key.peer);
        }
        tickets
    }

    /// Forgets the peer that called longest ago, if there are too many.
    fn make_room(&mut self) {
        if self.peers.len() < self.limits.peers.max(1) {
            return;
        }
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
