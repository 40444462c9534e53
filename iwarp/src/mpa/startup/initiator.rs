use super::{Framing, Gathered, Negotiated, Role, stated};
use crate::mpa::frame::{Enhanced, Frame, Kind};
use heddle_types::{
    TermCode,
    mpa::{ConfigError, CrcPolicy, Depths, Revision, Rtr, RtrSet, StartupError},
};

/// The settings of an initiator.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorConfig<'a> {
    /// Revision of the Request: 2 negotiates depths and the first message, 1 neither.
    pub revision: Revision,
    /// Whether the initiator asks for CRCs.
    pub crc: CrcPolicy,
    /// True to ask for markers in the responder's FPDUs.
    pub markers: bool,
    /// Reads of the peer that this side can serve at a time. The initiator refuses a responder that
    /// will have more outstanding.
    pub ird: u16,
    /// Reads that this side wants to have outstanding; lowered to the number that the responder
    /// serves.
    pub ord: u16,
    /// Whether the two sides exchange `ird` and `ord`.
    pub depths: Depths,
    /// First messages that this side can send; empty for the client-server model, where the
    /// initiator's application sends first anyway.
    pub rtr: RtrSet,
    /// Data for the responder's application: up to 512 bytes, 508 in revision 2.
    pub private_data: &'a [u8],
}

impl Default for InitiatorConfig<'_> {
    /// Returns revision 2 with CRCs, client-server model, no Reads.
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

/// The result of bytes from the responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitiatorStep {
    /// The Reply is not complete.
    NeedMore,
    /// The responder accepts: enter FPDU mode.
    Connected {
        /// The settings that both sides agreed on.
        negotiated: Negotiated,
        /// The responder application's data.
        private_data: Vec<u8>,
        /// Bytes of this call's slice that belong to the Reply: all of them.
        consumed: usize,
    },
    /// The responder refuses. The TCP connection stays open; the caller may close it.
    Rejected {
        /// Revision of the Reply: also 1 from a responder that knows no other.
        revision: Revision,
        /// The responder application's data.
        private_data: Vec<u8>,
        /// The depths that the responder named, if any.
        peer: Option<Enhanced>,
        /// Bytes of this call's slice that belong to the Reply.
        consumed: usize,
    },
}

/// The side that sends the Request.
///
/// The caller sends [`request`](Self::request), then passes every received byte to
/// [`handle_bytes`](Self::handle_bytes) until it returns another step than
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
    /// Makes an initiator and its Request.
    ///
    /// # Errors
    /// Fails with a [`ConfigError`] when the revision cannot express the Request.
    pub fn new(config: &InitiatorConfig<'_>) -> Result<Initiator, ConfigError> {
        let (ird, ord) = (stated(config.depths, config.ird)?, stated(config.depths, config.ord)?);
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

    /// Returns the Request, which the caller sends before all other bytes.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes bytes from the responder; the caller passes each byte once.
    ///
    /// # Errors
    /// Fails with a [`StartupError`], whose [`action`](super::action) is the next step.
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
            // The answer is no, whatever shape the Reply has.
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

    /// Settles depths and the first message (RFC 6581 section 9): this side's ORD is at most the
    /// responder's IRD, this side's IRD is at least the responder's ORD, and both sides can use one
    /// first message. The application has fixed the number of Reads that it serves, so this
    /// function cannot raise an IRD that is too small.
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
                // The responder serves no Reads, so it could not serve this one.
                both = both.without(RtrSet::of(Rtr::Read));
            }
            n.rtr = both.iter().next();
            if n.rtr.is_none() {
                return Err(StartupError::NoMatchingRtr { ours: ours.rtr, theirs: theirs.rtr });
            }
        }
        Ok(())
    }

    /// Returns an FPDU with a Terminate of `code`, as the first and last thing to send in FPDU
    /// mode; `None` before a Reply has settled the form of FPDUs on this connection.
    ///
    /// The caller sends it for [`StartupAction::Terminate`](super::StartupAction::Terminate), and
    /// with [`TermCode::MPA_LOCAL_CATASTROPHIC`] when this side fails between the Reply and FPDU
    /// mode.
    pub fn terminate(&self, code: TermCode) -> Option<Vec<u8>> {
        self.framing.map(|f| f.terminate(code))
    }
}
