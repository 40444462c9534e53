//! The numbers that iWARP puts on the wire and into its tables, each a type of its own.

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
    /// A Steering Tag (RFC 5041 section 2.1), which names a memory region to the peer. The upper 24
    /// bits are the index, the lower 8 the key.
    Stag, "{:#010x}"
}
number! {
    /// A Message Sequence Number on one untagged queue. The first message has number 1, and the
    /// number wraps modulo 2^32 (RFC 5041 section 4.3).
    Msn, "{}"
}
number! {
    /// A queue pair number, local to one RNIC.
    Qpn, "{}"
}
number! {
    /// A protection domain. A QP reaches only regions of its own domain.
    Pd, "{}"
}

impl Stag {
    /// Returns the same STag with `key` as its lower 8 bits.
    #[must_use]
    pub const fn with_key(self, key: u8) -> Stag {
        Stag(self.0 & !0xff | key as u32)
    }

    /// Returns the lower 8 bits, which the owner chooses.
    pub const fn key(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Returns true if the two STags differ in nothing but the key.
    pub const fn same_index(self, other: Stag) -> bool {
        self.0 >> 8 == other.0 >> 8
    }
}

impl Msn {
    /// Returns the number of the next message.
    #[must_use]
    pub const fn next(self) -> Msn {
        Msn(self.0.wrapping_add(1))
    }
}

/// The rights with which a memory region may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// The region is only a source of local operations.
    pub const NONE: Access = Access(0);
    /// The QP may place data of Sends and Read Responses into it.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The peer may write it with RDMA Write.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The peer may read it with RDMA Read.
    pub const REMOTE_READ: Access = Access(4);
    /// The peer may invalidate it with a Send with Invalidate. Only a region bound to one QP can
    /// have this right (RFC 5040 section 8.1.1: no peer may take away an STag that others share).
    pub const REMOTE_INVALIDATE: Access = Access(8);
    /// The peer may use it with atomic operations (RFC 7306).
    pub const REMOTE_ATOMIC: Access = Access(16);
    /// The region's owner may bind windows to it and make fast registrations of it. A window or a
    /// fast registration may allow a change of the memory only if the region has
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE).
    pub const BIND: Access = Access(32);

    /// Returns the union of both sets of rights.
    #[must_use]
    pub const fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Returns true if every right of `other` is held.
    pub const fn has(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the peer has a right to use the memory.
    pub const fn is_remote(self) -> bool {
        self.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0 | Access::REMOTE_ATOMIC.0) != 0
    }

    /// Returns the rights as bits, for storage.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the rights stored as `bits`; drops unknown bits.
    pub const fn from_bits(bits: u8) -> Access {
        Access(bits & 63)
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
