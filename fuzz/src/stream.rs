//! What the targets that go at a queue pair have in common: memory, records of input, and the peer
//! that makes seeds.

use heddle_base::{Seed, StreamPos};
use heddle_iwarp::ddp::DdpHeader;
use heddle_iwarp::mpa::decode::{Framing, decode};
use heddle_iwarp::mpa::{fpdu, markers};
use heddle_iwarp::rdmap::Opcode;
use heddle_iwarp::testing::TestMemory;
use heddle_iwarp::{Access, MrTable, Pd, QpConfig, QpContext, QpEnv, Qpn, Role, Sge, Stag};

/// Octets of the region, and before and after it.
pub(crate) const SIZE: usize = 4096;
pub(crate) const GUARD: usize = 64;
pub(crate) const FILL: u8 = 0xaa;
/// Its tagged offset; not its address, so that mixing them up shows.
pub(crate) const BASE: u64 = 0x7000_0000_1000;

/// Bits of a record's first octet.
pub(crate) mod what {
    /// It is a DDP segment, to be framed; otherwise octets of the stream.
    pub(crate) const FRAMED: u8 = 1;
    /// It gets an STag that is valid and an offset near the region, which a fuzzer does not guess.
    pub(crate) const AIMED: u8 = 2;
    /// The queue pair may send afterwards.
    pub(crate) const TURN: u8 = 4;
    /// It is placed ahead of its turn.
    pub(crate) const EARLY: u8 = 8;
    /// One bit of it changes after it was framed.
    pub(crate) const DAMAGED: u8 = 16;
}

/// The records of an input: what is to be done, a length, and as many octets as there are of them.
pub(crate) fn records(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [what, len, tail @ ..] = rest else { return None };
        let (octets, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        Some((*what, octets))
    })
}

/// A record as [`records`] reads it.
pub(crate) fn record(what: u8, octets: &[u8]) -> Vec<u8> {
    let len = u8::try_from(octets.len()).expect("a short one");
    [&[what, len], octets].concat()
}

/// Memory, a region that the peer may do everything with, and one that it may invalidate.
pub(crate) struct Place {
    pub(crate) mem: TestMemory,
    mrs: MrTable,
    pub(crate) stag: Stag,
    pub(crate) offered: Stag,
}

pub(crate) const PD: Pd = Pd(1);
pub(crate) const QPN: Qpn = Qpn(1);

impl Place {
    pub(crate) fn new() -> Place {
        let mem = TestMemory::new(SIZE + 2 * GUARD, FILL);
        let mrs = MrTable::new(&Seed::from_u64(1), 8);
        let rights = Access::LOCAL_WRITE
            .with(Access::REMOTE_WRITE)
            .with(Access::REMOTE_READ)
            .with(Access::REMOTE_ATOMIC);
        let all = (GUARD as u64, BASE, SIZE as u64);
        let mr = mrs.register(PD, all.0, all.1, all.2, rights).expect("room for it");
        let rights = Access::REMOTE_WRITE.with(Access::REMOTE_INVALIDATE);
        let offered =
            mrs.register_for_qp(PD, QPN, all.0, 1 << 20, 64, rights).expect("room for it");
        Place { mem, mrs, stag: mr.stag, offered: offered.stag }
    }

    pub(crate) fn env(&self) -> QpEnv<'_, TestMemory> {
        QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None }
    }

    pub(crate) fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { stag: self.stag, to: BASE + at, len }
    }

    /// Nothing outside of the region was written.
    pub(crate) fn check(&self) {
        let all = self.mem.snapshot();
        assert!(all[..GUARD].iter().chain(&all[GUARD + SIZE..]).all(|b| *b == FILL));
    }

    /// Gives a segment what a fuzzer does not guess: the STag of its header, of the Read or Atomic
    /// Request in it or of what it invalidates; and an offset near the region.
    fn aim(&self, segment: &mut [u8]) {
        let near = |to: u64| BASE.wrapping_add(to & 0x1fff).wrapping_sub(0x400);
        let header = DdpHeader::parse(segment);
        let (stag, to) = match header {
            Ok((DdpHeader::Tagged { last, rsvd_ulp, to, .. }, _)) => {
                let stag = self.stag;
                DdpHeader::Tagged { last, rsvd_ulp, stag, to: near(to) }.emit(segment);
                return;
            }
            Ok((header, len)) => match Opcode(header.rsvd_ulp() & 15) {
                Opcode::READ_REQUEST => (len + 16, len + 20),
                Opcode::ATOMIC_REQUEST => (len + 8, len + 12),
                Opcode::SEND_INV | Opcode::SEND_SE_INV => {
                    segment[2..6].copy_from_slice(&self.offered.0.to_be_bytes());
                    return;
                }
                _ => return,
            },
            Err(_) => return,
        };
        if let Some(field) = segment.get_mut(to..to + 8) {
            let old = u64::from_be_bytes((&*field).try_into().expect("8 octets"));
            field.copy_from_slice(&near(old).to_be_bytes());
            segment[stag..stag + 4].copy_from_slice(&self.stag.0.to_be_bytes());
        }
    }

    /// What a record is in the stream, whose next octet is `offset` octets behind the first of FPDU
    /// mode.
    pub(crate) fn on_wire(
        &self,
        what: u8,
        octets: &[u8],
        framing: Framing,
        offset: u64,
    ) -> Vec<u8> {
        let mut wire = octets.to_vec();
        if what & what::FRAMED != 0 {
            if what & what::AIMED != 0 {
                self.aim(&mut wire);
            }
            wire = framed(&wire, framing, offset);
        }
        if what & what::DAMAGED != 0 && !wire.is_empty() {
            let at = usize::from(octets.last().copied().unwrap_or(0)) % wire.len();
            wire[at] ^= 1;
        }
        wire
    }
}

/// A segment as an FPDU.
pub(crate) fn framed(segment: &[u8], framing: Framing, offset: u64) -> Vec<u8> {
    let (mut plain, mut marked) = (Vec::new(), Vec::new());
    fpdu::append(segment, framing.crc, &mut plain).expect("it is short");
    if !framing.markers || !offset.is_multiple_of(4) {
        return plain;
    }
    markers::insert(&plain, offset, framing.crc, &mut marked);
    marked
}

/// A queue pair of the other side, with memory of its own, that makes seeds.
pub(crate) struct Peer {
    pub(crate) qp: QpContext,
    pub(crate) place: Place,
    framing: Framing,
    inbox: Vec<u8>,
}

impl Peer {
    /// The one that goes with a queue pair of `config`.
    pub(crate) fn of(config: &QpConfig, change: impl FnOnce(&mut QpConfig)) -> Peer {
        let role = match config.role {
            Role::Initiator => Role::Responder,
            Role::Responder => Role::Initiator,
        };
        let recv_markers = config.send_markers;
        let mut own =
            QpConfig { role, send_markers: false, recv_markers, ird: 8, ord: 8, ..config.clone() };
        change(&mut own);
        let framing = Framing { crc: config.crc, markers: false };
        Peer { qp: QpContext::new(&own), place: Place::new(), framing, inbox: Vec::new() }
    }

    /// Takes what the other side has sent.
    pub(crate) fn hear(&mut self, stream: &[u8]) {
        self.inbox.extend(stream);
        let taken = self.qp.handle_stream(&self.place.env(), &self.inbox[..]);
        self.inbox.drain(..taken);
    }

    /// The DDP segments it sends now.
    pub(crate) fn say(&mut self) -> Vec<Vec<u8>> {
        let stream = transmit(&mut self.qp, &self.place, 200);
        decode(&stream, self.framing).map(|d| d.ulpdu.to_vec()).collect()
    }
}

/// All that a queue pair sends now, which is acknowledged at once.
pub(crate) fn transmit(qp: &mut QpContext, place: &Place, mulpdu: u16) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some(fpdu) = qp.poll_transmit(&place.env(), mulpdu) {
        let mut octets = vec![0; fpdu.len() as usize];
        fpdu.copy_to(&place.mem, 0, &mut octets);
        stream.extend(octets);
    }
    qp.handle_acked(qp.tx_end());
    stream
}

/// How far `pos` is behind the first octet of FPDU mode in `config`.
pub(crate) fn offset(config: &QpConfig, pos: StreamPos) -> u64 {
    pos.since(config.rx_start)
}
