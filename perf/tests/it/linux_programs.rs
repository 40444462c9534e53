//! The servers of librdmacm's examples and of perftest, with clients that send the same messages as
//! those programs.

use heddle_base::units::{Size, Sizes};
use heddle_dataplane::Clock;
use heddle_perf::spec::{BenchSpec, Until};
use heddle_perf::workload::{Peer, PerftestClient, Run, Workload, WorkloadError};
use heddle_services::bench::{Mode, Op};
use heddle_services::{Limits, ServiceSpec, Services, Step};
use heddle_types::mpa::{Rtr, RtrSet};
use heddle_verbs::{
    CmEvent, CmId, ConnectParams, CqeOp, Data, DisconnectReason, ListenParams, MpaOptions, RecvWr,
    SendOp, SendWr, Stag,
};
use std::time::Duration;

use crate::common::{Net, Raw, eal, server};

const PORT: u16 = 18_515;

/// A service, and the RNICs of both sides.
struct Harness {
    net: Net,
    services: Services,
}

impl Harness {
    fn new(eal: &heddle_dataplane::Eal, service: &str) -> Harness {
        Harness::with_limits(eal, service, &Limits::default())
    }

    fn with_limits(eal: &heddle_dataplane::Eal, service: &str, limits: &Limits) -> Harness {
        let net = Net::new(eal);
        let spec: ServiceSpec = format!("10.0.0.2:{PORT}={service}").parse().expect("a service");
        let (device, params) = (net.server.device(), ListenParams::default());
        let services =
            Services::start_with(device, &[spec], &params, limits, None).expect("it starts");
        Harness { net, services }
    }

    fn until(&mut self, what: &str, done: impl FnMut() -> bool) {
        let (services, mut done) = (&mut self.services, done);
        self.net.until(what, || {
            services.step();
            done()
        });
    }

    /// Makes a client with `receives` receives of `len` bytes, all in the second half of its
    /// memory, and returns the client with the outcome of its request.
    fn ask(&mut self, len: usize, receives: u32, mpa: MpaOptions) -> (Raw, CmId, CmEvent) {
        let raw = Raw::new(&self.net.client, 2 * len);
        for wr_id in 0..u64::from(receives) {
            raw.qp
                .post_recv(&RecvWr { wr_id, sges: &[raw.mr.sge(len, len)] })
                .expect("there is room");
        }
        let params = ConnectParams::new(raw.qp.clone()).mpa(mpa);
        let device = self.net.client.device();
        let id = device.connect(server(PORT), params, &raw.events).expect("a request");
        let event = self.event(&raw);
        (raw, id, event)
    }

    fn connect(&mut self, len: usize, receives: u32, mpa: MpaOptions) -> (Raw, CmId) {
        let (raw, id, event) = self.ask(len, receives, mpa);
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        (raw, id)
    }

    /// Returns the reason for which the service rejects a request.
    fn rejection(&mut self, mpa: MpaOptions) -> String {
        let (_, _, event) = self.ask(64, 0, mpa);
        let CmEvent::Rejected { private_data, .. } = event else { panic!("{event:?}") };
        String::from_utf8(private_data).expect("text")
    }

    fn event(&mut self, raw: &Raw) -> CmEvent {
        let services = &mut self.services;
        raw.event(&mut self.net, || {
            services.step();
        })
    }

    fn ended(&mut self, raw: &Raw) -> DisconnectReason {
        match self.event(raw) {
            CmEvent::Disconnected { reason, .. } => reason,
            event => panic!("{event:?}"),
        }
    }

    /// Returns the next message that `raw` receives, and posts its receive again.
    fn receive(&mut self, raw: &Raw) -> Vec<u8> {
        let len = raw.mr.len() / 2;
        let mut got = None;
        self.until("a message", || {
            while let Some(cqe) = raw.cq.poll() {
                assert!(cqe.status.is_success(), "{cqe:?}");
                if cqe.op == CqeOp::Recv {
                    got = Some(cqe);
                    return true;
                }
            }
            false
        });
        let cqe = got.expect("it was waited for");
        let mut message = vec![0; cqe.len as usize];
        raw.mr.read(len, &mut message);
        raw.qp
            .post_recv(&RecvWr { wr_id: cqe.wr_id, sges: &[raw.mr.sge(len, len)] })
            .expect("there is room");
        message
    }

    /// Makes an exchange on a parameter connection.
    fn exchange(&mut self, raw: &Raw, question: &[u8]) -> Vec<u8> {
        send(raw, question);
        self.receive(raw)
    }
}

fn send(raw: &Raw, message: &[u8]) {
    raw.mr.write(0, message);
    post(raw, SendOp::Send { solicited: false, invalidate: None }, message.len());
}

fn post(raw: &Raw, op: SendOp, len: usize) {
    let sges = &[raw.mr.sge(0, len)];
    let wr = SendWr { wr_id: 99, op, data: Data::Sges(sges), signaled: true, fence: false };
    raw.qp.post_send(&wr).expect("there is room");
}

fn peer_to_peer() -> MpaOptions {
    MpaOptions::new().peer_to_peer(RtrSet::of(Rtr::Write))
}

#[test]
fn test_rdma_server_answers_one_message_and_closes() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "rdma_server");
    for _ in 0..2 {
        let (raw, _) = harness.connect(16, 1, MpaOptions::new());
        assert_eq!(harness.exchange(&raw, b"sixteen bytes !!"), b"sixteen bytes !!");
        assert_eq!(harness.ended(&raw), DisconnectReason::Orderly);
    }
    // The server does not answer a message that is too short, and a message that is too long does
    // not fit.
    for len in [15, 17] {
        let (raw, _) = harness.connect(32, 1, MpaOptions::new());
        send(&raw, &vec![1; len]);
        let reason = harness.ended(&raw);
        assert_eq!(reason == DisconnectReason::Orderly, len == 15, "{reason}");
        assert!(raw.cq.poll().is_none_or(|c| c.op != CqeOp::Recv || !c.status.is_success()));
    }
}

#[test]
fn test_ucmatose_begins_takes_as_many_and_closes() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "ucmatose,count=3,size=3000");
    for _ in 0..2 {
        let (raw, _) = harness.connect(3000, 3, peer_to_peer());
        for _ in 0..3 {
            assert_eq!(harness.receive(&raw), [0; 3000]);
        }
        for _ in 0..3 {
            send(&raw, &[7; 3000]);
        }
        assert_eq!(harness.ended(&raw), DisconnectReason::Orderly);
    }
    // The client sends fewer or more messages, or bytes, than both sides were configured for.
    let (raw, _) = harness.connect(3000, 3, peer_to_peer());
    send(&raw, &[7; 2999]);
    harness.ended(&raw);
    let (raw, _) = harness.connect(3000, 3, peer_to_peer());
    for _ in 0..4 {
        send(&raw, &[7; 3000]);
    }
    harness.ended(&raw);
}

#[test]
fn test_ucmatose_tells_client_that_peer_to_peer_model_is_required() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "ucmatose");
    assert!(harness.rejection(MpaOptions::new()).contains("peer-to-peer"));
}

#[test]
fn test_cmtime_takes_many_connections_and_their_ends() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "cmtime");
    for _ in 0..3 {
        let conns: Vec<_> = (0..40).map(|_| harness.connect(64, 0, MpaOptions::new())).collect();
        for (_, id) in &conns {
            harness.net.client.device().disconnect(*id).unwrap();
        }
        for (raw, _) in &conns {
            assert_eq!(harness.ended(raw), DisconnectReason::Orderly);
        }
    }
    // A client that sends a message is no `cmtime`: the server has no receive for it.
    let (raw, _) = harness.connect(64, 0, MpaOptions::new());
    send(&raw, b"x");
    let reason = harness.ended(&raw);
    assert!(matches!(reason, DisconnectReason::RemoteTerminate(_)), "{reason}");
}

/// A test of perftest as its client makes it, up to where the data begins.
struct Client {
    id: CmId,
    parameters: Raw,
    data: Vec<Raw>,
    /// The server's memory for each entry of `data`.
    regions: Vec<(Stag, u64)>,
}

fn dest(qpn: u32, raw: &Raw) -> Vec<u8> {
    let mut b = vec![0; 56];
    b[4..8].copy_from_slice(&1u32.to_be_bytes());
    b[8..12].copy_from_slice(&qpn.to_be_bytes());
    b[16..20].copy_from_slice(&raw.mr.stag().0.to_be_bytes());
    b[24..32].copy_from_slice(&raw.mr.to().to_be_bytes());
    b
}

fn number(b: &[u8]) -> u64 {
    b.iter().fold(0, |v, &x| v << 8 | u64::from(x))
}

impl Client {
    fn new(harness: &mut Harness, qps: u32, receives: u32, len: usize) -> Client {
        Client::with(harness, qps, receives, len, MpaOptions::new())
    }

    fn with(harness: &mut Harness, qps: u32, receives: u32, len: usize, mpa: MpaOptions) -> Client {
        let (parameters, id) = harness.connect(64, 2, MpaOptions::new());
        greet(harness, &parameters);
        let data: Vec<_> = (0..qps).map(|_| harness.connect(len, receives, mpa).0).collect();
        assert_eq!(harness.exchange(&parameters, &[0; 56]), [0; 56]);
        let mut regions = Vec::new();
        for _ in 0..2 {
            regions.clear();
            for (n, raw) in (0..).zip(&data) {
                let answer = harness.exchange(&parameters, &dest(n + 2, raw));
                assert!(answer.len() == 56 && number(&answer[8..12]) != 0, "{answer:?}");
                let stag = Stag(u32::try_from(number(&answer[16..20])).expect("4 bytes"));
                regions.push((stag, number(&answer[24..32])));
            }
        }
        Client { id, parameters, data, regions }
    }

    /// Reports the results, and ends the test.
    fn finish(self, harness: &mut Harness) {
        for n in 0..5u64 {
            assert_eq!(harness.exchange(&self.parameters, &n.to_be_bytes()), [0; 8]);
        }
        let last = dest(2, &self.data[0]);
        assert_eq!(harness.exchange(&self.parameters, &last).len(), 56);
        harness.net.client.device().disconnect(self.id).expect("it is there");
        harness.ended(&self.parameters);
    }
}

/// Makes the exchanges that come before the data connections.
fn greet(harness: &mut Harness, parameters: &Raw) {
    let version = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
    assert_eq!(harness.exchange(parameters, version), version);
    for common in [&b"\0\0\x10\0"[..], b"\0\0\0\x40", b"3\0"] {
        assert_eq!(harness.exchange(parameters, common), common);
    }
    assert_eq!(harness.exchange(parameters, &[0; 56]), [0; 56]);
}

#[test]
fn test_perftest_writes_and_reads_reach_their_own_memory() {
    let (eal, _turn) = eal();
    for (service, op) in [("ib_write_bw", 0), ("ib_read_bw", 1), ("ib_read_lat", 1)] {
        let mut harness = Harness::new(&eal, &format!("{service},size=65536"));
        let qps = if op == 0 { 3 } else { 1 };
        let client = Client::new(&mut harness, qps, 0, 65_536);
        for (raw, &(stag, to)) in client.data.iter().zip(&client.regions) {
            for at in [0, 1024] {
                let op = match op {
                    0 => SendOp::Write { stag, to: to + at },
                    _ => SendOp::Read { stag, to: to + at },
                };
                post(raw, op, 65_536 - 1024);
                harness.until("its completion", || {
                    raw.cq.poll().is_some_and(|c| {
                        assert!(c.status.is_success(), "{c:?}");
                        true
                    })
                });
            }
        }
        // An access one byte too far ends its own connection, and no other.
        let (stag, to) = client.regions[0];
        let op = if op == 0 {
            SendOp::Write { stag, to: to + 1 }
        } else {
            SendOp::Read { stag, to: to + 1 }
        };
        post(&client.data[0], op, 65_536);
        let reason = harness.ended(&client.data[0]);
        assert!(matches!(reason, DisconnectReason::RemoteTerminate(_)), "{reason}");
        client.finish(&mut harness);
    }
}

#[test]
fn test_perftest_send_bw_tells_how_many_messages_were_taken() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "ib_send_bw,size=4096");
    let client = Client::new(&mut harness, 1, 0, 4096);
    let raw = &client.data[0];
    let credit = || {
        let mut b = [0; 4];
        raw.mr.read(0, &mut b);
        u32::from_le_bytes(b)
    };
    // With `-a` the count restarts with each length; the server does not look at the messages.
    for len in [2, 4096] {
        raw.mr.write(0, &[0; 4]);
        for batch in 1..=5 {
            for _ in 0..12 {
                let sges = &[raw.mr.sge(4096, len)];
                let op = SendOp::Send { solicited: false, invalidate: None };
                let wr =
                    SendWr { wr_id: 9, op, data: Data::Sges(sges), signaled: true, fence: false };
                raw.qp.post_send(&wr).unwrap();
            }
            harness.until("the credits", || {
                while raw.cq.poll().is_some() {}
                credit() == batch * 12
            });
        }
        // The sides synchronize, and the client begins with no credits.
        harness.exchange(&client.parameters, &dest(2, raw));
    }
    client.finish(&mut harness);
}

/// The answer that reports all messages as taken does not overtake a credit for the last message.
#[test]
fn test_perftest_send_bw_is_in_step_only_when_the_data_is_quiet() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "ib_send_bw,size=64");
    let client = Client::new(&mut harness, 1, 0, 64);
    send(&client.data[0], &[0; 64]);
    harness.until("the credit", || client.data[0].mr.load(0) == 1);
    let asked = std::time::Instant::now();
    harness.exchange(&client.parameters, &dest(2, &client.data[0]));
    assert!(asked.elapsed() >= Duration::from_millis(10), "{:?}", asked.elapsed());
}

#[test]
fn test_perftest_send_lat_sends_each_message_back() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "ib_send_lat,size=8192");
    let client = Client::new(&mut harness, 1, 2, 8192);
    for (n, len) in [(1u8, 1), (2, 64), (3, 1460), (4, 8192), (5, 0)] {
        for _ in 0..20 {
            let message = vec![n; len];
            send(&client.data[0], &message);
            assert_eq!(harness.receive(&client.data[0]), message);
        }
    }
}

#[test]
fn test_perftest_write_lat_begins_and_answers_each_write() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "ib_write_lat,size=100");
    let client = Client::with(&mut harness, 1, 0, 4096, peer_to_peer());
    let (raw, (stag, to)) = (&client.data[0], client.regions[0]);
    // The server counts beyond the range of one byte.
    for n in 1..=600u32 {
        let n = n.to_le_bytes()[0];
        harness.until("the server's Write", || raw.mr.load(99) == n);
        while raw.cq.poll().is_some() {}
        let mut message = [0; 100];
        message[99] = n;
        raw.mr.write(4096, &message);
        let sges = &[raw.mr.sge(4096, 100)];
        let op = SendOp::Write { stag, to };
        let wr = SendWr { wr_id: 1, op, data: Data::Sges(sges), signaled: true, fence: false };
        raw.qp.post_send(&wr).unwrap();
    }
    assert_eq!(raw.mr.load(100), 0, "it writes no more than it was told");
}

#[test]
fn test_perftest_server_refuses_unknown_messages() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "ib_write_lat");
    let (parameters, _) = harness.connect(64, 2, MpaOptions::new());
    greet(&mut harness, &parameters);
    assert!(harness.rejection(MpaOptions::new()).contains("peer-to-peer"));
    // A latency test has only one queue pair.
    let _first = harness.connect(64, 0, peer_to_peer());
    assert!(harness.rejection(peer_to_peer()).contains("too many queue pairs"));
    drop(parameters);

    let mut harness = Harness::new(&eal, "ib_write_bw,size=4096");
    // The faults are an unknown length, two messages at a time while an answer waits, no queue
    // pair, and a queue pair too many.
    let (raw, _) = harness.connect(64, 2, MpaOptions::new());
    send(&raw, &[0; 24]);
    harness.ended(&raw);
    let (raw, _) = harness.connect(64, 2, MpaOptions::new());
    for _ in 0..5 {
        send(&raw, &[0; 56]);
    }
    harness.ended(&raw);
    let (raw, _) = harness.connect(64, 2, MpaOptions::new());
    greet(&mut harness, &raw);
    send(&raw, &[0; 56]);
    harness.ended(&raw);
    let client = Client::new(&mut harness, 1, 0, 64);
    send(&client.parameters, &dest(77, &client.data[0]));
    harness.ended(&client.parameters);
    // The server serves the next client.
    Client::new(&mut harness, 2, 0, 64).finish(&mut harness);
}

#[test]
fn test_perftest_memory_of_an_address_is_limited_and_released() {
    let (eal, _turn) = eal();
    let limits = Limits { peer_memory: 1 << 20, ..Limits::default() };
    let mut harness = Harness::with_limits(&eal, "ib_write_bw,size=700000", &limits);
    for _ in 0..3 {
        let client = Client::new(&mut harness, 1, 0, 64);
        let (second, _) = harness.connect(64, 2, MpaOptions::new());
        for question in [&[1; 16][..], &[0; 4], &[0; 2]] {
            harness.exchange(&second, question);
        }
        send(&second, &[0; 56]);
        harness.ended(&second);
        client.finish(&mut harness);
    }
}

/// The client asks for more memory than exists: the server neither leaves the client waiting nor
/// answers as if the memory existed.
#[test]
fn test_perftest_server_ends_test_without_enough_memory() {
    let (eal, _turn) = eal();
    let mut harness = Harness::new(&eal, "ib_read_bw,size=8388608");
    let (raw, _) = harness.connect(64, 2, MpaOptions::new());
    send(&raw, &[0; 56]);
    harness.ended(&raw);
    while let Some(cqe) = raw.cq.poll() {
        assert!(cqe.op != CqeOp::Recv || !cqe.status.is_success(), "{cqe:?}");
    }
}

/// A client that only connects has limited time, and gets no memory for a test.
#[test]
fn test_perftest_ends_clients_that_ask_for_nothing() {
    let (eal, _turn) = eal();
    let limits = Limits { first_message: Some(Duration::from_millis(100)), ..Limits::default() };
    let mut harness = Harness::with_limits(&eal, "ib_send_bw", &limits);
    let (raw, _) = harness.connect(64, 1, MpaOptions::new());
    harness.ended(&raw);
}

/// `heddle bench --perftest` runs to its end with the server of each program.
#[test]
fn test_bench_is_a_client_of_every_program_of_perftest() {
    let (eal, _turn) = eal();
    let elapsed = Until::Elapsed(Duration::from_millis(50));
    for (service, op, mode, until) in [
        ("ib_write_bw,size=64", Op::Write, Mode::Bw, elapsed),
        ("ib_read_bw,size=64", Op::Read, Mode::Bw, Until::Iters(300)),
        // More messages than the server has receives.
        ("ib_send_bw,size=64", Op::Send, Mode::Bw, Until::Iters(2000)),
        ("ib_write_lat,size=64", Op::Write, Mode::Lat, Until::Iters(300)),
        ("ib_read_lat,size=64", Op::Read, Mode::Lat, elapsed),
        ("ib_send_lat,size=64", Op::Send, Mode::Lat, Until::Iters(300)),
    ] {
        let mut h = Harness::new(&eal, service);
        let spec = BenchSpec {
            op,
            mode,
            until,
            sizes: Sizes::one(Size(64)),
            warmup: matches!(until, Until::Elapsed(_)).then_some(Duration::ZERO),
            peer: Peer::Perftest,
            ..BenchSpec::default()
        };
        spec.check().unwrap_or_else(|e| panic!("{service}: {e}"));
        let run = Run::new(&spec, Size(64));
        let device = h.net.client.device().clone();
        let mut client =
            PerftestClient::new(&device, &Clock::system(), server(PORT), run).expect("a client");
        let step = |client: &mut PerftestClient| {
            client.step().unwrap_or_else(|e| panic!("{service}: {e}"))
        };
        h.until(service, || step(&mut client) == Step::Done);
        let outcome = client.outcome();
        match until {
            // The server of ib_write_lat begins, so its first message answers none.
            Until::Iters(n) if service.starts_with("ib_write_lat") => {
                assert_eq!(outcome.ops, n - 1, "{service}");
            }
            Until::Iters(n) => assert_eq!(outcome.ops, n, "{service}"),
            Until::Elapsed(_) => assert!(outcome.ops > 10, "{service}: {}", outcome.ops),
        }
        assert!(outcome.elapsed > Duration::ZERO && outcome.latency().p50 > 0, "{service}");
    }
}

#[test]
fn test_bench_refuses_runs_that_no_server_of_perftest_has() {
    let spec = BenchSpec { peer: Peer::Perftest, ..BenchSpec::default() };
    assert!(spec.check().is_ok());
    let both = Sizes::one(Size(64));
    for (wrong, part) in [
        (BenchSpec { op: Op::FetchAdd, sizes: Sizes::one(Size(8)), ..spec.clone() }, "write, read"),
        (BenchSpec { op: Op::Send, ..spec.clone() }, "--iters"),
        (BenchSpec { mode: Mode::Lat, sizes: both, ..spec.clone() }, "--iters"),
        (BenchSpec { qps: 2, ..spec.clone() }, "one connection"),
        (BenchSpec { verify: true, ..spec.clone() }, "one connection"),
        (BenchSpec { sizes: "1..64".parse().expect("sizes"), ..spec.clone() }, "one size"),
    ] {
        let error = wrong.check().expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// A server that is none of perftest's ends the run with a reason.
#[test]
fn test_bench_says_that_a_server_is_none_of_perftest() {
    let (eal, _turn) = eal();
    let mut h = Harness::new(&eal, "perf");
    let spec = BenchSpec { peer: Peer::Perftest, ..BenchSpec::default() };
    let run = Run::new(&spec, Size(64));
    let device = h.net.client.device().clone();
    let mut client =
        PerftestClient::new(&device, &Clock::system(), server(PORT), run).expect("a client");
    let mut error = None;
    h.until("an error", || {
        error = client.step().err();
        error.is_some()
    });
    assert!(matches!(error, Some(WorkloadError::Refused { .. })), "{error:?}");
}
