//! A stream in FPDU mode taken apart, with and without markers and CRC.
#![no_main]

use heddle_iwarp::mpa::decode::{CrcVerdict, Framing, decode};
use heddle_iwarp::mpa::fpdu;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut fpdus = decode(data, Framing { crc, markers });
        let mut taken = 0;
        for d in fpdus.by_ref() {
            assert_eq!(d.offset, taken as u64);
            assert!(d.wire_len >= fpdu::fpdu_len(u16::try_from(d.ulpdu.len()).expect("as sent")));
            taken += d.wire_len;
            let _ = d.headers();
            assert!(d.payload().len() <= d.ulpdu.len());
        }
        assert_eq!(taken + fpdus.rest().len(), data.len());
    }
    // What we frame is what is found.
    let mut framed = Vec::new();
    if fpdu::append(data, true, &mut framed).is_ok() {
        let mut fpdus = decode(&framed, Framing { crc: true, markers: false });
        let d = fpdus.next().expect("a whole FPDU");
        assert_eq!((&*d.ulpdu, d.crc), (data, CrcVerdict::Good));
        assert!(fpdus.rest().is_empty());
    }
});
