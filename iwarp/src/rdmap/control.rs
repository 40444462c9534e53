use crate::ddp::{DdpHeader, Qn};
use core::fmt;

/// The version bits of the control byte (section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub u8);

impl Version {
    /// The RDMA Consortium's RDMAP. RNICs use it only where MPA agreed on revision 0, which Heddle
    /// refuses, so no stream of Heddle carries it.
    pub const RDMAC: Version = Version(0);
    /// The RDMAP of RFC 5040.
    pub const IETF: Version = Version(1);
}

/// The kind of an RDMA message (4 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $print:literal;)+) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Opcode = Opcode($value);)+

            /// Returns the message's name, if the opcode is assigned.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Opcode::$name => Some($print),)+
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    /// RDMA Write (RFC 5040).
    WRITE = 0, "Write";
    /// RDMA Read Request (RFC 5040).
    READ_REQUEST = 1, "ReadRequest";
    /// RDMA Read Response (RFC 5040).
    READ_RESPONSE = 2, "ReadResponse";
    /// Send (RFC 5040).
    SEND = 3, "Send";
    /// Send with Invalidate (RFC 5040).
    SEND_INV = 4, "SendInv";
    /// Send with Solicited Event (RFC 5040).
    SEND_SE = 5, "SendSe";
    /// Send with Solicited Event and Invalidate (RFC 5040).
    SEND_SE_INV = 6, "SendSeInv";
    /// Terminate (RFC 5040).
    TERMINATE = 7, "Terminate";
    /// Immediate Data (RFC 7306).
    IMMEDIATE = 8, "Immediate";
    /// Immediate Data with Solicited Event (RFC 7306).
    IMMEDIATE_SE = 9, "ImmediateSe";
    /// Atomic Request (RFC 7306).
    ATOMIC_REQUEST = 10, "AtomicRequest";
    /// Atomic Response (RFC 7306).
    ATOMIC_RESPONSE = 11, "AtomicResponse";
}

impl Opcode {
    /// Returns the queue that the message goes to, or `None` for tagged messages and for unassigned
    /// opcodes (figure 4; RFC 7306 figure 2).
    pub const fn queue(self) -> Option<Qn> {
        match self {
            Opcode::SEND
            | Opcode::SEND_INV
            | Opcode::SEND_SE
            | Opcode::SEND_SE_INV
            | Opcode::IMMEDIATE
            | Opcode::IMMEDIATE_SE => Some(Qn::SEND),
            Opcode::READ_REQUEST | Opcode::ATOMIC_REQUEST => Some(Qn::READ_REQUEST),
            Opcode::TERMINATE => Some(Qn::TERMINATE),
            Opcode::ATOMIC_RESPONSE => Some(Qn::ATOMIC_RESPONSE),
            _ => None,
        }
    }

    /// Returns true if the message goes to a tagged buffer.
    pub const fn is_tagged(self) -> bool {
        matches!(self, Opcode::WRITE | Opcode::READ_RESPONSE)
    }

    /// Returns true if the message is one of the four Sends.
    pub const fn is_send(self) -> bool {
        matches!(self, Opcode::SEND | Opcode::SEND_INV | Opcode::SEND_SE | Opcode::SEND_SE_INV)
    }

    /// Returns true if the message names an STag to invalidate, in the 32 bits that DDP has for the
    /// layer above.
    pub const fn invalidates(self) -> bool {
        matches!(self, Opcode::SEND_INV | Opcode::SEND_SE_INV)
    }

    /// Returns true if the message asks for an event at the receiver.
    pub const fn is_solicited(self) -> bool {
        matches!(self, Opcode::SEND_SE | Opcode::SEND_SE_INV | Opcode::IMMEDIATE_SE)
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Opcode({:#x})", self.0),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The RDMAP control byte: version, two reserved bits, opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Version of RDMAP, 2 bits.
    pub version: Version,
    /// The kind of the message.
    pub opcode: Opcode,
}

/// The reasons for which a receiver cannot accept a control byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// A queue that the stream does not have: above [`Qn::LAST`].
    #[error("queue {0}")]
    Queue(Qn),
    /// A version other than the IETF's.
    #[error("RDMAP version {}", .0.0)]
    Version(Version),
    /// An opcode that is not assigned.
    #[error("RDMAP opcode {:#x} is not assigned", .0.0)]
    UnknownOpcode(Opcode),
    /// A known message in the wrong buffer model, or on the wrong queue.
    #[error("{opcode} where it may not come")]
    Misplaced {
        /// The message.
        opcode: Opcode,
        /// The queue it came on; `None` if in a tagged segment.
        queue: Option<Qn>,
    },
}

impl Control {
    /// Returns the control byte of a message that Heddle sends.
    pub const fn new(opcode: Opcode) -> Control {
        Control { version: Version::IETF, opcode }
    }

    /// Takes the byte apart. Every byte has a meaning; [`check`](Self::check) judges it.
    #[inline]
    pub const fn from_byte(b: u8) -> Control {
        Control { version: Version(b >> 6), opcode: Opcode(b & 0x0f) }
    }

    /// Returns the byte as on the wire, with zero reserved bits.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        self.version.0 << 6 | self.opcode.0 & 0x0f
    }

    /// Returns the control byte of a DDP segment, if the stream has the segment's queue, the
    /// version is known, the opcode is assigned and the message may come in this kind of segment
    /// (figure 4). The receiving QP and the reader of captures both ask this function and no other.
    ///
    /// RFC 5040 section 4.1 calls the RDMA Consortium's version valid as well, and leaves the
    /// choice to MPA's negotiation. MPA revisions 1 and 2 choose the IETF's DDP and RDMAP, and RFC
    /// 5044 appendix C.1 forbids a mix of both layers' versions, or of both directions'. So only
    /// the IETF's version passes.
    ///
    /// # Errors
    /// [`ControlError`] in the order queue (DDP's checks come before RDMAP's), version, opcode,
    /// place.
    #[inline]
    pub fn check(header: &DdpHeader) -> Result<Control, ControlError> {
        let queue = match *header {
            DdpHeader::Tagged { .. } => None,
            DdpHeader::Untagged { qn, .. } if qn > Qn::LAST => return Err(ControlError::Queue(qn)),
            DdpHeader::Untagged { qn, .. } => Some(qn),
        };
        let c = Control::from_byte(header.rsvd_ulp());
        if c.version != Version::IETF {
            return Err(ControlError::Version(c.version));
        }
        if c.opcode.name().is_none() {
            return Err(ControlError::UnknownOpcode(c.opcode));
        }
        if c.opcode.queue() != queue {
            return Err(ControlError::Misplaced { opcode: c.opcode, queue });
        }
        Ok(c)
    }
}
