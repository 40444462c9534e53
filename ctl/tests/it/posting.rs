//! Receives that an application posts faster than a worker takes them.

use crate::common::*;
use heddle_verbs::{CmEvent, QpInit};

/// More receives than a worker takes in three turns.
const RECEIVES: u32 = 250;
const LEN: usize = 8;

/// The peer learns of the receives by another way than this connection, and its messages come with
/// the next turn.
#[test]
fn test_message_uses_receives_that_worker_has_not_fetched_yet() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut end = End::on(net.us.device(), 512);
    let init = QpInit::new(end.cq.clone()).depths(16, RECEIVES);
    end.qp = net.us.device().create_qp(end.pd, init).unwrap();
    let honest = Honest::with(&mut net, PORT, &events, end);
    for n in 0..RECEIVES {
        honest.end.post_recv(n.into(), n as usize * LEN, LEN);
    }
    let message = |msn: u32| fpdu(send_header(msn), &[msn as u8; LEN]);
    let all: Vec<u8> = (1..=RECEIVES).flat_map(message).collect();
    net.peer.send(honest.conn, &all);
    net.settle();
    let done = honest.end.completions();
    assert!(done.iter().all(|c| c.status.is_success()), "{:?}", done.last());
    let ids: Vec<_> = done.iter().map(|c| c.wr_id).collect();
    assert_eq!(ids, (0..u64::from(RECEIVES)).collect::<Vec<_>>());
    let mut got = vec![0; RECEIVES as usize * LEN];
    honest.end.mr.read(0, &mut got);
    assert!(got.chunks(LEN).zip(1..=RECEIVES).all(|(got, msn)| got == [msn as u8; LEN]));
    // A receive that was never posted still does not exist.
    net.peer.send(honest.conn, &message(RECEIVES + 1));
    let ended = net.event(&events);
    assert!(matches!(ended, CmEvent::Disconnected { .. }), "{ended:?}");
}
