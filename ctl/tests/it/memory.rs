//! Fast registrations and windows, from one application to another over `net_ring`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use heddle_ctl::{EndpointConfig, Node};
use heddle_hub::DeviceConfig;
use heddle_verbs::{
    Access, BindError, Connection, Cqe, CqeOp, CqeStatus, DeviceError, DeviceLimits, MrInit,
    RecvWr, RegisterError, SendWr, Sge, Stag,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// Starts two RNICs; one test runs at a time, because the names of rings are common to the process.
fn nodes(name: &str) -> (Node, Node, MutexGuard<'static, ()>) {
    let (eal, turn) = crate::common::eal();
    let addr = |n: u8| vec![format!("10.0.0.{n}/24").parse().unwrap()];
    // Pools are never freed, and each test has two.
    let config = |n| EndpointConfig { frames: 4095, ..EndpointConfig::new(addr(n)) };
    let (a, b) = (config(1), config(2));
    let (a, b) = Node::ring_pair(&eal, name, &a, &b).unwrap();
    (a, b, turn)
}

fn connect(a: &Node, b: &Node) -> (Connection, Connection) {
    let listener = b.device().bind("10.0.0.2:7174").unwrap();
    let connecting = a.device().dial("10.0.0.2:7174").unwrap();
    let server = listener.accept().unwrap();
    let client = connecting.wait().unwrap();
    // The accepting side sends and tries nothing before the first FPDU has come.
    let nothing = SendWr::write_inline(0, &[], Stag(1), 0).unsignaled();
    client.post_send(&nothing).unwrap();
    (client, server)
}

fn done(c: &Connection) -> Cqe {
    c.wait(PATIENCE).unwrap()
}

fn ok(c: &Connection, wr_id: u64, op: CqeOp) -> Cqe {
    let cqe = done(c);
    assert_eq!((cqe.wr_id, cqe.op, cqe.status), (wr_id, op, CqeStatus::Success));
    cqe
}

fn open() -> Access {
    Access::LOCAL_WRITE.with(Access::BIND)
}

#[test]
fn test_server_registers_fast_region_anew_for_each_request() {
    let (a, b, _turn) = nodes("lend");
    let (client, server) = connect(&a, &b);
    let device = b.device();
    let pd = server.qp().pd();
    let init = MrInit { access: open(), to: Some(0), ..MrInit::default() };
    let memory = device.alloc_mr_with(pd, 8192, &init).unwrap();
    assert_eq!(memory.to(), 0, "zero-based, as was asked");
    let fast = device.alloc_fast_mr_for(server.qp(), 4096).unwrap();
    let source = client.alloc_mr(4096, Access::NONE).unwrap();
    let inbox = client.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let rights = Access::REMOTE_WRITE.with(Access::REMOTE_INVALIDATE);
    for round in 0..3_u8 {
        client.post_recv(&RecvWr::new(1, &[inbox.sge(0, 4)])).unwrap();
        server.post_recv(&RecvWr::new(2, &[])).unwrap();
        // The registration and the Send that announces it go out with one doorbell.
        let (stag, at) = (fast.stag(round), usize::from(round) * 2048);
        let pieces = [memory.sge(at, 1000), memory.sge(at + 1000, 1048)];
        let register = SendWr::fast_register(3, stag, &pieces, 0x1000, rights);
        let name = stag.0.to_be_bytes();
        let tell = SendWr::send_inline(4, &name);
        server.qp().post_sends(&[register, tell]).unwrap();
        ok(&client, 1, CqeOp::Recv);
        let mut told = [0; 4];
        inbox.read(0, &mut told);
        let told = Stag(u32::from_be_bytes(told));
        assert_eq!(told, stag);
        // The client fills the region and gives it back with the same Send.
        source.write(0, &[round + 1; 2048]);
        let sges = [source.sge(0, 2048)];
        let write = SendWr::write(5, &sges, told, 0x1000).unsignaled();
        let give = SendWr::send_inline(6, &[]).invalidating(told);
        client.qp().post_sends(&[write, give]).unwrap();
        ok(&client, 6, CqeOp::Send);
        ok(&server, 3, CqeOp::FastRegister);
        ok(&server, 4, CqeOp::Send);
        assert_eq!(ok(&server, 2, CqeOp::Recv).invalidated, Some(stag));
        let mut seen = [0; 2048];
        memory.read(at, &mut seen);
        assert!(seen.iter().all(|b| *b == round + 1));
    }
    // While a registration holds the region, its owner cannot unregister the region; after a local
    // invalidate the owner can.
    let stag = fast.stag(9);
    server.post_send(&SendWr::fast_register(7, stag, &[memory.sge(0, 64)], 0, rights)).unwrap();
    ok(&server, 7, CqeOp::FastRegister);
    let bound = memory.deregister().unwrap_err();
    assert_eq!(bound.count, 1);
    server.post_send(&SendWr::local_invalidate(8, stag)).unwrap();
    ok(&server, 8, CqeOp::LocalInvalidate);
    bound.mr.deregister().unwrap();
    // The memory of this registration does not exist: the registration fails, and ends the
    // connection.
    let gone = [Sge { stag: Stag(0x1234_5678), to: 0, len: 8 }];
    server.post_send(&SendWr::fast_register(9, fast.stag(1), &gone, 0, rights)).unwrap();
    let failed = done(&server);
    assert!(matches!(failed.status, CqeStatus::LocalBind(BindError::Memory(_))), "{failed:?}");
}

/// A page list as the single target and source of a peer, and as a local buffer: in memory of a
/// device, through frames of a device.
#[test]
fn test_fast_region_maps_pages_in_any_order_under_one_stag() {
    const PAGE: usize = 4096;
    const LEN: usize = 4 * PAGE - 300;
    // The beginning and the length of each stretch.
    const LIST: [(usize, usize); 4] =
        [(9 * PAGE + 100, PAGE - 100), (2 * PAGE, PAGE), (3 * PAGE, PAGE), (0, PAGE - 200)];
    let (a, b, _turn) = nodes("pages");
    let (client, server) = connect(&a, &b);
    let memory = server.alloc_mr(16 * PAGE, open()).unwrap();
    let fast = b.device().alloc_fast_mr_for(server.qp(), 4 * PAGE as u64).unwrap();
    let stag = fast.stag(1);
    let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
    let pieces = LIST.map(|(at, len)| memory.sge(at, len));
    server.post_send(&SendWr::fast_register(1, stag, &pieces, 0, rights)).unwrap();
    ok(&server, 1, CqeOp::FastRegister);
    let data: Vec<u8> = (0..LEN).map(|i| (i / 16 % 251).to_le_bytes()[0]).collect();
    let own = client.alloc_mr(2 * LEN, Access::LOCAL_WRITE).unwrap();
    own.write(0, &data);
    client.post_send(&SendWr::write(2, &[own.sge(0, LEN)], stag, 0)).unwrap();
    ok(&client, 2, CqeOp::Write);
    client.post_send(&SendWr::read(3, &[own.sge(LEN, LEN)], stag, 0)).unwrap();
    ok(&client, 3, CqeOp::Read);
    let mut back = vec![0; LEN];
    own.read(LEN, &mut back);
    assert!(back == data, "what was read is not what was written");
    let mut all = vec![0; 16 * PAGE];
    memory.read(0, &mut all);
    let mut done = 0;
    for (at, len) in LIST {
        assert!(all[at..at + len] == data[done..done + len], "the stretch at {at}");
        all[at..at + len].fill(0);
        done += len;
    }
    assert!(all.iter().all(|o| *o == 0), "written beside its pages");
    // The page list as the source of a Send, and as the buffer of a receive.
    client.post_recv(&RecvWr::new(4, &[own.sge(LEN, LEN)])).unwrap();
    let local = Sge { stag, to: 50, len: u32::try_from(LEN - 50).unwrap() };
    server.post_send(&SendWr::send(5, &[local])).unwrap();
    assert_eq!(ok(&client, 4, CqeOp::Recv).len, local.len);
    own.read(LEN, &mut back);
    assert!(back[..LEN - 50] == data[50..]);
    ok(&server, 5, CqeOp::Send);
    server.post_recv(&RecvWr::new(6, &[local])).unwrap();
    let reversed: Vec<u8> = data[50..].iter().rev().copied().collect();
    own.write(0, &reversed);
    client.post_send(&SendWr::send(7, &[own.sge(0, LEN - 50)])).unwrap();
    ok(&server, 6, CqeOp::Recv);
    let mut seen = vec![0; LIST[1].1];
    memory.read(LIST[1].0, &mut seen);
    let first = LIST[0].1 - 50;
    assert!(seen == reversed[first..first + LIST[1].1]);
    // Pages that do not follow one another cannot become a window.
    let window = b.device().alloc_window_for(server.qp()).unwrap();
    let bind = SendWr::bind_window(8, window.stag(1), &pieces, 0, Access::REMOTE_READ);
    server.post_send(&bind).unwrap();
    assert_eq!(done_status(&server), CqeStatus::LocalBind(BindError::Scattered));
}

fn done_status(c: &Connection) -> CqeStatus {
    done(c).status
}

#[test]
fn test_window_exposes_its_range_and_ends_with_its_queue_pair() {
    let (a, b, _turn) = nodes("windows");
    let (client, server) = connect(&a, &b);
    let device = b.device();
    let pd = server.qp().pd();
    let memory = device.alloc_mr(pd, 4096, open()).unwrap();
    memory.write(0, &[7; 4096]);
    let sink = client.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    // Type 1: bound at once.
    let mut shared = device.alloc_window(pd).unwrap();
    let stag = shared.bind(&memory, (100, 50), 0, Access::REMOTE_READ).unwrap();
    client.post_send(&SendWr::read(1, &[sink.sge(0, 50)], stag, 0)).unwrap();
    ok(&client, 1, CqeOp::Read);
    let mut seen = [0; 51];
    sink.read(0, &mut seen);
    assert!(seen[..50] == [7; 50] && seen[50] == 0);
    let too_much = shared.bind(&memory, (100, 3997), 0, Access::REMOTE_READ);
    assert!(matches!(too_much, Err(BindError::Memory(_))));
    shared.unbind();
    // Type 2: bound in the order of the queue.
    let own = device.alloc_window_for(server.qp()).unwrap();
    let piece = [memory.sge(0, 8)];
    let bind = SendWr::bind_window(2, own.stag(1), &piece, 40, Access::REMOTE_WRITE);
    server.post_send(&bind).unwrap();
    ok(&server, 2, CqeOp::BindWindow);
    let source = client.alloc_mr(64, Access::NONE).unwrap();
    source.write(0, &[8; 8]);
    client.post_send(&SendWr::write(3, &[source.sge(0, 8)], own.stag(1), 40)).unwrap();
    ok(&client, 3, CqeOp::Write);
    let mut seen = [0; 9];
    memory.read(0, &mut seen);
    assert_eq!(seen, [8, 8, 8, 8, 8, 8, 8, 8, 7]);
    let memory = memory.deregister().unwrap_err().mr;
    // The key is not bound: the RNIC refuses the peer's Write, and no byte is written.
    client.post_send(&SendWr::write(4, &[source.sge(0, 8)], own.stag(2), 40)).unwrap();
    let end = Instant::now() + PATIENCE;
    while !server.qp().is_dead() {
        assert!(Instant::now() < end, "the server's queue pair goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The queue pair's end also ends its window, so nothing keeps the region.
    memory.deregister().unwrap();
}

#[test]
fn test_applications_and_protection_domains_have_limits() {
    let (a, _b, _turn) = nodes("limits");
    let config = DeviceConfig {
        memory: 1 << 20,
        queues: 1 << 20,
        limits: DeviceLimits {
            max_mrs: 3,
            max_mws: 2,
            max_mrs_per_pd: 2,
            max_mws_per_pd: 2,
            ..DeviceLimits::default()
        },
        ..DeviceConfig::default()
    };
    let device = a.hub().open(&config).unwrap();
    let (one, two) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
    let refused = |most| DeviceError::Register(RegisterError::Quota { most });
    let first = device.alloc_mr(one, 64, Access::NONE).unwrap();
    let _fast = device.alloc_fast_mr(one, 64).unwrap();
    let got = device.alloc_mr(one, 64, Access::NONE);
    assert_eq!(got.err(), Some(refused(2)), "the protection domain has two");
    let _third = device.alloc_mr(two, 64, Access::NONE).unwrap();
    assert_eq!(device.alloc_fast_mr(two, 64).err(), Some(refused(3)), "the application has three");
    let _windows = [device.alloc_window(one).unwrap(), device.alloc_window(two).unwrap()];
    assert_eq!(device.alloc_window(one).err(), Some(refused(2)));
    let usage = device.mr_usage();
    assert_eq!((usage.regions, usage.windows, usage.refused), (3, 2, 2));
    let usage = device.pd_mr_usage(one).unwrap();
    assert_eq!((usage.regions, usage.windows, usage.refused), (2, 1, 1));
    assert_eq!(device.pd_mr_usage(a.device().alloc_pd().unwrap()), None, "of another application");
    // A place is free again when its memory is back, for which the workers must have had a turn.
    drop(first);
    let end = Instant::now() + PATIENCE;
    let _again = loop {
        match device.alloc_mr(one, 64, Access::NONE) {
            Ok(mr) => break mr,
            Err(e) => assert!(e == refused(3) && Instant::now() < end, "{e}"),
        }
    };
    // Another application is not affected.
    let other = a.device();
    for _ in 0..4 {
        std::mem::forget(other.alloc_mr(other.alloc_pd().unwrap(), 64, Access::NONE).unwrap());
    }
}
