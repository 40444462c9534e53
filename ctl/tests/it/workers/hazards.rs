//! Dangers of the objects that two workers share.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use heddle_hub::DeviceConfig;
use heddle_verbs::{
    Access, CmEvent, CmId, CqeOp, CqeStatus, DeviceError, DisconnectReason, EventQueue, Qp, QpInit,
    QpState, Qpn, RecvWr, SendWr,
};

use super::rig::*;

const BOTH: Shape = Shape { workers: [2, 2], threads: false };
const THREADS: Shape = Shape { workers: [2, 2], threads: true };
/// Each connection of one side is at another worker, because workers take turns.
const CONNS: usize = 2;

/// Makes two connections from the first side, at different workers of either side.
fn connected(rig: &mut Rig, apps: &[App; 2]) -> ([Vec<Qp>; 2], EventQueue) {
    let qps = [0, 1].map(|n: usize| apps[n].qps(CONNS));
    let listener = rig.listen(1);
    rig.connect(0, &listener, &qps[0], &qps[1]);
    for side in 0..2 {
        assert_eq!(rig.spread(side), [1, 1], "one each");
    }
    (qps, listener)
}

/// Neither worker knows the other's references: the memory comes back when both are done.
#[test]
fn test_memory_stays_pinned_while_another_worker_may_retransmit_it() {
    const LEN: usize = 4096;
    for patient in 0..CONNS {
        let mut rig = Rig::with(BOTH, |c| c.memory = 1 << 20);
        let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
        let (qps, _listener) = connected(&mut rig, &apps);
        let device = apps[0].device.clone();
        let mr = device.alloc_mr(apps[0].pd, LEN, Access::NONE).unwrap();
        let secret: Vec<u8> = (0..LEN).map(|i| (i * 11) as u8).collect();
        mr.write(0, &secret);
        for n in 0..CONNS {
            let sges = [apps[1].mr.sge(n * LEN, LEN)];
            apps[1].srq.post_recv(&RecvWr { wr_id: n as u64, sges: &sges }).unwrap();
        }
        // A message of one worker is sent and acknowledged. The other's is sent, and its peer does
        // not answer.
        let sges = [mr.sge(0, LEN)];
        qps[0][1 - patient].post_send(&SendWr::send(1, &sges)).unwrap();
        let done = rig.until("a completion", |_| apps[0].cq.poll());
        assert!(done.status.is_success(), "{done:?}");
        qps[0][patient].post_send(&SendWr::send(2, &sges)).unwrap();
        (0..10).for_each(|_| rig.poll_alone(0));
        let info = mr.info();
        drop(mr);
        let resent = |rig: &Rig| rig.sides[0].snapshot().worker.engine.rnic.tx_retransmits;
        let before = resent(&rig);
        // This takes long enough for a retransmission, and the other worker has many turns.
        while resent(&rig) == before {
            rig.poll_alone(0);
        }
        assert_eq!(rig.sides[0].hub().registry().draining(), 1);
        let mut taken = Vec::new();
        while let Ok(other) = device.alloc_mr(apps[0].pd, 512, Access::LOCAL_WRITE) {
            other.write(0, &[0xaa; 512]);
            let at = other.info();
            assert!(at.off + 512 <= info.off || info.off + LEN <= at.off, "it is given out");
            taken.push(other);
        }
        assert!(taken.len() > 100, "everything else is free");
        let done = rig.until("a completion", |_| apps[0].cq.poll());
        assert_eq!((done.wr_id, done.status), (2, CqeStatus::Success));
        let got = rig.until("both messages", |_| apps[1].cq.poll());
        assert!(got.status.is_success());
        for n in 0..CONNS {
            let mut bytes = vec![0; LEN];
            apps[1].mr.read(n * LEN, &mut bytes);
            assert!(bytes == secret, "message {n} is what was there when it was sent");
        }
        rig.until("the memory", |r| (r.sides[0].hub().registry().draining() == 0).then_some(()));
        drop(taken);
    }
}

/// Two workers write completions into a queue that moves over and over.
#[test]
fn test_no_completion_is_lost_while_a_queue_of_two_workers_is_resized() {
    const SENDS: u64 = 3_000;
    // A busy machine gets this much time to send as many messages as it can.
    const LONG: Duration = Duration::from_secs(20);
    let mut rig = Rig::new(THREADS);
    let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
    let (qps, _listener) = connected(&mut rig, &apps);
    let [here, there] = &apps;
    let by_qpn: BTreeMap<Qpn, usize> = (0..CONNS).map(|n| (qps[0][n].qpn(), n)).collect();
    let (mut posted, mut done) = ([0u64; CONNS], [0u64; CONNS]);
    let (mut received, mut buffers) = (0, 0);
    let (mut resized, mut next) = (0, 0);
    let (mut sends, start) = ([SENDS; CONNS], Instant::now());
    let mut progress = (start, 0);
    while done != sends || received < sends.iter().sum() {
        if start.elapsed() > LONG && resized > 20 {
            sends = posted;
        }
        while buffers < received + SLOTS as u64 / 2 && buffers < CONNS as u64 * SENDS {
            let sges = [there.mr.sge((buffers as usize % SLOTS) * SLOT, SLOT)];
            there.srq.post_recv(&RecvWr { wr_id: buffers, sges: &sges }).unwrap();
            buffers += 1;
        }
        for n in 0..CONNS {
            // A connection sends no more than there are buffers for, whichever connection is
            // faster.
            let room = buffers.saturating_sub(posted.iter().sum());
            if room > 0 && posted[n] < sends[n] && posted[n] - done[n] < 16 {
                let sges = [here.mr.sge(n * SLOT, SLOT)];
                qps[0][n].post_send(&SendWr::send(posted[n], &sges)).unwrap();
                posted[n] += 1;
            }
        }
        next += 1;
        if next % 50 == 0 {
            let depth = [64, 8192, 128, 1024][resized % 4];
            match here.device.resize_cq(&here.cq, depth) {
                Ok(()) => resized += 1,
                // The workers have not taken the previous resize, or the held completions do not
                // fit.
                Err(DeviceError::CqResizing | DeviceError::CqTooSmall { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        }
        while let Some(cqe) = here.cq.poll() {
            assert!(cqe.status.is_success(), "{cqe:?}");
            let n = by_qpn[&cqe.qpn];
            assert_eq!(cqe.wr_id, done[n], "in the order in which they were posted");
            done[n] += 1;
        }
        while let Some(cqe) = there.cq.poll() {
            assert!(cqe.op == CqeOp::Recv && cqe.status.is_success(), "{cqe:?}");
            received += 1;
        }
        rig.poll();
        let moved = done.iter().sum::<u64>() + received;
        if moved > progress.1 {
            progress = (Instant::now(), moved);
        }
        assert!(progress.0.elapsed() < PATIENCE, "{done:?} of {posted:?}, {received}");
    }
    assert!(resized > 10, "{resized}");
    assert!(here.cq.check().is_ok() && there.cq.check().is_ok());
}

/// An application with connections of both workers ends; the connections of another application go
/// on.
#[test]
fn test_gone_application_loses_its_connections_at_both_workers() {
    for shape in [BOTH, THREADS] {
        let mut rig = Rig::new(shape);
        let config = DeviceConfig { memory: 1 << 20, queues: 4 << 20, ..DeviceConfig::default() };
        let other = rig.sides[0].hub().open(&config).unwrap();
        let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
        let listener = rig.listen(1);
        let qps = [0, 1].map(|n: usize| apps[n].qps(CONNS));
        rig.connect(0, &listener, &qps[0], &qps[1]);
        let pd = other.alloc_pd().unwrap();
        let cq = other.create_cq(64, None).unwrap();
        let gone: Vec<_> =
            (0..4).map(|_| other.create_qp(pd, QpInit::new(cq.clone())).unwrap()).collect();
        let theirs = apps[1].qps(4);
        let ids = rig.connect_of(&other, 1, &listener, &gone, &theirs);
        assert_eq!(rig.spread(0), [3, 3]);

        other.close().unwrap();
        let mut ended = Vec::new();
        while ended.len() < 4 {
            match rig.until("an end", |_| listener.poll()) {
                CmEvent::Disconnected { id, reason, .. } => {
                    assert!(matches!(reason, DisconnectReason::Tcp(_)), "{reason:?}");
                    ended.push(id);
                }
                event => panic!("{event:?}"),
            }
        }
        ended.sort();
        let mut all: Vec<_> = ids.iter().map(|i| i[1]).collect();
        all.sort();
        assert_eq!(ended, all);
        rig.until("the queue pairs' end", |_| gone.iter().all(Qp::is_dead).then_some(()));
        // These are the other application's connections, at both workers.
        for n in 0..CONNS {
            ping(&mut rig, &apps, &qps, n);
        }
    }
}

/// Makes one Send, and checks its arrival.
fn ping(rig: &mut Rig, apps: &[App; 2], qps: &[Vec<Qp>; 2], n: usize) {
    let mark = [n as u8 + 1; SLOT];
    apps[0].mr.write(n * SLOT, &mark);
    let sges = [apps[1].mr.sge(n * SLOT, SLOT)];
    apps[1].srq.post_recv(&RecvWr { wr_id: 7, sges: &sges }).unwrap();
    let sges = [apps[0].mr.sge(n * SLOT, SLOT)];
    qps[0][n].post_send(&SendWr::send(8, &sges)).unwrap();
    for (app, wr_id) in [(&apps[1], 7), (&apps[0], 8)] {
        let cqe = rig.until("a completion", |_| app.cq.poll());
        assert_eq!((cqe.wr_id, cqe.status), (wr_id, CqeStatus::Success));
    }
    let mut got = [0; SLOT];
    apps[1].mr.read(n * SLOT, &mut got);
    assert_eq!(got, mark);
}

/// Ends a connection whose listener is the second side's, and resets its queue pairs for another.
fn end(rig: &mut Rig, apps: &[App; 2], qps: &[Vec<Qp>; 2], id: CmId, listener: &EventQueue) {
    apps[0].device.disconnect(id).unwrap();
    rig.until("the end", |_| {
        matches!(listener.poll()?, CmEvent::Disconnected { .. }).then_some(())
    });
    for side in 0..2 {
        // The queue pair can be reset once the connection is over on this side too.
        rig.until("a queue pair that is fit", |_| {
            match apps[side].device.reset_qp(&qps[side][0]) {
                Ok(()) => Some(()),
                Err(DeviceError::QpState { .. } | DeviceError::QpInUse) => None,
                Err(e) => panic!("{e}"),
            }
        });
        assert_eq!(qps[side][0].qp_state(), QpState::Init);
    }
}

/// A queue pair runs at one worker, then at another, and then at the first again.
#[test]
fn test_a_queue_pair_that_is_reset_runs_at_another_worker() {
    for shape in [BOTH, THREADS] {
        let mut rig = Rig::new(shape);
        let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
        let [qps, fillers] = [(); 2].map(|()| [0, 1].map(|n: usize| apps[n].qps(1)));
        let listener = rig.listen(1);
        let mut filler = None;
        let mut had = Vec::new();
        for _ in 0..3 {
            let before = rig.spread(0);
            let ids = rig.connect(0, &listener, &qps[0], &qps[1]);
            let after = rig.spread(0);
            had.push((0..2).find(|w| after[*w] > before[*w]).unwrap());
            ping(&mut rig, &apps, &qps, 0);
            end(&mut rig, &apps, &qps, ids[0][0], &listener);
            // The worker with the fewest connections gets the next: the first worker, unless it has
            // one.
            match filler.take() {
                None => filler = Some(rig.connect(0, &listener, &fillers[0], &fillers[1])[0][0]),
                Some(id) => end(&mut rig, &apps, &fillers, id, &listener),
            }
        }
        assert_eq!(had, [0, 1, 0]);
    }
}

/// Two workers take buffers from one queue until none is left: each buffer goes out once, and only
/// the connection that finds none ends.
#[test]
fn test_two_workers_drain_a_shared_receive_queue() {
    const EACH: usize = SLOTS / 2;
    let mut rig = Rig::new(THREADS);
    let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
    let (qps, listener) = connected(&mut rig, &apps);
    let [here, there] = &apps;
    for _ in 0..5 {
        for slot in 0..SLOTS {
            let sges = [there.mr.sge(slot * SLOT, SLOT)];
            there.srq.post_recv(&RecvWr { wr_id: slot as u64, sges: &sges }).unwrap();
        }
        let (mut posted, mut done) = ([0; CONNS], 0);
        let mut taken = vec![0; SLOTS];
        let mut got = 0;
        rig.until("all messages", |_| {
            for n in 0..CONNS {
                let sges = [here.mr.sge(n * SLOT, SLOT)];
                while posted[n] < EACH && qps[0][n].post_send(&SendWr::send(0, &sges)).is_ok() {
                    posted[n] += 1;
                }
            }
            done += here.cq.poll_batch(usize::MAX, |c| assert!(c.status.is_success(), "{c:?}"));
            got += there.cq.poll_batch(usize::MAX, |c| {
                assert!(c.status.is_success(), "{c:?}");
                taken[c.wr_id as usize] += 1;
            });
            (got == SLOTS && done == SLOTS).then_some(())
        });
        assert!(taken.iter().all(|n| *n == 1), "each once");
        assert!(there.srq.is_empty());
    }
    // Another message finds no buffer.
    let sges = [here.mr.sge(0, SLOT)];
    qps[0][0].post_send(&SendWr::send(0, &sges)).unwrap();
    let event = rig.until("an end", |_| listener.poll());
    assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
    while here.cq.poll().is_some() || there.cq.poll().is_some() {}
    ping(&mut rig, &apps, &qps, 1);
}
