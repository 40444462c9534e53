//! Flow control of version 2 (draft section 4.2.1).
//!
//! Each end counts the Sends that it has made and received, modulo 2^32. The credit field of a
//! message states the number of messages that its receiver may have sent in total:
//!
//! ```text
//!   received             announced        next announcement
//!       │◀── peer's credit ──▶│                 │
//!       │◀───────────── advertised ────────────▶│
//!   ────┼─────────────────────┼─────────────────┼───▶ messages of the peer
//! ```
//!
//! An end may send a payload while it has sent fewer messages than that. One message more may be a
//! GRANT: each end has a Receive for it, so that two ends without credit can help each other. A
//! GRANT counts like any message.
//!
//! An end does not take back what it announced, as a TCP does not shrink its window: the peer may
//! have used the credit before it learns of the change. An end that advertises less announces
//! nothing more until the peer has used enough. A peer may take credits back nevertheless; this end
//! obeys, except that a GRANT may use credit that the peer had announced.
//!
//! A GRANT is due (section 4.2.1.1) as soon as messages have used half of the advertised credits
//! and no other message of this end announces more. A GRANT is also due when the peer has no credit
//! left, even if only GRANTs of the peer used that credit. With the first rule alone, two ends
//! could exhaust each other by GRANTs. So that the second rule does not let the ends exchange
//! GRANTs for ever, an end never advertises a single credit: see `docs/rpcrdma-v2-notes.md`.

mod watch;

pub use watch::Watch;

/// The kind of a message for flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any message except a GRANT.
    Message,
    /// RDMA2_GRANT.
    Grant,
}

/// The largest number of credits that an end can advertise: less than 2^31 - 1, so that counts can
/// be compared.
pub const ADVERTISED_MAX: u32 = (1 << 31) - 2;

/// The smallest number of credits that an end can advertise, except zero.
pub const ADVERTISED_MIN: u32 = 2;

/// The error that the peer has not announced credit for this message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no credit")]
pub struct NoCredit;

/// A violation of flow control by the peer, after which the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The peer sent more messages than this end announced.
    #[error("message beyond what was announced")]
    Overrun,
    /// The peer announced 2^31 - 1 messages or more.
    #[error("more credits than can be told")]
    Announcement,
}

/// The counts of one end of a connection. The difference `a - b` of two counts is within ±2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    sent: u32,
    received: u32,
    /// The peer's last announcement: the number of messages that this end may send in total.
    limit: u32,
    /// The peer's largest announcement.
    highest: u32,
    /// This end's last announcement to the peer.
    announced: u32,
    advertised: u32,
    /// True if a message other than a GRANT has come since the last announcement.
    fresh: bool,
}

/// Returns by how much `a` is ahead of `b`.
const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b).cast_signed()
}

impl Credits {
    /// Creates the counts of a new connection: each end may send one message until it receives an
    /// announcement. `advertised` is as in [`advertise`](Credits::advertise).
    pub const fn new(advertised: u32) -> Credits {
        let advertised = Credits::bounded(advertised);
        let (sent, received) = (0, 0);
        Credits { sent, received, limit: 1, highest: 1, announced: 1, advertised, fresh: false }
    }

    const fn bounded(advertised: u32) -> u32 {
        match advertised {
            0 => 0,
            n if n < ADVERTISED_MIN => ADVERTISED_MIN,
            n if n > ADVERTISED_MAX => ADVERTISED_MAX,
            n => n,
        }
    }

    /// Announces, from the next message on, that this end can receive `advertised` more messages:
    /// 0, or [`ADVERTISED_MIN`] to [`ADVERTISED_MAX`]; other numbers are clamped to that range. An
    /// end that advertises nothing must advertise something later, or the peer waits for ever.
    pub const fn advertise(&mut self, advertised: u32) {
        self.advertised = Credits::bounded(advertised);
    }

    /// Returns the credit field of the next message.
    pub const fn field(&self) -> u32 {
        let next = self.received.wrapping_add(self.advertised);
        if ahead(next, self.announced) > 0 { next } else { self.announced }
    }

    /// Returns the number of Receives that must be posted before the next message is sent: one for
    /// each message announced to the peer by then, and one for a GRANT.
    pub const fn receives(&self) -> u32 {
        self.field().wrapping_sub(self.received).wrapping_add(1)
    }

    /// Returns the number of messages other than GRANTs that this end may send now.
    pub const fn available(&self) -> u32 {
        let left = ahead(self.limit, self.sent);
        if left > 0 { left.cast_unsigned() } else { 0 }
    }

    /// Returns true if this end may send a message of this kind now.
    pub const fn may_send(&self, kind: Kind) -> bool {
        match kind {
            Kind::Message => ahead(self.limit, self.sent) > 0,
            // `>=` allows one message beyond the announcement, which is kept for a GRANT.
            Kind::Grant => ahead(self.highest, self.sent) >= 0,
        }
    }

    /// Counts a message that this end sends. Returns its credit field.
    ///
    /// # Errors
    /// Returns an error when the message may not be sent now.
    pub const fn send(&mut self, kind: Kind) -> Result<u32, NoCredit> {
        if !self.may_send(kind) {
            return Err(NoCredit);
        }
        self.sent = self.sent.wrapping_add(1);
        let field = self.field();
        self.announced = field;
        self.fresh = false;
        Ok(field)
    }

    /// Counts a received message, understood or not, with `field` as its credit field.
    ///
    /// Accepts one message other than a GRANT beyond the announcement: the draft's comparison
    /// allows that, and this end has a Receive for it.
    ///
    /// # Errors
    /// Returns an error when the peer may not have sent the message, or not with this field.
    pub const fn receive(&mut self, kind: Kind, field: u32) -> Result<(), Violation> {
        self.received = self.received.wrapping_add(1);
        if ahead(self.received, self.announced) > 1 {
            return Err(Violation::Overrun);
        }
        // The peer may not have received all messages sent so far, so it advertises at least this
        // difference.
        if ahead(field, self.sent) > ADVERTISED_MAX.cast_signed() {
            return Err(Violation::Announcement);
        }
        self.limit = field;
        if ahead(field, self.highest) > 0 {
            self.highest = field;
        }
        if matches!(kind, Kind::Message) {
            self.fresh = true;
        }
        Ok(())
    }

    /// Counts a received message whose credit field could not be read.
    ///
    /// # Errors
    /// Returns an error when the peer may not have sent the message.
    pub const fn receive_unread(&mut self) -> Result<(), Violation> {
        self.receive(Kind::Message, self.limit)
    }

    /// Returns true if this end should send a GRANT now, unless it is about to send another
    /// message. Flow control then allows a GRANT.
    pub const fn grant_due(&self) -> bool {
        if ahead(self.field(), self.announced) <= 0 || !self.may_send(Kind::Grant) {
            return false;
        }
        let left = ahead(self.announced, self.received);
        left <= 0 || (self.fresh && left.cast_unsigned() <= self.advertised / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn exchange(a: &mut Credits, b: &mut Credits) {
        let field = a.send(Kind::Message).unwrap();
        b.receive(Kind::Message, field).unwrap();
    }

    #[test]
    fn test_sender_sends_a_single_message_until_credits_of_peer_are_known() {
        let (mut a, mut b) = (Credits::new(8), Credits::new(16));
        assert_eq!((a.available(), a.receives()), (1, 9));
        let field = a.send(Kind::Message).unwrap();
        assert_eq!((field, a.send(Kind::Message)), (8, Err(NoCredit)));
        b.receive(Kind::Message, field).unwrap();
        assert_eq!(b.available(), 8);
        exchange(&mut b, &mut a);
        assert_eq!(a.available(), 16, "what was sent is not counted twice");
        assert_eq!(b.available(), 7);
    }

    #[test]
    fn test_grant_is_due_when_half_is_used_and_nothing_else_announces() {
        let (mut a, mut b) = (Credits::new(8), Credits::new(4));
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        assert_eq!(a.available(), 4);
        exchange(&mut a, &mut b);
        assert!(!b.grant_due(), "three of four left");
        exchange(&mut a, &mut b);
        assert!(b.grant_due(), "two of four");
        let grant = b.send(Kind::Grant).unwrap();
        assert!(!b.grant_due());
        a.receive(Kind::Grant, grant).unwrap();
        assert_eq!(a.available(), 4);
        assert!(!a.grant_due(), "a GRANT alone asks for none");
    }

    #[test]
    fn test_single_grant_may_be_sent_without_credit() {
        let mut a = Credits::new(4);
        a.send(Kind::Message).unwrap();
        assert!(!a.may_send(Kind::Message) && a.may_send(Kind::Grant));
        a.send(Kind::Grant).unwrap();
        assert_eq!(a.send(Kind::Grant), Err(NoCredit));
    }

    #[test]
    fn test_receiver_may_grant_no_credits_and_then_some() {
        let (mut a, mut b) = (Credits::new(4), Credits::new(0));
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        assert_eq!((a.available(), b.grant_due(), b.receives()), (0, false, 1));
        b.advertise(4);
        assert!(b.grant_due());
        let grant = b.send(Kind::Grant).unwrap();
        a.receive(Kind::Grant, grant).unwrap();
        assert_eq!(a.available(), 4);
    }

    #[test]
    fn test_receiver_never_takes_back_announced_credits() {
        let (mut a, mut b) = (Credits::new(8), Credits::new(8));
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        b.advertise(2);
        exchange(&mut b, &mut a);
        assert_eq!((a.available(), b.receives()), (8, 9));
        for left in (1..8).rev() {
            exchange(&mut a, &mut b);
            assert_eq!((a.available(), b.grant_due()), (left, left == 1));
        }
        let grant = b.send(Kind::Grant).unwrap();
        a.receive(Kind::Grant, grant).unwrap();
        assert_eq!((a.available(), b.receives()), (2, 3));
    }

    /// However many credits a peer takes back, as the draft allows, a GRANT still finds a Receive.
    #[test]
    fn test_sender_obeys_withdrawn_credits_except_for_a_grant() {
        let mut a = Credits::new(4);
        a.receive(Kind::Message, 8).unwrap();
        (0..4).for_each(|_| assert!(a.send(Kind::Message).is_ok()));
        a.receive(Kind::Message, 2).unwrap();
        assert!(!a.may_send(Kind::Message) && a.may_send(Kind::Grant));
        a.receive(Kind::Message, 5).unwrap();
        assert_eq!(a.available(), 1);
    }

    #[test]
    fn test_message_beyond_the_reserved_receive_is_an_overrun() {
        let mut b = Credits::new(4);
        assert_eq!(b.receive(Kind::Message, 4), Ok(()));
        assert_eq!(b.receive(Kind::Message, 4), Ok(()), "as the draft compares");
        assert_eq!(b.receive_unread(), Err(Violation::Overrun));
    }

    #[test]
    fn test_announcement_beyond_comparable_range_is_refused() {
        let most = ADVERTISED_MAX;
        let mut a = Credits::new(4);
        assert_eq!(a.receive(Kind::Message, most), Ok(()));
        assert_eq!(a.available(), most);
        let mut a = Credits::new(4);
        assert_eq!(a.receive(Kind::Message, most + 1), Err(Violation::Announcement));
        // Every connection begins with an announcement of one.
        for (n, is) in [(0, 1), (1, 2), (2, 2), (most, most), (u32::MAX, most)] {
            assert_eq!(Credits::new(n).field(), is);
        }
    }

    #[derive(Debug, Default)]
    struct Wire(VecDeque<(Kind, u32)>);

    /// An end with the payloads that it wants to send, and the messages on their way to it.
    struct End {
        credits: Credits,
        /// Payloads that wait for credit.
        queue: u32,
        inbound: Wire,
        /// Receives that are posted.
        posted: u32,
        got: u32,
    }

    impl End {
        fn new(advertised: u32, base: u32) -> End {
            let mut credits = Credits::new(advertised);
            for count in [
                &mut credits.sent,
                &mut credits.received,
                &mut credits.limit,
                &mut credits.highest,
                &mut credits.announced,
            ] {
                *count = count.wrapping_add(base);
            }
            End { credits, queue: 0, inbound: Wire::default(), posted: 2, got: 0 }
        }

        /// Sends the next message that flow control allows: payloads first.
        fn send(&mut self, peer: &mut End) -> bool {
            let kind = if self.queue > 0 && self.credits.may_send(Kind::Message) {
                self.queue -= 1;
                Kind::Message
            } else if self.credits.grant_due() {
                Kind::Grant
            } else {
                return false;
            };
            self.posted = self.posted.max(self.credits.receives());
            let field = self.credits.send(kind).unwrap();
            peer.inbound.0.push_back((kind, field));
            true
        }

        fn receive(&mut self) -> bool {
            let Some((kind, field)) = self.inbound.0.pop_front() else { return false };
            assert!(self.posted > 0, "no Receive is posted");
            self.posted -= 1;
            assert_eq!(self.credits.receive(kind, field), Ok(()));
            self.got += u32::from(kind == Kind::Message);
            true
        }
    }

    proptest! {
        /// Two ends send any number of messages, and change their advertisements, over any delays.
        /// Each message finds a Receive, in the end all have come, and then both ends fall silent.
        /// Counts wrap.
        #[test]
        fn prop_two_ends_always_get_on_and_fall_silent(
            advertised in (2u32..7, 2u32..7),
            base in prop_oneof![Just(0u32), Just(u32::MAX - 3), Just(i32::MAX as u32 - 3)],
            steps in prop::collection::vec((any::<bool>(), 0u8..8, 0u32..6), 0..400),
        ) {
            let (mut a, mut b) = (End::new(advertised.0, base), End::new(advertised.1, base));
            let mut queued = (0, 0);
            for (first, step, n) in steps {
                let (x, y) = if first { (&mut a, &mut b) } else { (&mut b, &mut a) };
                match step {
                    0 | 1 => {
                        x.queue += n;
                        if first { queued.0 += n } else { queued.1 += n }
                    }
                    2..=4 => drop(x.send(y)),
                    5 | 6 => drop(x.receive()),
                    _ => x.credits.advertise(n),
                }
            }
            a.credits.advertise(advertised.0);
            b.credits.advertise(advertised.1);
            let mut rounds = 0;
            loop {
                let moved = [a.send(&mut b), b.send(&mut a), a.receive(), b.receive()];
                if moved == [false; 4] {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds < 20_000, "they never fall silent");
            }
            prop_assert_eq!((a.queue, b.queue), (0, 0), "what wants to be sent is");
            prop_assert_eq!((b.got, a.got), queued);
            prop_assert!(a.credits.available() > 0 && b.credits.available() > 0, "none is lost");
        }
    }
}
