//! MPA: framing of DDP segments in a TCP stream (RFC 5044) and its start-up exchange (RFC 5044
//! section 7.1, RFC 6581).

pub mod fpdu;
