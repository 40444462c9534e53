//! MPA start-up of both sides, in both revisions and both models: each side reads any bytes, in
//! pieces of any size, and the two sides talk to each other, whatever they were configured to ask
//! for.

use heddle_iwarp::mpa::frame::{Enhanced, Frame, Kind};
use heddle_iwarp::mpa::startup::{
    Initiator, InitiatorConfig, InitiatorStep, Negotiated, ReplyParams, Responder, ResponderConfig,
    ResponderStep,
};
use heddle_types::mpa::{CrcPolicy, Depths, Revision, Rtr, RtrSet};

use crate::Seeds;

/// Bits of the first byte.
mod control {
    pub(super) const CRC: u8 = 1;
    pub(super) const V2: u8 = 2;
    /// This side is the initiator.
    pub(super) const INITIATOR: u8 = 4;
    /// The target puts the key before the bytes, so that the fuzzer gets past the key.
    pub(super) const KEY: u8 = 8;
    /// The length of the pieces.
    pub(super) const PIECE: u32 = 4;
}

/// Bits of the second byte: the first messages that this side can send or take, and more.
mod terms {
    pub(super) const RTR: [u8; 3] = [1, 2, 4];
    pub(super) const MARKERS: u8 = 8;
    pub(super) const LEFT: u8 = 16;
    pub(super) const REJECT: u8 = 32;
    /// Read depths, 0 to 3.
    pub(super) const DEPTH: u32 = 6;
}

const FORMS: [Rtr; 3] = [Rtr::Write, Rtr::Read, Rtr::Send];

struct Terms {
    crc: CrcPolicy,
    revision: Revision,
    rtr: RtrSet,
    markers: bool,
    depths: Depths,
    depth: u16,
    reject: bool,
}

impl Terms {
    fn new(control: u8, terms: u8) -> Terms {
        let forms = FORMS.iter().zip(terms::RTR).filter(|(_, bit)| terms & bit != 0);
        Terms {
            crc: if control & control::CRC == 0 { CrcPolicy::Off } else { CrcPolicy::Required },
            revision: if control & control::V2 == 0 { Revision::V1 } else { Revision::V2 },
            rtr: forms.fold(RtrSet::NONE, |set, (rtr, _)| set.with(RtrSet::of(*rtr))),
            markers: terms & terms::MARKERS != 0,
            depths: if terms & terms::LEFT != 0 {
                Depths::LeftToApplications
            } else {
                Depths::Exchanged
            },
            depth: u16::from(terms >> terms::DEPTH),
            reject: terms & terms::REJECT != 0,
        }
    }

    fn initiator(&self) -> Option<Initiator> {
        let Terms { crc, revision, rtr, markers, depths, depth, .. } = *self;
        let (ird, ord) = (depth, depth + 1);
        let private_data = b"for the application";
        let config =
            InitiatorConfig { revision, crc, markers, ird, ord, depths, rtr, private_data };
        Initiator::new(&config).ok()
    }

    fn responder(&self) -> Option<Responder> {
        let Terms { crc, revision: max_revision, rtr, markers, .. } = *self;
        Responder::new(&ResponderConfig { max_revision, crc, markers, rtr }).ok()
    }

    fn reply(&self) -> ReplyParams<'static> {
        ReplyParams { ird: self.depth, ord: self.depth + 1, private_data: b"and back" }
    }
}

pub fn run(data: &[u8]) -> bool {
    let [control, terms, rest @ ..] = data else { return false };
    let terms = Terms::new(*control, *terms);
    let mut bytes = rest.to_vec();
    let initiator = control & control::INITIATOR != 0;
    let kind = if initiator { Kind::Reply } else { Kind::Request };
    if control & control::KEY != 0 {
        bytes.splice(..0, *key(kind));
    }
    round_trip(kind, terms.revision, &bytes);
    both(&terms);
    let piece = usize::from(control >> control::PIECE) * 8 + 1;
    if initiator { initiate(&terms, &bytes, piece) } else { respond(&terms, &bytes, piece) }
}

const fn key(kind: Kind) -> &'static [u8; 16] {
    match kind {
        Kind::Request => b"MPA ID Req Frame",
        Kind::Reply => b"MPA ID Rep Frame",
    }
}

/// Checks that a frame that parses can be written, and parses as the same frame again.
fn round_trip(kind: Kind, max: Revision, bytes: &[u8]) {
    let Ok(Some((frame, len))) = Frame::parse(kind, max, bytes) else { return };
    assert!(len <= bytes.len());
    let again = frame.emit().expect("it fitted before");
    assert_eq!(again.len(), len);
    assert_eq!(Frame::parse(kind, max, &again), Ok(Some((frame, len))));
}

/// Reads any bytes as a Request, and answers it; every answer can be read, and states the
/// agreement.
fn respond(terms: &Terms, bytes: &[u8], piece: usize) -> bool {
    let Some(mut responder) = terms.responder() else { return false };
    for b in bytes.chunks(piece) {
        match responder.handle_bytes(b) {
            Ok(ResponderStep::NeedMore) => {}
            Ok(ResponderStep::Request { revision, peer, markers, consumed, .. }) => {
                assert!(consumed <= b.len());
                let (reply, agreed) = if terms.reject {
                    let Ok(reply) = responder.reject(b"no", Some(terms.depth)) else { return true };
                    (reply, None)
                } else {
                    let Ok((reply, n)) = responder.accept(&terms.reply()) else { return true };
                    (reply, Some(n))
                };
                let frame = Frame::parse(Kind::Reply, revision, &reply).expect("ours is good");
                let (frame, len) = frame.expect("and whole");
                assert_eq!((len, frame.reject), (reply.len(), terms.reject));
                assert_eq!(frame.enhanced.is_some(), peer.is_some());
                if let Some(n) = agreed {
                    assert_eq!((n.crc, n.send_markers), (frame.crc, markers));
                    agreed_with(&n, peer);
                }
                return true;
            }
            Err(_) => return false,
        }
    }
    false
}

/// Checks that we never have more Reads outstanding than the peer serves, and that in the
/// peer-to-peer model there is a first message that we take (RFC 6581 section 9).
fn agreed_with(n: &Negotiated, peer: Option<Enhanced>) {
    let Some(peer) = peer else { return };
    assert!(peer.ird.get().is_none_or(|most| n.ord <= most));
    assert_eq!(!n.rtr_offered.is_empty(), peer.peer_to_peer);
}

/// Reads any bytes as a Reply.
fn initiate(terms: &Terms, bytes: &[u8], piece: usize) -> bool {
    let Some(mut initiator) = terms.initiator() else { return false };
    for b in bytes.chunks(piece) {
        match initiator.handle_bytes(b) {
            Ok(InitiatorStep::NeedMore) => {}
            Ok(InitiatorStep::Connected { negotiated: n, consumed, .. }) => {
                assert!(consumed <= b.len());
                assert!(n.crc || terms.crc == CrcPolicy::Off);
                assert_eq!(n.recv_markers, terms.markers);
                assert!(n.ord <= terms.depth + 1);
                // In the peer-to-peer model this side must be able to send the first message.
                assert!(n.rtr.is_none_or(|rtr| terms.rtr.has(rtr)));
                return true;
            }
            Ok(InitiatorStep::Rejected { consumed, .. }) => {
                assert!(consumed <= b.len());
                return true;
            }
            Err(_) => return false,
        }
    }
    false
}

/// Checks that two of our ends with the same configuration understand each other, and agree.
fn both(terms: &Terms) {
    let (Some(mut i), Some(mut r)) = (terms.initiator(), terms.responder()) else { return };
    let request = i.request().to_vec();
    let Ok(ResponderStep::Request { .. }) = r.handle_bytes(&request) else { panic!("a Request") };
    if terms.reject {
        let reply = r.reject(b"no", None).expect("it can be said");
        assert!(matches!(i.handle_bytes(&reply), Ok(InitiatorStep::Rejected { .. })));
        return;
    }
    let (reply, theirs) = r.accept(&terms.reply()).expect("it can be said");
    // The responder may insist on a term that the initiator cannot meet; then the initiator reports
    // that.
    let Ok(step) = i.handle_bytes(&reply) else { return };
    let InitiatorStep::Connected { negotiated: ours, .. } = step else { panic!("{step:?}") };
    assert_eq!((ours.crc, ours.revision), (theirs.crc, theirs.revision));
    assert_eq!((ours.send_markers, ours.recv_markers), (theirs.recv_markers, theirs.send_markers));
    assert!(ours.rtr.is_none_or(|rtr| theirs.rtr_offered.has(rtr)));
    assert_eq!(ours.rtr.is_some(), !theirs.rtr_offered.is_empty());
    if ours.peer.is_some() && terms.depths == Depths::Exchanged {
        assert!(ours.ord <= theirs.ird && theirs.ord <= ours.ird);
    }
}

pub fn seeds() -> Seeds {
    let mut all = Seeds::new();
    let mut add = |name: &str, control: u8, terms: u8| {
        let t = Terms::new(control, terms);
        let initiator = t.initiator().expect("good terms");
        let request = initiator.request();
        let mut responder = t.responder().expect("good terms");
        responder.handle_bytes(request).expect("a Request");
        let reply = if t.reject {
            responder.reject(b"no", Some(9)).expect("a Reply")
        } else {
            responder.accept(&t.reply()).expect("a Reply").0
        };
        let sides =
            [(control, request, "request"), (control | control::INITIATOR, &reply, "reply")];
        for (control, frame, kind) in sides {
            all.push((format!("{name}-{kind}"), [&[control, terms], frame].concat()));
        }
    };
    let whole = 15 << control::PIECE;
    let v2 = control::V2 | control::CRC | whole;
    let depth = 2 << terms::DEPTH;
    let [write, read, send] = terms::RTR;
    add("v1", control::CRC | whole, 0);
    add("v1-no-crc", 1 << control::PIECE, 0);
    add("v1-markers-reject", control::CRC | whole, terms::MARKERS | terms::REJECT);
    add("peer-write", v2, depth | write);
    add("peer-read", v2, depth | read | terms::MARKERS);
    add("peer-send", v2 & !control::CRC, depth | send);
    add("peer-any", v2, depth | write | read | send);
    add("peer-reject", v2, depth | read | terms::REJECT);
    add("unnegotiated", v2, depth | read | terms::LEFT);
    // The client-server model of revision 2, with keys that the target puts before the bytes.
    let client = InitiatorConfig { ird: 1, ord: 2, private_data: b"hello", ..Default::default() };
    let initiator = Initiator::new(&client).expect("good terms");
    let terms = [v2 | control::KEY, depth | write];
    all.push(("client-server".into(), [&terms, &initiator.request()[16..]].concat()));
    all
}
