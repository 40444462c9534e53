//! Management datagrams: the common header, and what is answered to one that is not understood.
//!
//! ```text
//!    0  base version │ class │ class version │ R, method
//!    4  status 16 │ class specific 16
//!    8  transaction id 64
//!   16  attribute 16 │ reserved 16
//!   20  attribute modifier 32
//!   24  data, 232 octets
//! ```

use crate::bytes::{be16, be32, be64, put};

/// Octets of a management datagram.
pub const MAD_LEN: usize = 256;
/// Octets of its header.
pub const HEADER_LEN: usize = 24;
/// Octets of its data.
pub const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

/// The data of a management datagram.
pub type Data = [u8; DATA_LEN];

/// The version of the header.
pub const BASE_VERSION: u8 = 1;

/// What is to be done with the attribute.
pub mod method {
    /// Read it.
    pub const GET: u8 = 0x01;
    /// Write it.
    pub const SET: u8 = 0x02;
    /// A message that asks for nothing by itself.
    pub const SEND: u8 = 0x03;
    /// The answer to a Get or a Set. The top bit is that of all answers.
    pub const GET_RESP: u8 = 0x81;
}

/// What was wrong with a Get or a Set.
pub mod status {
    /// Nothing.
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
    /// Version of the class.
    pub class_version: u8,
    /// One of [`method`], with the bit of answers.
    pub method: u8,
    /// One of [`status`] in answers.
    pub status: u16,
    /// What the class makes of it.
    pub class_specific: u16,
    /// Joins an answer to what it answers.
    pub tid: u64,
    /// What it is about.
    pub attribute: u16,
    /// More of that.
    pub modifier: u32,
}

impl MadHeader {
    /// Reads a header.
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

    /// The datagram with `data`.
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

/// The data behind the header.
pub(crate) fn data(mad: &[u8; MAD_LEN]) -> Data {
    crate::bytes::array(mad, HEADER_LEN)
}

/// Why a management datagram is not one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// Not of [`MAD_LEN`] octets.
    #[error("management datagram of {0} octets")]
    Length(usize),
    /// Another version of the header.
    #[error("base version {0}")]
    BaseVersion(u8),
    /// Another class.
    #[error("management class {0:#04x}")]
    Class(u8),
    /// Another version of the class.
    #[error("class version {0}")]
    ClassVersion(u8),
    /// Not what the class knows.
    #[error("method {0:#04x}")]
    Method(u8),
    /// Not what the class knows, or not with this method.
    #[error("attribute {0:#06x}")]
    Attribute(u16),
}

impl MadError {
    /// The answer that says so, if there is to be one: a Get and a Set have answers, a message and an
    /// answer have none, whatever is in them.
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
