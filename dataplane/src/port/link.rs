//! The link: its state, and the news of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::config::Link;

/// Counts what a device says of its link by interrupts; DPDK's own thread adds to it.
#[derive(Debug, Default)]
pub(super) struct LinkEvents(AtomicU32);

impl LinkEvents {
    /// Where the shim counts.
    pub(super) fn as_ptr(&self) -> *mut u32 {
        self.0.as_ptr()
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// What was last known of a link.
#[derive(Debug)]
pub(super) struct LinkWatch(Mutex<Known>);

#[derive(Debug)]
struct Known {
    link: Link,
    seen: u32,
}

impl LinkWatch {
    /// `known` is what it is now; no event before counts.
    pub(super) fn new(known: Link, events: Option<&LinkEvents>) -> LinkWatch {
        LinkWatch(Mutex::new(Known { link: known, seen: events.map_or(0, LinkEvents::count) }))
    }

    /// What the link has become since the last call, if it has changed. With `events` it is asked for
    /// only when there was one; without, each time.
    pub(super) fn news(
        &self,
        events: Option<&LinkEvents>,
        read: impl FnOnce() -> Link,
    ) -> Option<Link> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = events {
            // Before it is read: an event that comes meanwhile is for the next call.
            let count = events.count();
            if count == known.seen {
                return None;
            }
            known.seen = count;
        }
        let link = read();
        (std::mem::replace(&mut known.link, link) != link).then_some(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Link = Link { up: true, mbps: Some(25_000), full_duplex: true };
    const DOWN: Link = Link { up: false, mbps: None, full_duplex: false };

    #[test]
    fn test_without_events_each_call_reads() {
        let w = LinkWatch::new(DOWN, None);
        assert_eq!(w.news(None, || DOWN), None);
        assert_eq!(w.news(None, || UP), Some(UP));
        assert_eq!(w.news(None, || UP), None);
        let slow = Link { mbps: Some(1000), ..UP };
        assert_eq!(w.news(None, || slow), Some(slow), "speed is news too");
    }

    #[test]
    fn test_who_asks_without_looking_for_events_hears_what_none_told() {
        let events = LinkEvents::default();
        let w = LinkWatch::new(UP, Some(&events));
        assert_eq!(w.news(None, || DOWN), Some(DOWN));
        // The event that comes for it afterwards says nothing new.
        events.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!(w.news(Some(&events), || DOWN), None);
    }

    #[test]
    fn test_with_events_only_they_make_it_read() {
        let events = LinkEvents::default();
        events.0.store(7, Ordering::Relaxed);
        let w = LinkWatch::new(UP, Some(&events));
        assert_eq!(w.news(Some(&events), || panic!("nothing has happened")), None);
        events.0.fetch_add(2, Ordering::Relaxed);
        assert_eq!(w.news(Some(&events), || DOWN), Some(DOWN), "two events, one state");
        assert_eq!(w.news(Some(&events), || panic!("nothing has happened")), None);
        events.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!(w.news(Some(&events), || DOWN), None, "up and down again");
    }
}
