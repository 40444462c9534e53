//! Two RNICs on threads of their own, and a program that waits.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use heddle_ctl::{EndpointConfig, Node};
use heddle_dataplane::eal::allowed_cpus;
use heddle_iwarp::ddp::DdpHeader;
use heddle_verbs::{Access, CqeStatus, DisconnectReason, SendWr, Stag, TermCode};

#[test]
fn test_blocking_calls_connect_write_and_disconnect() {
    let (eal, _turn) = crate::common::eal();
    let addr = |n: u8| vec![format!("10.0.0.{n}/24").parse().unwrap()];
    let (a, b) = (EndpointConfig::new(addr(1)), EndpointConfig::new(addr(2)));
    let before = allowed_cpus();
    let (a, b) = Node::ring_pair(&eal, "blocking", &a, &b).unwrap();
    assert!(a.is_running() && b.is_running());
    assert_eq!(allowed_cpus(), before, "the caller keeps its processors");
    let listener = b.device().bind("10.0.0.2:7174").unwrap();
    let connecting = a.device().dial("10.0.0.2:7174").unwrap();
    let server = listener.accept().unwrap();
    let client = connecting.wait().unwrap();
    let target = server.alloc_mr(4096, Access::REMOTE_WRITE).unwrap();
    let source = client.alloc_mr(4096, Access::NONE).unwrap();
    source.write(0, b"hello");
    let sges = [source.sge(0, 5)];
    client.post_send(&SendWr::write(1, &sges, target.stag(), target.to())).unwrap();
    let done = client.wait(Duration::from_secs(5)).unwrap();
    assert_eq!((done.wr_id, done.status), (1, CqeStatus::Success));
    let mut seen = [0; 5];
    target.read(0, &mut seen);
    assert_eq!(&seen, b"hello");
    drop(target);
    // The memory comes back although the application does not ask for it.
    let end = std::time::Instant::now() + Duration::from_secs(5);
    while b.hub().registry().draining() > 0 && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(b.hub().registry().draining(), 0);
    let reason = client.disconnect().unwrap();
    assert_eq!(reason.to_string(), "closed in order");

    // A peer that writes outside its rights hears of it, and which of its Writes it was.
    let connecting = a.device().dial("10.0.0.2:7174").unwrap();
    let _server = listener.accept().unwrap();
    let mut client = connecting.wait().unwrap();
    assert!(client.end().is_none() && client.terminate().is_none());
    let source = client.alloc_mr(4096, Access::NONE).unwrap();
    let sges = [source.sge(0, 5)];
    client.post_send(&SendWr::write(1, &sges, Stag(0x0bad_0b00), 77)).unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(5);
    while client.end().is_none() && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let code = TermCode::DDP_INVALID_STAG;
    assert_eq!(client.end(), Some(DisconnectReason::RemoteTerminate(code)));
    let terminate = heddle_iwarp::rdmap::Terminate::from(client.terminate().unwrap());
    assert_eq!((terminate.code, terminate.segment_len), (code, Some(14 + 5)));
    let header = terminate.ddp.unwrap().header().unwrap();
    assert!(
        matches!(header, DdpHeader::Tagged { stag: Stag(0x0bad_0b00), to: 77, .. }),
        "{header:?}"
    );
}
