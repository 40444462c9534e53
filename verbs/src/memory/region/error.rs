//! Why there is no region, or no access to it.

/// Why there is no region, or no access to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The size is zero, or no address space has it.
    #[error("a region cannot have {0} bytes")]
    Size(usize),
    /// The system has no memory for it, or refuses to map it.
    #[error("no memory for a region of {len} bytes: {why}")]
    NoMemory {
        /// Bytes asked for.
        len: usize,
        /// The system's reason.
        why: String,
    },
    /// The file could become shorter than the mapping.
    #[error("the file is not sealed against shrinking (F_SEAL_SHRINK)")]
    NotSealed,
    /// The file is none of ordinary memory. One of hugepages may lose a page that the pool has no other
    /// for, and a worker that touches it is killed.
    #[error("the file is not one in ordinary memory (memfd_create without MFD_HUGETLB)")]
    NotMemory,
    /// The file has been brought to a device before: it has a seal against further writable mappings.
    #[error(
        "the file is sealed against writing: memory can be brought to one device, once (make another Region)"
    )]
    AlreadySealed,
    /// The kernel has no seal against holes.
    #[error("this kernel cannot seal a file against holes (F_SEAL_FUTURE_WRITE, Linux 5.1)")]
    NoSuchSeal,
    /// The file has more memory than was to be mapped.
    #[error("the file has {has} bytes of memory, more than {wanted}")]
    FileTooLong {
        /// Its length, or what it holds beyond that.
        has: u64,
        /// Bytes to be mapped, in whole pages.
        wanted: usize,
    },
    /// No other process can be given it: it has no file.
    #[error("the region cannot be given to another process (Region::shared can)")]
    NotShared,
    /// The file is shorter than what was to be mapped.
    #[error("the file has {has} bytes, fewer than {wanted}")]
    FileTooShort {
        /// Its length.
        has: u64,
        /// Bytes to be mapped.
        wanted: usize,
    },
    /// The file of a sparse region has no page where it is to be registered.
    #[error(
        "the file of the sparse region has no page at byte {off}: its owner has to touch it first"
    )]
    Hole {
        /// The first byte without one.
        off: u64,
    },
    /// The range does not lie inside.
    #[error("bytes {off}..{off}+{count} are outside a region of {len} bytes")]
    OutOfRange {
        /// First byte.
        off: usize,
        /// Number of bytes.
        count: usize,
        /// Size of the region.
        len: usize,
    },
}
