//! The memory that a host has registered, and the streams that use it.

use std::sync::Arc;

use heddle_base::Random;
use heddle_iwarp::QpConfig;
use heddle_mr::{Kind, MrAttr};
use heddle_types::{
    Access, MrError, Pd, Qpn, Stag,
    mpa::{RtrConfig, RtrSet},
};

use crate::programs::derived::{Derived, Phase};
use crate::programs::program::{Plan, StreamPlan};
use crate::programs::shared::{Queue, Taker};
use crate::programs::stream::{End, Stream, Window};
use crate::programs::world::{MEMORY, SHARED, WORDS, WORDS_AT, World};
use crate::sim::{Host, PORT, Pair, TO_BASE};

/// A protection domain that no stream has.
const ALIEN: Pd = Pd(3);

/// Regions of a host.
#[derive(Debug)]
pub struct Regions {
    pub shared: MrAttr,
    pub read_only: MrAttr,
    pub write_only: MrAttr,
    pub atomics: MrAttr,
    /// For the requests of each stream.
    pub local: Vec<MrAttr>,
    /// For receive buffers that streams share.
    pub receives: MrAttr,
    /// Regions from which the windows and fast registrations of each stream derive, and windows of
    /// type 1.
    pub parents: Vec<MrAttr>,
    pub bindable: MrAttr,
    /// A region from which nothing may derive that changes it.
    pub frozen: MrAttr,
    /// A region and a window of another protection domain.
    pub alien: [Stag; 2],
}

impl Regions {
    pub fn new(pair: &Pair, h: usize, streams: usize) -> Regions {
        let region = |len, access| pair.register(h, 0, len, access);
        let bindable = Access::LOCAL_WRITE.with(Access::BIND);
        let Host { mrs, mem, .. } = &pair.hosts[h];
        let all = bindable.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
        let all = all.with(Access::REMOTE_ATOMIC);
        let other = mrs.register(ALIEN, mem.base as u64, TO_BASE, SHARED as u64, all).unwrap();
        let window = mrs.allocate_window(ALIEN, None).unwrap();
        let memory = (other.stag, TO_BASE, SHARED as u32);
        let remote = Access::REMOTE_READ.with(Access::REMOTE_WRITE).with(Access::REMOTE_ATOMIC);
        let window = mrs.bind_window(ALIEN, window, memory, TO_BASE, remote).unwrap();
        Regions {
            shared: region(SHARED, Access::REMOTE_WRITE.with(Access::REMOTE_READ)),
            read_only: region(SHARED, Access::REMOTE_READ),
            write_only: region(SHARED, Access::REMOTE_WRITE),
            atomics: pair.register(h, WORDS_AT, 8 * WORDS, Access::REMOTE_ATOMIC),
            local: (0..streams).map(|_| region(MEMORY, Access::LOCAL_WRITE)).collect(),
            receives: region(MEMORY, Access::LOCAL_WRITE),
            parents: (0..streams).map(|_| region(MEMORY, bindable)).collect(),
            bindable: region(MEMORY, bindable),
            frozen: region(MEMORY, Access::BIND),
            alien: [other.stag, window.stag],
        }
    }

    /// Makes for each stream two windows of its queue pair and a fast registration, and one that
    /// all queue pairs may use; and two windows of type 1. None of them names memory yet.
    pub fn derive(&self, pair: &Pair, h: usize, streams: &[StreamPlan]) -> Vec<Derived> {
        let Host { mrs, pd, .. } = &pair.hosts[h];
        let window = |qpn| mrs.allocate_window(*pd, qpn).unwrap();
        let fast = |qpn, len| mrs.allocate(*pd, qpn, len).unwrap();
        let of_stream = |s: usize| {
            let own = Some(qpn(s, h));
            [
                Derived::new(Kind::QpWindow, Some(s), true, window(own), SHARED + 1),
                Derived::new(Kind::QpWindow, Some(s), true, window(own), SHARED + 1),
                // These consist of whole pages.
                Derived::new(Kind::Fast, Some(s), true, fast(own, 1), 4096),
                Derived::new(Kind::Fast, Some(s), false, fast(None, 4097), SHARED),
            ]
        };
        let both =
            (0..2).map(|_| Derived::new(Kind::Window, None, false, window(None), SHARED + 1));
        (0..streams.len()).flat_map(of_stream).chain(both).collect()
    }
}

impl World {
    /// Lets the applications give back all STags. A region stays while STags derive from it, if the
    /// application unregisters it only on condition that there are none; in the end, no STag is
    /// left.
    pub fn give_back_stags(&mut self, host: usize) {
        self.probe(host);
        let mrs = self.pair.hosts[host].mrs.clone();
        let regions = &self.regions[host];
        let parents = regions.parents.iter().enumerate().map(|(s, p)| (Some(s), p));
        for (stream, parent) in parents.chain([(None, &regions.bindable)]) {
            if stream.is_some_and(|s| self.streams[s].ends[host].parent_gone) {
                continue;
            }
            let bound = |d: &&mut Derived| d.stream == stream && d.phase == Phase::Bound;
            let valid: Vec<_> = self.derived[host].iter_mut().filter(bound).collect();
            if !valid.is_empty() {
                let kept = Err(MrError::Bound(valid.len() as u32));
                assert_eq!(mrs.retire_unbound(parent.stag), kept, "{valid:?}");
            }
            valid.into_iter().for_each(|d| {
                mrs.revoke(d.stag).unwrap();
                d.phase = Phase::Gone;
            });
            mrs.retire_unbound(parent.stag).unwrap();
            mrs.release(parent.stag).unwrap();
        }
        for d in &self.derived[host] {
            mrs.deregister(d.stag).unwrap();
        }
        let Regions { shared, read_only, write_only, atomics, receives, frozen, .. } = regions;
        let others = [shared, read_only, write_only, atomics, receives, frozen].map(|mr| mr.stag);
        others.into_iter().chain(regions.alien).for_each(|stag| mrs.deregister(stag).unwrap());
        for (s, local) in regions.local.iter().enumerate() {
            let end = &self.streams[s].ends[host];
            if !end.local_gone {
                mrs.deregister(local.stag).unwrap();
            }
            let windows = end.windows.iter().filter(|w| !w.deregistered);
            windows.for_each(|w| mrs.deregister(w.stag).unwrap());
        }
        // If both applications share one RNIC, the second is the last to give something back.
        let all = host == 1 || !Arc::ptr_eq(&mrs, &self.pair.hosts[1].mrs);
        assert!(!all || mrs.is_empty(), "{} STags are left", mrs.len());
    }
}

/// Makes the streams that share receive buffers take them from the shared queues.
pub fn share(pair: &mut Pair, streams: &[Stream], queues: &[Queue; 2]) {
    for (s, stream) in streams.iter().enumerate() {
        for me in (0..2).filter(|me| stream.plan.shared[*me]) {
            let taker = Taker { stream: s, queue: queues[me].clone() };
            let rnic = &mut pair.driver(me).rnic;
            rnic.post_with(stream.ids[me], |qp| qp.share_receives(Box::new(taker))).unwrap();
        }
    }
}

pub fn qpn(s: usize, me: usize) -> Qpn {
    Qpn((10 + 2 * s + me) as u32)
}

/// Puts both ends of a stream into FPDU mode.
pub fn enter(pair: &mut Pair, plan: &Plan, s: usize, stream: &Stream) {
    let of = plan.streams[s];
    let rtr = match of.rtr {
        None => [RtrConfig::None; 2],
        Some((form, any)) => {
            let set = if any { RtrSet::ALL } else { RtrSet::of(form) };
            [RtrConfig::Send(form), RtrConfig::Expect(set)]
        }
    };
    let pds = [0, 1].map(|me: usize| pair.hosts[me].pd);
    let qp = |me: usize| QpConfig {
        qpn: qpn(s, me),
        pd: pds[me],
        sq_depth: of.depth[me],
        rq_depth: 512,
        ird: of.ird[me],
        ord: of.ord[me],
        crc: plan.crc,
        send_markers: of.markers[1 - me],
        recv_markers: of.markers[me],
        rtr: rtr[me],
        ..QpConfig::default()
    };
    pair.enter(stream.ids, [&qp(0), &qp(1)]);
    if of.rough {
        pair.lose_first.push(stream.port);
    }
}

/// Makes a connection for a stream, with regions of its own at both ends.
pub fn connect(pair: &mut Pair, plan: &Plan, s: usize, r: &mut Random) -> Stream {
    let of = plan.streams[s];
    let port = PORT + s as u16;
    let ids = pair.establish(port);
    let ends = [0, 1].map(|me| {
        let rights = Access::REMOTE_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_INVALIDATE);
        let window = |_| {
            let len = 1 + r.below(3000) as usize;
            let at = r.below((SHARED - len) as u64) as usize;
            let Host { mrs, mem, pd, .. } = &pair.hosts[me];
            let to = at as u64 + TO_BASE;
            let addr = (mem.base + at) as u64;
            let mr = mrs.register_for_qp(*pd, qpn(s, me), addr, to, len as u64, rights);
            Window { stag: mr.unwrap().stag, at, len, gone: false, deregistered: false }
        };
        End { windows: (0..3).map(window).collect(), ..End::default() }
    });
    Stream {
        plan: of,
        ids,
        port,
        ends,
        codes: vec![],
        excused: false,
        poisoned: false,
        cut: false,
        reset_unheard: false,
    }
}
