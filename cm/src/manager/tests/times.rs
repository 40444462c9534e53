//! The start-up times that the manager records.

use heddle_base::Histogram;

use heddle_iwarp::mpa::frame::Enhanced;
use heddle_types::mpa::{Depth, RtrSet};

use super::*;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns a histogram of one start-up of that length.
fn one(time: Duration) -> Histogram {
    let mut h = Histogram::ZERO;
    h.record_time(time);
    h
}

#[test]
fn test_passive_startup_time_runs_from_tcp_handshake_to_fpdu_mode() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let conn = b.accepted(peer(1));
    b.pass(ms(3));
    b.event(RnicEvent::StartupBytes { conn, bytes: request() });
    let [(APP, Event::ConnectRequest { id, .. })] = b.events()[..] else { panic!("no request") };
    b.pass(ms(20));
    b.accept(id, 7).unwrap();
    b.pass(ms(1));
    assert_eq!(*b.cm.startup_times(), StartupTimes::default());
    b.report(Report::Entered { conn, result: Ok(()) });
    assert_eq!(b.cm.startup_times().passive, one(ms(24)));
    assert_eq!(b.cm.startup_times().active, Histogram::ZERO);
    // The end of a connection is no start-up.
    b.pass(ms(5));
    b.closed(conn);
    assert_eq!(b.cm.startup_times().passive, one(ms(24)));
}

#[test]
fn test_active_startup_time_runs_from_connect_request_to_fpdu_mode() {
    let mut b = Bench::new(config(1));
    b.connect(1, 7).unwrap();
    b.pass(ms(2));
    let conn = b.names.next().unwrap();
    b.report(Report::Connecting { token: 1, result: Ok(conn) });
    b.pass(ms(2));
    b.event(RnicEvent::Connected { conn, local: local() });
    let reply = Frame {
        kind: Kind::Reply,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::V2,
        enhanced: Some(Enhanced {
            ird: Depth::UNNEGOTIATED,
            ord: Depth::UNNEGOTIATED,
            peer_to_peer: false,
            rtr: RtrSet::NONE,
        }),
        private_data: b"",
    };
    b.event(RnicEvent::StartupBytes { conn, bytes: reply.emit().unwrap() });
    b.pass(ms(2));
    b.report(Report::Entered { conn, result: Ok(()) });
    let events = b.events();
    assert_eq!(b.cm.counters().established, 1, "{events:?}");
    assert_eq!(b.cm.startup_times().active, one(ms(6)));
    assert_eq!(b.cm.startup_times().passive, Histogram::ZERO);
}

#[test]
fn test_failed_startups_are_not_timed() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let conn = b.accepted(peer(1));
    b.pass(ms(3));
    b.closed(conn);
    b.connect(1, 7).unwrap();
    b.report(Report::Connecting { token: 1, result: Err(heddle_types::ConnectError::NoRoute) });
    assert_eq!(b.cm.counters().failed, 2);
    assert_eq!(*b.cm.startup_times(), StartupTimes::default());
}
