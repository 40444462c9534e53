use std::io::Write;
use std::process::Command;

use heddle_types::ListenerId;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;
use crate::event::EventQueue;

#[test]
fn test_client_waits_for_descheduled_workers_of_a_live_server() {
    let (_theirs, ours) = UnixStream::pair().unwrap();
    let server = process_of(&ours).unwrap().unwrap();
    let start = Instant::now();
    let long = 3 * UNSEEN_WORKERS_END;
    let_workers_end(Some(&server), || start.elapsed() < long);
    assert!(start.elapsed() >= long);
}

#[test]
fn test_client_does_not_wait_for_workers_of_a_dead_server() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::from_child(&child);
    let server = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    assert!(lives(&server));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!lives(&server));
    // These workers run for ever.
    let_workers_end(Some(&server), || true);
    let_workers_end(None, || true);
}

/// The server here never reads, so the socket to it is full; the server goes on sending.
#[test]
fn test_events_arrive_from_a_server_that_does_not_read() {
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    let mut full = ours.try_clone().unwrap();
    let link = Link::start(ours).unwrap();
    let events = EventQueue::new(None);
    link.routes().listen(1, events.clone());
    full.set_nonblocking(true).unwrap();
    while full.write(&[0; 512]).is_ok() {}
    full.set_nonblocking(false).unwrap();

    let event = Event::Listening { id: ListenerId(1) };
    let line = serde_json::json!({ "v": VERSION, "event": &event }).to_string();
    // The test takes each event, so the link has something to tell the server before the next
    // event.
    for _ in 0..5 {
        writeln!(theirs, "{line}").unwrap();
        let start = Instant::now();
        while events.poll().is_none() {
            assert!(start.elapsed() < PATIENCE / 2, "the reading thread waits for its server");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(2 * TELL_TAKEN);
    }
    link.shut();
}

#[test]
fn test_answer_arrives_whether_client_spins_or_sleeps() {
    for late in [Duration::ZERO, SOON / 2, 20 * SOON] {
        let (answer, answered) = sync_channel(1);
        let server = std::thread::spawn(move || {
            std::thread::sleep(late);
            answer.send(7).unwrap();
        });
        assert_eq!(wait_for(&answered), Some(7));
        server.join().unwrap();
        let (answer, answered) = sync_channel::<u32>(1);
        let server = std::thread::spawn(move || {
            std::thread::sleep(late);
            drop(answer);
        });
        let start = Instant::now();
        assert_eq!(wait_for(&answered), None);
        assert!(start.elapsed() < PATIENCE / 2, "the caller waits for an answer that cannot come");
        server.join().unwrap();
    }
}
