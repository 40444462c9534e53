//! Clients that break the rules, on real queue pairs, in both versions. Each client gets the error
//! that the rule defines or loses its connection, the server executes nothing that it should not,
//! and memory comes back. Meanwhile the server serves an honest client on its single connection.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use crate::common::lists::{bad_lists, lists, read};
use crate::common::raw::{Raw, rpc, words_of};
use crate::common::*;
use heddle_rpc::{Body, Speaks};
use heddle_rpcrdma::v2;
use heddle_verbs::Access;

/// Offset of ECHO's argument, after the header of a call and two words.
const ITEM: u32 = 48;
const ERROR: u32 = 4;

struct Scene {
    w: World,
    version: u32,
    honest: u32,
}

impl Scene {
    fn new(version: u32) -> Scene {
        let speaks = if version == 1 { Speaks::V1 } else { Speaks::V2 };
        let mut scene = Scene { w: World::new(speaks), version, honest: 0 };
        scene.assert_others_are_served();
        scene
    }

    fn raw(&mut self) -> Raw {
        Raw::new(&mut self.w, self.version)
    }

    fn assert_others_are_served(&mut self) {
        self.honest += 1;
        self.w.echo(self.honest, 9000, true, true);
        assert_eq!(self.w.client.counters().connections, 1);
    }

    /// Asserts that the server serves the client of `raw` as it serves others.
    fn assert_good(&mut self, raw: &mut Raw, xid: u32) {
        let call = raw.call(xid, 2, &[0, 0, 0], &[4, 0x0102_0304]);
        raw.send(&call);
        let reply = raw.answer(&mut self.w);
        assert_eq!(
            (reply[0], &reply[reply.len() - 2..]),
            (xid, &[4, 0x0102_0304][..]),
            "{reply:?}"
        );
    }

    /// Asserts that the server holds no memory for clients that are gone.
    fn assert_all_is_back(&mut self, raw: Raw) {
        drop(raw);
        self.w.server.disconnect_all();
        let memory = self.w.server.memory().clone();
        self.w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
    }
}

#[test]
fn test_chunk_lists_that_break_a_rule_are_refused_and_the_connection_goes_on() {
    for version in [1, 2] {
        let mut scene = Scene::new(version);
        let mut raw = scene.raw();
        scene.assert_good(&mut raw, 1);
        for (nth, (what, lists, told)) in bad_lists(ITEM).into_iter().enumerate() {
            let xid = 100 + nth as u32;
            let call = raw.call(xid, 1, &lists, &[1, 100]);
            raw.send(&call);
            let answer = raw.answer(&mut scene.w);
            assert_eq!((answer[0], answer[3]), (xid, ERROR), "{what}: {answer:?}");
            let told = if version == 1 { &[2] } else { told };
            assert_eq!(&answer[4..], told, "version {version}, {what}");
        }
        scene.assert_good(&mut raw, 2);
        scene.assert_others_are_served();
        assert_eq!(scene.w.server.counters().connections_dropped, 0);
        scene.assert_all_is_back(raw);
    }
}

/// The chunk lists are valid, but the lengths and positions are not those of an item, which only
/// the program's binding shows.
#[test]
fn test_chunks_that_match_no_item_of_their_call_are_refused() {
    for version in [1, 2] {
        let mut scene = Scene::new(version);
        let mut raw = scene.raw();
        let calls = scene.w.server.counters().calls;
        // The word in front of the item states a length of 100.
        for (nth, length) in [8, 96, 104, 5000].into_iter().enumerate() {
            let chunk = raw.lend(&vec![7; length], Access::REMOTE_READ);
            let reads = [read(ITEM, words_of(chunk))];
            let xid = 200 + nth as u32;
            let call = raw.call(xid, 1, &lists(&reads, &[], &[0]), &[1, 100]);
            raw.send(&call);
            let answer = raw.answer(&mut scene.w);
            let code = if version == 1 { 2 } else { v2::code::BAD_XDR };
            assert_eq!(
                (answer[0], &answer[3..]),
                (xid, &[ERROR, code][..]),
                "{length}: {answer:?}"
            );
        }
        // No argument of this procedure may be placed.
        let chunk = raw.lend(&[7; 100], Access::REMOTE_READ);
        let reads = [read(44, words_of(chunk))];
        let call = raw.call(210, 2, &lists(&reads, &[], &[0]), &[100]);
        raw.send(&call);
        let answer = raw.answer(&mut scene.w);
        assert_eq!((answer[0], answer[3]), (210, ERROR), "{answer:?}");
        assert_eq!(scene.w.server.counters().calls, calls, "no program has seen them");
        scene.assert_good(&mut raw, 1);
        scene.assert_others_are_served();
        scene.assert_all_is_back(raw);
    }
}

/// The header of a long call names an XID, and the call in its Read chunk names another (RFC 8166
/// section 4.2.1).
#[test]
fn test_long_call_with_another_xid_than_its_header_is_refused() {
    for version in [1, 2] {
        let mut scene = Scene::new(version);
        let mut raw = scene.raw();
        let calls = scene.w.server.counters().calls;
        let mut long = |scene: &mut Scene, xid: u32, inner: u32| {
            let message = rpc(inner, 2, &[4, 0x0102_0304]);
            let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_be_bytes()).collect();
            let chunk = read(0, words_of(raw.lend(&bytes, Access::REMOTE_READ)));
            let kind = if version == 1 { 1 } else { v2::htype::CALL_EXTERNAL };
            let mut call = raw.header(xid, crate::common::raw::CREDIT, kind);
            call.extend(chunk);
            // Version 2 has a separate list for the items.
            let ends = if version == 1 { 3 } else { 4 };
            call.extend(std::iter::repeat_n(0, ends));
            raw.send(&call);
            raw.answer(&mut scene.w)
        };
        let answer = long(&mut scene, 250, 251);
        let code = if version == 1 { 2 } else { v2::code::BAD_XDR };
        assert_eq!((answer[0], &answer[3..]), (250, &[ERROR, code][..]), "{answer:?}");
        assert_eq!(scene.w.server.counters().calls, calls, "no program has seen it");
        let answer = long(&mut scene, 251, 251);
        assert_eq!((answer[0], answer.last()), (251, Some(&0x0102_0304)), "{answer:?}");
        scene.assert_others_are_served();
        scene.assert_all_is_back(raw);
    }
}

/// A client names STags that do not exist, that belong to another client, or whose memory may not
/// be read or written. Its queue pair ends, and no memory was touched.
#[test]
fn test_foreign_stags_end_only_the_connection_that_names_them() {
    for version in [1, 2] {
        let mut scene = Scene::new(version);
        let mut other = scene.raw();
        let secret = other.lend(&[0x55; 400], Access::REMOTE_READ.with(Access::REMOTE_WRITE));
        for nth in 0..5 {
            let mut raw = scene.raw();
            let own = |access, raw: &mut Raw| words_of(raw.lend(&[1; 400], access));
            let (reads, writes) = match nth {
                0 => (vec![read(ITEM, [0xdead_be00, 400, 0, 0])], vec![]),
                1 => (vec![read(ITEM, words_of(secret))], vec![]),
                2 => (vec![read(ITEM, own(Access::REMOTE_WRITE, &mut raw))], vec![]),
                3 => (vec![], [&[1, 1][..], &words_of(secret)].concat()),
                _ => (vec![], [&[1, 1][..], &own(Access::REMOTE_READ, &mut raw)].concat()),
            };
            let calls = scene.w.server.counters().calls;
            let mut arguments = vec![1, 400];
            if reads.is_empty() {
                arguments.extend([0x0202_0202; 100]);
            }
            let call = raw.call(300 + nth, 1, &lists(&reads, &writes, &[0]), &arguments);
            raw.send(&call);
            raw.end(&mut scene.w);
            let executed = scene.w.server.counters().calls - calls;
            assert_eq!(executed, u64::from(reads.is_empty()), "{nth}");
            if nth == 4 {
                assert_eq!(raw.lent(), [1; 400]);
            }
            scene.assert_others_are_served();
        }
        assert_eq!(other.lent(), [0x55; 400]);
        scene.assert_good(&mut other, 2);
        scene.assert_all_is_back(other);
    }
}

#[test]
fn test_unreadable_headers_are_answered_or_ignored() {
    for version in [1, 2] {
        let mut scene = Scene::new(version);
        let mut raw = scene.raw();
        scene.assert_good(&mut raw, 1);
        // The message is too short for a trustworthy XID, so no answer comes.
        raw.send(&[400, version, 500]);
        scene.assert_good(&mut raw, 2);
        // An unknown header type or procedure.
        raw.send(&[401, version, 500, 77, 0, 0, 0]);
        let code = if version == 1 { 2 } else { v2::code::INVAL_HTYPE };
        assert_eq!(raw.answer(&mut scene.w)[3..], [ERROR, code]);
        // An unknown version.
        raw.send(&[402, 77, 500, 0, 0, 0, 0]);
        assert_eq!(raw.answer(&mut scene.w)[3..], [ERROR, 1, version, version]);
        // A header without a payload.
        let call = raw.call(403, 2, &[0, 0, 0], &[0]);
        let header = call.len() - 11;
        raw.send(&call[..header]);
        // ERR_CHUNK and BAD_XDR have the same number.
        let answer = raw.answer(&mut scene.w);
        assert_eq!((answer[0], &answer[3..]), (403, &[ERROR, v2::code::BAD_XDR][..]));
        // An RPC message with another XID.
        let mut call = raw.call(404, 2, &[0, 0, 0], &[0]);
        call[header] = 405;
        raw.send(&call);
        let answer = raw.answer(&mut scene.w);
        assert_eq!((answer[0], &answer[3..]), (404, &[ERROR, v2::code::BAD_XDR][..]));
        scene.assert_good(&mut raw, 3);
        scene.assert_others_are_served();
        scene.assert_all_is_back(raw);
    }
}

/// The client makes more calls at a time than it has credits for.
#[test]
fn test_client_that_breaks_flow_control_loses_its_connection() {
    for version in [1, 2] {
        let mut scene = Scene::new(version);
        let mut raw = scene.raw();
        for xid in 0..192 {
            let call = raw.call(500 + xid, 3, &[0, 0, 0], &[]);
            raw.send(&call);
            if xid % 12 == 11 {
                raw.until(&mut scene.w, "some at a time", |_| Some(()));
            }
        }
        raw.end(&mut scene.w);
        assert_eq!(scene.w.server.counters().connections_dropped, 1);
        // At most as many calls have begun as a connection has slots for.
        let begun = scene.w.held.lock().unwrap().len();
        assert!((1..=131).contains(&begun), "{begun}");
        scene.assert_others_are_served();
        scene.w.held.lock().unwrap().clear();
        scene.assert_all_is_back(raw);
    }
}

#[test]
fn test_call_whose_xid_is_repeated_is_carried_out_once() {
    for version in [1, 2] {
        let mut scene = Scene::new(version);
        let mut raw = scene.raw();
        scene.assert_good(&mut raw, 1);
        for _ in 0..3 {
            let call = raw.call(600, 3, &[0, 0, 0], &[]);
            raw.send(&call);
            raw.until(&mut scene.w, "one after the other", |_| Some(()));
        }
        scene.w.until("the call", |w| (!w.held.lock().unwrap().is_empty()).then_some(()));
        scene.assert_others_are_served();
        assert_eq!(scene.w.held.lock().unwrap().len(), 1);
        let request = scene.w.held.lock().unwrap().pop().unwrap();
        request.reply(Ok(Body::of(vec![0, 0, 0, 9]).unwrap()));
        assert_eq!(raw.answer(&mut scene.w).last(), Some(&9));
        // The call was executed, and is not executed again.
        let call = raw.call(600, 3, &[0, 0, 0], &[]);
        raw.send(&call);
        assert_eq!(raw.answer(&mut scene.w).last(), Some(&9));
        assert!(scene.w.held.lock().unwrap().is_empty());
        assert_eq!(scene.w.server.counters().calls_repeated, 1);
        scene.assert_all_is_back(raw);
    }
}

/// The parts do not add up, or another message follows where a part must follow.
#[test]
fn test_messages_in_parts_that_are_not_whole_are_refused() {
    let mut scene = Scene::new(v2::VERSION);
    let mut raw = scene.raw();
    let part = |raw: &Raw, xid, remaining| {
        let mut part = raw.header(xid, 500, v2::htype::CALL_MIDDLE);
        part.push(remaining);
        part.extend(rpc(xid, 2, &[4]));
        part
    };
    let refused = [ERROR, v2::code::INVAL_CONT];
    // Another call comes between the parts.
    let first = part(&raw, 700, 4000);
    raw.send(&first);
    let call = raw.call(701, 2, &[0, 0, 0], &[0]);
    raw.send(&call);
    let answer = raw.answer(&mut scene.w);
    assert_eq!((answer[0], &answer[3..]), (701, &refused[..]));
    // The part is longer than the announced rest.
    let first = part(&raw, 702, 8);
    raw.send(&first);
    let first = part(&raw, 702, 8);
    raw.send(&first);
    let answer = raw.answer(&mut scene.w);
    assert_eq!((answer[0], &answer[3..]), (702, &refused[..]));
    // The message is longer than the server takes.
    let first = part(&raw, 703, u32::MAX - 10);
    raw.send(&first);
    let answer = raw.answer(&mut scene.w);
    assert_eq!((answer[0], &answer[3..]), (703, &[ERROR, v2::code::SYSTEM][..]));
    scene.assert_others_are_served();
    scene.assert_all_is_back(raw);
}
