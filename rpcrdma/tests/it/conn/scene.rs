//! Two connected ends, the calls made of them, and the messages that they have sent.

use heddle_base::{Instant, Random, Seed};
use heddle_rpcrdma::conn::{Call, CallId, Config, Event, ReplyRoom, ServedId, Side, Speaks};
use heddle_rpcrdma::header::{Header, Message as Decoded, Versions, decode};
use heddle_rpcrdma::v1::Chunks;
use heddle_rpcrdma::{Limits, Xid, v1, v2};

use crate::conn::exchange::{Message, message};
use crate::conn::model::{End, settle};
use crate::conn::negotiation::{null_call, serve};

pub(crate) const NOW: Instant = Instant::ZERO;
/// The credits that a hand-made peer of version 2 announces.
pub(crate) const CREDIT: u32 = 500;

/// Makes a call with an argument of `argument` bytes that asks for a result of `result` bytes.
pub(crate) fn big_call(end: &mut End, xid: u32, argument: u32, result: u32) -> CallId {
    let mut random = Random::new(&Seed::from_u64(xid.into()));
    let of = message(Xid(xid), 0, &[argument], 0, &mut random);
    let stream = [end.mem.sge(of.bytes)];
    let room = [end.mem.sge(vec![0; result as usize])];
    let rooms: &[&[_]] = if result > 0 { &[&room] } else { &[] };
    let reply = ReplyRoom { stream_max: Some(100), items: rooms, ..ReplyRoom::default() };
    let call = Call {
        xid: Xid(xid),
        stream: &stream,
        items: &of.items,
        reply: Some(reply),
        deadline: None,
    };
    end.conn.call(&call).unwrap()
}

pub(crate) fn reply(xid: u32, result: u32, rest: usize) -> Message {
    message(Xid(xid), 1, &[result], rest, &mut Random::new(&Seed::from_u64(1)))
}

/// Makes a call of `bytes` bytes without items, whose reply is short.
pub(crate) fn long_call(end: &mut End, xid: u32, bytes: usize) -> CallId {
    let mut random = Random::new(&Seed::from_u64(xid.into()));
    let of = message(Xid(xid), 0, &[], (bytes - 40) / 4, &mut random);
    let stream = [end.mem.sge(of.bytes)];
    let reply = Some(ReplyRoom { stream_max: Some(24), ..ReplyRoom::default() });
    let call = Call { xid: Xid(xid), stream: &stream, items: &[], reply, deadline: None };
    end.conn.call(&call).unwrap()
}

/// Answers the single received call.
pub(crate) fn answer(end: &mut End, with: &Message) {
    let call = take_call(end);
    let stream = [end.mem.sge(with.bytes.clone())];
    end.conn.reply(call, &stream, &with.items).unwrap();
}

pub(crate) fn take_call(end: &mut End) -> ServedId {
    end.take_events();
    let call = end.events.iter().find_map(|e| if let Event::Call(c) = e { Some(*c) } else { None });
    end.events.retain(|e| !matches!(e, Event::Call(_)));
    let call = call.expect("a call");
    end.mem.taken(call.buffer, call.length);
    call.id
}

pub(crate) fn ended(end: &mut End) -> Vec<Event> {
    end.take_events();
    let is = |e: &Event| {
        matches!(
            e,
            Event::Reply { .. } | Event::Sent { .. } | Event::Failed { .. } | Event::Close(_)
        )
    };
    std::mem::take(&mut end.events).into_iter().filter(is).collect()
}

pub(crate) fn established(speaks: Speaks, change: impl Fn(&mut Config)) -> (End, End) {
    let config = |side| {
        let mut config = Config { speaks, ..Config::new(side) };
        change(&mut config);
        End::new(config)
    };
    let (mut c, mut s) = (config(Side::Client), config(Side::Server));
    settle(&mut c, &mut s, NOW);
    c.events.clear();
    s.events.clear();
    (c.posted, s.posted) = ([0; 4], [0; 4]);
    c.sent.clear();
    s.sent.clear();
    (c, s)
}

/// Returns two ends after the server has served a call, so that the server knows its client's
/// version also in version 1.
pub(crate) fn met(speaks: Speaks, limits: Limits) -> (End, End) {
    let (mut c, mut s) = established(speaks, |config| config.limits = limits);
    null_call(&mut c, 900);
    settle(&mut c, &mut s, NOW);
    assert_eq!(serve(&mut s), 1);
    settle(&mut c, &mut s, NOW);
    c.events.clear();
    s.events.clear();
    c.sent.clear();
    s.sent.clear();
    (c, s)
}

/// Returns the words of a message.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect()
}

/// Delivers a message of these words to `end`.
pub(crate) fn give(end: &mut End, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
    end.conn.handle_receive(NOW, &bytes, None, &mut end.mem);
}

/// Returns the messages that `end` sends now, without a peer.
pub(crate) fn take_sent(end: &mut End) -> Vec<Vec<u32>> {
    end.pump(64);
    end.absorb();
    std::mem::take(&mut end.sent).iter().map(|bytes| words(bytes)).collect()
}

/// Decodes a message of a connection of `version`.
pub(crate) fn parse(bytes: &[u8], version: u32) -> Decoded<'_> {
    let versions = if version == v2::VERSION { Versions::V2 } else { Versions::V1 };
    decode(bytes, versions, &Limits::DEFAULT).unwrap()
}

/// Returns the chunks of a call or a reply, except a Call chunk.
pub(crate) fn chunks<'a>(message: &Decoded<'a>) -> Chunks<'a> {
    match message.header {
        Header::V1(header) => match header.body {
            v1::Body::Msg(chunks) | v1::Body::NoMsg(chunks) => chunks,
            v1::Body::Error(_) => panic!("{header:?}"),
        },
        Header::V2(header) => match header.body {
            v2::Body::CallInline { chunks, .. } | v2::Body::CallExternal { chunks, .. } => chunks,
            v2::Body::ReplyInline { writes } => Chunks { writes, ..Chunks::NONE },
            v2::Body::ReplyExternal { writes, reply } => {
                Chunks { writes, reply: Some(reply), ..Chunks::NONE }
            }
            body => panic!("{body:?}"),
        },
    }
}
