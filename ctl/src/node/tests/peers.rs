//! What peers hear when a worker panics.

use heddle_verbs::ConnectFailure;

use super::*;

#[test]
fn test_a_peer_is_reset_when_the_worker_panics() {
    let p = pair("reset0");
    let (_listener, _here, mut there) = p.connect();
    // The last acknowledgment of the start-up has been sent: neither end has anything to say, and
    // nobody asks whether the other is there.
    thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    p.orders[0].panic.store(true, Ordering::Relaxed);
    assert_eq!(end_of(&mut there), DisconnectReason::Tcp(CloseReason::Reset));
    assert!(start.elapsed() < PROMPT);
    // What is left of the RNIC refuses connections, as long as the node is there.
    for _ in 0..2 {
        let start = Instant::now();
        let error = p.peer.device().dial("10.0.0.1:7174").unwrap().wait().unwrap_err();
        let refused = ConnectFailure::Tcp(CloseReason::Refused);
        assert!(matches!(error, ConnectionError::Connect(e) if e == refused), "{error}");
        assert!(start.elapsed() < PROMPT);
    }
    assert!(!p.node.is_running());
    let Pair { node, .. } = p;
    // It ends when it is told to.
    let start = Instant::now();
    drop(node);
    assert!(start.elapsed() < PROMPT);
}
