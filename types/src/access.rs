//! The rights to use memory.

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
