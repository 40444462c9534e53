//! Flow control: how many Sends may be under way, so that each finds a Receive.
//!
//! The two versions reckon otherwise. In version 1 a responder grants a number of calls that may be
//! outstanding at a time, and each reply takes one back ([`v1::Requester`], [`v1::Responder`]). In
//! version 2 each end counts Sends and tells its peer up to which count it may go on
//! ([`v2::Credits`]). Neither posts anything: they say whether a Send may be made, what goes into its
//! header, and how many Receives must have been posted before.
//!
//! Who only looks on, at a capture, has [`v2::Watch`] for version 2; for version 1 [`v1::Responder`] told
//! what each reply granted serves as well.

pub mod v1;
pub mod v2;
