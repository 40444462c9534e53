//! The work of the other process.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use heddle_base::{Random, Seed};
use heddle_rings::{Area, Bells};
use heddle_verbs::{
    Arm, Cq, CqeOp, Mr, MrInfo, PostError, Qp, RecvWr, Region, SendWr, Sleeper, Stag,
};

use crate::world::{SLOT, SLOTS};

/// The environment variable that makes this program a child.
pub(crate) const SPEC: &str = "HEDDLE_TEST_CHILD";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Operations(u64),
    UntilKilled,
}

/// The parent's handover to the child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Descriptors of the area, of the memory, and of the waker.
    pub(crate) fds: [RawFd; 3],
    pub(crate) area: usize,
    pub(crate) memory: usize,
    pub(crate) bells: usize,
    pub(crate) cq: (usize, usize),
    pub(crate) qp: (usize, usize),
    pub(crate) mr: (u32, u64, usize, usize),
    pub(crate) remote: (u32, u64),
    pub(crate) work: Work,
}

impl Spec {
    pub(crate) fn to_text(&self) -> String {
        let ops = match self.work {
            Work::Operations(n) => n,
            Work::UntilKilled => 0,
        };
        let ([a, b, c], mr) = (self.fds, self.mr);
        let (cq, qp, remote) = (self.cq, self.qp, self.remote);
        format!(
            "{a} {b} {c} {} {} {} {} {} {} {} {} {} {} {} {} {} {ops}",
            self.area,
            self.memory,
            self.bells,
            cq.0,
            cq.1,
            qp.0,
            qp.1,
            mr.0,
            mr.1,
            mr.2,
            mr.3,
            remote.0,
            remote.1
        )
    }

    fn parse(text: &str) -> Spec {
        let n: Vec<u64> = text.split(' ').map(|w| w.parse().unwrap()).collect();
        let size = |i: usize| usize::try_from(n[i]).unwrap();
        let fd = |i: usize| RawFd::try_from(n[i]).unwrap();
        let small = |i: usize| u32::try_from(n[i]).unwrap();
        Spec {
            fds: [fd(0), fd(1), fd(2)],
            area: size(3),
            memory: size(4),
            bells: size(5),
            cq: (size(6), size(7)),
            qp: (size(8), size(9)),
            mr: (small(10), n[11], size(12), size(13)),
            remote: (small(14), n[15]),
            work: if n[16] == 0 { Work::UntilKilled } else { Work::Operations(n[16]) },
        }
    }
}

/// An application that works with every slot of its peer's region.
pub(crate) struct App {
    cq: Cq,
    qp: Qp,
    /// Sources in the first half, sinks in the second.
    mr: Mr,
    sleeper: Sleeper,
    remote: (Stag, u64),
    /// The expected content of the peer's region.
    shadow: Vec<u8>,
    random: Random,
    /// Sends posted so far: their echoes come in this order.
    echoes: std::collections::VecDeque<Vec<u8>>,
}

pub(crate) fn run(spec: &str) {
    let spec = Spec::parse(spec);
    // SAFETY: the parent has left these descriptors open for this process, and this code takes each
    // of them once.
    let [area, memory, event] = spec.fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let area = Area::attach(area, spec.area).unwrap();
    let memory = Arc::new(Region::from_fd(memory, spec.memory).unwrap());
    let bells = Bells::attach(&area, spec.bells, 1).unwrap();
    let cq = Cq::attach(&area, spec.cq).unwrap();
    let qp = Qp::attach(&area, spec.qp, bells, cq.clone(), cq.clone()).unwrap();
    let (stag, to, off, len) = spec.mr;
    let mr = Mr::attach(&memory, MrInfo { stag: Stag(stag), to, off, len }).unwrap();
    let remote = (Stag(spec.remote.0), spec.remote.1);
    let mut app = App::new((cq, qp, mr), Sleeper::from_fd(event), remote);
    match spec.work {
        Work::Operations(n) => {
            let mut done = 0;
            while done < n {
                done += app.round();
            }
            app.read_all();
        }
        Work::UntilKilled => loop {
            app.round();
        },
    }
}

fn mark(signaled: bool, wr: SendWr<'_>) -> SendWr<'_> {
    SendWr { signaled, ..wr }
}

impl App {
    /// Makes an application with a region of twice the peer's size, and the STag and tagged offset
    /// of the peer's region.
    pub(crate) fn new((cq, qp, mr): (Cq, Qp, Mr), sleeper: Sleeper, remote: (Stag, u64)) -> App {
        App {
            cq,
            qp,
            mr,
            sleeper,
            remote,
            shadow: vec![0; SLOTS * SLOT],
            random: Random::new(&Seed::from_u64(u64::from(std::process::id()))),
            echoes: std::collections::VecDeque::new(),
        }
    }

    /// Reads all of the peer's region once more.
    pub(crate) fn read_all(&mut self) {
        for slot in 0..SLOTS {
            self.read_back(slot);
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random.below(n as u64)).unwrap()
    }

    /// Makes one operation in each slot, in batches with one doorbell, and compares every byte.
    pub(crate) fn round(&mut self) -> u64 {
        let sink = SLOTS * SLOT;
        let (mut reads, mut recvs, mut posted) = (Vec::new(), 0, 0);
        for slot in 0..SLOTS {
            // Mostly short, now and then the whole slot.
            let len = if self.random.below(50) == 0 { SLOT } else { 1 + self.below(200) };
            let data: Vec<u8> = (0..len.div_ceil(8))
                .flat_map(|_| self.random.next_u64().to_ne_bytes())
                .take(len)
                .collect();
            let (from, to) = (slot * SLOT, self.remote.1 + (slot * SLOT) as u64);
            let id = slot as u64;
            // The application waits for the last operation of a round.
            let signaled = slot + 1 == SLOTS;
            match self.random.below(8) {
                0 => {
                    let sges = [self.mr.sge(sink + from, SLOT)];
                    self.qp.post_recv(&RecvWr { wr_id: 1000 + id, sges: &sges }).unwrap();
                    self.mr.write(from, &data);
                    // The source is in up to three pieces.
                    let (i, j) = (len / 3, len / 2);
                    let sges = [
                        self.mr.sge(from, i),
                        self.mr.sge(from + i, j - i),
                        self.mr.sge(from + j, len - j),
                    ];
                    self.qp.post_send(&mark(signaled, SendWr::send(id, &sges))).unwrap();
                    self.echoes.push_back(data);
                    recvs += 1;
                }
                1..=3 => {
                    let sges = [self.mr.sge(sink + from, len)];
                    self.qp
                        .post_send(&mark(signaled, SendWr::read(id, &sges, self.remote.0, to)))
                        .unwrap();
                    reads.push((slot, len));
                }
                4 if len <= 256 => {
                    let wr = SendWr::write_inline(id, &data, self.remote.0, to);
                    self.qp.post_send(&mark(signaled, wr)).unwrap();
                    self.shadow[from..from + len].copy_from_slice(&data);
                }
                _ => {
                    self.mr.write(from, &data);
                    let sges = [self.mr.sge(from, len)];
                    self.qp
                        .post_send(&mark(signaled, SendWr::write(id, &sges, self.remote.0, to)))
                        .unwrap();
                    self.shadow[from..from + len].copy_from_slice(&data);
                }
            }
            posted += 1;
        }
        let mut last = false;
        while !last || recvs > 0 {
            let c = self.next();
            if c.op == CqeOp::Recv {
                recvs -= 1;
                let slot = usize::try_from(c.wr_id - 1000).unwrap();
                let want = self.echoes.pop_front().unwrap();
                self.compare("an echo", sink + slot * SLOT, &want, c.len as usize);
            } else {
                last = true;
            }
        }
        // A Read sees the data from before this round, because no other operation writes its slot.
        for (slot, len) in reads {
            let want = self.shadow[slot * SLOT..slot * SLOT + len].to_vec();
            self.compare("a Read", sink + slot * SLOT, &want, len);
        }
        posted
    }

    fn read_back(&mut self, slot: usize) {
        let from = slot * SLOT;
        let sges = [self.mr.sge(SLOTS * SLOT + from, SLOT)];
        let to = self.remote.1 + from as u64;
        loop {
            match self.qp.post_send(&SendWr::read(1, &sges, self.remote.0, to)) {
                Ok(()) => break,
                Err(PostError::Full) => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
        self.next();
        let want = self.shadow[from..from + SLOT].to_vec();
        self.compare("the region", SLOTS * SLOT + from, &want, SLOT);
    }

    fn compare(&self, what: &str, at: usize, want: &[u8], len: usize) {
        assert_eq!(len, want.len(), "{what}");
        let mut got = vec![0; len];
        self.mr.read(at, &mut got);
        assert!(got == want, "{what} at {at} is not what it should be");
    }

    /// Returns the next completion, and sleeps until it comes.
    fn next(&self) -> heddle_verbs::Cqe {
        loop {
            if let Some(c) = self.cq.poll() {
                assert!(c.status.is_success(), "{c:?}");
                return c;
            }
            self.sleeper.sleep(Duration::from_secs(60), || {
                self.cq.arm(Arm::Next);
                !self.cq.is_empty()
            });
        }
    }
}
