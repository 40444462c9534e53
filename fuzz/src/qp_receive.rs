//! A queue pair, in either role, whose peer sends anything: the queue pair does not panic, touches
//! nothing outside the granted region, and completes every work request once.

use heddle_base::StreamPos;
use heddle_iwarp::mpa::decode::Framing;
use heddle_iwarp::{QpConfig, QpContext, QpCounters, Role};
use heddle_types::{
    RecvWr, SendWr, Stag,
    mpa::{Rtr, RtrConfig, RtrSet},
};

use crate::Seeds;
use crate::stream::{BASE, PD, Peer, Place, QPN, framed, offset, record, records, transmit, what};

/// Bits of the first byte.
mod control {
    pub(super) const CRC: u8 = 1;
    /// Reads in flight, 0 to 3.
    pub(super) const READS: u32 = 1;
    pub(super) const RECV_MARKERS: u8 = 8;
    pub(super) const RESPONDER: u8 = 16;
    /// The peer-to-peer model, and which of its first messages.
    pub(super) const RTR: u32 = 5;
    pub(super) const SEND_MARKERS: u8 = 128;
}

/// Bits of the second byte.
mod more {
    /// Atomic operations in flight, 0 to 3.
    pub(super) const ATOMICS: u8 = 3;
    /// The application closes the connection at the end.
    pub(super) const CLOSE: u8 = 4;
    /// The peer's stream ends before the TCP connection is aborted.
    pub(super) const PEER_CLOSES: u8 = 8;
    pub(super) const START: u8 = 16;
}

/// The number of receive buffers, and their size.
const BUFFERS: u64 = 4;
const BUFFER: u32 = 512;

fn config(control: u8, more: u8) -> QpConfig {
    let bit = |b: u8| control & b != 0;
    let role = if bit(control::RESPONDER) { Role::Responder } else { Role::Initiator };
    let form = match control >> control::RTR & 3 {
        0 => None,
        1 => Some(Rtr::Write),
        2 => Some(Rtr::Read),
        _ => Some(Rtr::Send),
    };
    let rtr = match (form, role) {
        (None, _) => RtrConfig::None,
        (Some(rtr), Role::Initiator) => RtrConfig::Send(rtr),
        (Some(rtr), Role::Responder) => RtrConfig::Expect(RtrSet::of(rtr)),
    };
    QpConfig {
        qpn: QPN,
        pd: PD,
        crc: bit(control::CRC),
        ird: 2,
        ord: 2,
        send_markers: bit(control::SEND_MARKERS),
        recv_markers: bit(control::RECV_MARKERS),
        rx_start: StreamPos(if more & more::START != 0 { 37 } else { 0 }),
        role,
        rtr,
        ..QpConfig::default()
    }
}

/// A queue pair at work, with its requests and completions.
struct End {
    qp: QpContext,
    posted: Vec<u64>,
    completed: Vec<u64>,
}

impl End {
    fn new(place: &Place, config: &QpConfig, control: u8, more: u8) -> End {
        let mut qp = QpContext::new(config);
        let mut posted = Vec::new();
        for n in 0..BUFFERS {
            let sges = [place.sge(n * u64::from(BUFFER), BUFFER)];
            qp.post_recv(&RecvWr::new(n, &sges)).expect("room for it");
            posted.push(n);
        }
        // Reads in flight, which responses can answer.
        for n in 0..u64::from(control >> control::READS & 3) {
            let sink = [place.sge(2048 + n * 600, 600)];
            qp.post_send(&SendWr::read(100 + n, &sink, place.stag, BASE)).expect("room for it");
            posted.push(100 + n);
        }
        for n in 0..u64::from(more & more::ATOMICS) {
            let sink = [place.sge(3900 + n * 8, 8)];
            qp.post_send(&SendWr::fetch_add(200 + n, &sink, place.stag, BASE, n))
                .expect("room for it");
            posted.push(200 + n);
        }
        End { qp, posted, completed: Vec::new() }
    }

    /// Sends everything that is due, and takes the completions.
    fn turn(&mut self, place: &Place) -> Vec<u8> {
        let mut sent = Vec::new();
        for mulpdu in [128, 1442] {
            sent.extend(transmit(&mut self.qp, place, mulpdu));
        }
        while self.qp.poll_event().is_some() {}
        self.completed.extend(std::iter::from_fn(|| self.qp.poll_completion()).map(|c| c.wr_id));
        sent
    }
}

pub fn run(data: &[u8]) -> bool {
    drive(data).rx_fpdus > 0
}

fn drive(data: &[u8]) -> QpCounters {
    let [control, more, rest @ ..] = data else { return QpCounters::default() };
    let (place, config) = (Place::new(), config(*control, *more));
    let framing = Framing { crc: config.crc, markers: config.recv_markers };
    let mut end = End::new(&place, &config, *control, *more);
    end.turn(&place);
    let mut stream: Vec<u8> = Vec::new();
    for (what, bytes) in records(rest) {
        let pos = end.qp.rx_next() + stream.len() as u64;
        let wire = place.on_wire(what, bytes, framing, offset(&config, pos));
        // The queue pair cannot tell this record from one ahead of a gap: it may place the record
        // early, and the record still comes in order. The target `early` checks the result.
        if what & what::EARLY != 0 && end.qp.find_fpdu(pos, &&wire[..]).is_some() {
            end.qp.place_early(&place.env(), pos, &&wire[..], None);
        }
        stream.extend(wire);
        let taken = end.qp.handle_stream(&place.env(), &stream[..]);
        stream.drain(..taken);
        if what & what::TURN != 0 {
            end.turn(&place);
        }
    }
    if more & more::CLOSE != 0 {
        end.qp.close();
        end.turn(&place);
    }
    if more & more::PEER_CLOSES != 0 {
        end.qp.handle_peer_closed(!stream.is_empty());
        end.turn(&place);
    }
    end.qp.abort();
    end.turn(&place);
    end.completed.sort_unstable();
    assert_eq!(end.completed, end.posted);
    place.check();
    end.qp.counters()
}

/// Posts the requests that a peer sends.
type Post = fn(&mut QpContext, &Place);

/// Makes an input from a peer that keeps to the rules and sends the posted requests.
fn seed(control: u8, more: u8, post: Post) -> Vec<u8> {
    let (place, config) = (Place::new(), config(control, more));
    let framing = Framing { crc: config.crc, markers: config.recv_markers };
    let mut end = End::new(&place, &config, control, more);
    let mut peer = Peer::of(&config, |c| {
        if let (Role::Initiator, RtrConfig::Expect(set)) = (c.role, c.rtr) {
            let forms = [Rtr::Write, Rtr::Read, Rtr::Send];
            c.rtr = RtrConfig::Send(*forms.iter().find(|f| set.has(**f)).expect("one of them"));
        } else if let RtrConfig::Send(rtr) = c.rtr {
            c.rtr = RtrConfig::Expect(RtrSet::of(rtr));
        }
        (c.tx_start, c.rx_start) = (c.rx_start, c.tx_start);
    });
    post(&mut peer.qp, &peer.place);
    let mut all = vec![control, more];
    loop {
        peer.hear(&end.turn(&place));
        let segments = peer.say();
        if segments.is_empty() {
            break;
        }
        for segment in segments {
            all.extend(record(what::FRAMED | what::TURN, &segment));
            let wire = framed(&segment, framing, offset(&config, end.qp.rx_next()));
            let taken = end.qp.handle_stream(&place.env(), &wire[..]);
            assert_eq!(taken, wire.len());
            peer.hear(&end.turn(&place));
        }
    }
    all
}

pub fn seeds() -> Seeds {
    use control::{CRC, READS, RECV_MARKERS, RESPONDER, RTR, SEND_MARKERS};
    let all: [(&str, u8, u8, Post); 12] = [
        ("writes", CRC | RESPONDER, 0, |qp, p| {
            post(qp, &SendWr::write(1, &[p.sge(0, 300)], p.stag, BASE + 2048));
            post(qp, &SendWr::write_inline(2, b"some bytes", p.stag, BASE + 100));
        }),
        ("sends", CRC | RESPONDER, 0, |qp, p| {
            post(qp, &SendWr::send(1, &[p.sge(0, 300)]));
            post(qp, &SendWr::send_inline(2, b"se").solicited());
            post(qp, &SendWr::send_inline(3, b"inv").invalidating(p.offered));
            post(qp, &SendWr::send_inline(4, b"").solicited());
        }),
        ("send-se-inv", RESPONDER, 0, |qp, p| {
            post(qp, &SendWr::send_inline(1, b"both").solicited().invalidating(p.offered));
        }),
        ("reads", CRC | RESPONDER, 0, |qp, p| {
            post(qp, &SendWr::read(1, &[p.sge(0, 300)], p.stag, BASE + 500));
            post(qp, &SendWr::read(2, &[], p.stag, BASE));
        }),
        ("atomics", CRC | RESPONDER, 0, |qp, p| {
            post(qp, &SendWr::fetch_add(1, &[p.sge(0, 8)], p.stag, BASE + 8, 1));
            post(qp, &SendWr::compare_swap(2, &[p.sge(8, 8)], p.stag, BASE + 16, 0, 1));
        }),
        ("immediates", CRC | RESPONDER, more::CLOSE | more::PEER_CLOSES, |qp, p| {
            post(qp, &SendWr::immediate(1, 5));
            post(qp, &SendWr::immediate(2, u64::MAX).solicited());
            post(qp, &SendWr::write_immediate(3, &[p.sge(0, 20)], p.stag, BASE, 1));
        }),
        ("responses", CRC | 3 << READS, 3, |_, _| {}),
        ("markers", CRC | RECV_MARKERS | SEND_MARKERS | 1 << READS, more::START, |qp, p| {
            post(qp, &SendWr::write(1, &[p.sge(0, 1200)], p.stag, BASE + 2048));
            post(qp, &SendWr::send(2, &[p.sge(0, 500)]));
        }),
        ("rtr-write", CRC | RESPONDER | 1 << RTR | 1 << READS, 0, |_, _| {}),
        ("rtr-read", CRC | RESPONDER | 2 << RTR, 1, |_, _| {}),
        ("rtr-send", CRC | RESPONDER | 3 << RTR, 0, |qp, _| {
            post(qp, &SendWr::send_inline(1, b"x"))
        }),
        ("rtr-initiator", CRC | 2 << RTR | 1 << READS, 0, |qp, _| {
            post(qp, &SendWr::send_inline(1, b"x"));
        }),
    ];
    let mut seeds: Seeds =
        all.iter().map(|(name, c, m, post)| ((*name).into(), seed(*c, *m, *post))).collect();
    // A Write without a region, which is refused, and a Terminate, which ends the connection.
    let lost = |qp: &mut QpContext, p: &Place| {
        post(qp, &SendWr::send_inline(1, b"found"));
        post(qp, &SendWr::write_inline(2, b"lost", Stag(p.stag.0 ^ 1), BASE));
    };
    seeds.push(("refused".into(), seed(CRC | RESPONDER, 0, lost)));
    seeds
}

fn post(qp: &mut QpContext, wr: &SendWr<'_>) {
    qp.post_send(wr).expect("room for it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_seeds_contain_every_kind_of_message() {
        let mut all = QpCounters::default();
        for (_, bytes) in seeds() {
            all.add(&drive(&bytes));
        }
        let found = [
            all.rx_sends,
            all.rx_read_requests,
            all.rx_read_responses,
            all.rx_immediates,
            all.rx_atomic_requests,
            all.tx_atomic_responses,
            all.rx_atomic_responses,
            all.rx_bytes,
            all.rtr,
            all.err_stag,
            all.tx_terminates,
        ];
        assert!(found.iter().all(|n| *n > 0), "{all:?}");
    }
}
