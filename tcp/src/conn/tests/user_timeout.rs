//! The user timeout option (RFC 5482). The packet scripts of `user-timeout` show it on the wire.

use super::*;
use crate::UserTimeout;

fn adapting() -> ConnConfig {
    let user_timeout = Duration::from_secs(3);
    ConnConfig { user_timeout, user_timeout_option: UserTimeoutOption::Adapt, ..plain() }
}

/// Returns an established bench that has told its timeout.
fn told(cfg: &ConnConfig) -> Bench {
    let mut b = Bench::connecting(cfg);
    assert!(b.tx().unwrap().user_timeout.is_some());
    let syn_ack = b.seg(-1, 0).with(SYN_ACK);
    b.recv(&syn_ack);
    assert_eq!(b.tx().unwrap().user_timeout.map(UserTimeout::time), Some(cfg.user_timeout));
    assert!(b.tx().is_none());
    b.events();
    b
}

fn recv_with(b: &mut Bench, seg: &Segment, seconds: u64) {
    let user_timeout = Some(UserTimeout::of(Duration::from_secs(seconds)));
    let options = RareOptions { user_timeout, ..RareOptions::default() };
    b.c.handle_with_options(b.now, seg, None, &options);
}

fn effective(b: &Bench) -> Duration {
    b.c.user_timeout()
}

#[test]
fn test_option_of_a_segment_counts_at_the_instant_of_another() {
    let mut b = told(&adapting());
    // The first takes the instant of the last sign of life, the second comes with it.
    b.recv(&b.seg(0, 0));
    let seg = b.seg(0, 0);
    recv_with(&mut b, &seg, 200);
    assert_eq!(effective(&b), Duration::from_secs(200));
    // An unacceptable one at the same instant does not count, and is no sign of life.
    let before = b.c.hot.last_rx;
    let seg = b.seg(100_000, 0);
    recv_with(&mut b, &seg, 300);
    assert_eq!(effective(&b), Duration::from_secs(200));
    b.wait(MS);
    let seg = b.seg(100_000, 0);
    recv_with(&mut b, &seg, 300);
    assert_eq!((effective(&b), b.c.hot.last_rx), (Duration::from_secs(200), before));
}

#[test]
fn test_option_of_the_syn_ack_counts() {
    for option in [UserTimeoutOption::Off, UserTimeoutOption::Advertise, UserTimeoutOption::Adapt] {
        let mut b = Bench::connecting(&ConnConfig { user_timeout_option: option, ..adapting() });
        b.tx().unwrap();
        let wrong = b.seg(-1, 7).with(SYN_ACK);
        recv_with(&mut b, &wrong, 500);
        assert_eq!(effective(&b), Duration::from_secs(3));
        let syn_ack = b.seg(-1, 0).with(SYN_ACK);
        recv_with(&mut b, &syn_ack, 150);
        let taken = if option == UserTimeoutOption::Adapt { 150 } else { 3 };
        assert_eq!(effective(&b), Duration::from_secs(taken), "{option:?}");
    }
}

/// A SACK that is due when the option goes is not lost.
#[test]
fn test_blocks_follow_the_option_in_another_ack() {
    let cfg = ConnConfig { sack: true, ..adapting() };
    let mut b = Bench::connecting(&cfg);
    b.tx().unwrap();
    let syn_ack = Segment { sack_permitted: true, ..b.seg(-1, 0).with(SYN_ACK) };
    b.recv(&syn_ack);
    b.data(1000, 500);
    let first = b.tx().unwrap();
    assert_eq!((first.sack, first.user_timeout.is_some()), (0, true));
    let second = b.tx().unwrap();
    assert_eq!((second.sack, second.user_timeout), (1, None));
    assert!(b.tx().is_none());
}

#[test]
fn test_new_timeout_is_told_in_synchronized_states_only() {
    for state in State::ALL {
        let mut b = Bench::in_state_with(&adapting(), state);
        b.c.set_patience(crate::Patience {
            user_timeout: Duration::from_secs(9),
            ..adapting().patience()
        });
        let expected =
            !matches!(state, State::SynSent | State::SynReceived | State::TimeWait | State::Closed);
        let seconds = b.tx().and_then(|tx| tx.user_timeout).map(|t| t.time().as_secs());
        assert_eq!(seconds, expected.then_some(9), "{state:?}");
        assert!(b.tx().is_none());
        // The same timeout, and another limit, are no news.
        b.c.set_patience(crate::Patience {
            user_timeout: Duration::from_secs(9),
            ..plain().patience()
        });
        assert!(b.tx().is_none());
    }
}

#[test]
fn test_adopted_timeout_exceeds_the_retransmission_timeout() {
    let mut b = told(&ConnConfig {
        rto_min: Duration::from_secs(150),
        rto_max: Duration::from_secs(500),
        user_timeout_limit: Duration::from_secs(1000),
        ..adapting()
    });
    let seg = b.seg(0, 0);
    recv_with(&mut b, &seg, 1);
    assert!(effective(&b) > b.c.rto.get(), "{:?}", effective(&b));
}

/// Both ends adapt: the timeout of both is the longer one, whichever end has it.
#[test]
fn test_ends_that_adapt_come_to_the_same_timeout() {
    for (near, far) in [(3, 400), (400, 3), (3, 3), (900, 200)] {
        let limit = Duration::from_secs(600);
        let own = near.max(far).clamp(100, 600);
        let user_timeout = Duration::from_secs(near);
        let cfg = ConnConfig { user_timeout, user_timeout_limit: limit, ..adapting() };
        let mut b = told(&cfg);
        let seg = b.seg(0, 0);
        recv_with(&mut b, &seg, far);
        assert_eq!(effective(&b), Duration::from_secs(own), "{near} {far}");
    }
}
