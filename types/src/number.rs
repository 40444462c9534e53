//! The numbers by which an application and an RNIC name objects, each a type of its own.

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
