//! Calls of the server's, as the session has them: between its connection and the programs of the client.

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

/// A call that no program has had.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) ticket: Ticket,
    /// The octets that did not come in Read chunks.
    pub(super) stream: Vec<u8>,
    /// Those that did.
    pub(super) items: Vec<Item>,
}

/// What a client with programs has.
#[derive(Debug)]
pub(super) struct Serving {
    /// For calls that come, and the replies to them.
    pub(super) memory: Memory,
    pub(super) takes: ReverseSupport,
    /// In order; no more than a connection serves at a time.
    pub(super) arrived: VecDeque<Arrived>,
    outbox: Outbox,
    counters: ServerCounters,
}

impl Session {
    /// Programs are there, whose answers come by `outbox`. Connections that are made from now on tell the
    /// server.
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

    /// Whether there is to be a connection: for calls, and for those of the server (draft section 4.6.5).
    /// In version 1 only a call tells a server that there is somebody to call.
    pub(super) fn wants_connection(&self, calls: &Calls) -> bool {
        calls.front().is_some() || (self.serving.is_some() && self.speaks.v2)
    }

    /// The memory that calls of the server's lie in.
    pub(super) fn served_memory(&self) -> Option<&Memory> {
        self.serving.as_ref().map(|serving| &serving.memory)
    }

    /// Whether programs, or their answers, are to have their turn.
    pub(super) fn has_to_serve(&self) -> bool {
        self.serving.as_ref().is_some_and(|s| !s.arrived.is_empty() || s.outbox.has_some())
    }

    /// The oldest call that no program has had.
    pub(super) fn next_arrived(&mut self) -> Option<Arrived> {
        self.serving.as_mut()?.arrived.pop_front()
    }

    /// Replies to a call, if its connection is still there.
    pub(super) fn reply(&mut self, ticket: Ticket, message: &std::sync::Arc<Message>) {
        if let Some(link) = self.link_of(ticket) {
            link.reply(ticket.call, message);
            link.post();
        }
    }

    /// Refuses a call whose chunks are not of its items.
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

    /// Gives calls and replies that wait for memory what has come back; whether any goes on.
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

    /// What programs were given, as far as they have been.
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

/// Where something of calls of the server's may come from.
#[derive(Debug)]
pub(super) struct ServingSigns {
    outbox: Outbox,
    memory: Memory,
}

impl ServingSigns {
    /// Whether nothing has come; what comes from here on wakes.
    pub(super) fn may_sleep(&self) -> bool {
        // No thread tells the outbox that it is awake: it may not be the one that looks before it sleeps.
        self.outbox.may_sleep() && !self.memory.has_returned()
    }
}
