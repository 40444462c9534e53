//! The log events of the pure crates: a connection's life leaves some in each of them, and costs
//! none where the level is off.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heddle_types::{AcceptTerms, CmId, ConnectTerms, Event, ListenParams, Request};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

use crate::support::net::{Net, US};
use crate::support::qp;

/// Counts events by crate, up to a level.
#[derive(Clone)]
struct Counter {
    level: Level,
    seen: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Subscriber for Counter {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() <= self.level
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let room = event.metadata().target().split("::").next().unwrap_or_default();
        *self.seen.lock().unwrap().entry(room.to_owned()).or_default() += 1;
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Connects host 0 to host 1, and ends the connection in order.
fn connect_and_end(net: &mut Net) {
    net.listen(1, ListenParams::default());
    let (id, params) = (CmId(1), ConnectTerms::new(qp(1)));
    net.ask(0, Request::Connect { id, remote: US.into(), params });
    let Event::ConnectRequest { id: there, .. } = net.event() else { panic!("no request") };
    net.ask(1, Request::Accept { id: there, params: AcceptTerms::new(qp(2)) });
    assert!(matches!(net.event(), Event::Established { .. }));
    // The FIN is lost at first, so that a timer expires.
    net.loss = 1.0;
    net.ask(1, Request::Disconnect { id: there });
    net.pass(Duration::from_secs(2));
    net.loss = 0.0;
    assert!(matches!(net.event(), Event::Disconnected { .. }));
    net.pass(Duration::from_secs(1));
}

/// Returns the number of log events of each crate while a connection opens and ends.
fn logged(level: Level) -> BTreeMap<String, usize> {
    let counter = Counter { level, seen: Arc::default() };
    let seen = counter.seen.clone();
    tracing::subscriber::with_default(counter, || {
        let mut net = Net::new(1, true, 0.0);
        connect_and_end(&mut net);
    });
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[test]
fn test_life_of_a_connection_is_in_the_log_of_each_room() {
    let seen = logged(Level::TRACE);
    let rooms: Vec<_> = seen.keys().map(String::as_str).collect();
    assert_eq!(rooms, ["heddle_cm", "heddle_iwarp", "heddle_rnic", "heddle_tcp"], "{seen:?}");
    // No log line for each frame: these are the steps of two ends.
    assert!(seen.values().sum::<usize>() < 80, "{seen:?}");
}

#[test]
fn test_connection_in_order_logs_nothing_at_info() {
    assert_eq!(logged(Level::INFO), BTreeMap::new());
}
