//! A server calls programs of its client, on the client's connection (draft section 4.6, RFC 8167),
//! on real queue pairs.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use heddle_rpc::client::{PendingCall, ServeConfig, ServeError};
use heddle_rpc::server::{CallerEvent, CallsConfig};
use heddle_rpc::{
    Body, CallError, Caller, ClientConfig, Procedure, Request, ReverseSupport, ServerConfig, Speaks,
};
use heddle_rpcrdma::header::Refusal;
use heddle_rpcrdma::{conn, v1, v2};

const BACK: u32 = 0x2000_0002;
/// Programs of clients have the same procedures as programs of servers.
const fn back(of: Procedure) -> Procedure {
    Procedure { program: BACK, ..of }
}

struct Binding;

impl heddle_rpc::binding::Binding for Binding {
    fn walk_arguments(
        &self,
        of: Procedure,
        arguments: &mut heddle_rpc::binding::Stream<'_>,
    ) -> Result<(), heddle_rpc::binding::Error> {
        BINDING.walk_arguments(Procedure { program: PROGRAM, ..of }, arguments)
    }

    fn walk_results(
        &self,
        of: Procedure,
        results: &mut heddle_rpc::binding::Stream<'_>,
    ) -> Result<(), heddle_rpc::binding::Error> {
        BINDING.walk_results(Procedure { program: PROGRAM, ..of }, results)
    }

    fn reply_size(&self, of: Procedure, args: &[u8]) -> Option<heddle_rpc::binding::ReplySize> {
        BINDING.reply_size(Procedure { program: PROGRAM, ..of }, args)
    }
}

type Events = Arc<Mutex<Vec<CallerEvent>>>;

struct Reverse {
    w: World,
    /// Calls that the client has and does not answer.
    held: Held,
    events: Events,
}

impl Reverse {
    fn new(speaks: Speaks) -> Reverse {
        Reverse::with(speaks, |_, _, _| {})
    }

    fn with(
        speaks: Speaks,
        change: impl FnOnce(&mut ClientConfig, &mut ServerConfig, &mut CallsConfig),
    ) -> Reverse {
        let mut w = World::with(|client, server| {
            (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
            let mut calls = CallsConfig {
                binding: Box::new(Binding),
                memory: 4 << 20,
                timeout: Duration::from_secs(120),
                ..CallsConfig::default()
            };
            change(client, server, &mut calls);
            server.calls = Some(Arc::new(calls));
        });
        let (held, events) = (Held::default(), Events::default());
        let to = events.clone();
        w.server.watch(move |event| to.lock().unwrap().push(event));
        Reverse { w, held, events }
    }

    /// Gives the client a program with the same procedures.
    fn serve(&mut self) {
        let mut inner = program(self.w.client.memory().clone(), self.held.clone());
        let program = move |mut request: Request| {
            request.procedure.program = PROGRAM;
            inner(request);
        };
        self.w.client.serve(BACK, 1..=1, Binding, program).unwrap();
    }

    /// Waits for a client, and returns the last client that has connected.
    fn caller(&mut self) -> Caller {
        let events = self.events.clone();
        self.w.until("a client to call", |_| match events.lock().unwrap().last() {
            Some(CallerEvent::Connected(caller)) => Some(caller.clone()),
            _ => None,
        })
    }
}

/// Returns a server whose client has a program. In version 1 the server learns of the client from a
/// call.
fn scene(speaks: Speaks) -> (Reverse, Caller) {
    let mut r = Reverse::new(speaks);
    r.serve();
    r.w.echo(0, 10, false, false);
    let caller = r.caller();
    (r, caller)
}

fn call_echo(caller: &Caller, number: u32, len: usize, apart: bool, room: bool) -> PendingCall {
    let (mut arguments, data) = (Body::new(), pattern(number, len));
    arguments.u32(number).unwrap();
    if apart {
        arguments.item(caller.memory().take_copy(&data).unwrap()).unwrap();
    } else {
        arguments.opaque(&data).unwrap();
    }
    let call = caller.call(back(ECHO)).arguments(arguments);
    let call = if room {
        call.room(caller.buffer(len).unwrap())
    } else {
        call.results_max(len as u32 + 16)
    };
    call.send().unwrap()
}

fn call_later(caller: &Caller) -> PendingCall {
    caller.call(back(LATER)).send().unwrap()
}

#[test]
fn test_server_calls_its_client_in_both_versions() {
    for (speaks, version) in [(Speaks::V1, 1), (Speaks::V2, 2)] {
        let (mut r, caller) = scene(speaks);
        assert_eq!(caller.version(), Some(version));
        for (number, len) in [(1, 0), (2, 1), (3, 3000)] {
            let call = call_echo(&caller, number, len, false, false);
            check_echo(&r.w.outcome(call).unwrap(), number, len);
        }
        assert_eq!(caller.outstanding(), 0);
        assert_eq!(r.w.client.served().calls, 3);
        // The client refuses unknown programs, versions and procedures with the errors of RPC.
        let other = |program, version| Procedure { program, version, procedure: 1 };
        for (procedure, error) in [
            (other(BACK + 1, 1), CallError::ProgUnavail),
            (other(BACK, 2), CallError::ProgMismatch { low: 1, high: 1 }),
            (back(Procedure { procedure: 99, ..ECHO }), CallError::ProcUnavail),
            (back(ECHO), CallError::GarbageArgs),
        ] {
            let call = caller.call(procedure).send().unwrap();
            assert_eq!(r.w.outcome(call).unwrap_err(), error);
        }
        // Every program has procedure 0.
        let null = caller.call(Procedure { procedure: 0, ..back(ECHO) }).send().unwrap();
        assert!(r.w.outcome(null).unwrap().bytes().is_empty());
    }
}

#[test]
fn test_call_from_server_uses_chunks_in_both_directions() {
    let (mut r, caller) = scene(Speaks::V2);
    assert_eq!(caller.takes(), ReverseSupport::General);
    for (number, apart, room) in [(1, true, true), (2, true, false), (3, false, true)] {
        for len in [5000, 100_000] {
            let call = call_echo(&caller, number, len, apart, room);
            let results = r.w.outcome(call).unwrap();
            check_echo(&results, number, len);
            assert_eq!(results.items().len(), usize::from(room), "by RDMA Write");
        }
    }
    let counters = r.w.client.transport_counters().unwrap();
    assert!(counters.reads > 0 && counters.writes > 0, "{counters:?}");
    let memory = caller.memory().clone();
    r.w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
}

#[test]
fn test_too_long_call_from_server_in_version_1_fails_without_chunks() {
    let (mut r, caller) = scene(Speaks::V1);
    assert_eq!(caller.takes(), ReverseSupport::Simple);
    let too_long = call_echo(&caller, 1, 5000, true, false);
    let error = CallError::Transport(conn::CallError::TooLong { threshold: 4096 });
    assert_eq!(r.w.outcome(too_long).unwrap_err(), error);
    assert_eq!(r.w.client.served().calls, 0);
    // Neither version has a place for a long reply, so the client refuses.
    let call = caller.call(back(LATER)).results_max(9000).send().unwrap();
    let held = r.held.clone();
    let request = r.w.until("the call", |_| held.lock().unwrap().pop());
    let mut results = Body::new();
    results.opaque(&[1; 5000]).unwrap();
    request.reply(Ok(results));
    let refused = conn::CallError::Refused(Refusal::V1(v1::Refusal::Chunk));
    assert_eq!(r.w.outcome(call).unwrap_err(), CallError::Transport(refused));
    let call = call_echo(&caller, 3, 3000, true, true);
    check_echo(&r.w.outcome(call).unwrap(), 3, 3000);
    r.w.echo(4, 9000, true, true);
    assert_eq!(r.w.client.counters().connections, 1);
}

#[test]
fn test_server_limits_calls_to_what_its_client_supports() {
    use conn::CallError::{NoReverse, TooLong};
    let too_long = CallError::Transport(TooLong { threshold: 4096 });
    for (takes, short, long) in [
        (ReverseSupport::None, Some(CallError::Transport(NoReverse)), None),
        (ReverseSupport::Simple, None, Some(too_long)),
        (ReverseSupport::Continued, None, None),
        (ReverseSupport::General, None, None),
    ] {
        let mut r = Reverse::with(Speaks::V2, |client, _, _| client.serve.takes = takes);
        r.serve();
        let caller = r.caller();
        assert_eq!(caller.takes(), takes);
        let call = call_echo(&caller, 1, 100, false, false);
        match short {
            None => check_echo(&r.w.outcome(call).unwrap(), 1, 100),
            Some(error) => {
                assert_eq!(r.w.outcome(call).unwrap_err(), error);
                continue;
            }
        }
        let call = call_echo(&caller, 2, 9000, true, true);
        match long {
            None => check_echo(&r.w.outcome(call).unwrap(), 2, 9000),
            Some(error) => assert_eq!(r.w.outcome(call).unwrap_err(), error),
        }
        let reads = r.w.client.transport_counters().unwrap().reads;
        assert_eq!(reads > 0, takes == ReverseSupport::General, "{takes:?}");
    }
}

/// RFC 8167 section 5.4: a client that has nothing to do keeps its connection, on which its server
/// may have something to do.
#[test]
fn test_idle_client_keeps_its_connection_for_calls_back() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut r, caller) = scene(speaks);
        for number in 1..=3 {
            let since = std::time::Instant::now();
            while since.elapsed() < Duration::from_millis(300) {
                r.w.poll();
            }
            assert_eq!((r.w.client.outstanding(), r.w.server.connections()), (0, 1));
            let call = call_echo(&caller, number, 100, false, false);
            check_echo(&r.w.outcome(call).unwrap(), number, 100);
        }
        assert_eq!(r.w.client.counters().connections, 1, "it is still the first");
        assert_eq!(r.events.lock().unwrap().len(), 1, "and the server hears of no other");
    }
}

#[test]
fn test_client_without_programs_takes_no_calls_and_goes_on() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut r = Reverse::new(speaks);
        let mut call = r.w.client.call(LATER).send().unwrap();
        let held = r.w.held.clone();
        r.w.until("a call", |_| (!held.lock().unwrap().is_empty()).then_some(()));
        let request = held.lock().unwrap().pop().unwrap();
        let caller = request.caller().unwrap().clone();
        for number in 0..100 {
            let back = call_echo(&caller, number, 100, false, false);
            let outcome = r.w.outcome(back).unwrap_err();
            let error = match speaks {
                Speaks::V1 => conn::CallError::Refused(Refusal::V1(v1::Refusal::Chunk)),
                _ => conn::CallError::NoReverse,
            };
            assert_eq!(outcome, CallError::Transport(error));
        }
        assert!(call.try_take().is_none());
        let mut results = Body::new();
        results.u32(5).unwrap();
        request.reply(Ok(results));
        assert_eq!(r.w.outcome(call).unwrap().reader().u32(), Ok(5));
        assert_eq!(r.w.client.counters().connections, 1);
    }
}

#[test]
fn test_calls_in_both_directions_complete_under_load() {
    const CALLS: u32 = 200;
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut r, caller) = scene(speaks);
        let len = |n: u32| if speaks == Speaks::V1 { n as usize * 13 } else { n as usize * 61 };
        let (mut made, mut done) = ([0, 0], [0, 0]);
        let mut calls: [Vec<(u32, PendingCall)>; 2] = [Vec::new(), Vec::new()];
        r.w.until("all replies", |w| {
            while made[0] < CALLS && calls[0].len() < 60 {
                let n = made[0];
                let Ok(call) = echo(&w.client, n, n as usize * 61, n % 2 == 0, n % 3 == 0) else {
                    break;
                };
                calls[0].push((n, call));
                made[0] += 1;
            }
            while made[1] < CALLS && calls[1].len() < 60 {
                let n = made[1];
                calls[1].push((n, call_echo(&caller, n, len(n), n % 2 == 0, n % 3 == 0)));
                made[1] += 1;
            }
            for (side, calls) in calls.iter_mut().enumerate() {
                calls.retain_mut(|(n, call)| {
                    let Some(outcome) = call.try_take() else { return true };
                    let len = if side == 0 { *n as usize * 61 } else { len(*n) };
                    check_echo(&outcome.unwrap(), *n, len);
                    done[side] += 1;
                    false
                });
            }
            (done == [CALLS; 2]).then_some(())
        });
        assert_eq!(r.w.client.served().calls, u64::from(CALLS));
        assert_eq!(r.w.client.counters().connections, 1);
    }
}

/// A reply waits for calls in the other direction, as many as there can be. The credits of one
/// direction do not block the other.
#[test]
fn test_reply_waits_for_calls_back() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut r, _) = scene(speaks);
        let forward: Vec<_> = (0..64)
            .map(|_| r.w.client.call(LATER).timeout(Duration::from_secs(120)).send().unwrap())
            .collect();
        let held = r.w.held.clone();
        r.w.until("all calls", |_| (held.lock().unwrap().len() == 64).then_some(()));
        let requests = std::mem::take(&mut *held.lock().unwrap());
        let mut waiting: Vec<_> = requests
            .into_iter()
            .zip(0..)
            .map(|(request, n)| {
                let back = call_echo(request.caller().unwrap(), n, 700, false, false);
                (request, n, back)
            })
            .collect();
        r.w.until("replies to calls back", |_| {
            let mut still = Vec::new();
            for (request, n, mut back) in waiting.drain(..) {
                match back.try_take() {
                    None => still.push((request, n, back)),
                    Some(outcome) => {
                        check_echo(&outcome.unwrap(), n, 700);
                        let mut results = Body::new();
                        results.u32(n).unwrap();
                        request.reply(Ok(results));
                    }
                }
            }
            waiting = still;
            waiting.is_empty().then_some(())
        });
        for call in forward {
            r.w.outcome(call).unwrap();
        }
    }
}

#[test]
fn test_lost_connection_ends_each_call_back_once_and_client_reconnects() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut r, caller) = scene(speaks);
        // Before the first reply, version 1 has one credit.
        let call = call_echo(&caller, 1, 100, false, false);
        check_echo(&r.w.outcome(call).unwrap(), 1, 100);
        let calls: Vec<_> = (0..5).map(|_| call_later(&caller)).collect();
        let xid = calls[0].xid();
        let held = r.held.clone();
        r.w.until("calls", |_| (held.lock().unwrap().len() == 5).then_some(()));
        let given_up = call_later(&caller);
        drop(given_up);
        r.w.server.disconnect_all();
        for call in calls {
            assert_eq!(r.w.outcome(call).unwrap_err(), CallError::Lost);
        }
        assert!(!caller.is_connected());
        assert_eq!(caller.outstanding(), 0);
        assert_eq!(caller.call(back(ECHO)).send().unwrap_err(), CallError::Lost);
        assert_eq!(r.events.lock().unwrap().get(1), Some(&CallerEvent::Gone(caller.clone())));
        // Answers to a lost connection are sent nowhere, and are kept.
        for (request, n) in std::mem::take(&mut *held.lock().unwrap()).into_iter().zip(7..) {
            let mut results = Body::new();
            results.u32(n).unwrap();
            request.reply(Ok(results));
        }
        // The client connects without a call of its own; in version 1 the server learns of it from
        // a call.
        if speaks == Speaks::V1 {
            r.w.echo(1, 10, false, false);
        }
        r.w.until("the client", |w| (w.client.counters().connections == 2).then_some(()));
        let again = r.caller();
        assert_ne!(again, caller);
        // A call that was executed is not executed again, if the server repeats its XID.
        let served = r.w.client.served();
        let call = again.call(back(LATER)).again(xid).send().unwrap();
        assert_eq!(r.w.outcome(call).unwrap().reader().u32(), Ok(7));
        assert_eq!(r.w.client.served().calls, served.calls);
        assert_eq!(r.w.client.served().calls_repeated, served.calls_repeated + 1);
        let call = call_echo(&again, 2, 1000, false, false);
        check_echo(&r.w.outcome(call).unwrap(), 2, 1000);
    }
}

#[test]
fn test_calls_back_end_with_their_server() {
    let (mut r, caller) = scene(Speaks::V2);
    let mut call = call_later(&caller);
    let held = r.held.clone();
    r.w.until("the call", |_| (held.lock().unwrap().len() == 1).then_some(()));
    let device = r.w.server_device();
    let elsewhere = "10.0.0.2:99".parse().unwrap();
    let config = ServerConfig { memory: 1 << 20, ..ServerConfig::default() };
    let other = heddle_rpc::Server::new(&device, elsewhere, config).unwrap();
    drop(std::mem::replace(&mut r.w.server, other));
    assert_eq!(call.try_take().unwrap().unwrap_err(), CallError::Lost);
}

#[test]
fn test_calls_back_and_their_memory_have_limits() {
    const SERVED: usize = 64 << 10;
    let mut r = Reverse::with(Speaks::V2, |client, _, calls| {
        client.serve = ServeConfig { memory: SERVED, ..ServeConfig::default() };
        calls.calls = 3;
        calls.timeout = Duration::from_secs(2);
    });
    r.serve();
    let caller = r.caller();
    let held = r.held.clone();
    let calls: Vec<_> = (0..3).map(|_| call_later(&caller)).collect();
    assert_eq!(caller.call(back(LATER)).send().unwrap_err(), CallError::TooMany { max: 3 });
    r.w.until("calls", |_| (held.lock().unwrap().len() == 3).then_some(()));
    // All calls time out.
    for call in calls {
        assert_eq!(r.w.outcome(call).unwrap_err(), CallError::TimedOut { sent: true });
    }
    held.lock().unwrap().clear();
    // The client can never have memory for this call.
    let call = call_echo(&caller, 1, SERVED, true, false);
    let refused = conn::CallError::Refused(Refusal::V2(v2::Refusal::System));
    assert_eq!(r.w.outcome(call).unwrap_err(), CallError::Transport(refused));
    // Calls for which the client has memory after others have ended wait.
    let data = |n| {
        let mut arguments = Body::new();
        arguments.u32(n).unwrap();
        let data = caller.memory().take_copy(&pattern(n, 20_000)).unwrap();
        arguments.item(data).unwrap();
        arguments
    };
    let keep = |n| {
        let call = caller.call(back(KEEP)).arguments(data(n)).timeout(Duration::from_secs(100));
        call.send().unwrap()
    };
    let calls: Vec<_> = (0..3).map(keep).collect();
    r.w.until("two of them", |_| (held.lock().unwrap().len() == 2).then_some(()));
    let waits = |r: &Reverse| r.w.client.transport_counters().unwrap().memory_waits;
    assert_eq!(waits(&r), 1);
    for _ in 0..1000 {
        r.w.poll();
    }
    assert_eq!(held.lock().unwrap().len(), 2);
    for (call, n) in calls.into_iter().zip(0..) {
        r.w.until("the next", |_| (!held.lock().unwrap().is_empty()).then_some(()));
        let request = held.lock().unwrap().remove(0);
        let mut reader = request.arguments.reader();
        assert_eq!(reader.u32(), Ok(n));
        assert!(reader.opaque(MAX).unwrap().to_vec() == pattern(n, 20_000));
        let mut results = Body::new();
        results.u32(n).unwrap();
        request.reply(Ok(results));
        assert_eq!(r.w.outcome(call).unwrap().reader().u32(), Ok(n));
    }
}

/// A slot in the connection is free before the event of its last call is taken, and a connection
/// may have more events than one turn takes.
#[test]
fn test_call_back_does_not_reuse_slot_of_call_with_untaken_reply() {
    const WAITING: u64 = 40;
    let mut r = Reverse::with(Speaks::V2, |_, server, _| server.connection_memory = 8192);
    r.serve();
    let caller = r.caller();
    let calls: Vec<_> = (0..40).map(|_| call_later(&caller)).collect();
    let held = r.held.clone();
    r.w.until("calls", |_| (held.lock().unwrap().len() == 40).then_some(()));
    // The client makes calls that wait for memory which its first call holds, and further calls
    // after them.
    let keep = |r: &Reverse, n| {
        let mut arguments = Body::new();
        let data = r.w.client.memory().take_copy(&pattern(n, 8100)).unwrap();
        arguments.u32(n).unwrap().item(data).unwrap();
        r.w.client.call(KEEP).arguments(arguments).send().unwrap()
    };
    let forward = keep(&r, 1);
    r.w.until("a call", |w| (w.held.lock().unwrap().len() == 1).then_some(()));
    let mut behind = vec![keep(&r, 2)];
    behind.extend((1..WAITING).map(|_| r.w.client.call(LATER).send().unwrap()));
    r.w.until("others", |w| (w.server.counters().memory_waits == WAITING).then_some(()));
    // All calls resume in one turn.
    r.w.deaf = true;
    let word = || {
        let mut results = Body::new();
        results.u32(7).unwrap();
        Ok(results)
    };
    std::mem::take(&mut *held.lock().unwrap()).into_iter().for_each(|of| of.reply(word()));
    (0..2000).for_each(|_| r.w.poll());
    let last = call_echo(&caller, 2, 10, false, false);
    r.w.held.lock().unwrap().pop().unwrap().reply(word());
    r.w.deaf = false;
    for call in calls {
        assert_eq!(r.w.outcome(call).unwrap().reader().u32(), Ok(7));
    }
    check_echo(&r.w.outcome(last).unwrap(), 2, 10);
    r.w.until("them", |w| (w.held.lock().unwrap().len() as u64 == WAITING).then_some(()));
    drop((forward, behind));
}

#[test]
fn test_call_back_without_reply_reaches_the_client() {
    let (mut r, caller) = scene(Speaks::V2);
    let call = caller.call(back(LATER)).one_way().send().unwrap();
    assert!(r.w.outcome(call).unwrap().bytes().is_empty());
    let held = r.held.clone();
    r.w.until("the call", |_| held.lock().unwrap().pop());
}

#[test]
fn test_client_that_is_closed_drops_its_programs_and_takes_none() {
    let (mut r, caller) = scene(Speaks::V2);
    let kept = Arc::new(());
    let (weak, client) = (Arc::downgrade(&kept), r.w.client.clone());
    let program = move |_: Request| drop((kept.clone(), client.outstanding()));
    r.w.client.serve(BACK + 1, 1..=1, Binding, program).unwrap();
    let twice = r.w.client.serve(BACK, 1..=1, Binding, |_: Request| {});
    assert!(matches!(twice, Err(ServeError::AlreadyRegistered(_))), "{twice:?}");
    let call = call_later(&caller);
    let held = r.held.clone();
    r.w.until("the call", |_| (held.lock().unwrap().len() == 1).then_some(()));
    r.w.client.close();
    assert!(weak.upgrade().is_none(), "a program is left");
    assert_eq!(r.w.outcome(call).unwrap_err(), CallError::Lost);
    let late = r.w.client.serve(BACK, 1..=1, Binding, |_: Request| {});
    assert_eq!(late, Err(ServeError::Closed));
}

#[test]
fn test_request_has_no_caller_on_server_that_makes_no_calls() {
    let mut w = World::new(Speaks::BOTH);
    let call = w.client.call(LATER).send().unwrap();
    let held = w.held.clone();
    w.until("the call", |_| (held.lock().unwrap().len() == 1).then_some(()));
    assert!(held.lock().unwrap()[0].caller().is_none());
    held.lock().unwrap().clear();
    assert_eq!(w.outcome(call).unwrap_err(), CallError::SystemErr);
}
