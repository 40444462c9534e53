//! FPDUs that are handed over. Tests with two RNICs (`rnic`) check the parts that are the same as
//! in a stream; the tests here check the differences, and the beginning and end of handing over.

use super::*;
use crate::ddp::DdpHeader;
use heddle_engine::{PostedReceives, Untaken};
use heddle_types::{Bind, CqeStatus, Data, SendOp, Sge, TermCode};

const PDS: [Pd; 2] = [Pd(1), Pd(2)];
const HALF: usize = 1 << 17;

/// Two queue pairs of one owner, in one memory, of which each has a half.
struct Joined {
    mem: TestMemory,
    mrs: MrTable,
    qps: [QpContext; 2],
    stags: [Stag; 2],
    mulpdu: u16,
    buffers: Buffers,
    fpdu: Fpdu,
}

impl Joined {
    fn new() -> Joined {
        let mrs = MrTable::new(&Seed::from_u64(3), 64);
        let stags = [0, 1].map(|i: usize| {
            let at = (i * HALF) as u64;
            mrs.register(PDS[i], at, at, HALF as u64, rights()).unwrap().stag
        });
        let qps = [0, 1].map(|i: usize| {
            let mut qp = QpContext::new(&QpConfig {
                pd: PDS[i],
                qpn: Qpn(1 + u32::try_from(i).unwrap()),
                crc: false,
                role: [Role::Initiator, Role::Responder][i],
                tx_start: StreamPos(70 + i as u64),
                rx_start: StreamPos(71 - i as u64),
                ..QpConfig::default()
            });
            assert!(qp.can_hand_over());
            qp.begin_handing();
            qp
        });
        let (buffers, fpdu) = (Buffers::default(), Fpdu::default());
        let mem = TestMemory::new(2 * HALF, 0xaa);
        Joined { mem, mrs, qps, stags, mulpdu: 1014, buffers, fpdu }
    }

    fn sge(&self, i: usize, off: usize, len: usize) -> Sge {
        Sge { stag: self.stags[i], to: (i * HALF + off) as u64, len: len32(len) }
    }

    fn send(&mut self, i: usize, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr { wr_id, op, data: Data::Sges(sges), signaled: true, fence: false };
        self.qps[i].post_send(&wr).unwrap();
    }

    /// Makes side `i` hand one FPDU over.
    fn hand(&mut self, i: usize) -> Option<u32> {
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None };
        let [a, b] = &mut self.qps;
        let (from, to) = if i == 0 { (a, b) } else { (b, a) };
        from.hand_over(to, [&env; 2], self.mulpdu, (&mut self.buffers, &mut self.fpdu))
    }

    /// Hands FPDUs over until neither side has any.
    fn run(&mut self) {
        while (0..2).any(|i| self.hand(i).is_some()) {}
    }

    fn positions(&self) -> [StreamPos; 4] {
        let [a, b] = &self.qps;
        [a.tx_end(), a.rx_next(), b.tx_end(), b.rx_next()]
    }

    fn statuses(&mut self, i: usize) -> Vec<(u64, CqeStatus)> {
        completions(&mut self.qps[i]).iter().map(|c| (c.wr_id, c.status)).collect()
    }
}

fn write(stag: Stag, to: usize) -> SendOp {
    SendOp::Write { stag, to: to as u64 }
}

const SEND: SendOp = SendOp::Send { solicited: false, invalidate: None };

#[test]
fn test_handed_requests_complete_without_advancing_the_streams() {
    let mut j = Joined::new();
    let before = j.positions();
    let bytes = random_bytes(2500, 1);
    j.mem.write(0, &bytes);
    let sges = [j.sge(0, 0, 2500)];
    j.send(0, 1, write(j.stags[1], HALF + 9), &sges);
    j.send(0, 2, write(j.stags[1], HALF), &[]);
    for segment in 0..3 {
        assert!(j.statuses(0).is_empty(), "{segment}");
        assert_eq!(j.mem.placed(), 1000 * segment);
        assert!(j.hand(0).is_some());
    }
    assert_eq!(j.statuses(0), [(1, CqeStatus::Success)]);
    assert_eq!(j.mem.read(HALF + 9, 2500), bytes);
    assert!(j.hand(0).is_some());
    assert_eq!(j.statuses(0), [(2, CqeStatus::Success)]);
    assert_eq!((j.hand(0), j.hand(1)), (None, None));
    assert_eq!(j.positions(), before);
    let [a, b] = [0, 1].map(|i: usize| j.qps[i].counters());
    assert_eq!((a.tx_fpdus, b.rx_fpdus, b.rx_bytes), (4, 4, 2500));
    assert_eq!(j.qps[0].progress() - before[0].0 - before[1].0, 4);
}

/// The Read Response refers to the memory that it answers with, which the reader copies.
#[test]
fn test_handed_read_is_answered_without_a_snapshot() {
    let mut j = Joined::new();
    let bytes = random_bytes(3000, 1);
    j.mem.write(HALF + 5, &bytes);
    let sink = [j.sge(0, 100, 3000)];
    j.send(0, 1, SendOp::Read { stag: j.stags[1], to: (HALF + 5) as u64 }, &sink);
    assert!(j.hand(0).is_some());
    assert!(j.statuses(0).is_empty(), "the request is not the answer");
    j.run();
    assert_eq!(j.statuses(0), [(1, CqeStatus::Success)]);
    assert_eq!(j.mem.read(100, 3000), bytes);
    let b = j.qps[1].counters();
    assert_eq!((b.tx_snapshot_bytes, b.tx_bytes, j.mem.placed()), (0, 3000, 3000));
}

/// The sink of a Read may overlap the memory that the Read reads.
#[test]
fn test_handed_read_over_its_own_source_returns_old_data() {
    let mut j = Joined::new();
    j.mulpdu = 4000;
    let bytes = random_bytes(3000, 1);
    j.mem.write(HALF, &bytes);
    // Source and sink share a region: the sink is the source's bytes, moved by 40.
    let sink = j.mrs.register(PDS[0], HALF as u64, 0, HALF as u64, rights()).unwrap();
    let sges = [Sge { stag: sink.stag, to: 40, len: 3000 }];
    j.send(0, 1, SendOp::Read { stag: j.stags[1], to: HALF as u64 }, &sges);
    j.run();
    assert_eq!(j.statuses(0), [(1, CqeStatus::Success)]);
    assert_eq!(j.mem.read(HALF + 40, 3000), bytes);
}

/// A message that began by handing over ends in the stream, which never had the FPDUs before.
#[test]
fn test_stream_takes_over_when_handing_ends_after_any_fpdu() {
    for handed in 0..4 {
        let mut j = Joined::new();
        let start = j.positions();
        let bytes = random_bytes(2500, 2);
        j.mem.write(0, &bytes);
        let (src, dst) = ([j.sge(0, 0, 2500)], [j.sge(1, 0, 4000)]);
        j.qps[1].post_recv(&RecvWr::new(7, &dst)).unwrap();
        j.qps[1].post_recv(&RecvWr::new(8, &dst)).unwrap();
        j.send(0, 1, SEND, &src);
        j.send(0, 2, SEND, &[]);
        for _ in 0..handed {
            assert!(j.hand(0).is_some());
        }
        j.qps.iter_mut().for_each(QpContext::end_handing);
        let env = QpEnv { mem: &j.mem, mrs: &j.mrs, snapshots_full: false, posted: None };
        let mut stream = Vec::new();
        while let Some(fpdu) = j.qps[0].poll_transmit(&env, j.mulpdu) {
            let at = stream.len();
            stream.resize(at + fpdu.len() as usize, 0);
            fpdu.copy_to(&j.mem, 0, &mut stream[at..]);
        }
        assert_eq!(j.qps[0].tx_end() - start[0], stream.len() as u64);
        assert_eq!(j.qps[1].handle_stream(&env, &stream[..]), stream.len());
        assert_eq!(j.mem.read(HALF, 2500), bytes);
        assert_eq!(j.statuses(1), [(7, CqeStatus::Success), (8, CqeStatus::Success)]);
        // The bytes in the stream need an acknowledgment; the handed requests were already
        // complete.
        let done = usize::from(handed >= 3) + usize::from(handed >= 4);
        assert_eq!(j.statuses(0).len(), done, "{handed}");
        let end = j.qps[0].tx_end();
        j.qps[0].handle_acked(end);
        assert_eq!(j.statuses(0).len(), 2 - done, "{handed}");
    }
}

/// The peer hands its Terminate back before the refused request could complete.
#[test]
fn test_requester_learns_at_once_that_peer_refused() {
    let mut j = Joined::new();
    let src = [j.sge(0, 0, 100)];
    j.send(0, 1, write(j.stags[1], HALF), &src);
    j.send(0, 2, write(j.stags[1], 2 * HALF - 50), &src);
    j.send(0, 3, write(j.stags[1], HALF), &src);
    j.qps[1].post_recv(&RecvWr::new(7, &[])).unwrap();
    let before = j.positions();
    assert!(j.hand(0).is_some() && j.qps[0].is_handing());
    assert!(j.hand(0).is_some() && !j.qps[0].is_handing() && !j.qps[1].is_handing());
    let code = TermCode { layer: 1, etype: 1, code: 1 };
    let want =
        [(1, CqeStatus::Success), (2, CqeStatus::of_terminate(code)), (3, CqeStatus::Flushed)];
    assert_eq!(j.statuses(0), want);
    assert_eq!(j.statuses(1), [(7, CqeStatus::Flushed)]);
    assert_eq!(events(&mut j.qps[0]), [QpEvent::Terminated { by: Side::Remote, code }]);
    let local = QpEvent::Terminated { by: Side::Local, code };
    assert_eq!(events(&mut j.qps[1]), [QpEvent::FirstFpdu, local]);
    let terminate = *j.qps[0].received_terminate().unwrap();
    assert_eq!(terminate.code, code);
    let header = terminate.ddp.unwrap().header().unwrap();
    assert!(matches!(header, DdpHeader::Tagged { to, .. } if to == (2 * HALF - 50) as u64));
    assert_eq!((j.hand(0), j.hand(1)), (None, None), "nothing is sent behind a Terminate");
    assert_eq!(j.positions(), before);
}

/// A request that fails at the requester itself sends its Terminate to the peer in the same call.
#[test]
fn test_failed_requester_hands_terminate_to_peer_at_once() {
    let mut j = Joined::new();
    let src = [j.sge(0, 0, 100), j.sge(1, 0, 100)];
    j.send(0, 1, write(j.stags[1], HALF), &src[..1]);
    j.send(0, 2, write(j.stags[1], HALF), &src[1..]);
    assert!(j.hand(0).is_some());
    assert!(j.hand(0).is_some(), "the Terminate");
    let want = [(1, CqeStatus::Success), (2, CqeStatus::LocalProtection)];
    assert_eq!(j.statuses(0), want);
    let by =
        |side| QpEvent::Terminated { by: side, code: TermCode { layer: 0, etype: 0, code: 0 } };
    assert_eq!(events(&mut j.qps[0]), [by(Side::Local)]);
    assert_eq!(events(&mut j.qps[1]), [QpEvent::FirstFpdu, by(Side::Remote)]);
    assert_eq!(j.qps[0].counters().tx_terminates, 1);
    assert_eq!(j.qps[1].counters().rx_terminates, 1);
}

/// The QP asks for a receive that the owner has not taken, as it does for a message of a stream.
#[test]
fn test_handed_message_fetches_receive_that_was_not_taken_yet() {
    #[derive(Debug)]
    struct Last;
    impl PostedReceives<QpContext> for Last {
        fn post_to(&self, of: usize, qp: &mut QpContext) {
            assert_eq!(of, 5);
            qp.post_recv(&RecvWr::new(77, &[])).unwrap();
        }
    }
    let mut j = Joined::new();
    j.send(0, 1, SEND, &[]);
    let untaken = Untaken::new(&Last);
    untaken.set_of(5);
    let env = QpEnv { mem: &j.mem, mrs: &j.mrs, snapshots_full: false, posted: None };
    let peer_env = QpEnv { posted: Some(&untaken), ..env };
    let [a, b] = &mut j.qps;
    let place = (&mut j.buffers, &mut j.fpdu);
    assert!(a.hand_over(b, [&env, &peer_env], 1000, place).is_some());
    assert_eq!(j.statuses(1), [(77, CqeStatus::Success)]);
    assert_eq!(j.statuses(0), [(1, CqeStatus::Success)]);
}

#[test]
fn test_queue_pair_does_not_hand_over_with_crc_markers_or_when_ending() {
    let plain = QpConfig { crc: false, ..QpConfig::default() };
    let can = |change: &dyn Fn(&mut QpConfig), act: &dyn Fn(&mut QpContext)| {
        let mut config = plain.clone();
        change(&mut config);
        let mut qp = QpContext::new(&config);
        act(&mut qp);
        qp.can_hand_over()
    };
    let nothing = |_: &mut QpContext| {};
    assert!(can(&|_| {}, &nothing));
    assert!(!can(&|c| c.crc = true, &nothing));
    assert!(!can(&|c| c.send_markers = true, &nothing));
    assert!(!can(&|c| c.recv_markers = true, &nothing));
    assert!(!can(&|_| {}, &QpContext::close));
    assert!(!can(&|_| {}, &QpContext::abort));
    assert!(!can(&|_| {}, &|qp| qp.handle_peer_closed(false)));
}

/// The QP carries out requests that send nothing in their turn, and everything handed over before
/// them is done.
#[test]
fn test_local_requests_between_handed_messages_keep_the_order() {
    let mut j = Joined::new();
    let fast = j.mrs.allocate(PDS[0], Some(Qpn(1)), 4096).unwrap();
    let stag = fast.with_key(9);
    let parent = Access::BIND.with(Access::LOCAL_WRITE);
    let region = j.mrs.register(PDS[0], 0, 0, 4096, parent).unwrap();
    let (src, dst) = ([j.sge(0, 0, 64)], [j.sge(1, 0, 64)]);
    for id in 0..3 {
        j.qps[1].post_recv(&RecvWr::new(id, &dst)).unwrap();
    }
    j.send(0, 1, SEND, &src);
    let bind = Bind { stag, to: 0, access: Access::REMOTE_READ };
    let all = [Sge { stag: region.stag, to: 0, len: 4096 }];
    j.send(0, 2, SendOp::FastRegister(bind), &all);
    j.send(0, 3, SEND, &src);
    j.send(0, 4, SendOp::LocalInvalidate { stag }, &[]);
    j.send(0, 5, SEND, &src);
    j.run();
    let want: Vec<_> = (1..6).map(|id| (id, CqeStatus::Success)).collect();
    assert_eq!(j.statuses(0), want);
    assert_eq!(j.statuses(1).len(), 3);
}
