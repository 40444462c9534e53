use super::{ConfigError, CrcPolicy, Depths, Framing, Gathered, Negotiated, Role, StartupError};
use crate::mpa::frame::{Enhanced, Frame, Kind, Revision, Rtr, RtrSet};
use crate::rdmap::TermCode;

/// What an initiator asks for.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorConfig<'a> {
    /// Revision to speak: 2 negotiates depths and the first message, 1 neither.
    pub revision: Revision,
    /// Whether to ask for CRCs.
    pub crc: CrcPolicy,
    /// Whether to ask for markers in what the responder sends.
    pub markers: bool,
    /// Reads of the peer that can be served at a time. A responder that will have more outstanding
    /// is refused.
    pub ird: u16,
    /// Reads of ours to have outstanding; lowered to what the responder serves.
    pub ord: u16,
    /// Whether the two sides exchange `ird` and `ord`.
    pub depths: Depths,
    /// First messages we can send; empty for the client-server model, where the initiator's
    /// application sends first anyway.
    pub rtr: RtrSet,
    /// For the responder's application: up to 512 bytes, 508 in revision 2.
    pub private_data: &'a [u8],
}

impl Default for InitiatorConfig<'_> {
    /// Revision 2 with CRCs, client-server model, no Reads.
    fn default() -> Self {
        InitiatorConfig {
            revision: Revision::V2,
            crc: CrcPolicy::Required,
            markers: false,
            ird: 0,
            ord: 0,
            depths: Depths::Exchanged,
            rtr: RtrSet::NONE,
            private_data: &[],
        }
    }
}

/// What bytes from the responder led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitiatorStep {
    /// The Reply is not all there.
    NeedMore,
    /// The responder accepts: enter FPDU mode.
    Connected {
        /// What was agreed.
        negotiated: Negotiated,
        /// The responder application's data.
        private_data: Vec<u8>,
        /// Bytes of this call's slice that were the Reply's: all of them.
        consumed: usize,
    },
    /// The responder refuses. The TCP connection is left as it is; whoever wants may close it.
    Rejected {
        /// Revision of the Reply: 1 from a responder that knows no other, too.
        revision: Revision,
        /// The responder application's data.
        private_data: Vec<u8>,
        /// The depths the responder named, if any.
        peer: Option<Enhanced>,
        /// Bytes of this call's slice that were the Reply's.
        consumed: usize,
    },
}

/// The side that sends the Request.
///
/// Send [`request`](Self::request), then give every byte received to
/// [`handle_bytes`](Self::handle_bytes) until it returns something else than
/// [`NeedMore`](InitiatorStep::NeedMore).
#[derive(Clone, Debug)]
pub struct Initiator {
    request: Vec<u8>,
    revision: Revision,
    crc: bool,
    markers: bool,
    enhanced: Option<Enhanced>,
    ird: u16,
    ord: u16,
    gathered: Gathered,
    framing: Option<Framing>,
    finished: bool,
}

impl Initiator {
    /// An initiator with its Request made.
    ///
    /// # Errors
    /// [`ConfigError`] when the Request cannot be said in the revision asked for.
    pub fn new(config: &InitiatorConfig<'_>) -> Result<Initiator, ConfigError> {
        let (ird, ord) = (config.depths.say(config.ird)?, config.depths.say(config.ord)?);
        let enhanced = match config.revision {
            Revision::V1 if config.rtr.is_empty() => None,
            Revision::V1 => return Err(ConfigError::RtrNeedsRevision2),
            Revision::V2 => {
                let peer_to_peer = !config.rtr.is_empty();
                Some(Enhanced { ird, ord, peer_to_peer, rtr: config.rtr })
            }
            revision => return Err(ConfigError::Revision { revision }),
        };
        let crc = config.crc == CrcPolicy::Required;
        let request = Frame {
            kind: Kind::Request,
            markers: config.markers,
            crc,
            reject: false,
            revision: config.revision,
            enhanced,
            private_data: config.private_data,
        };
        Ok(Initiator {
            request: request.emit()?,
            revision: config.revision,
            crc,
            markers: config.markers,
            enhanced,
            ird: config.ird,
            ord: config.ord,
            gathered: Gathered::default(),
            framing: None,
            finished: false,
        })
    }

    /// The Request, to be sent before anything else.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes bytes from the responder, each once.
    ///
    /// # Errors
    /// [`StartupError`]; its [`action`](StartupError::action) says what to do then.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<InitiatorStep, StartupError> {
        if self.finished {
            return Err(StartupError::Finished);
        }
        let before = self.gathered.take(bytes);
        let step = self.reply(before, bytes.len());
        self.finished = !matches!(step, Ok(InitiatorStep::NeedMore));
        step
    }

    fn reply(&mut self, before: usize, new: usize) -> Result<InitiatorStep, StartupError> {
        let Some((frame, len)) = Frame::parse(Kind::Reply, self.revision, &self.gathered.0)? else {
            return Ok(InitiatorStep::NeedMore);
        };
        let consumed = len.saturating_sub(before);
        if frame.reject {
            // Whatever shape it has: the answer is no.
            return Ok(InitiatorStep::Rejected {
                revision: frame.revision,
                private_data: frame.private_data.to_vec(),
                peer: frame.enhanced,
                consumed,
            });
        }
        if consumed != new {
            return Err(StartupError::TrailingBytes);
        }
        if self.enhanced.is_some() != frame.enhanced.is_some() {
            return Err(StartupError::NotEnhanced { revision: frame.revision });
        }
        let framing = Framing { crc: self.crc || frame.crc, markers: frame.markers };
        self.framing = Some(framing);
        let mut negotiated = Negotiated {
            role: Role::Initiator,
            revision: frame.revision,
            crc: framing.crc,
            send_markers: framing.markers,
            recv_markers: self.markers,
            ird: self.ird,
            ord: self.ord,
            peer: frame.enhanced,
            rtr: None,
            rtr_offered: frame.enhanced.map_or(RtrSet::NONE, |e| e.rtr),
        };
        if let (Some(ours), Some(theirs)) = (self.enhanced, frame.enhanced) {
            self.settle(&mut negotiated, ours, theirs)?;
        }
        Ok(InitiatorStep::Connected {
            negotiated,
            private_data: frame.private_data.to_vec(),
            consumed,
        })
    }

    /// RFC 6581 section 9: our ORD at most the responder's IRD, our IRD at least its ORD, and one
    /// first message both can. The application has said how many Reads can be served, so an IRD
    /// that is too small cannot be raised.
    fn settle(
        &self,
        n: &mut Negotiated,
        ours: Enhanced,
        theirs: Enhanced,
    ) -> Result<(), StartupError> {
        if let (Some(max), Some(needed)) = (ours.ird.get(), theirs.ord.get())
            && needed > max
        {
            return Err(StartupError::InsufficientIrd { needed, max });
        }
        let peer_ird = theirs.ird.get();
        if let (Some(ord), Some(ird)) = (ours.ord.get(), peer_ird) {
            n.ord = ord.min(ird);
        }
        if ours.peer_to_peer != theirs.peer_to_peer {
            return Err(StartupError::Model { sent: ours.peer_to_peer, got: theirs.peer_to_peer });
        }
        if ours.peer_to_peer {
            let mut both = ours.rtr.and(theirs.rtr);
            if peer_ird == Some(0) {
                // The responder could not serve the Read.
                both = both.without(RtrSet::of(Rtr::Read));
            }
            n.rtr = both.iter().next();
            if n.rtr.is_none() {
                return Err(StartupError::NoMatchingRtr { ours: ours.rtr, theirs: theirs.rtr });
            }
        }
        Ok(())
    }

    /// An FPDU with a Terminate of `code`, as the first and last thing to send in FPDU mode;
    /// `None` before a Reply has told how FPDUs look on this connection.
    ///
    /// For [`StartupAction::Terminate`](super::StartupAction::Terminate), and with
    /// [`TermCode::MPA_LOCAL_CATASTROPHIC`] when we fail between the Reply and FPDU mode.
    pub fn terminate(&self, code: TermCode) -> Option<Vec<u8>> {
        self.framing.map(|f| f.terminate(code))
    }
}
