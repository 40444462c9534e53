use super::*;
use crate::segment::Handle;
use crate::v1::Chunks;
use crate::v2::PropertySet;
use proptest::prelude::*;

fn header(xid: u32, body: Body<'static>) -> Header<'static> {
    Header { xid: Xid(xid), credit: 8, body }
}

fn middle(remaining: u32) -> Body<'static> {
    Body::CallMiddle { remaining }
}

const LAST: Body<'static> = Body::CallInline { invalidate: Handle(0), chunks: Chunks::NONE };
const REPLY: Body<'static> = Body::ReplyInline { writes: crate::chunk::WriteList::EMPTY };

fn props(last: bool) -> Body<'static> {
    Body::ConnProp { last, props: PropertySet::EMPTY }
}

fn payload(xid: u32, len: usize) -> Vec<u8> {
    let mut p = xid.to_be_bytes().to_vec();
    p.resize(len, 0);
    p
}

fn part(offset: u32, total: u32, last: bool) -> Result<Step, Error> {
    Ok(Step::Part { direction: Direction::Call, xid: Xid(7), offset, total, last })
}

#[test]
fn test_parts_of_a_call_are_appended_in_order() {
    let mut s = Sequence::new(1000);
    assert_eq!(s.receive(&header(7, middle(900)), &payload(7, 100)), part(0, 1000, false));
    assert_eq!(s.receive(&header(7, middle(400)), &[1; 500]), part(100, 1000, false));
    assert_eq!(s.receive(&header(7, LAST), &[2; 400]), part(600, 1000, true));
    assert_eq!(s.receive(&header(7, LAST), &payload(7, 40)), part(0, 40, true));
}

#[test]
fn test_only_the_first_part_begins_with_the_xid() {
    let mut s = Sequence::new(1000);
    let e = s.receive(&header(7, LAST), &payload(8, 40)).unwrap_err();
    assert_eq!(e.fault, Fault::XidMismatch { inner: 8 });
    assert_eq!(e.answer().map(|a| a.refusal), Some(Refusal::V2(v2::Refusal::BadXdr)));
    let e = s.receive(&header(7, REPLY), &payload(8, 40)).unwrap_err();
    assert_eq!(e.answer(), None);
    s.receive(&header(7, middle(4)), &payload(7, 40)).unwrap();
    assert_eq!(s.receive(&header(7, LAST), &payload(8, 4)), part(40, 44, true));
}

/// The receiver refuses any message that may not come within a sequence, and ends the sequence.
#[test]
fn test_another_message_within_a_sequence_is_refused_and_ends_it() {
    let others = [
        (7, Body::ReplyMiddle { remaining: 4 }),
        (7, REPLY),
        (8, LAST),
        (8, middle(4)),
        (7, props(true)),
        (
            7,
            Body::CallExternal {
                invalidate: Handle(0),
                call: crate::chunk::ReadList::EMPTY,
                chunks: Chunks::NONE,
            },
        ),
    ];
    for (xid, body) in others {
        let mut s = Sequence::new(1000);
        s.receive(&header(7, middle(100)), &payload(7, 100)).unwrap();
        let e = s.receive(&header(xid, body), &payload(xid, 100)).unwrap_err();
        assert_eq!(e.fault, Fault::Next, "{body:?}");
        let answer = e.answer().map(|a| (a.xid, a.refusal));
        let reply = header(0, body).direction() == Some(Direction::Reply);
        let want = (Xid(xid), Refusal::V2(v2::Refusal::InvalCont));
        assert_eq!(answer, (!reply).then_some(want));
        // The rest of the first message is no message of its own, so its sender gets an error, too.
        let rest = s.receive(&header(7, LAST), &[9; 100]).map_err(|e| e.fault);
        assert_eq!(rest, Err(Fault::XidMismatch { inner: 0x0909_0909 }));
    }
}

#[test]
fn test_parts_of_a_refused_message_are_discarded_up_to_the_last() {
    let mut s = Sequence::new(1000);
    s.receive(&header(7, middle(2000)), &payload(7, 40)).unwrap_err();
    assert_eq!(s.receive(&header(0, Body::Grant), &[]), Ok(Step::Alone));
    assert_eq!(s.receive(&header(7, middle(1000)), &[1; 1000]), Ok(Step::Discard));
    assert_eq!(s.receive(&header(7, LAST), &[1; 1000]), Ok(Step::Discard));
    assert_eq!(s.receive(&header(7, LAST), &payload(7, 40)), part(0, 40, true));
    // Another message also shows that no more parts come.
    s.receive(&header(7, middle(2000)), &payload(7, 40)).unwrap_err();
    assert!(s.receive(&header(8, LAST), &payload(8, 40)).is_ok());
    assert_eq!(s.receive(&header(7, LAST), &payload(7, 40)), part(0, 40, true));
    // A reply with the same XID is another message.
    s.receive(&header(7, middle(2000)), &payload(7, 40)).unwrap_err();
    assert!(s.receive(&header(7, REPLY), &payload(7, 40)).is_ok());
}

#[test]
fn test_grant_and_error_may_arrive_between_parts() {
    let mut s = Sequence::new(1000);
    s.receive(&header(7, middle(60)), &payload(7, 40)).unwrap();
    assert_eq!(s.receive(&header(0, Body::Grant), &[]), Ok(Step::Alone));
    let error = Body::Error(v2::Refusal::System);
    assert_eq!(s.receive(&header(3, error), &[]), Ok(Step::Alone));
    assert_eq!(s.receive(&header(7, LAST), &[2; 60]), part(40, 100, true));
}

#[test]
fn test_parts_that_do_not_add_up_are_refused() {
    for (body, len) in [(LAST, 56), (LAST, 64), (middle(20), 44), (middle(16), 40)] {
        let mut s = Sequence::new(1000);
        s.receive(&header(7, middle(60)), &payload(7, 40)).unwrap();
        let e = s.receive(&header(7, body), &payload(7, len)).unwrap_err();
        assert!(matches!(e.fault, Fault::Length { expected: 100, .. }), "{:?}", e.fault);
    }
}

#[test]
fn test_message_longer_than_the_receiver_takes_is_refused_at_its_first_part() {
    let mut s = Sequence::new(1000);
    let e = s.receive(&header(7, middle(961)), &payload(7, 40)).unwrap_err();
    assert_eq!(e.fault, Fault::TooLong { told: 1001 });
    assert_eq!(e.answer().map(|a| a.refusal), Some(Refusal::V2(v2::Refusal::System)));
    let mut s = Sequence::new(1000);
    let e = s.receive(&header(7, middle(u32::MAX)), &payload(7, 40)).unwrap_err();
    assert_eq!(e.fault, Fault::TooLong { told: u64::from(u32::MAX) + 40 });
    let mut s = Sequence::new(1000);
    assert_eq!(s.receive(&header(7, middle(960)), &payload(7, 40)), part(0, 1000, false));
    let mut s = Sequence::new(0);
    assert_eq!(s.receive(&header(7, LAST), &payload(7, 40)), part(0, 40, true));
}

#[test]
fn test_properties_are_accepted_in_one_sequence_only() {
    let mut s = Sequence::new(1000);
    assert!(s.receive(&header(1, LAST), &payload(1, 40)).is_ok());
    let step = |last| Ok(Step::Properties { last });
    assert_eq!(s.receive(&header(2, props(false)), &[]), step(false));
    assert_eq!(s.receive(&header(3, props(false)), &[]), step(false));
    assert_eq!(s.receive(&header(4, props(true)), &[]), step(true));
    for last in [false, true] {
        let e = s.receive(&header(5, props(last)), &[]).unwrap_err();
        assert_eq!(e.fault, Fault::PropertiesOver);
        assert_eq!(e.answer().map(|a| a.refusal), Some(Refusal::V2(v2::Refusal::InvalCont)));
    }
    let mut s = Sequence::new(1000);
    s.receive(&header(2, props(false)), &[]).unwrap();
    let e = s.receive(&header(7, LAST), &payload(7, 40)).unwrap_err();
    assert_eq!(e.fault, Fault::Next);
}

#[test]
fn test_parts_of_a_stream_need_room_for_a_word() {
    let all =
        |total, header, threshold| parts(total, header, threshold).map(|p| p.collect::<Vec<_>>());
    assert_eq!(all(40, 20, 23), None);
    assert_eq!(all(40, 24, 20), None);
    assert_eq!(all(12, 20, 24), Some(vec![(0, 4, 8), (4, 4, 4), (8, 4, 0)]));
    assert_eq!(all(40, 20, 60), Some(vec![(0, 40, 0)]));
    assert_eq!(all(44, 20, 60), Some(vec![(0, 40, 4), (40, 4, 0)]));
    assert_eq!(all(0, 20, 60), None);
    assert_eq!(all(42, 20, 60), None, "no XDR stream");
}

proptest! {
    /// The receiver gets a stream that was sent in parts unchanged, whatever the threshold.
    #[test]
    fn prop_what_is_sent_in_parts_is_received(words in 1u32..500, threshold in 24u32..2000) {
        let total = 4 * words;
        let mut s = Sequence::new(total);
        let stream = payload(7, total as usize);
        let mut at = 0;
        let mut whole = false;
        for (offset, len, remaining) in parts(total, 20, threshold).unwrap() {
            prop_assert!(!whole && len >= 4 && len + 20 <= threshold);
            let body = if remaining == 0 { LAST } else { middle(remaining) };
            let piece = &stream[offset as usize..(offset + len) as usize];
            let step = s.receive(&header(7, body), piece);
            prop_assert_eq!(step, part(at, total, remaining == 0));
            at += len;
            whole = remaining == 0;
        }
        prop_assert!(whole && at == total);
    }
}
