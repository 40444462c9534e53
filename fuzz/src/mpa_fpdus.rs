//! The reader of captures decodes a stream in FPDU mode, with and without markers and CRC.

use heddle_iwarp::mpa::decode::{CrcVerdict, Framing, decode};
use heddle_iwarp::mpa::{fpdu, markers};

use crate::Seeds;

pub fn run(data: &[u8]) -> bool {
    let mut understood = false;
    for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut fpdus = decode(data, Framing { crc, markers });
        let mut taken = 0;
        for d in fpdus.by_ref() {
            assert_eq!(d.offset, taken as u64);
            assert!(d.wire_len >= fpdu::fpdu_len(u16::try_from(d.ulpdu.len()).expect("as sent")));
            taken += d.wire_len;
            understood |= crc && d.headers().is_ok();
            assert!(d.payload().len() <= d.ulpdu.len());
        }
        assert_eq!(taken + fpdus.rest().len(), data.len());
    }
    // The reader finds our own FPDUs, wherever they stand among the markers.
    let mut framed = Vec::new();
    if fpdu::append(data, true, &mut framed).is_err() {
        return understood;
    }
    let mut fpdus = decode(&framed, Framing { crc: true, markers: false });
    let d = fpdus.next().expect("a whole FPDU");
    assert_eq!((&*d.ulpdu, d.crc), (data, CrcVerdict::Good));
    assert!(fpdus.rest().is_empty());
    let offset = data.first().map_or(0, |b| u64::from(*b) * 4);
    let mut marked = Vec::new();
    markers::insert(&framed, offset, true, &mut marked);
    assert_eq!(marked.len(), markers::marked_len(framed.len(), offset));
    let u = markers::remove(&marked, offset).expect("a whole FPDU");
    assert_eq!((u.consumed, u.marker), (marked.len(), Ok(())));
    let body = framed.len() - fpdu::CRC_LEN;
    assert_eq!(u.fpdu[..body], framed[..body]);
    assert_eq!(u.fpdu[body..], fpdu::crc_to_wire(u.crc));
    understood
}

pub fn seeds() -> Seeds {
    let (mut plain, mut marked) = (Vec::new(), Vec::new());
    // A Send and a Write, both longer than the distance between markers.
    let mut send = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let mut write = vec![0xc1, 0x40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0x10, 0];
    send.resize(541, 0x5a);
    write.resize(300, 0xa5);
    for ulpdu in [&send, &write] {
        let mut one = Vec::new();
        fpdu::append(ulpdu, true, &mut one).expect("it is short");
        plain.extend(&one);
        let offset = marked.len() as u64;
        markers::insert(&one, offset, true, &mut marked);
    }
    vec![("plain".into(), plain), ("markers".into(), marked)]
}
