//! Queue pairs that share a receive queue: the order of the buffers, the events, and the ends for
//! want of a buffer.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use heddle_hub::DeviceConfig;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::rdmap::Opcode;
use heddle_types::TermCode;
use heddle_verbs::{
    Access, CmEvent, Cq, Cqe, CqeStatus, Device, DeviceError, DeviceLimits, EventQueue, Mr, Pd,
    PostError, QpInit, RecvWr, Srq,
};

use crate::common::*;

/// A shared receive queue, and the objects that its queue pairs share.
struct Share {
    device: Device,
    pd: Pd,
    cq: Cq,
    srq: Srq,
    mr: Mr,
}

const SLOT: usize = 64;

impl Share {
    fn new(device: &Device) -> Share {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256, None).unwrap();
        let srq = device.create_srq(pd, 16, 2, None).unwrap();
        let mr = region_on(device, pd, Access::LOCAL_WRITE.with(Access::REMOTE_READ));
        Share { device: device.clone(), pd, cq, srq, mr }
    }

    fn end(&self) -> End {
        let init = QpInit::new(self.cq.clone()).depths(16, 16).shared(&self.srq);
        let qp = self.device.create_qp(self.pd, init).unwrap();
        let all = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
        End { pd: self.pd, cq: self.cq.clone(), qp, mr: region_on(&self.device, self.pd, all) }
    }

    /// Posts a buffer for each mark, each at a place of its own.
    fn post(&self, marks: impl IntoIterator<Item = u64>) {
        for wr_id in marks {
            let sges = [self.mr.sge(wr_id as usize * SLOT, SLOT)];
            self.srq.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
        }
    }

    fn connect(&self, net: &mut Net, events: &EventQueue) -> Honest {
        let end = self.end();
        Honest::with(net, PORT, events, end)
    }

    fn bytes(&self, mark: u64) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        self.mr.read(mark as usize * SLOT, &mut bytes);
        bytes
    }

    fn completions(&self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.cq.poll()).collect()
    }
}

/// Returns the header of a first segment that is not the last.
fn first_segment(msn: u32) -> DdpHeader {
    match send_header(msn) {
        DdpHeader::Untagged { rsvd_ulp, rsvd_ulp32, qn, msn, mo, .. } => {
            DdpHeader::Untagged { last: false, rsvd_ulp, rsvd_ulp32, qn, msn, mo }
        }
        tagged @ DdpHeader::Tagged { .. } => tagged,
    }
}

fn marks(all: &[Cqe]) -> Vec<(u64, u32)> {
    all.iter().map(|c| (c.wr_id, c.qpn.0)).collect()
}

#[test]
fn test_buffers_go_to_messages_in_the_order_of_arrival() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let share = Share::new(net.us.device());
    let both = [share.connect(&mut net, &events), share.connect(&mut net, &events)];
    let qpns = both.each_ref().map(|h| h.end.qp.qpn().0);
    let mut msn = [0; 2];
    for lap in 0..6u64 {
        // The receives come before and after the connections, and after messages.
        share.post(lap * 10..lap * 10 + 7);
        for (n, who) in [0, 1, 1, 0, 0, 1, 0].into_iter().enumerate() {
            msn[who] += 1;
            let data = [(lap * 10) as u8 + n as u8; 40];
            net.peer.send(both[who].conn, &fpdu(send_header(msn[who]), &data));
            net.settle();
            let mark = lap * 10 + n as u64;
            let done = share.completions();
            assert_eq!(marks(&done), [(mark, qpns[who])]);
            assert!(done[0].status.is_success() && done[0].len == 40, "{done:?}");
            assert_eq!(share.bytes(mark)[..40], data);
            assert_eq!(share.bytes(mark)[40..], [FILL; SLOT - 40]);
        }
        assert!(share.srq.is_empty());
    }
}

/// RFC 5041 section 8.3.2, RFC 5042 section 6.4.3: a peer that stops in the middle of messages
/// holds one buffer, however it goes on, and gives the buffer up with its end.
#[test]
fn test_peer_that_completes_no_message_holds_one_buffer() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let share = Share::new(net.us.device());
    let bad = share.connect(&mut net, &events);
    let good = share.connect(&mut net, &events);
    share.post(0..5);
    net.peer.send(bad.conn, &fpdu(first_segment(1), &[1; 8]));
    net.settle();
    assert_eq!(share.srq.len(), 4, "it has one");
    for n in 1..=3 {
        net.peer.send(good.conn, &fpdu(send_header(n), &[2; 8]));
        net.settle();
        assert_eq!(marks(&share.completions()), [(u64::from(n), good.end.qp.qpn().0)]);
    }
    // The first segment of another message, while a message is open, is no message.
    net.peer.send(bad.conn, &fpdu(first_segment(2), &[1; 8]));
    net.settle();
    let done = share.completions();
    assert_eq!(marks(&done), [(0, bad.end.qp.qpn().0)]);
    assert_eq!(done[0].status, CqeStatus::Flushed);
    assert_eq!(share.srq.len(), 1, "what it had not taken is the others'");
    net.peer.stack.abort(bad.conn);
    let ended = net.event(&events);
    assert!(matches!(ended, CmEvent::Disconnected { id, .. } if id == bad.id), "{ended:?}");
    net.peer.send(good.conn, &fpdu(send_header(4), &[3; 8]));
    net.settle();
    assert_eq!(marks(&share.completions()), [(4, good.end.qp.qpn().0)]);
    assert_eq!(share.bytes(4)[..8], [3; 8]);
}

#[test]
fn test_message_without_a_buffer_ends_its_own_stream() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let share = Share::new(net.us.device());
    let bad = share.connect(&mut net, &events);
    let good = share.connect(&mut net, &events);
    net.peer.send(bad.conn, &fpdu(send_header(1), &[1; 8]));
    net.settle();
    // DDP, untagged buffer error, no buffer available.
    let (before, terminate) = terminate_in(&net.peer.got(bad.conn)[bad.startup..]).unwrap();
    assert_eq!((before, terminate.code), (0, TermCode { layer: 1, etype: 2, code: 2 }));
    assert_eq!(share.completions(), []);
    share.post(0..1);
    net.peer.send(good.conn, &fpdu(send_header(1), &[2; 8]));
    net.settle();
    assert_eq!(marks(&share.completions()), [(0, good.end.qp.qpn().0)]);
}

/// A segment that is wrong in itself costs the other queue pairs no buffer.
#[test]
fn test_segments_out_of_sequence_take_no_buffer() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let share = Share::new(net.us.device());
    share.post(0..2);
    for (msn, mo) in [(2, 0), (1, 8), (0, 0)] {
        let bad = share.connect(&mut net, &events);
        net.peer.send(bad.conn, &fpdu(untagged(Opcode::SEND, Qn::SEND, msn, mo), &[1; 8]));
        net.settle();
        assert!(terminate_in(&net.peer.got(bad.conn)[bad.startup..]).is_some(), "{msn} {mo}");
        assert_eq!((share.srq.len(), share.completions()), (2, vec![]), "{msn} {mo}");
    }
}

/// Immediate Data takes a buffer of the shared queue as well (RFC 7306 section 6.3).
#[test]
fn test_immediate_data_takes_a_buffer() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let share = Share::new(net.us.device());
    let peer = share.connect(&mut net, &events);
    share.post(3..4);
    net.peer.send(peer.conn, &fpdu(untagged(Opcode::IMMEDIATE, Qn::SEND, 1, 0), &[9; 8]));
    net.settle();
    let done = share.completions();
    assert_eq!(marks(&done), [(3, peer.end.qp.qpn().0)]);
    assert_eq!(done[0].immediate, Some(u64::from_be_bytes([9; 8])));
    assert_eq!(share.bytes(3), [FILL; SLOT]);
}

#[test]
fn test_srq_limit_event_fires_once_when_buffers_fall_below_limit() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let share = Share::new(net.us.device());
    let peer = share.connect(&mut net, &events);
    share.post(0..4);
    share.srq.arm_limit(3);
    for (n, told) in [(1, false), (2, true), (3, false)] {
        net.peer.send(peer.conn, &fpdu(send_header(n), &[1; 8]));
        net.settle();
        assert_eq!(share.srq.take_limit_event(), told, "message {n}");
    }
}

/// An application that writes nonsense into the ring ends only its own queue pairs.
#[test]
fn test_corrupted_srq_ring_ends_only_queue_pairs_of_its_owner() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let share = Share::new(net.us.device());
    let bad = share.connect(&mut net, &events);
    let (off, words) = share.srq.share();
    let block = share.device.area().at(off, words).unwrap();
    for w in &block.words()[8..] {
        w.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    }
    net.peer.send(bad.conn, &fpdu(send_header(1), &[1; 8]));
    net.settle();
    assert!(terminate_in(&net.peer.got(bad.conn)[bad.startup..]).is_some());
    assert_eq!(share.completions(), []);
    honest.exchange(&mut net);
}

#[test]
fn test_shared_receive_queue_refuses_invalid_parameters() {
    let (eal, _turn) = eal();
    let net = Net::new(&eal);
    let limits = DeviceLimits { max_srqs: 1, max_srq_wrs: 16, ..DeviceLimits::default() };
    let config = DeviceConfig { memory: 1 << 20, queues: 1 << 20, limits, ..Default::default() };
    let device = net.us.hub().open(&config).unwrap();
    let share = Share::new(&device);
    let create = |pd, depth, sges| device.create_srq(pd, depth, sges, None).err();
    for (depth, sges) in [(0, 1), (17, 1), (1, 0), (1, 17)] {
        let refused = create(share.pd, depth, sges);
        assert!(matches!(refused, Some(DeviceError::Limit { .. })), "{depth} {sges}: {refused:?}");
    }
    let full = DeviceError::TooMany { what: "shared receive queues", most: 1 };
    assert_eq!(create(share.pd, 1, 1), Some(full));
    assert_eq!(create(Pd(0), 1, 1), Some(DeviceError::ForeignPd(Pd(0))));
    // Another protection domain, and another application.
    let init = || QpInit::new(share.cq.clone()).shared(&share.srq);
    let refused = device.create_qp(device.alloc_pd().unwrap(), init()).err();
    assert_eq!(refused, Some(DeviceError::ForeignSrq));
    let other = net.us.device();
    let foreign = QpInit::new(other.create_cq(16, None).unwrap()).shared(&share.srq);
    assert_eq!(
        other.create_qp(other.alloc_pd().unwrap(), foreign).err(),
        Some(DeviceError::ForeignSrq)
    );
    // A queue pair with a shared receive queue has no receive queue of its own.
    let qp = device.create_qp(share.pd, init()).unwrap();
    let refused = qp.post_recv(&RecvWr { wr_id: 1, sges: &[] });
    assert_eq!(refused, Err(PostError::SharedReceives));
    // The shared receive queue is in use, and then no longer.
    let (srq, error) = share.srq.clone().destroy().unwrap_err();
    assert_eq!(error, DeviceError::SrqInUse { users: 1 });
    drop(qp);
    srq.destroy().unwrap();
}
