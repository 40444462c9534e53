//! FPDUs in a stream, with and without markers: the queue pair finds them as the stream comes in
//! pieces, and the reader of captures finds them in the whole stream. Both find the same FPDUs, and
//! the same faulty one.

use heddle_base::StreamPos;
use heddle_iwarp::mpa::decode::{CrcVerdict, Framing, decode};
use heddle_iwarp::{QpConfig, QpContext};
use heddle_types::{ConnectedState, RecvWr};

use crate::Seeds;
use crate::stream::{PD, Place, QPN, offset, record, records, what};

/// Bits of the first byte: CRC, markers, and the length of the pieces.
const CRC: u8 = 1;
const MARKERS: u8 = 2;
const PIECE: u32 = 2;

/// The position of the peer's first FPDU in its stream: after a Reply.
const START: StreamPos = StreamPos(25);

pub fn run(data: &[u8]) -> bool {
    let Some((control, rest)) = data.split_first() else { return false };
    let place = Place::new();
    let framing = Framing { crc: control & CRC != 0, markers: control & MARKERS != 0 };
    let config = QpConfig {
        qpn: QPN,
        pd: PD,
        crc: framing.crc,
        recv_markers: framing.markers,
        rx_start: START,
        ..QpConfig::default()
    };
    let mut qp = QpContext::new(&config);
    for n in 0..4 {
        qp.post_recv(&RecvWr::new(n, &[place.sge(n * 512, 512)])).expect("room for it");
    }
    let mut wire = Vec::new();
    for (what, bytes) in records(rest) {
        wire.extend(place.on_wire(what, bytes, framing, wire.len() as u64));
    }
    // The part of the stream that has arrived at the queue pair, and how much of it the queue pair
    // has taken.
    let piece = usize::from(control >> PIECE) * 7 + 1;
    let mut taken = 0;
    for end in (piece..wire.len()).step_by(piece).chain([wire.len()]) {
        taken += qp.handle_stream(&place.env(), &wire[taken..end]);
        assert!(taken <= end);
        assert_eq!(offset(&config, qp.rx_next()), taken as u64);
    }
    let c = qp.counters();
    let mut found = decode(&wire, framing);
    let good = found.by_ref().take(usize::try_from(c.rx_fpdus).expect("few")).fold(0, |n, d| {
        d.headers().expect("the queue pair found it good");
        n + d.wire_len
    });
    let next = found.next();
    if qp.state() == ConnectedState::Rts {
        assert!(next.is_none(), "an FPDU that was not taken");
        assert_eq!((good, found.rest().len()), (taken, wire.len() - taken));
    } else if c.rx_terminates == 0 {
        let bad = next.expect("what ended the stream");
        let crc = matches!(bad.crc, CrcVerdict::Bad { .. });
        assert_eq!(c.err_crc, u64::from(crc));
        assert_eq!(c.err_marker, u64::from(!crc && bad.marker.is_err()));
        let refused = c.err_short + c.err_ddp_version + c.err_queue + c.err_rdmap_version;
        assert!(refused == 0 || bad.headers().is_err());
    }
    place.check();
    c.rx_fpdus > 0
}

pub fn seeds() -> Seeds {
    // Whole Sends, with MSN 1 to 3.
    let send = |msn: u8, len: usize| {
        let mut s = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0];
        s.resize(18 + len, msn);
        record(what::FRAMED, &s)
    };
    let stream = [send(1, 200), send(2, 0), send(3, 230), send(4, 3)].concat();
    let mut damaged = [send(1, 200), send(2, 200)].concat();
    damaged.extend({
        let mut last = send(3, 160);
        last[0] |= what::DAMAGED;
        last
    });
    let mut all = Seeds::new();
    for (name, control) in
        [("plain", 0), ("crc", CRC), ("markers", MARKERS), ("both", CRC | MARKERS)]
    {
        all.push((name.into(), [&[control | 63 << PIECE], &stream[..]].concat()));
        all.push((format!("{name}-in-bytes"), [&[control], &stream[..]].concat()));
        all.push((format!("{name}-damaged"), [&[control | 9 << PIECE], &damaged[..]].concat()));
    }
    all
}
