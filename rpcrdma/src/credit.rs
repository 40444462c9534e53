//! Flow control: limits the number of Sends under way, so that each Send finds a Receive.
//!
//! The two versions count differently. In version 1 a responder grants a number of calls that may
//! be outstanding at a time, and each reply returns one credit ([`v1::Requester`],
//! [`v1::Responder`]). In version 2 each end counts Sends and announces to its peer the count up to
//! which the peer may send ([`v2::Credits`]). These types post nothing: they decide whether a Send
//! may be made, compute the credit field of its header, and state how many Receives must be posted
//! before.
//!
//! An observer, such as a reader of a capture, uses [`v2::Watch`] for version 2. For version 1 an
//! observer uses a [`v1::Responder`] that is set to the grant of each reply.

pub mod v1;
pub mod v2;
