//! Calls that come again.
//!
//! A client whose connection is lost does not know whether its call was executed, and makes it again on
//! the next connection with the same XID. What must not be done twice is not: a call that is being
//! executed is not begun again, and one that was is given the reply it had. A call is taken for another
//! when it has the other's XID, procedure, and arguments (by a keyed digest), and comes from the same
//! address: the port is another on each connection.
//!
//! Who waits for the reply of a call that is being executed is told it when it is there. A connection that
//! has ended waits no more ([`Duplicates::leave`]), so a client may come on as many connections as it likes.
//!
//! What is kept is bounded for each peer, so that one peer cannot push out the replies of others; the
//! oldest goes first. When there are too many peers, the one that called longest ago is forgotten.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::net::IpAddr;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::rpc::Procedure;

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
pub struct Key {
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
pub enum Verdict<R> {
    /// New: it is to be executed, and [`Duplicates::done`] to be told the reply.
    New(Key),
    /// Being executed: it gets the reply too.
    Running,
    /// Executed before, with this reply.
    Done(R),
}

#[derive(Debug)]
enum Entry<T, R> {
    /// Who waits for the reply, in the order in which they came.
    Running(Vec<T>),
    /// The reply, and its bytes.
    Done(R, usize),
}

#[derive(Debug)]
struct Peer<T, R> {
    calls: HashMap<Key, Entry<T, R>, BuildHasherDefault<AsItIs>>,
    /// Those that are done, the oldest first.
    done: VecDeque<Key>,
    octets: usize,
    /// When it called last: a count of calls.
    called: u64,
}

impl<T, R> Default for Peer<T, R> {
    fn default() -> Peer<T, R> {
        Peer { calls: HashMap::default(), done: VecDeque::new(), octets: 0, called: 0 }
    }
}

/// The calls of all connections that are being executed, and some that were. Replies are of type `R`, and `T`
/// is who waits for one.
#[derive(Debug)]
pub struct Duplicates<T, R> {
    peers: HashMap<IpAddr, Peer<T, R>>,
    limits: DuplicateLimits,
    /// Keyed anew in each process: a peer cannot make two calls look alike.
    digests: RandomState,
    calls: u64,
}

impl<T, R: Clone> Duplicates<T, R> {
    /// One that knows of no call.
    pub fn new(limits: DuplicateLimits) -> Duplicates<T, R> {
        let (peers, digests) = (HashMap::new(), RandomState::new());
        Duplicates { peers, limits, digests, calls: 0 }
    }

    /// A digest of a call and of `parts`, which are those of its arguments that come within every message:
    /// of items that may lie apart only the lengths are, as they may come in another way when they come
    /// again.
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

    /// A call with this digest has come; its reply goes to `ticket`.
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

    /// The call has a reply of `weight` bytes: who waits for it. `keep` makes what is kept of it, and nothing
    /// is kept without.
    pub fn done(&mut self, key: Key, weight: usize, keep: Option<impl FnOnce() -> R>) -> Vec<T> {
        let DuplicateLimits { replies, octets, .. } = self.limits;
        let Some(peer) = self.peers.get_mut(&key.peer) else { return Vec::new() };
        let Some(Entry::Running(tickets)) = peer.calls.remove(&key) else { return Vec::new() };
        if let Some(keep) = keep.filter(|_| weight <= octets / 4 && replies > 0) {
            peer.octets += weight;
            peer.calls.insert(key, Entry::Done(keep(), weight));
            peer.done.push_back(key);
            while peer.done.len() > replies || peer.octets > octets {
                peer.forget_oldest();
            }
        }
        tickets
    }

    /// Those that `is_gone` says are not there any more wait for no reply.
    pub fn leave(&mut self, ip: IpAddr, is_gone: impl Fn(&T) -> bool) {
        let calls = self.peers.get_mut(&ip).into_iter().flat_map(|peer| peer.calls.values_mut());
        for entry in calls {
            if let Entry::Running(tickets) = entry {
                tickets.retain(|ticket| !is_gone(ticket));
            }
        }
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

    /// How many wait for replies of calls that are being executed.
    pub fn waiting(&self) -> usize {
        let calls = self.peers.values().flat_map(|peer| peer.calls.values());
        calls.map(|entry| if let Entry::Running(waiting) = entry { waiting.len() } else { 0 }).sum()
    }

    /// Calls that are known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.peers.values().map(|p| p.calls.len()).sum()
    }
}

impl<T, R> Peer<T, R> {
    fn forget_oldest(&mut self) {
        let Some(key) = self.done.pop_front() else { return };
        if let Some(Entry::Done(_, weight)) = self.calls.remove(&key) {
            self.octets -= weight;
        }
    }
}
