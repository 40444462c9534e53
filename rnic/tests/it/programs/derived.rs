//! STags that an application gives parts of a region over and over, as the application knows them:
//! fast registrations, and windows of both types.

use heddle_base::Random;
use heddle_mr::Kind;
use heddle_types::{Access, MrFault, Pd, Qpn, Stag};

use crate::programs::regions::qpn;
use crate::programs::stream::{CANNOT_INVALIDATE, DDP_STAG, Effect, RDMAP_STAG};
use crate::programs::world::World;
use crate::sim::Host;

/// The progress of an STag in being given memory and losing it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// The STag certainly names nothing.
    Free,
    /// The request that binds the STag is posted, at this place among the requests of its end.
    Posted(u32),
    /// The STag certainly names memory, and the peers know.
    Bound,
    /// The owner has posted the invalidation of the STag.
    Leaving,
    /// The peer has posted the invalidation of the STag.
    Taken,
    /// The region or the queue pair of the STag no longer exists.
    Gone,
}

/// The memory that an STag names.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub to: u64,
    pub at: usize,
    pub len: usize,
    pub access: Access,
}

#[derive(Clone, Copy, Debug)]
pub struct Derived {
    pub kind: Kind,
    /// The stream whose queue binds the STag; none for a window of type 1.
    pub stream: Option<usize>,
    /// Whether only the queue pair of that stream may use the STag.
    pub alone: bool,
    /// The STag with its present or last key, and the STag as it was before that.
    pub stag: Stag,
    pub stale: Option<Stag>,
    pub phase: Phase,
    pub view: View,
    /// The most bytes that the STag can name.
    pub most: usize,
}

impl Derived {
    pub fn new(kind: Kind, stream: Option<usize>, alone: bool, stag: Stag, most: usize) -> Derived {
        let view = View { to: 0, at: 0, len: 0, access: Access::NONE };
        Derived { kind, stream, alone, stag, stale: None, phase: Phase::Free, view, most }
    }

    pub fn is_window(&self) -> bool {
        self.kind != Kind::Fast
    }

    /// Returns true if the peer of a stream may name the STag now, as far as the queue pair is
    /// concerned.
    pub fn is_for(&self, stream: usize) -> bool {
        self.phase == Phase::Bound && (!self.alone || self.stream == Some(stream))
    }

    /// Gives it another name and other memory from `phase` on.
    pub fn name(&mut self, stag: Stag, view: View, phase: Phase) {
        assert!(stag != self.stag && stag.same_index(self.stag), "{stag} behind {self:?}");
        (self.stale, self.stag) = (Some(self.stag), stag);
        (self.view, self.phase) = (view, phase);
    }

    /// Returns 1 if it names memory, otherwise 0: the least and the most possible.
    fn counts(&self) -> (u32, u32) {
        match self.phase {
            Phase::Free | Phase::Gone => (0, 0),
            Phase::Bound => (1, 1),
            Phase::Posted(_) | Phase::Leaving | Phase::Taken => (0, 1),
        }
    }
}

impl World {
    /// Returns true if a request of a peer that names an STag of `host` is not complete, or may
    /// still arrive.
    pub fn is_in_use(&self, host: usize, stag: Stag) -> bool {
        !self.users(host, stag).is_empty()
    }

    /// Returns the streams of these requests.
    pub fn users(&self, host: usize, stag: Stag) -> Vec<usize> {
        let names = |s: &usize| {
            let [user, owner] = [1 - host, host].map(|side| &self.streams[*s].ends[side]);
            user.requests.iter().any(|q| q.names == Some(stag))
                || owner.over.is_none() && user.astray.contains(&stag)
        };
        (0..self.streams.len()).filter(names).collect()
    }

    /// Notes that an STag of `host` may become invalid although peers use it, which explains the
    /// errors that they report then.
    pub fn excuse_users(&mut self, host: usize, stag: Stag) {
        for s in self.users(host, stag) {
            self.streams[s].excuse(&[DDP_STAG, RDMAP_STAG, CANNOT_INVALIDATE]);
        }
    }

    /// Notes that an STag of `host` names nothing any more: no store goes through it from now on.
    pub fn cut_off_users(&mut self, host: usize, stag: Stag) {
        self.excuse_users(host, stag);
        for stream in &self.streams {
            for request in &stream.ends[1 - host].requests {
                if let (Effect::Write(i), true) = (request.effect, request.names == Some(stag)) {
                    self.stores[host].stores[i].end.get_or_insert(self.now);
                }
            }
        }
    }

    /// Returns the same STag with another key, which no request in flight names.
    pub fn other_key(&self, r: &mut Random, host: usize, stag: Stag) -> Stag {
        loop {
            let other = stag.with_key(r.below(256) as u8);
            if other != stag && !self.is_in_use(host, other) {
                return other;
            }
        }
    }

    /// Revokes STags after the queue pair of an end is over: the application takes back the STags
    /// that only this queue pair could use, and those that it has told no peer of.
    pub fn revoke_bound(&mut self, s: usize, me: usize) {
        for i in 0..self.derived[me].len() {
            let d = self.derived[me][i];
            if d.stream == Some(s) && (d.alone || !matches!(d.phase, Phase::Bound | Phase::Free)) {
                assert_eq!(self.pair.hosts[me].mrs.revoke(d.stag), Ok(()), "{d:?}");
                self.derived[me][i].phase = Phase::Gone;
                self.cut_off_users(me, d.stag);
            }
        }
    }

    /// Asks the table what the STags of a host may be used for, where that is certain.
    pub fn probe(&self, host: usize) {
        for d in &self.derived[host] {
            self.probe_one(host, d);
        }
        for (s, parent) in self.regions[host].parents.iter().enumerate() {
            if !self.streams[s].ends[host].parent_gone {
                self.check_bound(host, parent.stag, Some(s));
            }
        }
        self.check_bound(host, self.regions[host].bindable.stag, None);
    }

    /// Checks that the table knows how many STags derive from a region.
    fn check_bound(&self, host: usize, parent: Stag, stream: Option<usize>) {
        let all = self.derived[host].iter().filter(|d| d.stream == stream).map(Derived::counts);
        let (least, most) = all.fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
        let bound = self.pair.hosts[host].mrs.bound(parent);
        assert!((least..=most).contains(&bound), "{bound} derive, not {least} to {most}");
    }

    fn probe_one(&self, host: usize, d: &Derived) {
        let Host { mrs, mem, pd, .. } = &self.pair.hosts[host];
        let (pd, base) = (*pd, mem.base);
        let own = d.stream.map_or(Qpn(9999), |s| qpn(s, host));
        let View { to, at, len, access } = d.view;
        let check = |who: (Pd, Qpn), stag, to, len: usize, need| {
            mrs.check(who.0, who.1, stag, to, len as u32, need).map(|m| m.addr() as usize - base)
        };
        let stale = d.stale.into_iter().chain([d.stag.with_key(d.stag.key() ^ 0xff)]);
        let (dead, valid) = match d.phase {
            Phase::Bound => (stale.collect::<Vec<_>>(), true),
            Phase::Free | Phase::Gone => (stale.chain([d.stag]).collect(), false),
            _ => return,
        };
        for stag in dead {
            let found = check((pd, own), stag, to, 1, Access::REMOTE_READ);
            assert_eq!(found, Err(MrFault::InvalidStag), "{stag} of {d:?}");
        }
        if !valid {
            return;
        }
        let rights = [
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE_ATOMIC,
            Access::LOCAL_WRITE,
            Access::NONE,
        ];
        for need in rights {
            let may = access.has(need) && (!d.is_window() || need.is_remote());
            let want = |at| if may { Ok(at) } else { Err(MrFault::Access) };
            let beside = if may { MrFault::Bounds } else { MrFault::Access };
            assert_eq!(check((pd, own), d.stag, to, len, need), want(at), "{need:?} of {d:?}");
            let last = check((pd, own), d.stag, to + len as u64 - 1, 1, need);
            assert_eq!(last, want(at + len - 1), "last byte of {d:?}");
            let beyond = check((pd, own), d.stag, to, len + 1, need);
            assert_eq!(beyond, Err(beside), "beyond {d:?}");
            if let Some(before) = to.checked_sub(1) {
                assert_eq!(check((pd, own), d.stag, before, 1, need), Err(beside), "before {d:?}");
            }
            let other = check((pd, Qpn(8888)), d.stag, to, 1, need);
            let want = if d.alone { Err(MrFault::NotAssociated) } else { want(at) };
            assert_eq!(other, want, "another queue pair and {d:?}");
            let other = check((Pd(77), own), d.stag, to, 1, need);
            assert_eq!(other, Err(MrFault::NotAssociated), "another PD and {d:?}");
        }
        let may = access.has(Access::REMOTE_INVALIDATE);
        let want = if may { Ok(()) } else { Err(MrFault::Access) };
        assert_eq!(mrs.check_invalidate(pd, own, d.stag), want, "{d:?}");
    }
}
