//! An application can have all that `Device::limits` promises, and the refusal of anything more
//! names the limit.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use heddle_hub::DeviceConfig;
use heddle_types::MrError;
use heddle_verbs::{
    AcceptParams, Access, CmEvent, ConnectParams, Device, DeviceError, DeviceLimits, EventQueue,
    Pd, PostError, Qp, QpInit, RegisterError, SendWr,
};

use crate::common::*;

fn open(net: &Net, limits: DeviceLimits) -> Device {
    let config = DeviceConfig { memory: 1 << 20, queues: 1 << 20, limits, ..Default::default() };
    net.us.hub().open(&config).unwrap()
}

/// Small limits for each kind of object.
const FEW: DeviceLimits = DeviceLimits {
    max_qps: 2,
    max_qp_wrs: 20,
    max_sges: 3,
    max_inline: 48,
    max_cqs: 2,
    max_cqes: 100,
    max_mr_size: 10_000,
    max_pds: 2,
    max_ird: 5,
    max_ord: 6,
    ..DeviceLimits::MOST
};

fn refused<T>(result: Result<T, DeviceError>) -> DeviceError {
    match result {
        Ok(_) => panic!("more than the limit was had"),
        Err(e) => e,
    }
}

fn beyond(value: u64, most: u64) -> impl Fn(&DeviceError) -> bool {
    move |e| matches!(e, DeviceError::Limit { value: v, most: m, .. } if (*v, *m) == (value, most))
}

#[test]
fn test_device_reports_its_effective_limits() {
    let (eal, _turn) = eal();
    let net = Net::with(&eal, |c| c.max_mrs = 8);
    let device = open(&net, FEW);
    assert_eq!(
        *device.limits(),
        DeviceLimits { max_mrs: 8, max_mrs_per_pd: 8, max_mws: 8, max_mws_per_pd: 8, ..FEW }
    );
    // Asking for more than an RNIC has does not raise the limits.
    let all = DeviceLimits { max_qps: u32::MAX, max_cqes: u32::MAX, ..FEW };
    let got = *open(&net, all).limits();
    let most = DeviceLimits::MOST;
    assert_eq!((got.max_qps, got.max_cqes), (most.max_qps, most.max_cqes));
}

#[test]
fn test_device_limits_number_and_depth_of_completion_queues() {
    let (eal, _turn) = eal();
    let net = Net::new(&eal);
    let device = open(&net, FEW);
    let first = device.create_cq(100, None).unwrap();
    assert!(beyond(101, 100)(&refused(device.create_cq(101, None))));
    let _second = device.create_cq(1, None).unwrap();
    let full = DeviceError::TooMany { what: "completion queues", most: 2 };
    assert_eq!(refused(device.create_cq(1, None)), full);
    drop(first);
    assert!(device.create_cq(1, None).is_ok(), "a place comes back");
}

#[test]
fn test_device_limits_number_of_protection_domains() {
    let (eal, _turn) = eal();
    let net = Net::new(&eal);
    let device = open(&net, FEW);
    let _two = [device.alloc_pd().unwrap(), device.alloc_pd().unwrap()];
    let full = DeviceError::TooMany { what: "protection domains", most: 2 };
    assert_eq!(refused(device.alloc_pd()), full);
}

#[test]
fn test_device_limits_number_and_size_of_queue_pairs() {
    let (eal, _turn) = eal();
    let net = Net::new(&eal);
    let device = open(&net, FEW);
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64, None).unwrap());
    let most = QpInit {
        max_send_sge: 3,
        max_recv_sge: 3,
        max_inline: 48,
        ..QpInit::new(cq.clone()).depths(20, 20)
    };
    let first: Qp = device.create_qp(pd, most.clone()).unwrap();
    assert!(first.post_send(&SendWr::send_inline(1, &[0; 48])).is_ok());
    let late = first.post_send(&SendWr::send_inline(1, &[0; 49])).err();
    assert_eq!(late, Some(PostError::InlineTooLong));
    let more = |change: fn(&mut QpInit)| {
        let mut init = most.clone();
        change(&mut init);
        refused(device.create_qp(pd, init))
    };
    assert!(beyond(21, 20)(&more(|i| i.sq_depth = 21)));
    assert!(beyond(21, 20)(&more(|i| i.rq_depth = 21)));
    assert!(beyond(4, 3)(&more(|i| i.max_send_sge = 4)));
    assert!(beyond(4, 3)(&more(|i| i.max_recv_sge = 4)));
    assert!(beyond(49, 48)(&more(|i| i.max_inline = 49)));
    let _second = device.create_qp(pd, most.clone()).unwrap();
    let full = DeviceError::TooMany { what: "queue pairs", most: 2 };
    assert_eq!(refused(device.create_qp(pd, most.clone())), full);
    drop(first);
    assert!(device.create_qp(pd, most).is_ok(), "a place comes back");
}

#[test]
fn test_device_limits_number_and_size_of_regions() {
    let (eal, _turn) = eal();
    let net = Net::with(&eal, |c| c.max_mrs = 2);
    let device = open(&net, FEW);
    let pd: Pd = device.alloc_pd().unwrap();
    let alloc = |len| device.alloc_mr(pd, len, Access::LOCAL_WRITE);
    assert!(beyond(10_001, 10_000)(&refused(alloc(10_001))));
    let brought = device.memory().unwrap().clone();
    let result = device.register_mr(pd, &brought, (0, 10_001), 0, Access::NONE);
    assert!(beyond(10_001, 10_000)(&refused(result)));
    assert!(beyond(10_001, 10_000)(&refused(device.reserve(10_001))));
    let _two = [alloc(10_000).unwrap(), alloc(1).unwrap()];
    // The application has all its regions; another application finds the table full.
    assert_eq!(refused(alloc(1)), DeviceError::Register(RegisterError::Quota { most: 2 }));
    let other = open(&net, FEW);
    let full = DeviceError::Register(RegisterError::Mr(MrError::Full));
    assert_eq!(refused(other.alloc_mr(other.alloc_pd().unwrap(), 1, Access::NONE)), full);
}

#[test]
fn test_reads_of_a_connection_are_capped_by_the_device() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let limits = DeviceLimits { max_ird: 5, max_ord: 6, ..DeviceLimits::default() };
    let device = open(&net, limits);
    let events = listen_on(&mut net, &device, PORT, |_| {});
    let end = End::on(&device, 64);
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b""));
    let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
    let accept = |ird, ord| {
        device.accept(id, AcceptParams { ird, ord, ..AcceptParams::new(end.qp.clone()) })
    };
    assert!(beyond(6, 5)(&refused(accept(6, 6))));
    assert!(beyond(7, 6)(&refused(accept(5, 7))));
    let connect = |ird, ord| {
        let params = ConnectParams { ird, ord, ..ConnectParams::new(end.qp.clone()) };
        device.connect((PEER, PORT).into(), params, &EventQueue::new(None))
    };
    assert!(beyond(6, 5)(&refused(connect(6, 6))));
    assert!(beyond(7, 6)(&refused(connect(5, 7))));
    // The refusals touched neither the queue pair nor the request.
    accept(5, 6).unwrap();
    assert!(matches!(net.event(&events), CmEvent::Established { .. }));
}
