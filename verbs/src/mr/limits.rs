//! How many STags an application may have, and why a registration fails.

use heddle_types::MrError;

/// Most STags of each sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrLimits {
    /// Regions and fast registrations; an unregistered region counts until its memory is free.
    pub regions: u32,
    /// Windows of both types.
    pub windows: u32,
}

impl Default for MrLimits {
    /// Returns limits that leave only those of the RNIC.
    fn default() -> MrLimits {
        MrLimits { regions: u32::MAX, windows: u32::MAX }
    }
}

/// STags in use, of those that [`MrLimits`] allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrUsage {
    /// Regions and fast registrations in use.
    pub regions: u32,
    /// Windows in use.
    pub windows: u32,
    /// Attempts refused because of these limits; a call that waits for a place that is about to
    /// become free makes several.
    pub refused: u64,
    /// The limits that apply.
    pub limits: MrLimits,
}

/// Why a registration of memory failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The pool of the application has no stretch that long.
    #[error("no {wanted} bytes of registered memory: the longest free stretch is {free} of {size}")]
    NoMemory {
        /// Bytes asked for.
        wanted: usize,
        /// The longest free stretch, in bytes.
        free: usize,
        /// Size of the pool in bytes.
        size: usize,
    },
    /// The range does not lie in the region.
    #[error("the range does not lie in the region")]
    OutOfRange,
    /// The table of regions is full.
    #[error("too many regions")]
    TooManyRegions,
    /// The application, or its protection domain, has as many STags of this sort as it may have.
    #[error("no more than {most} of this sort are allowed")]
    Quota {
        /// Limit of the application or of the protection domain.
        most: u32,
    },
    /// The STag table refused.
    #[error(transparent)]
    Mr(#[from] MrError),
}
