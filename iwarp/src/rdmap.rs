//! RDMAP headers (RFC 5040 section 4) and the codes a Terminate carries.
//!
//! RDMAP has no header of its own on most messages: its control byte travels in the byte that DDP
//! reserves for the layer above ([`Control`]). Only Read Requests, Terminates and the atomic
//! messages of RFC 7306 begin their payload with a header ([`ReadRequest`], [`Terminate`],
//! [`AtomicRequest`], [`AtomicResponse`]). The QP decides whether a message may come where it came;
//! [`Opcode::queue`] and [`Opcode::is_tagged`] give the rule.

mod atomic;
mod control;
mod read_request;
mod terminate;
#[cfg(test)]
mod tests;

pub use atomic::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicRequest, AtomicRequestError, AtomicResponse,
    AtomicResponseError,
};
pub use control::{Control, ControlError, Opcode, Version};
pub use read_request::{READ_REQUEST_LEN, ReadRequest, ReadRequestError};
pub use terminate::{
    CopiedHeader, TERMINATE_MAX_LEN, TERMINATE_SEGMENT_MAX_LEN, Terminate, TerminateError,
};
