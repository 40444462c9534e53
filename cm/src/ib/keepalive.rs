use core::time::Duration;

use heddle_base::Instant;
use heddle_ib::cm::Message;

use super::link::IbLink;
use super::state::Effects;

/// Least number of probes, even if the connection has fewer retransmissions, so that one lost
/// datagram ends no connection.
const MIN_ATTEMPTS: u8 = 3;

/// Probes whether the peer of an established connection that it made still exists.
///
/// InfiniBand has no message for this question. But a peer that has sent an RTU answers our REP
/// with another RTU, because its own may have been lost. So the manager keeps the REP, and sends it
/// again as a probe.
#[derive(Debug)]
pub(crate) struct Keepalive {
    rep: Message,
    /// The time of the next probe, or of giving the peer up; absent when silence is allowed.
    next: Option<Instant>,
    /// Number of probes since the peer's last message.
    asked: u8,
}

impl Keepalive {
    /// Starts the watch: the peer has just sent a message.
    pub(crate) fn new(rep: Message, idle: Option<Duration>, now: Instant) -> Keepalive {
        Keepalive { rep, next: idle.map(|idle| now + idle), asked: 0 }
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Notes a message of the peer. Returns true if the message may be the answer to a probe.
    pub(crate) fn heard(&mut self, idle: Option<Duration>, now: Instant) -> bool {
        let asked = core::mem::take(&mut self.asked) > 0;
        self.next = idle.map(|idle| now + idle);
        asked
    }

    /// Sends a probe at the deadline and returns true, or returns false if the peer has not
    /// answered the last probe allowed.
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
