//! Protection domains of connections that come and go.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use heddle_ctl::{EndpointConfig, Node};
use heddle_hub::DeviceConfig;
use heddle_verbs::{Access, CqeStatus, DeviceLimits, SendWr};

/// A program lives long: each connection has a protection domain of its own, and the device has few
/// at a time.
#[test]
fn test_ended_connections_return_their_protection_domains() {
    let (eal, _turn) = crate::common::eal();
    let addr = |n: u8| vec![format!("10.0.0.{n}/24").parse().unwrap()];
    let (a, b) = (EndpointConfig::new(addr(1)), EndpointConfig::new(addr(2)));
    let (a, b) = Node::ring_pair(&eal, "domains", &a, &b).unwrap();
    let few = |node: &Node| {
        let limits = DeviceLimits { max_pds: 16, ..DeviceLimits::default() };
        let config = DeviceConfig { memory: 1 << 20, limits, ..DeviceConfig::default() };
        node.hub().open(&config).unwrap()
    };
    let (a, b) = (few(&a), few(&b));
    let listener = b.bind("10.0.0.2:7174").unwrap();
    for n in 0..300 {
        let connecting = a.dial("10.0.0.2:7174").unwrap_or_else(|e| panic!("{n}: {e}"));
        let server = listener.accept().unwrap_or_else(|e| panic!("{n}: {e}"));
        let client = connecting.wait().unwrap();
        // With the domain of another connection the peer would not reach this region.
        let target = server.alloc_mr(64, Access::REMOTE_WRITE).unwrap();
        let source = client.alloc_mr(64, Access::NONE).unwrap();
        let sges = [source.sge(0, 8)];
        client.post_send(&SendWr::write(n, &sges, target.stag(), target.to())).unwrap();
        let done = client.wait(Duration::from_secs(5)).unwrap();
        assert_eq!((done.wr_id, done.status), (n, CqeStatus::Success));
        client.disconnect().unwrap();
    }
}
