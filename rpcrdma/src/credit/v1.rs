//! Flow control of version 1 (RFC 8166 section 3.3.1, RFC 8167 section 4).
//!
//! A credit is one call that has not had its reply. A connection has an account for each direction
//! of calls; reverse-direction calls use their own. A message of unknown direction changes neither
//! account (RFC 8167 section 4.1).

/// The error that a requester may not make this call now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{outstanding} calls outstanding, {limit} allowed")]
pub struct NoCredit {
    /// Calls without a reply.
    pub outstanding: u32,
    /// Largest number of outstanding calls allowed.
    pub limit: u32,
}

/// A violation of flow control by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The peer granted zero credits, which no later message could change.
    #[error("zero credits granted")]
    ZeroGrant,
    /// The peer replied although no call is outstanding.
    #[error("reply without call")]
    NoCall,
    /// The peer made more calls than it was granted.
    #[error("call beyond {granted} credits")]
    Overrun {
        /// Number of calls that were granted.
        granted: u32,
    },
}

/// The account of the end that makes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    requested: u32,
    granted: u32,
    outstanding: u32,
}

impl Requester {
    /// Creates the account of a new connection for a requester that wants up to `requested` calls
    /// at a time (at least one). Until the first reply the requester may make one call (section
    /// 3.3.3).
    pub const fn new(requested: u32) -> Requester {
        let requested = if requested == 0 { 1 } else { requested };
        Requester { requested, granted: 1, outstanding: 0 }
    }

    /// Returns the credit field of a call's header.
    pub const fn requested(&self) -> u32 {
        self.requested
    }

    /// Changes the wanted number of calls at a time (at least one). Calls under way go on.
    pub const fn request(&mut self, requested: u32) {
        self.requested = if requested == 0 { 1 } else { requested };
    }

    /// Returns the number of calls that may be outstanding.
    pub const fn limit(&self) -> u32 {
        if self.requested < self.granted { self.requested } else { self.granted }
    }

    /// Returns the number of calls without a reply. As many Receives for replies must be posted.
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Returns the number of calls that the requester may make now.
    pub const fn available(&self) -> u32 {
        self.limit().saturating_sub(self.outstanding)
    }

    /// Makes a call, for whose reply the caller has posted a Receive.
    ///
    /// # Errors
    /// Returns an error when there is no credit for the call.
    pub const fn call(&mut self) -> Result<(), NoCredit> {
        if self.available() == 0 {
            return Err(NoCredit { outstanding: self.outstanding, limit: self.limit() });
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Counts a reply, or an error that ends its call, with `grant` in its header. The call is over
    /// in either case.
    ///
    /// # Errors
    /// Returns an error for a grant of zero, after which the previous grant still holds, and for a
    /// reply without a call. In either case the peer is unusable and the connection must be closed.
    pub const fn reply(&mut self, grant: u32) -> Result<(), Violation> {
        if self.outstanding == 0 {
            return Err(Violation::NoCall);
        }
        self.outstanding -= 1;
        if grant == 0 {
            return Err(Violation::ZeroGrant);
        }
        self.granted = grant;
        Ok(())
    }
}

/// The account of the end that serves calls.
///
/// Counts that only rise bound the calls that a requester may have sent: a requester that has
/// received `r` replies, the last of which granted `g`, may have made `r + g` calls in total. A
/// later, smaller grant does not take back calls made before. So the bound is the largest `r + g`
/// so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Responder {
    grant: u32,
    calls: u64,
    replies: u64,
    /// Number of calls that the requester may have made in total.
    bound: u64,
}

impl Responder {
    /// Creates the account of a new connection for a responder that serves up to `grant` calls at a
    /// time (at least one).
    pub const fn new(grant: u32) -> Responder {
        let grant = if grant == 0 { 1 } else { grant };
        Responder { grant, calls: 0, replies: 0, bound: 1 }
    }

    /// Changes the grant from the next reply on (at least one).
    pub const fn set_grant(&mut self, grant: u32) {
        self.grant = if grant == 0 { 1 } else { grant };
    }

    /// Returns the number of received calls without a reply.
    pub const fn outstanding(&self) -> u64 {
        self.calls - self.replies
    }

    /// Returns the number of Receives that must be posted: one for each call that may still come.
    pub const fn receives(&self) -> u64 {
        self.bound - self.calls
    }

    /// Returns the number of Receives that must be posted before the next reply is sent (section
    /// 3.3.1), since that reply may grant more.
    pub const fn receives_for_reply(&self) -> u64 {
        let bound = self.replies + 1 + self.grant as u64;
        if bound > self.bound { bound - self.calls } else { self.receives() }
    }

    /// Counts a received call, understood or not.
    ///
    /// # Errors
    /// Returns an error when the call exceeds the grant. The requester violates flow control, and
    /// the connection must be closed.
    pub const fn call(&mut self) -> Result<(), Violation> {
        if self.calls >= self.bound {
            return Err(Violation::Overrun { granted: self.grant });
        }
        self.calls += 1;
        Ok(())
    }

    /// Counts a reply to a call, or an error that refuses the call. Returns the credit field of its
    /// header: never zero, and no more than the call `requested`, if it asked for any.
    ///
    /// # Errors
    /// Returns an error when no call is outstanding.
    pub const fn reply(&mut self, requested: u32) -> Result<u32, Violation> {
        if self.outstanding() == 0 {
            return Err(Violation::NoCall);
        }
        self.replies += 1;
        let grant = if requested == 0 || requested > self.grant { self.grant } else { requested };
        let bound = self.replies + grant as u64;
        if bound > self.bound {
            self.bound = bound;
        }
        Ok(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn test_requester_sends_a_single_call_until_the_first_reply() {
        let mut r = Requester::new(32);
        assert_eq!(r.call(), Ok(()));
        assert_eq!(r.call(), Err(NoCredit { outstanding: 1, limit: 1 }));
        assert_eq!(r.reply(8), Ok(()));
        assert_eq!((r.limit(), r.available(), r.outstanding()), (8, 8, 0));
    }

    #[test]
    fn test_limit_is_the_lower_of_requested_and_granted() {
        let mut r = Requester::new(4);
        r.call().unwrap();
        r.reply(100).unwrap();
        assert_eq!(r.limit(), 4);
        r.request(200);
        assert_eq!((r.requested(), r.limit()), (200, 100));
        r.request(0);
        assert_eq!(r.limit(), 1);
    }

    #[test]
    fn test_grant_of_zero_is_never_sent_and_never_accepted() {
        let mut r = Requester::new(4);
        r.call().unwrap();
        assert_eq!(r.reply(0), Err(Violation::ZeroGrant));
        assert_eq!((r.limit(), r.outstanding()), (1, 0), "the call is over");
        assert_eq!(r.reply(4), Err(Violation::NoCall));
        let mut s = Responder::new(0);
        s.call().unwrap();
        assert_eq!(s.reply(0), Ok(1));
        s.set_grant(0);
        s.call().unwrap();
        assert_eq!(s.reply(1), Ok(1));
    }

    #[test]
    fn test_responder_grants_no_more_than_was_requested() {
        let mut s = Responder::new(16);
        assert_eq!((s.receives(), s.receives_for_reply()), (1, 17));
        s.call().unwrap();
        assert_eq!(s.reply(4), Ok(4));
        assert_eq!(s.receives(), 4);
        assert_eq!(s.reply(4), Err(Violation::NoCall));
    }

    #[test]
    fn test_call_beyond_granted_credits_is_an_overrun() {
        let mut s = Responder::new(2);
        s.call().unwrap();
        assert_eq!(s.call(), Err(Violation::Overrun { granted: 2 }));
        s.reply(9).unwrap();
        s.call().unwrap();
        s.call().unwrap();
        assert_eq!((s.call(), s.receives()), (Err(Violation::Overrun { granted: 2 }), 0));
    }

    /// The requester may use a larger grant until it receives the reply with a smaller grant.
    #[test]
    fn test_smaller_grant_does_not_take_back_what_was_granted() {
        let mut s = Responder::new(3);
        s.call().unwrap();
        s.reply(9).unwrap();
        s.call().unwrap();
        s.set_grant(1);
        // Two replies heard, the second granting one: three calls in total. With one reply heard:
        // four.
        s.reply(9).unwrap();
        assert_eq!(s.receives(), 2);
        s.call().unwrap();
        s.reply(9).unwrap();
        s.call().unwrap();
        assert_eq!(s.call(), Err(Violation::Overrun { granted: 1 }));
    }

    proptest! {
        /// Two ends with any delays and any changes of their numbers: each call finds a Receive, no
        /// call is refused, and all calls get a reply.
        #[test]
        fn prop_calls_find_receives_and_go_on(
            steps in prop::collection::vec((0u8..6, 0u32..6), 1..300),
        ) {
            let (mut req, mut resp) = (Requester::new(5), Responder::new(3));
            let (mut calls, mut replies) = (VecDeque::new(), VecDeque::new());
            let mut waiting = VecDeque::new();
            let (mut made, mut done) = (0u32, 0u32);
            let drain = [(3u8, 0u32), (4, 0), (5, 0)];
            let drains = drain.iter().copied().cycle().take(3 * 12);
            for (step, n) in steps.into_iter().chain(drains) {
                match step {
                    0 if req.call().is_ok() => {
                        made += 1;
                        calls.push_back(req.requested());
                    }
                    1 => req.request(n),
                    2 => resp.set_grant(n),
                    3 => if let Some(requested) = calls.pop_front() {
                        prop_assert!(resp.receives() > 0);
                        prop_assert_eq!(resp.call(), Ok(()));
                        waiting.push_back(requested);
                    },
                    4 => if let Some(requested) = waiting.pop_front() {
                        let posted = resp.receives_for_reply();
                        let grant = resp.reply(requested).unwrap();
                        prop_assert!(grant > 0 && resp.receives() <= posted);
                        replies.push_back(grant);
                    },
                    5 => if let Some(grant) = replies.pop_front() {
                        prop_assert_eq!(req.reply(grant), Ok(()));
                        done += 1;
                    },
                    _ => {}
                }
                prop_assert_eq!(req.outstanding(), made - done);
                prop_assert!(req.outstanding() as usize == calls.len() + waiting.len() + replies.len());
            }
            prop_assert_eq!(made, done, "all are replied to");
            prop_assert!(req.available() > 0, "and another can be made");
        }
    }
}
