//! Completion channels and asynchronous events.

use std::ffi::c_int;
use std::ptr::null_mut;

use heddle_ibverbs::abi::*;
use heddle_ibverbs::verbs::*;
use heddle_verbs::SendWr;

use crate::lab::PATIENCE;
use crate::program::{Memory, Program, errno, request, set_state, state_of, try_state};

/// Takes the next event of a channel.
fn event(channel: *mut ibv_comp_channel) -> Result<*mut ibv_cq, i32> {
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: the test keeps the C contract.
    match unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) } {
        0 => Ok(cq),
        _ => Err(errno()),
    }
}

fn set_nonblocking(fd: c_int) {
    // SAFETY: the call sets a flag of a descriptor.
    unsafe { assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK), 0) };
}

fn is_readable(fd: c_int, millis: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one live entry.
    unsafe { libc::poll(&raw mut poll, 1, millis) == 1 }
}

fn arm(program: &Program, cq: *mut ibv_cq) {
    // SAFETY: the test keeps the C contract.
    assert_eq!(unsafe { (*program.context).ops.req_notify_cq.unwrap()(cq, 0) }, 0);
}

#[test]
fn test_channel_yields_one_event_per_arm_even_if_completion_was_polled() {
    let program = Program::start();
    let memory = Memory::new(4096);
    let mr = program.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the test keeps the C contract.
    let channel = unsafe { ibv_create_comp_channel(program.context) };
    // SAFETY: the channel is live.
    let fd = unsafe { (*channel).fd };
    set_nonblocking(fd);
    let (cq, idle) = (program.cq(16, channel), program.cq(16, channel));
    let qp = program.qp(&mut program.init(cq));
    let peer = program.connect(qp);
    let theirs = peer.connection.alloc_mr(64, heddle_verbs::Access::LOCAL_WRITE).unwrap();
    assert_eq!(event(channel), Err(libc::EAGAIN));
    // SAFETY: the region is live.
    let lkey = unsafe { (*mr).lkey };
    for round in 0..3 {
        arm(&program, cq);
        let mut sge = ibv_sge { addr: memory.addr(0), length: 64, lkey };
        program.receive(qp, round, &mut sge);
        peer.connection.post_send(&SendWr::send(round, &[theirs.sge(0, 8)])).unwrap();
        assert_eq!(program.done(cq).wr_id, round);
        assert!(is_readable(fd, 60_000));
        assert_eq!(event(channel), Ok(cq));
        assert_eq!(event(channel), Err(libc::EAGAIN), "round {round}");
    }
    // SAFETY: the test keeps the C contract.
    unsafe {
        assert_eq!(ibv_destroy_comp_channel(channel), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(qp), 0);
        // The queue cannot be destroyed before the program acknowledges the last event.
        ibv_ack_cq_events(cq, 2);
        let (address, started) = (cq.expose_provenance(), std::sync::Arc::new(()));
        let seen = started.clone();
        let ending = std::thread::spawn(move || {
            drop(seen);
            ibv_destroy_cq(std::ptr::with_exposed_provenance_mut(address))
        });
        while std::sync::Arc::strong_count(&started) > 1 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!ending.is_finished(), "an event is not acknowledged");
        ibv_ack_cq_events(cq, 1);
        assert_eq!(ending.join().unwrap(), 0);
        assert_eq!(ibv_destroy_cq(idle), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}

/// The program arms, polls fewer completions than there are, and waits.
#[test]
fn test_program_that_polls_too_few_after_arming_gets_an_event() {
    let program = Program::start();
    let memory = Memory::new(4096);
    let mr = program.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the test keeps the C contract.
    let channel = unsafe { ibv_create_comp_channel(program.context) };
    // SAFETY: the channel is live.
    let fd = unsafe { (*channel).fd };
    set_nonblocking(fd);
    let cq = program.cq(16, channel);
    let qp = program.qp(&mut program.init(cq));
    let peer = program.connect(qp);
    let theirs = peer.connection.alloc_mr(64, heddle_verbs::Access::LOCAL_WRITE).unwrap();
    // SAFETY: the region is live.
    let lkey = unsafe { (*mr).lkey };
    for n in 0..3 {
        let mut sge = ibv_sge { addr: memory.addr(0), length: 64, lkey };
        program.receive(qp, n, &mut sge);
    }
    for n in 0..3 {
        peer.connection.post_send(&SendWr::send(n, &[theirs.sge(0, 8)])).unwrap();
        peer.connection.wait(PATIENCE).unwrap();
    }
    // Everything that the peer knows as arrived is in the queue, or soon will be.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(event(channel), Err(libc::EAGAIN), "nobody has armed it");
    arm(&program, cq);
    assert_eq!(program.poll(cq, 1)[0].wr_id, 0);
    assert!(is_readable(fd, 60_000));
    assert_eq!(event(channel), Ok(cq));
    arm(&program, cq);
    assert!(program.poll(cq, 2).iter().map(|wc| wc.wr_id).eq(1..3));
    assert_eq!(event(channel), Err(libc::EAGAIN), "none is left");
    // SAFETY: the test keeps the C contract.
    unsafe {
        ibv_ack_cq_events(cq, 1);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}

/// Takes the next asynchronous event.
fn asynchronous(program: &Program) -> Result<ibv_async_event, i32> {
    let mut event = ibv_async_event { element: null_mut(), event_type: -1 };
    // SAFETY: the test keeps the C contract.
    match unsafe { ibv_get_async_event(program.context, &raw mut event) } {
        0 => Ok(event),
        _ => Err(errno()),
    }
}

#[test]
fn test_end_of_a_connection_flushes_requests_and_raises_an_event() {
    let program = Program::start();
    // SAFETY: the context is open.
    let fd = unsafe { (*program.context).async_fd };
    set_nonblocking(fd);
    assert_eq!(asynchronous(&program).map(|e| e.event_type), Err(libc::EAGAIN));
    let memory = Memory::new(4096);
    let mr = program.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the test keeps the C contract.
    let channel = unsafe { ibv_create_comp_channel(program.context) };
    let cq = program.cq(64, channel);
    let qp = program.qp(&mut program.init(cq));
    let peer = program.connect(qp);
    assert_eq!(state_of(qp), IBV_QPS_RTS);
    // SAFETY: the region is live.
    let lkey = unsafe { (*mr).lkey };
    let mut sge = ibv_sge { addr: memory.addr(0), length: 8, lkey };
    program.receive(qp, 1, &mut sge);
    // The peer has no such region, so the Write ends the connection.
    let mut wr = request(2, IBV_WR_RDMA_WRITE, std::slice::from_mut(&mut sge));
    wr.wr.rdma = ibv_send_wr_rdma { remote_addr: 0, rkey: 0x1234_5600 };
    assert_eq!(program.send(qp, &mut wr), 0);
    let mut wcs = program.poll(cq, 2);
    wcs.sort_by_key(|wc| wc.wr_id);
    assert_eq!((wcs[0].status, wcs[0].opcode), (IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV));
    let until = std::time::Instant::now() + PATIENCE;
    while state_of(qp) != IBV_QPS_ERR {
        assert!(std::time::Instant::now() < until);
        std::thread::yield_now();
    }
    // Requests posted from here on complete as flushed, and raise the event of an arm.
    arm(&program, cq);
    program.receive(qp, 3, &mut sge);
    wr.wr_id = 4;
    assert_eq!(program.send(qp, &mut wr), 0);
    assert_eq!(event(channel), Ok(cq));
    let wcs = program.poll(cq, 2);
    assert_eq!(
        wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
        [(3, IBV_WC_WR_FLUSH_ERR), (4, IBV_WC_WR_FLUSH_ERR)]
    );
    assert_eq!((wcs[0].opcode, wcs[1].opcode), (IBV_WC_RECV, IBV_WC_RDMA_WRITE));
    let mut kinds = Vec::new();
    while kinds.last() != Some(&IBV_EVENT_QP_FATAL) {
        assert!(is_readable(fd, 60_000), "{kinds:?}");
        if let Ok(mut e) = asynchronous(&program) {
            // Events of the port come to every context, and name no object of it.
            if matches!(e.event_type, IBV_EVENT_QP_FATAL | IBV_EVENT_COMM_EST) {
                assert!(std::ptr::eq(e.element.cast(), qp));
            }
            kinds.push(e.event_type);
            // SAFETY: the program has fetched the event, and acknowledges it once.
            unsafe { ibv_ack_async_event(&raw mut e) };
        }
    }
    // SAFETY: the test keeps the C contract.
    unsafe {
        ibv_ack_cq_events(cq, 1);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
    drop(peer);
}

#[test]
fn test_queue_pair_states_follow_requests_and_the_connection() {
    let program = Program::start();
    let cq = program.cq(16, null_mut());
    // SAFETY: the test keeps the C contract.
    let qp = unsafe { ibv_create_qp(program.pd, &mut program.init(cq)) };
    assert_eq!(state_of(qp), IBV_QPS_RESET);
    let mut sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
    let mut wr = request(1, IBV_WR_SEND, std::slice::from_mut(&mut sge));
    assert_eq!(program.send(qp, &mut wr), libc::EINVAL, "nothing is posted in RESET");
    for refused in [IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, 99] {
        assert_eq!(try_state(qp, refused), libc::EINVAL, "{refused}");
    }
    set_state(qp, IBV_QPS_INIT);
    assert_eq!(try_state(qp, IBV_QPS_RTS), libc::EINVAL, "there is no connection");
    assert_eq!(try_state(qp, IBV_QPS_RTR), 0, "librdmacm asks before it accepts");
    assert_eq!(state_of(qp), IBV_QPS_INIT);
    let peer = program.connect(qp);
    assert_eq!(state_of(qp), IBV_QPS_RTS);
    for granted in [IBV_QPS_RTR, IBV_QPS_RTS] {
        assert_eq!(try_state(qp, granted), 0);
        assert_eq!(state_of(qp), IBV_QPS_RTS);
    }
    set_state(qp, IBV_QPS_SQD);
    assert_eq!(state_of(qp), IBV_QPS_SQD);
    // SAFETY: the test keeps the C contract.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    drop(peer);
}

#[test]
fn test_queue_pair_moved_to_err_flushes_its_requests() {
    let program = Program::start();
    let memory = Memory::new(4096);
    let mr = program.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the region is live.
    let lkey = unsafe { (*mr).lkey };
    let cq = program.cq(16, null_mut());
    let qp = program.qp(&mut program.init(cq));
    let mut sge = ibv_sge { addr: memory.addr(0), length: 8, lkey };
    for connected in [false, true] {
        let peer = connected.then(|| program.connect(qp));
        program.receive(qp, 1, &mut sge);
        set_state(qp, IBV_QPS_ERR);
        assert_eq!(state_of(qp), IBV_QPS_ERR);
        program.receive(qp, 2, &mut sge);
        let wcs = program.poll(cq, 2);
        let seen: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(seen, [(1, IBV_WC_WR_FLUSH_ERR), (2, IBV_WC_WR_FLUSH_ERR)], "{connected}");
        if let Some(mut peer) = peer {
            let until = std::time::Instant::now() + PATIENCE;
            while peer.connection.end().is_none() {
                assert!(std::time::Instant::now() < until, "the peer hears of no end");
                std::thread::yield_now();
            }
        }
        set_state(qp, IBV_QPS_RESET);
        assert_eq!(state_of(qp), IBV_QPS_RESET);
        set_state(qp, IBV_QPS_INIT);
    }
    // SAFETY: the test keeps the C contract.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}
