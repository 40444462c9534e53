//! The encodings on the wire of successful calls and replies.

use heddle_base::{Random, Seed};
use heddle_rpcrdma::conn::{Call, Event, ReplyRoom, ReplyStream, Speaks};
use heddle_rpcrdma::header::{Direction, Header};
use heddle_rpcrdma::property::{Properties, ReverseSupport, Thresholds};
use heddle_rpcrdma::{Handle, Xid, v2};

use crate::conn::exchange::message;
use crate::conn::model::{End, execute, settle};
use crate::conn::negotiation::{null_call, pair, serve};
use crate::conn::scene::{
    NOW, answer, big_call, chunks, ended, established, give, long_call, parse, reply, take_sent,
    words,
};

const VERSIONS: [(Speaks, u32); 2] = [(Speaks::V1, 1), (Speaks::V2, 2)];

fn random() -> Random {
    Random::new(&Seed::from_u64(3))
}

fn kinds(end: &End) -> Vec<u32> {
    end.sent.iter().map(|bytes| words(bytes)[3]).collect()
}

/// Calls of both directions, and their replies.
#[test]
fn test_messages_carry_version_of_connection_and_xid_of_payload() {
    for (speaks, version) in [(Speaks::V1, 1), (Speaks::V2, 2), (Speaks::BOTH, 2)] {
        let properties = Properties { reverse: ReverseSupport::General, ..Properties::DEFAULT };
        let (mut c, mut s) = established(speaks, |config| config.properties = properties);
        for xid in 1..4 {
            big_call(&mut c, xid, 9000, 9000);
            settle(&mut c, &mut s, NOW);
            answer(&mut s, &reply(xid, 9000, 0));
            settle(&mut c, &mut s, NOW);
        }
        assert_eq!(ended(&mut c).len(), 3);
        // The XIDs of the two directions are independent.
        null_call(&mut c, 3);
        null_call(&mut s, 3);
        settle(&mut c, &mut s, NOW);
        assert_eq!((serve(&mut c), serve(&mut s)), (1, 1));
        settle(&mut c, &mut s, NOW);
        assert!(matches!(ended(&mut s)[..], [Event::Reply { .. }]));
        assert!(matches!(ended(&mut c)[..], [Event::Reply { .. }]));
        let mut seen = 0;
        for bytes in c.sent.iter().chain(&s.sent) {
            assert_eq!(words(bytes)[1], version);
            let message = parse(bytes, version);
            if let Some(xid) = message.payload.first_chunk() {
                seen += 1;
                assert_eq!(words(bytes)[0], u32::from_be_bytes(*xid));
            }
            if message.direction() == Some(Direction::Reply) {
                assert!(chunks(&message).reads.is_empty());
            }
        }
        assert_eq!(seen, 10);
    }
}

/// The items have lengths that are no multiple of four, and several segments.
#[test]
fn test_chunks_are_as_long_as_their_items_and_come_back_unchanged() {
    for (speaks, version) in VERSIONS {
        let (mut c, mut s) = established(speaks, |config| config.registration_max = 2000);
        let of = message(Xid(1), 0, &[5001], 2, &mut random());
        let (stream, room) = ([c.mem.sge(of.bytes.clone())], [c.mem.sge(vec![0x77; 6003])]);
        let rooms: &[&[_]] = &[&room];
        let reply_room = ReplyRoom { stream_max: Some(100), items: rooms, whole: &[] };
        let call = Call {
            xid: Xid(1),
            stream: &stream,
            items: &of.items,
            reply: Some(reply_room),
            deadline: None,
        };
        c.conn.call(&call).unwrap();
        settle(&mut c, &mut s, NOW);
        let sent = c.sent[0].clone();
        let sent = parse(&sent, version);
        let provided = chunks(&sent);
        let reads: Vec<_> =
            provided.reads.segments().map(|s| (s.position, s.target.length)).collect();
        assert_eq!(reads, [(44, 2000), (44, 2000), (44, 1001)]);
        let write = provided.writes.chunks().next().unwrap();
        let lengths: Vec<_> = write.segments().map(|s| s.length).collect();
        assert_eq!((provided.writes.len(), lengths), (1, vec![2000, 2000, 2000, 3]));
        // The stream holds the item's length, but neither the item nor its padding.
        assert_eq!(sent.payload, [&of.bytes[..44], &of.bytes[44 + 5004..]].concat());

        answer(&mut s, &reply(1, 5999, 0));
        settle(&mut c, &mut s, NOW);
        let [Event::Reply { reply, .. }] = ended(&mut c)[..] else { panic!("no reply") };
        assert_eq!(reply.filled.as_slice(), [5999]);
        let back = s.sent[0].clone();
        let back = parse(&back, version);
        let returned: Vec<_> = chunks(&back).writes.chunks().next().unwrap().segments().collect();
        let lengths: Vec<_> = returned.iter().map(|s| s.length).collect();
        assert_eq!(lengths, [2000, 2000, 1999, 0]);
        let places = |(a, b): (&heddle_rpcrdma::Segment, heddle_rpcrdma::Segment)| {
            (a.handle, a.offset) == (b.handle, b.offset)
        };
        assert!(returned.iter().zip(write.segments()).all(places));
        assert_eq!((s.posted[2], &c.mem.at(room[0])[5999..]), (3, &[0x77; 4][..]), "no padding");
        assert_eq!(back.payload.len(), 44);
    }
}

/// The call has a chunk for one result, wants another result inline, and has a chunk without a
/// result.
#[test]
fn test_empty_and_unused_chunks_come_back_empty_and_unused() {
    for (speaks, version) in VERSIONS {
        let (mut c, mut s) = established(speaks, |_| {});
        let stream = [c.mem.sge(message(Xid(1), 0, &[], 0, &mut random()).bytes)];
        let rooms = [6000, 6000].map(|bytes| [c.mem.sge(vec![0; bytes])]);
        let rooms: &[&[_]] = &[&rooms[0], &[], &rooms[1]];
        let reply_room = ReplyRoom { stream_max: Some(300), items: rooms, whole: &[] };
        let call = Call {
            xid: Xid(1),
            stream: &stream,
            items: &[],
            reply: Some(reply_room),
            deadline: None,
        };
        c.conn.call(&call).unwrap();
        settle(&mut c, &mut s, NOW);
        answer(&mut s, &message(Xid(1), 1, &[5000, 70], 0, &mut random()));
        settle(&mut c, &mut s, NOW);
        let back = parse(&s.sent[0], version);
        let lengths: Vec<Vec<_>> = chunks(&back)
            .writes
            .chunks()
            .map(|c| c.segments().map(|s| s.length).collect())
            .collect();
        assert_eq!(lengths, [vec![5000], vec![], vec![0]]);
        // The payload has the first result's length, and the second result with its length.
        assert_eq!(back.payload.len(), 44 + 4 + 72);
        let [Event::Reply { reply, .. }] = ended(&mut c)[..] else { panic!("no reply") };
        assert_eq!(reply.filled.as_slice(), [5000, 0, 0]);
    }
}

/// Without private data or properties, a message may have 1024 bytes in version 1 and 4096 in
/// version 2.
#[test]
fn test_default_thresholds_apply_without_private_data_or_properties() {
    let (mut c, mut s) = established(Speaks::V1, |_| {});
    assert_eq!(c.conn.thresholds(), Thresholds { send: 1024, receive: 1024 });
    long_call(&mut c, 1, 1024 - 28);
    settle(&mut c, &mut s, NOW);
    answer(&mut s, &reply(1, 0, (1024 - 28 - 44) / 4));
    settle(&mut c, &mut s, NOW);
    long_call(&mut c, 2, 1024 - 24);
    settle(&mut c, &mut s, NOW);
    assert_eq!((kinds(&c), kinds(&s)), (vec![0, 1], vec![0]));
    assert_eq!((c.sent[0].len(), s.sent[0].len()), (1024, 1024));

    // The first message that a client receives is a GRANT, so no properties have come.
    let (mut c, _) = pair(Speaks::V2, Speaks::V2);
    drop(take_sent(&mut c));
    give(&mut c, &[0, 2, 500, 5]);
    assert_eq!(c.conn.thresholds(), Thresholds { send: 4096, receive: 4096 });
    long_call(&mut c, 1, 4096 - 32);
    long_call(&mut c, 2, 4096 - 28);
    let sent = take_sent(&mut c);
    assert_eq!(sent.iter().map(|words| words[3]).collect::<Vec<_>>(), [10, 9, 10]);
    assert_eq!(sent[0].len() * 4, 4096);
    let (_, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
    give(&mut s, &[1, 2, 500, 10, 0, 0, 0, 0, 1, 0]);
    s.take_events();
    answer(&mut s, &reply(1, 0, (4096 - 20 - 44) / 4));
    give(&mut s, &[2, 2, 500, 10, 0, 0, 0, 0, 2, 0]);
    answer(&mut s, &reply(2, 0, (4096 - 16 - 44) / 4));
    let sent = take_sent(&mut s);
    let of = |xid| sent.iter().filter(move |w| w[0] == xid).map(|w| w[3]).collect::<Vec<_>>();
    assert_eq!((of(1), of(2)), (vec![13], vec![12, 13]));
}

/// The call is too long for a Send even without its item.
#[test]
fn test_long_call_goes_in_a_body_chunk_of_position_zero() {
    for (speaks, version) in VERSIONS {
        let (mut c, mut s) = established(speaks, |config| config.parts_max = 1);
        let of = message(Xid(1), 0, &[5001], 3000, &mut random());
        let stream = [c.mem.sge(of.bytes.clone())];
        let reply_room = ReplyRoom { stream_max: Some(24), ..ReplyRoom::default() };
        let call = Call {
            xid: Xid(1),
            stream: &stream,
            items: &of.items,
            reply: Some(reply_room),
            deadline: None,
        };
        c.conn.call(&call).unwrap();
        settle(&mut c, &mut s, NOW);
        assert_eq!(kinds(&c), [if version == 1 { 1 } else { 8 }]);
        let sent = parse(&c.sent[0], version);
        assert_eq!(sent.payload, []);
        let (body, items) = match sent.header {
            Header::V1(header) => {
                assert_eq!(header.xid, Xid(1));
                (chunks(&sent).reads.body().unwrap().length(), chunks(&sent).reads)
            }
            Header::V2(header) => {
                assert_eq!(header.xid, Xid(1));
                let v2::Body::CallExternal { call, chunks, .. } = header.body else {
                    panic!("{header:?}")
                };
                assert!(call.segments().all(|s| s.position == 0));
                assert!(chunks.reads.segments().all(|s| s.position != 0));
                (call.body().unwrap().length(), chunks.reads)
            }
        };
        // The whole stream without the item and its padding.
        assert_eq!(body, 44 + 12_000);
        let items: Vec<_> = items.items().map(|c| (c.position(), c.length())).collect();
        assert_eq!(items, [(44, 5001)]);
        s.take_events();
        let Some(Event::Call(call)) =
            s.events.iter().find(|e| matches!(e, Event::Call(_))).copied()
        else {
            panic!("no call")
        };
        assert!(s.mem.taken(call.buffer, call.length) == of.bytes);
    }
}

/// A Reply chunk holds a reply that is too long for a Send, and stays unused by a shorter reply.
#[test]
fn test_reply_chunk_holds_long_replies_and_comes_back_in_every_reply() {
    for (speaks, version) in VERSIONS {
        for (rest, long) in [(3000, true), (3, false)] {
            let (mut c, mut s) = established(speaks, |_| {});
            let stream = [c.mem.sge(message(Xid(1), 0, &[], 0, &mut random()).bytes)];
            let whole = [c.mem.sge(vec![0; 20_000])];
            let reply_room = Some(ReplyRoom { stream_max: None, items: &[], whole: &whole });
            let call = Call {
                xid: Xid(1),
                stream: &stream,
                items: &[],
                reply: reply_room,
                deadline: None,
            };
            c.conn.call(&call).unwrap();
            settle(&mut c, &mut s, NOW);
            let of = message(Xid(1), 1, &[9], rest, &mut random());
            // No item of the reply may be placed.
            let call = crate::conn::scene::take_call(&mut s);
            let stream = [s.mem.sge(of.bytes.clone())];
            s.conn.reply(call, &stream, &[]).unwrap();
            settle(&mut c, &mut s, NOW);
            let [Event::Reply { reply, .. }] = ended(&mut c)[..] else { panic!("no reply") };
            let back = parse(&s.sent[0], version);
            let bytes = u32::try_from(of.bytes.len()).unwrap();
            let kind = match (version, long) {
                (1, true) => 1,
                (1, false) => 0,
                (_, true) => 11,
                (_, false) => 13,
            };
            assert_eq!((kinds(&s), s.posted[2]), (vec![kind], usize::from(long)));
            assert_eq!(words(&s.sent[0])[0], 1);
            if long {
                assert_eq!(reply.stream, ReplyStream::Chunk { length: bytes });
                assert!(c.mem.at(whole[0])[..bytes as usize] == of.bytes);
                assert_eq!(chunks(&back).reply.map(|c| c.length()), Some(bytes));
            } else {
                assert!(
                    matches!(reply.stream, ReplyStream::Buffer { length, .. } if length == bytes)
                );
                let returned = chunks(&back).reply.map(|c| (c.len(), c.length()));
                assert_eq!(returned, (version == 1).then_some((1, 0)));
            }
        }
    }
}

/// Several calls go in parts, with short calls between them, and few credits.
#[test]
fn test_parts_are_sent_in_order_and_not_mixed_with_other_messages() {
    let (mut c, mut s) = established(Speaks::V2, |config| config.credits = 3);
    let mut bytes = Vec::new();
    for xid in 1..6 {
        long_call(&mut c, xid, 9000);
        let of = message(
            Xid(xid),
            0,
            &[],
            (9000 - 40) / 4,
            &mut Random::new(&Seed::from_u64(xid.into())),
        );
        bytes.push(of.bytes);
        null_call(&mut c, 100 + xid);
    }
    for _ in 0..20 {
        settle(&mut c, &mut s, NOW);
        serve(&mut s);
    }
    assert_eq!(ended(&mut c).len(), 10);
    let (mut coming, mut got): (Option<(u32, u32)>, Vec<u8>) = (None, Vec::new());
    let mut whole = Vec::new();
    for sent in c.sent.iter().filter(|bytes| words(bytes)[3] != 5) {
        let [xid, _, _, kind, remaining, ..] = words(sent)[..] else { panic!("short") };
        let message = parse(sent, 2);
        if let Some((of, left)) = coming {
            assert_eq!((xid, kind == 9 || kind == 10), (of, true));
            assert!(message.payload.len() <= left as usize);
        }
        got.extend(message.payload);
        assert!(sent.len() <= 4096);
        coming = (kind == 9).then_some((xid, remaining));
        if kind == 10 {
            assert_eq!(words(&got)[0], xid);
            whole.push(std::mem::take(&mut got));
        }
    }
    whole.retain(|stream| stream.len() > 40);
    assert!(whole == bytes);
}

#[test]
fn test_credits_of_version_1_are_asked_for_and_granted() {
    let (mut c, mut s) = established(Speaks::V1, |config| (config.calls, config.served) = (10, 3));
    for xid in 1..=10 {
        null_call(&mut c, xid);
    }
    settle(&mut c, &mut s, NOW);
    assert_eq!(c.sent.len(), 1, "one until the first reply");
    assert_eq!(serve(&mut s), 1);
    settle(&mut c, &mut s, NOW);
    assert_eq!(c.sent.len(), 4, "as many as were granted");
    assert!(c.sent.iter().all(|bytes| words(bytes)[2] == 10));
    assert_eq!(words(&s.sent[0])[2], 3);
    for _ in 0..10 {
        serve(&mut s);
        settle(&mut c, &mut s, NOW);
    }
    assert_eq!(ended(&mut c).len(), 10);
    assert!(s.sent.iter().all(|bytes| words(bytes)[2] == 3));
}

/// The credit field is the number of received messages plus the number that may still come. GRANTs
/// have XID zero, and their receiver ignores the XID.
#[test]
fn test_version_2_credit_field_counts_received_and_expected_messages() {
    // Nothing was received, so the field is the number that the client advertises.
    let (mut first, _) = pair(Speaks::V2, Speaks::V2);
    assert_eq!(take_sent(&mut first)[0][2], 64);
    let (mut c, mut s) = established(Speaks::V2, |config| config.credits = 4);
    for xid in 1..9 {
        let stream = [c.mem.sge([&u32::to_be_bytes(xid)[..], &[0; 36]].concat())];
        let call = Call { xid: Xid(xid), stream: &stream, items: &[], reply: None, deadline: None };
        c.conn.call(&call).unwrap();
        settle(&mut c, &mut s, NOW);
        let served = crate::conn::scene::take_call(&mut s);
        s.conn.dismiss(served).unwrap();
    }
    let sent: Vec<_> = s.sent.iter().map(|bytes| words(bytes)).collect();
    assert!(sent.len() > 2);
    // The client's properties were one of its messages.
    for grant in &sent {
        assert_eq!((grant[0], grant[1], grant[3], grant.len()), (0, 2, 5, 4));
        assert!((4..=4 + 9).contains(&grant[2]), "{grant:?}");
    }
    assert!(sent.windows(2).all(|two| two[0][2] < two[1][2]));
    let before = c.conn.counters().grants_received;
    give(&mut c, &[0xdead, 2, 600, 5]);
    assert_eq!(c.conn.counters().grants_received, before + 1);
    assert_eq!(ended(&mut c).iter().filter(|e| matches!(e, Event::Close(_))).count(), 0);
    c.sent.clear();
    for xid in 20..40 {
        null_call(&mut c, xid);
    }
    assert_eq!(take_sent(&mut c).len(), 20);
}

/// A reply invalidates the handle that its call offers, and nothing if the call offers none.
#[test]
fn test_reply_invalidates_the_handle_of_its_call() {
    let (mut c, mut s) = established(Speaks::V2, |_| {});
    for (xid, argument) in [(1, 65_536), (2, 100)] {
        c.sent.clear();
        big_call(&mut c, xid, argument, 0);
        settle(&mut c, &mut s, NOW);
        let offered = words(&c.sent[0])[4];
        answer(&mut s, &reply(xid, 0, 0));
        s.pump(64);
        while execute(&mut s, &mut c) {}
        let (_, invalidated) = c.inbox.back().unwrap();
        assert_eq!(*invalidated, (offered != 0).then_some(Handle(offered)));
        assert_eq!(offered != 0, argument > 4096);
        settle(&mut c, &mut s, NOW);
    }
}
