//! The resources that an application can take of an RNIC: those that its device was opened with,
//! and no more; other applications still have theirs.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use heddle_hub::DeviceConfig;
use heddle_verbs::{Access, ConnectParams, DeviceError, EventQueue, QpInit, RegisterError};

use crate::common::*;

#[test]
fn test_application_cannot_exceed_its_share_at_cost_of_others() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let config =
        DeviceConfig { memory: 1 << 20, queues: 1 << 20, shared: false, ..DeviceConfig::default() };
    let greedy = net.us.hub().open(&config).unwrap();
    let other = net.us.hub().open(&config).unwrap();
    let pd = greedy.alloc_pd().unwrap();
    // No completion queue is deeper than 262,144, whatever its device has.
    assert!(net.us.device().create_cq(262_144, None).is_ok());
    for device in [net.us.device(), &greedy] {
        for depth in [0, 262_145, u32::MAX] {
            let refused = device.create_cq(depth, None).err();
            assert!(matches!(refused, Some(DeviceError::Limit { .. })), "{depth}: {refused:?}");
        }
    }
    // Completion queues, until there is no room for another; an entry has at least 32 bytes.
    let depth = 1000;
    let mut cqs = Vec::new();
    let error = loop {
        match greedy.create_cq(depth, None) {
            Ok(cq) => cqs.push(cq),
            Err(e) => break e,
        }
        assert!(cqs.len() * depth as usize * 32 <= config.queues, "{} queues", cqs.len());
    };
    assert!(matches!(error, DeviceError::Area(_)), "{error}");
    assert!(cqs.len() > 3, "{}", cqs.len());
    // There is no room for a queue pair either.
    let init = QpInit::new(cqs[0].clone()).depths(10_000, 10_000);
    let refused = greedy.create_qp(pd, init).err();
    assert!(matches!(refused, Some(DeviceError::Area(_))), "{refused:?}");
    // Memory, until none is left.
    let mut mrs = Vec::new();
    let error = loop {
        match greedy.alloc_mr(pd, 100_000, Access::REMOTE_WRITE) {
            Ok(mr) => mrs.push(mr),
            Err(e) => break e,
        }
        assert!(mrs.len() * 100_000 <= config.memory, "{} regions", mrs.len());
    };
    assert!(matches!(error, DeviceError::Register(RegisterError::NoMemory { .. })), "{error}");
    assert!(mrs.len() > 3, "{}", mrs.len());
    // All of this came out of the application's own share.
    let theirs: Vec<_> = (0..cqs.len()).map(|_| other.create_cq(depth, None).unwrap()).collect();
    let all: Vec<_> = (0..mrs.len())
        .map(|_| other.alloc_mr(other.alloc_pd().unwrap(), 100_000, Access::REMOTE_WRITE).unwrap())
        .collect();
    assert_eq!((theirs.len(), all.len()), (cqs.len(), mrs.len()));
    honest.exchange(&mut net);
}

#[test]
fn test_queue_pair_refuses_completion_queue_of_another_application() {
    let (eal, _turn) = eal();
    let net = Net::new(&eal);
    let config =
        DeviceConfig { memory: 1 << 20, queues: 1 << 20, shared: false, ..DeviceConfig::default() };
    let other = net.us.hub().open(&config).unwrap();
    let foreign = net.us.device().create_cq(16, None).unwrap();
    let own = other.create_cq(16, None).unwrap();
    let pd = other.alloc_pd().unwrap();
    assert!(other.create_qp(pd, QpInit::new(own.clone())).is_ok());
    let mut init = QpInit::new(own.clone());
    init.send_cq = foreign.clone();
    assert_eq!(other.create_qp(pd, init).err(), Some(DeviceError::ForeignCq), "for sends");
    let mut init = QpInit::new(own);
    init.recv_cq = foreign;
    assert_eq!(other.create_qp(pd, init).err(), Some(DeviceError::ForeignCq), "for receives");
}

#[test]
fn test_a_queue_pair_of_another_application_is_not_connected() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let config =
        DeviceConfig { memory: 1 << 20, queues: 1 << 20, shared: false, ..DeviceConfig::default() };
    let other = net.us.hub().open(&config).unwrap();
    let end = End::new(&net.us);
    let events = EventQueue::new(None);
    let params = ConnectParams::new(end.qp.clone());
    let refused = other.connect((PEER, PORT).into(), params, &events).err();
    assert_eq!(refused, Some(DeviceError::ForeignQp(end.qp.qpn())));
    // The refusal has left the queue pair as it was.
    let events = listen(&mut net, PORT, |_| {});
    Honest::with(&mut net, PORT, &events, end).exchange(&mut net);
}
