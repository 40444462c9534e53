//! Posting: the static rules, the fate of a request that breaks them, inline data, and the memory
//! that queues take.

use super::pair::BASE;
use super::*;
use heddle_engine::Retired;
use heddle_types::{
    Cqe, CqeStatus, Data, SendOp, Sge, TermCode, check_recv, check_send, wr::MAX_MESSAGE,
};

const STAG: Stag = Stag(1);

fn sge(len: u32) -> Sge {
    Sge { stag: STAG, to: 0, len }
}

fn statuses(qp: &mut QpContext) -> Vec<(u64, CqeStatus)> {
    completions(qp).iter().map(|c| (c.wr_id, c.status)).collect()
}

/// Every static rule, each with a request that just keeps it.
#[test]
fn test_posting_check_enforces_every_static_rule() {
    let all = Limits::default();
    let (one, two) = ([sge(1)], [sge(1); 2]);
    let most = [sge(1); MAX_SGES];
    let many = [sge(1); MAX_SGES + 1];
    let (max, over) = ([sge(MAX_MESSAGE - 1), sge(1)], [sge(MAX_MESSAGE), sge(1)]);
    let bytes = [7; MAX_INLINE + 1];
    let send = |wr: SendWr<'_>| check_send(&wr, &all);
    assert_eq!(send(SendWr::send(1, &most)), Ok(()));
    assert_eq!(send(SendWr::send(1, &many)), Err(PostError::TooManySges));
    assert_eq!(check_recv(&RecvWr::new(1, &most), &all), Ok(()));
    assert_eq!(check_recv(&RecvWr::new(1, &many), &all), Err(PostError::TooManySges));
    assert_eq!(send(SendWr::send(1, &max)), Ok(()));
    assert_eq!(send(SendWr::send(1, &over)), Err(PostError::TooLong));
    assert_eq!(send(SendWr::send(1, &[sge(u32::MAX); MAX_SGES])), Err(PostError::TooLong));
    assert_eq!(send(SendWr::send(1, &[sge(MAX_MESSAGE)])), Ok(()));
    assert_eq!(send(SendWr::send(1, &[sge(MAX_MESSAGE + 1)])), Err(PostError::TooLong));
    assert_eq!(check_recv(&RecvWr::new(1, &max), &all), Ok(()));
    assert_eq!(check_recv(&RecvWr::new(1, &over), &all), Err(PostError::TooLong));
    assert_eq!(send(SendWr::write(1, &two, STAG, u64::MAX - 2)), Ok(()));
    assert_eq!(send(SendWr::write(1, &two, STAG, u64::MAX - 1)), Err(PostError::ToWrap));
    assert_eq!(send(SendWr::read(1, &one, STAG, u64::MAX - 1)), Ok(()));
    assert_eq!(send(SendWr::read(1, &one, STAG, u64::MAX)), Err(PostError::ToWrap));
    assert_eq!(send(SendWr::read(1, &two, STAG, 0)), Err(PostError::ReadSges));
    assert_eq!(send(SendWr::send_inline(1, &bytes[1..])), Ok(()));
    assert_eq!(send(SendWr::send_inline(1, &bytes)), Err(PostError::InlineTooLong));
    assert_eq!(send(SendWr::write_inline(1, &bytes[..2], STAG, u64::MAX - 2)), Ok(()));
    let wraps = SendWr::write_inline(1, &bytes[..2], STAG, u64::MAX - 1);
    assert_eq!(send(wraps), Err(PostError::ToWrap));
    let read = SendWr::read(1, &one, STAG, 0);
    assert_eq!(send(SendWr { data: Data::Inline(&[1]), ..read }), Err(PostError::ReadInline));
    let ord = |ord| Limits { ord, ..all };
    assert_eq!(check_send(&read, &ord(1)), Ok(()));
    assert_eq!(check_send(&read, &ord(0)), Err(PostError::NoReads));
    let small = Limits { sges: 1, inline: 2, ord: 0 };
    assert_eq!(check_send(&SendWr::send(1, &one), &small), Ok(()));
    assert_eq!(check_send(&SendWr::send(1, &two), &small), Err(PostError::TooManySges));
    assert_eq!(check_send(&SendWr::send_inline(1, &[1, 2]), &small), Ok(()));
    let three = SendWr::send_inline(1, &[1, 2, 3]);
    assert_eq!(check_send(&three, &small), Err(PostError::InlineTooLong));
}

#[test]
fn test_request_constructors_build_the_request_they_name() {
    let sges = [sge(4)];
    let wr = SendWr::send(7, &sges);
    let op = SendOp::Send { solicited: false, invalidate: None };
    let plain = SendWr { wr_id: 7, op, data: Data::Sges(&sges), signaled: true, fence: false };
    assert_eq!(wr, plain);
    assert_eq!(wr.unsignaled(), SendWr { signaled: false, ..plain });
    assert_eq!(wr.fenced(), SendWr { fence: true, ..plain });
    let op = SendOp::Send { solicited: true, invalidate: Some(Stag(9)) };
    assert_eq!(wr.solicited().invalidating(Stag(9)), SendWr { op, ..plain });
    assert_eq!(wr.invalidating(Stag(9)).solicited(), SendWr { op, ..plain });
    let write = SendWr::write(7, &sges, STAG, 5);
    assert_eq!(write, SendWr { op: SendOp::Write { stag: STAG, to: 5 }, ..plain });
    assert_eq!(write.solicited().invalidating(Stag(9)), write);
    let read = SendWr::read(7, &sges, STAG, 5);
    assert_eq!(read, SendWr { op: SendOp::Read { stag: STAG, to: 5 }, ..plain });
    let inline = SendWr::send_inline(7, &[1]);
    assert_eq!(inline, SendWr { data: Data::Inline(&[1]), ..plain });
}

/// A malformed request of any kind completes after those before it, with a status that says what is
/// wrong, and ends the stream; posting fails only on a full queue.
#[test]
fn test_malformed_request_completes_in_order_and_reports_its_fault() {
    let (many, two) = ([sge(1); MAX_SGES + 1], [sge(1); 2]);
    let bytes = [0; MAX_INLINE + 1];
    let read = SendWr::read(5, &two[..1], STAG, 0);
    for (wr, why, ord) in [
        (SendWr::send(5, &many), PostError::TooManySges, 4),
        (SendWr::send(5, &[sge(u32::MAX); 3]), PostError::TooLong, 4),
        (SendWr::send_inline(5, &bytes), PostError::InlineTooLong, 4),
        (SendWr::write(5, &two, STAG, u64::MAX), PostError::ToWrap, 4),
        (SendWr::read(5, &two, STAG, 0), PostError::ReadSges, 4),
        (SendWr { data: Data::Inline(&[1]), ..read }, PostError::ReadInline, 4),
        (read, PostError::NoReads, 0),
        (read.fenced().unsignaled(), PostError::NoReads, 0),
    ] {
        let mut c = PairConfig::default();
        c.qp.ord = ord;
        let mut p = Pair::open(c);
        let src = [p.nodes[0].sge(0, 4000)];
        let stag = p.nodes[1].stag;
        p.send(0, 4, SendOp::Write { stag, to: BASE }, src);
        p.nodes[0].qp.post_send(&wr).unwrap();
        p.nodes[0].qp.post_send(&SendWr::send(6, &[])).unwrap();
        p.transmit(0, 2);
        assert!(statuses(&mut p.a().qp).is_empty(), "{why:?}");
        assert_eq!(p.nodes[0].qp.state(), ConnectedState::Rts);
        p.transmit(0, 9);
        p.run();
        let done = statuses(&mut p.a().qp);
        assert_eq!(done[1..], [(5, CqeStatus::LocalQpOperation(why)), (6, CqeStatus::Flushed)]);
        assert_eq!((done[0].0, done.len()), (4, 3));
        let code = TermCode::RDMAP_LOCAL_CATASTROPHIC;
        let remote = QpEvent::Terminated { by: Side::Remote, code };
        assert_eq!(events(&mut p.b().qp).last(), Some(&remote), "{why:?}");
        // Posted after the end, the request still reports what is wrong with it.
        p.nodes[0].qp.post_send(&wr).unwrap();
        p.nodes[0].qp.post_send(&SendWr::send(7, &[])).unwrap();
        let done = statuses(&mut p.a().qp);
        assert_eq!(done, [(5, CqeStatus::LocalQpOperation(why)), (7, CqeStatus::Flushed)]);
    }
}

#[test]
fn test_malformed_receive_ends_the_stream_when_a_message_arrives_for_it() {
    let mut p = Pair::open(PairConfig::default());
    p.recv(1, 1, []);
    p.recv(1, 2, [sge(1); MAX_SGES + 1]);
    p.recv(1, 3, []);
    let send = SendOp::Send { solicited: false, invalidate: None };
    p.send(0, 1, send, []);
    p.run();
    assert_eq!(statuses(&mut p.b().qp), [(1, CqeStatus::Success)]);
    p.send(0, 2, send, []);
    p.run();
    let why = CqeStatus::LocalQpOperation(PostError::TooManySges);
    assert_eq!(statuses(&mut p.b().qp), [(2, why), (3, CqeStatus::Flushed)]);
    assert_eq!(p.nodes[1].qp.state(), ConnectedState::Terminate);
}

/// A request refused because of the close, posted while a Read Response is being sent, does not end
/// the stream.
#[test]
fn test_late_request_while_closing_does_not_wait_for_a_read_response() {
    let mut p = Pair::open(PairConfig::default());
    let sink = [p.nodes[1].sge(30_000, 20_000)];
    let stag = p.nodes[0].stag;
    p.send(1, 4, SendOp::Read { stag, to: BASE }, sink);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    p.transmit(0, 1);
    p.nodes[0].qp.close();
    p.nodes[0].qp.post_send(&SendWr::send(5, &[])).unwrap();
    let late = CqeStatus::LocalQpOperation(PostError::Closing);
    assert_eq!(statuses(&mut p.a().qp), [(5, late)]);
    p.run();
    assert_eq!(p.nodes[0].qp.state(), ConnectedState::Closing);
    assert_eq!(statuses(&mut p.b().qp), [(4, CqeStatus::Success)]);
}

/// Silent requests at the tail do not keep their places for ever.
#[test]
fn test_unsignaled_requests_at_the_tail_are_retired() {
    let mut c = PairConfig::default();
    c.qp.sq_depth = 4;
    let mut p = Pair::open(c);
    for round in 0..50 {
        assert_eq!(p.nodes[0].qp.sq_retired(), 1 + 4 * round);
        for _ in 0..4 {
            p.nodes[0].qp.post_send(&SendWr::write(1, &[], STAG, 0).unsignaled()).unwrap();
        }
        let full = p.nodes[0].qp.post_send(&SendWr::write(1, &[], STAG, 0).unsignaled());
        assert_eq!(full, Err(PostError::Full));
        p.run();
        assert!(completions(&mut p.a().qp).is_empty());
    }
    // Nor do silent requests after a failure.
    p.nodes[0].qp.abort();
    for i in 0..50 {
        p.nodes[0].qp.post_send(&SendWr::write(i, &[], STAG, 0).unsignaled()).unwrap();
        p.recv(0, i, []);
        assert_eq!(completions(&mut p.a().qp).len(), 2);
    }
    assert_eq!((p.nodes[0].qp.sq_retired(), p.nodes[0].qp.rq_retired()), (251, 50));
}

#[test]
fn test_retirement_stops_at_a_completion_that_was_not_polled() {
    let mut p = Pair::open(PairConfig::default());
    for signaled in [false, true, false, false, true, false] {
        let wr = SendWr { signaled, ..SendWr::write(1, &[], STAG, 0) };
        p.nodes[0].qp.post_send(&wr).unwrap();
    }
    p.run();
    let qp = &mut p.nodes[0].qp;
    let mut seen = vec![qp.sq_retired()];
    while qp.poll_completion().is_some() {
        seen.push(qp.sq_retired());
    }
    assert_eq!(seen, [2, 3, 7]);
}

#[test]
fn test_taking_all_completions_equals_polling_each() {
    // The last request may be silent or not, and receive buffers complete among the requests.
    for last in [true, false] {
        let run = |take: fn(&mut QpContext) -> Vec<Cqe>| {
            let mut p = Pair::open(PairConfig::default());
            for (i, signaled) in [false, true, false, true, last].into_iter().enumerate() {
                let wr = SendWr { signaled, ..SendWr::write(i as u64, &[], STAG, 0) };
                p.nodes[0].qp.post_send(&wr).unwrap();
                p.recv(0, i as u64, []);
            }
            p.run();
            p.nodes[0].qp.handle_peer_closed(false);
            let qp = &mut p.nodes[0].qp;
            let all = take(qp);
            assert!(qp.poll_completion().is_none());
            (all, qp.sq_retired(), qp.rq_retired())
        };
        let taken = run(|qp| {
            let mut all = Vec::new();
            let retired = qp.take_completions(|c, retired| {
                all.extend(c.iter().copied());
                retired
            });
            // The free places are known during the callback, not only after it.
            assert_eq!(retired, Retired { sq: qp.sq_retired(), rq: qp.rq_retired() });
            all
        });
        assert_eq!(taken, run(completions));
        assert_eq!((taken.0.len(), taken.2), (7 + usize::from(last), 5));
    }
}

#[test]
fn test_inline_data_are_copied_at_posting() {
    for (mulpdu, crc, markers) in
        [(1442, true, false), (128, true, false), (1442, false, false), (128, true, true)]
    {
        let mut c = PairConfig { mulpdu, ..PairConfig::default() };
        (c.qp.crc, c.qp.send_markers) = (crc, markers);
        let mut p = Pair::open(c);
        let stag = p.nodes[1].stag;
        for n in [0, 1, 31, 32, 33, 34, 35, 36, 100, 511, 512] {
            let data = random_bytes(n, 5);
            p.b().expect(1000, &data);
            p.b().expect(2000, &data);
            let buffer = p.nodes[1].sge(2000, 600);
            p.recv(1, 1, [buffer]);
            let mut source = data.clone();
            let qp = &mut p.nodes[0].qp;
            qp.post_send(&SendWr::write_inline(2, &source, stag, BASE + 1000)).unwrap();
            qp.post_send(&SendWr::send_inline(3, &source)).unwrap();
            source.fill(0);
            p.run();
            let ok = CqeStatus::Success;
            assert_eq!(statuses(&mut p.a().qp), [(2, ok), (3, ok)]);
            assert_eq!(completions(&mut p.b().qp)[0].len as usize, n);
            p.check_healthy();
        }
    }
}

#[test]
fn test_all_sges_of_a_request_are_gathered_and_scattered() {
    let mut p = Pair::open(PairConfig::default());
    for len in [1, 100, 1500] {
        let pieces = |node: &super::pair::Node, at: usize| -> Vec<Sge> {
            (0..MAX_SGES).map(|i| node.sge(at + i * 2000, len)).collect()
        };
        let (src, dst) = (pieces(&p.nodes[0], 0), pieces(&p.nodes[1], 100));
        for i in 0..MAX_SGES {
            let data = random_bytes(len, i as u64 + 1);
            p.a().write(i * 2000, &data);
            p.b().expect(100 + i * 2000, &data);
        }
        p.recv(1, 1, dst);
        p.send(0, 2, SendOp::Send { solicited: false, invalidate: None }, src);
        p.run();
        assert_eq!(statuses(&mut p.a().qp), [(2, CqeStatus::Success)]);
        assert_eq!(statuses(&mut p.b().qp), [(1, CqeStatus::Success)]);
        p.check_healthy();
    }
}

/// An idle queue pair, with everything it points to, takes little memory.
#[test]
fn test_fresh_queue_pair_takes_little_memory_at_any_depth() {
    let config = QpConfig {
        sq_depth: 1 << 20,
        rq_depth: 1 << 20,
        ird: 1000,
        ord: 1000,
        ..QpConfig::default()
    };
    let qp = QpContext::new(&config);
    let heap = qp.sq.heap()
        + qp.rq.heap()
        + qp.cq.room()
        + qp.reads.inbound.capacity()
        + qp.reads.outbound.capacity();
    assert_eq!(heap, 0);
    assert!(size_of::<QpContext>() <= 496, "{} bytes", size_of::<QpContext>());
}

/// A queue pair trimmed after a burst has memory for the posted requests, and goes on.
#[test]
fn test_trimmed_queue_pair_keeps_memory_for_what_is_posted() {
    let mut p = Pair::open(PairConfig::default());
    let stag = p.nodes[1].stag;
    let heap = |p: &Pair, i: usize| {
        let qp = &p.nodes[i].qp;
        let reads = qp.reads.inbound.capacity() + qp.reads.outbound.capacity();
        qp.sq.heap() + qp.rq.heap() + qp.cq.room() + reads
    };
    for round in 0..3 {
        for i in 0..40 {
            let sges = [p.nodes[1].sge(i * 100, 30)];
            p.recv(1, i as u64, sges);
        }
        for i in 0..30 {
            let sges = [p.nodes[0].sge(i * 100, 30)];
            p.send(0, 2, SendOp::Send { solicited: false, invalidate: None }, sges);
            p.send(0, 3, SendOp::Read { stag, to: BASE }, sges);
            p.nodes[0].qp.post_send(&SendWr::write_inline(1, &[7; 50], stag, BASE)).unwrap();
        }
        p.run();
        assert_eq!(completions(&mut p.a().qp).len(), 90, "round {round}");
        assert_eq!(completions(&mut p.b().qp).len(), 30, "round {round}");
        assert!(heap(&p, 0) > 5000 && heap(&p, 1) > 1500);
        p.a().qp.trim();
        p.b().qp.trim();
        // Ten more buffers wait after each round.
        let posted = 10 * (round + 1);
        assert_eq!(heap(&p, 0), 0);
        assert!(heap(&p, 1) <= 2 * posted * 48, "{} bytes for {posted}", heap(&p, 1));
    }
}

/// Queues grow with the posted requests and then keep their memory.
#[test]
fn test_queues_grow_to_the_high_water_mark_and_no_further() {
    let mut p = Pair::open(PairConfig::default());
    let stag = p.nodes[1].stag;
    let mut seen = Vec::new();
    for _ in 0..20 {
        for i in 0..50 {
            let sges: Vec<Sge> = (0..i % 5).map(|i| p.nodes[1].sge(i * 100, 30)).collect();
            p.recv(1, i as u64, &sges);
            let wr = SendWr::write_inline(1, &[7; 50][..i], stag, BASE + 50_000);
            p.nodes[0].qp.post_send(&wr).unwrap();
            let sges: Vec<Sge> = (0..i % 5).map(|i| p.nodes[0].sge(i * 100, 30)).collect();
            p.send(0, 2, SendOp::Send { solicited: false, invalidate: None }, &sges);
        }
        p.run();
        assert_eq!(completions(&mut p.a().qp).len(), 100);
        assert_eq!(completions(&mut p.b().qp).len(), 50);
        let (a, b) = (&p.nodes[0].qp, &p.nodes[1].qp);
        seen.push((a.sq.heap(), a.cq.room(), b.rq.heap(), b.cq.room()));
    }
    assert!(seen[0].0 > 100 * 50);
    assert!(seen.iter().all(|s| *s == seen[0]), "{seen:?}");
}

/// The operands of Immediate Data and Atomic Operations take room among the inline bytes, and free
/// it.
#[test]
fn test_operands_of_completed_requests_free_their_inline_room() {
    for kind in 0..4 {
        let mut p = Pair::open(PairConfig::default());
        let (b, len) = (&p.nodes[1], p.config.size as u64);
        let rights = rights().with(Access::REMOTE_ATOMIC);
        let stag = b.mrs.register(b.qp.pd(), pair::GUARD as u64, BASE, len, rights).unwrap().stag;
        let sink = [p.nodes[0].sge(512, 8)];
        let swap = SendOp::Atomic { stag, to: BASE, op: heddle_types::AtomicOp::swap(1) };
        let wr = match kind {
            0 => SendWr::immediate(1, 2),
            1 => SendWr::write_immediate(1, &[], stag, BASE, 2),
            2 => SendWr::fetch_add(1, &sink, stag, BASE, 1),
            _ => SendWr { op: swap, ..SendWr::send(1, &sink) },
        };
        let mut seen = Vec::new();
        for _ in 0..100 {
            for _ in 0..4 {
                if kind < 2 {
                    p.recv(1, 1, []);
                }
                p.nodes[0].qp.post_send(&wr).unwrap();
                p.run();
                assert_eq!(completions(&mut p.a().qp).len(), 1);
                completions(&mut p.b().qp);
            }
            seen.push(p.nodes[0].qp.sq.heap());
        }
        assert!(seen.iter().all(|s| *s == seen[0]), "{kind}: {seen:?}");
    }
}
