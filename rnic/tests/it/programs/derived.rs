//! STags that are given parts of a region over and over, as their application knows them: fast
//! registrations, and windows of both types.

use heddle_base::Random;
use heddle_iwarp::mr::Kind;
use heddle_iwarp::{Access, MrFault, Pd, Qpn, Stag};

use crate::programs::regions::qpn;
use crate::programs::stream::{CANNOT_INVALIDATE, DDP_STAG, Effect, RDMAP_STAG};
use crate::programs::world::World;
use crate::sim::Host;

/// How far one is in being given memory and losing it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// It names nothing, for certain.
    Free,
    /// The request that binds it is posted: its place among those of its end.
    Posted(u32),
    /// It names memory, for certain, and the peers have been told.
    Bound,
    /// Its owner has posted its invalidation.
    Leaving,
    /// The peer has.
    Taken,
    /// Its region or its queue pair is gone.
    Gone,
}

/// What it names.
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
    /// Whose queue binds it; none of a window of type 1.
    pub stream: Option<usize>,
    /// Whether it is for the queue pair of that stream alone.
    pub alone: bool,
    /// With the key that it has, or had last, and as it was before that.
    pub stag: Stag,
    pub stale: Option<Stag>,
    pub phase: Phase,
    pub view: View,
    /// Most octets it can name.
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

    /// Whether the peer of a stream may name it now, as far as the queue pair counts.
    pub fn is_for(&self, stream: usize) -> bool {
        self.phase == Phase::Bound && (!self.alone || self.stream == Some(stream))
    }

    /// It has another name and other memory from `phase` on.
    pub fn name(&mut self, stag: Stag, view: View, phase: Phase) {
        assert!(stag != self.stag && stag.same_index(self.stag), "{stag} behind {self:?}");
        (self.stale, self.stag) = (Some(self.stag), stag);
        (self.view, self.phase) = (view, phase);
    }

    /// Whether it names something, at least and at most.
    fn counts(&self) -> (u32, u32) {
        match self.phase {
            Phase::Free | Phase::Gone => (0, 0),
            Phase::Bound => (1, 1),
            Phase::Posted(_) | Phase::Leaving | Phase::Taken => (0, 1),
        }
    }
}

impl World {
    /// Whether a request of a peer that names an STag of `host` is not complete, or may still come.
    pub fn is_in_use(&self, host: usize, stag: Stag) -> bool {
        !self.users(host, stag).is_empty()
    }

    /// The streams of those requests.
    pub fn users(&self, host: usize, stag: Stag) -> Vec<usize> {
        let names = |s: &usize| {
            let [user, owner] = [1 - host, host].map(|side| &self.streams[*s].ends[side]);
            user.requests.iter().any(|q| q.names == Some(stag))
                || owner.over.is_none() && user.astray.contains(&stag)
        };
        (0..self.streams.len()).filter(names).collect()
    }

    /// An STag of `host` may go although peers use it: that explains what they are told then.
    pub fn excuse_users(&mut self, host: usize, stag: Stag) {
        for s in self.users(host, stag) {
            self.streams[s].excuse(&[DDP_STAG, RDMAP_STAG, CANNOT_INVALIDATE]);
        }
    }

    /// An STag of `host` names nothing any more: nothing goes through it from now on.
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

    /// The same with another key, which no request under way names.
    pub fn other_key(&self, r: &mut Random, host: usize, stag: Stag) -> Stag {
        loop {
            let other = stag.with_key(r.below(256) as u8);
            if other != stag && !self.is_in_use(host, other) {
                return other;
            }
        }
    }

    /// The queue pair of an end is over: what it alone could use its application takes back, and
    /// what nobody was told of.
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

    /// Asks the table what STags of a host may be used for, now that it is certain.
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

    /// The table knows how many derive from a region.
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
            assert_eq!(last, want(at + len - 1), "last octet of {d:?}");
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
