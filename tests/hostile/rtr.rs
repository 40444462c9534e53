//! Abuses of RFC 6581's peer-to-peer model. The initiator should send one "ready" message without
//! payload; here it sends two, or another form, or one with a payload, or one after data, or none.
//!
//! All bytes stand here as in the RFC's figure 2; the tests do not ask the code under test for
//! them.

use std::time::{Duration, Instant};

use heddle::connection::DisconnectReason;
use heddle_testkit::mpa;

use crate::errors::honest_session;
use crate::linux::{Client, PATIENCE};
use crate::net::{LINUX, Lab};
use crate::segments::{nothing, plain, r, t, u};
use crate::target::{PLAIN, Stags, TO, Target};
use crate::traffic::{Company, Traffic};

/// Flags of the two words: A in the first word, for the model, and the forms of the indication.
const MODEL: u16 = 0x8000;
const SEND: u16 = 0x4000;
const WRITE: u16 = 0x8000;
const READ: u16 = 0x4000;
/// The longest time that an acceptor waits for the indication.
const RTR_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a Send of `payload`.
fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    u(0x41, 0x43, 0, [0, msn, 0], payload)
}

/// Builds a Read of no bytes.
fn empty_read(msn: u32) -> Vec<u8> {
    r(msn, 0, 1, 0)
}

/// Connects and completes the start-up: the Request offers the forms in these two words, and the
/// Reply takes one of them.
fn connect(lab: &Lab, first: u16, second: u16) -> (Client, Stags) {
    let mut client = Client::connect(lab, LINUX[0], PLAIN).expect("a connection");
    let request = mpa::enhanced_request(2 | MODEL | first, 2 | second, &[0]);
    let reply = client.start(&request).expect("a Reply");
    assert!(!reply.rejected);
    let (words, stags) = reply.private_data.split_at(4);
    assert_eq!(words[0] & 0x80, 0x80, "the model is taken: {words:02x?}");
    assert_eq!(
        (words[0] & 0x40 != 0, words[2] & 0xc0),
        (first != 0, second.to_be_bytes()[0] & 0xc0)
    );
    (client, Stags::parse(stags))
}

/// Returns the counts of queue pairs: indications, missing buffers and unknown STags.
fn counted(target: &Target) -> [u64; 3] {
    let qps = target.snapshot().worker.engine.qps;
    [qps.rtr, qps.err_no_buffer, qps.err_stag]
}

/// Checks that the connection works normally: after the answers to `reads` empty Reads, a Write,
/// and a Read of the written bytes.
fn assert_serves(client: &mut Client, stags: &Stags, reads: u32) {
    let mut answer = || {
        let m = client.recv(PATIENCE).expect("a Read Response");
        assert_eq!(m.opcode, 2);
        m.payload
    };
    // The target serves two Reads at a time.
    assert!((0..reads).all(|_| answer().is_empty()));
    let write = t(0xc1, 0x40, stags.all, TO, b"as before");
    client.say(&plain(&[write, r(reads + 1, 9, stags.all, TO)])).expect("it is sent");
    let m = client.recv(PATIENCE).expect("a Read Response");
    assert_eq!((m.opcode, &m.payload[..]), (2, &b"as before"[..]));
}

/// A message sequence that ends the connection, with the same fields as below.
type Fatal = (&'static str, u16, u16, Said, [u8; 2], [u64; 3]);

type Said = fn(&Stags) -> Vec<Vec<u8>>;

#[test]
fn test_indication_that_is_not_the_agreed_one_is_an_ordinary_message() {
    // Name, the two offered words, the messages, the number of Reads among them, and the number of
    // counted indications.
    let harmless: &[(&str, u16, u16, Said, u32, u64)] = &[
        ("twice, by Writes", 0, WRITE, |_| vec![nothing(), nothing()], 0, 1),
        ("twice, by Reads", 0, READ, |_| vec![empty_read(1), empty_read(2)], 2, 1),
        ("twice, by Sends", SEND, 0, |_| vec![send(1, &[]), send(2, &[])], 0, 1),
        ("a Send for a Write", 0, WRITE, |_| vec![send(1, &[])], 0, 0),
        ("a Read for a Send", SEND, 0, |_| vec![empty_read(1)], 1, 0),
        ("a Write for a Read", 0, READ, |_| vec![nothing()], 0, 0),
        ("a Send with payload", SEND, 0, |_| vec![send(1, b"data")], 0, 0),
        ("a Write with payload", 0, WRITE, |s| vec![t(0xc1, 0x40, s.all, TO, b"data")], 0, 0),
        ("data before", SEND, 0, |_| vec![send(1, b"data"), send(2, &[])], 0, 0),
    ];
    // The last message of each has no buffer, or no memory: the target sends a Terminate and counts
    // the error.
    let fatal: &[Fatal] = &[
        (
            "four Sends, of which one is the indication",
            SEND,
            0,
            |_| (1..=4).map(|msn| send(msn, &[])).collect(),
            [0x12, 0x02],
            [1, 1, 0],
        ),
        (
            "a Write with payload to nowhere",
            0,
            WRITE,
            |_| vec![t(0xc1, 0x40, 9, TO, b"data")],
            [0x11, 0x00],
            [0, 0, 1],
        ),
    ];
    let lab = Lab::new(1500);
    let target = Target::start(&lab);
    let mut traffic = Traffic::start(&lab);
    traffic.rounds(8, |traffic, _| {
        for &(what, first, second, said, reads, rtrs) in harmless {
            traffic.beside(Company::Honest, || honest_session(&target, &lab, PLAIN));
            let before = counted(&target);
            traffic.beside(Company::Hostile, || {
                let (mut client, stags) = connect(&lab, first, second);
                client.say(&plain(&said(&stags))).expect("it is sent");
                assert_serves(&mut client, &stags, reads);
                client.stream.shutdown(std::net::Shutdown::Write).expect("a FIN");
                assert_eq!(client.rest(), (vec![], None), "{what}");
                let ended = target.ended(client.local);
                assert_eq!(ended.reason, Ok(DisconnectReason::Orderly), "{what}");
            });
            assert_eq!(counted(&target), [before[0] + rtrs, before[1], before[2]], "{what}");
        }
        for &(what, first, second, said, code, counts) in fatal {
            traffic.beside(Company::Honest, || honest_session(&target, &lab, PLAIN));
            let before = counted(&target);
            traffic.beside(Company::Hostile, || {
                let (mut client, stags) = connect(&lab, first, second);
                client.say(&plain(&said(&stags))).expect("it is sent");
                let m = client.recv(PATIENCE).expect("a Terminate");
                assert_eq!((m.opcode, &m.payload[..2]), (7, &code[..]), "{what}");
                assert_eq!(client.rest(), (vec![], None), "{what}");
                let local = client.local;
                // The RNIC waits for our FIN.
                drop(client);
                let ended = target.ended(local).reason;
                assert!(
                    matches!(ended, Ok(DisconnectReason::LocalTerminate(_))),
                    "{what}: {ended:?}"
                );
            });
            let after = counted(&target);
            assert_eq!(core::array::from_fn(|n| after[n] - before[n]), counts, "{what}");
        }
    });
    traffic.finish();
    target.assert_guards();
    target.assert_all_is_back();
}

/// A peer never sends its indication: the target frees its place, whatever else the peer does not
/// send.
#[test]
fn test_peer_that_never_says_ready_loses_its_place_in_time() {
    let lab = Lab::new(1500);
    let target = Target::start(&lab);
    let traffic = Traffic::start(&lab);
    let before = target.snapshot().ctl.cm.first_fpdu_timeouts;
    let start = Instant::now();
    let mut silent: Vec<Client> = (0..4).map(|_| connect(&lab, 0, WRITE).0).collect();
    // A part of an indication does not count as one.
    for (n, client) in silent.iter_mut().enumerate() {
        let half = plain(&[nothing()]);
        client.say(&half[..n * half.len() / 4]).expect("it is sent");
    }
    // Other peers come and go meanwhile, and the stream goes on.
    for _ in 0..20 {
        honest_session(&target, &lab, PLAIN);
        traffic.go_on();
    }
    for client in &mut silent {
        assert!(client.is_ended(PATIENCE), "it keeps its place");
        let ended = target.ended(client.local);
        assert!(!ended.touched && ended.reason.is_ok(), "{ended:?}");
    }
    let took = start.elapsed();
    assert!(took >= RTR_TIMEOUT && took < 3 * RTR_TIMEOUT, "after {took:?}");
    assert_eq!(target.snapshot().ctl.cm.first_fpdu_timeouts - before, 4);
    traffic.go_on();
    target.assert_guards();
    drop(traffic);
    target.assert_all_is_back();
}

/// The initiator does not wait for the Reply.
#[test]
fn test_indication_before_the_reply_ends_the_startup() {
    let lab = Lab::new(1500);
    let target = Target::start(&lab);
    let traffic = Traffic::start(&lab);
    let before = target.snapshot().ctl.cm.startup_errors;
    for early in [plain(&[nothing()]), plain(&[send(1, &[])]), vec![0]] {
        let mut client = Client::connect(&lab, LINUX[0], PLAIN).expect("a connection");
        let request = mpa::enhanced_request(2 | MODEL, 2 | WRITE, &[0]);
        client.say(&[request, early].concat()).expect("it is sent");
        assert_eq!(client.rest().0, b"", "no Reply");
    }
    assert_eq!(target.snapshot().ctl.cm.startup_errors - before, 3);
    traffic.go_on();
    target.assert_guards();
    drop(traffic);
    target.assert_all_is_back();
}
