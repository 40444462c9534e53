//! A pair of connections, one on either side of a gateway, and the gateway's reaction to each
//! event.

use core::net::SocketAddr;

use heddle_ib::cm::{Rej, Rep};
use heddle_types::{
    AcceptTerms, Agreed, CmId, ConnectFailure, ConnectTerms, DEFAULT_READ_DEPTH, ListenerId,
    PeerDepths, Protocol, QpSpec, Request, Transport,
};

use super::{Action, INVALID_SERVICE_ID, NO_RESOURCES, Pairing, UNSUPPORTED, reason};

/// The connection that was made for a connection that asks.
#[derive(Debug)]
pub(super) struct Pair {
    listener: ListenerId,
    /// The asker's protocol.
    transport: Transport,
    pub(super) active: CmId,
    qps: [QpSpec; 2],
    stage: Stage,
    /// Whether each side has come to its end: the asker's at index 0, the target's at index 1.
    over: [bool; 2],
}

/// One of the two connections of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Asker,
    Target,
}

/// The progress of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The target is asked.
    Asking,
    /// The target has accepted, and the gateway is accepting the asker.
    Accepting,
    /// Both connections are established.
    Up,
    /// One connection has ended, and the gateway is ending the other.
    Ending,
}

/// Returns the depths of a peer, with defaults for those that it does not announce.
fn depths(peer: Option<PeerDepths>) -> (u16, u16) {
    let told = |d: Option<u16>| d.unwrap_or(DEFAULT_READ_DEPTH);
    peer.map_or((DEFAULT_READ_DEPTH, DEFAULT_READ_DEPTH), |p| {
        (told(p.ird.get()), told(p.ord.get()))
    })
}

/// The kind of message that private data are part of.
#[derive(Clone, Copy, Debug)]
enum Said {
    Request,
    Answer,
    Rejection,
}

impl Said {
    /// Returns true if the message has room for the private data. MPA has room for all private data
    /// that come from InfiniBand. Private data from MPA may be too long for MPA's other revision;
    /// then the manager refuses the gateway's request.
    fn fits(self, transport: Transport, private_data: &[u8]) -> bool {
        let most = match self {
            Said::Request => heddle_ib::ip_cm::CONSUMER_LEN,
            Said::Answer => Rep::PRIVATE_LEN,
            Said::Rejection => Rej::PRIVATE_LEN,
        };
        transport == Transport::Iwarp || private_data.len() <= most
    }
}

impl Pairing {
    pub(super) fn asked(
        &mut self,
        id: CmId,
        listener: ListenerId,
        transport: Transport,
        remote: SocketAddr,
        private_data: Vec<u8>,
        peer: Option<PeerDepths>,
    ) {
        let Some(rule) = self.rules.get(&listener) else {
            return self.act(Action::Refuse { id, reason: INVALID_SERVICE_ID });
        };
        let mine = self.load.get(&listener).copied().unwrap_or_default();
        let to = if matches!(rule.protocol, Protocol::InfiniBand) {
            Transport::InfiniBand
        } else {
            Transport::Iwarp
        };
        let refused = if rule.from != transport {
            Some((&mut self.counters.refused_protocol, INVALID_SERVICE_ID))
        } else if rule.target.ip() == remote.ip() {
            Some((&mut self.counters.refused_loop, INVALID_SERVICE_ID))
        } else if !Said::Request.fits(to, &private_data) {
            Some((&mut self.counters.private_data_too_long, UNSUPPORTED))
        } else if mine >= rule.most || self.qps.len() < 2 {
            Some((&mut self.counters.refused_full, NO_RESOURCES))
        } else {
            None
        };
        if let Some((counter, reason)) = refused {
            *counter += 1;
            return self.act(Action::Refuse { id, reason });
        }
        let (Some(ours), Some(theirs)) = (self.qps.pop(), self.qps.pop()) else { return };
        let active = CmId(self.next);
        self.next += 1;
        // Towards the target we stand for the asker: we offer the asker's IRD and ORD as our own.
        let (ird, ord) = depths(peer);
        let (timeout, protocol, tcp) = (rule.timeout, rule.protocol, rule.tcp);
        let usual = ConnectTerms::new(theirs);
        let params = ConnectTerms { protocol, ird, ord, private_data, timeout, tcp, ..usual };
        let connect = Request::Connect { id: active, remote: rule.target, params };
        let (qps, stage, over) = ([ours, theirs], Stage::Asking, [false; 2]);
        self.pairs.insert(id, Pair { listener, transport, active, qps, stage, over });
        self.by_active.insert(active, id);
        *self.load.entry(listener).or_default() += 1;
        self.counters.forwarded += 1;
        self.request(connect);
    }

    /// Returns the connection that asks, and the side of it that `id` is.
    fn side(&self, id: CmId) -> Option<(CmId, Side)> {
        match self.by_active.get(&id) {
            Some(passive) => Some((*passive, Side::Target)),
            None => self.pairs.contains_key(&id).then_some((id, Side::Asker)),
        }
    }

    pub(super) fn established(&mut self, id: CmId, private_data: Vec<u8>, agreed: Agreed) {
        let Some((passive, side)) = self.side(id) else { return };
        let Some(pair) = self.pairs.get_mut(&passive) else { return };
        match (side, pair.stage) {
            (Side::Target, Stage::Asking) if !Said::Answer.fits(pair.transport, &private_data) => {
                self.unsayable(passive);
            }
            (Side::Target, Stage::Asking) => {
                pair.stage = Stage::Accepting;
                // Towards the asker we stand for the target.
                let (ird, ord) = depths(agreed.peer);
                let params = AcceptTerms { qp: pair.qps[0], ird, ord, private_data };
                self.request(Request::Accept { id: passive, params });
            }
            (Side::Asker, Stage::Accepting) => {
                pair.stage = Stage::Up;
                self.counters.established += 1;
            }
            // The pair is ending already, and its other side will report its end.
            _ => {}
        }
    }

    /// Passes a rejection by the target's application on to the asker.
    pub(super) fn rejected(&mut self, id: CmId, private_data: Vec<u8>) {
        let Some((passive, Side::Target)) = self.side(id) else { return };
        let Some(transport) = self.pairs.get(&passive).map(|p| p.transport) else { return };
        if self.over(passive, Side::Target) {
            self.counters.rejected += 1;
            // The rejection can go without the target's private data.
            let fits = Said::Rejection.fits(transport, &private_data);
            self.counters.private_data_too_long += u64::from(!fits);
            let private_data = if fits { private_data } else { Vec::new() };
            self.request(Request::Reject { id: passive, private_data, needs_ord: None });
            // No event follows a rejection, so the asker's side is over now.
            self.over(passive, Side::Asker);
        }
    }

    /// Ends the other side of a connection that was not established.
    pub(super) fn failed(&mut self, id: CmId, error: ConnectFailure) {
        let Some((passive, side)) = self.side(id) else { return };
        let Some(pair) = self.pairs.get(&passive) else { return };
        let active = pair.active;
        if !self.over(passive, side) {
            return;
        }
        match side {
            Side::Target => {
                self.counters.failed += 1;
                self.act(Action::Refuse { id: passive, reason: reason(error) });
                self.over(passive, Side::Asker);
            }
            Side::Asker => {
                self.counters.abandoned += 1;
                self.request(Request::Disconnect { id: active });
            }
        }
    }

    /// Ends the other side of an established connection that has ended.
    pub(super) fn ended(&mut self, id: CmId) {
        let Some((passive, side)) = self.side(id) else { return };
        let Some(pair) = self.pairs.get(&passive) else { return };
        let other = if side == Side::Target { passive } else { pair.active };
        if self.over(passive, side) {
            self.request(Request::Disconnect { id: other });
        }
    }

    /// Refuses the asker and ends the target, because the gateway cannot pass the target's private
    /// data on to the asker.
    pub(super) fn unsayable(&mut self, passive: CmId) {
        let Some(pair) = self.pairs.get(&passive) else { return };
        let id = pair.active;
        self.counters.private_data_too_long += 1;
        self.act(Action::Refuse { id: passive, reason: UNSUPPORTED });
        if self.over(passive, Side::Asker) {
            self.request(Request::Disconnect { id });
        }
    }

    /// Ends both sides, whatever their state.
    pub(super) fn give_up(&mut self, passive: CmId) {
        let Some(pair) = self.pairs.get_mut(&passive) else { return };
        let (active, over, was) = (pair.active, pair.over, pair.stage);
        pair.stage = Stage::Ending;
        if was == Stage::Ending {
            return;
        }
        if !over[Side::Target as usize] {
            self.request(Request::Disconnect { id: active });
        }
        // A request that waits ends only by an answer, and no event follows the answer.
        if was == Stage::Asking {
            self.act(Action::Refuse { id: passive, reason: NO_RESOURCES });
            self.over(passive, Side::Asker);
        } else if !over[Side::Asker as usize] {
            self.request(Request::Disconnect { id: passive });
        }
    }

    /// Marks one side as over. Returns true if the other side is to be ended now, which is so once.
    /// When both sides are over, the pair is forgotten.
    fn over(&mut self, passive: CmId, side: Side) -> bool {
        let Some(pair) = self.pairs.get_mut(&passive) else { return false };
        pair.over[side as usize] = true;
        if pair.over != [true; 2] {
            return core::mem::replace(&mut pair.stage, Stage::Ending) != Stage::Ending;
        }
        if let Some(pair) = self.pairs.remove(&passive) {
            self.by_active.remove(&pair.active);
            if let Some(load) = self.load.get_mut(&pair.listener) {
                *load -= 1;
                if *load == 0 {
                    self.load.remove(&pair.listener);
                }
            }
            for qp in pair.qps {
                self.act(Action::Spent(qp));
            }
        }
        false
    }
}
