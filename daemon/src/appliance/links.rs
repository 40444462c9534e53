//! The history of the ports' links.

use std::cell::RefCell;

use heddle_dataplane::Link;

/// The link of a port, and its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History {
    /// The link's present state.
    pub(crate) link: Link,
    /// Number of times that the link came up or went down since the start.
    pub(crate) changes: u64,
    /// Time of the last such change, in nanoseconds since the start; absent when there was none.
    pub(crate) changed_ns: Option<u64>,
}

/// The histories of all ports.
#[derive(Debug, Default)]
pub(crate) struct Links(RefCell<Vec<History>>);

impl Links {
    /// Starts with the present state of the links.
    pub(crate) fn new(links: impl Iterator<Item = Link>) -> Links {
        let history = |link| History { link, changes: 0, changed_ns: None };
        Links(RefCell::new(links.map(history).collect()))
    }

    /// Returns the history of a port by its number.
    pub(crate) fn of(&self, port: usize) -> Option<History> {
        self.0.borrow().get(port).copied()
    }

    /// Records the state of the link of `port`, whose name is `name`. A new speed is logged and
    /// does not count as a change. Returns true if the link has come up.
    pub(super) fn changed(&self, port: usize, link: Link, at_ns: u64, name: &str) -> bool {
        let mut all = self.0.borrow_mut();
        let Some(history) = all.get_mut(port) else { return false };
        let before = std::mem::replace(&mut history.link, link);
        if before.up != link.up {
            history.changes += 1;
            history.changed_ns = Some(at_ns);
        }
        match (link.up, link.mbps) {
            (false, _) if !before.up => {}
            (false, _) => tracing::warn!(port = name, "the link is down"),
            (true, None) => tracing::info!(port = name, "the link is up"),
            (true, Some(mbps)) => tracing::info!(port = name, "the link is up, {mbps} Mb/s"),
        }
        link.up && !before.up
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_link_history_counts_ups_and_downs_but_not_speed_changes() {
        let up = Link { up: true, mbps: Some(1000), full_duplex: true };
        let down = Link { up: false, mbps: None, full_duplex: false };
        let links = Links::new([up, down].into_iter());
        assert_eq!(links.of(0), Some(History { link: up, changes: 0, changed_ns: None }));
        assert!(!links.changed(0, Link { mbps: Some(100), ..up }, 1, "a"));
        assert_eq!(links.of(0).unwrap().changes, 0);
        assert!(!links.changed(0, down, 2, "a"));
        assert!(!links.changed(0, Link { full_duplex: true, ..down }, 3, "a"));
        assert_eq!((links.of(0).unwrap().changes, links.of(0).unwrap().changed_ns), (1, Some(2)));
        assert!(links.changed(0, up, 4, "a"));
        assert!(links.changed(1, up, 5, "b"));
        assert!(!links.changed(7, up, 6, "none of that number"));
        let seen = [0, 1].map(|n| links.of(n).unwrap());
        assert_eq!(seen.map(|h| (h.changes, h.changed_ns)), [(2, Some(4)), (1, Some(5))]);
        assert_eq!(links.of(7), None);
    }
}
