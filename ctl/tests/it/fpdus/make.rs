//! Regions for a peer that breaks the rules, and the FPDUs that it makes.

use heddle_iwarp::Msn;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::rdmap::{Control, Opcode, ReadRequest};
use heddle_verbs::{Access, Mr, Stag};

use crate::common::*;

/// Memory that a peer may or may not reach.
pub(crate) struct Regions {
    /// Regions of the connection's own protection domain: with all rights, for reading only, for
    /// writing only, without rights.
    pub(crate) all: Mr,
    pub(crate) read: Mr,
    pub(crate) write: Mr,
    pub(crate) none: Mr,
    /// A region of another protection domain.
    pub(crate) other: Mr,
}

impl Regions {
    pub(crate) fn new(net: &Net, end: &End) -> Regions {
        let own = |access| region(&net.us, end.pd, access);
        let all = Access::REMOTE_READ.with(Access::REMOTE_WRITE);
        Regions {
            all: own(all),
            read: own(Access::REMOTE_READ),
            write: own(Access::REMOTE_WRITE),
            none: own(Access::LOCAL_WRITE),
            other: region(&net.us, net.us.device().alloc_pd().unwrap(), all),
        }
    }

    pub(crate) fn assert_untouched(&self, what: &str) {
        for mr in [&self.all, &self.read, &self.write, &self.none, &self.other] {
            assert_untouched(mr, what);
        }
    }
}

pub(crate) fn tagged(opcode: Opcode, stag: Stag, to: u64, len: usize) -> Vec<u8> {
    let rsvd_ulp = Control::new(opcode).to_byte();
    fpdu(DdpHeader::Tagged { last: true, rsvd_ulp, stag, to }, &vec![0x55; len])
}

pub(crate) fn write(stag: Stag, to: u64, len: usize) -> Vec<u8> {
    tagged(Opcode::WRITE, stag, to, len)
}

pub(crate) fn read_request(msn: u32, src_stag: Stag, src_to: u64, size: u32) -> Vec<u8> {
    let r = ReadRequest { sink_stag: Stag(1), sink_to: 0, size, src_stag, src_to };
    fpdu(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, msn, 0), &r.emit())
}

pub(crate) fn send(msn: u32, len: usize) -> Vec<u8> {
    fpdu(send_header(msn), &vec![0x55; len])
}

/// Returns a Send with Invalidate.
pub(crate) fn invalidate(stag: Stag) -> Vec<u8> {
    let rsvd_ulp = Control::new(Opcode::SEND_INV).to_byte();
    let h = DdpHeader::Untagged {
        last: true,
        rsvd_ulp,
        rsvd_ulp32: stag.0,
        qn: Qn::SEND,
        msn: Msn(1),
        mo: 0,
    };
    fpdu(h, b"x")
}

/// Returns the FPDU `bytes` with the byte at `at` of its ULPDU changed, and with a right CRC.
pub(crate) fn changed(bytes: &[u8], at: usize, to: u8) -> Vec<u8> {
    let ulpdu = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let mut ulpdu = bytes[2..2 + ulpdu].to_vec();
    ulpdu[at] = to;
    raw(&ulpdu)
}

pub(crate) fn raw(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    heddle_iwarp::mpa::fpdu::append(ulpdu, true, &mut out).unwrap();
    out
}

pub(crate) fn flipped(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 1;
    bytes
}
