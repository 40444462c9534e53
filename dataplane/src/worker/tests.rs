//! A worker's behavior when others around it stop, and the reports that others get when the worker
//! stops.

use std::sync::Mutex;
use std::time::Duration;

use heddle_base::{Chunks, Seed};
use heddle_engine::{POST_TURN, Share, ShareTerms};
use heddle_hub::memory::Registry;
use heddle_hub::{ControlPlane, ControlRequest, DeviceConfig, Hub};
use heddle_iwarp::QpConfig;
use heddle_rnic::{FpduMode, Order, Report, RnicConfig};
use heddle_shm::Sleeper;
use heddle_tcp::StackConfig;
use heddle_types::{CqeStatus, PostError, RecvWr, SendWr, Stag};
use heddle_verbs::{Cq, CqOverflow, Device, DeviceError, Qp, QpInit};

use super::*;
use crate::{Command, CommandSender, ReportReceiver, Worker, WorkerConfig, WorkerReport};
use crate::{Eal, EalConfig, Hugepages, MempoolConfig, Port, PortConfig};

/// A control plane that does nothing: the test gives the orders.
#[derive(Debug)]
struct NoControl;

impl ControlPlane for NoControl {
    fn request(&self, _: ControlRequest) -> Result<(), DeviceError> {
        Ok(())
    }
}

struct Bench {
    worker: Worker,
    commands: CommandSender,
    reports: ReportReceiver,
    device: Device,
    hub: Arc<Hub>,
    far: Port,
    pool: Mempool,
    port: Port,
}

const CONNS: usize = 256;

/// Requests of each queue: more than one turn takes.
const DEPTH: u32 = 256;

/// Returns DPDK, started once in this process.
pub(crate) fn eal() -> Eal {
    static EAL: Mutex<Option<Eal>> = Mutex::new(None);
    let mut eal = EAL.lock().unwrap();
    let config = EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() };
    *eal.get_or_insert_with(|| Eal::init(&config).unwrap())
}

fn bench(name: &str) -> Bench {
    let eal = eal();
    let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(1023, 1500)).unwrap();
    let ports = PortConfig::new(pool);
    let (mut port, far) = Port::ring_pair(&eal, name, 1024, &ports, &ports).unwrap();
    let (rx, tx) = port.take_queues().pop().unwrap();
    let seed = Seed::from_u64(1);
    let mrs = Arc::new(MrTable::new(&seed, 16));
    let regions = Arc::new(RegionTable::new(4, None));
    let addr = "10.0.0.1/16".parse().unwrap();
    let stack =
        StackConfig { max_conns: CONNS, ..StackConfig::new(port.mac(), addr, seed.clone()) };
    let (worker, commands, reports) = Worker::new(WorkerConfig {
        index: 0,
        engine: RnicConfig::new(stack, 64, 1 << 16),
        rx: rx.into(),
        tx: tx.into(),
        pool,
        regions: regions.clone(),
        external: ExternalMemory::new(mrs.capacity()),
        mrs: mrs.clone(),
        clock: Clock::manual().0,
        fault: None,
        rx_burst: RX_BURST,
        waker: None,
    });
    let hub = Hub::new(Arc::new(Registry::new(mrs, regions)), Box::new(NoControl), 1, &seed);
    let memory = DeviceConfig { memory: 0, queues: 1 << 18, ..DeviceConfig::default() };
    let device = hub.open(&memory).unwrap();
    Bench { worker, commands, reports, device, hub, far, pool, port }
}

impl Bench {
    fn order(&mut self, command: Command) {
        self.commands.send(command).unwrap();
    }

    /// Returns a connection that its peer has not answered.
    fn connect(&mut self, token: u64) -> ConnId {
        let host = u8::try_from(token % 200).unwrap() + 2;
        let remote = ([10, 0, 1, host], 1).into();
        self.order(Command::Order(Order::connect(token, remote)));
        self.worker.poll();
        match self.reports.recv() {
            Ok(WorkerReport::Engine(Report::Connecting { token: t, result: Ok(conn) })) => {
                assert_eq!(t, token);
                conn
            }
            other => panic!("{other:?}"),
        }
    }

    fn queue_pair(&self) -> (Qp, Cq, Sleeper) {
        queue_pair_of(&self.device)
    }

    fn enter(&self, conn: ConnId, qp: &Qp) -> Command {
        self.enter_of(&self.device, conn, qp)
    }

    fn enter_of(&self, device: &Device, conn: ConnId, qp: &Qp) -> Command {
        let config = QpConfig {
            qpn: qp.qpn(),
            pd: qp.pd(),
            sq_depth: DEPTH,
            rq_depth: DEPTH,
            ..QpConfig::default()
        };
        let mode = Box::new(FpduMode { startup_len: 0, reply: Vec::new(), qp: config });
        let qp = Box::new(WorkerQp::new(qp.ends()));
        Command::Enter { conn, mode, app: device.app(), qp }
    }

    /// Returns a connection with a queue pair whose doorbell the worker listens to.
    fn run(&mut self) -> (ConnId, Qp, Cq, Sleeper) {
        let share = self.hub.own_share().clone();
        self.open(&self.device.clone(), &share);
        self.run_of(&self.device.clone(), 1)
    }

    /// Makes the worker listen to an application that has a share.
    fn open(&mut self, device: &Device, share: &Arc<Share>) {
        let doorbells = Doorbells::new(device.app(), device.bells().clone(), share.clone());
        self.order(Command::OpenApp(doorbells));
    }

    fn run_of(&mut self, device: &Device, token: u64) -> (ConnId, Qp, Cq, Sleeper) {
        let (qp, cq, sleeper) = queue_pair_of(device);
        let conn = self.connect(token);
        self.order(self.enter_of(device, conn, &qp));
        self.worker.poll();
        let entered = self.reports.recv();
        let ok = Ok(());
        assert!(
            matches!(&entered, Ok(WorkerReport::Engine(Report::Entered { result, .. })) if *result == ok),
            "{entered:?}"
        );
        (conn, qp, cq, sleeper)
    }
}

fn queue_pair_of(device: &Device) -> (Qp, Cq, Sleeper) {
    let sleeper = Sleeper::with_fd().unwrap();
    let cq = device.create_cq(64, Some(sleeper.waker())).unwrap();
    let init = QpInit::new(cq.clone()).depths(DEPTH, DEPTH);
    (device.create_qp(device.alloc_pd().unwrap(), init).unwrap(), cq, sleeper)
}

fn post_recv(qp: &Qp, wr_id: u64) -> Result<(), PostError> {
    qp.post_recv(&RecvWr { wr_id, sges: &[] })
}

fn post_write(qp: &Qp, wr_id: u64) -> Result<(), PostError> {
    qp.post_send(&SendWr::write(wr_id, &[], Stag(1), 0))
}

/// Returns the request IDs of the completions that wait, all of which must be flushed.
fn flushed(cq: &Cq) -> Vec<u64> {
    let one = || {
        let cqe = cq.poll()?;
        assert_eq!(cqe.status, CqeStatus::Flushed);
        Some(cqe.wr_id)
    };
    let mut all: Vec<_> = std::iter::from_fn(one).collect();
    all.sort_unstable();
    all
}

#[test]
fn test_half_written_order_does_not_block_worker() {
    let mut b = bench("half");
    b.order(Command::Snapshot);
    let Bench { worker, commands, reports, .. } = &mut b;
    commands.ring.half_push(Command::Snapshot, || {
        // The worker carries out every published order, and has time for everything else.
        assert!(worker.poll());
        assert!(matches!(reports.recv(), Ok(WorkerReport::Snapshot(_))));
        assert!(!worker.poll());
    });
    b.order(Command::Snapshot);
    assert!(b.worker.poll());
    assert!(matches!(b.reports.recv(), Ok(WorkerReport::Snapshot(_))));
}

#[test]
fn test_a_snapshot_of_many_connections_takes_many_turns() {
    let mut b = bench("turns");
    for token in 0..200 {
        b.connect(token);
    }
    while b.worker.poll() {}
    b.order(Command::Snapshot);
    b.order(Command::Snapshot);
    // 200 connections, 64 in a turn, each time anew.
    for _ in 0..2 {
        for turn in 1..=3 {
            assert!(b.worker.poll());
            assert_eq!(b.reports.recv().err(), Some(NoReport::Yet), "turn {turn}");
        }
        assert!(b.worker.poll());
        let Ok(WorkerReport::Snapshot(s)) = b.reports.recv() else { panic!("no answer") };
        let all = b.worker.snapshot();
        let (s_sums, all_sums) = (s.engine, all.engine);
        assert_eq!((s_sums.tcp, s_sums.qps), (all_sums.tcp, all_sums.qps));
        assert_eq!(s_sums.stack, all_sums.stack);
        assert_eq!(all.worker.polls, s.worker.polls + 1);
    }
    assert!(!b.worker.poll());
}

/// Each request has one completion, whether the worker has taken it or not, and whether it is
/// signaled or not; and its application is woken.
fn check_end(b: Bench, end: impl FnOnce(Worker)) -> NoReport {
    let mut b = b;
    let (_, qp, cq, sleeper) = b.run();
    for wr_id in [1, 2] {
        post_recv(&qp, wr_id).unwrap();
    }
    post_write(&qp, 3).unwrap();
    post_write(&qp, 4).unwrap();
    b.worker.poll();
    for wr_id in [5, 6] {
        post_recv(&qp, wr_id).unwrap();
    }
    post_write(&qp, 7).unwrap();
    // The worker has not taken the order for this queue pair, so it has not touched the queue pair.
    let (untouched, _, _) = b.queue_pair();
    let conn = b.connect(2);
    b.order(b.enter(conn, &untouched));
    b.order(Command::Snapshot);
    cq.arm(heddle_verbs::Arm::Next);
    let Bench { worker, mut commands, mut reports, .. } = b;
    end(worker);
    // `sleep` returns at once, because the descriptor is readable.
    let start = std::time::Instant::now();
    sleeper.sleep(Duration::from_secs(60), || false);
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!((flushed(&cq), cq.check()), (vec![1, 2, 3, 4, 5, 6, 7], Ok(())));
    assert!(qp.is_dead() && !untouched.is_dead());
    assert_eq!(
        (post_write(&qp, 8), post_recv(&qp, 8)),
        (Err(PostError::Ended), Err(PostError::Ended))
    );
    assert!(matches!(commands.reclaim(), Some(Command::Enter { conn: c, .. }) if c == conn));
    assert!(matches!(commands.reclaim(), Some(Command::Snapshot)));
    assert!(commands.reclaim().is_none());
    while let Ok(report) = reports.recv() {
        assert!(matches!(report, WorkerReport::Engine(_)));
    }
    reports.recv().unwrap_err()
}

#[test]
fn test_all_requests_are_flushed_when_worker_is_dropped() {
    assert_eq!(check_end(bench("dropped"), drop), NoReport::Ended { panicked: false });
}

#[test]
fn test_all_requests_are_flushed_when_worker_panics() {
    let ended = check_end(bench("panics"), |worker| {
        let thread = std::thread::spawn(move || {
            let _worker = worker;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
    });
    assert_eq!(ended, NoReport::Ended { panicked: true });
}

/// Returns the numbers of requests of the send and of the receive queue that the worker has taken.
fn taken(b: &mut Bench, conn: ConnId) -> (u32, u32) {
    b.worker.queues.of(conn).unwrap().qp.outstanding()
}

#[test]
fn test_send_goes_after_all_receives_that_were_posted_before_it() {
    let mut b = bench("order");
    let (conn, qp, ..) = b.run();
    for wr_id in 0..200 {
        post_recv(&qp, wr_id).unwrap();
    }
    post_write(&qp, 200).unwrap();
    // Post receives after the Send, which does not wait for them.
    for wr_id in 201..250 {
        post_recv(&qp, wr_id).unwrap();
    }
    let mut turns = Vec::new();
    while taken(&mut b, conn) != (1, 249) {
        assert!(b.worker.poll(), "the rest waits for a turn: {turns:?}");
        turns.push(taken(&mut b, conn));
    }
    let most = u32::try_from(POST_TURN).unwrap();
    assert!(turns.iter().zip([(0, 0)].iter().chain(&turns)).all(|(b, a)| b.1 - a.1 <= most));
    assert!(turns.iter().all(|(sends, recvs)| *sends == 0 || *recvs >= 200), "{turns:?}");
}

/// The applications of two tenants have posted to eight queue pairs and to one. The worker takes
/// 256 requests in a turn, by the weights of the tenants and not by their queue pairs.
#[test]
fn test_tenants_requests_are_taken_by_weight_whatever_their_queue_pairs() {
    for (name, weights, first) in [("even", [1, 1], [128, 128]), ("odd", [1, 3], [64, 192])] {
        let mut b = bench(name);
        let mut tenants = Vec::new();
        for (n, (weight, pairs)) in weights.into_iter().zip([8, 1]).enumerate() {
            let memory = DeviceConfig { memory: 0, queues: 1 << 20, ..DeviceConfig::default() };
            let device = b.hub.open(&memory).unwrap();
            let terms = ShareTerms { weight, ..ShareTerms::default() };
            b.open(&device, &Share::new(n as u64 + 1, terms));
            let run = |pair: u64| b.run_of(&device, 10 * n as u64 + pair);
            tenants.push((0..pairs).map(run).collect::<Vec<_>>());
        }
        for (_, qp, ..) in tenants.iter().flatten() {
            (0..u64::from(DEPTH)).for_each(|wr_id| post_write(qp, wr_id).unwrap());
        }
        let mut seen = Vec::new();
        while b.worker.poll() {
            let mut of = |t: &Vec<(ConnId, Qp, Cq, Sleeper)>| {
                t.iter().map(|(conn, ..)| taken(&mut b, *conn).0).sum::<u32>()
            };
            let [many, one] = [0, 1].map(|t| of(&tenants[t]));
            seen.push([many, one]);
        }
        assert_eq!(seen[0], first, "{name}: {seen:?}");
        // All are taken in the end, and no turn takes more than its part.
        assert_eq!(seen.last(), Some(&[8 * DEPTH, DEPTH]));
        let sum = |s: &[u32; 2]| s[0] + s[1];
        assert!(seen.windows(2).all(|w| sum(&w[1]) - sum(&w[0]) <= 320), "{name}: {seen:?}");
    }
}

/// If an application posts and disconnects, the worker sends all posted requests, whether a turn
/// came between or not, and however many they are.
#[test]
fn test_disconnect_takes_effect_after_requests_posted_before_it() {
    let mut b = bench("disconnect");
    let (conn, qp, cq, _) = b.run();
    for wr_id in 0..200 {
        post_write(&qp, wr_id).unwrap();
    }
    b.order(Command::Order(Order::Disconnect { conn }));
    b.worker.poll();
    assert_eq!(taken(&mut b, conn), (200, 0));
    // The RNIC refuses none although the queue pair is closing: the requests wait for the peer.
    assert!(cq.poll().is_none());
    post_write(&qp, 200).unwrap();
    b.worker.poll();
    assert!(cq.poll().is_none(), "its turn comes behind the others");
    assert_eq!(b.worker.engine.qp(conn).unwrap().state(), heddle_types::ConnectedState::Closing);
}

/// The application goes on posting while the worker takes requests: the Send, and the receives
/// before it, come after the worker has found the receive queue empty.
#[test]
fn test_send_found_late_runs_after_receives_posted_meanwhile() {
    let mut b = bench("meanwhile");
    let (conn, qp, ..) = b.run();
    let slot = b.worker.queues.of(conn).unwrap();
    let (ends, mut entry) = (&mut slot.qp, Entry::default());
    assert_eq!(ends.take_recv(&mut entry, |wr| wr.wr_id), Ok(None));
    for wr_id in [1, 2] {
        post_recv(&qp, wr_id).unwrap();
    }
    post_write(&qp, 3).unwrap();
    assert_eq!((ends.has_send(), ends.owes_recvs()), (Ok(true), true));
    assert_eq!(ends.take_recv(&mut entry, |wr| wr.wr_id), Ok(Some(1)));
    // A receive that is posted after the Send does not make the Send wait any longer.
    post_recv(&qp, 4).unwrap();
    assert_eq!((ends.has_send(), ends.owes_recvs()), (Ok(true), true));
    assert_eq!(ends.take_recv(&mut entry, |wr| wr.wr_id), Ok(Some(2)));
    assert_eq!((ends.has_send(), ends.owes_recvs()), (Ok(true), false));
}

/// An application may post, and ring, until it learns that its connection is over.
#[test]
fn test_posts_between_end_of_connection_and_its_report_are_flushed() {
    let mut b = bench("late");
    let (conn, qp, cq, _) = b.run();
    post_recv(&qp, 1).unwrap();
    b.worker.poll();
    b.worker.engine.abort(conn);
    post_recv(&qp, 2).unwrap();
    post_write(&qp, 3).unwrap();
    assert!(!b.worker.take_from(conn.index()));
    b.worker.poll();
    assert_eq!((flushed(&cq), cq.check()), (vec![1, 2, 3], Ok(())));
    let counted = b.worker.snapshot().worker;
    assert_eq!((counted.wr_overruns, counted.wr_broken), (0, 0));
}

/// The RNIC can no longer report the requests that it had taken.
#[test]
fn test_requests_that_worker_cannot_complete_are_reported_lost() {
    let mut b = bench("lost");
    let (conn, qp, cq, _) = b.run();
    post_write(&qp, 1).unwrap();
    b.worker.poll();
    post_recv(&qp, 2).unwrap();
    b.worker.flush_qp(conn, true);
    assert_eq!((flushed(&cq), cq.check()), (vec![2], Err(CqOverflow)));
    assert_eq!(post_recv(&qp, 3), Err(PostError::Ended));
}

/// The panic comes after the worker takes the order and before it carries the order out.
#[test]
fn test_queue_pair_entering_a_worker_ends_with_that_worker() {
    let mut b = bench("entering");
    let conn = b.connect(1);
    let (qp, cq, _) = b.queue_pair();
    post_recv(&qp, 1).unwrap();
    b.worker.entering = Some((conn, b.device.app(), Box::new(WorkerQp::new(qp.ends()))));
    drop(b.worker);
    assert_eq!((flushed(&cq), qp.is_dead()), (vec![1], true));
}

/// A post that finds the queue pair ending waits until the queue pair has ended.
#[test]
fn test_queue_pair_counts_as_ended_after_interrupted_end() {
    let b = bench("cut");
    let (qp, ..) = b.queue_pair();
    post_recv(&qp, 1).unwrap();
    let mut end = WorkerQp::new(qp.ends());
    let worker = std::thread::spawn(move || {
        end.attach(0);
        end.end(|_, _| {}, |_| panic!("on purpose"));
    });
    assert!(worker.join().is_err());
    let post = std::thread::spawn(move || post_recv(&qp, 2));
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !post.is_finished() {
        assert!(std::time::Instant::now() < deadline, "it waits for ever");
        std::thread::yield_now();
    }
    assert_eq!(post.join().unwrap(), Err(PostError::Ended));
}

/// Returns a segment from 10.0.0.2, port 1000, to port 7174 of 10.0.0.1 in the former connection;
/// it acknowledges everything up to `ack`.
fn stray(to: [u8; 6], ack: u32) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
    let sum = heddle_base::Sum::of(&ip).complement();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = vec![3, 0xe8, 0x1c, 0x06, 0, 0, 0, 7];
    tcp.extend(ack.to_be_bytes());
    tcp.extend([0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    let pseudo = heddle_base::Sum::of(&ip[12..20]).add_u16(6).add_u16(20);
    let sum = pseudo.plus(heddle_base::Sum::of(&tcp)).complement();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    [&to[..], &[2, 0, 0, 0, 0, 2], &[8, 0], &ip, &tcp].concat()
}

/// Returns a datagram from 10.0.0.2 to UDP port 4791 of 10.0.0.1.
fn datagram(to: [u8; 6]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 30, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
    let sum = heddle_base::Sum::of(&ip).complement();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = [0xc0, 0, 0x12, 0xb7, 0, 10, 0, 0, b'i', b'b'];
    [&to[..], &[2, 0, 0, 0, 0, 2], &[8, 0], &ip, &udp].concat()
}

/// Datagrams have a ring of their own to the control plane, so that no report waits behind one.
#[test]
fn test_a_flood_of_datagrams_leaves_room_for_reports() {
    let mut b = bench("datagrams");
    let (mut rx, mut tx) = b.far.take_queues().pop().unwrap();
    let bytes = datagram(b.port.mac());
    let mut flood = |b: &mut Bench, count: usize| {
        let mut frames: ArrayVec<Mbuf, 32> = ArrayVec::new();
        for _ in 0..count.div_ceil(32) {
            for _ in 0..32 {
                let mut frame = b.pool.alloc().unwrap();
                frame.append(bytes.len()).unwrap().copy_from_slice(&bytes);
                frames.push(frame);
            }
            assert_eq!(tx.burst(&mut frames), 32);
            b.worker.poll();
        }
    };
    flood(&mut b, 32);
    assert!(matches!(b.reports.recv(), Err(NoReport::Yet)), "nobody has opened the port");
    b.order(Command::Order(Order::BindUdp { port: 4791, filter: Arc::new(()) }));
    b.worker.poll();
    flood(&mut b, 2 * DATAGRAMS);
    let s = b.worker.snapshot();
    assert_eq!(
        (s.engine.stack.rx_datagrams, s.engine.stack.udp_source_limited),
        (2 * DATAGRAMS as u64, 0)
    );
    // The other half is for datagrams about connections.
    assert_eq!(s.worker.datagrams_dropped, 3 * DATAGRAMS as u64 / 2);
    // The answer to an order comes before the waiting datagrams.
    let remote = ([10, 0, 1, 9], 1).into();
    b.order(Command::Order(Order::connect(7, remote)));
    b.worker.poll();
    let next = b.reports.recv();
    assert!(
        matches!(next, Ok(WorkerReport::Engine(Report::Connecting { token: 7, .. }))),
        "{next:?}"
    );
    for _ in 0..DATAGRAMS / 2 {
        let Ok(WorkerReport::Engine(Report::Datagram(d))) = b.reports.recv() else {
            panic!("gone")
        };
        assert_eq!((d.payload(), d.remote), (&b"ib"[..], ([10, 0, 0, 2], 49152).into()));
    }
    assert!(matches!(b.reports.recv(), Err(NoReport::Yet)));
    // An answer goes back: the worker first asks for the peer's station, then sends.
    let answer = heddle_tcp::TxDatagram {
        local: ([10, 0, 0, 1], 49152).into(),
        remote: ([10, 0, 0, 2], 4791).into(),
        payload: b"answer".to_vec(),
        to_stranger: false,
    };
    let mut frames: ArrayVec<Mbuf, 32> = ArrayVec::new();
    while rx.burst(&mut frames) > 0 {
        frames.clear();
    }
    b.order(Command::Order(Order::SendDatagram(Box::new(answer))));
    b.worker.poll();
    assert!(rx.burst(&mut frames) > 0);
    let arp = |f: &Mbuf| f.chunk_at(0)[12..14] == [8, 6] && f.chunk_at(0)[38..42] == [10, 0, 0, 2];
    assert!(frames.iter().any(arp));
    assert_eq!(b.worker.snapshot().engine.stack.tx_datagrams, 0);
}

/// RFC 9293 section 3.10.7.1: the RST that answers a segment with ACK has that segment's
/// acknowledgment number.
#[test]
fn test_closed_worker_answers_stray_segments_with_rst() {
    let mut b = bench("closed");
    b.run();
    let (mut rx, mut tx) = b.far.take_queues().pop().unwrap();
    // Drop the frames of the test's connection attempt, and its reset.
    b.worker.end(true);
    let mut frames: ArrayVec<Mbuf, 32> = ArrayVec::new();
    while rx.burst(&mut frames) > 0 {
        frames.clear();
    }
    assert!(matches!(b.reports.recv(), Err(NoReport::Ended { panicked: true })));
    let mut seen = Vec::new();
    for ack in [0x1234_5678, 0x9abc_def0] {
        let bytes = stray(b.port.mac(), ack);
        let mut frame = b.pool.alloc().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(&bytes);
        let mut one: ArrayVec<Mbuf, 1> = ArrayVec::new();
        one.push(frame);
        assert_eq!(tx.burst(&mut one), 1);
        while b.worker.poll_closed() {}
        while rx.burst(&mut frames) > 0 {
            for frame in frames.drain(..) {
                let mut bytes = vec![0; heddle_base::Chunks::len(&frame)];
                frame.copy_at(0, &mut bytes);
                seen.push(bytes);
            }
        }
    }
    let resets: Vec<_> = seen
        .iter()
        .filter(|f| f[12..14] == [8, 0] && f[23] == 6)
        .map(|f| (&f[30..38], f[47], u32::from_be_bytes([f[38], f[39], f[40], f[41]])))
        .collect();
    // Each answer goes to that port of that address, and is a RST alone.
    let to = [10, 0, 0, 2, 0x1c, 0x06, 3, 0xe8];
    assert_eq!(resets, [(&to[..], 4, 0x1234_5678), (&to[..], 4, 0x9abc_def0)]);
    // The worker does nothing else: orders come back.
    assert!(b.commands.send(Command::Snapshot).is_ok());
    assert!(!b.worker.poll_closed());
    assert!(matches!(b.commands.reclaim(), Some(Command::Snapshot)));
}
