//! MPA: framing of DDP segments in a TCP stream (RFC 5044) and its start-up exchange (RFC 5044
//! section 7.1, RFC 6581).
//!
//! * [`frame`]: the Request and Reply frames;
//! * [`startup`]: the two sides of the exchange, ending in [`Negotiated`](startup::Negotiated);
//! * [`fpdu`]: sizes, pad and CRC of an FPDU;
//! * [`markers`]: inserting markers into FPDUs and removing them;
//! * [`decode`]: taking a whole direction of a stream apart, for tests and tools.

pub mod decode;
pub mod fpdu;
pub mod frame;
pub mod markers;
pub mod startup;
