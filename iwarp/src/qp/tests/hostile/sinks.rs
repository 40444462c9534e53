//! Local memory that is unregistered before the peer's answer comes.

use super::*;
use crate::rdmap::{AtomicRequest, AtomicResponse};
use heddle_types::{AtomicOp, CqeStatus, Sge};

/// A mistake of the application: its own request says so, and the Terminate says no more than that.
#[test]
fn test_requester_ends_stream_if_atomic_sink_was_unregistered() {
    let mut t = Target::new();
    let stag = t.region(Access::LOCAL_WRITE);
    let sink = [Sge { stag, to: TO, len: 8 }];
    t.qp.post_send(&SendWr::fetch_add(1, &sink, Stag(77), 0, 1)).unwrap();
    assert_eq!(t.transmit().len(), 1);
    t.mrs.deregister(stag).unwrap();
    let answer = AtomicResponse { id: 1, original: 5 };
    let bytes = cat(&untagged(Opcode::ATOMIC_RESPONSE, true, 3, 1, 0), &answer.emit());
    let special = [(1, CqeStatus::LocalProtection)];
    t.refuses_raw_but(&framed(&bytes, true), 0x0000, 0, &[], "err_local", &special);
}

/// The other direction: the memory that the peer asked to change is unregistered before the
/// request's turn. The Terminate repeats the DDP header of the request, and the length of its
/// segment (RFC 7306 section 8.1).
#[test]
fn test_responder_terminates_if_atomic_region_was_unregistered() {
    let mut t = Target::new();
    let stag = t.region(Access::REMOTE_ATOMIC);
    let request = AtomicRequest { id: 1, stag, to: TO, op: AtomicOp::swap(1) };
    let header = untagged(Opcode::ATOMIC_REQUEST, true, 1, 1, 0);
    t.accepts(&cat(&header, &request.emit()));
    t.mrs.deregister(stag).unwrap();
    let mut ulpdu = untagged(Opcode::TERMINATE, true, 2, 1, 0);
    // 18 bytes of header and 52 of request.
    ulpdu.extend([0x01, 0x00, 0xc0, 0, 0, 70]);
    ulpdu.extend(header);
    assert_eq!(t.transmit(), [framed(&ulpdu, true)]);
}
