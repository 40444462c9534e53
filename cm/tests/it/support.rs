//! Connection managers in virtual time: over a worker that is a model, or over RNICs on a wire.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of it")]

pub mod net;

use std::sync::Arc;

use heddle_base::{Chunks, Instant, Random, Seed};
use heddle_iwarp::mpa::frame::{Enhanced, Frame as MpaFrame, Kind};
use heddle_mr::MrTable;
use heddle_rnic::{Rnic, RnicConfig, RnicFrame};
use heddle_tcp::{Cidr, RxFrame, StackConfig};
use heddle_types::{
    ConnId, Pd, QpSpec, Qpn,
    mpa::{Depth, Revision, Rtr, RtrSet},
};

/// A received frame.
#[derive(Debug)]
pub struct Frame(pub Vec<u8>);

impl Chunks for Frame {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        self.0.get(off..).unwrap_or(&[])
    }
}

impl RxFrame for Frame {}

impl RnicFrame for Frame {}

/// Returns an RNIC at 10.0.0.`n`.
pub fn rnic(n: u8, seed: u64) -> (Rnic<Frame>, Arc<MrTable>) {
    let seed = Seed::from_u64(seed.wrapping_mul(256).wrapping_add(u64::from(n)));
    let addr = Cidr::new([10, 0, 0, n].into(), 24).unwrap();
    let mrs = Arc::new(MrTable::new(&seed, 4));
    let stack = StackConfig::new([2, 0, 0, 0, 0, n], addr, seed);
    (Rnic::new(RnicConfig::new(stack, 4096, 8 << 20), mrs.clone()), mrs)
}

/// Returns names of connections, all different.
pub fn conn_ids() -> impl Iterator<Item = ConnId> {
    let (mut rnic, _) = rnic(1, 0);
    std::iter::repeat_with(move || {
        let conn = rnic.connect(Instant::ZERO, "10.0.0.2:1".parse().unwrap()).unwrap();
        rnic.release(conn);
        conn
    })
}

pub fn qp(qpn: u32) -> QpSpec {
    QpSpec { qpn: Qpn(qpn), pd: Pd(1), sq_depth: 8, rq_depth: 8 }
}

/// Returns a frame of MPA revision 2 that offers 16 Reads each way.
pub fn frame(kind: Kind, reject: bool, private_data: &[u8]) -> Vec<u8> {
    enhanced(kind, reject, 16, 16, private_data)
}

pub fn enhanced(kind: Kind, reject: bool, ird: u16, ord: u16, private_data: &[u8]) -> Vec<u8> {
    let (ird, ord) = (Depth::new(ird).unwrap(), Depth::new(ord).unwrap());
    MpaFrame {
        kind,
        markers: false,
        crc: true,
        reject,
        revision: Revision::V2,
        enhanced: Some(Enhanced { ird, ord, peer_to_peer: false, rtr: RtrSet::NONE }),
        private_data,
    }
    .emit()
    .unwrap()
}

/// Returns a frame with the words of RFC 6581: both depths as raw 14-bit values.
pub fn words(kind: Kind, ird: u16, ord: u16, rtr: RtrSet) -> Vec<u8> {
    let depth = |n| Depth::new(n).unwrap_or(Depth::UNNEGOTIATED);
    let enhanced =
        Enhanced { ird: depth(ird), ord: depth(ord), peer_to_peer: !rtr.is_empty(), rtr };
    MpaFrame {
        kind,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::V2,
        enhanced: Some(enhanced),
        private_data: b"",
    }
    .emit()
    .unwrap()
}

/// Returns an FPDU with a CRC; `ulpdu` has its DDP and RDMAP headers and the payload.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    heddle_iwarp::mpa::fpdu::append(ulpdu, true, &mut out).unwrap();
    out
}

/// Returns the first message of each kind, as another stack would make it: with headers of RFC 5041
/// written by hand.
pub fn rtr_fpdu(rtr: Rtr) -> Vec<u8> {
    match rtr {
        Rtr::Write => fpdu(&[0xc1, 0x40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]),
        Rtr::Send => fpdu(&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
        Rtr::Read => {
            let mut read = vec![0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
            read.extend([0; 28]);
            fpdu(&read)
        }
    }
}

pub fn below(r: &mut Random, n: usize) -> usize {
    r.below(n as u64) as usize
}

/// Changes, removes or inserts a few bytes, or none.
pub fn spoil(r: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..below(r, 4) {
        if bytes.is_empty() {
            return;
        }
        let at = below(r, bytes.len());
        match below(r, 4) {
            0 => bytes[at] = r.next_u64() as u8,
            1 => bytes[at] ^= 1 << below(r, 8),
            2 => bytes.truncate(at),
            _ => bytes.insert(at, r.next_u64() as u8),
        }
    }
}
