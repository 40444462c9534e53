//! The bytes that come over the control socket, before any code acts on them: lines in pieces of
//! any length, requests of an appliance's administrators and of applications, and answers, which a
//! client does not trust either.

use heddle_socket::admin::{self, Conns, Mrs, Ports, Reloaded, Stats, Status};
use heddle_socket::document::{Answer, Call, VERSION, read_call, to_line};
use heddle_socket::wire::Inbox;
use heddle_socket::{Bounded, Fault, FaultKind};
use heddle_verbs::remote::protocol::{self, Told};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Seeds;

/// Bytes of the longest line that the inbox accepts; inputs have longer ones.
const MOST: usize = 700;

/// Returns the lines of a stream that arrives in pieces of `step` bytes, and whether the inbox
/// accepted the stream to its end.
fn lines(stream: &[u8], step: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut inbox, mut lines) = (Inbox::new(MOST), Vec::new());
    for piece in stream.chunks(step) {
        let taken = inbox.push(piece).is_ok();
        if !taken {
            return (lines, false);
        }
        lines.extend(std::iter::from_fn(|| inbox.pop()));
    }
    (lines, true)
}

/// Splits the stream by another method, for comparison, and returns whether no line is too long.
fn split(stream: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let all: Vec<&[u8]> = stream.split(|b| *b == b'\n').collect();
    let short = all.iter().all(|l| l.len() <= MOST);
    // No line follows yet after the last line end.
    let whole = &all[..all.len() - 1];
    let line = |l: &&[u8]| l.strip_suffix(b"\r").unwrap_or(l).to_vec();
    (whole.iter().map(line).filter(|l| !l.is_empty()).collect(), short)
}

/// Checks that a request is written as it is read, and that a refusal is one line that names the
/// request it answers.
fn request<R: Serialize + DeserializeOwned + Bounded>(line: &[u8]) -> bool {
    match read_call::<R>(line) {
        Ok((id, request)) => {
            let written = to_line(&Call { v: VERSION, id, request: &request });
            let (again, back) = read_call::<R>(&written).expect("what is written can be read");
            assert_eq!(to_line(&Call { v: VERSION, id: again, request: &back }), written);
            assert_eq!(again, id);
            true
        }
        Err(refusal) => {
            let written = to_line(&refusal);
            assert_eq!(written.iter().filter(|b| **b == b'\n').count(), 1, "one line");
            let back: Answer = serde_json::from_slice(&written).expect("an answer");
            assert_eq!((back.id, back.ok), (refusal.id, None));
            let fault = back.error.expect("a reason");
            assert!(matches!(
                fault.kind,
                FaultKind::Malformed | FaultKind::Version | FaultKind::Invalid
            ));
            false
        }
    }
}

/// Checks that an answer of this type is written as it is read.
fn answer<T: Serialize + DeserializeOwned>(answer: &Answer) -> bool {
    let Ok(value) = answer.clone().into_result::<T>() else { return false };
    let written = Answer::ok(answer.id, &value);
    let back: T = written.clone().into_result().expect("what is written can be read");
    assert_eq!(to_line(&Answer::ok(answer.id, &back)), to_line(&written));
    true
}

/// Tries one input: the length of the pieces, and a stream. Returns true if the stream contained a
/// document.
pub fn run(data: &[u8]) -> bool {
    let Some((step, stream)) = data.split_first() else { return false };
    let (expected, short) = split(stream);
    for step in [usize::from(*step).max(1), 1, stream.len().max(1)] {
        let (got, taken) = lines(stream, step);
        assert!(taken || !short, "a line that is short enough was refused");
        assert!(expected.starts_with(&got), "in pieces of {step}");
        assert!(!taken || got.len() == expected.len(), "a line is lost, in pieces of {step}");
        // In single bytes, every line end is seen before the bytes after it.
        assert!(step != 1 || taken == short);
    }
    let mut found = false;
    for line in &expected {
        found |= request::<admin::Request>(line);
        found |= request::<protocol::Request>(line);
        if let Ok(told) = serde_json::from_slice::<Told>(line) {
            let written = to_line(&told);
            let back: Told = serde_json::from_slice(&written).expect("what is written can be read");
            assert_eq!(to_line(&back), written);
            found = true;
        }
        let Ok(a) = serde_json::from_slice::<Answer>(line) else { continue };
        found |= answer::<Status>(&a) | answer::<Conns>(&a) | answer::<Mrs>(&a);
        found |= answer::<Ports>(&a) | answer::<Stats>(&a) | answer::<Reloaded>(&a);
        found |= answer::<protocol::Opened>(&a) | answer::<protocol::NewMr>(&a);
        found |= a.error.is_some();
    }
    found
}

/// Makes requests of both sorts, answers with something in each list, and a refusal.
pub fn seeds() -> Seeds {
    let in_pieces = |step: u8, documents: &[Vec<u8>]| [&[step][..], &documents.concat()].concat();
    let admin = |request: admin::Request| to_line(&Call { v: VERSION, id: 7, request: &request });
    let requests = [
        admin(admin::Request::Status),
        admin(admin::Request::Conns(Some(admin::ConnsArgs {
            after: Some(3),
            limit: Some(9),
            remote: Some([10, 0, 0, 1].into()),
            port: Some(7174),
            worker: Some(1),
            state: Some("running".into()),
        }))),
        admin(admin::Request::Mrs(Some(admin::MrsArgs { stags: true }))),
        admin(admin::Request::ListenAdd(admin::ListenAdd {
            address: "10.0.0.1:1".into(),
            service: "sink".into(),
            infiniband: false,
            congestion: None,
            ecn: None,
            pacing: None,
            forward: None,
        })),
        admin(admin::Request::ListenAdd(admin::ListenAdd {
            address: "10.0.0.1:2".into(),
            service: String::new(),
            infiniband: false,
            congestion: None,
            ecn: None,
            pacing: None,
            forward: Some(admin::Forward {
                to: "10.0.0.2:7174".into(),
                over: "iwarp".into(),
                connections: Some(8),
                timeout_ms: Some(500),
            }),
        })),
        admin(admin::Request::ConnKill(admin::ConnKill { conn: 1 << 63, in_order: true })),
    ];
    let device =
        |request: protocol::Request| to_line(&Call { v: VERSION, id: 8, request: &request });
    let requests_of_devices = [
        device(protocol::Request::DeviceOpen(protocol::Open {
            memory: 1,
            queues: 2,
            name: "x".into(),
        })),
        device(protocol::Request::CreatePd),
        device(protocol::Request::RegisterMr(protocol::RegisterMr {
            pd: 1,
            region: 2,
            off: 3,
            len: 4,
            access: 5,
            to: 6,
            qp: Some(7),
        })),
        device(protocol::Request::Reject(protocol::Reject {
            conn: 1,
            private_data: vec![1, 2, 255],
            needs_ord: Some(3),
        })),
    ];
    let conn = admin::Conn {
        qp: Some(admin::Qp::default()),
        tcp: Some(admin::Tcp::default()),
        agreed: Some(admin::Agreed::default()),
        counters: [("tcp_x".to_owned(), 3)].into(),
        ..admin::Conn::default()
    };
    let answers = [
        to_line(&Answer::ok(1, &Conns { conns: vec![conn], next: Some(4), ..Conns::default() })),
        to_line(&Answer::ok(2, &Reloaded { applied: vec!["a".into()], failed: Vec::new() })),
    ];
    let fault = Fault::new(FaultKind::Quota, "no more");
    vec![
        ("admin".to_owned(), in_pieces(200, &requests)),
        ("device".to_owned(), in_pieces(3, &requests_of_devices)),
        ("answers".to_owned(), in_pieces(64, &answers)),
        ("status".to_owned(), in_pieces(0, &[to_line(&Answer::ok(1, &Status::default()))])),
        ("refusal".to_owned(), in_pieces(1, &[to_line(&Answer::fault(0, fault))])),
    ]
}
