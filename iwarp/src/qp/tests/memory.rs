//! Requests about STags, in the order of the queue: fast registrations, windows of type 2,
//! invalidations.

use super::pair::{BASE, GUARD, Node};
use super::*;
use heddle_types::{Bind, BindError, CqeOp, CqeStatus, Data, SendOp, Sge, TermCode, check_send};

/// A pair whose first side has, over its memory, a region that may be bound, an STag for fast
/// registrations and a window of its queue pair.
struct Bench {
    p: Pair,
    mr: Stag,
    fast: Stag,
    window: Stag,
}

fn own(node: &Node) -> (Pd, Qpn) {
    (node.qp.pd(), node.qp.qpn())
}

fn bench() -> Bench {
    let p = Pair::open(PairConfig::default());
    let (n, len) = (&p.nodes[0], p.config.size as u64);
    let (pd, qpn) = own(n);
    let access = Access::LOCAL_WRITE.with(Access::BIND);
    let mr = n.mrs.register(pd, GUARD as u64, BASE, len, access).unwrap().stag;
    let fast = n.mrs.allocate(pd, Some(qpn), 1 << 16).unwrap();
    let window = n.mrs.allocate_window(pd, Some(qpn)).unwrap();
    Bench { p, mr, fast, window }
}

impl Bench {
    /// Posts a request of side 0 that makes `stag` valid for `len` bytes of its memory, from `off`
    /// on, with tagged offsets from 0.
    fn register(&mut self, wr_id: u64, stag: Stag, (off, len): (usize, usize), access: Access) {
        let sge = Sge { stag: self.mr, to: BASE + off as u64, len: len32(len) };
        let bind = Bind { stag, to: 0, access };
        let op = if stag.same_index(self.fast) {
            SendOp::FastRegister(bind)
        } else {
            SendOp::BindWindow(bind)
        };
        self.p.send(0, wr_id, op, [sge]);
    }

    fn invalidate(&mut self, wr_id: u64, stag: Stag) {
        self.p.send(0, wr_id, SendOp::LocalInvalidate { stag }, []);
    }

    /// Makes side 1 write `len` bytes of its own to tagged offset `to` of `stag`.
    fn peer_writes(&mut self, stag: Stag, to: u64, len: usize) {
        let sge = [self.p.nodes[1].sge(0, len)];
        self.p.send(1, 99, SendOp::Write { stag, to }, sge);
    }

    fn done(&mut self, i: usize) -> Vec<(u64, CqeOp, CqeStatus)> {
        let all = completions(&mut self.p.nodes[i].qp);
        all.into_iter().map(|c| (c.wr_id, c.op, c.status)).collect()
    }

    /// Checks that side 0 refused the peer's last access with `code`.
    fn assert_refused(&mut self, code: TermCode) {
        self.p.run();
        let by = Side::Local;
        let last = events(&mut self.p.a().qp).pop();
        assert_eq!(last, Some(QpEvent::Terminated { by, code }));
        self.p.check_memory();
    }
}

const OK: CqeStatus = CqeStatus::Success;

#[test]
fn test_registration_takes_effect_before_the_send_that_announces_it() {
    let mut b = bench();
    let stag = b.fast.with_key(0x5a);
    b.p.recv(1, 1, [b.p.nodes[1].sge(5000, 100)]);
    // All posted together: the Send is posted before any sign that the registration is done.
    b.register(1, stag, (1000, 300), Access::REMOTE_WRITE.with(Access::REMOTE_READ));
    b.p.nodes[0].qp.post_send(&SendWr::send_inline(2, &stag.0.to_be_bytes())).unwrap();
    b.p.b().expect(5000, &stag.0.to_be_bytes());
    b.p.run();
    assert_eq!(b.done(0), [(1, CqeOp::FastRegister, OK), (2, CqeOp::Send, OK)]);
    assert_eq!(b.done(1), [(1, CqeOp::Recv, OK)]);
    let told = Stag(u32::from_be_bytes(b.p.nodes[1].read(5000, 4).try_into().unwrap()));
    let data = random_bytes(300, 1);
    b.p.b().write(0, &data);
    b.peer_writes(told, 0, 300);
    b.p.a().expect(1000, &data);
    b.p.run();
    assert_eq!(b.done(1), [(99, CqeOp::Write, OK)]);
    b.p.check_healthy();
    assert_eq!(b.p.nodes[0].qp.counters().local_binds, 1);
    // A byte beyond the registered memory, although the region goes on.
    b.peer_writes(told, 1, 300);
    b.assert_refused(TermCode::DDP_BOUNDS);
}

#[test]
fn test_stale_key_is_refused_and_the_new_one_works() {
    let mut b = bench();
    let (old, new) = (b.fast.with_key(1), b.fast.with_key(2));
    b.register(1, old, (0, 64), Access::REMOTE_WRITE);
    b.invalidate(2, old);
    b.register(3, new, (2000, 64), Access::REMOTE_WRITE);
    b.p.run();
    let want = [
        (1, CqeOp::FastRegister, OK),
        (2, CqeOp::LocalInvalidate, OK),
        (3, CqeOp::FastRegister, OK),
    ];
    assert_eq!(b.done(0), want);
    let data = random_bytes(64, 2);
    b.p.b().write(0, &data);
    b.peer_writes(new, 0, 64);
    b.p.a().expect(2000, &data);
    b.p.run();
    b.p.check_healthy();
    b.peer_writes(old, 0, 64);
    b.assert_refused(TermCode::DDP_INVALID_STAG);
}

#[test]
fn test_retransmitted_bytes_match_posted_data_after_an_invalidation() {
    let mut b = bench();
    let (old, new) = (b.fast.with_key(1), b.fast.with_key(2));
    let data = random_bytes(400, 3);
    b.p.a().write(1000, &data);
    b.register(1, old, (1000, 400), Access::NONE);
    let source = [Sge { stag: old, to: 0, len: 400 }];
    let (stag, to) = (b.p.nodes[1].stag, BASE);
    b.p.send(0, 2, SendOp::Write { stag, to }, source);
    b.invalidate(3, old);
    b.register(4, new, (3000, 400), Access::REMOTE_WRITE);
    let Bench { p, mr, .. } = &mut b;
    let n = &mut p.nodes[0];
    let env = QpEnv { mem: &n.mem, mrs: &n.mrs, snapshots_full: false, posted: None };
    let fpdu = n.qp.poll_transmit(&env, 1442).unwrap();
    assert!(n.qp.poll_transmit(&env, 1442).is_none());
    // The old STag is invalid and the new one valid, while TCP waits for the acknowledgment.
    let (pd, qpn) = (n.qp.pd(), n.qp.qpn());
    let check = |stag| n.mrs.check(pd, qpn, stag, 0, 400, Access::NONE).is_ok();
    assert!(!check(old) && check(new));
    // The FPDU holds the region, by its slot, and the owner of the memory waits for that.
    let range = fpdu.payload().unwrap();
    assert_eq!(range.mr(), n.mrs.index(*mr));
    let mut again = vec![0; fpdu.len() as usize];
    fpdu.copy_to(&n.mem, 0, &mut again);
    assert!(again.windows(400).any(|w| w == data), "it is not sent from where it was posted");
    // No request completes before its turn: the registration's completion waits for the Write's.
    let first: Vec<_> = completions(&mut n.qp).iter().map(|c| c.wr_id).collect();
    assert_eq!(first, [1]);
    n.qp.handle_acked(n.qp.tx_end());
    let want =
        [(2, CqeOp::Write, OK), (3, CqeOp::LocalInvalidate, OK), (4, CqeOp::FastRegister, OK)];
    assert_eq!(b.done(0), want);
}

#[test]
fn test_invalidation_waits_for_the_read_that_fills_its_memory() {
    let mut b = bench();
    let sink = b.fast.with_key(9);
    let data = random_bytes(5000, 4);
    b.p.b().write(0, &data);
    b.register(1, sink, (0, 5000), Access::LOCAL_WRITE);
    let (stag, to) = (b.p.nodes[1].stag, BASE);
    b.p.send(0, 2, SendOp::Read { stag, to }, [Sge { stag: sink, to: 0, len: 5000 }]);
    b.invalidate(3, sink);
    b.p.transmit(0, 10);
    let (pd, qpn) = own(&b.p.nodes[0]);
    let valid =
        |b: &Bench| b.p.nodes[0].mrs.check(pd, qpn, sink, 0, 5000, Access::LOCAL_WRITE).is_ok();
    assert!(valid(&b), "the sink is gone before the Read is done");
    b.p.a().expect(0, &data);
    b.p.run();
    assert!(!valid(&b));
    let want =
        [(1, CqeOp::FastRegister, OK), (2, CqeOp::Read, OK), (3, CqeOp::LocalInvalidate, OK)];
    assert_eq!(b.done(0), want);
    b.p.check_healthy();
}

#[test]
fn test_stag_can_be_registered_again_after_peer_invalidated_it() {
    for window in [true, false] {
        let mut b = bench();
        let base = if window { b.window } else { b.fast };
        let rights = Access::REMOTE_WRITE.with(Access::REMOTE_INVALIDATE);
        b.register(1, base.with_key(1), (0, 100), rights);
        b.p.recv(0, 2, [b.p.nodes[0].sge(4000, 10)]);
        b.p.run();
        let op = SendOp::Send { solicited: false, invalidate: Some(base.with_key(1)) };
        b.p.send(1, 3, op, []);
        b.p.run();
        let done = completions(&mut b.p.a().qp);
        assert_eq!(done.last().map(|c| c.invalidated), Some(Some(base.with_key(1))));
        // An invalidation of an invalid STag is no error, and then the STag gets another key.
        b.invalidate(4, base.with_key(1));
        b.register(5, base.with_key(2), (500, 100), rights);
        b.p.run();
        assert_eq!(b.done(0).iter().filter(|d| d.2 == OK).count(), 2);
        let data = random_bytes(100, 5);
        b.p.b().write(0, &data);
        b.peer_writes(base.with_key(2), 0, 100);
        b.p.a().expect(500, &data);
        b.p.run();
        b.p.check_healthy();
        // The old key names nothing, neither to write to nor to invalidate.
        let op = SendOp::Send { solicited: false, invalidate: Some(base.with_key(1)) };
        b.p.recv(0, 6, []);
        b.p.send(1, 6, op, []);
        b.p.run();
        assert_ne!(b.p.nodes[0].qp.state(), ConnectedState::Rts);
        let n = &b.p.nodes[0];
        let check = n.mrs.check(n.qp.pd(), n.qp.qpn(), base.with_key(2), 0, 1, rights);
        assert!(check.is_ok(), "a stale key took the new one away");
        b.p.check_memory();
    }
}

#[test]
fn test_window_grants_the_peer_only_its_own_rights() {
    let rights = [
        (Access::REMOTE_READ, TermCode::DDP_INVALID_STAG),
        (Access::REMOTE_WRITE, TermCode::RDMAP_ACCESS),
    ];
    for (access, code) in rights {
        let mut b = bench();
        let w = b.window.with_key(1);
        b.register(1, w, (0, 100), access);
        b.p.run();
        assert_eq!(b.done(0), [(1, CqeOp::BindWindow, OK)]);
        let sink = [b.p.nodes[1].sge(0, 100)];
        let read = SendOp::Read { stag: w, to: 0 };
        let write = SendOp::Write { stag: w, to: 0 };
        let (good, bad) = if access == Access::REMOTE_READ { (read, write) } else { (write, read) };
        let data = random_bytes(100, 6);
        b.p.a().write(0, &data);
        b.p.b().write(0, &data);
        b.p.send(1, 2, good, sink);
        b.p.run();
        b.p.check_healthy();
        b.p.send(1, 3, bad, sink);
        b.assert_refused(code);
    }
}

#[test]
fn test_window_cannot_be_used_as_local_memory() {
    let mut b = bench();
    let w = b.window.with_key(1);
    b.register(1, w, (0, 100), Access::REMOTE_READ);
    b.p.send(
        0,
        2,
        SendOp::Write { stag: b.p.nodes[1].stag, to: BASE },
        [Sge { stag: w, to: 0, len: 100 }],
    );
    b.p.run();
    let want = [(1, CqeOp::BindWindow, OK), (2, CqeOp::Write, CqeStatus::LocalProtection)];
    assert_eq!(b.done(0), want);
    b.p.check_memory();
}

/// A request that fails ends the stream, and says why; the QP flushes the requests after it and
/// does not carry them out.
#[test]
fn test_failed_request_reports_its_fault_and_later_ones_are_flushed() {
    type Case = (fn(&mut Bench), BindError);
    let cases: [Case; 5] = [
        (
            |b| {
                b.register(0, b.fast.with_key(1), (0, 10), Access::REMOTE_READ);
                b.register(1, b.fast.with_key(2), (0, 10), Access::REMOTE_READ);
            },
            BindError::Valid,
        ),
        (|b| b.register(1, b.window, (0, 10), Access::LOCAL_WRITE), BindError::Rights),
        (|b| b.register(1, b.fast, (0, (1 << 16) + 1), Access::NONE), BindError::Length),
        (|b| b.invalidate(1, b.mr), BindError::Stag),
        (|b| b.invalidate(1, b.window.with_key(b.window.key() ^ 1)), BindError::Stag),
    ];
    for (i, (post, why)) in cases.into_iter().enumerate() {
        let mut b = bench();
        if why == BindError::Length {
            // A region that is longer than the STag's limit.
            let n = &b.p.nodes[0];
            let access = Access::LOCAL_WRITE.with(Access::BIND);
            let mr = n.mrs.register(n.qp.pd(), 0, BASE, 1 << 20, access).unwrap();
            b.mr = mr.stag;
        }
        post(&mut b);
        let later = if why == BindError::Rights { b.fast } else { b.window };
        b.register(2, later.with_key(3), (0, 10), Access::REMOTE_READ);
        b.p.run();
        let done = b.done(0);
        let failed = done.iter().find(|d| d.0 == 1).unwrap();
        assert_eq!(failed.2, CqeStatus::LocalBind(why), "case {i}");
        assert_eq!(done.last().map(|d| (d.0, d.2)), Some((2, CqeStatus::Flushed)), "case {i}");
        let n = &b.p.nodes[0];
        let check = |s| n.mrs.check(n.qp.pd(), n.qp.qpn(), s, 0, 1, Access::REMOTE_READ);
        assert!(check(later.with_key(3)).is_err(), "case {i}: carried out after the end");
        assert_eq!(n.qp.counters().err_local, 1);
        assert_eq!(b.p.nodes[1].qp.counters().rx_terminates, 1, "case {i}");
        b.p.check_memory();
    }
}

#[test]
fn test_posting_check_enforces_static_rules_of_stag_requests() {
    let mut b = bench();
    let sge = [Sge { stag: b.mr, to: BASE, len: 8 }];
    let bind = Bind { stag: b.fast, to: 0, access: Access::REMOTE_READ };
    let limits = Limits::default();
    let check = |op, data| {
        check_send(&SendWr { wr_id: 0, op, data, signaled: true, fence: false }, &limits)
    };
    let invalidate = SendOp::LocalInvalidate { stag: b.fast };
    for op in [SendOp::FastRegister(bind), SendOp::BindWindow(bind)] {
        assert_eq!(check(op, Data::Sges(&sge)), Ok(()));
        assert_eq!(check(op, Data::Sges(&[])), Err(PostError::BindData));
        assert_eq!(check(op, Data::Inline(b"x")), Err(PostError::BindData));
    }
    let wraps = SendOp::FastRegister(Bind { to: u64::MAX - 6, ..bind });
    assert_eq!(check(wraps, Data::Sges(&sge)), Err(PostError::ToWrap));
    assert_eq!(check(invalidate, Data::Sges(&[])), Ok(()));
    assert_eq!(check(invalidate, Data::Sges(&sge)), Err(PostError::BindData));
    // If another library posts it nevertheless, the request completes with this status.
    b.p.send(0, 1, SendOp::FastRegister(bind), []);
    b.p.run();
    let why = CqeStatus::LocalQpOperation(PostError::BindData);
    assert_eq!(b.done(0), [(1, CqeOp::FastRegister, why)]);
}

/// A poll carries out a bounded number of requests, however many there are; all are done in the
/// end, and a close waits for them.
#[test]
fn test_poll_carries_out_a_bounded_number_of_local_requests() {
    let mut config = PairConfig::default();
    config.qp.sq_depth = 1000;
    let p = Pair::open(config);
    let n = &p.nodes[0];
    let (pd, qpn) = own(n);
    let access = Access::LOCAL_WRITE.with(Access::BIND);
    let mr = n.mrs.register(pd, GUARD as u64, BASE, 100, access).unwrap().stag;
    let fast = n.mrs.allocate(pd, Some(qpn), 100).unwrap();
    let mut b = Bench { p, mr, fast, window: Stag(0) };
    for i in 0..250 {
        let stag = fast.with_key(u8::try_from(i % 256).unwrap());
        b.register(2 * i, stag, (0, 100), Access::REMOTE_READ);
        b.invalidate(2 * i + 1, stag);
    }
    let n = b.p.a();
    n.qp.close();
    let env = QpEnv { mem: &n.mem, mrs: &n.mrs, snapshots_full: false, posted: None };
    let mut polls = 0;
    while n.qp.has_transmit() {
        assert!(n.qp.poll_transmit(&env, 1442).is_none());
        polls += 1;
    }
    assert!((5..20).contains(&polls), "{polls}");
    assert_eq!(events(&mut n.qp), [QpEvent::Drained]);
    let done = b.done(0);
    assert!(done.len() == 500 && done.iter().all(|d| d.2 == OK));
    assert!(done.iter().enumerate().all(|(i, d)| d.0 == i as u64));
}

#[test]
fn test_flushed_registration_is_not_carried_out() {
    let mut b = bench();
    b.register(1, b.fast.with_key(1), (0, 100), Access::REMOTE_READ);
    b.p.a().qp.abort();
    assert_eq!(b.done(0), [(1, CqeOp::FastRegister, CqeStatus::Flushed)]);
    let n = &b.p.nodes[0];
    let check = n.mrs.check(n.qp.pd(), n.qp.qpn(), b.fast.with_key(1), 0, 1, Access::REMOTE_READ);
    assert!(check.is_err());
}
