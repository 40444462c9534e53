use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use super::*;
use crate::credential::Credential;
use heddle_rpcrdma::binding::Table;

const GET: Procedure = Procedure { program: 0x2000_0001, version: 1, procedure: 1 };

struct World {
    calls: Calls,
    now: Instant,
}

impl World {
    fn new(first: u32) -> World {
        World { calls: Calls::new(8, Xid(first)), now: Instant::now() }
    }

    /// Adds a call with a timeout of `seconds`.
    fn add(&mut self, seconds: u64) -> Xid {
        let xid = self.calls.reserve().unwrap();
        let message = Message::call(xid, GET, &Credential::None, Default::default(), &Table(&[]));
        let outgoing = Outgoing { procedure: GET, message: message.unwrap(), results: Some(0) };
        self.calls.add(xid, outgoing, self.now + Duration::from_secs(seconds));
        xid
    }

    fn send(&mut self) -> Option<Xid> {
        let (xid, _) = self.calls.front()?;
        self.calls.sent_front();
        Some(xid)
    }

    fn queue(&self) -> Vec<Xid> {
        self.calls.queue.iter().copied().collect()
    }
}

#[test]
fn test_calls_of_lost_connection_are_resent_in_order_before_others() {
    // The XIDs wrap around zero.
    let mut w = World::new(u32::MAX - 1);
    let all: Vec<_> = (0..6).map(|_| w.add(10)).collect();
    for want in &all[..4] {
        assert_eq!(w.send(), Some(*want));
    }
    assert!(w.calls.finish(all[1], Ok(Body::new())));
    assert_eq!(w.calls.lost(), 3);
    assert_eq!(w.queue(), [all[0], all[2], all[3], all[4], all[5]]);
    assert_eq!(w.calls.lost(), 0, "none of them is sent");
}

#[test]
fn test_call_finishes_once_and_its_result_is_taken_once() {
    let mut w = World::new(1);
    let xid = w.add(10);
    assert!(w.calls.take(xid).is_none());
    w.send();
    assert!(w.calls.finish(xid, Ok(Body::new())));
    assert!(!w.calls.finish(xid, Err(CallError::TimedOut { sent: true })), "a second reply");
    assert!(matches!(w.calls.take(xid), Some(Ok(_))));
    assert!(w.calls.take(xid).is_none() && w.calls.len() == 0);
    assert!(!w.calls.finish(xid, Ok(Body::new())), "a third");
}

#[test]
fn test_each_call_expires_at_its_own_time_and_says_if_it_was_sent() {
    let mut w = World::new(1);
    let (sent, queued, other) = (w.add(2), w.add(1), w.add(3));
    assert_eq!(w.send(), Some(sent));
    assert_eq!(w.calls.deadline(), Some(w.now + Duration::from_secs(1)));
    let now = w.now + Duration::from_secs(2);
    assert_eq!(w.calls.expire(w.now), None);
    assert_eq!(w.calls.expire(now), Some((queued, false)));
    assert_eq!(w.calls.expire(now), Some((sent, true)));
    assert_eq!(w.calls.expire(now), None);
    let outcome = |w: &mut World, xid| w.calls.take(xid).unwrap().unwrap_err();
    assert_eq!(outcome(&mut w, queued), CallError::TimedOut { sent: false });
    assert_eq!(outcome(&mut w, sent), CallError::TimedOut { sent: true });
    assert_eq!(w.queue(), [other]);
}

#[test]
fn test_cancelled_call_is_removed_and_reported_only_if_it_was_sent() {
    let mut w = World::new(1);
    let (sent, queued, finished) = (w.add(5), w.add(5), w.add(5));
    assert_eq!(w.send(), Some(sent));
    w.calls.finish(finished, Ok(Body::new()));
    assert!(w.calls.cancel(sent));
    assert!(!w.calls.cancel(queued) && !w.calls.cancel(finished) && !w.calls.cancel(queued));
    assert_eq!((w.calls.len(), w.queue(), w.calls.deadline()), (0, vec![], None));
}

#[test]
fn test_call_table_limits_calls_and_never_repeats_a_live_xid() {
    let mut w = World::new(7);
    let first = w.add(5);
    for _ in 0..7 {
        w.add(5);
    }
    assert_eq!(w.calls.reserve(), Err(CallError::TooMany { max: 8 }));
    w.calls.cancel(Xid(9));
    // The state after 2^32 calls.
    w.calls.next = first.0;
    assert_eq!(w.calls.reserve(), Ok(Xid(9)));
}

#[test]
fn test_waker_of_a_call_is_woken_once() {
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut w = World::new(1);
    let xid = w.add(5);
    let count = Arc::new(Count::default());
    for _ in 0..2 {
        w.calls.wake_by(xid, &count.clone().into());
    }
    w.calls.finish_all(&CallError::Closed);
    w.calls.finish_all(&CallError::Closed);
    assert_eq!(count.0.load(Ordering::Relaxed), 0, "not by whoever ends it, under a lock");
    w.calls.woken().into_iter().for_each(std::task::Waker::wake);
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(w.calls.woken().is_empty());
    assert_eq!(w.calls.take(xid).unwrap().unwrap_err(), CallError::Closed);
}
