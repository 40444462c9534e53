//! Registrations of memory, and the reasons for which an RNIC refuses one or its use.

use crate::access::Access;
use crate::number::Stag;

/// Bytes of a page, the unit in which the table counts the size of a fast registration, and of
/// which a page list consists.
pub const PAGE: u64 = 4096;

/// The longest fast registration, in bytes.
pub const MAX_FAST_LEN: u64 = ((1 << 20) - 1) * PAGE;

/// The most places in memory that a fast registration lies in.
pub const MAX_RUNS: usize = 16;

/// The meaning that an STag is to have from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The STag, with its new key.
    pub stag: Stag,
    /// Tagged offset of the first byte: 0, an address, or any other number.
    pub to: u64,
    /// The rights of its users.
    pub access: Access,
}

/// The reasons for which the owner's request to register, bind or invalidate an STag fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BindError {
    /// The operation does not apply to this kind of STag, or the STag is another PD's or QP's.
    #[error("no STag for this operation")]
    Stag,
    /// The STag is valid: the owner has to invalidate it first.
    #[error("the STag is valid")]
    Valid,
    /// The caller may not use the memory so: the STag that names the memory fails its check.
    #[error("the memory: {0}")]
    Memory(MrFault),
    /// The pieces are not of one region; or those of a window are not one range; or those of a fast
    /// registration are neither adjacent nor whole pages, or lie in more than [`MAX_RUNS`] places.
    #[error("the memory is not one range, or list of whole pages, of one region")]
    Scattered,
    /// The request has no bytes, or more than the STag was allocated for, or a tagged offset that
    /// wraps.
    #[error("the length is not what the STag was allocated for")]
    Length,
    /// Such an STag cannot have these rights, or the region does not allow them.
    #[error("rights that the region does not allow")]
    Rights,
}

/// The reasons for which the table refuses to register or unregister a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MrError {
    /// Every slot is taken.
    #[error("no free memory region slot")]
    Full,
    /// The address or the tagged offset of the last byte would run past 2^64.
    #[error("memory region wraps around")]
    Wrap,
    /// The caller asked for [`Access::REMOTE_INVALIDATE`] without binding the region to one QP.
    #[error("a region that several QPs share cannot be remotely invalidated")]
    SharedInvalidate,
    /// No region has this STag, or has it any more.
    #[error("unknown STag")]
    Unknown,
    /// A fast registration of no bytes, or of more than [`MAX_FAST_LEN`].
    #[error("a fast registration has 1 to {MAX_FAST_LEN} bytes")]
    FastLen,
    /// Windows or fast registrations of the region are valid: the owner must invalidate them first.
    #[error("{0} windows or fast registrations of the region are valid")]
    Bound(u32),
}

/// The reasons for which a check refuses the use of an STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MrFault {
    /// No region has the STag.
    #[error("invalid STag")]
    InvalidStag,
    /// The STag belongs to another protection domain or QP.
    #[error("STag not associated with the stream")]
    NotAssociated,
    /// The STag lacks a right.
    #[error("access rights violation")]
    Access,
    /// Tagged offset and length wrap past 2^64.
    #[error("tagged offset wraps")]
    ToWrap,
    /// Not all bytes lie inside the region.
    #[error("base or bounds violation")]
    Bounds,
}
