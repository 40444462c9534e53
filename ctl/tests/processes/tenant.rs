//! A device for another process, made and connected by this one.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;

use heddle_base::Random;
use heddle_hub::DeviceConfig;
use heddle_rings::Bells;
use heddle_verbs::{Access, Cq, Device, Mr, Qp, QpInit, Sleeper};

use crate::child::{SPEC, Spec, Work};
use crate::world::{Conn, MARK, SLOT, SLOTS, World};

pub(crate) struct Tenant {
    device: Device,
    conn: Conn,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    sleeper: Sleeper,
    sent_before: u64,
}

/// Number of requests in each direction.
const DEPTH: u32 = 256;

impl Tenant {
    pub(crate) fn new(world: &mut World) -> Tenant {
        let config = DeviceConfig {
            memory: 2 * SLOTS * SLOT + 4096,
            queues: 512 << 10,
            shared: true,
            ..DeviceConfig::default()
        };
        let device = world.a.hub().open(&config).unwrap();
        let pd = device.alloc_pd().unwrap();
        let sleeper = Sleeper::pair().unwrap();
        let cq = device.create_cq(2 * DEPTH, Some(sleeper.waker())).unwrap();
        let mut init = QpInit::new(cq.clone()).depths(DEPTH, DEPTH);
        init.max_inline = 256;
        let qp = device.create_qp(pd, init).unwrap();
        let mr = device.alloc_mr(pd, 2 * SLOTS * SLOT, Access::LOCAL_WRITE).unwrap();
        mr.write(0, &vec![MARK; 2 * SLOTS * SLOT]);
        let conn = world.connect(&device, &qp, b"child");
        let sent_before = world.received();
        Tenant { device, conn, cq, qp, mr, sleeper, sent_before }
    }

    /// Starts the process and hands over the descriptors that it needs.
    pub(crate) fn spawn(&self, work: Work) -> Child {
        let (area, memory) = (self.device.area(), self.device.memory().unwrap());
        let fds = [area.fd(), memory.fd(), self.sleeper.fd()].map(|f| inheritable(f.unwrap()));
        let info = self.mr.info();
        let spec = Spec {
            fds: [0, 1, 2].map(|i: usize| fds[i].as_raw_fd()),
            area: area.len(),
            memory: memory.len(),
            bells: self.device.bells().offset(),
            cq: self.cq.share(),
            qp: self.qp.share(),
            mr: (info.stag.0, info.to, info.off, info.len),
            remote: (self.conn.remote.stag.0, self.conn.remote.to),
            work,
        };
        let exe = std::env::current_exe().unwrap();
        Command::new(exe).env(SPEC, spec.to_text()).spawn().unwrap()
    }

    /// Returns true if data of the child have arrived at the peer.
    pub(crate) fn has_sent(&self, world: &World) -> bool {
        world.received() > self.sent_before
    }

    /// Takes everything back, as an owner of descriptors does when a process has ended.
    pub(crate) fn end(self, _world: &mut World) {
        self.device.close().unwrap();
    }

    /// Writes nonsense where the application may write, and rings the doorbell.
    pub(crate) fn scribble(&self, random: &mut Random, round: u64) {
        let area = self.device.area();
        let (off, words) = if round.is_multiple_of(2) { self.qp.share() } else { self.cq.share() };
        let Some(block) = area.at(off, words) else { panic!("a block of the area") };
        let words = block.words();
        match round % 5 {
            // Every word at once.
            0 => words.iter().for_each(|w| w.store(random.next_u64(), Ordering::Relaxed)),
            // Small numbers, which are more likely to have a meaning.
            1 => {
                for w in words {
                    w.store(random.below(70_000), Ordering::Relaxed);
                }
            }
            // A few words anywhere.
            2 => {
                for _ in 0..16 {
                    let at = usize::try_from(random.below(words.len() as u64)).unwrap();
                    words[at].store(random.next_u64() >> random.below(64), Ordering::Relaxed);
                }
            }
            // Entries that are nearly right: opcode, flags and counts in range.
            3 => {
                let (off, len) = self.qp.share();
                let Some(block) = area.at(off, len) else { panic!("a block of the area") };
                let words = block.words();
                for i in (40..len.min(40 + 8 * 256)).step_by(8) {
                    let head = random.below(6)
                        | random.below(16) << 8
                        | random.below(18) << 16
                        | (1 + random.below(3)) << 24
                        | random.below(600) << 32;
                    words[i].store(head, Ordering::Relaxed);
                }
                words[8]
                    .store(words[8].load(Ordering::Relaxed) + random.below(300), Ordering::SeqCst);
            }
            // Only tails and heads.
            _ => {
                for at in [8, 16, 24, 32] {
                    if let Some(w) = words.get(at) {
                        w.store(random.next_u64() >> random.below(64), Ordering::Relaxed);
                    }
                }
            }
        }
        let bells = self.device.bells();
        let Some(all) = area.at(bells.offset(), Bells::bytes(1) / 8) else { return };
        for w in all.words() {
            w.fetch_or(random.next_u64(), Ordering::SeqCst);
        }
        bells.ring(0, 0);
    }
}

/// Returns a copy of a descriptor that a child inherits.
fn inheritable(fd: BorrowedFd<'_>) -> OwnedFd {
    let copy = fd.try_clone_to_owned().unwrap();
    // SAFETY: the call changes a flag of a descriptor that we own.
    let rc = unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_SETFD, 0) };
    assert_eq!(rc, 0);
    copy
}
