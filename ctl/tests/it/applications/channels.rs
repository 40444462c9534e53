//! Completion channels over workers that run.

use heddle_verbs::{
    Access, Arm, ChannelError, CompletionChannel, Connection, QpInit, RecvWr, SendWr,
};

use super::*;

/// Receives on two queue pairs whose completion queues share a channel. The program polls eagerly,
/// so it polls most completions before it fetches their event.
#[test]
fn test_each_arm_raises_one_event_even_if_completions_are_polled_early() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let channel = CompletionChannel::new().unwrap();
        let pd = device.alloc_pd().unwrap();
        let listener = nodes.them.device().bind((THEM, 7000)).unwrap();
        let mr = device.alloc_mr(pd, 64, Access::LOCAL_WRITE).unwrap();
        let mut pairs = Vec::new();
        for tag in 0..2 {
            let cq = device.create_cq_on(64, &channel, tag).unwrap();
            let ends = Ends::with(&device, pd, 64, |init| QpInit {
                recv_cq: cq.clone(),
                ..init.depths(16, 16)
            });
            let (ours, theirs) =
                Nodes::connect_to(&device, ends.unwrap(), &listener, addr(THEM, 7000));
            let source = theirs.alloc_mr(8, Access::NONE).unwrap();
            pairs.push((cq, ours, theirs, source));
        }
        let receive = |c: &Connection| {
            c.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, 8)] }).unwrap();
        };
        let mut fetched = [0u32; 2];
        for _ in 0..200 {
            for (cq, ours, theirs, source) in &pairs {
                receive(ours);
                cq.arm(Arm::Next);
                theirs.post_send(&SendWr::send(1, &[source.sge(0, 8)])).unwrap();
            }
            for (cq, _, theirs, _) in &pairs {
                until("a receive", || cq.poll());
                assert!(theirs.wait(PATIENCE).unwrap().status.is_success());
            }
            // Both completion queues have fired; the program looks at its descriptor only now.
            for _ in 0..2 {
                let tag =
                    channel.get_event(Some(PATIENCE)).unwrap().expect("an event for each arm");
                fetched[usize::try_from(tag).unwrap()] += 1;
            }
            assert_eq!(channel.try_event().unwrap(), None, "one event for each arm");
        }
        assert_eq!(fetched, [200; 2], "{kind:?}");
    });
}

/// The server ends while a program waits, and the program hears of the end.
#[test]
fn test_waiting_program_is_told_when_server_ends() {
    let mut nodes = Nodes::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = theirs.try_clone().unwrap();
    let hub = nodes.us.hub().clone();
    nodes.serving.push(std::thread::spawn(move || {
        let _ = serve(&hub, Policy::default(), &theirs);
    }));
    let device = Device::open_on(ours, &OpenParams::default()).unwrap();
    let channel = CompletionChannel::new().unwrap();
    let armed = device.create_cq_on(8, &channel, 1).unwrap();
    let _idle = device.create_cq_on(8, &channel, 2).unwrap();
    armed.arm(Arm::Next);
    let waits = {
        let channel = channel.clone();
        std::thread::spawn(move || (channel.get_event(None), channel.get_event(None)))
    };
    server.shutdown(std::net::Shutdown::Both).unwrap();
    let (first, second) = waits.join().unwrap();
    assert_eq!(first.unwrap(), Some(1));
    assert!(matches!(second, Err(ChannelError::Gone)));
    assert!(armed.check().is_err());
    nodes.served();
}
