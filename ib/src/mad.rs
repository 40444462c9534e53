//! Management datagrams: the common header, and the answer to a datagram that is not understood.
//!
//! ```text
//!    0  base version │ class │ class version │ R, method
//!    4  status 16 │ class specific 16
//!    8  transaction id 64
//!   16  attribute 16 │ reserved 16
//!   20  attribute modifier 32
//!   24  data, 232 bytes
//! ```

use crate::bytes::{be16, be32, be64, put};

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;
/// Bytes of the header.
pub const HEADER_LEN: usize = 24;
/// Bytes of the data.
pub const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

/// The data of a management datagram, after its header.
pub type Data = [u8; DATA_LEN];

/// The version of the common header.
pub const BASE_VERSION: u8 = 1;

/// The operation on the attribute.
pub mod method {
    /// Reads the attribute.
    pub const GET: u8 = 0x01;
    /// Writes the attribute.
    pub const SET: u8 = 0x02;
    /// Sends a message that asks for no answer by itself.
    pub const SEND: u8 = 0x03;
    /// Answers a Get or a Set. All answers have the top bit set.
    pub const GET_RESP: u8 = 0x81;
}

/// The fault of a Get or a Set.
pub mod status {
    /// No fault.
    pub const OK: u16 = 0;
    /// Base or class version not supported.
    pub const BAD_VERSION: u16 = 1 << 2;
    /// Method not supported.
    pub const METHOD: u16 = 2 << 2;
    /// Method not supported for this attribute.
    pub const ATTRIBUTE: u16 = 3 << 2;
}

/// The common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of this header: [`BASE_VERSION`].
    pub base_version: u8,
    /// Management class.
    pub class: u8,
    /// Version of the management class.
    pub class_version: u8,
    /// A constant of [`method`].
    pub method: u8,
    /// A constant of [`status`] in answers.
    pub status: u16,
    /// A field whose meaning depends on the class.
    pub class_specific: u16,
    /// The transaction id, which an answer shares with the message that it answers.
    pub tid: u64,
    /// Number of the attribute.
    pub attribute: u16,
    /// Modifier of the attribute, whose meaning depends on the attribute.
    pub modifier: u32,
}

impl MadHeader {
    /// Reads a header, which may have any value.
    pub fn parse(mad: &[u8; MAD_LEN]) -> MadHeader {
        MadHeader {
            base_version: mad[0],
            class: mad[1],
            class_version: mad[2],
            method: mad[3],
            status: be16(mad, 4),
            class_specific: be16(mad, 6),
            tid: be64(mad, 8),
            attribute: be16(mad, 16),
            modifier: be32(mad, 20),
        }
    }

    /// Returns the datagram with this header and `data`.
    pub fn emit(&self, data: &Data) -> [u8; MAD_LEN] {
        let mut b = [0; MAD_LEN];
        b[0] = self.base_version;
        b[1] = self.class;
        b[2] = self.class_version;
        b[3] = self.method;
        put(&mut b, 4, &self.status.to_be_bytes());
        put(&mut b, 6, &self.class_specific.to_be_bytes());
        put(&mut b, 8, &self.tid.to_be_bytes());
        put(&mut b, 16, &self.attribute.to_be_bytes());
        put(&mut b, 20, &self.modifier.to_be_bytes());
        put(&mut b, HEADER_LEN, data);
        b
    }
}

/// Returns the data after the header.
pub(crate) fn data(mad: &[u8; MAD_LEN]) -> Data {
    crate::bytes::array(mad, HEADER_LEN)
}

/// The reasons for which a management datagram is not one that this crate reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// The payload does not have [`MAD_LEN`] bytes.
    #[error("management datagram of {0} bytes")]
    Length(usize),
    /// The header has another version.
    #[error("base version {0}")]
    BaseVersion(u8),
    /// The datagram is of another class.
    #[error("management class {0:#04x}")]
    Class(u8),
    /// The class has another version.
    #[error("class version {0}")]
    ClassVersion(u8),
    /// The class does not have the method.
    #[error("method {0:#04x}")]
    Method(u8),
    /// The class does not have the attribute, or not with this method.
    #[error("attribute {0:#06x}")]
    Attribute(u16),
}

impl MadError {
    /// Returns the answer that reports the error, if there is to be one: a Get and a Set have
    /// answers; a message and an answer have none, whatever they contain.
    pub fn answer(self, mad: &[u8]) -> Option<[u8; MAD_LEN]> {
        let mad: &[u8; MAD_LEN] = mad.try_into().ok()?;
        let header = MadHeader::parse(mad);
        let status = match self {
            MadError::Length(_) | MadError::Class(_) => return None,
            MadError::BaseVersion(_) | MadError::ClassVersion(_) => status::BAD_VERSION,
            MadError::Method(_) => status::METHOD,
            MadError::Attribute(_) => status::ATTRIBUTE,
        };
        matches!(header.method, method::GET | method::SET)
            .then(|| MadHeader { method: method::GET_RESP, status, ..header }.emit(&data(mad)))
    }
}
