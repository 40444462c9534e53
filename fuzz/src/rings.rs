//! An application that writes anything into its rings, at any time: the worker takes valid entries
//! and stops at an invalid one; requests stay within the limits, the protocol's queue pair takes or
//! refuses each, and no frame contains bytes from outside the granted region.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use heddle_base::Seed;
use heddle_hub::memory::{RegionTable, Registry};
use heddle_hub::{ControlPlane, ControlRequest, DeviceConfig, Hub};
use heddle_iwarp::{QpConfig, QpContext, QpEnv};
use heddle_mr::{MrTable, testing::TestMemory};
use heddle_rings::layout::qp as layout;
use heddle_rings::worker::WorkerQp;
use heddle_rings::{Entry, cqe};
use heddle_types::{
    Access, Data, PostError,
    wr::{MAX_INLINE, MAX_SGES},
};
use heddle_verbs::{Cq, Cqe, Device, DeviceError, Pd, Qp, QpInit, RecvWr, SendWr, Sge, Stag};

use crate::Seeds;

const SIZE: usize = 4096;
const GUARD: usize = 64;
const SECRET: u8 = 0xaa;
const BASE: u64 = 0x7000_0000_1000;
const DEPTH: u32 = 8;

#[derive(Debug)]
struct Nobody;

impl ControlPlane for Nobody {
    fn request(&self, _: ControlRequest) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// An application with a queue pair, and the worker's memory.
struct Harness {
    mem: TestMemory,
    mrs: Arc<MrTable>,
    stag: Stag,
    /// The STag for fast registrations of this memory.
    fast: Stag,
    device: Device,
    qp: Qp,
    pd: Pd,
    _cq: Cq,
}

impl Harness {
    fn new() -> Harness {
        let seed = Seed::from_u64(1);
        let mrs = Arc::new(MrTable::new(&seed, 8));
        let registry = Arc::new(Registry::new(mrs.clone(), Arc::new(RegionTable::new(4, None))));
        let hub = Hub::new(registry, Box::new(Nobody), 1, &seed);
        let config =
            DeviceConfig { memory: 0, queues: 64 << 10, shared: true, ..DeviceConfig::default() };
        let device = hub.open(&config).expect("a small device");
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(64, None).expect("a queue");
        let init = QpInit::new(cq.clone()).depths(DEPTH, DEPTH);
        let qp = device.create_qp(pd, init).expect("a pair");
        let mem = TestMemory::new(SIZE + 2 * GUARD, 0);
        mem.write(0, &[SECRET; GUARD]);
        mem.write(GUARD + SIZE, &[SECRET; GUARD]);
        let all = (GUARD as u64, BASE, SIZE as u64);
        let rights = Access::LOCAL_WRITE.with(Access::BIND);
        let mr = mrs.register(pd, all.0, all.1, all.2, rights).expect("room");
        let fast = mrs.allocate(pd, Some(qp.qpn()), SIZE as u64).expect("room");
        Harness { mem, mrs, stag: mr.stag, fast, device, qp, pd, _cq: cq }
    }
}

/// Checks the words of a completion queue: an entry that parses is written as it was, as far as its
/// words have a meaning.
fn completion(data: &[u8]) {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(data.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    }
    if let Some(c) = cqe::decode(words) {
        let again = cqe::decode(cqe::encode(&c)).expect("ours can be read");
        // An STag and the code of a Terminate share a word, and a failed completion has no STag.
        let stag = if c.status.is_success() { c.invalidated } else { again.invalidated };
        let status = if c.invalidated.is_some() { again.status } else { c.status };
        let immediate = c.immediate;
        let want = Cqe { invalidated: stag, status, immediate, ..c };
        assert_eq!(again, want);
    }
}

pub fn run(data: &[u8]) -> bool {
    completion(data);
    let Harness { mem, mrs, stag, fast, device, qp, pd, .. } = Harness::new();
    let env = QpEnv { mem: &mem, mrs: &mrs, snapshots_full: false, posted: None };
    let mut protocol = QpContext::new(&QpConfig {
        pd,
        qpn: qp.qpn(),
        sq_depth: DEPTH,
        rq_depth: DEPTH,
        ..QpConfig::default()
    });
    let mut worker = WorkerQp::new(qp.ends());
    worker.attach(0);
    let (off, len) = qp.share();
    let block = device.area().at(off, len).expect("its own block");
    let mut entry = Entry::default();
    let mut taken = 0;
    for command in data.chunks(11) {
        let Some((&[kind, at0, at1], value)) = command.split_first_chunk::<3>() else { break };
        let mut word = [0; 8];
        word[..value.len()].copy_from_slice(value);
        let mut value = u64::from_le_bytes(word);
        if kind & 0x40 != 0 {
            // The only STag with memory, so that requests get further.
            value = value & !0xffff_ffff | u64::from(stag.0);
        }
        if kind & 0x20 != 0 {
            // The STag that can be registered, with any key.
            value = value & !0xffff_ff00 | u64::from(fast.with_key(0).0);
        }
        let at = usize::from(u16::from_le_bytes([at0, at1])) % len;
        block.words()[at].store(value, Ordering::Relaxed);
        if kind & 1 == 0 {
            continue;
        }
        loop {
            match worker.has_send() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return taken > 0,
            }
            let send = worker.take_send(&mut entry, |wr: &SendWr<'_>| {
                match wr.data {
                    Data::Sges(s) => assert!(s.len() <= MAX_SGES),
                    Data::Inline(b) => assert!(b.len() <= MAX_INLINE),
                }
                assert!(matches!(protocol.post_send(wr), Ok(()) | Err(PostError::Full)));
            });
            match send {
                Ok(Some(())) => taken += 1,
                Ok(None) => break,
                Err(_) => return taken > 0,
            }
        }
        loop {
            let recv = worker.take_recv(&mut entry, |wr| {
                assert!(wr.sges.len() <= MAX_SGES);
                assert!(matches!(protocol.post_recv(wr), Ok(()) | Err(PostError::Full)));
            });
            match recv {
                Ok(Some(())) => taken += 1,
                Ok(None) => break,
                Err(_) => return taken > 0,
            }
        }
        worker.give_blocks();
        while let Some(fpdu) = protocol.poll_transmit(&env, 1400) {
            let mut bytes = vec![0; fpdu.len() as usize];
            fpdu.copy_to(&mem, 0, &mut bytes);
            if let Some(range) = fpdu.payload() {
                let end = range.addr() + u64::from(range.len());
                assert!(range.addr() >= GUARD as u64 && end <= (GUARD + SIZE) as u64);
            }
        }
        while protocol.poll_completion().is_some() {}
        worker.retire(protocol.sq_retired(), protocol.rq_retired());
    }
    taken > 0
}

pub fn seeds() -> Seeds {
    let seed = |post: fn(&Qp, Sge, Stag)| {
        let Harness { stag, fast, device, qp, .. } = Harness::new();
        let (off, len) = qp.share();
        let block = device.area().at(off, len).expect("its own block");
        let before: Vec<u64> = block.words().iter().map(|w| w.load(Ordering::Relaxed)).collect();
        post(&qp, Sge { stag, len: 100, to: BASE + 8 }, fast);
        // Entries come first, and then the words that publish them.
        let words = block.words().iter().map(|w| w.load(Ordering::Relaxed)).zip(before).enumerate();
        let mut changed: Vec<_> = words.filter(|(_, (now, was))| now != was).collect();
        changed.sort_by_key(|(at, _)| (*at < layout::ENTRIES, *at));
        let last = changed.len() - 1;
        let mut all = Vec::new();
        for (i, (at, (now, _))) in changed.into_iter().enumerate() {
            all.push(u8::from(i == last));
            all.extend(u16::try_from(at).expect("a small block").to_le_bytes());
            all.extend(now.to_le_bytes());
        }
        all
    };
    vec![
        (
            "sends".into(),
            seed(|qp, sge, _| {
                post(qp, &SendWr::send(1, &[sge, sge]).solicited());
                post(qp, &SendWr::send_inline(2, b"inline").invalidating(Stag(5)));
            }),
        ),
        (
            "writes".into(),
            seed(|qp, sge, _| {
                post(qp, &SendWr::write(1, &[sge; 4], Stag(5), 6));
                post(qp, &SendWr::write_inline(2, &[7; 60], Stag(5), 6).unsignaled());
            }),
        ),
        (
            "stags".into(),
            seed(|qp, sge, fast| {
                let (first, second) = (fast.with_key(1), fast.with_key(2));
                let rest = Sge { to: sge.to + 100, ..sge };
                post(qp, &SendWr::fast_register(1, first, &[sge, rest], 9, Access::REMOTE_READ));
                post(qp, &SendWr::local_invalidate(2, first));
                let own = Access::LOCAL_WRITE;
                post(qp, &SendWr::fast_register(3, second, &[sge], 0, own));
                post(qp, &SendWr::write(4, &[Sge { stag: second, to: 0, len: 100 }], Stag(5), 6));
                post(qp, &SendWr::bind_window(5, fast, &[sge], 0, Access::REMOTE_WRITE));
            }),
        ),
        (
            "reads".into(),
            seed(|qp, sge, _| {
                post(qp, &SendWr::read(1, &[sge], Stag(5), 6).fenced());
            }),
        ),
        (
            "operands".into(),
            seed(|qp, sge, _| {
                let word = [Sge { len: 8, ..sge }];
                post(qp, &SendWr::immediate(1, 2).solicited());
                post(qp, &SendWr::write_immediate(3, &[sge, sge], Stag(5), 6, 4));
                post(qp, &SendWr::fetch_add(5, &word, Stag(5), 8, 6));
                post(qp, &SendWr::compare_swap(7, &word, Stag(5), 8, 9, 10));
            }),
        ),
        (
            "recvs".into(),
            seed(|qp, sge, _| {
                for n in 0..3 {
                    let sges = vec![sge; n];
                    qp.post_recv(&RecvWr::new(n as u64, &sges)).expect("room for it");
                }
            }),
        ),
    ]
}

fn post(qp: &Qp, wr: &SendWr<'_>) {
    qp.post_send(wr).expect("room for it");
}
