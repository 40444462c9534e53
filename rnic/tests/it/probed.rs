//! The end of what a probe of the path MTU carries: memory that is unregistered, and streams and
//! connections that end, while the probe is outstanding. A probe has the bytes of several FPDUs, so its
//! memory may be free only after the last of its transmissions.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use heddle_iwarp::QpConfig;
use heddle_rnic::Event;
use heddle_tcp::{ConnConfig, PathMtu};
use heddle_types::{Access, ConnId, SendWr, Sge, Stag};

use crate::sim::{LinkConfig, PD, Pair, TO_BASE, pattern};

/// Writes, each from a region of its own. The first window has room for all of them.
const WRITES: usize = 6;
const LEN: usize = 1500;
const ALL: usize = WRITES * LEN;
/// The bytes that the next owner of the memory writes there: no frame has so many of them in a row.
const FOREIGN: [u8; 24] = [0xf0; 24];
/// How long acknowledgments are lost.
const SILENCE: Duration = Duration::from_millis(60);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// The application unregisters its memory; the stream goes on.
    Unregister,
    Disconnect,
    Abort,
    /// The peer writes where it has no access, and we send a Terminate.
    PeerBreaksARule,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Arrives,
    /// A router drops the probe, and says nothing.
    Vanishes,
    /// A router drops the probe, and says so.
    IsReported,
    /// The probe arrives, but its acknowledgments are lost until its bytes have gone again.
    IsAcknowledgedLate,
}

struct Run {
    p: Pair,
    conns: [ConnId; 2],
    sources: Vec<Stag>,
    /// The slots of the regions, once retired; `None` for those that are free again.
    slots: Vec<Option<u32>>,
    foreign: Rc<Cell<u32>>,
}

impl Run {
    /// Returns a run in which all Writes are under way, and a probe with them.
    fn start(fate: Fate, (crc, cuts): (bool, u32)) -> Run {
        let link = LinkConfig { cuts, ..LinkConfig::default() };
        let mut p = Pair::with_config(5, link, ALL, |c| {
            c.stack.conn = ConnConfig { path_mtu: PathMtu::On, ..c.stack.conn };
        });
        let conns = p.connect(&QpConfig { pd: PD, crc, ..QpConfig::default() });
        let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
        let target = p.register(1, 0, ALL, rights).stag;
        p.hosts[0].mem.write(0, &pattern(3, ALL));
        let places = (0..WRITES).map(|n| n * LEN);
        let sources: Vec<_> = places.map(|at| p.register(0, at, LEN, rights).stag).collect();
        let foreign = Rc::new(Cell::new(0));
        let seen = foreign.clone();
        p.tap = Some(Box::new(move |side, frame| {
            if side == 0 && frame.windows(FOREIGN.len()).any(|w| w == FOREIGN) {
                seen.set(seen.get() + 1);
            }
        }));
        let drops = matches!(fate, Fate::Vanishes | Fate::IsReported);
        (p.path_mtu, p.told) = (drops.then_some(1200), fate == Fate::IsReported);
        for (n, &stag) in sources.iter().enumerate() {
            let to = TO_BASE + (n * LEN) as u64;
            let sge = [Sge { stag, to, len: LEN as u32 }];
            p.hosts[0].post_send(conns[0], &SendWr::write(n as u64, &sge, target, to)).unwrap();
        }
        while p.rnic(0).conn_counters().mtu_probes == 0 {
            assert!(p.step(), "no probe");
        }
        p.cut[1] = fate == Fate::IsAcknowledgedLate;
        Run { p, conns, sources, slots: Vec::new(), foreign }
    }

    fn end(&mut self, ending: Ending) {
        let now = self.p.now;
        match ending {
            Ending::Unregister => {}
            Ending::Disconnect => self.p.hosts[0].disconnect(now, self.conns[0]),
            Ending::Abort => self.p.hosts[0].rnic.abort(self.conns[0]),
            Ending::PeerBreaksARule => {
                let wr = SendWr::write_inline(1, &[1; 40], Stag(9), 0);
                self.p.hosts[1].post_send(self.conns[1], &wr).unwrap();
            }
        }
        let mrs = &self.p.hosts[0].mrs;
        self.slots = self.sources.iter().map(|&s| Some(mrs.retire(s).unwrap())).collect();
    }

    /// Gives memory that nothing refers to any more to its next owner, as the registry does.
    fn reclaim(&mut self) {
        self.p.check_pins();
        let host = &mut self.p.hosts[0];
        let pins = host.rnic.pins();
        for (n, slot) in self.slots.iter_mut().enumerate() {
            if slot.take_if(|slot| pins.count(*slot) == 0).is_some() {
                host.mem.write(n * LEN, &[FOREIGN[0]; LEN]);
                host.mrs.release(self.sources[n]).unwrap();
            }
        }
    }

    fn taken(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}

fn run(ending: Ending, fate: Fate, port: (bool, u32)) {
    let what = format!("{ending:?} {fate:?} {port:?}");
    let mut r = Run::start(fate, port);
    assert!(r.p.pinned(0) > 0, "{what}");
    r.end(ending);
    let goes_on = matches!(ending, Ending::Unregister | Ending::Disconnect);
    r.reclaim();
    assert_eq!(r.taken() == 0, ending == Ending::Abort, "{what}");
    let start = r.p.now;
    let closed = |r: &Run| r.p.hosts[0].events.iter().any(|e| matches!(e, Event::Closed { .. }));
    while r.taken() > 0 || (ending != Ending::Unregister && !closed(&r)) {
        if r.p.now >= start + SILENCE {
            r.p.cut[1] = false;
        } else if r.p.cut[1] && goes_on {
            assert_eq!(r.taken(), WRITES, "{what}: the peer has acknowledged nothing");
        }
        assert!(r.p.step(), "{what}: {} regions for ever", r.taken());
        assert!(r.p.now < start + Duration::from_secs(600), "{what}: {} regions", r.taken());
        r.reclaim();
    }
    r.p.pass(Duration::from_secs(5));
    r.reclaim();
    assert_eq!((r.p.pinned(0), r.foreign.get()), (0, 0), "{what}");
    let done = r.p.hosts[0].completions.iter().filter(|c| c.1.status.is_success()).count();
    if goes_on {
        assert_eq!(done, WRITES, "{what}");
        assert!(r.p.hosts[1].mem.read(0, ALL) == pattern(3, ALL), "{what}");
        assert_eq!(r.p.rnic(1).qp_counters().err_crc, 0, "{what}");
        let c = r.p.rnic(0).conn_counters();
        let (raises, lost) = (c.mtu_raises, c.mtu_probes_lost);
        match fate {
            Fate::Arrives => assert_eq!((raises, lost, c.retransmits), (1, 0, 0), "{what}"),
            Fate::Vanishes | Fate::IsReported => assert_eq!((raises, lost), (0, 1), "{what}"),
            // The answer does not tell which of the two transmissions has arrived.
            Fate::IsAcknowledgedLate => {
                assert!(c.retransmits > 0 && raises == 0, "{what}: {c:?}");
            }
        }
    }
}

#[test]
fn test_memory_of_an_mtu_probe_is_free_after_its_last_transmission_and_not_before() {
    use Ending::{Abort, Disconnect, PeerBreaksARule, Unregister};
    use Fate::{Arrives, IsAcknowledgedLate, IsReported, Vanishes};
    for ending in [Unregister, Disconnect, Abort, PeerBreaksARule] {
        for fate in [Arrives, Vanishes, IsReported, IsAcknowledgedLate] {
            for port in [(true, 1), (false, 1), (true, 16), (false, 16)] {
                run(ending, fate, port);
            }
        }
    }
}
