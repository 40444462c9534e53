use super::*;
use crate::segment::{ReadSegment, Segment};
use crate::v1::procedure;
use crate::v2::htype;

const BOTH: Versions = Versions::Open { v1: true, v2: true };
const ONLY_1: Versions = Versions::Open { v1: true, v2: false };
const ONLY_2: Versions = Versions::Open { v1: false, v2: true };
const ALL: [Versions; 5] = [BOTH, ONLY_1, ONLY_2, Versions::V1, Versions::V2];
const XID: u32 = 7;

fn message(units: &[u32]) -> Vec<u8> {
    units.iter().flat_map(|u| u.to_be_bytes()).collect()
}

fn failure(units: &[u32], versions: Versions) -> Failure {
    let bytes = message(units);
    decode(&bytes, versions, &Limits::DEFAULT).expect_err("a bad message")
}

/// Returns the answer as a receiver of the same version decodes it.
fn answer_to(units: &[u32], versions: Versions, role: Role) -> Option<Refusal> {
    let failure = failure(units, versions);
    let answer = failure.answer(role)?;
    assert_eq!((answer.xid, answer.version), (Xid(units[0]), units[1]), "both are repeated");
    let mut out = [0; Answer::MAX_LEN];
    let len = answer.encode(9, &mut out).unwrap();
    let prefix = Prefix::decode(&mut Reader::new(&out)).unwrap();
    assert_eq!((prefix.kind, prefix.credit), (KIND_ERROR, 9));
    // An end never answers an answer.
    for versions in ALL {
        if let Err(failure) = decode(&out[..len], versions, &Limits::DEFAULT) {
            assert_eq!(failure.answer(role), None);
        }
    }
    Some(answer.refusal)
}

fn refuse_v1(rest: &[u32], role: Role) -> Option<Refusal> {
    answer_to(&[&[XID, 1, 1], rest].concat(), BOTH, role)
}

fn refuse_v2(rest: &[u32]) -> Option<v2::Refusal> {
    let refusal = |role| answer_to(&[&[XID, 2, 1], rest].concat(), Versions::V2, role);
    let (a, b) = (refusal(Role::Requester), refusal(Role::Responder));
    assert_eq!(a, b, "version 2 tells calls from replies");
    a.map(|refusal| match refusal {
        Refusal::V2(refusal) => refusal,
        Refusal::V1(refusal) => panic!("{refusal:?}"),
    })
}

const CHUNK: Option<Refusal> = Some(Refusal::V1(v1::Refusal::Chunk));

fn versions(low: u32, high: u32) -> Option<Refusal> {
    Some(Refusal::V1(v1::Refusal::Versions { low, high }))
}

const MISMATCH: Option<Refusal> = Some(Refusal::V2(v2::Refusal::VersMismatch));

#[test]
fn test_message_without_a_prefix_is_discarded() {
    for len in 0..Prefix::LEN {
        for versions in ALL {
            let bytes = message(&[XID, 2, 1, htype::GRANT]);
            let e = decode(&bytes[..len], versions, &Limits::DEFAULT).unwrap_err();
            assert_eq!(e.error.fault, Fault::Short { have: len });
            assert_eq!((e.prefix, e.answer(Role::Responder)), (None, None));
        }
    }
    let bytes = message(&[XID, 2, 1, htype::GRANT]);
    assert!(decode(&bytes, Versions::V2, &Limits::DEFAULT).is_ok(), "16 bytes, not 20");
}

/// RFC 8166 section 4.5 sets the minimum of 28 bytes for an end that speaks version 1.
#[test]
fn test_version_1_message_below_28_bytes_is_discarded() {
    let nomsg = message(&[XID, 1, 1, procedure::MSG, 0, 0, 2]);
    for len in 16..28 {
        let e = decode(&nomsg[..len], BOTH, &Limits::DEFAULT).unwrap_err();
        assert_eq!(e.answer(Role::Responder), None, "{len}");
    }
    let e = decode(&nomsg, BOTH, &Limits::DEFAULT).unwrap_err();
    assert!(e.answer(Role::Responder).is_some());
    let other = [XID, 3, 1, 0];
    assert_eq!(answer_to(&other, ONLY_1, Role::Responder), None);
    assert_eq!(answer_to(&other, Versions::V1, Role::Responder), None);
    assert_eq!(answer_to(&other, BOTH, Role::Responder), versions(1, 2));
}

#[test]
fn test_unsupported_version_is_answered_with_supported_ones() {
    for version in [0, 3, u32::MAX] {
        let other = [XID, version, 1, 0, 0, 0, 0];
        let answer = |versions| answer_to(&other, versions, Role::Responder);
        assert_eq!(answer(BOTH), versions(1, 2));
        assert_eq!(answer(ONLY_1), versions(1, 1));
        assert_eq!(answer(ONLY_2), versions(2, 2));
        assert_eq!(answer(Versions::V1), versions(1, 1));
        assert_eq!(answer(Versions::V2), versions(2, 2));
    }
    let second = [XID, 2, 1, htype::CALL_INLINE, 0, 0, 0, 0, XID];
    assert_eq!(answer_to(&second, ONLY_1, Role::Responder), versions(1, 1));
}

#[test]
fn test_message_of_wrong_version_is_answered_in_the_version_of_its_sender() {
    let second = [XID, 2, 1, htype::CALL_INLINE, 0, 0, 0, 0, XID];
    assert_eq!(answer_to(&second, Versions::V1, Role::Responder), MISMATCH);
    let first = [XID, 1, 1, procedure::MSG, 0, 0, 0, XID];
    assert_eq!(answer_to(&first, Versions::V2, Role::Responder), versions(2, 2));
}

/// A client that asked in version 2 reads the answer of a version 1 server.
#[test]
fn test_answer_to_the_first_message_is_read_in_either_version() {
    for version in [1, 2] {
        let bytes = message(&[XID, version, 1, KIND_ERROR, 1, 1, 1]);
        let got = decode(&bytes, ONLY_2, &Limits::DEFAULT).unwrap();
        let header = match got.header {
            Header::V1(h) => {
                (h.xid, h.body == v1::Body::Error(v1::Refusal::Versions { low: 1, high: 1 }))
            }
            Header::V2(h) => {
                (h.xid, h.body == v2::Body::Error(v2::Refusal::Versions { low: 1, high: 1 }))
            }
        };
        assert_eq!(header, (Xid(XID), true));
    }
    let later = failure(&[XID, 1, 1, KIND_ERROR, 1, 1, 1], Versions::V2);
    assert_eq!(later.error.fault, Fault::Version { version: 1 });
}

#[test]
fn test_errors_are_never_answered() {
    for version in [0, 1, 2, 3] {
        let bad = [XID, version, 1, KIND_ERROR, 1, 1, 1, 1];
        for versions in ALL {
            assert_eq!(answer_to(&bad, versions, Role::Responder), None, "{version}");
        }
    }
    // Version 1 has two error codes; this is neither.
    assert_eq!(refuse_v1(&[procedure::ERROR, 3, 0, 0], Role::Responder), None);
}

#[test]
fn test_version_1_answers_calls_and_discards_replies() {
    let (responder, requester) = (Role::Responder, Role::Requester);
    // The message shows no direction, so the role of the end decides.
    for bad in [&[procedure::MSG, 2, 0, 0][..], &[5, 0, 0, 0], &[procedure::NOMSG, 0, 0, 0]] {
        assert_eq!(refuse_v1(bad, responder), CHUNK);
        assert_eq!(refuse_v1(bad, requester), None);
    }
    // The payload shows the direction, also for reverse-direction calls.
    let call = [procedure::MSG, 0, 0, 0, XID + 1, 0];
    let reply = [procedure::MSG, 0, 0, 0, XID + 1, 1];
    for role in [responder, requester] {
        assert_eq!(refuse_v1(&call, role), CHUNK);
        assert_eq!(refuse_v1(&reply, role), None);
    }
}

#[test]
fn test_version_1_xid_is_that_of_the_payload() {
    let e = failure(&[XID, 1, 1, procedure::MSG, 0, 0, 0, XID ^ 1, 0], BOTH);
    assert_eq!(e.error, Error { at: 28, fault: Fault::XidMismatch { inner: XID ^ 1 } });
    assert_eq!(e.direction, Some(Direction::Call));
    let e = failure(&[XID, 1, 1, procedure::MSG, 0, 0, 0], BOTH);
    assert_eq!(e.error.fault, Fault::Xdr(xdr::Fault::End { need: 4, have: 0 }));
}

#[test]
fn test_version_1_reply_has_no_read_chunks() {
    let list = [1, 40, 1, 8, 0, 0, 0];
    let with = |kind| [&[XID, 1, 1, procedure::MSG], &list[..], &[0, 0, XID, kind]].concat();
    assert!(decode(&message(&with(0)), BOTH, &Limits::DEFAULT).is_ok());
    let e = failure(&with(1), BOTH);
    assert_eq!(e.error.fault, Fault::ReadsInReply);
    assert_eq!(e.answer(Role::Responder), None);
    // An RDMA_NOMSG with a Reply chunk, and Read chunks without a body.
    let e = failure(&[&[XID, 1, 1, procedure::NOMSG], &list[..], &[0, 1, 0]].concat(), BOTH);
    assert_eq!(e.error.fault, Fault::ReadsInReply);
}

#[test]
fn test_obsolete_version_1_procedures_are_refused_or_ignored() {
    let padded = [procedure::MSGP, 0, 0, 0, 0, 0, XID];
    assert_eq!(refuse_v1(&padded, Role::Responder), CHUNK);
    assert_eq!(refuse_v1(&padded, Role::Requester), None);
    for role in [Role::Responder, Role::Requester] {
        assert_eq!(refuse_v1(&[procedure::DONE], role), None);
        assert_eq!(refuse_v1(&[procedure::DONE, 0, 0, 0], role), None);
    }
}

#[test]
fn test_direction_of_version_1_message_is_read_from_its_payload() {
    let kind = |units: &[u32]| decode(&message(units), BOTH, &Limits::DEFAULT).unwrap().direction();
    assert_eq!(kind(&[XID, 1, 1, procedure::MSG, 0, 0, 0, XID, 0]), Some(Direction::Call));
    assert_eq!(kind(&[XID, 1, 1, procedure::MSG, 0, 0, 0, XID, 1]), Some(Direction::Reply));
    assert_eq!(kind(&[XID, 1, 1, procedure::MSG, 0, 0, 0, XID, 2]), None);
    assert_eq!(kind(&[XID, 1, 1, procedure::MSG, 0, 0, 0, XID]), None);
    let body = [XID, 1, 1, procedure::NOMSG, 1, 0, 1, 40, 0, 0, 0, 0, 0];
    assert_eq!(kind(&body), Some(Direction::Call));
    assert_eq!(kind(&[XID, 1, 1, procedure::NOMSG, 0, 0, 1, 0]), Some(Direction::Reply));
    assert_eq!(kind(&[XID, 1, 1, procedure::ERROR, 2]), None);
}

#[test]
fn test_version_2_header_type_that_is_not_known_is_answered() {
    for kind in [0, 1, 2, 3, 14, 100, u32::MAX] {
        assert_eq!(refuse_v2(&[kind]), Some(v2::Refusal::InvalHtype), "{kind}");
    }
}

#[test]
fn test_version_2_answers_calls_and_properties_and_discards_the_rest() {
    let bad = v2::Refusal::BadXdr;
    for kind in [htype::CALL_EXTERNAL, htype::CALL_MIDDLE, htype::CALL_INLINE] {
        assert_eq!(refuse_v2(&[kind]), Some(bad));
    }
    for kind in [htype::CONNPROP_MIDDLE, htype::CONNPROP_FINAL] {
        assert_eq!(refuse_v2(&[kind]), Some(bad));
        assert_eq!(refuse_v2(&[kind, 0, 0]), Some(bad), "bytes behind the set");
    }
    for kind in [htype::REPLY_EXTERNAL, htype::REPLY_MIDDLE, htype::REPLY_INLINE, htype::ERROR] {
        assert_eq!(refuse_v2(&[kind]), None);
    }
    assert_eq!(refuse_v2(&[htype::GRANT, 0]), None);
}

#[test]
fn test_version_2_bad_property_is_refused_with_its_own_code() {
    let last = htype::CONNPROP_FINAL;
    let bad = Some(v2::Refusal::BadPropval);
    // The length differs from the type's; the value is longer than the message; the padding is not
    // zero.
    assert_eq!(refuse_v2(&[last, 1, 1, 8, 0, 0]), bad);
    assert_eq!(refuse_v2(&[last, 1, 1, 3, 0]), bad);
    assert_eq!(refuse_v2(&[last, 1, 1, 400, 0]), bad);
    assert_eq!(refuse_v2(&[last, 1, 99, 400, 0]), bad);
    assert_eq!(refuse_v2(&[last, 1, 99, 1, 1]), bad);
    // The property set itself ends early.
    assert_eq!(refuse_v2(&[last, 2, 1, 4, 0]), Some(v2::Refusal::BadXdr));
    let e = failure(&[XID, 2, 1, last, 2, 99, 0, 5, 4, 0, 1, 2], Versions::V2);
    assert_eq!(e.error.fault, Fault::Xdr(xdr::Fault::Trailing { left: 8 }));
    let e = failure(&[XID, 2, 1, last, 2, 99, 0, 5, 8, 0, 1], Versions::V2);
    assert_eq!(e.error, Error { at: 28, fault: Fault::Propval { id: 5 } });
}

#[test]
fn test_refusal_of_too_many_version_2_chunks_states_the_limit() {
    let limits = Limits { read_chunks: 1, write_chunks: 0, segments: 1 };
    let answer = |lists: &[u32]| {
        let units = [&[XID, 2, 1, htype::CALL_INLINE, 0], lists].concat();
        let bytes = message(&units);
        let failure = decode(&bytes, Versions::V2, &limits).unwrap_err();
        failure.answer(Role::Responder).map(|a| a.refusal)
    };
    let read = |position| [1, position, 1, 8, 0, 0];
    let (a, b) = (read(40), read(48));
    let refusal = |r| Some(Refusal::V2(r));
    let both = [&a[..], &b, &[0, 0, 0, XID]].concat();
    assert_eq!(answer(&both), refusal(v2::Refusal::ReadChunks { max: 1 }));
    let twice = [&a[..], &a, &[0, 0, 0, XID]].concat();
    assert_eq!(answer(&twice), refusal(v2::Refusal::Segments { max: 1 }));
    assert_eq!(answer(&[0, 1, 0, 0, 0, XID]), refusal(v2::Refusal::WriteChunks { max: 0 }));
    let order = [&b[..], &a, &[0, 0, 0, XID]].concat();
    assert_eq!(answer(&order), refusal(v2::Refusal::BadXdr));
    let reply = [XID, 2, 1, htype::REPLY_INLINE, 1, 0, 0, XID];
    let failure = decode(&message(&reply), Versions::V2, &limits).unwrap_err();
    assert_eq!(failure.answer(Role::Requester), None);
}

#[test]
fn test_external_version_2_messages_need_a_body_chunk() {
    let call = failure(&[XID, 2, 1, htype::CALL_EXTERNAL, 0, 0, 0, 0, 0], Versions::V2);
    assert_eq!(call.error.fault, Fault::Chunk(chunk::Fault::NoBody));
    let reply = failure(&[XID, 2, 1, htype::REPLY_EXTERNAL, 0, 0], Versions::V2);
    assert_eq!(reply.error, Error { at: 20, fault: Fault::NoPayload });
}

#[test]
fn test_credits_of_malformed_version_2_message_are_read() {
    let e = failure(&[XID, 2, 77, htype::REPLY_EXTERNAL, 9], Versions::V2);
    assert_eq!(e.prefix.map(|p| p.credit), Some(77));
}

#[test]
fn test_version_2_only_a_handle_of_the_header_is_invalidated() {
    let segment = |handle| Segment { handle: crate::Handle(handle), length: 8, offset: 0 };
    let reads = [ReadSegment { position: 40, target: segment(1) }];
    let (writes, reply) = ([segment(2)], [segment(3)]);
    let writes = [chunk::WriteChunk::new(&writes).unwrap()];
    let chunks = v1::Chunks {
        reads: chunk::ReadList::new(&reads, chunk::ZeroPosition::Never).unwrap(),
        writes: chunk::WriteList::new(&writes),
        reply: Some(chunk::WriteChunk::new(&reply).unwrap()),
    };
    let offer = |handle| {
        let body = v2::Body::CallInline { invalidate: crate::Handle(handle), chunks };
        v2::Header { xid: Xid(1), credit: 1, body }.invalidate().map(|h| h.0)
    };
    assert_eq!([0, 1, 2, 3, 4].map(offer), [None, Some(1), Some(2), Some(3), None]);
    let body = [ReadSegment { position: 0, target: segment(5) }];
    let call = chunk::ReadList::new(&body, chunk::ZeroPosition::Only).unwrap();
    let offer = |handle| {
        let body = v2::Body::CallExternal { invalidate: crate::Handle(handle), call, chunks };
        v2::Header { xid: Xid(1), credit: 1, body }.invalidate().map(|h| h.0)
    };
    assert_eq!([3, 4, 5].map(offer), [Some(3), None, Some(5)]);
}
