//! The numbers iWARP speaks in, each a type of its own.

use core::fmt;

macro_rules! number {
    ($(#[$meta:meta])* $name:ident, $fmt:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub u32);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
    };
}

number! {
    /// A Steering Tag: names a memory region to the peer (RFC 5041 section 2.1). The upper 24 bits
    /// are the index, the lower 8 the key.
    Stag, "{:#010x}"
}
number! {
    /// A Message Sequence Number on one untagged queue; the first message has 1 and it wraps
    /// modulo 2^32 (RFC 5041 section 4.3).
    Msn, "{}"
}
number! {
    /// A queue pair number, local to one RNIC.
    Qpn, "{}"
}
number! {
    /// A protection domain: a QP reaches only regions of its own.
    Pd, "{}"
}

impl Stag {
    /// The same STag with another key, its lower 8 bits.
    #[must_use]
    pub const fn with_key(self, key: u8) -> Stag {
        Stag(self.0 & !0xff | key as u32)
    }

    /// Its key.
    pub const fn key(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Whether the two differ in nothing but the key.
    pub const fn same_index(self, other: Stag) -> bool {
        self.0 >> 8 == other.0 >> 8
    }
}

impl Msn {
    /// The number of the next message.
    #[must_use]
    pub const fn next(self) -> Msn {
        Msn(self.0.wrapping_add(1))
    }
}

/// What a memory region may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// Source of local operations only.
    pub const NONE: Access = Access(0);
    /// The QP may place data of Sends and Read Responses into it.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The peer may write it with RDMA Write.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The peer may read it with RDMA Read.
    pub const REMOTE_READ: Access = Access(4);
    /// The peer may invalidate it with a Send with Invalidate. Only a region bound to one QP can
    /// have it (RFC 5040 section 8.1.1: no peer may take away an STag others share).
    pub const REMOTE_INVALIDATE: Access = Access(8);
    /// The peer may use it with atomic operations (RFC 7306).
    pub const REMOTE_ATOMIC: Access = Access(16);
    /// The region's owner may bind windows to it and make fast registrations of it. What those allow
    /// to change, [`LOCAL_WRITE`](Access::LOCAL_WRITE) of the region must allow.
    pub const BIND: Access = Access(32);

    /// Both sets of rights.
    #[must_use]
    pub const fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether every right of `other` is held.
    pub const fn has(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is a right of the peer's to use the memory.
    pub const fn is_remote(self) -> bool {
        self.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0 | Access::REMOTE_ATOMIC.0) != 0
    }

    /// The rights as bits, for storage.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The rights stored as `bits`; unknown bits are dropped.
    pub const fn from_bits(bits: u8) -> Access {
        Access(bits & 63)
    }
}

/// Which end of the MPA start-up this was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the MPA Request; sends the first FPDU.
    Initiator,
    /// Sent the MPA Reply; sends nothing before the first FPDU has come (RFC 5044 section 7.1.2).
    Responder,
}
