//! The common part of the targets that drive a queue pair: memory, records of input, and the peer
//! that makes seeds.

use heddle_base::{Seed, StreamPos};
use heddle_iwarp::mpa::decode::{Framing, decode};
use heddle_iwarp::mpa::{fpdu, markers};
use heddle_iwarp::{QpConfig, QpContext, QpEnv, Role, ddp::DdpHeader, rdmap::Opcode};
use heddle_mr::{MrTable, testing::TestMemory};
use heddle_types::{Access, Pd, Qpn, Sge, Stag};

/// Bytes of the region, and bytes before and after it.
pub(crate) const SIZE: usize = 4096;
pub(crate) const GUARD: usize = 64;
pub(crate) const FILL: u8 = 0xaa;
/// The region's tagged offset; it differs from the address, so that a confusion of the two shows.
pub(crate) const BASE: u64 = 0x7000_0000_1000;

/// Bits of a record's first byte.
pub(crate) mod what {
    /// The record is a DDP segment, to be framed; otherwise it is bytes of the stream.
    pub(crate) const FRAMED: u8 = 1;
    /// The segment gets a valid STag and an offset near the region, which a fuzzer does not guess.
    pub(crate) const AIMED: u8 = 2;
    /// The queue pair may send after this record.
    pub(crate) const TURN: u8 = 4;
    /// The record is placed ahead of its turn.
    pub(crate) const EARLY: u8 = 8;
    /// A bit of the record changes after the framing.
    pub(crate) const DAMAGED: u8 = 16;
}

/// Splits an input into records: a first byte of flags, a length, and as many bytes as the length
/// says, or fewer at the end.
pub(crate) fn records(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [what, len, tail @ ..] = rest else { return None };
        let (bytes, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        Some((*what, bytes))
    })
}

/// Encodes a record as [`records`] reads it.
pub(crate) fn record(what: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).expect("a short one");
    [&[what, len], bytes].concat()
}

/// Memory with two regions: the peer may do everything with the first, and may invalidate the
/// second.
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

    /// Checks that no byte outside the region was written.
    pub(crate) fn check(&self) {
        let all = self.mem.snapshot();
        assert!(all[..GUARD].iter().chain(&all[GUARD + SIZE..]).all(|b| *b == FILL));
    }

    /// Gives a segment the values that a fuzzer does not guess: the STag of its header, of the Read
    /// or Atomic Request in it or of its invalidation; and an offset near the region.
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
            let old = u64::from_be_bytes((&*field).try_into().expect("8 bytes"));
            field.copy_from_slice(&near(old).to_be_bytes());
            segment[stag..stag + 4].copy_from_slice(&self.stag.0.to_be_bytes());
        }
    }

    /// Returns a record's bytes in the stream, whose next byte is `offset` bytes after the first
    /// byte of FPDU mode.
    pub(crate) fn on_wire(&self, what: u8, bytes: &[u8], framing: Framing, offset: u64) -> Vec<u8> {
        let mut wire = bytes.to_vec();
        if what & what::FRAMED != 0 {
            if what & what::AIMED != 0 {
                self.aim(&mut wire);
            }
            wire = framed(&wire, framing, offset);
        }
        if what & what::DAMAGED != 0 && !wire.is_empty() {
            let at = usize::from(bytes.last().copied().unwrap_or(0)) % wire.len();
            wire[at] ^= 1;
        }
        wire
    }
}

/// Returns a segment as an FPDU.
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
    /// Makes the peer of a queue pair with `config`.
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

    /// Takes the bytes that the other side has sent.
    pub(crate) fn hear(&mut self, stream: &[u8]) {
        self.inbox.extend(stream);
        let taken = self.qp.handle_stream(&self.place.env(), &self.inbox[..]);
        self.inbox.drain(..taken);
    }

    /// Returns the DDP segments that the peer sends now.
    pub(crate) fn say(&mut self) -> Vec<Vec<u8>> {
        let stream = transmit(&mut self.qp, &self.place, 200);
        decode(&stream, self.framing).map(|d| d.ulpdu.to_vec()).collect()
    }
}

/// Returns everything that a queue pair sends now; the bytes count as acknowledged at once.
pub(crate) fn transmit(qp: &mut QpContext, place: &Place, mulpdu: u16) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some(fpdu) = qp.poll_transmit(&place.env(), mulpdu) {
        let mut bytes = vec![0; fpdu.len() as usize];
        fpdu.copy_to(&place.mem, 0, &mut bytes);
        stream.extend(bytes);
    }
    qp.handle_acked(qp.tx_end());
    stream
}

/// Returns the distance of `pos` from the first byte of FPDU mode in `config`.
pub(crate) fn offset(config: &QpConfig, pos: StreamPos) -> u64 {
    pos.since(config.rx_start)
}
