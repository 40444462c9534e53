//! Bidirectional runs: the server carries out operations as well, and each end compares what the
//! other has left in its memory.

use std::time::Duration;

use heddle_base::units::{Size, Sizes};
use heddle_dataplane::Clock;
use heddle_perf::embedded::{Pair, Placement};
use heddle_perf::pin;
use heddle_perf::report::BenchReport;
use heddle_perf::spec::{BenchSpec, Faults, Until};
use heddle_perf::workload::{Client, Run, Workload, WorkloadError};
use heddle_services::Step;
use heddle_services::bench::hello::{Hello, Region, Welcome};
use heddle_services::bench::tally::Tally;
use heddle_services::bench::{BenchServer, Mode, Op, pattern};
use heddle_verbs::{
    AcceptParams, CmEvent, CqeOp, Data, ListenParams, MpaOptions, RecvWr, SendOp, SendWr,
};

use crate::common::{Net, Raw, eal, server};

const PORT: u16 = 7471;

fn spec(op: Op, size: u32, until: Until) -> BenchSpec {
    BenchSpec {
        op,
        sizes: Sizes::one(Size(size)),
        until,
        bidirectional: true,
        ..BenchSpec::default()
    }
}

fn run(pair: &mut Pair, spec: &BenchSpec, size: u32, placement: Placement) -> BenchReport {
    spec.check().expect("it can run");
    let what = format!("{} {size}", spec.op);
    let r = pair.run(spec, Run::new(spec, Size(size)), placement);
    r.unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// Both ends compare the slots at the end of each run, so a run that ends without an error has
/// moved the right bytes in both directions.
#[test]
fn test_both_directions_carry_operations_of_every_size() {
    let (eal, _turn) = eal();
    let most = BenchSpec { qps: 3, ..spec(Op::Write, 300_000, Until::Iters(1)) };
    let mut pair = Pair::open(&eal, &most).unwrap();
    for op in [Op::Write, Op::Read] {
        for (size, qps) in [(1, 1), (1460, 3), (4096, 2), (300_000, 1)] {
            for until in [Until::Iters(400), Until::Elapsed(Duration::from_millis(60))] {
                let s = BenchSpec { qps, ..spec(op, size, until) };
                let r = run(&mut pair, &s, size, Placement::Inline);
                let back = r.reverse.expect("a second direction");
                assert!(back.ops > 0 && back.seconds > 0.0, "{op} {size}: {back:?}");
                assert_eq!(back.bytes, back.ops * u64::from(size));
                if let Until::Iters(n) = until {
                    assert_eq!(r.ops, n * u64::from(qps), "the client's own are as many as asked");
                }
                // Each side sent more FPDU bytes than the payload of the smaller direction.
                let sent = |side: &str| {
                    let of = |w: &&heddle_perf::report::WorkerShare| w.side == side;
                    r.workers.iter().filter(of).map(|w| w.tx_bytes).sum::<u64>()
                };
                assert!(sent("client").min(sent("server")) > r.bytes.min(back.bytes), "{r:?}");
            }
        }
    }
    // The server serves a run in one direction afterwards.
    let s = BenchSpec { bidirectional: false, ..spec(Op::Write, 4096, Until::Iters(50)) };
    assert_eq!(run(&mut pair, &s, 4096, Placement::Inline).reverse, None);
}

#[test]
fn test_both_directions_go_on_over_a_lossy_wire_with_markers() {
    let (eal, _turn) = eal();
    for op in [Op::Write, Op::Read] {
        let mut s = spec(op, 5000, Until::Iters(1500));
        s.faults = Faults {
            loss: "1%".parse().unwrap(),
            reorder: "2%".parse().unwrap(),
            dup: "1%".parse().unwrap(),
            seed: 7,
        };
        s.mpa = MpaOptions { markers: true, ..s.mpa };
        let mut pair = Pair::open(&eal, &s).unwrap();
        let r = run(&mut pair, &s, 5000, Placement::Inline);
        assert!(r.ops == 1500 && r.retransmits > 0, "{op}: {r:?}");
        assert!(r.reverse.is_some_and(|back| back.ops > 100), "{op}: {:?}", r.reverse);
    }
}

#[test]
fn test_both_directions_run_on_two_lcores() {
    let (eal, _turn) = eal();
    let Ok(cores) = pin::first::<2>() else { return };
    let s =
        BenchSpec { qps: 2, ..spec(Op::Write, 16_384, Until::Elapsed(Duration::from_millis(300))) };
    let mut pair = Pair::open(&eal, &s).unwrap();
    let r = run(&mut pair, &s, 16_384, Placement::Lcores(cores));
    assert!(r.ops > 0 && r.reverse.is_some_and(|back| back.ops > 0), "{r:?}");
}

/// A client that has asked for both directions, and never ends them, costs another client neither
/// its run nor its turn: the other completes its operations beside it.
#[test]
fn test_run_that_never_ends_leaves_another_client_its_turn() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.server.device().clone();
    let mut perf = BenchServer::new(&device, server(PORT), ListenParams::default(), None).unwrap();
    let greedy = Raw::new(&net.client, 1 << 16);
    let hello = Hello {
        op: Op::Write,
        mode: Mode::Bw,
        verify: false,
        bidirectional: true,
        size: 4096,
        depth: 16,
        seed: 1,
        region: Region { stag: greedy.mr.stag(), to: greedy.mr.to(), len: 1 << 16 },
    };
    greedy.qp.post_recv(&RecvWr { wr_id: 0, sges: &[greedy.mr.sge(0, 64)] }).unwrap();
    greedy.connect(&net.client, server(PORT), &hello.encode());
    let event = greedy.event(&mut net, || {
        perf.step();
    });
    assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
    tell(&greedy);
    net.until("the grant", || {
        perf.step();
        greedy.cq.poll().is_some_and(|cqe| cqe.op == CqeOp::Recv && cqe.status.is_success())
    });
    tell(&greedy);
    net.until("the server's Writes", || {
        perf.step();
        greedy.mr.load(15 * 4096) != 0
    });
    for n in 0..3 {
        let run = Run::new(&spec(Op::Read, 4096, Until::Iters(200)), Size(4096));
        let device = net.client.device();
        let mut client = Client::new(device, &Clock::new(&eal), server(PORT), run).unwrap();
        net.until("the end of a run", || {
            perf.step();
            client.step().unwrap_or_else(|e| panic!("client {n}: {e}")) == Step::Done
        });
    }
    // The greedy client leaves in the middle of its run.
    drop(greedy);
    net.until("the end of all connections", || {
        perf.step();
        perf.connections() == 0
    });
}

/// The server takes as many messages as a run has parts, and ends the connection after one more.
#[test]
fn test_server_takes_only_the_messages_of_a_run() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.server.device().clone();
    let mut perf = BenchServer::new(&device, server(PORT), ListenParams::default(), None).unwrap();
    let raw = Raw::new(&net.client, 1 << 16);
    let region = Region { stag: raw.mr.stag(), to: raw.mr.to(), len: 1 << 15 };
    let hello = Hello {
        op: Op::Read,
        mode: Mode::Bw,
        verify: false,
        bidirectional: true,
        size: 4096,
        depth: 8,
        seed: 9,
        region,
    };
    let mut bytes = vec![0; 4096];
    for slot in 0..8 {
        pattern::fill(&mut bytes, hello.seed, slot);
        // The last slot is wrong, and the server says so.
        bytes[4000] ^= u8::from(slot == 7);
        raw.mr.write(slot as usize * 4096, &bytes);
    }
    for n in 0..2 {
        raw.qp.post_recv(&RecvWr { wr_id: n, sges: &[raw.mr.sge(40_000, 64)] }).unwrap();
    }
    raw.connect(&net.client, server(PORT), &hello.encode());
    let event = raw.event(&mut net, || {
        perf.step();
    });
    assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
    let mut received = |what| {
        net.until(what, || {
            perf.step();
            raw.cq.poll().is_some_and(|cqe| cqe.op == CqeOp::Recv && cqe.status.is_success())
        });
    };
    tell(&raw);
    received("the grant");
    (0..3).for_each(|_| tell(&raw));
    received("the tally");
    let mut b = [0; Tally::LEN];
    raw.mr.read(40_000, &mut b);
    let tally = Tally::decode(&b).expect("a tally");
    assert!(tally.wrong == 1 && tally.posted >= 8, "{tally:?}");
    tell(&raw);
    let event = raw.event(&mut net, || {
        perf.step();
    });
    assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
}

/// A server that counts more operations than it has carried out, sends a tally before its time, or
/// leaves other bytes than it says, ends the run with an error.
#[test]
fn test_client_believes_no_tally_that_cannot_be() {
    let good = Tally { ops: 0, nanos: 1, posted: 0, wrong: 0 };
    let parts = |tally| move |part| (part == 3).then_some(tally);
    let e = against(Op::Write, parts(Tally { ops: 1, ..good }));
    assert!(matches!(e, Some(WorkloadError::Stray(32))), "{e:?}");
    let e = against(Op::Write, parts(Tally { wrong: 3, ..good }));
    assert!(matches!(e, Some(WorkloadError::WrongThere(3))), "{e:?}");
    let e = against(Op::Write, parts(Tally { posted: 1, ..good }));
    assert!(matches!(e, Some(WorkloadError::Wrong { message: 0, size: 4096, at: 0 })), "{e:?}");
    let e = against(Op::Write, |part| (part == 1).then_some(good));
    assert!(matches!(e, Some(WorkloadError::Stray(32))), "{e:?}");
    let e = against(Op::Write, parts(good));
    assert!(e.is_none(), "{e:?}");
}

/// Runs against a server that carries out nothing, and answers the client's message number `part`
/// with the tally that `answer` has for it. Returns the client's error.
fn against(op: Op, mut answer: impl FnMut(u32) -> Option<Tally>) -> Option<WorkloadError> {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let raw = Raw::new(&net.server, 1 << 16);
    for n in 0..3 {
        raw.qp.post_recv(&RecvWr { wr_id: n, sges: &[] }).unwrap();
    }
    net.server.device().listen(server(1), ListenParams::default(), &raw.events).unwrap();
    let s = BenchSpec { depth: Some(4), ..spec(op, 4096, Until::Iters(20)) };
    let run = Run::new(&s, Size(4096));
    let mut client = Client::new(net.client.device(), &Clock::new(&eal), server(1), run).unwrap();
    let device = net.server.device().clone();
    let region = Region { stag: raw.mr.stag(), to: raw.mr.to(), len: 1 << 15 };
    let (mut part, mut outcome) = (0, None);
    net.until("the end of the run", || {
        match raw.events.poll() {
            Some(CmEvent::ConnectRequest { id, .. }) => {
                let mut params = AcceptParams::new(raw.qp.clone());
                params.private_data = Welcome { window: 0, region }.encode();
                device.accept(id, params).unwrap();
            }
            Some(CmEvent::Disconnected { id, .. }) => drop(device.disconnect(id)),
            _ => {}
        }
        while let Some(cqe) = raw.cq.poll() {
            if cqe.op == CqeOp::Recv && cqe.status.is_success() {
                part += 1;
                if let Some(tally) = answer(part) {
                    raw.mr.write(40_000, &tally.encode());
                    post(&raw, Tally::LEN);
                }
            }
        }
        outcome = match client.step() {
            Ok(Step::Done) => Some(None),
            Ok(_) => None,
            Err(e) => Some(Some(e)),
        };
        outcome.is_some()
    });
    outcome.expect("it was waited for")
}

/// Sends the empty message by which a client asks for the next part.
fn tell(raw: &Raw) {
    post(raw, 0);
}

fn post(raw: &Raw, len: usize) {
    let sge = [raw.mr.sge(40_000, len)];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send { solicited: true, invalidate: None },
        data: Data::Sges(&sge[..len.min(1)]),
        signaled: false,
        fence: false,
    };
    raw.qp.post_send(&wr).expect("there is room");
}
