use heddle_iwarp::mpa::frame::Revision;
use heddle_iwarp::mpa::startup::{
    CrcPolicy, Initiator, InitiatorConfig, InitiatorStep, Negotiated, ReplyParams as MpaAccept,
    Responder, ResponderConfig, ResponderStep, StartupAction,
};

use super::{Agreement, Answer, AnswerStep, Ask, AskStep, ParamsError};
use crate::event::Agreed;
use crate::params::{AcceptTerms, ConnectTerms};

/// RDMA Reads of one peer served at a time, at most.
const MAX_IRD: u16 = 128;

/// Options of MPA.
#[derive(Clone, Copy, Debug)]
pub struct MpaOptions {
    /// The revision to ask in; the highest to answer in.
    pub revision: Revision,
    /// Whether CRCs are asked for; they are used when either side asks.
    pub crc: CrcPolicy,
}

impl Default for MpaOptions {
    /// Revision 2 with CRCs.
    fn default() -> MpaOptions {
        MpaOptions { revision: Revision::V2, crc: CrcPolicy::Required }
    }
}

pub(super) fn ask(o: &MpaOptions, p: &ConnectTerms) -> Result<Box<dyn Ask>, ParamsError> {
    let config = InitiatorConfig {
        revision: o.revision,
        crc: o.crc,
        ird: p.ird,
        max_ird: p.ird.max(MAX_IRD),
        ord: p.ord,
        private_data: &p.private_data,
        ..InitiatorConfig::default()
    };
    Ok(Box::new(Initiator::new(&config)?))
}

pub(super) fn answer(o: &MpaOptions) -> Result<Box<dyn Answer>, ParamsError> {
    let config = ResponderConfig {
        max_revision: o.revision,
        crc: o.crc,
        max_ird: MAX_IRD,
        ..ResponderConfig::default()
    };
    Ok(Box::new(Responder::new(&config)?))
}

impl Ask for Initiator {
    fn request(&self) -> Vec<u8> {
        Initiator::request(self).to_vec()
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> AskStep {
        match Initiator::handle_bytes(self, bytes) {
            Ok(InitiatorStep::NeedMore) => AskStep::NeedMore,
            Ok(InitiatorStep::Connected { negotiated, private_data, .. }) => {
                AskStep::Connected(agreement(&negotiated, private_data))
            }
            Ok(InitiatorStep::Rejected { private_data, .. }) => AskStep::Rejected { private_data },
            Err(e) => {
                let last_word = match e.action() {
                    StartupAction::Terminate(code) => self.terminate(code),
                    StartupAction::Close => None,
                };
                AskStep::Failed { error: e.into(), last_word }
            }
        }
    }
}

impl Answer for Responder {
    fn handle_bytes(&mut self, bytes: &[u8]) -> AnswerStep {
        match Responder::handle_bytes(self, bytes) {
            Ok(ResponderStep::NeedMore) => AnswerStep::NeedMore,
            Ok(ResponderStep::Request { peer, private_data, .. }) => AnswerStep::Request {
                private_data,
                peer_ird: peer.and_then(|p| p.ird.get()),
                peer_ord: peer.and_then(|p| p.ord.get()),
            },
            Err(e) => AnswerStep::Failed(e.into()),
        }
    }

    fn accept(&mut self, p: &AcceptTerms) -> Result<(Vec<u8>, Agreement), ParamsError> {
        let params = MpaAccept { ird: p.ird, ord: p.ord, private_data: &p.private_data };
        let (reply, negotiated) = Responder::accept(self, &params)?;
        Ok((reply, agreement(&negotiated, Vec::new())))
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, ParamsError> {
        Ok(Responder::reject(self, private_data)?)
    }
}

fn agreement(n: &Negotiated, private_data: Vec<u8>) -> Agreement {
    let agreed = Agreed { revision: n.revision.0, crc: n.crc, ird: n.ird, ord: n.ord };
    Agreement { agreed, send_markers: n.send_markers, role: n.role, private_data }
}
