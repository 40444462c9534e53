//! An application that writes anything into its rings, at any time: the worker takes what can be
//! understood and stops at what cannot; requests stay within the limits, the protocol's queue pair
//! takes or refuses each, and nothing outside of the granted region is read into a frame.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use heddle_base::Seed;
use heddle_iwarp::qp::{MAX_INLINE, MAX_SGES};
use heddle_iwarp::testing::TestMemory;
use heddle_iwarp::{Access, Data, MrTable, PostError, QpContext, QpConfig, QpEnv};
use heddle_verbs::device::{ControlPlane, Request};
use heddle_verbs::memory::{Regions, Registry};
use heddle_verbs::ring::Entry;
use heddle_verbs::worker::WorkerQp;
use heddle_verbs::{DeviceConfig, DeviceError, Hub, QpInit};
use libfuzzer_sys::fuzz_target;

const SIZE: usize = 4096;
const GUARD: usize = 64;
const SECRET: u8 = 0xaa;
const BASE: u64 = 0x7000_0000_1000;
const DEPTH: u32 = 8;

#[derive(Debug)]
struct Nobody;

impl ControlPlane for Nobody {
    fn request(&self, _: Request) -> Result<(), DeviceError> {
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let seed = Seed::from_u64(1);
    let mrs = Arc::new(MrTable::new(&seed, 8));
    let registry = Arc::new(Registry::new(mrs.clone(), Arc::new(Regions::new(4, None))));
    let hub = Hub::new(registry, Box::new(Nobody), 1, &seed);
    let config = DeviceConfig { memory: 0, queues: 64 << 10, shared: true, ..DeviceConfig::default() };
    let device = hub.open(&config).expect("a small device");
    let pd = device.alloc_pd();
    let cq = device.create_cq(64, None).expect("a queue");
    let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(DEPTH, DEPTH)).expect("a pair");
    let mem = TestMemory::new(SIZE + 2 * GUARD, 0);
    mem.write(0, &[SECRET; GUARD]);
    mem.write(GUARD + SIZE, &[SECRET; GUARD]);
    let mr = mrs.register(pd, GUARD as u64, BASE, SIZE as u64, Access::LOCAL_WRITE).expect("room");
    let env = QpEnv { mem: &mem, mrs: &mrs, snapshots_full: false };
    let mut protocol = QpContext::new(&QpConfig {
        pd,
        qpn: qp.qpn(),
        sq_depth: DEPTH,
        rq_depth: DEPTH,
        ..QpConfig::default()
    });
    let mut worker = WorkerQp::new(&qp);
    worker.attach(0);
    let (off, len) = qp.share();
    let block = device.area().at(off, len).expect("its own block");
    let mut entry = Entry::default();
    for command in data.chunks(11) {
        let Some((&[kind, at0, at1], value)) = command.split_first_chunk::<3>() else { break };
        let mut word = [0; 8];
        word[..value.len()].copy_from_slice(value);
        let mut value = u64::from_le_bytes(word);
        if kind & 0x40 != 0 {
            // The one STag there is, so that requests get further.
            value = value & !0xffff_ffff | u64::from(mr.stag.0);
        }
        let at = usize::from(u16::from_le_bytes([at0, at1])) % len;
        block.words()[at].store(value, Ordering::Relaxed);
        if kind & 1 == 0 {
            continue;
        }
        loop {
            match worker.take_send(&mut entry) {
                Ok(Some(wr)) => {
                    match wr.data {
                        Data::Sges(s) => assert!(s.len() <= MAX_SGES),
                        Data::Inline(b) => assert!(b.len() <= MAX_INLINE),
                    }
                    assert!(matches!(protocol.post_send(&wr), Ok(()) | Err(PostError::Full)));
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        loop {
            match worker.take_recv(&mut entry) {
                Ok(Some(wr)) => {
                    assert!(wr.sges.len() <= MAX_SGES);
                    assert!(matches!(protocol.post_recv(&wr), Ok(()) | Err(PostError::Full)));
                }
                Ok(None) => break,
                Err(_) => return,
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
});
