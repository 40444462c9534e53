//! iWARP made and read by hand: start-up frames, FPDUs, the Terminate at the end.

use heddle_iwarp::Msn;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::mpa::fpdu;
use heddle_iwarp::rdmap::{Control, Opcode, Terminate};
use heddle_testkit::mpa;

/// Returns an MPA Request of revision 1 with CRC.
pub fn request(private_data: &[u8]) -> Vec<u8> {
    mpa::request(private_data)
}

/// Returns an MPA Reply of revision 1 with CRC.
pub fn reply(reject: bool, private_data: &[u8]) -> Vec<u8> {
    mpa::reply(reject, private_data)
}

/// Returns an FPDU with its CRC.
pub fn fpdu(header: DdpHeader, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; header.len()];
    header.emit(&mut ulpdu);
    ulpdu.extend(payload);
    mpa::fpdu(&ulpdu)
}

/// Returns the header of a Send of one segment.
pub fn send_header(msn: u32) -> DdpHeader {
    untagged(Opcode::SEND, Qn::SEND, msn, 0)
}

pub fn untagged(opcode: Opcode, qn: Qn, msn: u32, mo: u32) -> DdpHeader {
    let rsvd_ulp = Control::new(opcode).to_byte();
    DdpHeader::Untagged { last: true, rsvd_ulp, rsvd_ulp32: 0, qn, msn: Msn(msn), mo }
}

/// Returns the FPDUs in `stream`, whose CRCs must be right: header and payload of each.
pub fn fpdus(mut stream: &[u8]) -> Vec<(DdpHeader, Vec<u8>)> {
    let mut all = Vec::new();
    while stream.len() >= 2 {
        let ulpdu = u16::from_be_bytes([stream[0], stream[1]]);
        let len = fpdu::fpdu_len(ulpdu);
        if stream.len() < len {
            break;
        }
        let (body, crc) = stream[..len].split_at(len - 4);
        assert_eq!(fpdu::crc_to_wire(fpdu::crc(0, body)), crc, "CRC");
        let (header, at) = DdpHeader::parse(&body[2..2 + usize::from(ulpdu)]).unwrap();
        all.push((header, body[2 + at..2 + usize::from(ulpdu)].to_vec()));
        stream = &stream[len..];
    }
    assert!(stream.is_empty(), "whole FPDUs");
    all
}

/// Returns the Terminate that ends a stream of FPDUs, and the number of FPDUs before it.
pub fn terminate_in(stream: &[u8]) -> Option<(usize, Terminate)> {
    let all = fpdus(stream);
    let (DdpHeader::Untagged { qn: Qn::TERMINATE, .. }, body) = all.last()? else { return None };
    Some((all.len() - 1, Terminate::parse(body).unwrap()))
}
