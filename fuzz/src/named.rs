//! A worker reads from a management datagram which connection to charge for it, before it takes the
//! datagram. `named` and the parser, which reads the datagram later, must agree on every datagram.

use heddle_ib::CommId;
use heddle_ib::cm::{Apr, Drep, Dreq, Lap, Mad, Message, Mra, Rej, Rep, Req, Rtu, SidrReq, named};
use heddle_ib::mad::{MAD_LEN, MadError};

use crate::Seeds;

/// The bytes that `named` may look at: versions, class and method; attribute; the receiver's name.
const LOOKED_AT: [core::ops::Range<usize>; 3] = [0..4, 16..18, 28..32];

pub fn run(data: &[u8]) -> bool {
    let name = named(data);
    match (name, Mad::parse(data)) {
        (Ok(name), Ok(mad)) => assert_eq!(name, receiver(&mad.message)),
        // The parser knows fewer methods and attributes. Such a datagram concerns no connection.
        (Ok(name), Err(MadError::Method(_) | MadError::Attribute(_))) => assert_eq!(name, None),
        (name, parsed) => assert_eq!(name.err(), parsed.err()),
    }
    // Other bytes of the datagram do not decide which connection the worker charges.
    let mut other = data.to_vec();
    for (at, byte) in other.iter_mut().enumerate() {
        if !LOOKED_AT.iter().any(|range| range.contains(&at)) {
            *byte = !*byte;
        }
    }
    assert_eq!(named(&other), name);
    name.is_ok()
}

/// Returns the receiver's name for its connection, as the parser reads it from a message.
fn receiver(message: &Message) -> Option<CommId> {
    Some(match message {
        Message::Mra(m) => m.remote_comm_id,
        Message::Rej(m) => m.remote_comm_id,
        Message::Rep(m) => m.remote_comm_id,
        Message::Rtu(m) => m.remote_comm_id,
        Message::Dreq(m) => m.remote_comm_id,
        Message::Drep(m) => m.remote_comm_id,
        Message::Lap(m) => m.remote_comm_id,
        Message::Apr(m) => m.remote_comm_id,
        Message::Req(_)
        | Message::SidrReq(_)
        | Message::SidrRep(_)
        | Message::GetClassPortInfo
        | Message::ClassPortInfo(_) => return None,
    })
}

pub fn seeds() -> Seeds {
    let data = core::array::from_fn(|n| u8::try_from(n).unwrap_or(0));
    let _: &[u8; MAD_LEN - 24] = &data;
    let messages = [
        ("req", Message::Req(Box::new(Req::parse(&data)))),
        ("mra", Message::Mra(Box::new(Mra::parse(&data)))),
        ("rej", Message::Rej(Box::new(Rej::parse(&data)))),
        ("rep", Message::Rep(Box::new(Rep::parse(&data)))),
        ("rtu", Message::Rtu(Box::new(Rtu::parse(&data)))),
        ("dreq", Message::Dreq(Box::new(Dreq::parse(&data)))),
        ("drep", Message::Drep(Box::new(Drep::parse(&data)))),
        ("lap", Message::Lap(Lap::parse(&data))),
        ("apr", Message::Apr(Box::new(Apr::parse(&data)))),
        ("sidr-req", Message::SidrReq(Box::new(SidrReq::parse(&data)))),
        ("class-port-info", Message::GetClassPortInfo),
    ];
    let mut all: Seeds =
        messages.map(|(name, message)| (name.into(), Mad::new(5, message).emit().to_vec())).into();
    // The name stands in its place, but the method says that the datagram is no message.
    let (_, mut get) = all[4].clone();
    get[3] = 1;
    all.push(("get-of-rtu".into(), get));
    all
}
