use super::*;
use crate::ddp::Qn;
use crate::rdmap::Opcode;
use crate::types::Msn;
use heddle_types::{Stag, TermCode};
use proptest::prelude::*;

fn segment(h: DdpHeader, payload: &[u8]) -> Vec<u8> {
    let mut b = vec![0; h.len()];
    h.emit(&mut b);
    b.extend_from_slice(payload);
    b
}

fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    let h = DdpHeader::Untagged {
        last: true,
        rsvd_ulp: Control::new(Opcode::SEND).to_byte(),
        rsvd_ulp32: 0,
        qn: Qn::SEND,
        msn: Msn(msn),
        mo: 0,
    };
    segment(h, payload)
}

fn write(payload: &[u8]) -> Vec<u8> {
    let rsvd_ulp = Control::new(Opcode::WRITE).to_byte();
    segment(DdpHeader::Tagged { last: true, rsvd_ulp, stag: Stag(0x100), to: 5 }, payload)
}

fn stream(ulpdus: &[Vec<u8>], framing: Framing) -> Vec<u8> {
    let mut out = Vec::new();
    for u in ulpdus {
        let mut one = Vec::new();
        fpdu::append(u, framing.crc, &mut one).unwrap();
        if framing.markers {
            markers::insert(&one, out.len() as u64, framing.crc, &mut out);
        } else {
            out.extend_from_slice(&one);
        }
    }
    out
}

const FRAMINGS: [Framing; 4] = [
    Framing { crc: false, markers: false },
    Framing { crc: true, markers: false },
    Framing { crc: false, markers: true },
    Framing { crc: true, markers: true },
];
const CRC: Framing = FRAMINGS[1];

#[test]
fn test_decoder_yields_fpdus_in_order_with_their_headers() {
    for framing in FRAMINGS {
        let bytes = stream(&[write(&[1; 700]), send(1, b"abc"), send(2, b"")], framing);
        let mut fpdus = decode(&bytes, framing);
        let got: Vec<_> = fpdus.by_ref().collect();
        let headers: Vec<_> = got.iter().map(|d| d.headers().unwrap().1.opcode).collect();
        assert_eq!(headers, [Opcode::WRITE, Opcode::SEND, Opcode::SEND]);
        assert_eq!(got[0].payload(), [1; 700]);
        assert_eq!((got[1].payload(), got[2].payload()), (&b"abc"[..], &b""[..]));
        assert_eq!(got.iter().map(|d| d.wire_len).sum::<usize>(), bytes.len());
        assert_eq!(got[2].offset + got[2].wire_len as u64, bytes.len() as u64);
        assert!(fpdus.rest().is_empty());
        let verdict = if framing.crc { CrcVerdict::Good } else { CrcVerdict::Unused };
        assert!(got.iter().all(|d| d.crc == verdict && d.marker.is_ok() && d.pad == [0; 3]));
    }
}

#[test]
fn test_decoder_ignores_crc_field_when_crc_is_off() {
    let mut bytes = stream(&[send(1, b"abc")], Framing::default());
    let n = bytes.len();
    bytes[n - 4..].copy_from_slice(b"junk");
    let d = decode(&bytes, Framing::default()).next().unwrap();
    assert_eq!(d.crc, CrcVerdict::Unused);
    assert!(d.headers().is_ok());
}

#[test]
fn test_decoder_ignores_pad_except_in_the_crc() {
    let mut bytes = stream(&[send(1, b"abc")], CRC);
    let n = bytes.len();
    bytes[n - 5] = 0xaa;
    let d = decode(&bytes, CRC).next().unwrap();
    assert!(matches!(d.crc, CrcVerdict::Bad { .. }));
    let crc = fpdu::crc(0, &bytes[..n - 4]);
    bytes[n - 4..].copy_from_slice(&fpdu::crc_to_wire(crc));
    let d = decode(&bytes, CRC).next().unwrap();
    assert_eq!((d.crc, d.payload(), d.pad), (CrcVerdict::Good, &b"abc"[..], [0xaa, 0, 0]));
}

#[test]
fn test_decoder_reports_own_error_and_code_for_each_fault() {
    let bad_version = {
        let mut u = write(b"x");
        u[0] = 0xc2;
        u
    };
    let bad_opcode = {
        let mut u = send(1, b"x");
        u[1] = 0x4f;
        u
    };
    for (ulpdu, code) in [
        (bad_version, TermCode::new(1, 1, 4)),
        (bad_opcode, TermCode::new(0, 2, 6)),
        (vec![0x41; 3], TermCode::new(0, 2, 7)),
        (vec![], TermCode::new(0, 2, 7)),
    ] {
        let bytes = stream(&[ulpdu], CRC);
        let e = decode(&bytes, CRC).next().unwrap().headers().unwrap_err();
        assert_eq!(e.fault().code(), code, "{e}");
    }
    let mut bytes = stream(&[send(1, b"x")], CRC);
    bytes[10] ^= 1;
    let e = decode(&bytes, CRC).next().unwrap().headers().unwrap_err();
    assert!(matches!(e, FpduError::Crc { .. }));
    assert_eq!(e.fault().code(), TermCode::new(2, 0, 2));

    let framing = Framing { crc: false, markers: true };
    let mut bytes = stream(&[write(&[1; 700])], framing);
    bytes[515] ^= 8;
    let e = decode(&bytes, framing).next().unwrap().headers().unwrap_err();
    assert_eq!(e.fault().code(), TermCode::new(2, 0, 3));
    // With CRCs on, the decoder checks the CRC before the markers.
    let framing = Framing { crc: true, markers: true };
    let mut bytes = stream(&[write(&[1; 700])], framing);
    bytes[515] ^= 8;
    let e = decode(&bytes, framing).next().unwrap().headers().unwrap_err();
    assert_eq!(e.fault().code(), TermCode::new(2, 0, 2));
}

#[test]
fn test_decoder_leaves_incomplete_fpdu_in_its_input() {
    for framing in FRAMINGS {
        let whole = stream(&[send(1, b"abc"), write(&[1; 700])], framing);
        let first = decode(&whole, framing).next().unwrap().wire_len;
        for n in 0..whole.len() {
            let mut fpdus = decode(&whole[..n], framing);
            let count = fpdus.by_ref().count();
            assert_eq!(count, usize::from(n >= first));
            assert_eq!(fpdus.rest().len(), n - count * first);
            assert_eq!(fpdus.offset(), (count * first) as u64);
        }
    }
}

proptest! {
    #[test]
    fn test_decoder_ends_for_any_bytes(b in proptest::collection::vec(any::<u8>(), 0..2000), crc: bool, markers: bool) {
        let mut fpdus = decode(&b, Framing { crc, markers });
        let mut taken = 0;
        for d in fpdus.by_ref() {
            let _ = format!("{:?} {:?}", d.headers(), d.payload().len());
            if let Err(e) = d.headers() {
                let _ = (e.to_string(), e.fault().code());
            }
            taken += d.wire_len;
        }
        prop_assert_eq!(taken + fpdus.rest().len(), b.len());
    }

    #[test]
    fn test_decoder_detects_mutated_byte_by_crc(
        payload in proptest::collection::vec(any::<u8>(), 0..900), at in 2usize..2000, flip in 1u8.., markers: bool,
    ) {
        let framing = Framing { crc: true, markers };
        let mut bytes = stream(&[send(1, &payload)], framing);
        // Flip any byte except the length, which would make it another FPDU.
        let header = if markers { 4 } else { 0 };
        let at = at % bytes.len();
        let at = if at == header || at == header + 1 { bytes.len() - 1 } else { at };
        bytes[at] ^= flip;
        let d = decode(&bytes, framing).next().unwrap();
        let is_bad = matches!(d.crc, CrcVerdict::Bad { .. });
        prop_assert!(is_bad);
        let is_crc = matches!(d.headers(), Err(FpduError::Crc { .. }));
        prop_assert!(is_crc);
    }
}
