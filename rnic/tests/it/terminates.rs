//! Terminates: errors that the RNIC must not answer, and FPDUs that it does not send after the
//! peer's Terminate.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use crate::sim::{LinkConfig, PD, PORT, Pace, Pair, TO_BASE};
use heddle_base::StreamPos;
use heddle_iwarp::{QpConfig, QpEvent, Role, Side};
use heddle_rnic::{Event, FpduMode};
use heddle_types::{Access, ConnId, ConnectedState, SendWr, Sge, Stag, TermCode};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Host 1 in FPDU mode, as a responder; host 0 sends arbitrary bytes.
struct Run {
    pair: Pair,
    conns: [ConnId; 2],
}

impl Run {
    fn start() -> Run {
        let mut pair = Pair::new(1, LinkConfig::default(), 64);
        pair.hosts[1].rnic.listen(None, PORT, 8).unwrap();
        let a = pair.hosts[0].rnic.connect(pair.now, ([10, 0, 0, 2], PORT).into()).unwrap();
        let mut b = None;
        pair.run(Duration::from_secs(1), |p| {
            for e in p.hosts[1].events.drain(..) {
                if let Event::Accepted { conn, .. } = e {
                    b = Some(conn);
                }
            }
            b.is_some()
        });
        let b = b.unwrap();
        let qp = QpConfig { pd: PD, role: Role::Responder, ..QpConfig::default() };
        let h = &mut pair.hosts[1];
        h.rnic.enter_fpdu_mode(b, FpduMode { startup_len: 0, reply: Vec::new(), qp }).unwrap();
        h.rnic.start(&h.mem, b);
        Run { pair, conns: [a, b] }
    }

    /// Sends `bytes` from host 0. Returns the events of host 1's queue pair, and all bytes that it
    /// has sent when its FIN comes.
    fn send(&mut self, bytes: &[u8]) -> (Vec<QpEvent>, Vec<u8>) {
        self.pair.hosts[0].rnic.send_startup(self.conns[0], bytes).unwrap();
        let (mut got, mut closed) = (Vec::new(), false);
        self.pair.run(Duration::from_secs(1), |p| {
            for e in p.hosts[0].events.drain(..) {
                match e {
                    Event::StartupBytes { bytes, .. } => got.extend(bytes),
                    Event::PeerClosed { .. } => closed = true,
                    _ => {}
                }
            }
            closed
        });
        let told = self.pair.hosts[1].events.drain(..).filter_map(|e| match e {
            Event::Qp { event, .. } => Some(event),
            _ => None,
        });
        (told.collect(), got)
    }
}

/// Returns an FPDU with the CRC that `ulpdu` should have, and with some bits of one byte `flip`ped.
fn fpdu(ulpdu: &[u8], flip: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    heddle_iwarp::mpa::fpdu::append(ulpdu, true, &mut bytes).unwrap();
    bytes[4] ^= flip;
    bytes
}

/// A Write of zero bytes: valid, whatever STag it names.
const NOTHING: [u8; 14] = [0xc1, 0x40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn test_responder_ends_in_silence_when_its_first_fpdu_is_damaged() {
    let mut run = Run::start();
    let (told, got) = run.send(&fpdu(&NOTHING, 1));
    assert_eq!(told, [QpEvent::Failed { code: TermCode::new(2, 0, 2) }]);
    assert_eq!(got, [0; 0]);
    // The same damage after a good FPDU gets an answer.
    let mut run = Run::start();
    let (told, got) = run.send(&[fpdu(&NOTHING, 0), fpdu(&NOTHING, 1)].concat());
    let code = TermCode::new(2, 0, 2);
    assert_eq!(told, [QpEvent::FirstFpdu, QpEvent::Terminated { by: Side::Local, code }]);
    assert_eq!(
        got[2..24],
        [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 2, 0, 0]
    );
}

/// Returns a Terminate of MSN `msn` with code 1 of DDP's tagged errors, which repeats NOTHING.
fn terminate(msn: u8) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, msn, 0, 0, 0, 0];
    ulpdu.extend([0x11, 1, 0xc0, 0, 0, 14]);
    ulpdu.extend(NOTHING);
    fpdu(&ulpdu, 0)
}

#[test]
fn test_terminate_of_the_peer_ends_the_connection_and_is_not_answered() {
    let mut run = Run::start();
    let (told, got) = run.send(&terminate(2));
    assert_eq!(told, [QpEvent::Failed { code: TermCode::new(1, 2, 3) }]);
    assert_eq!(got, [0; 0]);

    let mut run = Run::start();
    let (told, got) = run.send(&terminate(1));
    let code = TermCode::new(1, 1, 1);
    assert_eq!(told, [QpEvent::Terminated { by: Side::Remote, code }]);
    assert_eq!(got, [0; 0]);
    // The owner can still ask for the reason.
    let qp = run.pair.hosts[1].rnic.qp(run.conns[1]).unwrap();
    assert_eq!((qp.state(), qp.tx_end()), (ConnectedState::Error, StreamPos::START));
    let terminate = qp.received_terminate().unwrap();
    assert_eq!((terminate.code, terminate.segment_len), (code, Some(14)));
    assert_eq!(terminate.ddp.unwrap().as_bytes(), NOTHING);
}

/// A slow owner has FPDUs that TCP has not begun to send when the peer's Terminate comes: the RNIC
/// takes them back and flushes their requests, instead of sending them to a peer that drops them.
#[test]
fn test_nothing_new_is_sent_after_the_terminate_of_the_peer() {
    const WRITES: usize = 40;
    let mut p = Pair::new(3, LinkConfig::default(), 1 << 16);
    let [a, _] = p.connect(&QpConfig { pd: PD, ..QpConfig::default() });
    p.pace[0] = Pace { turn: Duration::from_micros(10), frames: 1, ..Pace::default() };
    let mr = p.register(0, 0, 1 << 16, Access::LOCAL_WRITE);
    let sges = [Sge { stag: mr.stag, to: TO_BASE, len: 1000 }];
    for i in 0..WRITES {
        p.hosts[0].post_send(a, &SendWr::write(i as u64, &sges, Stag(7), 0)).unwrap();
    }
    let sent = Rc::new(Cell::new(0));
    let count = sent.clone();
    p.tap = Some(Box::new(move |side, frame| {
        count.set(count.get() + usize::from(side == 0 && frame.len() > 1000));
    }));
    let ended = |p: &Pair| p.hosts[0].events.iter().any(|e| matches!(e, Event::Qp { .. }));
    p.run(Duration::from_secs(1), |p| ended(p));
    let before = sent.get();
    assert!((1..WRITES - 10).contains(&before), "{before} frames before the Terminate");
    p.run(Duration::from_secs(60), |p| {
        p.hosts[0].events.iter().any(|e| matches!(e, Event::Closed { .. }))
    });
    assert_eq!(sent.get(), before, "sent to a peer that has ended the stream");
    let done: Vec<_> = p.hosts[0].completions.iter().map(|c| c.1.wr_id).collect();
    assert_eq!(done, (0..WRITES as u64).collect::<Vec<_>>());
}
