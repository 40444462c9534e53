//! Error codes of a Terminate.

use core::fmt;

/// The reason for which a stream was terminated: layer, error type and error code of the Terminate
/// control field.
///
/// The constants name every code of RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044 section 8
/// and RFC 6581 section 8; RFC 7306 adds none. The table of `heddle_iwarp::fault::Fault` says
/// which code Heddle sends when. Any other value that a peer sends survives and prints as numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TermCode {
    /// The layer that found the error: 0 RDMAP, 1 DDP, 2 the layer below DDP. 4 bits.
    pub layer: u8,
    /// The kind of error, by layer. 4 bits.
    pub etype: u8,
    /// The error, by layer and kind.
    pub code: u8,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $layer:literal / $etype:literal / $code:literal, $print:literal;)+) => {
        impl TermCode {
            $($(#[$doc])* pub const $name: TermCode = TermCode::new($layer, $etype, $code);)+

            /// Every code that has a name.
            pub const ALL: &[TermCode] = &[$(TermCode::$name,)+];

            const fn fixed_name(self) -> Option<&'static str> {
                match self {
                    $(TermCode::$name => Some($print),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// RDMAP: something is wrong at the sender of the Terminate, not at its peer.
    RDMAP_LOCAL_CATASTROPHIC = 0/0/0, "RDMAP: local catastrophic error";
    /// RDMAP protection: the STag is not valid.
    RDMAP_INVALID_STAG = 0/1/0, "RDMAP: invalid STag";
    /// RDMAP protection: the range is not inside the buffer.
    RDMAP_BOUNDS = 0/1/1, "RDMAP: base or bounds violation";
    /// RDMAP protection: the buffer does not allow this access.
    RDMAP_ACCESS = 0/1/2, "RDMAP: access rights violation";
    /// RDMAP protection: the STag belongs to other streams.
    RDMAP_STAG_NOT_ASSOCIATED = 0/1/3, "RDMAP: STag not associated with this stream";
    /// RDMAP protection: tagged offset plus length exceeds 64 bits.
    RDMAP_TO_WRAP = 0/1/4, "RDMAP: tagged offset wraps";
    /// RDMAP protection: the STag of a Send with Invalidate cannot be invalidated.
    RDMAP_CANNOT_INVALIDATE = 0/1/9, "RDMAP: STag cannot be invalidated";
    /// RDMAP protection: another error.
    RDMAP_PROTECTION_UNSPECIFIED = 0/1/0xff, "RDMAP: unspecified protection error";
    /// RDMAP operation: the version is invalid.
    RDMAP_VERSION = 0/2/5, "RDMAP: invalid version";
    /// RDMAP operation: a message that may not come at all, or not in this place.
    RDMAP_OPCODE = 0/2/6, "RDMAP: unexpected opcode";
    /// RDMAP operation: this stream is broken.
    RDMAP_STREAM_CATASTROPHIC = 0/2/7, "RDMAP: catastrophic error of this stream";
    /// RDMAP operation: more than this stream is broken.
    RDMAP_GLOBAL_CATASTROPHIC = 0/2/8, "RDMAP: catastrophic error, global";
    /// RDMAP operation: the STag cannot be invalidated (listed under both types).
    RDMAP_OPERATION_CANNOT_INVALIDATE = 0/2/9, "RDMAP: STag cannot be invalidated (operation)";
    /// RDMAP operation: another error.
    RDMAP_OPERATION_UNSPECIFIED = 0/2/0xff, "RDMAP: unspecified operation error";

    /// DDP: something is wrong at the sender of the Terminate, not at its peer.
    DDP_LOCAL_CATASTROPHIC = 1/0/0, "DDP: local catastrophic error";
    /// DDP tagged: the STag is not valid.
    DDP_INVALID_STAG = 1/1/0, "DDP: invalid STag";
    /// DDP tagged: the payload does not fit the buffer.
    DDP_BOUNDS = 1/1/1, "DDP: base or bounds violation";
    /// DDP tagged: the STag belongs to other streams.
    DDP_STAG_NOT_ASSOCIATED = 1/1/2, "DDP: STag not associated with this stream";
    /// DDP tagged: tagged offset plus length exceeds 64 bits.
    DDP_TO_WRAP = 1/1/3, "DDP: tagged offset wraps";
    /// DDP tagged: the version is invalid.
    DDP_TAGGED_VERSION = 1/1/4, "DDP: invalid version in a tagged segment";
    /// DDP untagged: the stream has no such queue.
    DDP_INVALID_QN = 1/2/1, "DDP: invalid queue number";
    /// DDP untagged: no buffer is posted for the message.
    DDP_NO_BUFFER = 1/2/2, "DDP: invalid MSN, no buffer available";
    /// DDP untagged: the message number is out of range.
    DDP_MSN_RANGE = 1/2/3, "DDP: invalid MSN, out of range";
    /// DDP untagged: the message offset is out of range.
    DDP_INVALID_MO = 1/2/4, "DDP: invalid message offset";
    /// DDP untagged: the message does not fit its buffer.
    DDP_TOO_LONG = 1/2/5, "DDP: message too long for its buffer";
    /// DDP untagged: the version is invalid.
    DDP_UNTAGGED_VERSION = 1/2/6, "DDP: invalid version in an untagged segment";

    /// MPA: the TCP connection is closed or lost. Reported locally, never sent.
    MPA_CLOSED = 2/0/1, "MPA: TCP connection closed or lost";
    /// MPA: the CRC of an FPDU is wrong.
    MPA_CRC = 2/0/2, "MPA: CRC mismatch";
    /// MPA: a marker points elsewhere than the lengths say.
    MPA_MARKER = 2/0/3, "MPA: marker and ULPDU length disagree";
    /// MPA: malformed Request or Reply. Reported locally, never sent: the connection is closed at
    /// once.
    MPA_INVALID_FRAME = 2/0/4, "MPA: invalid request or reply frame";
    /// MPA start-up: something is wrong at the sender of this code, not at its peer (RFC 6581).
    MPA_LOCAL_CATASTROPHIC = 2/0/5, "MPA: local catastrophic error";
    /// MPA start-up: the peer asked for too large an inbound read depth (RFC 6581).
    MPA_INSUFFICIENT_IRD = 2/0/6, "MPA: insufficient IRD resources";
    /// MPA start-up: the two sides have no RTR message in common (RFC 6581).
    MPA_NO_MATCHING_RTR = 2/0/7, "MPA: no matching RTR option";
}

/// The error type under which the draft of RFC 6581 put MPA's errors.
const DRAFT_MPA_ETYPE: u8 = 3;

impl TermCode {
    /// Layer number of RDMAP.
    pub const LAYER_RDMAP: u8 = 0;
    /// Layer number of DDP.
    pub const LAYER_DDP: u8 = 1;
    /// Layer number of the layer below DDP: MPA.
    pub const LAYER_LLP: u8 = 2;

    /// Returns the code with these three numbers; layer and type are 4 bits each.
    pub const fn new(layer: u8, etype: u8, code: u8) -> TermCode {
        TermCode { layer, etype, code }
    }

    /// Returns the same error under the numbers that RFC 6581 gave it.
    ///
    /// The draft of that RFC used layer 2, type 3 where the RFC and deployed peers use layer 2,
    /// type 0. Heddle sends type 0 and accepts both. A local catastrophic error of RDMAP has no
    /// code (RFC 5040 figure 9), so this function makes all its codes the same. Every other code
    /// stays as it is.
    #[must_use]
    pub const fn canonical(self) -> TermCode {
        match self {
            TermCode { layer: TermCode::LAYER_LLP, etype: DRAFT_MPA_ETYPE, code } => {
                TermCode::new(TermCode::LAYER_LLP, 0, code)
            }
            TermCode { layer: TermCode::LAYER_RDMAP, etype: 0, .. } => {
                TermCode::RDMAP_LOCAL_CATASTROPHIC
            }
            other => other,
        }
    }

    /// Returns the error in words, if the code is known.
    pub const fn name(self) -> Option<&'static str> {
        self.canonical().fixed_name()
    }

    /// Returns layer and error type in words, for a code without a name.
    const fn kind(self) -> &'static str {
        match (self.layer, self.etype) {
            (TermCode::LAYER_RDMAP, 1) => "RDMAP: a protection error without a name",
            (TermCode::LAYER_RDMAP, 2) => "RDMAP: an operation error without a name",
            (TermCode::LAYER_RDMAP, _) => "RDMAP: an error without a name",
            (TermCode::LAYER_DDP, 1) => "DDP: a tagged buffer error without a name",
            (TermCode::LAYER_DDP, 2) => "DDP: an untagged buffer error without a name",
            (TermCode::LAYER_DDP, _) => "DDP: an error without a name",
            (TermCode::LAYER_LLP, _) => "MPA: an error without a name",
            _ => "an error of an unknown layer",
        }
    }
}

impl fmt::Debug for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TermCode({:#x}/{:#x}/{:#04x})", self.layer, self.etype, self.code)
    }
}

impl fmt::Display for TermCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or_else(|| self.kind());
        write!(f, "{name} ({:#x}/{:#x}/{:#04x})", self.layer, self.etype, self.code)
    }
}
