//! Extended queues and queue pairs: completions and requests one by one.

use std::mem::zeroed;
use std::ptr::null_mut;

use heddle_ibverbs::abi::*;
use heddle_ibverbs::verbs::*;
use heddle_verbs::{Access, RecvWr};

use crate::lab::PATIENCE;
use crate::program::{Memory, Program, set_state};

/// Returns the extended structure around a context.
fn operations(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: every context of this library lies in such a structure.
    unsafe { context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
}

#[test]
fn test_extended_verbs_post_at_complete_and_read_completion_fields() {
    let program = Program::start();
    let words = operations(program.context);
    let memory = Memory::new(4096);
    let mr = program.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the test keeps the C contract; all zeros are valid for the structures.
    unsafe {
        let mut init: ibv_cq_init_attr_ex = zeroed();
        init.cqe = 32;
        init.wc_flags =
            IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
        let cq = (*words).create_cq_ex.unwrap()(program.context, &raw mut init);
        assert!(!cq.is_null());
        assert!((*cq).read_imm_data.is_none(), "it was not asked for");
        let plain = program.init(cq.cast());
        let mut init: ibv_qp_init_attr_ex = zeroed();
        (init.send_cq, init.recv_cq) = (plain.send_cq, plain.recv_cq);
        (init.cap, init.qp_type, init.pd) = (plain.cap, plain.qp_type, program.pd);
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = 1 << 10;
        assert!((*words).create_qp_ex.unwrap()(program.context, &raw mut init).is_null());
        init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
        let qp = (*words).create_qp_ex.unwrap()(program.context, &raw mut init);
        assert!(!qp.is_null());
        set_state(qp, IBV_QPS_INIT);
        let peer = program.connect(qp);
        let theirs =
            peer.connection.alloc_mr(4096, Access::REMOTE_WRITE.with(Access::LOCAL_WRITE)).unwrap();
        peer.connection.post_recv(&RecvWr::new(5, &[theirs.sge(0, 64)])).unwrap();
        let ex = ibv_qp_to_qp_ex(qp);
        assert!(!ex.is_null());

        // The program aborts this request, so nothing is posted.
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_id = 1;
        (*ex).wr_flags = IBV_SEND_SIGNALED;
        (*ex).wr_send.unwrap()(ex);
        (*ex).wr_abort.unwrap()(ex);

        memory.fill(0, b"written");
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_id = 2;
        (*ex).wr_rdma_write.unwrap()(ex, theirs.stag().0, theirs.to() + 128);
        (*ex).wr_set_sge.unwrap()(ex, (*mr).lkey, memory.addr(0), 7);
        (*ex).wr_id = 3;
        (*ex).wr_send.unwrap()(ex);
        let mut text = *b"sent";
        (*ex).wr_set_inline_data.unwrap()(ex, text.as_mut_ptr().cast(), 4);
        text.fill(0);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
        let got = peer.connection.wait(PATIENCE).unwrap();
        assert_eq!((got.wr_id, got.len), (5, 4));
        let mut seen = [0; 7];
        theirs.read(128, &mut seen);
        assert_eq!(&seen, b"written");

        // An unsupported request makes the whole batch fail.
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_send.unwrap()(ex);
        (*ex).wr_send_imm.unwrap()(ex, 1);
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::EOPNOTSUPP);

        let until = std::time::Instant::now() + PATIENCE;
        let mut none = ibv_poll_cq_attr { comp_mask: 0 };
        let (mut ids, mut last) = (Vec::new(), 0);
        while ids.len() < 2 {
            assert!(std::time::Instant::now() < until, "{ids:?}");
            if (*cq).start_poll.unwrap()(cq, &raw mut none) == libc::ENOENT {
                continue;
            }
            loop {
                assert_eq!((*cq).status, IBV_WC_SUCCESS);
                assert_eq!((*cq).read_qp_num.unwrap()(cq), (*qp).qp_num);
                let at = (*cq).read_completion_ts.unwrap()(cq);
                assert!(at > last, "time goes on");
                last = at;
                ids.push(((*cq).wr_id, (*cq).read_opcode.unwrap()(cq)));
                if (*cq).next_poll.unwrap()(cq) == libc::ENOENT {
                    break;
                }
            }
            (*cq).end_poll.unwrap()(cq);
        }
        assert_eq!(ids, [(2, IBV_WC_RDMA_WRITE), (3, IBV_WC_SEND)]);
        assert_eq!((*cq).start_poll.unwrap()(cq, null_mut()), libc::ENOENT);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq.cast()), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}

#[test]
fn test_shared_receives_go_to_any_queue_pair_and_their_limit_raises_one_event() {
    let program = Program::start();
    let memory = Memory::new(4096);
    let mr = program.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    let cq = program.cq(64, null_mut());
    // SAFETY: the test keeps the C contract; all zeros are valid for the structures.
    unsafe {
        let mut init: ibv_srq_init_attr = zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (8, 2);
        let srq = ibv_create_srq(program.pd, &raw mut init);
        assert!(!srq.is_null());
        let mut qp_init = program.init(cq);
        qp_init.srq = srq;
        let qps = [program.qp(&mut qp_init), program.qp(&mut qp_init)];
        let post = (*program.context).ops.post_srq_recv.unwrap();
        for wr_id in 0..4u64 {
            let addr = memory.addr(usize::try_from(wr_id).unwrap() * 64);
            let mut sge = ibv_sge { addr, length: 64, lkey: (*mr).lkey };
            let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
            let mut bad = null_mut();
            assert_eq!(post(srq, &raw mut wr, &raw mut bad), 0);
            // A program cannot post receives to the queue pair itself then.
            let own = (*program.context).ops.post_recv.unwrap();
            assert_eq!(own(qps[0], &raw mut wr, &raw mut bad), libc::EINVAL);
        }
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 9 };
        assert_eq!(ibv_modify_srq(srq, &raw mut attr, IBV_SRQ_LIMIT), libc::EINVAL);
        attr.srq_limit = 3;
        assert_eq!(ibv_modify_srq(srq, &raw mut attr, IBV_SRQ_LIMIT), 0);
        assert_eq!(ibv_query_srq(srq, &raw mut attr), 0);
        assert_eq!((attr.max_wr, attr.max_sge, attr.srq_limit), (8, 2, 3));
        let peers = qps.map(|qp| program.connect(qp));
        let mut from = Vec::new();
        for peer in &peers {
            let theirs = peer.connection.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
            let piece = [theirs.sge(0, 8)];
            peer.connection.post_send(&heddle_verbs::SendWr::send(1, &piece)).unwrap();
            let wc = program.done(cq);
            from.push((wc.wr_id, wc.qp_num));
        }
        assert_eq!(from, [(0, (*qps[0]).qp_num), (1, (*qps[1]).qp_num)]);
        let mut event = ibv_async_event { element: null_mut(), event_type: -1 };
        loop {
            let fd = (*program.context).async_fd;
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            assert_eq!(libc::poll(&raw mut poll, 1, 60_000), 1, "no event comes");
            assert_eq!(ibv_get_async_event(program.context, &raw mut event), 0);
            ibv_ack_async_event(&raw mut event);
            if event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED {
                break;
            }
            // Events of the port may come at any time after the program opened the device.
            let of_the_port = [IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE];
            assert!(
                event.event_type == IBV_EVENT_COMM_EST || of_the_port.contains(&event.event_type),
                "{}",
                event.event_type
            );
        }
        assert!(std::ptr::eq(event.element.cast(), srq));
        assert_eq!(ibv_query_srq(srq, &raw mut attr), 0);
        assert_eq!(attr.srq_limit, 0, "it is armed for nothing any more");
        assert_eq!(ibv_destroy_srq(srq), libc::EBUSY);
        for qp in qps {
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}
