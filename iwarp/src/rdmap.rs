//! Provisional: the Terminate code. The header types replace this file.

/// Layer, error type and error code of a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermCode {
    /// Layer: 0 RDMAP, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type.
    pub etype: u8,
    /// Error code.
    pub code: u8,
}
