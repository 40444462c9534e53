use heddle_iwarp::mpa::frame::Enhanced;
use heddle_iwarp::mpa::startup::{
    Initiator, InitiatorConfig, InitiatorStep, Negotiated, ReplyParams as MpaAccept, Responder,
    ResponderConfig, ResponderStep, StartupAction, action,
};
use heddle_types::{
    AcceptTerms, Agreed, ConnectTerms, MpaOptions, ParamsError, PeerDepths, TermCode, Transport,
    mpa::{Revision, RtrConfig, RtrSet, StartupError},
};

use super::{Agreement, Answer, AnswerStep, Ask, AskStep};

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
                let last_word = match action(e) {
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
