//! FPDUs placed ahead of gaps: whatever comes early, in any order, a queue pair ends in the same
//! state as another one that receives the same stream in order. Both complete the same requests in
//! the same way, have the same counts and raise the same events, and neither touches memory that it
//! may not touch.

use heddle_iwarp::mpa::decode::Framing;
use heddle_iwarp::{PlacedFpdu, QpConfig, QpContext, QpEvent};
use heddle_types::{ConnectedState, Cqe, RecvWr, SendWr};

use crate::Seeds;
use crate::stream::{BASE, PD, Peer, Place, QPN, framed, record, records, transmit, what};

const FRAMING: Framing = Framing { crc: true, markers: true };

/// The number of receive buffers, and their size.
const BUFFERS: u64 = 4;
const BUFFER: u32 = 512;

fn config() -> QpConfig {
    QpConfig { qpn: QPN, pd: PD, recv_markers: true, ird: 4, ord: 4, ..QpConfig::default() }
}

/// Makes a queue pair with receives posted and Reads in flight.
fn start(place: &Place) -> (QpContext, Vec<u8>) {
    let mut qp = QpContext::new(&config());
    for n in 0..BUFFERS {
        let sges = [place.sge(n * u64::from(BUFFER), BUFFER)];
        qp.post_recv(&RecvWr::new(n, &sges)).expect("room for it");
    }
    for n in 0..2 {
        let sink = [place.sge(2048 + n * 600, 600)];
        qp.post_send(&SendWr::read(100 + n, &sink, place.stag, BASE)).expect("room for it");
    }
    let sent = transmit(&mut qp, place, 1442);
    (qp, sent)
}

/// Returns the visible results of a queue pair.
fn seen(qp: &mut QpContext) -> (Vec<Cqe>, Vec<QpEvent>) {
    let completions = std::iter::from_fn(|| qp.poll_completion()).collect();
    (completions, std::iter::from_fn(|| qp.poll_event()).collect())
}

pub fn run(data: &[u8]) -> bool {
    let place = Place::new();
    // Each record, with its place in the stream.
    let (mut wire, mut parts) = (Vec::new(), Vec::new());
    // True if all records are Sends. Each Send has bytes of its own then, so their order does not
    // matter.
    let mut sends = true;
    for (what, bytes) in records(data) {
        let at = wire.len();
        wire.extend(place.on_wire(what, bytes, FRAMING, at as u64));
        // Bytes that belong to no FPDU have no known beginning.
        let known = what & what::FRAMED != 0 && at.is_multiple_of(4);
        sends &= known && matches!(bytes, [_, opcode, ..] if (3..7).contains(&(opcode & 15)));
        parts.push((at..wire.len(), known && what & what::EARLY != 0));
    }
    let (mut qp, _) = start(&place);
    let first = qp.rx_next();
    // The records arrive in reverse order.
    let mut placed: Vec<Option<PlacedFpdu>> = vec![None; parts.len()];
    for (i, (range, early)) in parts.iter().enumerate().skip(1).rev() {
        let stream = &wire[range.clone()];
        let pos = first + range.start as u64;
        if *early {
            let before = place.mem.snapshot();
            placed[i] = qp.place_early(&place.env(), pos, &stream, None);
            match &placed[i] {
                Some(p) => assert!(p.len() as usize <= stream.len()),
                None => assert!(before == place.mem.snapshot(), "placed, and not said"),
            }
            // Half an FPDU is no FPDU.
            assert_eq!(qp.place_early(&place.env(), pos, &&stream[..stream.len() / 2], None), None);
        }
    }
    assert_eq!(seen(&mut qp), Default::default(), "nothing happens before its turn");
    let mut held = Vec::new();
    for ((range, _), placed) in parts.iter().zip(&placed) {
        match placed {
            Some(p) if held.is_empty() => {
                qp.deliver(&place.env(), first + range.start as u64, p);
                held.extend(&wire[range.start + p.len() as usize..range.end]);
            }
            // The bytes arrive as the rest of an FPDU that began before them.
            _ => held.extend(&wire[range.clone()]),
        }
        let taken = qp.handle_stream(&place.env(), &held[..]);
        held.drain(..taken);
    }
    let reference = Place::new();
    let (mut other, _) = start(&reference);
    let taken = other.handle_stream(&reference.env(), &wire[..]);
    assert_eq!(wire.len() - taken, held.len());
    assert_eq!(seen(&mut qp), seen(&mut other));
    assert_eq!((qp.state(), qp.rx_next()), (other.state(), other.rx_next()));
    assert_eq!(qp.counters(), other.counters());
    if sends && qp.state() == ConnectedState::Rts {
        assert!(place.mem.snapshot() == reference.mem.snapshot());
    }
    place.check();
    reference.check();
    placed.iter().any(Option::is_some)
}

pub fn seeds() -> Seeds {
    let seed = |flags: &[u8], post: fn(&mut QpContext, &Place)| {
        let place = Place::new();
        let (mut end, sent) = start(&place);
        let mut peer = Peer::of(&config(), |_| {});
        peer.hear(&sent);
        post(&mut peer.qp, &peer.place);
        let mut all = Vec::new();
        let mut offset = 0;
        for (i, segment) in peer.say().iter().enumerate() {
            all.extend(record(what::FRAMED | flags[i % flags.len()], segment));
            let wire = framed(segment, FRAMING, offset);
            offset += wire.len() as u64;
            end.handle_stream(&place.env(), &wire[..]);
        }
        assert!(end.state() == ConnectedState::Rts);
        all
    };
    let early = what::EARLY;
    vec![
        ("responses".into(), seed(&[0, early], |_, _| {})),
        (
            "writes".into(),
            seed(&[0, early, early], |qp, p| {
                qp.post_send(&SendWr::write(1, &[p.sge(0, 900)], p.stag, BASE)).expect("room");
            }),
        ),
        (
            "sends".into(),
            seed(&[0, 0, early], |qp, p| {
                for n in 0..4 {
                    qp.post_send(&SendWr::send(n, &[p.sge(0, 400)])).expect("room");
                }
            }),
        ),
        (
            "send-inv".into(),
            seed(&[0, early], |qp, p| {
                let wr = SendWr::send_inline(1, b"bye").invalidating(p.offered);
                qp.post_send(&wr).expect("room");
                qp.post_send(&SendWr::send_inline(2, b"after it")).expect("room");
            }),
        ),
        (
            "refused".into(),
            seed(&[0, early], |qp, p| {
                qp.post_send(&SendWr::write_inline(1, b"lost", p.stag, BASE)).expect("room");
                qp.post_send(&SendWr::send_inline(2, b"found")).expect("room");
            }),
        ),
    ]
}
