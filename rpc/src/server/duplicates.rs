//! Recognises repeated calls.
//!
//! A client whose connection is lost does not know whether its call was executed, and makes the
//! call again on the next connection with the same XID. This module prevents a second execution: a
//! call that is being executed is not begun again, and a call that was executed gets its earlier
//! reply. Two calls are the same if they have the same XID, procedure, and arguments (by a keyed
//! digest), and come from the same address. The port does not count, because it differs on each
//! connection.
//!
//! When the reply of a call under execution is there, all waiting connections get it. A connection
//! that has ended waits no more ([`Duplicates::leave`]), so a client may return on any number of
//! connections.
//!
//! The kept replies are bounded for each peer, so that no peer can evict the replies of others; the
//! oldest reply goes first. When there are too many peers, the peer that called longest ago is
//! forgotten.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::net::IpAddr;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::rpc::Procedure;

/// The limits of kept replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicateLimits {
    /// Largest number of peers with kept replies; each peer is an address.
    pub peers: usize,
    /// Largest number of replies for each peer.
    pub replies: usize,
    /// Largest number of bytes in the replies of each peer. A single reply may have a quarter of
    /// that: a longer reply is not kept, and its call is executed again.
    pub bytes: usize,
}

impl Default for DuplicateLimits {
    fn default() -> DuplicateLimits {
        DuplicateLimits { peers: 256, replies: 256, bytes: 256 << 10 }
    }
}

/// The properties that distinguish a call from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    peer: IpAddr,
    xid: Xid,
    procedure: Procedure,
    /// Digest of all properties except the peer.
    digest: u64,
}

/// Hashes the digest only: the digest is keyed, so no other hash is needed.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

/// A hasher that returns a digest unchanged.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        // The keys of the table hash only their digests, through `write_u64`, so no other data
        // comes here.
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The verdict on a call.
#[derive(Debug)]
pub enum Verdict<R> {
    /// The call is new: the caller must execute it, and pass the reply to [`Duplicates::done`].
    New(Key),
    /// The call is being executed; its ticket gets the reply, too.
    Running,
    /// The call was executed before, with this reply.
    Done(R),
}

#[derive(Debug)]
enum Entry<T, R> {
    /// Tickets that wait for the reply, in the order in which they came.
    Running(Vec<T>),
    /// The reply, and its length in bytes.
    Done(R, usize),
}

#[derive(Debug)]
struct Peer<T, R> {
    calls: HashMap<Key, Entry<T, R>, BuildHasherDefault<AsItIs>>,
    /// Calls that are done, the oldest first.
    done: VecDeque<Key>,
    bytes: usize,
    /// Time of the peer's last call, as a count of all calls.
    called: u64,
}

impl<T, R> Default for Peer<T, R> {
    fn default() -> Peer<T, R> {
        Peer { calls: HashMap::default(), done: VecDeque::new(), bytes: 0, called: 0 }
    }
}

/// The calls of all connections that are being executed, and some that were executed. A reply is an
/// `R`, and a `T` is a ticket that waits for a reply.
#[derive(Debug)]
pub struct Duplicates<T, R> {
    peers: HashMap<IpAddr, Peer<T, R>>,
    limits: DuplicateLimits,
    /// Keyed anew in each process, so that a peer cannot make two calls look alike.
    digests: RandomState,
    calls: u64,
}

impl<T, R: Clone> Duplicates<T, R> {
    /// Creates an empty set of calls.
    pub fn new(limits: DuplicateLimits) -> Duplicates<T, R> {
        let (peers, digests) = (HashMap::new(), RandomState::new());
        Duplicates { peers, limits, digests, calls: 0 }
    }

    /// Computes a digest of a call and of `parts`, the parts of its arguments that come within
    /// every message. For items that may be separate, the parts include only their lengths, because
    /// a repeated call may convey an item in another way.
    pub fn digest<'a>(
        &self,
        call: (Xid, Procedure),
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> u64 {
        let mut hasher = self.digests.build_hasher();
        call.hash(&mut hasher);
        parts.into_iter().for_each(|part| hasher.write(part));
        hasher.finish()
    }

    /// Records a received call with this digest. The reply goes to `ticket`.
    pub fn call(
        &mut self,
        (ip, xid): (IpAddr, Xid),
        procedure: Procedure,
        digest: u64,
        ticket: T,
    ) -> Verdict<R> {
        let key = Key { peer: ip, xid, procedure, digest };
        if self.peers.len() >= self.limits.peers.max(1) && !self.peers.contains_key(&ip) {
            self.make_room();
        }
        self.calls += 1;
        let peer = self.peers.entry(ip).or_default();
        peer.called = self.calls;
        match peer.calls.get_mut(&key) {
            Some(Entry::Done(reply, _)) => Verdict::Done(reply.clone()),
            Some(Entry::Running(tickets)) => {
                tickets.push(ticket);
                Verdict::Running
            }
            None => {
                peer.calls.insert(key, Entry::Running(vec![ticket]));
                Verdict::New(key)
            }
        }
    }

    /// Records that the call has a reply of `weight` bytes. Returns the tickets that wait for the
    /// reply. `keep` creates the kept copy; with `None` no reply is kept.
    pub fn done(&mut self, key: Key, weight: usize, keep: Option<impl FnOnce() -> R>) -> Vec<T> {
        let DuplicateLimits { replies, bytes, .. } = self.limits;
        let Some(peer) = self.peers.get_mut(&key.peer) else { return Vec::new() };
        let Some(Entry::Running(tickets)) = peer.calls.remove(&key) else { return Vec::new() };
        if let Some(keep) = keep.filter(|_| weight <= bytes / 4 && replies > 0) {
            peer.bytes += weight;
            peer.calls.insert(key, Entry::Done(keep(), weight));
            peer.done.push_back(key);
            while peer.done.len() > replies || peer.bytes > bytes {
                peer.forget_oldest();
            }
        }
        tickets
    }

    /// Removes waiting tickets for which `is_gone` returns true.
    pub fn leave(&mut self, ip: IpAddr, is_gone: impl Fn(&T) -> bool) {
        let calls = self.peers.get_mut(&ip).into_iter().flat_map(|peer| peer.calls.values_mut());
        for entry in calls {
            if let Entry::Running(tickets) = entry {
                tickets.retain(|ticket| !is_gone(ticket));
            }
        }
    }

    /// Forgets the peer that called longest ago, because the number of peers has reached its limit.
    fn make_room(&mut self) {
        // Skip peers with calls under way, which are needed for the replies. Connections bound the
        // number of such peers.
        let idle = self.peers.iter().filter(|(_, p)| p.calls.len() == p.done.len());
        if let Some(ip) = idle.min_by_key(|(_, p)| p.called).map(|(ip, _)| *ip) {
            self.peers.remove(&ip);
        }
    }

    /// Returns the number of tickets that wait for replies of calls under execution.
    pub fn waiting(&self) -> usize {
        let calls = self.peers.values().flat_map(|peer| peer.calls.values());
        calls.map(|entry| if let Entry::Running(waiting) = entry { waiting.len() } else { 0 }).sum()
    }

    /// Returns the number of known calls.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.peers.values().map(|p| p.calls.len()).sum()
    }
}

impl<T, R> Peer<T, R> {
    fn forget_oldest(&mut self) {
        let Some(key) = self.done.pop_front() else { return };
        if let Some(Entry::Done(_, weight)) = self.calls.remove(&key) {
            self.bytes -= weight;
        }
    }
}
