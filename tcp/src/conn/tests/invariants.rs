//! Checks of a connection against the list of [`rack`](super::super::rack).

use super::*;
use crate::conn::rack::Phase;
use crate::conn::{NEVER, Pending};

impl Connection {
    /// Panics where the connection and its scoreboard contradict each other. The caller calls this
    /// function between other calls, when the connection has nothing more to send.
    pub(super) fn check_invariants(&self, end: StreamPos) {
        let (hot, cold) = (&self.hot, &self.cold);
        let (una, next, max) = (hot.snd_una, hot.snd_next, hot.snd_max);
        assert!(una <= next && next <= max, "{una:?} {next:?} {max:?}");
        if hot.sack_ok {
            cold.board.check(una, next);
            let outstanding = i64::try_from(next - una).unwrap();
            let pipe = i64::try_from(cold.board.pipe(una, next)).unwrap();
            assert_eq!(hot.out_of_pipe, outstanding - pipe, "out of pipe: {self:?}");
            let plain = cold.rack.phase == Phase::Open
                && cold.rack.tail.is_none()
                && cold.board.is_plain()
                && !cold.board.has_lost(una);
            assert!(plain || hot.disorder, "disorder: {self:?}");
            assert!(cold.board.is_plain() || next == max, "rewound: {self:?}");
        }
        let waits = una < max || (una < end.min(hot.snd_fin) && hot.state.sends());
        if waits && hot.state.sends() {
            let timed =
                hot.rtx_at != NEVER || hot.pace_at != NEVER || hot.pending.any(Pending::DATA);
            assert!(timed, "silence: {self:?}");
        }
    }
}

/// The stack looks a connection up for every segment, and there are many connections.
#[test]
fn test_connection_takes_at_most_three_quarters_of_a_kibibyte() {
    let size = size_of::<Connection>();
    println!("Connection: {size} bytes");
    assert!(size <= 752, "{size}");
}
