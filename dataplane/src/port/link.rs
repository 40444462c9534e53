//! Changes of a link.

use std::sync::{Mutex, PoisonError};

use super::config::Link;

/// The last known state of a link.
#[derive(Debug)]
pub(super) struct LinkWatch(Mutex<Link>);

impl LinkWatch {
    /// Returns a watch that starts with `known`, the present state.
    pub(super) fn new(known: Link) -> LinkWatch {
        LinkWatch(Mutex::new(known))
    }

    /// Returns the new state of the link if it has changed since the last call.
    pub(super) fn news(&self, link: Link) -> Option<Link> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::replace(&mut *known, link) != link).then_some(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_link_watch_reports_each_change_of_state_or_speed_once() {
        const UP: Link = Link { up: true, mbps: Some(25_000), full_duplex: true };
        const DOWN: Link = Link { up: false, mbps: None, full_duplex: false };
        let w = LinkWatch::new(DOWN);
        assert_eq!(w.news(DOWN), None);
        assert_eq!(w.news(UP), Some(UP));
        assert_eq!(w.news(UP), None);
        let slow = Link { mbps: Some(1000), ..UP };
        assert_eq!(w.news(slow), Some(slow));
    }
}
