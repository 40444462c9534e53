//! Frames, checked to the byte.

use super::*;

/// Returns flags A to D and depths of a frame, as RFC 6581 has them after the header of 20 bytes.
fn words(enhanced: Enhanced) -> [u8; 4] {
    let frame = Frame {
        kind: Kind::Reply,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::V2,
        enhanced: Some(enhanced),
        private_data: &[],
    };
    let bytes = frame.emit().unwrap();
    assert_eq!(bytes[16..20], [0x50, 2, 0, 4], "C and S, revision 2, four bytes");
    bytes[20..].try_into().unwrap()
}

#[test]
fn test_frame_sets_first_message_flags_only_in_peer_to_peer_model() {
    let (ird, ord) = (Depth::new(0x0102).unwrap(), Depth::new(0x3ffe).unwrap());
    // B: Send. C: Write. D: Read.
    for (rtr, flags) in [
        (RtrSet::NONE, [0x80, 0]),
        (RtrSet::of(Rtr::Send), [0xc0, 0]),
        (RtrSet::of(Rtr::Write), [0x80, 0x80]),
        (RtrSet::of(Rtr::Read), [0x80, 0x40]),
        (RtrSet::ALL, [0xc0, 0xc0]),
    ] {
        let got = words(Enhanced { ird, ord, peer_to_peer: true, rtr });
        assert_eq!(got, [0x01 | flags[0], 0x02, 0x3f | flags[1], 0xfe]);
        // Without A all flags are zero, whatever the set contains.
        let got = words(Enhanced { ird, ord, peer_to_peer: false, rtr });
        assert_eq!(got, [0x01, 0x02, 0x3f, 0xfe]);
    }
}
