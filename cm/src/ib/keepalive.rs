use core::time::Duration;

use heddle_base::Instant;
use heddle_ib::cm::Message;

use super::link::IbLink;
use super::state::Effects;

/// How often a peer is asked at least, however seldom it would send a REQ: one datagram that is lost
/// ends no connection.
const MIN_ATTEMPTS: u8 = 3;

/// Whether the peer of an established connection that it made is there.
///
/// InfiniBand has no message for this question. But who has sent an RTU answers our REP with another,
/// for all it knows its RTU is lost; so the REP is kept, and sent again.
#[derive(Debug)]
pub(crate) struct Keepalive {
    rep: Message,
    /// When it is sent again, or the peer given up; absent when silence is allowed.
    next: Option<Instant>,
    /// How often it was sent since the peer's last word.
    asked: u8,
}

impl Keepalive {
    /// The peer has just said something.
    pub(crate) fn new(rep: Message, idle: Option<Duration>, now: Instant) -> Keepalive {
        Keepalive { rep, next: idle.map(|idle| now + idle), asked: 0 }
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// The peer has said something. Whether that may be the answer to a question of ours.
    pub(crate) fn heard(&mut self, idle: Option<Duration>, now: Instant) -> bool {
        let asked = core::mem::take(&mut self.asked) > 0;
        self.next = idle.map(|idle| now + idle);
        asked
    }

    /// Its time has come: the peer is asked, or has not answered as often as it was (false).
    pub(crate) fn ask(&mut self, link: &IbLink, now: Instant, fx: &mut Effects) -> bool {
        if self.asked > link.retries.max(MIN_ATTEMPTS - 1) {
            return false;
        }
        self.asked += 1;
        self.next = Some(now + link.interval);
        fx.ib.keepalives += 1;
        fx.send(link.tid, self.rep.clone());
        true
    }
}
