//! Regions, fast registrations and windows.

use heddle_iwarp::BindError;
use serde::{Deserialize, Serialize};

documents! {
    /// A region of the device's memory.
    AllocMr {
        /// Its protection domain.
        pd: u32,
        /// Octets.
        len: usize,
        /// Its rights, as [`access`](super::access) reads them.
        access: u8,
        /// The tagged offset of its first octet.
        to: Option<u64>,
        /// The only queue pair that may use it.
        qp: Option<u32>,
    }

    /// A number of octets.
    Len {
        /// Octets.
        len: usize,
    }

    /// Memory of the application's own.
    AddRegion {
        /// Bytes.
        len: usize,
        /// It has pages only where it is registered, and only those count.
        #[serde(default)]
        sparse: bool,
        /// The same of a file that others use, and that is not sealed: for an RNIC that takes such files.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        unsealed: bool,
    }

    /// Something the session has a number for.
    Id {
        /// The number.
        id: u64,
    }

    /// Memory that was set aside.
    SetAside {
        /// Its name.
        id: u64,
        /// Octets from the memory's start.
        off: usize,
    }

    /// Which is registered.
    RegisterReserved {
        /// Its name.
        id: u64,
        /// The protection domain.
        pd: u32,
        /// Its rights.
        access: u8,
    }

    /// A region of the application's own memory.
    RegisterMr {
        /// Its protection domain.
        pd: u32,
        /// The memory's name.
        region: u64,
        /// First octet.
        off: usize,
        /// Octets.
        len: usize,
        /// Its rights.
        access: u8,
        /// The tagged offset of its first octet.
        to: u64,
        /// The only queue pair that may use it.
        qp: Option<u32>,
    }

    /// A region that is registered.
    NewMr {
        /// Its name.
        id: u64,
        /// Its STag.
        stag: u32,
        /// The tagged offset of its first octet.
        to: u64,
        /// Octets from the start of the memory.
        off: usize,
    }

    /// What became of a region.
    Deregistered {
        /// Windows and fast registrations that keep it; it is gone at 0.
        bound: u32,
    }

    /// An STag for fast registrations.
    AllocFast {
        /// Its protection domain.
        pd: u32,
        /// The only queue pair that may use it.
        qp: Option<u32>,
        /// Most octets.
        len: u64,
    }

    /// An STag for a window.
    AllocWindow {
        /// Its protection domain.
        pd: u32,
        /// The only queue pair that may bind it: it is of type 2.
        qp: Option<u32>,
        /// Any queue pair of the domain may bind it: it is of type 2, and `qp` is none.
        any_qp: bool,
    }

    /// An STag without memory of its own.
    NewStag {
        /// Its name.
        id: u64,
        /// As it is now.
        stag: u32,
    }

    /// What a window is to show.
    BindWindow {
        /// The window's name.
        id: u64,
        /// The region's STag.
        mr: u32,
        /// The tagged offset there.
        at: u64,
        /// Octets.
        len: u32,
        /// What peers call the first.
        to: u64,
        /// Their rights.
        access: u8,
    }

    /// Whether it does.
    WindowBound {
        /// Its STag now.
        stag: u32,
        /// Why it shows what it showed.
        refused: Option<BindError>,
    }

    /// A protection domain, or all.
    OfPd {
        /// Its number.
        pd: Option<u32>,
    }

    /// [`MrUsage`](crate::MrUsage).
    Usage {
        /// Regions and fast registrations there are.
        regions: u32,
        /// Windows there are.
        windows: u32,
        /// Attempts that were refused.
        refused: u64,
        /// Most of each.
        most_regions: u32,
        /// The same.
        most_windows: u32,
    }
}
