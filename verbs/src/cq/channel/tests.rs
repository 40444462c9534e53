//! Each arm yields one event, and each event has one wake-up.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use heddle_rings::Area;
use heddle_rings::cq::CqProducer;
use heddle_shm::waker::WeakWaker;
use heddle_types::{Cqe, CqeOp, CqeStatus, Qpn, Queue};

use super::*;
use crate::cq::Cq;
use crate::limits::count::Count;

fn cqe(solicited: bool) -> Cqe {
    Cqe {
        wr_id: 1,
        qpn: Qpn(1),
        queue: Queue::Rq,
        op: CqeOp::Recv,
        status: CqeStatus::Success,
        solicited,
        len: 0,
        invalidated: None,
        immediate: None,
    }
}

/// Returns a queue of this process in a channel, and its worker's end.
fn local(channel: &CompletionChannel, tag: u64) -> (Cq, CqProducer) {
    let place = channel.begin();
    let waker = place.waker();
    let held = Count::default().take("queues", 1).unwrap();
    let cq = Cq::new(&Area::new(1 << 16).unwrap(), 3, 64, 1, Some(waker), held).unwrap();
    cq.join(place, tag);
    let producer = cq.link().producer(0);
    (cq, producer)
}

/// Returns a queue whose worker wakes the channel through a socket, as the worker of another
/// process does: all queues of a waker share one socket.
fn remote(channel: &CompletionChannel, tag: u64) -> Remote {
    static SOCKETS: Mutex<BTreeMap<u64, WeakWaker>> = Mutex::new(BTreeMap::new());
    let place = channel.begin();
    let ours = place.waker();
    let waker = {
        let mut sockets = SOCKETS.lock().unwrap();
        sockets.get(&ours.number().unwrap()).and_then(WeakWaker::upgrade).unwrap_or_else(|| {
            let (waker, fd) = Waker::for_process().unwrap();
            ours.listen_to(fd).unwrap();
            sockets.insert(ours.number().unwrap(), waker.downgrade());
            waker
        })
    };
    let area = Area::new(1 << 16).unwrap();
    let held = Count::default().take("queues", 1).unwrap();
    let theirs = Cq::new(&area, 3, 64, 1, Some(waker), held).unwrap();
    let cq = Cq::attach(&area, theirs.share()).unwrap();
    cq.join(place, tag);
    let producer = theirs.link().producer(0);
    Remote { cq, theirs, producer }
}

struct Remote {
    cq: Cq,
    theirs: Cq,
    producer: CqProducer,
}

fn complete(producer: &mut CqProducer, solicited: bool) {
    producer.push(&cqe(solicited)).unwrap();
    producer.notify();
}

fn is_readable(channel: &CompletionChannel) -> bool {
    channel.is_readable()
}

/// Takes all events; the descriptor has to be readable exactly until then. A server closes its pair
/// on a thread of its own, which may make the descriptor readable once more.
fn events(channel: &CompletionChannel) -> Vec<u64> {
    let mut all = Vec::new();
    let mut ends = 0;
    while is_readable(channel) {
        match channel.try_event().unwrap() {
            Some(tag) => all.push(tag),
            None => ends += 1,
        }
        assert!(ends <= 1, "readable without an event");
    }
    assert_eq!(channel.try_event().unwrap(), None);
    all.sort_unstable();
    all
}

#[test]
fn test_arm_yields_one_event_although_completion_was_polled() {
    let channel = CompletionChannel::new().unwrap();
    let (cq, mut worker) = local(&channel, 7);
    complete(&mut worker, false);
    assert_eq!(events(&channel), [0; 0], "nothing was armed");
    cq.arm(Arm::Next);
    complete(&mut worker, false);
    complete(&mut worker, false);
    while cq.poll().is_some() {}
    assert_eq!(events(&channel), [7]);
}

#[test]
fn test_arm_before_the_event_is_fetched_yields_another_event() {
    for far in [false, true] {
        let channel = CompletionChannel::new().unwrap();
        let (cq, mut worker, _server) = match far {
            false => {
                let (cq, worker) = local(&channel, 7);
                (cq, worker, None)
            }
            true => {
                let Remote { cq, theirs, producer } = remote(&channel, 7);
                (cq, producer, Some(theirs))
            }
        };
        // Far more events than a socket keeps.
        for _ in 0..2_000 {
            cq.arm(Arm::Next);
            cq.arm(Arm::Next);
            complete(&mut worker, false);
            while cq.poll().is_some() {}
        }
        assert_eq!(events(&channel).len(), 2_000, "far: {far}");
    }
}

#[test]
fn test_solicited_arm_waits_for_a_solicited_completion_and_next_widens_it() {
    let channel = CompletionChannel::new().unwrap();
    let (cq, mut worker) = local(&channel, 1);
    cq.arm(Arm::Solicited);
    complete(&mut worker, false);
    assert_eq!(events(&channel), [0; 0]);
    complete(&mut worker, true);
    assert_eq!(events(&channel), [1]);
    cq.arm(Arm::Next);
    cq.arm(Arm::Solicited);
    complete(&mut worker, false);
    assert_eq!(events(&channel), [1]);
}

#[test]
fn test_channel_names_queue_of_each_event_and_starves_no_queue() {
    let channel = CompletionChannel::new().unwrap();
    let mut all: Vec<_> = (0..40).map(|tag| local(&channel, tag)).collect();
    for (cq, worker) in &mut all {
        cq.arm(Arm::Next);
        complete(worker, false);
    }
    // The first queue fires again and again.
    let mut seen = Vec::new();
    for _ in 0..40 {
        seen.push(channel.try_event().unwrap().unwrap());
        let (cq, worker) = &mut all[0];
        cq.arm(Arm::Next);
        complete(worker, false);
        cq.poll().unwrap();
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 40);
}

#[test]
fn test_remote_and_local_queues_share_a_channel() {
    let channel = CompletionChannel::new().unwrap();
    let mut far: Vec<_> = (0..50).map(|tag| remote(&channel, tag)).collect();
    let mut near: Vec<_> = (50..60).map(|tag| local(&channel, tag)).collect();
    for _ in 0..3 {
        for far in &mut far {
            far.cq.arm(Arm::Next);
            complete(&mut far.producer, false);
            far.cq.poll().unwrap();
        }
        for (cq, worker) in &mut near {
            cq.arm(Arm::Next);
            complete(worker, false);
            cq.poll().unwrap();
        }
        assert_eq!(events(&channel), (0..60).collect::<Vec<_>>());
    }
}

#[test]
fn test_destroyed_queue_removes_its_events_from_channel() {
    let channel = CompletionChannel::new().unwrap();
    let (near, mut near_worker) = local(&channel, 1);
    let (kept, mut kept_worker) = local(&channel, 2);
    let mut far = remote(&channel, 3);
    for (cq, worker) in
        [(&near, &mut near_worker), (&kept, &mut kept_worker), (&far.cq, &mut far.producer)]
    {
        for _ in 0..2 {
            cq.arm(Arm::Next);
            complete(worker, false);
        }
    }
    drop((near, far));
    assert_eq!(channel.queues(), 1);
    assert_eq!(events(&channel), [2, 2]);
    complete(&mut near_worker, false);
    assert_eq!(events(&channel), [0; 0], "a queue that is destroyed is not armed");
}

/// The lot ends with the last of its queues, and so does the socket.
#[test]
fn test_events_of_remaining_queues_survive_closing_of_their_wakeup_socket() {
    let channel = CompletionChannel::new().unwrap();
    let mut far: Vec<_> = (0..2 * LOT as u64).map(|tag| remote(&channel, tag)).collect();
    for far in &mut far {
        far.cq.arm(Arm::Next);
        complete(&mut far.producer, false);
    }
    let kept = far.split_off(LOT);
    drop(far);
    let want: Vec<u64> = (LOT as u64..2 * LOT as u64).collect();
    assert_eq!(events(&channel), want);
    drop(kept);
    assert!(!is_readable(&channel), "the end of a server's pair is no event");
}

#[test]
fn test_each_event_is_delivered_to_exactly_one_waiting_thread() {
    let channel = CompletionChannel::new().unwrap();
    let mut far = remote(&channel, 5);
    let (cq, mut worker) = local(&channel, 6);
    let wait = || {
        let channel = channel.clone();
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            while let Some(tag) = channel.get_event(Some(Duration::from_secs(30))).unwrap() {
                seen.push(tag);
                if tag == 9 {
                    break;
                }
            }
            seen
        })
    };
    let threads: Vec<_> = (0..3).map(|_| wait()).collect();
    for _ in 0..1_000 {
        far.cq.arm(Arm::Next);
        complete(&mut far.producer, false);
        cq.arm(Arm::Next);
        complete(&mut worker, false);
        while cq.poll().is_some() {}
        while far.cq.poll().is_some() {}
    }
    let mut last: Vec<_> = (0..3).map(|_| local(&channel, 9)).collect();
    for (cq, worker) in &mut last {
        cq.arm(Arm::Next);
        complete(worker, false);
    }
    let mut seen: Vec<u64> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    seen.extend(events(&channel));
    let count = |tag| seen.iter().filter(|seen| **seen == tag).count();
    assert_eq!((count(5), count(6), count(9)), (1_000, 1_000, 3));
}

#[test]
fn test_channel_reports_rnic_gone_after_its_last_events() {
    let channel = CompletionChannel::new().unwrap();
    let mut armed = remote(&channel, 1);
    let idle = remote(&channel, 2);
    armed.cq.arm(Arm::Next);
    complete(&mut armed.producer, false);
    armed.cq.arm(Arm::Next);
    let waits = {
        let channel = channel.clone();
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            loop {
                match channel.get_event(None) {
                    Ok(tag) => seen.extend(tag),
                    Err(e) => return (seen, e),
                }
            }
        })
    };
    drop((armed.theirs, armed.producer, idle.theirs, idle.producer));
    armed.cq.downgrade().lose();
    idle.cq.downgrade().lose();
    let (seen, error) = waits.join().unwrap();
    assert_eq!(seen, [1, 1], "what was armed fires");
    assert!(matches!(error, ChannelError::Gone));
    assert!(is_readable(&channel), "whoever polls the descriptor hears of it");
    assert!(matches!(channel.try_event(), Err(ChannelError::Gone)));
    idle.cq.arm(Arm::Next);
    assert_eq!(channel.try_event().unwrap(), Some(2), "no arm is left without its event");
    drop((armed.cq, idle.cq));
    assert!(matches!(channel.try_event(), Err(ChannelError::Gone)));
}

#[test]
fn test_channel_wait_times_out() {
    let channel = CompletionChannel::new().unwrap();
    let start = Instant::now();
    assert_eq!(channel.get_event(Some(Duration::from_millis(20))).unwrap(), None);
    assert!(start.elapsed() >= Duration::from_millis(20));
}
