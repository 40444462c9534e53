//! The numbers and roles that only iWARP knows.

use core::fmt;

/// A Message Sequence Number on one untagged queue. The first message has number 1, and the number
/// wraps modulo 2^32 (RFC 5041 section 4.3).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Msn(pub u32);

impl fmt::Debug for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Msn {
    /// Returns the number of the next message.
    #[must_use]
    pub const fn next(self) -> Msn {
        Msn(self.0.wrapping_add(1))
    }
}

/// The end of the MPA start-up that this side was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the MPA Request; sends the first FPDU.
    Initiator,
    /// Sent the MPA Reply; sends nothing before it has received the first FPDU (RFC 5044 section
    /// 7.1.2).
    Responder,
}
