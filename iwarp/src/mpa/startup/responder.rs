use super::{Gathered, Negotiated, Role, depth};
use crate::mpa::frame::{Enhanced, Frame, Kind};
use heddle_types::mpa::{ConfigError, CrcPolicy, Depth, Revision, Rtr, RtrSet, StartupError};

/// The settings of a responder, before it knows the initiator.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Highest revision that the responder accepts; it also accepts every lower one.
    pub max_revision: Revision,
    /// Whether the responder asks for CRCs.
    pub crc: CrcPolicy,
    /// True to ask for markers in the initiator's FPDUs.
    pub markers: bool,
    /// First messages that this side can accept; at least one if revision 2 is accepted.
    pub rtr: RtrSet,
}

impl Default for ResponderConfig {
    /// Returns both revisions, with CRCs and without markers, every first message.
    fn default() -> Self {
        ResponderConfig {
            max_revision: Revision::V2,
            crc: CrcPolicy::Required,
            markers: false,
            rtr: RtrSet::ALL,
        }
    }
}

/// The result of bytes from the initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponderStep {
    /// The Request is not complete.
    NeedMore,
    /// A good Request, which the caller [accepts](Responder::accept) or
    /// [rejects](Responder::reject).
    Request {
        /// The revision of the Request, which the Reply will have too.
        revision: Revision,
        /// The initiator wants CRCs.
        crc: bool,
        /// The initiator needs markers in what it receives.
        markers: bool,
        /// The initiator's statement of its depths and the model; `None` without RFC 6581.
        peer: Option<Enhanced>,
        /// The initiator application's data.
        private_data: Vec<u8>,
        /// Bytes of this call's slice that belong to the Request: all of them.
        consumed: usize,
    },
}

/// The settings with which the application accepts a Request.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyParams<'a> {
    /// Reads of the peer to serve at a time, whatever the initiator wants. Only a 0 becomes a 1, if
    /// a Read is the only first message that both sides can use: see [`Responder::accept`].
    pub ird: u16,
    /// Reads that this side wants to have outstanding; lowered to the initiator's IRD.
    pub ord: u16,
    /// Data for the initiator's application: up to 512 bytes, 508 if the Request was enhanced.
    pub private_data: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
struct Request {
    revision: Revision,
    crc: bool,
    markers: bool,
    peer: Option<Enhanced>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Waiting,
    Asked(Request),
    Finished,
}

/// The side that waits for the Request and sends the Reply.
///
/// The caller passes every received byte to [`handle_bytes`](Self::handle_bytes) until it returns a
/// [`Request`](ResponderStep::Request). The caller then answers the Request once, and sends the
/// Reply. After an accepting Reply both sides enter FPDU mode, where the initiator sends first.
#[derive(Clone, Debug)]
pub struct Responder {
    config: ResponderConfig,
    gathered: Gathered,
    state: State,
}

impl Responder {
    /// Makes a responder that waits for a Request.
    ///
    /// # Errors
    /// Fails with a [`ConfigError`] when the configuration does not fit the revision.
    pub fn new(config: &ResponderConfig) -> Result<Responder, ConfigError> {
        match config.max_revision {
            Revision::V2 if config.rtr.is_empty() => return Err(ConfigError::NoRtr),
            Revision::V1 | Revision::V2 => {}
            revision => return Err(ConfigError::Revision { revision }),
        }
        Ok(Responder { config: *config, gathered: Gathered::default(), state: State::Waiting })
    }

    /// Takes bytes from the initiator; the caller passes each byte once.
    ///
    /// # Errors
    /// Fails with a [`StartupError`], whose action is always to close: there is no Request to
    /// answer.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<ResponderStep, StartupError> {
        match self.state {
            State::Waiting => {}
            State::Asked(_) if !bytes.is_empty() => {
                self.state = State::Finished;
                return Err(StartupError::TrailingBytes);
            }
            State::Asked(_) | State::Finished => return Err(StartupError::Finished),
        }
        let before = self.gathered.take(bytes);
        let parsed = Frame::parse(Kind::Request, self.config.max_revision, &self.gathered.0);
        match parsed {
            Ok(None) => Ok(ResponderStep::NeedMore),
            Ok(Some((_, len))) if len - before.min(len) != bytes.len() => {
                self.state = State::Finished;
                Err(StartupError::TrailingBytes)
            }
            Ok(Some((frame, _))) => {
                let Frame { revision, crc, markers, enhanced: peer, .. } = frame;
                self.state = State::Asked(Request { revision, crc, markers, peer });
                Ok(ResponderStep::Request {
                    revision,
                    crc,
                    markers,
                    peer,
                    private_data: frame.private_data.to_vec(),
                    consumed: bytes.len(),
                })
            }
            Err(e) => {
                self.state = State::Finished;
                Err(e.into())
            }
        }
    }

    /// Returns the accepting Reply, and the settings for FPDU mode.
    ///
    /// For an application that serves no Reads, the Reply does not offer a Read as the first
    /// message, unless the initiator can send nothing else: then the application serves one Read
    /// (RFC 6581 section 9.1 allows the IRD to be raised for that).
    ///
    /// # Errors
    /// Fails with a [`ConfigError`] when there is no Request to answer or a Reply cannot express
    /// the settings; in the second case the caller can still answer in another way.
    pub fn accept(
        &mut self,
        params: &ReplyParams<'_>,
    ) -> Result<(Vec<u8>, Negotiated), ConfigError> {
        let request = self.request()?;
        // Check both depths even where the revision has no field for them.
        depth(params.ird)?;
        depth(params.ord)?;
        let mut negotiated = Negotiated {
            role: Role::Responder,
            revision: request.revision,
            crc: request.crc || self.config.crc == CrcPolicy::Required,
            send_markers: request.markers,
            recv_markers: self.config.markers,
            ird: params.ird,
            ord: params.ord,
            peer: request.peer,
            rtr: None,
            rtr_offered: RtrSet::NONE,
        };
        let enhanced = match request.peer {
            Some(peer) => Some(self.settle(&mut negotiated, peer)?),
            None => None,
        };
        let reply = Frame {
            kind: Kind::Reply,
            markers: self.config.markers,
            crc: negotiated.crc,
            reject: false,
            revision: request.revision,
            enhanced,
            private_data: params.private_data,
        }
        .emit()?;
        self.state = State::Finished;
        Ok((reply, negotiated))
    }

    /// Settles depths and the first message (RFC 6581 section 9): this side's ORD is at most the
    /// initiator's IRD, this side's IRD is the application's, and the first messages are those that
    /// both sides can use, or else those that this side can accept.
    fn settle(&self, n: &mut Negotiated, peer: Enhanced) -> Result<Enhanced, ConfigError> {
        let read = RtrSet::of(Rtr::Read);
        let mut rtr = RtrSet::NONE;
        if peer.peer_to_peer {
            let both = self.config.rtr.and(peer.rtr);
            rtr = if both.is_empty() { self.config.rtr } else { both };
            if n.ird == 0 && !rtr.without(read).is_empty() {
                rtr = rtr.without(read);
            }
            if rtr.has(Rtr::Read) && peer.ord.get().is_some() {
                // The responder serves the Read that says "ready" like any other.
                n.ird = n.ird.max(1);
            }
        }
        let ird = match peer.ord.get() {
            Some(_) => depth(n.ird)?,
            None => Depth::UNNEGOTIATED,
        };
        let ord = match peer.ird.get() {
            Some(most) => {
                n.ord = n.ord.min(most);
                depth(n.ord)?
            }
            None => Depth::UNNEGOTIATED,
        };
        n.rtr_offered = rtr;
        Ok(Enhanced { ird, ord, peer_to_peer: peer.peer_to_peer, rtr })
    }

    /// Returns the refusing Reply. The TCP connection stays open.
    ///
    /// `ord` is the number of Reads that the application needs to have outstanding, if the reason
    /// is that the initiator serves fewer (RFC 6581 section 9.1). Depths that are not the reason go
    /// back as the initiator wants them; a Request of revision 1 has no field for any.
    ///
    /// # Errors
    /// Fails with a [`ConfigError`] when there is no Request to answer or a Reply cannot express
    /// the depth.
    pub fn reject(
        &mut self,
        private_data: &[u8],
        ord: Option<u16>,
    ) -> Result<Vec<u8>, ConfigError> {
        let request = self.request()?;
        let ord = ord.map(depth).transpose()?;
        let reply = Frame {
            kind: Kind::Reply,
            markers: self.config.markers,
            crc: request.crc || self.config.crc == CrcPolicy::Required,
            reject: true,
            revision: request.revision,
            enhanced: request.peer.map(|p| Enhanced {
                ird: p.ord,
                ord: ord.filter(|_| p.ird != Depth::UNNEGOTIATED).unwrap_or(p.ird),
                peer_to_peer: p.peer_to_peer,
                rtr: if p.peer_to_peer { self.config.rtr } else { RtrSet::NONE },
            }),
            private_data,
        }
        .emit()?;
        self.state = State::Finished;
        Ok(reply)
    }

    fn request(&self) -> Result<Request, ConfigError> {
        match self.state {
            State::Asked(r) => Ok(r),
            State::Waiting | State::Finished => Err(ConfigError::NoRequest),
        }
    }
}
