//! The side of a device that an RNIC implements.
//!
//! An RNIC makes a [`Device`](crate::Device) of [`Parts`], among them its [`Backend`]: the operations
//! that a device cannot do itself. Applications need nothing of this module. `heddle_hub` implements
//! it for an RNIC in this process, and `remote` for an RNIC of another process.

pub use crate::device::{Backend, OnEnd, Parts, Reserved, WeakEvents};
pub use crate::limits::count::{Count, Place};
pub use crate::mr::MrOwner;
pub use crate::qp::{Owner, QpParts};
pub use crate::window::{HeldStag, WindowFor};
