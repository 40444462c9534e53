//! The server's calls to this client, between the connection and the client's programs.

use std::collections::VecDeque;

use heddle_rpcrdma::property::ReverseSupport;
use heddle_verbs::DeviceError;

use super::calls::Calls;
use super::serve::ServeConfig;
use super::session::{Phase, Session};
use crate::body::Item;
use crate::memory::Memory;
use crate::message::Message;
use crate::server::{Outbox, ServerCounters, Ticket};
use crate::transport::Link;

/// A call that no program has got yet.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) ticket: Ticket,
    /// The bytes that did not come in Read chunks.
    pub(super) stream: Vec<u8>,
    /// The items that came in Read chunks.
    pub(super) items: Vec<Item>,
}

/// The state of a client with programs.
#[derive(Debug)]
pub(super) struct Serving {
    /// Memory for received calls and the replies to them.
    pub(super) memory: Memory,
    pub(super) takes: ReverseSupport,
    /// Received calls in order; no more than a connection serves at a time.
    pub(super) arrived: VecDeque<Arrived>,
    outbox: Outbox,
    counters: ServerCounters,
}

impl Session {
    /// Begins to serve programs, whose answers come through `outbox`. Connections made from now on
    /// announce this to the server.
    pub(super) fn begin_serving(&mut self, outbox: &Outbox) -> Result<(), DeviceError> {
        if self.serving.is_some() {
            return Ok(());
        }
        let ServeConfig { memory, takes, .. } = self.config.serve;
        let memory = Memory::of_server(&self.device, self.pd, memory, self.waker.clone())?;
        let (arrived, counters) = (VecDeque::new(), ServerCounters::default());
        self.serving = Some(Serving { memory, takes, arrived, outbox: outbox.clone(), counters });
        Ok(())
    }

    /// Returns true if the client needs a connection: for its calls, or for calls of the server
    /// (draft section 4.6.5). In version 1 only a call of the client shows the server that there is
    /// a client to call.
    pub(super) fn wants_connection(&self, calls: &Calls) -> bool {
        calls.front().is_some() || (self.serving.is_some() && self.speaks.v2)
    }

    /// Returns the memory that holds the server's calls.
    pub(super) fn served_memory(&self) -> Option<&Memory> {
        self.serving.as_ref().map(|serving| &serving.memory)
    }

    /// Returns true if programs, or their answers, must have their turn.
    pub(super) fn has_to_serve(&self) -> bool {
        self.serving.as_ref().is_some_and(|s| !s.arrived.is_empty() || s.outbox.has_some())
    }

    /// Takes the oldest call that no program has got.
    pub(super) fn next_arrived(&mut self) -> Option<Arrived> {
        self.serving.as_mut()?.arrived.pop_front()
    }

    /// Replies to a call, if its connection still exists.
    pub(super) fn reply(&mut self, ticket: Ticket, message: &std::sync::Arc<Message>) {
        if let Some(link) = self.link_of(ticket) {
            link.reply(ticket.call, message);
            link.post();
        }
    }

    /// Refuses a call whose chunks do not belong to its items.
    pub(super) fn refuse(&mut self, ticket: Ticket) {
        if let Some(link) = self.link_of(ticket) {
            link.refuse(ticket.call);
            link.post();
        }
    }

    fn link_of(&mut self, ticket: Ticket) -> Option<&mut Link> {
        match &mut self.phase {
            Phase::Up { link, .. } if ticket.link == self.counters.connections => Some(link),
            _ => None,
        }
    }

    /// Gives returned memory to calls and replies that wait for some. Returns true if any of them
    /// goes on.
    pub(super) fn feed_served(&mut self) -> bool {
        let Some(serving) = &self.serving else { return false };
        if !serving.memory.take_returned() {
            return false;
        }
        match &mut self.phase {
            Phase::Up { link, closing: false, .. } => link.memory_returned(),
            _ => false,
        }
    }

    /// Stores the counters of the programs.
    pub(super) fn count_served(&mut self, counters: ServerCounters) {
        if let Some(serving) = &mut self.serving {
            serving.counters = counters;
        }
    }

    pub(super) fn served(&self) -> ServerCounters {
        self.serving.as_ref().map_or_else(ServerCounters::default, |serving| serving.counters)
    }

    pub(super) fn serving_signs(&self) -> Option<ServingSigns> {
        let serving = self.serving.as_ref()?;
        Some(ServingSigns { outbox: serving.outbox.clone(), memory: serving.memory.clone() })
    }
}

/// The sources of new work from the server's calls.
#[derive(Debug)]
pub(super) struct ServingSigns {
    outbox: Outbox,
    memory: Memory,
}

impl ServingSigns {
    /// Returns true if nothing has arrived; later arrivals wake the sleeper.
    pub(super) fn may_sleep(&self) -> bool {
        // No thread reports to the outbox that it is awake, since another thread may be the one
        // that looks before it sleeps.
        self.outbox.may_sleep() && !self.memory.has_returned()
    }
}
