//! Why there is no region, or no access to it.

/// Why a region could not be made, or an access to it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The size is zero, or exceeds every address space.
    #[error("a region cannot have {0} bytes")]
    Size(usize),
    /// The system has no memory for the region, or refuses to map it.
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
    /// The file is not in ordinary memory. A file of hugepages may lose a page for which the pool
    /// has no replacement, and the kernel kills a worker that touches it.
    #[error("the file is not one in ordinary memory (memfd_create without MFD_HUGETLB)")]
    NotMemory,
    /// The file has been brought to a device before: it has a seal against further writable
    /// mappings.
    #[error(
        "the file is sealed against writing: memory can be brought to one device, once (make another Region)"
    )]
    AlreadySealed,
    /// The kernel has no seal against holes.
    #[error("this kernel cannot seal a file against holes (F_SEAL_FUTURE_WRITE, Linux 5.1)")]
    NoSuchSeal,
    /// The file has more memory than the caller wants to map.
    #[error("the file has {has} bytes of memory, more than {wanted}")]
    FileTooLong {
        /// Length of the file, or the bytes that it holds beyond its end.
        has: u64,
        /// Bytes to map, in whole pages.
        wanted: usize,
    },
    /// The region has no file, so no other process can map it.
    #[error("the region cannot be given to another process (Region::shared can)")]
    NotShared,
    /// The file is shorter than the caller wants to map.
    #[error("the file has {has} bytes, fewer than {wanted}")]
    FileTooShort {
        /// Length of the file in bytes.
        has: u64,
        /// Bytes to map.
        wanted: usize,
    },
    /// The file of a sparse region has no page in the range to register.
    #[error(
        "the file of the sparse region has no page at byte {off}: its owner has to touch it first"
    )]
    Hole {
        /// The first byte without a page.
        off: u64,
    },
    /// The range does not lie inside the region.
    #[error("bytes {off}..{off}+{count} are outside a region of {len} bytes")]
    OutOfRange {
        /// First byte of the range.
        off: usize,
        /// Number of bytes in the range.
        count: usize,
        /// Size of the region in bytes.
        len: usize,
    },
}
