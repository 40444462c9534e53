//! The application's view of the Terminate with which a peer ends its connection: the headers that
//! the Terminate repeats, as far as it has them (RFC 5040 section 4.8), and no header that it only
//! announces.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::*;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::rdmap::{
    Control, CopiedHeader, Opcode, ReadRequest, TERMINATE_MAX_LEN, Terminate,
};
use heddle_tcp::ConnEvent;
use heddle_verbs::{CmEvent, DisconnectReason, EventQueue, Stag, TermCode};

fn copied(header: &[u8]) -> CopiedHeader {
    CopiedHeader::of_segment(header).unwrap()
}

fn emitted(header: DdpHeader) -> Vec<u8> {
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    bytes
}

/// Returns the application's event when its peer sends a Terminate with `body`: the reason, and the
/// headers that come with it.
fn told(net: &mut Net, events: &EventQueue, body: &[u8]) -> (DisconnectReason, Option<Terminate>) {
    let bad = Honest::new(net, PORT, events);
    net.peer.send(bad.conn, &fpdu(untagged(Opcode::TERMINATE, Qn::TERMINATE, 1, 0), body));
    net.until("our FIN", |n| n.peer.says(bad.conn, ConnEvent::PeerClosed).then_some(()));
    net.peer.stack.close(bad.conn);
    let CmEvent::Disconnected { id, reason, terminate, .. } = net.event(events) else {
        panic!("{body:?}")
    };
    assert_eq!(id, bad.id);
    (reason, terminate.as_deref().map(Terminate::from))
}

fn body(terminate: &Terminate) -> Vec<u8> {
    let mut bytes = [0; TERMINATE_MAX_LEN];
    let len = terminate.emit(&mut bytes);
    bytes[..len].to_vec()
}

/// Returns a Terminate about the second Read Request of a connection.
fn about_a_read() -> Terminate {
    let r = ReadRequest { sink_stag: Stag(7), sink_to: 8, size: 9, src_stag: Stag(10), src_to: 11 };
    let header = emitted(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, 2, 0));
    Terminate {
        segment_len: Some(46),
        ddp: Some(copied(&header)),
        read_request: Some(r),
        ..Terminate::new(TermCode::RDMAP_ACCESS)
    }
}

/// Returns a Terminate about a Write.
fn about_a_write() -> Terminate {
    let rsvd_ulp = Control::new(Opcode::WRITE).to_byte();
    let header = emitted(DdpHeader::Tagged { last: true, rsvd_ulp, stag: Stag(0x1234), to: 99 });
    Terminate {
        segment_len: Some(1014),
        ddp: Some(copied(&header)),
        ..Terminate::new(TermCode::DDP_BOUNDS)
    }
}

#[test]
fn test_application_gets_contents_of_terminate_from_peer() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    for sent in [about_a_write(), about_a_read(), Terminate::new(TermCode::MPA_CRC)] {
        let (reason, terminate) = told(&mut net, &events, &body(&sent));
        assert_eq!(reason, DisconnectReason::RemoteTerminate(sent.code));
        assert_eq!(terminate.as_ref(), Some(&sent));
    }
    // An end without a Terminate reports no Terminate.
    let quiet = Honest::new(&mut net, PORT, &events);
    net.peer.stack.close(quiet.conn);
    let CmEvent::Disconnected { reason, terminate, .. } = net.event(&events) else { panic!() };
    assert_eq!((reason, terminate), (DisconnectReason::Orderly, None));
}

/// The Terminate is cut off at every byte: the application gets the headers that are whole.
#[test]
fn test_truncated_terminate_is_reported_without_missing_headers() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    for sent in [about_a_write(), about_a_read()] {
        let whole = body(&sent);
        let ddp_len = sent.ddp.unwrap().as_bytes().len();
        for len in 4..whole.len() {
            let (reason, terminate) = told(&mut net, &events, &whole[..len]);
            assert_eq!(reason, DisconnectReason::RemoteTerminate(sent.code), "{len}");
            let expected = Terminate {
                segment_len: sent.segment_len.filter(|_| len >= 6),
                ddp: sent.ddp.filter(|_| len >= 6 + ddp_len),
                read_request: None,
                ..sent
            };
            assert_eq!(terminate.as_ref(), Some(&expected), "{len}");
        }
    }
    // The message is too short for a code: it is no Terminate, and the application gets nothing of
    // it.
    for len in 0..4 {
        let (reason, terminate) = told(&mut net, &events, &body(&about_a_read())[..len]);
        assert_eq!(
            (reason, terminate),
            (DisconnectReason::LocalTerminate(TermCode::RDMAP_STREAM_CATASTROPHIC), None)
        );
    }
}

/// Terminates with false bits and lengths.
#[test]
fn test_inconsistent_terminate_is_reported_with_headers_it_contains() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let plain = Terminate::new(TermCode::DDP_BOUNDS);
    let [a, b, ..] = body(&plain)[..] else { panic!() };
    // Every header is announced, and bytes without a meaning follow: a tagged header has fourteen
    // of them, and thirteen are no header.
    let (_, all) = told(&mut net, &events, &[&[a, b, 0xe0, 0, 0, 0][..], &[0xff; 13]].concat());
    assert_eq!(all.unwrap(), Terminate { segment_len: Some(0), ..plain });
    let (_, all) = told(&mut net, &events, &[&[a, b, 0xe0, 0, 0, 0][..], &[0xff; 14]].concat());
    let header = copied(&[0xff; 14]);
    assert_eq!(all.unwrap(), Terminate { segment_len: Some(0), ddp: Some(header), ..plain });
    // The header's version does not exist: the application gets the header as it came, and cannot
    // parse it.
    assert!(header.header().is_err());
    // The segment is longer than any, and the Terminate has far more bytes than usual.
    let long = [&[a, b, 0x80, 0, 0xff, 0xff][..], &[0x55; 1000]].concat();
    let (_, told) = told(&mut net, &events, &long);
    assert_eq!(told.unwrap(), Terminate { segment_len: Some(u16::MAX), ..plain });
}
