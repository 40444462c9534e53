//! Operations over a connection, and their completions.

use std::ptr::null_mut;

use heddle_ibverbs::abi::*;
use heddle_ibverbs::verbs::*;
use heddle_verbs::{Access, CqeOp, RecvWr, SendWr, Stag};

use crate::lab::PATIENCE;
use crate::program::{Memory, Program, request};

const ALL: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC;

fn peer_access() -> Access {
    [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC]
        .into_iter()
        .fold(Access::LOCAL_WRITE, Access::with)
}

#[test]
fn test_operations_move_data_and_complete_with_their_opcodes() {
    let program = Program::start();
    let memory = Memory::new(8192);
    let mr = program.register(&memory, ALL);
    let cq = program.cq(64, null_mut());
    let mut init = program.init(cq);
    let qp = program.qp(&mut init);
    assert!(init.cap.max_send_wr >= 16 && init.cap.max_inline_data >= 64);
    let peer = program.connect(qp);
    let theirs = peer.connection.alloc_mr(4096, peer_access()).unwrap();
    // SAFETY: the region is live.
    let lkey = unsafe { (*mr).lkey };
    let sge = |off: usize, length: u32| ibv_sge { addr: memory.addr(off), length, lkey };
    let rdma =
        |off: u64| ibv_send_wr_rdma { remote_addr: theirs.to() + off, rkey: theirs.stag().0 };

    memory.fill(0, b"two pieces of one message");
    let mut pieces = [sge(0, 10), sge(10, 15)];
    let mut wr = request(1, IBV_WR_RDMA_WRITE, &mut pieces);
    wr.wr.rdma = rdma(100);
    assert_eq!(program.send(qp, &mut wr), 0);
    let wc = program.done(cq);
    // SAFETY: the queue pair is live.
    let number = unsafe { (*qp).qp_num };
    assert_eq!((wc.wr_id, wc.opcode, wc.qp_num), (1, IBV_WC_RDMA_WRITE, number));

    let mut pieces = [sge(4096, 25)];
    let mut wr = request(2, IBV_WR_RDMA_READ, &mut pieces);
    wr.wr.rdma = rdma(100);
    assert_eq!(program.send(qp, &mut wr), 0);
    let wc = program.done(cq);
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (2, IBV_WC_RDMA_READ, 25));
    assert_eq!(memory.bytes(4096, 25), b"two pieces of one message");

    // The program may reuse inline data at once.
    peer.connection.post_recv(&RecvWr::new(7, &[theirs.sge(0, 64)])).unwrap();
    let mut text = *b"inline";
    let mut pieces = [ibv_sge { addr: text.as_ptr().addr() as u64, length: 6, lkey: 0 }];
    let mut wr = request(3, IBV_WR_SEND, &mut pieces);
    wr.send_flags |= IBV_SEND_INLINE | IBV_SEND_SOLICITED;
    assert_eq!(program.send(qp, &mut wr), 0);
    text.fill(0);
    assert_eq!(program.done(cq).opcode, IBV_WC_SEND);
    let got = peer.connection.wait(PATIENCE).unwrap();
    assert_eq!((got.wr_id, got.op, got.len, got.solicited), (7, CqeOp::Recv, 6, true));
    let mut seen = [0; 6];
    theirs.read(0, &mut seen);
    assert_eq!(&seen, b"inline");

    // The operation returns the previous value in the peer's memory.
    theirs.write(1024, &40u64.to_ne_bytes());
    let mut pieces = [sge(512, 8)];
    let mut wr = request(4, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut pieces);
    wr.wr.atomic = ibv_send_wr_atomic {
        remote_addr: theirs.to() + 1024,
        compare_add: 2,
        swap: 0,
        rkey: theirs.stag().0,
    };
    assert_eq!(program.send(qp, &mut wr), 0);
    program.done(cq);
    assert_eq!(memory.bytes(512, 8), 40u64.to_ne_bytes());
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = (42, 99);
    assert_eq!(program.send(qp, &mut wr), 0);
    program.done(cq);
    assert_eq!(memory.bytes(512, 8), 42u64.to_ne_bytes());
    let mut now = [0; 8];
    theirs.read(1024, &mut now);
    assert_eq!(u64::from_ne_bytes(now), 99);

    peer.connection.post_recv(&RecvWr::new(8, &[])).unwrap();
    let mut pieces = [sge(0, 10)];
    let mut wr = request(5, IBV_WR_RDMA_WRITE_WITH_IMM, &mut pieces);
    wr.wr.rdma = rdma(0);
    wr.imm_data = 0x0102_0304_u32.to_be();
    assert_eq!(program.send(qp, &mut wr), 0);
    assert_eq!(program.done(cq).opcode, IBV_WC_RDMA_WRITE);
    assert_eq!(peer.connection.wait(PATIENCE).unwrap().immediate, Some(0x0102_0304));

    // Now the peer sends to the program.
    let mut buffer = sge(2048, 64);
    program.receive(qp, 10, &mut buffer);
    theirs.write(0, b"to you");
    peer.connection.post_send(&SendWr::send(1, &[theirs.sge(0, 6)])).unwrap();
    let wc = program.done(cq);
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len, wc.wc_flags), (10, IBV_WC_RECV, 6, 0));
    assert_eq!(memory.bytes(2048, 6), b"to you");

    // SAFETY: the test keeps the C contract.
    unsafe {
        assert_eq!(ibv_dealloc_pd(program.pd), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(cq), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}

/// perftest uses these parameters: one piece, nothing inline.
#[test]
fn test_send_queue_takes_its_depth_of_atomic_operations() {
    for depth in [1, 8] {
        let program = Program::start();
        let memory = Memory::new(4096);
        let mr = program.register(&memory, ALL);
        let cq = program.cq(64, null_mut());
        let mut init = program.init(cq);
        init.cap.max_send_wr = depth;
        (init.cap.max_send_sge, init.cap.max_inline_data) = (1, 0);
        let qp = program.qp(&mut init);
        let peer = program.connect(qp);
        let theirs = peer.connection.alloc_mr(4096, peer_access()).unwrap();
        // SAFETY: the region is live.
        let lkey = unsafe { (*mr).lkey };
        let mut pieces = [ibv_sge { addr: memory.addr(0), length: 8, lkey }];
        let mut list: Vec<_> = (0..depth)
            .map(|n| {
                let mut wr = request(n.into(), IBV_WR_ATOMIC_FETCH_AND_ADD, &mut pieces);
                wr.wr.atomic = ibv_send_wr_atomic {
                    remote_addr: theirs.to(),
                    compare_add: 1,
                    swap: 0,
                    rkey: theirs.stag().0,
                };
                wr
            })
            .collect();
        for at in 1..list.len() {
            list[at - 1].next = &raw mut list[at];
        }
        assert_eq!(program.send(qp, &mut list[0]), 0);
        let done = program.poll(cq, list.len());
        assert!(done.iter().map(|wc| wc.wr_id).eq(0..u64::from(depth)), "{done:?}");
        assert!(done.iter().all(|wc| wc.status == IBV_WC_SUCCESS), "{done:?}");
        let mut now = [0; 8];
        theirs.read(0, &mut now);
        assert_eq!(u64::from_ne_bytes(now), u64::from(depth));
        // SAFETY: the test keeps the C contract.
        unsafe {
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(ibv_dereg_mr(mr), 0);
        }
    }
}

#[test]
fn test_refused_request_of_a_list_is_named_and_those_before_it_are_posted() {
    let program = Program::start();
    let memory = Memory::new(4096);
    let mr = program.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    let cq = program.cq(64, null_mut());
    let qp = program.qp(&mut program.init(cq));
    let peer = program.connect(qp);
    let theirs = peer.connection.alloc_mr(4096, peer_access()).unwrap();
    // SAFETY: the region is live.
    let lkey = unsafe { (*mr).lkey };
    let mut pieces = [ibv_sge { addr: memory.addr(0), length: 8, lkey }];
    let mut list = [1, 2, 3].map(|wr_id| {
        let mut wr = request(wr_id, IBV_WR_RDMA_WRITE, &mut pieces);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: theirs.to(), rkey: theirs.stag().0 };
        wr
    });
    // Give one request one byte more than any request can have inline; its twin below has as many
    // as this queue pair takes.
    let mut long = [ibv_sge { addr: memory.addr(0), length: 513, lkey }];
    (list[1].send_flags, list[1].sg_list) = (IBV_SEND_INLINE, long.as_mut_ptr());
    list[0].send_flags = 0;
    for at in 0..2 {
        list[at].next = &raw mut list[at + 1];
    }
    let mut bad = null_mut();
    // SAFETY: the test keeps the C contract.
    unsafe {
        let post = (*program.context).ops.post_send.unwrap();
        assert_eq!(post(qp, &raw mut list[0], &raw mut bad), libc::EINVAL);
        assert!(std::ptr::eq(bad, &raw const list[1]));
        (*list[1].sg_list).length = 64;
        assert_eq!(post(qp, &raw mut list[1], &raw mut bad), 0);
    }
    // The first request was not signaled, and neither was the second, so only the third completes.
    assert_eq!(program.done(cq).wr_id, 3);
    // The library refuses a bind without a window; it posts the requests before the bind nevertheless.
    let mut list = [5, 6, 7].map(|wr_id| {
        let mut wr = request(wr_id, IBV_WR_RDMA_WRITE, &mut pieces);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: theirs.to(), rkey: theirs.stag().0 };
        wr
    });
    list[1].opcode = IBV_WR_BIND_MW;
    assert_eq!(post_list(&program, qp, &mut list), (1, libc::EINVAL));
    assert_eq!(program.done(cq).wr_id, 5);
    let mut wr = request(4, IBV_WR_SEND_WITH_IMM, &mut pieces);
    assert_eq!(program.send(qp, &mut wr), libc::EOPNOTSUPP);
    wr.num_sge = 17;
    wr.opcode = IBV_WR_SEND;
    assert_eq!(program.send(qp, &mut wr), libc::EINVAL);
    // SAFETY: the test keeps the C contract.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
    drop(peer);
}

/// Posts requests as one list. Returns the number posted, and the errno.
fn post_list(program: &Program, qp: *mut ibv_qp, list: &mut [ibv_send_wr]) -> (usize, i32) {
    let mut next = null_mut();
    for wr in list.iter_mut().rev() {
        wr.next = next;
        next = wr;
    }
    let mut bad = null_mut();
    // SAFETY: the test keeps the C contract.
    let error = unsafe { (*program.context).ops.post_send.unwrap()(qp, next, &raw mut bad) };
    let posted = list.iter().position(|wr| error != 0 && std::ptr::eq(wr, bad));
    (posted.unwrap_or(list.len()), error)
}

/// Posts receives of no bytes as one list. Returns the number posted.
fn post_receives(program: &Program, qp: *mut ibv_qp, first: u64, count: usize) -> usize {
    let mut list: Vec<_> = (first..)
        .take(count)
        .map(|wr_id| ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 0 })
        .collect();
    let mut next = null_mut();
    for wr in list.iter_mut().rev() {
        wr.next = next;
        next = wr;
    }
    let mut bad = null_mut();
    // SAFETY: the test keeps the C contract.
    let error = unsafe { (*program.context).ops.post_recv.unwrap()(qp, next, &raw mut bad) };
    assert!([0, libc::ENOMEM].contains(&error), "{error}");
    list.iter().position(|wr| error != 0 && std::ptr::eq(wr, bad)).unwrap_or(count)
}

/// Takes all waiting completions.
fn drain(program: &Program, cq: *mut ibv_cq, done: &mut Vec<ibv_wc>) {
    // SAFETY: the structures consist of integers, for which all zeros are valid.
    let mut wc: [ibv_wc; 16] = unsafe { std::mem::zeroed() };
    // SAFETY: the test keeps the C contract.
    let got = unsafe { (*program.context).ops.poll_cq.unwrap()(cq, 16, wc.as_mut_ptr()) };
    done.extend_from_slice(&wc[..usize::try_from(got).unwrap()]);
}

/// The worker, and after the connection's end the library, take all of a list, a part of it, or
/// nothing.
#[test]
fn test_lists_posted_while_a_connection_ends_complete_once_and_in_order() {
    for turn in 0..12 {
        let program = Program::start();
        let memory = Memory::new(4096);
        let mr = program.register(&memory, ALL);
        let [cq, recv_cq] = [(); 2].map(|()| program.cq(64, null_mut()));
        let mut init = program.init(cq);
        init.recv_cq = recv_cq;
        let qp = program.qp(&mut init);
        let peer = program.connect(qp);
        let theirs = peer.connection.alloc_mr(4096, peer_access()).unwrap();
        let rdma = ibv_send_wr_rdma { remote_addr: theirs.to(), rkey: theirs.stag().0 };
        let mut peer = Some((theirs, peer));
        // SAFETY: the region is live.
        let lkey = unsafe { (*mr).lkey };
        let mut pieces = [ibv_sge { addr: memory.addr(0), length: 8, lkey }];

        let (mut posted, mut done) = ([0; 2], [Vec::new(), Vec::new()]);
        let mut after = 0;
        let until = std::time::Instant::now() + PATIENCE;
        for round in 0.. {
            if round == turn * 5 {
                peer = None;
            }
            let count = 1 + round % 5;
            let mut list: Vec<_> = (posted[0]..posted[0] + count as u64)
                .map(|wr_id| {
                    let mut wr = request(wr_id, IBV_WR_RDMA_WRITE, &mut pieces);
                    wr.wr.rdma = rdma;
                    wr
                })
                .collect();
            let (n, error) = post_list(&program, qp, &mut list);
            assert!([0, libc::ENOMEM].contains(&error), "{error}");
            posted[0] += n as u64;
            posted[1] += post_receives(&program, qp, posted[1], count) as u64;
            drain(&program, cq, &mut done[0]);
            drain(&program, recv_cq, &mut done[1]);
            // Post some more lists after the end.
            after += usize::from(done[0].last().is_some_and(|wc| wc.status != IBV_WC_SUCCESS));
            if after == 20 {
                break;
            }
            assert!(std::time::Instant::now() < until, "the connection does not end");
        }
        assert!(peer.is_none());
        for (done, (cq, posted)) in done.iter_mut().zip([cq, recv_cq].into_iter().zip(posted)) {
            let left = usize::try_from(posted).unwrap() - done.len();
            done.extend(program.poll(cq, left));
            assert!(done.iter().map(|wc| wc.wr_id).eq(0..posted), "turn {turn}: {done:?}");
            assert!(
                done.is_sorted_by_key(|wc| wc.status != IBV_WC_SUCCESS),
                "turn {turn}: {done:?}"
            );
        }
        assert!(done[1].iter().all(|wc| wc.status == IBV_WC_WR_FLUSH_ERR), "turn {turn}");
        // SAFETY: the test keeps the C contract.
        unsafe {
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(ibv_destroy_cq(recv_cq), 0);
            assert_eq!(ibv_dereg_mr(mr), 0);
        }
    }
}

#[test]
fn test_window_exposes_its_range_until_it_is_bound_again() {
    let program = Program::start();
    let memory = Memory::new(4096);
    let mr = program.register(&memory, ALL | IBV_ACCESS_MW_BIND);
    let cq = program.cq(64, null_mut());
    let qp = program.qp(&mut program.init(cq));
    let peer = program.connect(qp);
    let theirs = peer.connection.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    theirs.write(0, b"window");
    // SAFETY: the test keeps the C contract.
    unsafe {
        let ops = &(*program.context).ops;
        let mw = ops.alloc_mw.unwrap()(program.pd, IBV_MW_TYPE_1);
        assert!(!mw.is_null());
        let mut bind = ibv_mw_bind {
            wr_id: 77,
            send_flags: IBV_SEND_SIGNALED,
            bind_info: ibv_mw_bind_info {
                mr,
                addr: memory.addr(256),
                length: 64,
                mw_access_flags: IBV_ACCESS_REMOTE_WRITE,
            },
        };
        assert_eq!(ops.bind_mw.unwrap()(qp, mw, &raw mut bind), 0);
        let wc = program.done(cq);
        assert_eq!((wc.wr_id, wc.opcode), (77, IBV_WC_BIND_MW));
        assert_eq!(ibv_dereg_mr(mr), libc::EBUSY);
        let write = |to: u64, rkey: u32| {
            let piece = [theirs.sge(0, 6)];
            peer.connection.post_send(&SendWr::write(1, &piece, Stag(rkey), to)).unwrap();
            peer.connection.wait(PATIENCE).unwrap().status
        };
        assert!(write(memory.addr(256), (*mw).rkey).is_success());
        let until = std::time::Instant::now() + PATIENCE;
        while memory.bytes(256, 6) != b"window" {
            assert!(std::time::Instant::now() < until);
        }
        let old = (*mw).rkey;
        bind.bind_info.length = 0;
        assert_eq!(ops.bind_mw.unwrap()(qp, mw, &raw mut bind), 0);
        program.done(cq);
        write(memory.addr(256), old);
        // Whether or not TCP acknowledged the Write, the RNIC refuses it and ends the stream.
        while crate::program::state_of(qp) != IBV_QPS_ERR {
            assert!(std::time::Instant::now() < until + PATIENCE);
            std::thread::yield_now();
        }
        assert_eq!(ops.dealloc_mw.unwrap()(mw), 0);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}
