//! Regions, fast registrations and windows.

use heddle_types::BindError;
use serde::{Deserialize, Serialize};

documents! {
    /// A region of the device's memory.
    AllocMr {
        /// Number of the protection domain.
        pd: u32,
        /// Length in bytes.
        len: usize,
        /// Access rights, as [`access`](super::access) reads them.
        access: u8,
        /// The tagged offset of the region's first byte.
        to: Option<u64>,
        /// The only queue pair that may use the region.
        qp: Option<u32>,
    }

    /// A number of bytes.
    Len {
        /// Length in bytes.
        len: usize,
    }

    /// Memory of the application's own.
    AddRegion {
        /// Length in bytes.
        len: usize,
        /// The memory has pages only where it is registered, and only these count.
        #[serde(default)]
        sparse: bool,
        /// The same for a file that others use and that is not sealed: for an RNIC that takes such
        /// files.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        unsealed: bool,
    }

    /// The number of an object in the session.
    Id {
        /// Number of the object.
        id: u64,
    }

    /// Memory that was set aside.
    SetAside {
        /// Name of the memory that was set aside.
        id: u64,
        /// Bytes from the start of the device's memory.
        off: usize,
    }

    /// Registers memory that was set aside.
    RegisterReserved {
        /// Name of the memory that was set aside.
        id: u64,
        /// Number of the protection domain.
        pd: u32,
        /// Access rights, as [`access`](super::access) reads them.
        access: u8,
    }

    /// A region of the application's own memory.
    RegisterMr {
        /// Number of the protection domain.
        pd: u32,
        /// Name of the memory.
        region: u64,
        /// First byte of the region in the memory.
        off: usize,
        /// Length in bytes.
        len: usize,
        /// Access rights, as [`access`](super::access) reads them.
        access: u8,
        /// The tagged offset of the region's first byte.
        to: u64,
        /// The only queue pair that may use the region.
        qp: Option<u32>,
    }

    /// A registered region.
    NewMr {
        /// Name of the region.
        id: u64,
        /// STag of the region.
        stag: u32,
        /// The tagged offset of the region's first byte.
        to: u64,
        /// Bytes from the start of the memory.
        off: usize,
    }

    /// The result of unregistering a region.
    Deregistered {
        /// Windows and fast registrations that keep the region; 0 if the region is unregistered.
        bound: u32,
    }

    /// An STag for fast registrations.
    AllocFast {
        /// Number of the protection domain.
        pd: u32,
        /// The only queue pair that may use the STag.
        qp: Option<u32>,
        /// Most bytes of a registration.
        len: u64,
    }

    /// An STag for a window.
    AllocWindow {
        /// Number of the protection domain.
        pd: u32,
        /// The queue pair of a window of type 2.
        qp: Option<u32>,
        /// Any queue pair of the domain may bind it: it is of type 2, and `qp` is none.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        any_qp: bool,
    }

    /// An STag without memory of its own.
    NewStag {
        /// Name of the STag.
        id: u64,
        /// The STag with its present key.
        stag: u32,
    }

    /// The memory that a window has to show.
    BindWindow {
        /// Name of the window.
        id: u64,
        /// STag of the region.
        mr: u32,
        /// The tagged offset in the region.
        at: u64,
        /// Length in bytes.
        len: u32,
        /// The tagged offset by which peers address the first byte.
        to: u64,
        /// Access rights of peers.
        access: u8,
    }

    /// The result of binding a window.
    WindowBound {
        /// The window's STag with its present key.
        stag: u32,
        /// Why the window still shows its earlier memory.
        refused: Option<BindError>,
    }

    /// A protection domain, or all.
    OfPd {
        /// Number of the protection domain.
        pd: Option<u32>,
    }

    /// The numbers of [`MrUsage`](crate::MrUsage).
    Usage {
        /// Regions and fast registrations in use.
        regions: u32,
        /// Windows in use.
        windows: u32,
        /// Attempts that were refused.
        refused: u64,
        /// Most regions and fast registrations.
        most_regions: u32,
        /// Limit on windows.
        most_windows: u32,
    }
}
