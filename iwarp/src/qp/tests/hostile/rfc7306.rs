//! Immediate Data and atomic messages.

use super::*;
use crate::rdmap::{AtomicRequest, AtomicResponse};
use heddle_types::{AtomicOp, CqeStatus, Sge};

const ADD: AtomicOp = AtomicOp::FetchAdd { add: 1, mask: 0 };

/// RFC 5040 section 4.8: layer, type and code of remote operation errors.
const STREAM_CATASTROPHIC: u16 = 0x0207;
const UNEXPECTED_OPCODE: u16 = 0x0206;

/// A multiple of 8: the region of [`Target::all`] begins at one in memory.
const ALIGNED: u64 = TO;

fn immediate(msn: u32, data: &[u8]) -> Vec<u8> {
    cat(&untagged(Opcode::IMMEDIATE, true, 0, msn, 0), data)
}

fn request(msn: u32, stag: Stag, to: u64) -> Vec<u8> {
    let r = AtomicRequest { id: 1, stag, to, op: ADD };
    cat(&untagged(Opcode::ATOMIC_REQUEST, true, 1, msn, 0), &r.emit())
}

fn response(msn: u32, id: u32) -> Vec<u8> {
    let r = AtomicResponse { id, original: 5 };
    cat(&untagged(Opcode::ATOMIC_RESPONSE, true, 3, msn, 0), &r.emit())
}

/// Returns a target with a region for atomics.
fn target() -> (Target, Stag) {
    let t = Target::new();
    let stag = t.region(rights().with(Access::REMOTE_ATOMIC));
    (t, stag)
}

/// Returns a target with an atomic operation outstanding.
fn with_atomic() -> Target {
    let mut t = Target::new();
    let sink = [Sge { stag: t.all, to: TO, len: 8 }];
    t.qp.post_send(&SendWr::fetch_add(1, &sink, Stag(77), 0, 1)).unwrap();
    assert_eq!(t.transmit().len(), 1);
    t
}

#[test]
fn test_receiver_refuses_immediate_data_not_of_eight_bytes() {
    for n in [0, 7, 9, 64] {
        let s = immediate(1, &vec![1; n]);
        Target::new().refuses(&s, STREAM_CATASTROPHIC, 18, "err_malformed");
    }
    Target::new().accepts(&immediate(1, &[1; 8]));
}

#[test]
fn test_receiver_refuses_immediate_data_without_the_last_bit() {
    let s = cat(&untagged(Opcode::IMMEDIATE, false, 0, 1, 0), &[1; 8]);
    Target::new().refuses(&s, STREAM_CATASTROPHIC, 18, "err_malformed");
}

#[test]
fn test_receiver_refuses_immediate_data_out_of_sequence() {
    let s = immediate(2, &[1; 8]);
    Target::new().refuses(&s, 0x1203, 18, "err_msn");
}

#[test]
fn test_receiver_refuses_immediate_data_inside_a_send() {
    let mut t = Target::new();
    t.accepts(&cat(&untagged(Opcode::SEND, false, 0, 1, 0), b"half"));
    let s = immediate(1, &[1; 8]);
    let bytes = framed(&s, t.crc);
    assert_eq!(t.feed_raw(&bytes), bytes.len());
    assert_eq!((t.qp.state(), t.qp.counters().err_offset), (ConnectedState::Terminate, 1));
}

#[test]
fn test_receiver_refuses_immediate_data_without_a_buffer() {
    let mut t = Target::new();
    t.accepts(&immediate(1, &[1; 8]));
    t.accepts(&immediate(2, &[1; 8]));
    t.refuses(&immediate(3, &[1; 8]), 0x1202, 18, "err_no_buffer");
}

#[test]
fn test_receiver_refuses_immediate_data_on_another_queue_or_tagged() {
    let s = cat(&untagged(Opcode::IMMEDIATE, true, 1, 1, 0), &[1; 8]);
    Target::new().refuses(&s, UNEXPECTED_OPCODE, 18, "err_opcode");
    let t = Target::new();
    let s = cat(&tagged(Opcode::IMMEDIATE, true, t.all, TO), &[1; 8]);
    Target::new().refuses(&s, UNEXPECTED_OPCODE, 14, "err_opcode");
}

#[test]
fn test_responder_accepts_atomic_request_only_at_multiples_of_eight() {
    for off in [0, 8, 992] {
        let (mut t, stag) = target();
        t.accepts(&request(1, stag, ALIGNED + off));
    }
    for off in [1, 4, 7, 991] {
        let (mut t, stag) = target();
        let s = request(1, stag, ALIGNED + off);
        t.refuses(&s, STREAM_CATASTROPHIC, 18, "err_misaligned");
    }
}

#[test]
fn test_responder_does_not_perform_misaligned_compare_and_swap() {
    // The swap would change any old value.
    let r = |stag, to| AtomicRequest { id: 1, stag, to, op: AtomicOp::swap(7) };
    for off in [1, 4, 7] {
        let (mut t, stag) = target();
        let header = untagged(Opcode::ATOMIC_REQUEST, true, 1, 1, 0);
        let s = cat(&header, &r(stag, ALIGNED + off).emit());
        t.refuses(&s, STREAM_CATASTROPHIC, 18, "err_misaligned");
    }
}

#[test]
fn test_receiver_refuses_rfc7306_messages_of_another_rdmap_version() {
    let (_, stag) = target();
    for s in [immediate(1, &[1; 8]), request(1, stag, ALIGNED), response(1, 1)] {
        for version in [0x00, 0x80, 0xc0] {
            let mut s = s.clone();
            // The control byte of RDMAP: version and opcode.
            s[1] = version | s[1] & 0x3f;
            Target::new().refuses(&s, 0x0205, 18, "err_rdmap_version");
        }
    }
}

#[test]
fn test_receiver_refuses_atomic_message_at_nonzero_offset() {
    let (mut t, stag) = target();
    let mut s = request(1, stag, ALIGNED);
    s[17] = 8;
    t.refuses(&s, 0x1204, 18, "err_offset");
    let mut s = response(1, 1);
    s[17] = 8;
    with_atomic().refuses(&s, 0x1204, 18, "err_offset");
}

#[test]
fn test_receiver_refuses_atomic_message_on_another_queue() {
    let (mut t, stag) = target();
    let mut s = request(1, stag, ALIGNED);
    s[9] = 0;
    t.refuses(&s, UNEXPECTED_OPCODE, 18, "err_opcode");
    let mut s = response(1, 1);
    s[9] = 1;
    with_atomic().refuses(&s, UNEXPECTED_OPCODE, 18, "err_opcode");
}

#[test]
fn test_responder_refuses_atomic_request_out_of_sequence() {
    let (mut t, stag) = target();
    t.refuses(&request(2, stag, ALIGNED), 0x1203, 18, "err_msn");
}

#[test]
fn test_responder_refuses_atomic_request_past_the_bounds() {
    for to in [TO - 8, TO + 1000, TO + 993] {
        let (mut t, stag) = target();
        let s = request(1, stag, to);
        t.refuses(&s, 0x0101, 18, "err_bounds");
    }
}

#[test]
fn test_responder_refuses_atomic_request_without_right_or_valid_stag() {
    let mut t = Target::new();
    let s = request(1, t.all, ALIGNED);
    t.refuses(&s, 0x0102, 18, "err_access");
    Target::new().refuses(&request(1, Stag(0x55), TO), 0x0100, 18, "err_stag");
    let mut t = Target::new();
    let all = rights().with(Access::REMOTE_ATOMIC);
    let stag = t.mrs.register_for_qp(PD, Qpn(6), 0, 0, 100, all).unwrap().stag;
    t.refuses(&request(1, stag, 0), 0x0103, 18, "err_association");
    let (mut t, stag) = target();
    t.refuses(&request(1, stag, u64::MAX - 6), 0x0104, 18, "err_wrap");
}

#[test]
fn test_responder_refuses_atomic_request_with_unknown_operation() {
    // Only two codes of four bits are assigned: 0 and 2.
    for op in [1].into_iter().chain(3..16) {
        let (mut t, stag) = target();
        let mut s = request(1, stag, ALIGNED);
        s[18 + 3] = op;
        t.refuses(&s, UNEXPECTED_OPCODE, 18, "err_opcode");
    }
}

#[test]
fn test_responder_refuses_atomic_request_of_wrong_length() {
    let (mut t, stag) = target();
    let s = request(1, stag, ALIGNED);
    t.refuses(&s[..s.len() - 1], STREAM_CATASTROPHIC, 18, "err_malformed");
    let (mut t, stag) = target();
    let s = cat(&request(1, stag, ALIGNED), &[0]);
    t.refuses(&s, 0x1205, 18, "err_too_long");
}

#[test]
fn test_responder_refuses_atomic_request_beyond_the_ird() {
    let (mut t, stag) = target();
    // Two requests may be outstanding, Reads and atomics together.
    t.accepts(&request(1, stag, ALIGNED));
    t.accepts(&read_request(2, stag, TO, 8));
    t.refuses(&request(3, stag, ALIGNED), 0x1202, 18, "err_no_buffer");
}

#[test]
fn test_requester_refuses_unrequested_atomic_response() {
    Target::new().refuses(&response(1, 1), 0x1202, 18, "err_no_buffer");
    // A Read is outstanding, but a Read has another kind of answer.
    Target::with_read().refuses(&response(1, 1), 0x1202, 18, "err_no_buffer");
}

#[test]
fn test_requester_refuses_read_response_to_an_atomic_operation() {
    let mut t = with_atomic();
    let s = cat(&tagged(Opcode::READ_RESPONSE, true, t.all, TO), &[1; 8]);
    t.refuses(&s, UNEXPECTED_OPCODE, 14, "err_opcode");
}

#[test]
fn test_requester_refuses_atomic_response_of_wrong_number_id_or_length() {
    with_atomic().accepts(&response(1, 1));
    with_atomic().refuses(&response(2, 1), 0x1203, 18, "err_msn");
    with_atomic().refuses(&response(1, 2), STREAM_CATASTROPHIC, 18, "err_response");
    let s = cat(&response(1, 1), &[0]);
    with_atomic().refuses(&s, 0x1205, 18, "err_too_long");
    let s = response(1, 1);
    with_atomic().refuses(&s[..s.len() - 1], STREAM_CATASTROPHIC, 18, "err_malformed");
}

/// RFC 7306 section 8.1, case 1: the Terminate repeats no header, and has the code of a local
/// error.
#[test]
fn test_terminate_for_own_request_on_unregistered_memory_has_no_header() {
    let terminate =
        framed(&[0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], true);
    for atomic in [true, false] {
        let mut t = Target::new();
        t.mrs.deregister(t.all).unwrap();
        let sges = [Sge { stag: t.all, to: TO, len: 8 }];
        let wr = if atomic {
            SendWr::fetch_add(1, &sges, Stag(77), 0, 1)
        } else {
            SendWr::write_immediate(1, &sges, Stag(77), 0, 5)
        };
        t.qp.post_send(&wr).unwrap();
        assert_eq!(t.transmit(), std::slice::from_ref(&terminate), "instead of the message");
        assert_eq!(completions(&mut t.qp)[0].status, CqeStatus::LocalProtection);
    }
}
