//! DDP and RDMAP headers, Read Requests and Terminates: what can be read can be written, and is
//! then read as the same.
#![no_main]

use heddle_iwarp::ddp::{DdpHeader, MAX_LEN};
use heddle_iwarp::rdmap::{
    Control, CopiedHeader, ReadRequest, TERMINATE_MAX_LEN, TermCode, Terminate, TerminateError,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((header, len)) = DdpHeader::parse(data) {
        let mut b = [0; MAX_LEN];
        assert_eq!((header.emit(&mut b), header.len()), (len, len));
        assert_eq!(DdpHeader::parse(&b[..len]), Ok((header, len)));
        let _ = Control::check(&header);
    }
    if let Ok(r) = ReadRequest::parse(data) {
        assert_eq!(ReadRequest::parse(&r.emit()), Ok(r));
    }
    match Terminate::parse(data) {
        Ok(t) | Err(TerminateError::Truncated { read: t, .. }) => terminate_again(&t),
        Err(TerminateError::Short { .. }) => {}
    }
    let ddp = CopiedHeader::of_segment(data);
    let segment_len = u16::try_from(data.len()).ok();
    terminate_again(&Terminate { ddp, segment_len, ..Terminate::new(TermCode::DDP_BOUNDS) });
});

/// The layout we write is one and the same, whichever was read; the code and the headers stay.
fn terminate_again(t: &Terminate) {
    let mut b = [0; TERMINATE_MAX_LEN];
    let len = t.emit(&mut b);
    let again = Terminate::parse(&b[..len]).expect("ours is whole");
    if !again.swapped {
        assert_eq!((again.code, again.ddp, again.read_request), (t.code, t.ddp, t.read_request));
    }
}
