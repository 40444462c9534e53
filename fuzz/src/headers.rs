//! DDP and RDMAP headers, Read Requests, Atomic Requests and Responses, Terminates: a value that
//! parses can be written, and parses as the same value again.

use heddle_iwarp::Msn;
use heddle_iwarp::ddp::{DdpHeader, MAX_LEN, Qn};
use heddle_iwarp::rdmap::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicRequest, AtomicResponse, Control, CopiedHeader,
    Opcode, ReadRequest, TERMINATE_MAX_LEN, Terminate, TerminateError,
};
use heddle_types::{AtomicOp, Stag, TermCode};

use crate::Seeds;

pub fn run(data: &[u8]) -> bool {
    let mut understood = false;
    if let Ok((header, len)) = DdpHeader::parse(data) {
        let mut b = [0; MAX_LEN];
        assert_eq!((header.emit(&mut b), header.len()), (len, len));
        assert_eq!(DdpHeader::parse(&b[..len]), Ok((header, len)));
        understood |= control(&header);
    }
    if let Ok(r) = ReadRequest::parse(data) {
        assert_eq!(ReadRequest::parse(&r.emit()), Ok(r));
        understood = true;
    }
    match AtomicRequest::parse(data) {
        Ok(r) => {
            assert_eq!(AtomicRequest::parse(&r.emit()), Ok(r));
            atomic(r.op, r.to);
            understood = true;
        }
        Err(_) => assert!(data.len() != ATOMIC_REQUEST_LEN || !matches!(data[3] & 15, 0 | 2)),
    }
    match AtomicResponse::parse(data) {
        Ok(r) => {
            assert_eq!(r.emit()[..], *data);
            understood = true;
        }
        Err(_) => assert_ne!(data.len(), ATOMIC_RESPONSE_LEN),
    }
    match Terminate::parse(data) {
        Ok(t) | Err(TerminateError::Truncated { read: t, .. }) => terminate_again(&t),
        Err(TerminateError::Short { .. }) => {}
    }
    let ddp = CopiedHeader::of_segment(data);
    let segment_len = u16::try_from(data.len()).ok();
    terminate_again(&Terminate { ddp, segment_len, ..Terminate::new(TermCode::DDP_BOUNDS) });
    understood
}

/// Checks that a control byte that passes belongs to a message that may come there, and is written
/// as it was read.
fn control(header: &DdpHeader) -> bool {
    let Ok(control) = Control::check(header) else { return false };
    let queue = match *header {
        DdpHeader::Tagged { .. } => None,
        DdpHeader::Untagged { qn, .. } => Some(qn),
    };
    assert_eq!(control.opcode.queue(), queue);
    assert_eq!(control.opcode.is_tagged(), queue.is_none());
    assert!(control.opcode.name().is_some());
    assert_eq!(Control::from_byte(control.to_byte()), control);
    true
}

/// Checks the effect of an operation: bits outside its mask stay, and fields without a carry add up
/// to the results of each field by itself.
fn atomic(op: AtomicOp, original: u64) {
    let after = op.apply(original);
    match op {
        AtomicOp::CmpSwap { swap_mask, .. } => assert_eq!((original ^ after) & !swap_mask, 0),
        AtomicOp::FetchAdd { add, mask } => {
            let mut from = 0;
            for end in (0..64).filter(|bit| *bit == 63 || mask >> bit & 1 != 0) {
                let field = u64::MAX >> (63 - (end - from)) << from;
                let sum = (original & field).wrapping_add(add & field) & field;
                assert_eq!(after & field, sum, "bits {from} to {end}");
                from = end + 1;
            }
        }
    }
}

/// Checks that our layout is the same whichever layout was read, and that the code and the headers
/// stay.
fn terminate_again(t: &Terminate) {
    let mut b = [0; TERMINATE_MAX_LEN];
    let len = t.emit(&mut b);
    let again = Terminate::parse(&b[..len]).expect("ours is whole");
    if !again.swapped {
        assert_eq!((again.code, again.ddp, again.read_request), (t.code, t.ddp, t.read_request));
    }
}

pub fn seeds() -> Seeds {
    let mut all = Seeds::new();
    for opcode in 0..12 {
        let opcode = Opcode(opcode);
        let rsvd_ulp = Control::new(opcode).to_byte();
        let header = match opcode.queue() {
            None => DdpHeader::Tagged { last: true, rsvd_ulp, stag: Stag(0x1234), to: 1 << 40 },
            Some(qn) => DdpHeader::Untagged {
                last: opcode != Opcode::SEND,
                rsvd_ulp,
                rsvd_ulp32: if opcode.invalidates() { 0x5678 } else { 0 },
                qn,
                msn: Msn(u32::MAX),
                mo: u32::from(qn == Qn::SEND) * 100,
            },
        };
        let mut b = vec![0; header.len()];
        header.emit(&mut b);
        b.extend(*b"data");
        all.push((format!("ddp-{opcode}"), b));
    }
    let read =
        ReadRequest { sink_stag: Stag(1), sink_to: 2, size: 3, src_stag: Stag(4), src_to: 5 };
    all.push(("read-request".into(), read.emit().to_vec()));
    let add = AtomicOp::FetchAdd { add: 0x8000_0001, mask: 1 << 31 | 1 << 15 };
    let masked = AtomicOp::CmpSwap { compare: 1, compare_mask: 0xff, swap: 2, swap_mask: 0xff00 };
    for (name, op) in [("fetch-add", add), ("cmp-swap", masked), ("swap", AtomicOp::swap(7))] {
        let request = AtomicRequest { id: 9, stag: Stag(10), to: u64::MAX - 7, op };
        all.push((name.into(), request.emit().to_vec()));
    }
    let response = AtomicResponse { id: 9, original: u64::MAX };
    all.push(("atomic-response".into(), response.emit().to_vec()));
    all
}
