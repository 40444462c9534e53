//! Flow control from the viewpoint of an observer.

use super::{ADVERTISED_MAX, Violation, ahead};

/// The knowledge that a reader of a capture has about the messages of one end, wherever between the
/// two ends the capture was made.
///
/// The observer may see an announcement before it reaches the end, so the observer may miss an end
/// that sends too much, but never blames an end that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    sent: u32,
    /// The largest announcement to the end; an announcement is not taken back.
    told: u32,
}

impl Watch {
    /// Starts to observe a new connection.
    pub const fn new() -> Watch {
        Watch { sent: 0, told: 1 }
    }

    /// Counts a message that the end sends, understood or not, GRANT or not. The first
    /// message beyond the announcement may be a GRANT, and may be another by the draft's comparison
    /// (section 4.2.1).
    ///
    /// # Errors
    /// [`Violation::Overrun`].
    pub const fn message(&mut self) -> Result<(), Violation> {
        self.sent = self.sent.wrapping_add(1);
        if ahead(self.sent, self.told) > 1 { Err(Violation::Overrun) } else { Ok(()) }
    }

    /// Records the announcement `field`, the credit field of a message from the end's peer.
    ///
    /// # Errors
    /// [`Violation::Announcement`]; the previous announcement then still holds.
    pub const fn told(&mut self, field: u32) -> Result<(), Violation> {
        if ahead(field, self.sent) > ADVERTISED_MAX.cast_signed() {
            return Err(Violation::Announcement);
        }
        if ahead(field, self.told) > 0 {
            self.told = field;
        }
        Ok(())
    }
}

impl Default for Watch {
    fn default() -> Watch {
        Watch::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Credits, Kind};
    use super::*;

    #[test]
    fn test_new_connection_accepts_two_messages_and_not_three() {
        let mut w = Watch::new();
        assert_eq!((w.message(), w.message()), (Ok(()), Ok(())));
        assert_eq!(w.message(), Err(Violation::Overrun));
    }

    #[test]
    fn test_watch_never_lowers_announced_credits() {
        let mut w = Watch::new();
        assert_eq!((w.told(3), w.told(2)), (Ok(()), Ok(())));
        assert!((0..4).all(|_| w.message().is_ok()));
        assert_eq!(w.message(), Err(Violation::Overrun));
    }

    #[test]
    fn test_watch_refuses_announcement_above_the_maximum() {
        let mut w = Watch::new();
        assert_eq!(w.told(ADVERTISED_MAX + 1), Err(Violation::Announcement));
        assert_eq!((w.message(), w.message()), (Ok(()), Ok(())));
        assert_eq!(w.message(), Err(Violation::Overrun));
        assert_eq!(Watch::new().told(ADVERTISED_MAX), Ok(()));
    }

    /// The observer never blames two ends that obey the rules.
    #[test]
    fn test_peers_that_keep_the_credit_rules_are_never_blamed() {
        let (mut a, mut b) = (Credits::new(4), Credits::new(2));
        let (mut of_a, mut of_b) = (Watch::new(), Watch::new());
        for turn in 0..1000 {
            let (from, to, watch, other) = match turn % 3 {
                0 | 1 => (&mut a, &mut b, &mut of_a, &mut of_b),
                _ => (&mut b, &mut a, &mut of_b, &mut of_a),
            };
            let kind = if from.may_send(Kind::Message) { Kind::Message } else { Kind::Grant };
            let Ok(field) = from.send(kind) else { continue };
            assert_eq!((watch.message(), other.told(field)), (Ok(()), Ok(())), "turn {turn}");
            assert_eq!(to.receive(kind, field), Ok(()), "turn {turn}");
        }
        assert!(of_a.sent > 100 && of_b.sent > 100, "{of_a:?} {of_b:?}");
    }
}
