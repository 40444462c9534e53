//! Messages of the communication management class (IBTA volume 1, chapter 12).
//!
//! REQ, REP and RTU make a connection; either side refuses it by REJ at any stage; DREQ and DREP
//! end it. MRA says that an answer takes longer. SIDR REQ and REP find the queue pair of a datagram
//! service. LAP and APR would move a connection to another path; this module has only the parts of
//! them that a refusal needs.
//!
//! Messages have private data of a fixed size and no length field for it: an application receives
//! all bytes, zeros at the end included.

mod class_port_info;
mod rep;
mod req;
mod short;
mod sidr;
#[cfg(test)]
mod tests;

use crate::bytes::be32;
use crate::mad::{
    self, BASE_VERSION, DATA_LEN, Data, MAD_LEN, MadError, MadHeader, method, status,
};
use crate::types::CommId;

pub use class_port_info::{ClassPortInfo, Contact};
pub use rep::{Failover, Rep};
pub use req::{Path, Req, Transport};
pub use short::{Answered, Apr, Drep, Dreq, Lap, Mra, Rej, Rtu};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

/// Number of the management class.
pub const CLASS: u8 = 0x07;
/// Version of the class that this module reads and writes.
pub const CLASS_VERSION: u8 = 2;

mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const REQ: u16 = 0x10;
    pub(super) const MRA: u16 = 0x11;
    pub(super) const REJ: u16 = 0x12;
    pub(super) const REP: u16 = 0x13;
    pub(super) const RTU: u16 = 0x14;
    pub(super) const DREQ: u16 = 0x15;
    pub(super) const DREP: u16 = 0x16;
    pub(super) const SIDR_REQ: u16 = 0x17;
    pub(super) const SIDR_REP: u16 = 0x18;
    pub(super) const LAP: u16 = 0x19;
    pub(super) const APR: u16 = 0x1a;
}

/// The content of a management datagram of the class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks for a connection.
    Req(Box<Req>),
    /// "Your message has come, and the answer takes this much longer."
    Mra(Box<Mra>),
    /// Refuses a connection.
    Rej(Box<Rej>),
    /// Accepts a connection.
    Rep(Box<Rep>),
    /// "Your REP has come."
    Rtu(Box<Rtu>),
    /// Ends a connection.
    Dreq(Box<Dreq>),
    /// "Your DREQ has come."
    Drep(Box<Drep>),
    /// Asks for the queue pair of a datagram service.
    SidrReq(Box<SidrReq>),
    /// Answers a SIDR REQ.
    SidrRep(Box<SidrRep>),
    /// Offers another path.
    Lap(Lap),
    /// Accepts or refuses an offered path.
    Apr(Box<Apr>),
    /// Asks for the properties of a communication manager.
    GetClassPortInfo,
    /// Answers with the properties of a communication manager.
    ClassPortInfo(Box<ClassPortInfo>),
}

/// A management datagram of the class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The transaction id, which an answer shares with the message that it answers. All messages
    /// about a connection have the transaction id of its REQ until the RTU.
    pub tid: u64,
    /// The attribute modifier. The class gives it no meaning; some peers put extensions there.
    pub modifier: u32,
    /// The content of the datagram.
    pub message: Message,
}

impl Mad {
    /// Makes a datagram without extensions.
    pub const fn new(tid: u64, message: Message) -> Mad {
        Mad { tid, modifier: 0, message }
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// Fails when the payload is not of this class and version, has an unknown method or attribute,
    /// or is longer or shorter than a management datagram. [`MadError::answer`] returns the answer
    /// to send.
    pub fn parse(payload: &[u8]) -> Result<Mad, MadError> {
        let (mad, header) = of_class(payload)?;
        let data = mad::data(mad);
        let message = match header.method {
            method::SEND => sent(header.attribute, &data),
            method::GET if header.attribute == attribute::CLASS_PORT_INFO => {
                Some(Message::GetClassPortInfo)
            }
            method::GET_RESP if header.attribute == attribute::CLASS_PORT_INFO => {
                Some(Message::ClassPortInfo(Box::new(ClassPortInfo::parse(&data))))
            }
            method::GET | method::SET | method::GET_RESP => None,
            other => return Err(MadError::Method(other)),
        };
        let message = message.ok_or(MadError::Attribute(header.attribute))?;
        Ok(Mad { tid: header.tid, modifier: header.modifier, message })
    }

    /// Returns the datagram as on the wire.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut data = [0; DATA_LEN];
        let d = &mut data;
        let mut method = method::SEND;
        let attribute = match &self.message {
            Message::Req(m) => (m.emit(d), attribute::REQ).1,
            Message::Mra(m) => (m.emit(d), attribute::MRA).1,
            Message::Rej(m) => (m.emit(d), attribute::REJ).1,
            Message::Rep(m) => (m.emit(d), attribute::REP).1,
            Message::Rtu(m) => (m.emit(d), attribute::RTU).1,
            Message::Dreq(m) => (m.emit(d), attribute::DREQ).1,
            Message::Drep(m) => (m.emit(d), attribute::DREP).1,
            Message::SidrReq(m) => (m.emit(d), attribute::SIDR_REQ).1,
            Message::SidrRep(m) => (m.emit(d), attribute::SIDR_REP).1,
            Message::Lap(m) => (m.emit(d), attribute::LAP).1,
            Message::Apr(m) => (m.emit(d), attribute::APR).1,
            Message::GetClassPortInfo => {
                method = method::GET;
                attribute::CLASS_PORT_INFO
            }
            Message::ClassPortInfo(m) => {
                method = method::GET_RESP;
                m.emit(d);
                attribute::CLASS_PORT_INFO
            }
        };
        let header = MadHeader {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method,
            status: status::OK,
            class_specific: 0,
            tid: self.tid,
            attribute,
            modifier: self.modifier,
        };
        header.emit(&data)
    }
}

/// Returns the receiver's name of the connection that a datagram of the class is about, or `None`
/// when the receiver has named no such connection. Reads only the bytes that contain the name.
///
/// # Errors
/// Fails as [`Mad::parse`] does, except for the method and the attribute.
pub fn named(payload: &[u8]) -> Result<Option<CommId>, MadError> {
    let (mad, header) = of_class(payload)?;
    let names = match header.attribute {
        attribute::MRA
        | attribute::REJ
        | attribute::REP
        | attribute::RTU
        | attribute::DREQ
        | attribute::DREP
        | attribute::LAP
        | attribute::APR => header.method == method::SEND,
        _ => false,
    };
    // All these messages begin with the sender's name and the receiver's.
    Ok(names.then(|| CommId(be32(mad, mad::HEADER_LEN + 4))))
}

/// Returns a datagram and its header, if it is of this class and version.
fn of_class(payload: &[u8]) -> Result<(&[u8; MAD_LEN], MadHeader), MadError> {
    let Ok(mad) = <&[u8; MAD_LEN]>::try_from(payload) else {
        return Err(MadError::Length(payload.len()));
    };
    let header = MadHeader::parse(mad);
    if header.base_version != BASE_VERSION {
        return Err(MadError::BaseVersion(header.base_version));
    }
    if header.class != CLASS {
        return Err(MadError::Class(header.class));
    }
    if header.class_version != CLASS_VERSION {
        return Err(MadError::ClassVersion(header.class_version));
    }
    Ok((mad, header))
}

fn sent(attribute: u16, data: &Data) -> Option<Message> {
    Some(match attribute {
        attribute::REQ => Message::Req(Box::new(Req::parse(data))),
        attribute::MRA => Message::Mra(Box::new(Mra::parse(data))),
        attribute::REJ => Message::Rej(Box::new(Rej::parse(data))),
        attribute::REP => Message::Rep(Box::new(Rep::parse(data))),
        attribute::RTU => Message::Rtu(Box::new(Rtu::parse(data))),
        attribute::DREQ => Message::Dreq(Box::new(Dreq::parse(data))),
        attribute::DREP => Message::Drep(Box::new(Drep::parse(data))),
        attribute::SIDR_REQ => Message::SidrReq(Box::new(SidrReq::parse(data))),
        attribute::SIDR_REP => Message::SidrRep(Box::new(SidrRep::parse(data))),
        attribute::LAP => Message::Lap(Lap::parse(data)),
        attribute::APR => Message::Apr(Box::new(Apr::parse(data))),
        _ => return None,
    })
}
