//! Acts of an application that are wrong, or too early: it gives memory back while the peer can
//! still ask for it, uses queue pairs twice, fills queues, and names objects of another
//! application.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::{Duration, Instant};

use heddle_hub::DeviceConfig;
use heddle_iwarp::Msn;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::rdmap::{Control, Opcode, ReadRequest};
use heddle_tcp::ConnEvent;
use heddle_verbs::{
    AcceptParams, Access, Arm, CmEvent, ConnectParams, CqOverflow, CqeStatus, DeviceError,
    DisconnectReason, EventQueue, Mr, PostError, QpFate, QpInit, RecvWr, SendWr, Sleeper, Stag,
};

use crate::common::*;

fn read_request(msn: u32, mr: &Mr, size: u32) -> Vec<u8> {
    let (src_stag, src_to) = (mr.stag(), mr.to());
    let r = ReadRequest { sink_stag: Stag(1), sink_to: 0, size, src_stag, src_to };
    fpdu(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, msn, 0), &r.emit())
}

/// Returns a Send of another kind: with an event, or with an STag to invalidate.
fn send_of_kind(opcode: Opcode, stag: Stag, msn: u32) -> Vec<u8> {
    let (last, rsvd_ulp) = (true, Control::new(opcode).to_byte());
    let (rsvd_ulp32, qn, msn, mo) = (stag.0, Qn::SEND, Msn(msn), 0);
    fpdu(DdpHeader::Untagged { last, rsvd_ulp, rsvd_ulp32, qn, msn, mo }, b"x")
}

/// Takes all free memory for another protection domain, and fills it with other bytes.
fn take_all(net: &Net) -> Vec<Mr> {
    let device = net.us.device();
    let pd = device.alloc_pd().unwrap();
    let mut all = Vec::new();
    while let Ok(mr) = device.alloc_mr(pd, 512, Access::LOCAL_WRITE) {
        mr.write(0, &[0xaa; 512]);
        all.push(mr);
    }
    assert!(!all.is_empty());
    all
}

fn overlaps(all: &[Mr], off: usize, len: usize) -> bool {
    all.iter().any(|m| m.info().off < off + len && off < m.info().off + m.len())
}

/// The peer acknowledges nothing while the application gives the memory back and another
/// application tries to take it. A retransmission carries the bytes of the first transmission.
#[test]
fn test_memory_is_not_reused_while_it_may_be_retransmitted() {
    const LEN: usize = 1000;
    let (eal, _turn) = eal();
    for (read, invalidate, reset) in [
        (true, false, false),
        (true, true, false),
        (false, false, false),
        (false, true, false),
        (false, false, true),
    ] {
        let what = format!("read {read}, invalidated {invalidate}, reset {reset}");
        let mut net = Net::with(&eal, |c| (c.memory, c.max_mrs) = (64 << 10, 1024));
        let events = listen(&mut net, PORT, |_| {});
        let mut honest = Honest::new(&mut net, PORT, &events);
        // The accepting side sends only after the peer's first FPDU.
        honest.exchange(&mut net);
        let Honest { conn, end, startup, .. } = honest;
        let access = Access::REMOTE_READ.with(Access::REMOTE_INVALIDATE);
        let mr = net.us.device().alloc_mr_for(&end.qp, LEN, access).unwrap();
        let secret: Vec<u8> = (0..LEN).map(|i| (i * 11) as u8).collect();
        mr.write(0, &secret);
        let (off, stag) = (mr.info().off, mr.stag());
        end.post_recv(1, 0, 64);
        net.settle();
        // From here on the peer hears nothing of what we send.
        net.peer.deaf = true;
        if read {
            net.peer.send(conn, &read_request(1, &mr, LEN as u32));
        } else {
            let sges = [mr.sge(0, LEN)];
            end.qp.post_send(&SendWr::send(9, &sges)).unwrap();
        }
        net.settle();
        if invalidate {
            net.peer.send(conn, &send_of_kind(Opcode::SEND_INV, stag, 2));
            net.settle();
            let done = end.completions();
            assert!(matches!(done[..], [c] if c.invalidated == Some(stag)), "{what}: {done:?}");
        }
        drop(mr);
        net.settle();
        let taken = take_all(&net);
        // A Read Response has a copy of the bytes; a Send needs the region until its ACK.
        assert_eq!(overlaps(&taken, off, LEN), read, "{what}");
        let draining = net.us.hub().registry().draining();
        assert_eq!(draining, usize::from(!read), "{what}");
        if reset {
            net.peer.stack.abort(conn);
            net.settle();
            net.peer.deaf = false;
            assert!(matches!(net.event(&events), CmEvent::Disconnected { .. }), "{what}");
        } else {
            net.peer.deaf = false;
            let got = net.until("the payload", |n| {
                let stream = &n.peer.got(conn)[startup..];
                (stream.len() > LEN).then(|| fpdus(stream))
            });
            assert_eq!(got.len(), 2, "{what}");
            assert!(got[1].1 == secret, "{what}: other bytes were sent");
            net.pass(50 * MS);
        }
        // Now the memory is free.
        net.settle();
        drop(taken);
        net.settle();
        let taken = take_all(&net);
        assert!(overlaps(&taken, off, LEN), "{what}: the memory did not come back");
        assert_eq!(net.us.hub().registry().draining(), 0, "{what}");
    }
}

#[test]
fn test_queue_pair_in_use_is_refused_for_second_connection() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let device = net.us.device().clone();
    let mut honest = Honest::new(&mut net, PORT, &events);
    let in_use = honest.end.qp.clone();
    // The application uses the queue pair of a connection for another connection.
    let queue = EventQueue::new(None);
    let again = device.connect((PEER, 99).into(), ConnectParams::new(in_use.clone()), &queue);
    assert_eq!(again, Err(DeviceError::QpInUse));
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b"hello"));
    let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
    assert_eq!(device.accept(id, AcceptParams::new(in_use.clone())), Err(DeviceError::QpInUse));
    honest.exchange(&mut net);
    // The application gives another queue pair to a connection that has one.
    let other = End::new(&net.us);
    device.accept(honest.id, AcceptParams::new(other.qp.clone())).unwrap();
    device.reject(honest.id, b"no".to_vec()).unwrap();
    net.settle();
    assert_eq!((events.poll(), other.completions()), (None, vec![]));
    honest.exchange(&mut net);
    // The request still waits, and the other queue pair is free for it.
    device.accept(id, AcceptParams::new(other.qp.clone())).unwrap();
    let established = net.event(&events);
    assert!(
        matches!(established, CmEvent::Established { id: i, qpn, .. }
            if i == id && qpn == other.qp.qpn()),
        "{established:?}"
    );
    // A queue pair whose connect failed can try again.
    let end = End::new(&net.us);
    end.post_recv(1, 0, 100);
    let id = end.connect(&net.us, 98, &queue);
    let twice = device.connect((PEER, 98).into(), ConnectParams::new(end.qp.clone()), &queue);
    assert_eq!(twice, Err(DeviceError::QpInUse));
    let CmEvent::ConnectError { id: failed, qp, .. } = net.event(&queue) else { panic!("refused") };
    assert_eq!((failed, qp), (id, QpFate::Free(end.qp.qpn())));
    assert_eq!((queue.poll(), end.completions()), (None, vec![]));
    let mut second = Honest::with(&mut net, PORT, &events, end);
    net.peer.send(second.conn, &fpdu(send_header(1), b"first"));
    net.settle();
    assert!(matches!(second.end.completions()[..], [c] if c.wr_id == 1 && c.status.is_success()));
    second.had(1);
    second.exchange(&mut net);
    // A queue pair has no second connection after an established one.
    net.peer.stack.abort(second.conn);
    assert!(matches!(net.event(&events), CmEvent::Disconnected { .. }));
    let params = ConnectParams::new(second.end.qp.clone());
    assert_eq!(device.connect((PEER, 98).into(), params, &queue), Err(DeviceError::QpDead));
    honest.exchange(&mut net);
}

#[test]
fn test_full_send_queue_of_unsignaled_requests_frees_places_on_post() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    // The accepting side sends only after the peer's first FPDU.
    honest.exchange(&mut net);
    let end = &honest.end;
    let depth = u64::from(end.qp.init().sq_depth);
    let post = |wr_id| end.qp.post_send(&SendWr::send(wr_id, &[]).unsignaled());
    let mut posted = 0;
    for round in 0..5 {
        for _ in 0..depth {
            post(posted).unwrap();
            posted += 1;
        }
        assert_eq!(post(posted), Err(PostError::Full), "round {round}");
        net.settle();
        // The Sends are sent and acknowledged, and no completion reports that.
        net.pass(100 * MS);
        assert_eq!(end.completions(), [], "round {round}");
        assert_eq!(fpdus(&net.peer.got(honest.conn)[honest.startup..]).len() as u64, posted + 1);
        // Without completions the queue pair learns of the free places only when a post finds it
        // full.
        assert_eq!(post(posted), Err(PostError::Full), "round {round}");
        net.settle();
    }
    let last = SendWr::send(posted, &[]);
    end.qp.post_send(&last).unwrap();
    net.pass(100 * MS);
    assert!(matches!(end.completions()[..], [c] if c.wr_id == posted && c.status.is_success()));
}

#[test]
fn test_application_cannot_use_objects_of_another_on_same_rnic() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let config =
        DeviceConfig { memory: 1 << 20, queues: 1 << 20, shared: false, ..DeviceConfig::default() };
    let other = net.us.hub().open(&config).unwrap();
    let ours = net.us.device().clone();
    // Protection domains of another application.
    let pd = honest.end.pd;
    let cq = other.create_cq(16, None).unwrap();
    let error = DeviceError::ForeignPd(pd);
    assert_eq!(other.create_qp(pd, QpInit::new(cq)).err(), Some(error.clone()));
    assert_eq!(other.alloc_mr(pd, 64, Access::REMOTE_READ).err(), Some(error.clone()));
    let region = honest.end.mr.region().clone();
    let registered = other.register_mr(pd, &region, (0, 64), 0, Access::REMOTE_READ);
    assert_eq!(registered.err(), Some(error));
    // Requests and listeners of another application.
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b"hello"));
    let CmEvent::ConnectRequest { id, listener, .. } = net.event(&events) else { panic!() };
    let theirs = End::on(&other, 64);
    other.accept(id, AcceptParams::new(theirs.qp.clone())).unwrap();
    other.reject(id, Vec::new()).unwrap();
    other.disconnect(id).unwrap();
    other.unlisten(listener).unwrap();
    other.disconnect(honest.id).unwrap();
    net.settle();
    let end = End::new(&net.us);
    ours.accept(id, AcceptParams::new(end.qp.clone())).unwrap();
    let established = net.event(&events);
    assert!(
        matches!(established, CmEvent::Established { id: i, .. } if i == id),
        "{established:?}"
    );
    honest.exchange(&mut net);
    // STags of another application, in work requests of its own.
    let theirs_events = listen_on(&mut net, &other, 81, |_| {});
    for op in 0..3 {
        let theirs = End::on(&other, 64);
        let mut bad = Honest::on(&mut net, &other, 81, &theirs_events, theirs);
        bad.exchange(&mut net);
        let foreign = [honest.end.mr.sge(0, 64)];
        let own = &bad.end.mr;
        match op {
            0 => bad.end.qp.post_send(&SendWr::send(1, &foreign)).unwrap(),
            1 => {
                let wr = SendWr::write(1, &foreign, own.stag(), own.to());
                bad.end.qp.post_send(&wr).unwrap();
            }
            _ => {
                bad.end.qp.post_recv(&RecvWr { wr_id: 1, sges: &foreign }).unwrap();
                net.peer.send(bad.conn, &fpdu(send_header(2), &[0x55; 64]));
            }
        }
        net.settle();
        let done = bad.end.completions();
        assert!(
            matches!(done[..], [c] if c.wr_id == 1 && c.status == CqeStatus::LocalProtection),
            "{op}: {done:?}"
        );
        net.peer.stack.abort(bad.conn);
        let ended = net.event(&theirs_events);
        assert!(matches!(ended, CmEvent::Disconnected { .. }), "{ended:?}");
        // No byte of the request was sent, and no byte written.
        let sent = fpdus(&net.peer.got(bad.conn)[bad.startup..]);
        assert!(
            sent[1..].iter().all(|f| matches!(f.0, DdpHeader::Untagged { qn: Qn::TERMINATE, .. }))
        );
        let mut seen = [0; 64];
        honest.end.mr.read(0, &mut seen);
        assert_ne!(seen, [0x55; 64]);
        honest.exchange(&mut net);
    }
    assert_eq!(events.poll(), None);
}

#[test]
fn test_completion_queue_overflow_ends_only_its_queue_pair() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let small = End::on(&net.us.device().clone(), 4);
    let bad = Honest::with(&mut net, PORT, &events, small);
    for wr_id in 0..10 {
        bad.end.post_recv(wr_id, 0, 64);
    }
    for msn in 1..=4 {
        net.peer.send(bad.conn, &fpdu(send_header(msn), b"x"));
    }
    net.settle();
    assert_eq!((bad.end.cq.check(), events.poll()), (Ok(()), None), "just full");
    net.peer.send(bad.conn, &fpdu(send_header(5), b"x"));
    let CmEvent::Disconnected { id, reason, .. } = net.event(&events) else { panic!("the end") };
    assert_eq!(id, bad.id);
    assert!(matches!(reason, DisconnectReason::Tcp(_)), "{reason}");
    net.settle();
    assert!(net.peer.says(bad.conn, ConnEvent::Reset));
    assert_eq!(bad.end.cq.check(), Err(CqOverflow));
    assert!(net.worker().worker.cq_overflows > 0);
    let done = bad.end.completions();
    assert!(done.iter().map(|c| c.wr_id).eq(0..4), "what had room is there: {done:?}");
    assert!(bad.end.qp.is_dead());
    assert_eq!(honest.end.cq.check(), Ok(()));
    honest.exchange(&mut net);
}

#[test]
fn test_queue_armed_for_solicited_wakes_on_solicited_events_and_failures() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let sleeper = Sleeper::with_fd().unwrap();
    let device = net.us.device().clone();
    let mut end = End::new(&net.us);
    end.cq = device.create_cq(64, Some(sleeper.waker())).unwrap();
    end.qp = device.create_qp(end.pd, QpInit::new(end.cq.clone()).depths(16, 16)).unwrap();
    let bad = Honest::with(&mut net, PORT, &events, end);
    for wr_id in 0..8 {
        bad.end.post_recv(wr_id, 0, 64);
    }
    let woken = || {
        let start = Instant::now();
        sleeper.sleep(Duration::from_millis(50), || false);
        start.elapsed() < Duration::from_millis(40)
    };
    let solicited = |msn| send_of_kind(Opcode::SEND_SE, Stag(0), msn);
    net.peer.send(bad.conn, &solicited(1));
    net.settle();
    assert!(!woken(), "not armed");
    bad.end.cq.arm(Arm::Solicited);
    net.peer.send(bad.conn, &fpdu(send_header(2), b"x"));
    net.settle();
    assert!(!woken(), "not solicited");
    net.peer.send(bad.conn, &solicited(3));
    net.settle();
    assert!(woken(), "solicited");
    net.peer.send(bad.conn, &solicited(4));
    net.settle();
    assert!(!woken(), "armed once");
    let done = bad.end.completions();
    assert!(done.iter().map(|c| c.solicited).eq([true, false, true, true]), "{done:?}");
    bad.end.cq.arm(Arm::Solicited);
    net.peer.stack.abort(bad.conn);
    net.settle();
    assert!(woken(), "flushed");
    assert!(bad.end.completions().iter().all(|c| c.status == CqeStatus::Flushed));
}
