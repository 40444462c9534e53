//! Negotiation of the version that both ends speak, and the properties that they exchange in
//! version 2 (draft sections 4.3 and 5; RFC 8166 section 4.1.2).
//!
//! A client that speaks version 2 begins with its properties, in 1024 bytes or less, so that a
//! server of version 1 can refuse them and no call is lost. A server takes the version of the first
//! message that it understands.

use super::event::{CloseReason, Event};
use super::{Connection, Side, Speaks, Stage};
use crate::header::{Refusal, Versions, Xid};
use crate::property::{self, Thresholds, Value};
use crate::v2::{self, Property, PropertySet};
use crate::{credit, v1};

/// Length in bytes of a CONNPROP_FINAL around its host authentication message.
pub(super) const HOST_AUTH_ROOM: usize = 64;

/// The XID of the messages with this end's properties, which are no RPC messages.
pub(super) const HELLO: Xid = Xid(0);

/// The number of messages in refused versions that a server takes before it gives its client up.
const REFUSED_MAX: u32 = 8;

/// The part of this end's properties that is to be sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// The numeric properties; then the host authentication message, if there is one.
    Numbers,
    /// The host authentication message.
    HostAuth,
    /// Nothing: the peer has all properties.
    Done,
}

/// The state of flow control, by version.
#[derive(Debug)]
pub(super) enum Flow {
    /// The version is not known yet.
    None,
    V1(FlowV1),
    V2(FlowV2),
}

/// Flow control of version 1: an account for each direction of calls.
#[derive(Debug)]
pub(super) struct FlowV1 {
    pub(super) calls: credit::v1::Requester,
    pub(super) serves: credit::v1::Responder,
}

/// Flow control of version 2: one account, and the state of messages in parts.
#[derive(Debug)]
pub(super) struct FlowV2 {
    pub(super) credits: credit::v2::Credits,
    pub(super) sequence: crate::sequence::Sequence,
    /// The most messages that could be sent at once. The connection has no more calls under way at
    /// a time.
    pub(super) window: u32,
}

impl Connection {
    /// Begins negotiation when the connection is new.
    pub(super) fn begin(&mut self, now: heddle_base::Instant) {
        match (self.config.side, self.config.speaks) {
            (Side::Client, Speaks { v2: false, .. }) => self.establish(v1::VERSION),
            (Side::Client, _) => {
                self.flow = Flow::V2(self.flow_v2());
                self.hello = Hello::Numbers;
                self.thresholds.send = v2::FIRST_MESSAGE_MAX;
            }
            (Side::Server, _) => {}
        }
        if self.version.is_none() {
            self.opening_ends = Some(now + self.config.negotiation_timeout);
        }
    }

    fn flow_v2(&self) -> FlowV2 {
        FlowV2 {
            credits: credit::v2::Credits::new(self.config.credits),
            sequence: crate::sequence::Sequence::new(self.config.message_max),
            window: 1,
        }
    }

    /// Returns true if the peer may still announce properties above the defaults. The negotiation
    /// timeout ends that time, since a peer need not send properties.
    pub(super) fn awaits_properties(&self) -> bool {
        self.version == Some(v2::VERSION) && self.opening_ends.is_some()
    }

    /// Returns the versions whose messages this end takes now.
    pub(super) fn versions(&self) -> Versions {
        match (self.version, self.config.side) {
            (Some(v1::VERSION), _) => Versions::V1,
            (Some(_), _) => Versions::V2,
            (None, Side::Client) => Versions::Open { v1: false, v2: true },
            (None, Side::Server) => {
                let Speaks { v1, v2 } = self.config.speaks;
                Versions::Open { v1, v2 }
            }
        }
    }

    /// Sets the version that both ends speak.
    pub(super) fn establish(&mut self, version: u32) {
        self.version = Some(version);
        self.stage = Stage::Open;
        if version == v1::VERSION {
            self.opening_ends = None;
            let terms = self.config.terms();
            self.thresholds = Thresholds { send: terms.send, receive: terms.receive };
            self.hello = Hello::Done;
            self.flow = Flow::V1(FlowV1 {
                calls: credit::v1::Requester::new(self.config.calls.into()),
                serves: credit::v1::Responder::new(self.config.served.into()),
            });
        } else {
            self.thresholds = Thresholds::DEFAULT;
            if !matches!(self.flow, Flow::V2(_)) {
                self.flow = Flow::V2(self.flow_v2());
                self.hello = Hello::Numbers;
            }
        }
        self.events.push_back(Event::Established { version });
    }

    /// Handles an error that answers a client's first message. An error in version 1, and
    /// RDMA2_ERR_VERS, mean that the peer does not speak version 2; any other error comes from a
    /// peer that does.
    pub(super) fn first_refused(&mut self, refusal: Refusal) -> Result<(), CloseReason> {
        let takes_v1 = match refusal {
            Refusal::V1(v1::Refusal::Versions { low, high })
            | Refusal::V2(v2::Refusal::Versions { low, high }) => {
                (low..=high).contains(&v1::VERSION)
            }
            Refusal::V1(v1::Refusal::Chunk) => true,
            Refusal::V2(_) => return Ok(()),
        };
        self.peer_lacks_v2 = true;
        if !takes_v1 || !self.config.speaks.v1 {
            return Err(CloseReason::NoVersion);
        }
        self.establish(v1::VERSION);
        Ok(())
    }

    /// Handles a refusal of the peer on a connection of version 2. If the peer does not take this
    /// version, this end must send nothing more (draft sections 7.1.1 and 7.1.2).
    pub(super) fn version_refused(&mut self, refusal: Refusal) -> Result<(), CloseReason> {
        match refusal {
            Refusal::V2(v2::Refusal::Versions { low, high })
                if !(low..=high).contains(&v2::VERSION) =>
            {
                self.peer_lacks_v2 = true;
                Err(CloseReason::NoVersion)
            }
            Refusal::V2(v2::Refusal::VersMismatch) => Err(CloseReason::NoVersion),
            Refusal::V1(_) | Refusal::V2(_) => Ok(()),
        }
    }

    /// Returns true if the peer has reported that it does not take calls of this header type.
    pub(super) const fn is_untaken(&self, htype: u32) -> bool {
        self.untaken & 1 << htype != 0
    }

    /// Records that the peer does not take the header type with which a call began. This end does
    /// not send that type again, not even for the rest of this call (draft section 7.1.3).
    pub(super) fn type_refused(&mut self, slot: u16) {
        let Some(row) = self.calls.at(slot) else { return };
        self.untaken |= 1 << row.htype(self.thresholds.send);
        if self.sending.is_some_and(|sequel| sequel.is_of_call(slot)) {
            self.sending = None;
        }
    }

    /// Counts a message in a version that this server refused. Returns an error after too many.
    pub(super) fn count_refused(&mut self) -> Result<(), CloseReason> {
        self.versions_refused += 1;
        if self.versions_refused > REFUSED_MAX { Err(CloseReason::NoVersion) } else { Ok(()) }
    }

    /// Takes properties of the peer, which apply when the last message of the set has come.
    pub(super) fn take_properties(
        &mut self,
        set: &PropertySet<'_>,
        last: bool,
    ) -> Result<(), CloseReason> {
        self.pending.update(set);
        for property in set.properties() {
            if let Ok(Value::HostAuth(message)) = Value::of(property) {
                self.peers_host_auth.clear();
                self.peers_host_auth.extend_from_slice(message.unwrap_or(&[]));
            }
        }
        if last {
            self.peers = self.pending;
            self.has_peers = true;
            self.opening_ends = None;
            self.thresholds = Thresholds::of(&self.config.properties, &self.peers)?;
            self.events.push_back(Event::Properties(self.peers));
        }
        Ok(())
    }

    /// Writes the next message about this end into `out`. Returns its length in bytes.
    pub(super) fn write_hello(&mut self, credit: u32, out: &mut [u8]) -> Option<usize> {
        let numbers = self.config.properties.encoded();
        let numbers = numbers.properties();
        let mut auth = [0; v2::INLINE_THRESHOLD as usize];
        let encoded = property::encode_host_auth(&self.config.host_auth, &mut auth).ok()?;
        let auth = [Property { id: property::id::HOSTAUTH, data: auth.get(..encoded)? }];
        let has_auth = !self.config.host_auth.is_empty();
        let (set, last, next) = match self.hello {
            Hello::Numbers if has_auth => (&numbers[..], false, Hello::HostAuth),
            Hello::Numbers => (&numbers[..], true, Hello::Done),
            Hello::HostAuth => (&auth[..], true, Hello::Done),
            Hello::Done => return None,
        };
        let props = PropertySet::new(set).ok()?;
        let body = v2::Body::ConnProp { last, props };
        let len = v2::Header { xid: HELLO, credit, body }.encode(out).ok()?;
        self.hello = next;
        Some(len)
    }

    /// Returns the versions that the next connection to this peer should speak, so that negotiation
    /// does not go in a loop. Version 2 is left out when this connection has shown that the peer
    /// does not speak it. A client that speaks version 1 also leaves version 2 out when the
    /// connection ended before the peer answered. `None` means that no version is left.
    pub fn next_speaks(&self) -> Option<Speaks> {
        let speaks = self.config.speaks;
        let unheard = self.version.is_none()
            && self.config.side == Side::Client
            && matches!(self.stage, Stage::Closing | Stage::Gone);
        let v2 = speaks.v2 && !self.peer_lacks_v2 && !(unheard && speaks.v1);
        (speaks.v1 || v2).then_some(Speaks { v2, ..speaks })
    }
}
