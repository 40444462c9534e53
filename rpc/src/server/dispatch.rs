//! The way of a call from its bytes to its program, and back (RFC 5531 section 9).

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::binding::{self, Binding, Items};
use heddle_rpcrdma::rpc;
use heddle_rpcrdma::rpc::{
    Auth, AuthStat, Call, Denied, Flavor, NULL_PROCEDURE, Procedure, ReplyBody, Status,
};

use super::duplicates::{DuplicateLimits, Duplicates, Key, Verdict};
use super::outbox::{Answer, Outbox};
use super::program::{Program, Refusal, Registered, Repeat, Request, Room};
use super::{Caller, ServerCounters, Ticket};
use crate::body::{Body, Item};
use crate::credential::Credential;
use crate::memory::Share;
use crate::message::{self, Message, Part};

/// A call that a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    xid: Xid,
    procedure: Procedure,
    /// True if the call has a reply.
    pub(super) has_reply: bool,
    to: To,
}

/// The receivers of a call's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    /// All connections that have repeated the call meanwhile, and later ones if the reply is kept.
    All { key: Key, keep: bool },
    /// The connection that made the call: a repeated call is executed again.
    One(Ticket),
}

/// The result of dispatching a call.
#[derive(Debug)]
pub(crate) enum Dispatched {
    /// A program has the call, or has the same call already: the reply comes later.
    Given,
    /// The call has its reply.
    Replied(Arc<Message>),
    /// The chunks do not belong to the arguments, or the message is not a call: the transport
    /// refuses it.
    Refused,
}

/// The origin of a call.
#[derive(Clone, Copy)]
pub(crate) struct From<'a> {
    pub(crate) peer: SocketAddr,
    /// The peer address's share of the server's memory.
    pub(crate) share: Option<&'a Share>,
    pub(crate) caller: Option<&'a Caller>,
}

/// The calls that a reply answers: usually one, for which no list is allocated.
type Tickets = std::iter::Chain<std::option::IntoIter<Ticket>, std::vec::IntoIter<Ticket>>;

/// The header of a call, and the identity of its caller.
struct Called {
    xid: Xid,
    procedure: Procedure,
    credential: Result<Credential, AuthStat>,
}

/// The programs of a server, and the calls that they have.
#[derive(Debug)]
pub(crate) struct Dispatch {
    programs: Vec<Registered>,
    duplicates: Duplicates<Ticket, Arc<Message>>,
    outbox: Outbox,
}

/// The error that a program is already registered for some of these versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("program {program} has these versions or some of them already")]
pub struct AlreadyRegistered {
    /// Number of the program.
    pub program: u32,
}

impl Dispatch {
    pub(crate) fn new(limits: DuplicateLimits, outbox: Outbox) -> Dispatch {
        Dispatch { programs: Vec::new(), duplicates: Duplicates::new(limits), outbox }
    }

    pub(crate) fn register(
        &mut self,
        number: u32,
        versions: RangeInclusive<u32>,
        binding: Box<dyn Binding + Send>,
        program: Box<dyn Program>,
    ) -> Result<(), AlreadyRegistered> {
        let overlaps = |r: &Registered| {
            r.number == number
                && r.versions.start() <= versions.end()
                && versions.start() <= r.versions.end()
        };
        if versions.is_empty() || self.programs.iter().any(overlaps) {
            return Err(AlreadyRegistered { program: number });
        }
        self.programs.push(Registered { number, versions, binding, program });
        Ok(())
    }

    /// Removes all programs. The caller drops the returned value while it holds no lock.
    pub(crate) fn close(&mut self) -> impl Sized + use<> {
        std::mem::take(&mut self.programs)
    }

    /// Handles a received call: its reduced stream, and its separate items in order.
    pub(crate) fn call(
        &mut self,
        from: From<'_>,
        ticket: Ticket,
        (mut stream, items): (Vec<u8>, Vec<Item>),
        counters: &mut ServerCounters,
    ) -> Dispatched {
        let (call, rest) = match Call::decode(&stream) {
            Ok(call) => call,
            Err(error) => {
                counters.calls_unreadable += 1;
                let reply = error.reply().map(|r| Message::refusal(r.xid, r.body));
                return reply.map_or(Dispatched::Refused, Dispatched::Replied);
            }
        };
        let header = stream.len() - rest.len();
        let Call { xid, procedure, .. } = call;
        let called = Called { xid, procedure, credential: authenticate(&call) };
        stream.drain(..header);
        match self.take((from, ticket), called, (header, stream, items), counters) {
            Ok(taken) => taken,
            Err(body) => {
                counters.calls_refused += 1;
                Dispatched::Replied(Message::refusal(xid, body))
            }
        }
    }

    fn take(
        &mut self,
        (From { peer, share, caller }, ticket): (From<'_>, Ticket),
        call: Called,
        (header, bytes, items): (usize, Vec<u8>, Vec<Item>),
        counters: &mut ServerCounters,
    ) -> Result<Dispatched, ReplyBody<'static>> {
        let Called { xid, procedure, credential } = call;
        let credential = credential.map_err(denied)?;
        let registered = self.registered(procedure).map_err(accepted)?;
        if procedure.procedure == NULL_PROCEDURE {
            counters.calls_null += 1;
            return Ok(Dispatched::Replied(Message::refusal(xid, accepted(Status::Success))));
        }
        let Some(arguments) = arguments(bytes, header, items) else {
            counters.calls_refused += 1;
            return Ok(Dispatched::Refused);
        };
        let part = Part::Arguments(procedure);
        let has_reply = registered.binding.has_reply(procedure);
        let found = match message::items(&*registered.binding, part, &arguments) {
            Ok(found) => found,
            Err(binding::Error::Xdr(_) | binding::Error::TooMany) if !has_reply => {
                counters.calls_refused += 1;
                return Ok(Dispatched::Replied(Message::silence(xid)));
            }
            Err(binding::Error::Xdr(_) | binding::Error::TooMany) => {
                return Err(accepted(Status::GarbageArgs));
            }
            Err(binding::Error::Ineligible { .. } | binding::Error::Length { .. }) => {
                counters.calls_refused += 1;
                return Ok(Dispatched::Refused);
            }
        };
        let repeat = registered.program.repeat(procedure);
        let to = if repeat == Repeat::Always {
            To::One(ticket)
        } else {
            let digest = self.duplicates.digest((xid, procedure), parts(&arguments, &found));
            match self.duplicates.call((peer.ip(), xid), procedure, digest, ticket) {
                Verdict::New(key) => To::All { key, keep: repeat == Repeat::Never },
                Verdict::Running => {
                    counters.calls_repeated += 1;
                    return Ok(Dispatched::Given);
                }
                Verdict::Done(reply) => {
                    counters.calls_repeated += 1;
                    return Ok(Dispatched::Replied(reply));
                }
            }
        };
        counters.calls += 1;
        let job = Job { xid, procedure, has_reply, to };
        let reply = Some((job, self.outbox.clone()));
        let (caller, share) = (caller.cloned(), share.cloned());
        let room = Room { share, waited: None };
        self.give(Request { procedure, credential, peer, arguments, caller, room, reply });
        Ok(Dispatched::Given)
    }

    /// Gives a call to its program, also a call that has waited for room.
    pub(super) fn give(&mut self, request: Request) {
        let procedure = request.procedure;
        if let Some(registered) = self.programs.iter_mut().find(|r| r.has(procedure)) {
            registered.program.call(request);
        }
    }

    /// Takes the oldest answer of a program. Returns the tickets that wait for it, and the reply.
    pub(crate) fn next_reply(&mut self) -> Option<(Tickets, Arc<Message>)> {
        let answer = self.outbox.pop()?;
        Some(self.reply_of(answer))
    }

    /// Removes the tickets of the connection with this number, which has ended.
    pub(crate) fn leave(&mut self, ip: IpAddr, link: u64) {
        self.duplicates.leave(ip, |ticket| ticket.link == link);
    }

    fn reply_of(&mut self, (job, outcome): Answer) -> (Tickets, Arc<Message>) {
        let Job { xid, procedure, has_reply, to } = job;
        let (reply, keep) = match (outcome, self.registered(procedure)) {
            _ if !has_reply => (Message::silence(xid), true),
            (Ok(results), Ok(registered)) => {
                (Message::results(xid, procedure, results, &*registered.binding), true)
            }
            (Ok(_), Err(status)) => (Message::refusal(xid, accepted(status)), false),
            // Do not keep a temporary failure, or it would answer the call for ever.
            (Err(refusal), _) => {
                (Message::refusal(xid, refusal.into()), refusal != Refusal::SystemErr)
            }
        };
        let tickets = match to {
            // Registered memory is for calls under way, so a kept reply is copied elsewhere.
            To::All { key, keep: own } => {
                let kept = (own && keep).then_some(|| Message::flat(&reply));
                (None, self.duplicates.done(key, reply.weight(), kept))
            }
            To::One(ticket) => (Some(ticket), Vec::new()),
        };
        let tickets = tickets.0.into_iter().chain(tickets.1);
        (tickets, reply)
    }

    /// Returns the program of a procedure, or the status that explains why there is none.
    fn registered(&self, procedure: Procedure) -> Result<&Registered, Status> {
        let Procedure { program, version, .. } = procedure;
        let versions = self.programs.iter().filter(|r| r.number == program);
        let (mut low, mut high) = (u32::MAX, 0);
        for registered in versions {
            if registered.versions.contains(&version) {
                return Ok(registered);
            }
            low = low.min(*registered.versions.start());
            high = high.max(*registered.versions.end());
        }
        Err(if low > high { Status::ProgUnavail } else { Status::ProgMismatch { low, high } })
    }
}

impl Registered {
    fn has(&self, procedure: Procedure) -> bool {
        self.number == procedure.program && self.versions.contains(&procedure.version)
    }
}

impl std::convert::From<Refusal> for ReplyBody<'static> {
    fn from(refusal: Refusal) -> ReplyBody<'static> {
        match refusal {
            Refusal::ProcUnavail => accepted(Status::ProcUnavail),
            Refusal::GarbageArgs => accepted(Status::GarbageArgs),
            Refusal::SystemErr => accepted(Status::SystemErr),
            Refusal::Auth(stat) => denied(stat),
        }
    }
}

const fn accepted(status: Status) -> ReplyBody<'static> {
    ReplyBody::Accepted { verf: Auth::NONE, status }
}

const fn denied(stat: AuthStat) -> ReplyBody<'static> {
    ReplyBody::Denied(Denied::AuthError(stat))
}

/// Returns the identity of the caller. The verifier of both flavors that this end takes is
/// AUTH_NONE (RFC 5531 section 14 and Appendix A).
fn authenticate(call: &rpc::Call<'_>) -> Result<Credential, AuthStat> {
    let credential = Credential::decode(&call.cred)?;
    match call.verf.flavor() {
        Flavor::NONE if call.verf.body().is_empty() => Ok(credential),
        _ => Err(AuthStat::BAD_VERF),
    }
}

/// Returns the arguments, which follow a header of `header` bytes; `None` when an item is within
/// the header.
fn arguments(bytes: Vec<u8>, header: usize, mut items: Vec<Item>) -> Option<Body> {
    let header = u32::try_from(header).ok()?;
    for item in &mut items {
        item.position = item.position.checked_sub(header)?;
    }
    Body::received(bytes, items).ok()
}

/// Returns the bytes of arguments that come within every message: all except `eligible` items.
fn parts<'a>(arguments: &'a Body, eligible: &Items) -> Vec<&'a [u8]> {
    let bytes = arguments.bytes();
    let apart = |offset| arguments.items().iter().any(|i| i.position == offset);
    let (mut from, mut missing, mut parts) = (0usize, 0usize, Vec::new());
    for item in eligible.as_slice() {
        let padded = heddle_rpcrdma::xdr::padded(item.length as usize);
        if apart(item.offset) {
            missing += padded;
            continue;
        }
        let at = (item.offset as usize).saturating_sub(missing);
        parts.extend(bytes.get(from..at));
        from = at.saturating_add(padded);
    }
    parts.extend(bytes.get(from..));
    parts
}
