use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::mpsc;

use super::*;
use heddle_rpcrdma::Xid;
use heddle_rpcrdma::binding::Table;
use heddle_rpcrdma::rpc::{AuthSys, Gids, Reply};

const PROGRAM: u32 = 0x2000_0001;
const SET: Procedure = Procedure { program: PROGRAM, version: 2, procedure: 1 };

struct World {
    dispatch: Dispatch,
    counters: ServerCounters,
    requests: mpsc::Receiver<Request>,
    tickets: u64,
}

impl World {
    /// Creates a server with versions 2 to 3 and 5 of a program.
    fn new() -> World {
        let mut dispatch = Dispatch::new(DuplicateLimits::default(), Outbox::new(None));
        let (sender, requests) = mpsc::channel();
        for versions in [2..=3, 5..=5] {
            let sender = Mutex::new(sender.clone());
            let program = move |r: Request| sender.lock().unwrap().send(r).unwrap();
            dispatch.register(PROGRAM, versions, Box::new(Table(&[])), Box::new(program)).unwrap();
        }
        World { dispatch, counters: ServerCounters::default(), requests, tickets: 0 }
    }

    fn give(&mut self, bytes: &[u8]) -> Dispatched {
        let peer = (Ipv4Addr::new(10, 0, 0, 1), 1000).into();
        self.tickets += 1;
        let ticket = Ticket { link: 1, call: self.tickets };
        let call = (bytes.to_vec(), Vec::new());
        let from = From { peer, share: None, caller: None };
        self.dispatch.call(from, ticket, call, &mut self.counters)
    }

    fn call(
        &mut self,
        xid: u32,
        procedure: Procedure,
        cred: Auth<'_>,
        arguments: &[u8],
    ) -> Dispatched {
        self.give(&call(xid, procedure, (cred, Auth::NONE), arguments))
    }
}

fn call(xid: u32, procedure: Procedure, auth: (Auth<'_>, Auth<'_>), arguments: &[u8]) -> Vec<u8> {
    let call = Call { xid: Xid(xid), procedure, cred: auth.0, verf: auth.1 };
    let mut bytes = vec![0; call.encoded_len()];
    call.encode(&mut bytes).unwrap();
    bytes.extend_from_slice(arguments);
    bytes
}

/// Returns the body of a reply, and its results.
fn body(message: &Message) -> (ReplyBody<'_>, Vec<u8>) {
    let (reply, rest) = Reply::decode(message.header()).unwrap();
    assert!(rest.is_empty());
    (reply.body, message.body().bytes().to_vec())
}

fn at_once(taken: Dispatched) -> Arc<Message> {
    match taken {
        Dispatched::Replied(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_dispatch_answers_unexecutable_calls_with_rpc_status() {
    let mut w = World::new();
    let other = |program, version| Procedure { program, version, procedure: 1 };
    let mismatch = accepted(Status::ProgMismatch { low: 2, high: 5 });
    let bad = |flavor, bytes| Auth::new(flavor, bytes).unwrap();
    let none = Auth::NONE;
    for (procedure, cred, verf, want) in [
        (other(7, 1), none, none, accepted(Status::ProgUnavail)),
        (other(PROGRAM, 1), none, none, mismatch),
        (other(PROGRAM, 4), none, none, mismatch),
        (other(PROGRAM, 6), none, none, mismatch),
        (SET, bad(Flavor::SYS, &[0; 3]), none, denied(AuthStat::BAD_CRED)),
        (SET, bad(Flavor::GSS, &[0; 4]), none, denied(AuthStat::TOO_WEAK)),
        (SET, none, bad(Flavor::SHORT, &[0; 4]), denied(AuthStat::BAD_VERF)),
        (Procedure { procedure: 0, ..SET }, none, none, accepted(Status::Success)),
    ] {
        let reply = at_once(w.give(&call(1, procedure, (cred, verf), &[])));
        assert_eq!(body(&reply), (want, vec![]), "{procedure:?}");
    }
    assert!(w.requests.try_recv().is_err(), "no program heard of it");
    assert_eq!((w.counters.calls_refused, w.counters.calls_null), (7, 1));
}

#[test]
fn test_malformed_call_is_answered_only_when_its_header_is_readable() {
    let mut w = World::new();
    let good = call(7, SET, (Auth::NONE, Auth::NONE), &[]);
    for len in 0..good.len() {
        match w.give(&good[..len]) {
            Dispatched::Refused => assert!(len < 24, "{len}"),
            Dispatched::Replied(reply) => assert!(len >= 24, "{len}: {:?}", body(&reply)),
            Dispatched::Given => panic!("{len}"),
        }
    }
    let mut version = good.clone();
    version[11] = 3;
    let reply = at_once(w.give(&version));
    assert_eq!(body(&reply).0, ReplyBody::Denied(Denied::RpcMismatch { low: 2, high: 2 }));
    let mut reply = good;
    reply[7] = 1;
    assert!(matches!(w.give(&reply), Dispatched::Refused));
}

#[test]
fn test_program_gets_caller_and_procedure_and_its_answer_reaches_call() {
    let mut w = World::new();
    let sys = AuthSys { stamp: 0, machine: b"loom", uid: 7, gid: 8, gids: Gids::default() };
    let mut room = [0; AuthSys::MAX_LEN];
    let cred = sys.encode(&mut room).unwrap();
    assert!(matches!(w.call(9, SET, cred, &[0, 0, 0, 1]), Dispatched::Given));
    let request = w.requests.try_recv().unwrap();
    assert_eq!((request.procedure, request.arguments.bytes()), (SET, &[0, 0, 0, 1][..]));
    assert!(matches!(&request.credential, Credential::Sys(sys) if (sys.uid, sys.gid) == (7, 8)));
    assert!(w.dispatch.next_reply().is_none());
    let mut results = Body::new();
    results.u32(42).unwrap();
    request.reply(Ok(results));
    let (tickets, reply) = w.dispatch.next_reply().unwrap();
    assert_eq!(tickets.collect::<Vec<_>>(), [Ticket { link: 1, call: 1 }]);
    assert_eq!(body(&reply), (accepted(Status::Success), vec![0, 0, 0, 42]));
    assert_eq!(reply.header()[..4], [0, 0, 0, 9]);
    assert!(w.dispatch.next_reply().is_none());
}

#[test]
fn test_repeated_call_is_not_executed_again() {
    let mut w = World::new();
    let again = |w: &mut World| w.call(9, SET, Auth::NONE, &[0, 0, 0, 1]);
    assert!(matches!(again(&mut w), Dispatched::Given));
    assert!(matches!(again(&mut w), Dispatched::Given));
    let request = w.requests.try_recv().unwrap();
    assert!(w.requests.try_recv().is_err(), "once");
    request.reply(Err(Refusal::ProcUnavail));
    let (tickets, reply) = w.dispatch.next_reply().unwrap();
    assert_eq!(tickets.count(), 2);
    let kept = at_once(again(&mut w));
    assert!(Arc::ptr_eq(&kept, &reply));
    assert_eq!(w.counters.calls_repeated, 2);
}

#[test]
fn test_dropped_request_fails_with_system_error_that_is_not_cached() {
    let mut w = World::new();
    for _ in 0..2 {
        assert!(matches!(w.call(9, SET, Auth::NONE, &[]), Dispatched::Given));
        drop(w.requests.try_recv().unwrap());
        let (_, reply) = w.dispatch.next_reply().unwrap();
        assert_eq!(body(&reply).0, accepted(Status::SystemErr));
    }
}

#[test]
fn test_versions_of_a_program_are_registered_once() {
    let mut w = World::new();
    for versions in [1..=2, 3..=4, 1..=9, 5..=5, RangeInclusive::new(4, 1)] {
        let program = Box::new(|_: Request| {});
        let again = w.dispatch.register(PROGRAM, versions.clone(), Box::new(Table(&[])), program);
        assert_eq!(again, Err(AlreadyRegistered { program: PROGRAM }), "{versions:?}");
    }
    let program = Box::new(|_: Request| {});
    w.dispatch.register(PROGRAM, 4..=4, Box::new(Table(&[])), program).unwrap();
}

#[test]
fn test_repeated_idempotent_call_is_executed_again() {
    struct Again(Mutex<mpsc::Sender<Request>>);
    impl Program for Again {
        fn call(&mut self, request: Request) {
            self.0.lock().unwrap().send(request).unwrap();
        }

        fn repeat(&self, procedure: Procedure) -> Repeat {
            match procedure.procedure {
                1 => Repeat::Never,
                2 => Repeat::Always,
                _ => Repeat::Afterwards,
            }
        }
    }
    let mut w = World::new();
    let (sender, requests) = mpsc::channel();
    let program = Box::new(Again(Mutex::new(sender)));
    w.dispatch.register(PROGRAM, 7..=7, Box::new(Table(&[])), program).unwrap();
    let procedure = |procedure| Procedure { version: 7, procedure, ..SET };
    for (of, times) in [(procedure(1), 1), (procedure(2), 2), (procedure(3), 1)] {
        for _ in 0..2 {
            assert!(matches!(w.call(9, of, Auth::NONE, &[]), Dispatched::Given));
        }
        assert_eq!(requests.try_iter().map(|r| r.reply(Ok(Body::new()))).count(), times);
        let told: Vec<_> = std::iter::from_fn(|| w.dispatch.next_reply())
            .map(|(tickets, _)| tickets.count())
            .collect();
        assert_eq!(told.iter().sum::<usize>(), 2, "each has its reply");
        assert_eq!(told.len(), times);
    }
    assert_eq!((w.counters.calls, w.counters.calls_repeated), (4, 2));
    // When all calls are done, only the first has a kept reply.
    let kept = w.call(9, procedure(1), Auth::NONE, &[]);
    assert!(matches!(kept, Dispatched::Replied(_)));
    for of in [2, 3] {
        assert!(matches!(w.call(9, procedure(of), Auth::NONE, &[]), Dispatched::Given));
        assert_eq!(requests.try_iter().map(|r| r.procedure).collect::<Vec<_>>(), [procedure(of)]);
    }
}
