//! The version that two ends agree on, and the versions that a client speaks on its next
//! connection.

use std::time::Duration;

use heddle_base::Instant;
use heddle_rpcrdma::conn::{Call, CallError, CloseReason, Config, Event, ReplyRoom, Side, Speaks};
use heddle_rpcrdma::header::{Answer, Refusal};
use heddle_rpcrdma::property::{Properties, ReverseSupport, Thresholds};
use heddle_rpcrdma::{Xid, v1, v2};

use crate::conn::model::{End, execute, settle};
use crate::conn::scene::{NOW, ended};

pub(crate) fn pair(client: Speaks, server: Speaks) -> (End, End) {
    let config = |side, speaks| Config { speaks, ..Config::new(side) };
    (End::new(config(Side::Client, client)), End::new(config(Side::Server, server)))
}

/// Makes a call without arguments whose reply is short.
pub(crate) fn null_call(end: &mut End, xid: u32) -> heddle_rpcrdma::conn::CallId {
    let mut bytes = vec![0; 40];
    bytes[..4].copy_from_slice(&xid.to_be_bytes());
    let stream = [end.mem.sge(bytes)];
    let reply = Some(ReplyRoom { stream_max: Some(24), ..ReplyRoom::default() });
    let call = Call { xid: Xid(xid), stream: &stream, items: &[], reply, deadline: None };
    end.conn.call(&call).unwrap()
}

/// Answers all received calls with a short reply.
pub(crate) fn serve(end: &mut End) -> usize {
    let mut served = 0;
    for event in std::mem::take(&mut end.events) {
        if let Event::Call(call) = event {
            let bytes = end.mem.taken(call.buffer, call.length);
            let mut reply = [&bytes[..4], &[0, 0, 0, 1]].concat();
            reply.resize(24, 0);
            let stream = [end.mem.sge(reply)];
            end.conn.reply(call.id, &stream, &[]).unwrap();
            served += 1;
        }
    }
    served
}

fn closed(end: &End) -> Option<CloseReason> {
    end.events.iter().find_map(|event| match event {
        Event::Close(reason) => Some(*reason),
        _ => None,
    })
}

#[test]
fn test_every_pair_of_ends_uses_highest_common_version_or_closes() {
    const ALL: [Speaks; 3] = [Speaks::V1, Speaks::V2, Speaks::BOTH];
    for client in ALL {
        for server in ALL {
            let (mut c, mut s) = pair(client, server);
            let call = null_call(&mut c, 7);
            settle(&mut c, &mut s, Instant::ZERO);
            let served = serve(&mut s);
            settle(&mut c, &mut s, Instant::ZERO);
            let common = match () {
                () if client.v2 && server.v2 => Some(2),
                () if client.v1 && server.v1 => Some(1),
                () => None,
            };
            assert_eq!(s.conn.version(), common, "{client:?} {server:?}");
            let replied =
                c.events.iter().any(|e| matches!(e, Event::Reply { call: of, .. } if *of == call));
            assert_eq!((served, replied), (usize::from(common.is_some()), common.is_some()));
            let next = match (client, common) {
                // The client learned that the server does not speak version 2.
                (Speaks::BOTH, Some(1)) => Some(Speaks::V1),
                (Speaks::V2, None) => None,
                _ => Some(client),
            };
            assert_eq!(c.conn.next_speaks(), next, "{client:?} {server:?}");
            match (client, common) {
                (_, Some(_)) => assert_eq!(c.conn.version(), common),
                (Speaks::V1, None) => {
                    // The client speaks no other version, so its call reports which versions the
                    // server speaks.
                    let refusal = Refusal::V1(v1::Refusal::Versions { low: 2, high: 2 });
                    let error = CallError::Refused(refusal);
                    assert!(c.events.contains(&Event::Failed { call, error }));
                }
                (_, None) => assert_eq!(closed(&c), Some(CloseReason::NoVersion)),
            }
        }
    }
}

#[test]
fn test_client_sends_a_single_message_until_version_is_known() {
    let (mut c, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
    for xid in 1..9 {
        null_call(&mut c, xid);
    }
    c.pump(64);
    assert_eq!(c.posted, [1, 0, 0, 0]);
    crate::conn::model::execute(&mut c, &mut s);
    let (first, _) = &s.inbox[0];
    assert!(first.len() <= v2::FIRST_MESSAGE_MAX as usize);
    assert_eq!(first[4..8], 2u32.to_be_bytes());
    settle(&mut c, &mut s, Instant::ZERO);
    assert_eq!(serve(&mut s), 8);
}

#[test]
fn test_lost_or_silent_server_is_not_asked_for_version_2_again() {
    for (speaks, next) in [(Speaks::BOTH, Speaks::V1), (Speaks::V2, Speaks::V2)] {
        let (mut c, _) = pair(speaks, Speaks::BOTH);
        c.pump(64);
        assert_eq!(c.conn.next_speaks(), Some(speaks));
        c.disconnect();
        assert_eq!(c.conn.next_speaks(), Some(next));

        let (mut c, _) = pair(speaks, Speaks::BOTH);
        c.pump(64);
        let ends = c.conn.poll_timeout().unwrap();
        assert_eq!(ends, Instant::ZERO + Duration::from_secs(10));
        c.conn.handle_timeout(Instant::from_millis(9_999));
        c.pump(64);
        assert_eq!(closed(&c), None);
        c.conn.handle_timeout(ends);
        c.pump(64);
        assert_eq!(closed(&c), Some(CloseReason::NegotiationTimeout));
        assert_eq!(c.conn.next_speaks(), Some(next));
    }
}

#[test]
fn test_lost_connection_with_known_version_excludes_no_version() {
    let (mut c, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
    settle(&mut c, &mut s, Instant::ZERO);
    c.disconnect();
    assert_eq!(c.conn.next_speaks(), Some(Speaks::BOTH));
}

/// RFC 8166 does not repeat the refused version in an error; the draft does.
#[test]
fn test_err_vers_in_either_form_leads_to_version_1() {
    for version in [1, 2] {
        let (mut c, _) = pair(Speaks::BOTH, Speaks::V1);
        c.pump(64);
        let refusal = Refusal::V1(v1::Refusal::Versions { low: 1, high: 1 });
        let mut out = [0; Answer::MAX_LEN];
        let len = Answer { xid: Xid(0), version, refusal }.encode(32, &mut out).unwrap();
        c.conn.handle_receive(Instant::ZERO, &out[..len], None, &mut c.mem);
        c.pump(64);
        assert_eq!(c.conn.version(), Some(1));
        assert!(c.events.contains(&Event::Established { version: 1 }));
    }
}

#[test]
fn test_server_gives_up_client_that_tries_versions_endlessly() {
    let (_, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
    for version in 3u32..20 {
        let bytes = [9, version, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        s.conn.handle_receive(Instant::ZERO, &bytes, None, &mut s.mem);
        s.pump(64);
    }
    assert_eq!(closed(&s), Some(CloseReason::NoVersion));
    assert_eq!(s.posted, [8, 0, 0, 0], "eight were told");
}

#[test]
fn test_properties_set_thresholds_and_are_reported_to_the_peer() {
    let sizes =
        |send_size, receive_size| Properties { send_size, receive_size, ..Properties::DEFAULT };
    let mut client = Config { properties: sizes(16384, 8192), ..Config::new(Side::Client) };
    client.host_auth = b"who I am".to_vec();
    let server = Config { properties: sizes(65536, 12288), ..Config::new(Side::Server) };
    let (mut c, mut s) = (End::new(client), End::new(server));
    settle(&mut c, &mut s, Instant::ZERO);
    assert_eq!(c.conn.thresholds(), Thresholds { send: 12288, receive: 8192 });
    assert_eq!(s.conn.thresholds(), Thresholds { send: 8192, receive: 12288 });
    assert!(c.events.contains(&Event::Properties(sizes(65536, 12288))));
    assert!(s.events.contains(&Event::Properties(sizes(16384, 8192))));
    assert_eq!(s.conn.peers_host_auth(), Some(&b"who I am"[..]));
    assert_eq!(c.conn.peers_host_auth(), None);
}

/// The last of the client's properties is late or does not come, so a call beyond the defaults
/// waits.
#[test]
fn test_a_call_beyond_the_defaults_waits_for_the_properties_of_the_peer() {
    for come in [true, false] {
        let reverse = ReverseSupport::General;
        let properties = Properties { reverse, ..Properties::DEFAULT };
        let client = Config { properties, host_auth: vec![7; 100], ..Config::new(Side::Client) };
        let (mut c, mut s) = (End::new(client), End::new(Config::new(Side::Server)));
        c.pump(64);
        assert!(execute(&mut c, &mut s) && s.receive(NOW));
        let call = null_call(&mut s, 1);
        s.pump(64);
        assert_eq!((s.conn.version(), s.posted[0]), (Some(2), 1), "its own properties alone");
        assert_eq!(ended(&mut s), []);
        if come {
            settle(&mut c, &mut s, NOW);
            assert_eq!((serve(&mut c), s.conn.poll_timeout()), (1, None));
            settle(&mut c, &mut s, NOW);
            assert!(matches!(ended(&mut s)[..], [Event::Reply { call: of, .. }] if of == call));
        } else {
            let end = s.conn.poll_timeout().expect("it does not wait for ever");
            assert_eq!(end, NOW + s.conn.config().negotiation_timeout);
            s.conn.handle_timeout(end);
            s.pump(64);
            let error = CallError::NoReverse;
            assert_eq!(ended(&mut s), [Event::Failed { call, error }]);
            assert_eq!(s.conn.poll_timeout(), None);
        }
    }
}

#[test]
fn test_impossible_configuration_is_refused() {
    let now = Instant::ZERO;
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::new(Side::Client);
        change(&mut config);
        heddle_rpcrdma::conn::Connection::new(config, now).err().map(|e| e.field)
    };
    assert_eq!(refused(|_| {}), None);
    assert_eq!(refused(|c| c.speaks = Speaks { v1: false, v2: false }), Some("speaks"));
    assert_eq!(refused(|c| c.calls = 0), Some("calls"));
    assert_eq!(refused(|c| c.served = 4097), Some("served"));
    assert_eq!(refused(|c| c.credits = 1), Some("credits"));
    assert_eq!(refused(|c| c.ord = 0), Some("ord"));
    assert_eq!(refused(|c| c.host_auth = vec![0; 4096]), Some("host_auth"));
    assert_eq!(refused(|c| c.message_max = 4095), Some("message_max"));
    assert!(refused(|c| c.properties.receive_size = 4095).is_some());
}
