//! Queue pairs that their program destroys while their RNIC is off its processors.

use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use heddle_base::Seed;
use heddle_hub::memory::{RegionTable, Registry};
use heddle_hub::{ControlPlane, ControlRequest, DeviceConfig, Hub};
use heddle_ibverbs::abi::*;
use heddle_ibverbs::rnic::adopt;
use heddle_ibverbs::verbs::*;
use heddle_mr::MrTable;
use heddle_rings::cq::CqProducer;
use heddle_rings::worker::WorkerQp;
use heddle_types::{Cqe, CqeOp, Queue};
use heddle_verbs::{DeviceError, Qp};

use crate::program::{Memory, Program, set_state};

/// A control plane that accepts requests, and carries them out when the test does.
#[derive(Clone, Debug, Default)]
struct Plane(Arc<Mutex<Vec<Qp>>>);

impl ControlPlane for Plane {
    fn request(&self, request: ControlRequest) -> Result<(), DeviceError> {
        if let ControlRequest::FailQp { qp, .. } = request {
            self.0.lock().unwrap().push(qp);
        }
        Ok(())
    }
}

impl Plane {
    /// Returns the queue pairs that the program wants to end.
    fn failed(&self) -> Vec<Qp> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Completes receives of a queue pair as flushed, as its worker does.
fn complete(cq: &mut CqProducer, qp: &Qp, wr_ids: impl Iterator<Item = u64>) {
    for wr_id in wr_ids {
        cq.push(&Cqe::flushed(qp.qpn(), Queue::Rq, CqeOp::Recv, wr_id)).unwrap();
    }
}

/// Ends a queue pair, as its worker does after the last completion.
fn end(qp: &Qp) {
    let mut at_worker = WorkerQp::to_flush(qp.ends());
    at_worker.end(|_, _| (), |_| ());
    at_worker.close();
    assert!(qp.has_ended());
}

/// Programs use `wr_id` as a pointer, to memory that they free after `ibv_destroy_qp`.
#[test]
fn test_no_completion_of_a_destroyed_queue_pair_follows_however_late_its_rnic_ends_it() {
    let plane = Plane::default();
    let mrs = Arc::new(MrTable::new(&Seed::from_u64(1), 1 << 10));
    let registry = Arc::new(Registry::new(mrs, Arc::new(RegionTable::new(16, None))));
    let hub = Hub::new(registry, Box::new(plane.clone()), 1, &Seed::from_u64(2));
    let config = DeviceConfig { memory: 0, ..DeviceConfig::default() };
    assert!(adopt(hub.open(&config).unwrap()), "the process has another device");
    let program = Program::open();
    let memory = Memory::new(4096);
    let mr = program.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the region is live.
    let mut sge = ibv_sge { addr: memory.addr(0), length: 64, lkey: unsafe { (*mr).lkey } };
    let cq = program.cq(64, null_mut());
    let (gone, stays) = (program.qp(&mut program.init(cq)), program.qp(&mut program.init(cq)));
    for wr_id in 0..4 {
        program.receive(gone, wr_id, &mut sge);
        program.receive(stays, 10 + wr_id, &mut sge);
    }
    for qp in [gone, stays] {
        set_state(qp, IBV_QPS_ERR);
    }
    let [late, other] = <[Qp; 2]>::try_from(plane.failed()).unwrap();
    // SAFETY: the test keeps the C contract.
    assert_eq!(unsafe { ibv_destroy_qp(gone) }, 0);
    // The worker has its first turn only now.
    let mut worker = late.init().recv_cq.link().producer(0);
    complete(&mut worker, &late, 0..2);
    complete(&mut worker, &other, 10..12);
    let ids = |polled: Vec<ibv_wc>| polled.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    assert_eq!(ids(program.poll(cq, 1)), [10]);
    complete(&mut worker, &late, 2..4);
    end(&late);
    complete(&mut worker, &other, 12..14);
    end(&other);
    assert_eq!(ids(program.poll(cq, 3)), [11, 12, 13]);
    // SAFETY: the structures consist of integers, for which all zeros are valid.
    let mut wc: [ibv_wc; 4] = unsafe { std::mem::zeroed() };
    // SAFETY: the test keeps the C contract.
    unsafe {
        let poll = (*program.context).ops.poll_cq.unwrap();
        assert_eq!(poll(cq, 4, wc.as_mut_ptr()), 0, "nothing is left");
        assert_eq!(ibv_destroy_qp(stays), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}
