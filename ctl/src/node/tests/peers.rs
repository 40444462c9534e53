//! The peers' view of a worker's panic.

use heddle_verbs::ConnectFailure;

use super::*;

#[test]
fn test_a_peer_is_reset_when_the_worker_panics() {
    let p = pair("reset0");
    let (_listener, _here, mut there) = p.connect();
    // The last acknowledgment of the start-up has been sent: neither end has data to send, and no
    // keepalive probes run.
    thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    p.orders[0].panic.store(true, Ordering::Relaxed);
    assert_eq!(end_of(&mut there), DisconnectReason::Tcp(CloseReason::Reset));
    assert!(start.elapsed() < PROMPT);
    // The rest of the RNIC refuses connections, as long as the node exists.
    for _ in 0..2 {
        let start = Instant::now();
        let error = p.peer.device().dial("10.0.0.1:7174").unwrap().wait().unwrap_err();
        let refused = ConnectFailure::Tcp(CloseReason::Refused);
        assert!(matches!(error, ConnectionError::Connect(e) if e == refused), "{error}");
        assert!(start.elapsed() < PROMPT);
    }
    assert!(!p.node.is_running());
    let Pair { node, .. } = p;
    // The node ends when it is dropped.
    let start = Instant::now();
    drop(node);
    assert!(start.elapsed() < PROMPT);
}
