//! A completion queue that both queues of several queue pairs share, while its size changes.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use crate::common::*;
use heddle_verbs::{Access, CmEvent, CqOverflow, Cqe, DeviceError, EventQueue, Queue};

/// Makes two connections whose four queues complete in one completion queue of `depth`.
fn two(net: &mut Net, depth: u32, events: &EventQueue) -> [Honest; 2] {
    let device = net.us.device().clone();
    let all = Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
    let cq = device.create_cq(depth, None).unwrap();
    [(); 2].map(|()| {
        let pd = device.alloc_pd().unwrap();
        let init = heddle_verbs::QpInit::new(cq.clone()).depths(16, 16);
        let qp = device.create_qp(pd, init).unwrap();
        let end = End { pd, cq: cq.clone(), qp, mr: region_on(&device, pd, all) };
        Honest::with(net, PORT, events, end)
    })
}

/// Sends one message each way on both connections: four completions.
fn round(net: &mut Net, both: &[Honest; 2], n: u32) {
    for h in both {
        h.end.post_recv(u64::from(n), 0, 64);
        net.peer.send(h.conn, &fpdu(send_header(n), &[n as u8; 32]));
        h.end.post_send(u64::from(n), 64, 32);
    }
    net.pass(60 * MS);
}

fn assert_round(all: &[Cqe], both: &[Honest; 2], n: u32) {
    for h in both {
        for queue in [Queue::Sq, Queue::Rq] {
            let mine = |c: &&Cqe| {
                (c.qpn, c.queue, c.wr_id) == (h.end.qp.qpn(), queue, n.into())
                    && c.status.is_success()
            };
            assert_eq!(all.iter().filter(mine).count(), 1, "{queue:?} of round {n}: {all:?}");
        }
    }
}

#[test]
fn test_queue_pairs_share_completion_queue_while_it_is_resized() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let both = two(&mut net, 16, &events);
    let cq = both[0].end.cq.clone();
    let device = net.us.device().clone();
    let mut seen: Vec<Cqe> = Vec::new();
    for n in 1..=20 {
        let depth = [64, 8, 4, 16][n as usize % 4];
        // The program reads earlier completions from their old place.
        match device.resize_cq(&cq, depth) {
            Ok(()) => assert_eq!(cq.depth(), depth),
            Err(e) => assert!(matches!(e, DeviceError::CqTooSmall { held: 4.., .. }), "{n}: {e}"),
        }
        if n % 3 == 0 {
            seen.extend(std::iter::from_fn(|| cq.poll()));
        }
        round(&mut net, &both, n);
        while cq.poll_batch(3, |c| seen.push(c)) > 0 {}
        assert_eq!(seen.len(), 4 * n as usize);
        assert_round(&seen[4 * (n as usize - 1)..], &both, n);
    }
    assert!(cq.check().is_ok());
}

#[test]
fn test_completion_queue_grows_but_never_shrinks_below_held_completions() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let both = two(&mut net, 4, &events);
    let cq = both[0].end.cq.clone();
    let device = net.us.device().clone();
    round(&mut net, &both, 1);
    let refused = device.resize_cq(&cq, 2).err();
    assert_eq!(refused, Some(DeviceError::CqTooSmall { held: 4, depth: 2 }));
    device.resize_cq(&cq, 8).unwrap();
    // A second resize during the first would leave completions in three places.
    assert_eq!(device.resize_cq(&cq, 16).err(), Some(DeviceError::CqResizing));
    net.settle();
    round(&mut net, &both, 2);
    let all = both[0].end.completions();
    assert_eq!(all.len(), 8);
    assert_round(&all[..4], &both, 1);
    assert_round(&all[4..], &both, 2);
    assert!(cq.check().is_ok());
}

#[test]
fn test_shrunk_completion_queue_overflows_at_its_new_depth() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let both = two(&mut net, 64, &events);
    let device = net.us.device().clone();
    device.resize_cq(&both[0].end.cq, 4).unwrap();
    net.settle();
    round(&mut net, &both, 1);
    assert!(both[0].end.cq.check().is_ok());
    round(&mut net, &both, 2);
    assert_eq!(both[0].end.cq.check(), Err(CqOverflow));
    let ended = net.event(&events);
    assert!(matches!(ended, CmEvent::Disconnected { .. }), "{ended:?}");
}
