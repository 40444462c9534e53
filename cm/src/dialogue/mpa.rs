use heddle_iwarp::mpa::frame::{Enhanced, Revision, RtrSet};
use heddle_iwarp::mpa::startup::{
    CrcPolicy, Depths, Initiator, InitiatorConfig, InitiatorStep, Negotiated,
    ReplyParams as MpaAccept, Responder, ResponderConfig, ResponderStep, StartupAction,
    StartupError,
};
use heddle_iwarp::qp::RtrConfig;
use heddle_iwarp::rdmap::TermCode;

use super::{Agreement, Answer, AnswerStep, Ask, AskStep, ParamsError};
use crate::event::{Agreed, PeerDepths, Transport};
use crate::params::{AcceptTerms, ConnectTerms};

/// Options of MPA, for a listener or a connection.
///
/// ```
/// # use heddle_cm::MpaOptions;
/// # use heddle_iwarp::mpa::frame::RtrSet;
/// let options = MpaOptions::new().markers(true).peer_to_peer(RtrSet::ALL);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MpaOptions {
    /// The revision of our request; the highest revision of our answer.
    pub revision: Revision,
    /// Connecting in revision 2: whether we ask a peer that knows only revision 1 again in revision
    /// 1, on another TCP connection (RFC 6581 section 10). The two sides then exchange no read
    /// depths. Without effect in the peer-to-peer model, which needs revision 2.
    pub fall_back: bool,
    /// Whether we ask for CRCs; both sides use CRCs when either asks.
    pub crc: CrcPolicy,
    /// The same on a connection of the RNIC with itself, over its inner port. Such a connection has
    /// no wire that could damage data, and without CRCs its payload goes from memory region to
    /// memory region by one copy (ADR 20).
    pub crc_inside: CrcPolicy,
    /// Whether we ask for markers in the data that the peer sends. Our data carry markers when the
    /// peer asks for them.
    pub markers: bool,
    /// Ready-to-receive messages of RFC 6581 section 9.2. Connecting: the messages we can begin
    /// with, in the peer-to-peer model; none for the client-server model. Listening: the messages a
    /// peer may begin with if it asks for the peer-to-peer model; an empty set allows all of them,
    /// because a peer has to begin with some message.
    pub rtr: RtrSet,
    /// Connecting: whether the two sides exchange the number of RDMA Reads that they can have
    /// outstanding.
    pub depths: Depths,
}

impl Default for MpaOptions {
    fn default() -> MpaOptions {
        MpaOptions::new()
    }
}

impl MpaOptions {
    /// Returns defaults: revision 2 without falling back, CRCs except inside the RNIC, no markers,
    /// client-server model, read depths exchanged.
    pub const fn new() -> MpaOptions {
        MpaOptions {
            revision: Revision::V2,
            fall_back: false,
            crc: CrcPolicy::Required,
            crc_inside: CrcPolicy::Off,
            markers: false,
            rtr: RtrSet::NONE,
            depths: Depths::Exchanged,
        }
    }

    /// Returns the options with another [revision](Self::revision).
    #[must_use]
    pub const fn revision(mut self, revision: Revision) -> MpaOptions {
        self.revision = revision;
        self
    }

    /// Returns the options with [falling back](Self::fall_back) to revision 1 on or off.
    #[must_use]
    pub const fn fall_back(mut self, fall_back: bool) -> MpaOptions {
        self.fall_back = fall_back;
        self
    }

    /// Returns the options with another policy for [CRCs](Self::crc).
    #[must_use]
    pub const fn crc(mut self, crc: CrcPolicy) -> MpaOptions {
        self.crc = crc;
        self
    }

    /// Returns the options with another policy for CRCs [inside the RNIC](Self::crc_inside).
    #[must_use]
    pub const fn crc_inside(mut self, crc: CrcPolicy) -> MpaOptions {
        self.crc_inside = crc;
        self
    }

    /// Returns the options with [markers](Self::markers) asked for, or not.
    #[must_use]
    pub const fn markers(mut self, markers: bool) -> MpaOptions {
        self.markers = markers;
        self
    }

    /// Returns the options for the peer-to-peer model, with these [first messages](Self::rtr).
    #[must_use]
    pub const fn peer_to_peer(mut self, rtr: RtrSet) -> MpaOptions {
        self.rtr = rtr;
        self
    }

    /// Returns the options with read depths [exchanged](Self::depths) or left alone.
    #[must_use]
    pub const fn depths(mut self, depths: Depths) -> MpaOptions {
        self.depths = depths;
        self
    }
}

/// Makes a request to a peer, or to a queue pair `inside` the same RNIC.
pub(super) fn ask(
    o: &MpaOptions,
    p: &ConnectTerms,
    inside: bool,
) -> Result<Box<dyn Ask>, ParamsError> {
    let config = InitiatorConfig {
        revision: o.revision,
        crc: if inside { o.crc_inside } else { o.crc },
        markers: o.markers,
        ird: p.ird,
        ord: p.ord,
        depths: o.depths,
        rtr: o.rtr,
        private_data: &p.private_data,
    };
    let fall_back = o.fall_back && o.revision > Revision::V1 && o.rtr.is_empty();
    let plainer = InitiatorConfig { revision: Revision::V1, ..config };
    let plainer = fall_back.then(|| Initiator::new(&plainer)).transpose()?;
    Ok(Box::new(MpaAsk { initiator: Initiator::new(&config)?, plainer }))
}

/// Makes an answer to a peer, or to a queue pair `inside` the same RNIC.
pub(super) fn answer(o: &MpaOptions, inside: bool) -> Result<Box<dyn Answer>, ParamsError> {
    let config = ResponderConfig {
        max_revision: o.revision,
        crc: if inside { o.crc_inside } else { o.crc },
        markers: o.markers,
        rtr: if o.rtr.is_empty() { RtrSet::ALL } else { o.rtr },
    };
    Ok(Box::new(Responder::new(&config)?))
}

#[derive(Debug)]
struct MpaAsk {
    initiator: Initiator,
    /// The request to a peer that knows only revision 1.
    plainer: Option<Initiator>,
}

impl Ask for MpaAsk {
    fn request(&self) -> Vec<u8> {
        self.initiator.request().to_vec()
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> AskStep {
        let step = self.initiator.handle_bytes(bytes);
        let in_1 = matches!(
            step,
            Ok(InitiatorStep::Rejected { revision: Revision::V1, .. })
                | Err(StartupError::NotEnhanced { revision: Revision::V1 })
        );
        if in_1 && self.plainer.is_some() {
            return AskStep::FallBack;
        }
        match step {
            Ok(InitiatorStep::NeedMore) => AskStep::NeedMore,
            Ok(InitiatorStep::Connected { negotiated, private_data, .. }) => {
                // Revision 1 has no such Terminate (RFC 6581 section 8).
                let last_word = negotiated
                    .peer
                    .and_then(|_| self.initiator.terminate(TermCode::MPA_LOCAL_CATASTROPHIC));
                AskStep::Connected(agreement(&negotiated, private_data, last_word))
            }
            Ok(InitiatorStep::Rejected { private_data, peer, .. }) => {
                AskStep::Rejected { private_data, peer: peer.map(depths) }
            }
            Err(e) => {
                let last_word = match e.action() {
                    StartupAction::Terminate(code) => self.initiator.terminate(code),
                    StartupAction::Close => None,
                };
                AskStep::Failed { error: e.into(), last_word }
            }
        }
    }

    fn fall_back(&mut self) -> Option<Box<dyn Ask>> {
        let initiator = self.plainer.take()?;
        Some(Box::new(MpaAsk { initiator, plainer: None }))
    }
}

impl Answer for Responder {
    fn handle_bytes(&mut self, bytes: &[u8]) -> AnswerStep {
        match Responder::handle_bytes(self, bytes) {
            Ok(ResponderStep::NeedMore) => AnswerStep::NeedMore,
            Ok(ResponderStep::Request { peer, private_data, .. }) => AnswerStep::Request {
                private_data,
                peer: peer.map(depths),
                peer_to_peer: peer.is_some_and(|p| p.peer_to_peer),
            },
            Err(e) => AnswerStep::Failed(e.into()),
        }
    }

    fn accept(&mut self, p: &AcceptTerms) -> Result<(Vec<u8>, Agreement), ParamsError> {
        let params = MpaAccept { ird: p.ird, ord: p.ord, private_data: &p.private_data };
        let mut refusing = self.clone();
        let (reply, negotiated) = Responder::accept(self, &params)?;
        let last_word = Responder::reject(&mut refusing, &[], None).ok();
        Ok((reply, agreement(&negotiated, Vec::new(), last_word)))
    }

    fn reject(
        &mut self,
        private_data: &[u8],
        needs_ord: Option<u16>,
    ) -> Result<Vec<u8>, ParamsError> {
        Ok(Responder::reject(self, private_data, needs_ord)?)
    }
}

fn depths(e: Enhanced) -> PeerDepths {
    PeerDepths { ird: e.ird, ord: e.ord }
}

fn agreement(n: &Negotiated, private_data: Vec<u8>, last_word: Option<Vec<u8>>) -> Agreement {
    let rtr = match n.rtr {
        Some(rtr) => RtrConfig::Send(rtr),
        None if n.must_wait_for_first_fpdu() && !n.rtr_offered.is_empty() => {
            RtrConfig::Expect(n.rtr_offered)
        }
        None => RtrConfig::None,
    };
    let agreed = Agreed {
        transport: Transport::Iwarp,
        revision: n.revision.0,
        crc: n.crc,
        ird: n.ird,
        ord: n.ord,
        peer: n.peer.map(depths),
        rtr,
        send_markers: n.send_markers,
        recv_markers: n.recv_markers,
    };
    Agreement { agreed, role: n.role, private_data, last_word }
}
