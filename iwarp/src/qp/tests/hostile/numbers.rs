//! The numbers of a Terminate, as literals: layer and error type, error code, header control bits
//! (RFC 5040 section 4.8 figures 9 and 10, RFC 5041 section 7.2, RFC 5044 section 8).
//!
//! The other tests of this folder compare with the names in [`TermCode`]; these tests check the
//! numbers that the names stand for.

use super::*;
use heddle_types::Sge;

/// Returns the control field of the only FPDU sent, a Terminate.
fn control_field(t: &mut Target) -> [u8; 4] {
    let sent = t.transmit();
    let [fpdu] = &sent[..] else { panic!("{} FPDUs", sent.len()) };
    // Length, then the DDP header of a message of one segment, version 1, on queue 2, MSN 1; RDMAP
    // version 1 and opcode 7.
    let header = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(fpdu[2..20], header);
    fpdu[20..24].try_into().unwrap()
}

/// Returns the control field of the Terminate that answers `segment`.
fn answer(mut t: Target, segment: &[u8]) -> [u8; 4] {
    t.feed(segment);
    control_field(&mut t)
}

fn with_version(mut s: Vec<u8>, at: usize, bits: u8) -> Vec<u8> {
    let mask = if at == 0 { 0x03 } else { 0xc0 };
    s[at] = s[at] & !mask | bits;
    s
}

#[test]
fn test_terminate_has_rfc_code_for_error_in_untagged_segment() {
    let few = || {
        let mut t = Target::new();
        t.accepts(&send(1, 0, true, 0));
        t.accepts(&send(2, 0, true, 0));
        t
    };
    let queue_4 = cat(&untagged(Opcode::SEND, true, 4, 1, 0), &[0; 8]);
    for (what, t, segment, want) in [
        ("queue number", Target::new(), queue_4, [0x12, 0x01, 0xc0, 0]),
        ("no buffer", few(), send(3, 0, true, 8), [0x12, 0x02, 0xc0, 0]),
        ("MSN", Target::new(), send(7, 0, true, 8), [0x12, 0x03, 0xc0, 0]),
        ("offset", Target::new(), send(1, 5, true, 8), [0x12, 0x04, 0xc0, 0]),
        ("too long", Target::new(), send(1, 0, true, 65), [0x12, 0x05, 0xc0, 0]),
        ("version", Target::new(), with_version(send(1, 0, true, 8), 0, 2), [0x12, 0x06, 0xc0, 0]),
    ] {
        assert_eq!(answer(t, &segment), want, "{what}");
    }
}

#[test]
fn test_terminate_has_rfc_code_for_error_in_tagged_segment() {
    let t = Target::new();
    let end = TO + u64::from(LEN);
    let good = write(t.all, TO, 8);
    for (what, segment, want) in [
        ("STag", write(Stag(t.all.0 ^ 0x100), TO, 8), [0x11, 0x00, 0xc0, 0]),
        ("bounds", write(t.all, end, 8), [0x11, 0x01, 0xc0, 0]),
        ("wrap", write(t.all, u64::MAX - 3, 8), [0x11, 0x03, 0xc0, 0]),
        ("version", with_version(good, 0, 0), [0x11, 0x04, 0xc0, 0]),
    ] {
        assert_eq!(answer(Target::new(), &segment), want, "{what}");
    }
    let t = Target::new();
    let stag = t.mrs.register_for_qp(PD, Qpn(6), 0, 0, 100, rights()).unwrap().stag;
    assert_eq!(answer(t, &write(stag, 0, 8)), [0x11, 0x02, 0xc0, 0], "association");
}

#[test]
fn test_terminate_has_rfc_code_for_error_in_read_request() {
    let t = Target::new();
    let all = t.all;
    for (what, segment, want) in [
        ("STag", read_request(1, Stag(0x55), TO, 8), [0x01, 0x00, 0xe0, 0]),
        ("bounds", read_request(1, all, TO, 1001), [0x01, 0x01, 0xe0, 0]),
        ("wrap", read_request(1, all, u64::MAX - 3, 8), [0x01, 0x04, 0xe0, 0]),
        // A fault on the DDP level, for which the Terminate repeats no RDMAP header.
        ("MSN", read_request(3, all, TO, 8), [0x12, 0x03, 0xc0, 0]),
    ] {
        assert_eq!(answer(Target::new(), &segment), want, "{what}");
    }
    let t = Target::new();
    let stag = t.region(Access::LOCAL_WRITE);
    assert_eq!(answer(t, &read_request(1, stag, TO, 8)), [0x01, 0x02, 0xe0, 0], "right");
    let t = Target::new();
    let stag = t.mrs.register_for_qp(PD, Qpn(6), 0, 0, 100, rights()).unwrap().stag;
    assert_eq!(answer(t, &read_request(1, stag, 0, 8)), [0x01, 0x03, 0xe0, 0], "association");
}

#[test]
fn test_terminate_has_rfc_code_for_error_of_rdmap_or_below_ddp() {
    let t = Target::new();
    let mut opcode = send(1, 0, true, 8);
    opcode[1] = 0x4f;
    let mut shared = send(1, 0, true, 8);
    shared[1] = 0x44;
    shared[2..6].copy_from_slice(&t.all.0.to_be_bytes());
    for (what, segment, want) in [
        ("version", with_version(send(1, 0, true, 8), 1, 0x80), [0x02, 0x05, 0xc0, 0]),
        ("opcode", opcode, [0x02, 0x06, 0xc0, 0]),
        ("STag that cannot be invalidated", shared, [0x01, 0x09, 0xc0, 0]),
    ] {
        assert_eq!(answer(Target::new(), &segment), want, "{what}");
    }
    // The Terminate repeats no header of the segment for a fault found below DDP.
    let mut t = Target::new();
    let mut bad = framed(&send(1, 0, true, 8), true);
    bad[10] ^= 1;
    t.feed_raw(&bad);
    assert_eq!(control_field(&mut t), [0x20, 0x02, 0, 0], "CRC");
    // The Terminate repeats no header for a local error either.
    let mut t = Target::new();
    let sges = [Sge { stag: Stag(3), to: 0, len: 8 }];
    t.qp.post_send(&SendWr::send(3, &sges)).unwrap();
    assert_eq!(control_field(&mut t)[0], 0x00, "any code will do");
}
