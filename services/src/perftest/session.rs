//! The test of one client: its parameter connection, and the data connections that belong to it.

use core::net::IpAddr;
use std::time::{Duration, Instant};

use heddle_verbs::{Access, Device, DeviceError, Mr, OwnedPd, Reservation};

use super::server::Fault;
use super::wire::{Dest, Report};
use super::{Program, Test};

/// Bytes cleared in one step, which takes some 20 microseconds.
const PIECE: usize = 256 << 10;

/// The longest gap between data messages that are still arriving after a message on the parameter
/// connection reports that the client has sent them all.
const QUIET: Duration = Duration::from_millis(20);

/// The highest number of queue pairs in one test.
pub(super) const MAX_QPS: usize = 15;

/// A test, from its parameters on.
pub(super) struct Session {
    /// The client's address.
    pub(super) peer: IpAddr,
    /// The place of the parameter connection.
    pub(super) place: usize,
    pub(super) pd: OwnedPd,
    test: Test,
    memory: Memory,
    /// The number of Dests that have arrived.
    dests: u32,
    /// The queue pair of each data connection, in the order in which they came.
    pub(super) qps: Vec<DataQp>,
    /// The answer that waits, with the buffer of its question.
    pub(super) held: Option<(u32, Held)>,
    /// The arrival of the latest data message.
    last_data: Option<Instant>,
    pub(super) report: Report,
}

/// The condition for which an answer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// The memory has to be cleared.
    Memory,
    /// Data messages that may still be on their way have to arrive; the answer is this Dest.
    Quiet(Dest),
}

enum Memory {
    None,
    Clearing(Reservation),
    Ready(Mr),
}

/// A queue pair of a test.
pub(super) struct DataQp {
    /// The place of the connection, while it exists.
    pub(super) place: Option<usize>,
    pub(super) qpn: u32,
    /// The client's end, after the client has reported it.
    pub(super) client: Option<Dest>,
    /// The number of messages of `ib_write_lat` written so far.
    pub(super) written: u64,
}

impl Session {
    pub(super) fn new(test: Test, peer: IpAddr, place: usize, pd: OwnedPd) -> Session {
        Session {
            peer,
            place,
            pd,
            test,
            memory: Memory::None,
            dests: 0,
            qps: Vec::new(),
            held: None,
            last_data: None,
            report: Report::default(),
        }
    }

    /// Returns true if the session has memory, or will have; the caller then has to give its share
    /// back.
    pub(super) fn has_memory(&self) -> bool {
        !matches!(self.memory, Memory::None)
    }

    pub(super) fn reserve(&mut self, memory: Reservation) {
        self.memory = Memory::Clearing(memory);
    }

    /// Clears a piece of the memory; returns true when all of it is ready.
    pub(super) fn prepare(&mut self, device: &Device) -> Result<bool, DeviceError> {
        let Memory::Clearing(memory) = &mut self.memory else { return Ok(true) };
        if !memory.clear(PIECE) {
            return Ok(false);
        }
        let Memory::Clearing(memory) = core::mem::replace(&mut self.memory, Memory::None) else {
            return Ok(true);
        };
        let rights = match self.test.program {
            Program::WriteBw | Program::WriteLat => Access::REMOTE_WRITE,
            Program::ReadBw | Program::ReadLat => Access::REMOTE_READ,
            Program::SendBw | Program::SendLat => Access::LOCAL_WRITE,
        };
        self.memory = Memory::Ready(device.register_reserved(self.pd.id(), memory, rights)?);
        Ok(true)
    }

    /// Returns the memory, if it is ready.
    pub(super) fn region(&self) -> Option<&Mr> {
        match &self.memory {
            Memory::Ready(mr) => Some(mr),
            _ => None,
        }
    }

    /// Returns true if the server has told the client to connect its queue pairs, and the client
    /// has not yet reported that they are.
    pub(super) fn awaits_data(&self) -> bool {
        self.dests == 1 && self.held.is_none()
    }

    /// Handles a Dest. Returns the answer, or the condition for which the answer has to wait.
    pub(super) fn dest(&mut self, dest: Dest) -> Result<Result<Dest, Held>, Fault> {
        self.dests = self.dests.saturating_add(1);
        if self.dests == 1 {
            return Ok(Err(Held::Memory));
        }
        if self.qps.is_empty() {
            return Err(Fault::NoData);
        }
        let answer = if dest.is_empty() { Dest::default() } else { self.ours(dest)? };
        let busy = self.last_data.is_some_and(|t| t.elapsed() < QUIET);
        Ok(if busy { Err(Held::Quiet(answer)) } else { Ok(answer) })
    }

    /// Returns our end for the client's queue pair: the client's first queue pair gets our first.
    fn ours(&mut self, dest: Dest) -> Result<Dest, Fault> {
        let known = |q: &DataQp| q.client.is_none_or(|c| c.qpn == dest.qpn);
        let at = self.qps.iter().position(known).ok_or(Fault::NoSuchQp(dest.qpn))?;
        let region = self.region().ok_or(Fault::NoData)?;
        let (stag, to) = (region.stag().0, region.to());
        let qp = &mut self.qps[at];
        // Only the first Dest counts: the peer's memory stays in the same place during a test.
        qp.client.get_or_insert(dest);
        Ok(Dest { reads: dest.reads, qpn: qp.qpn, stag, to })
    }

    /// Records that a data message has arrived.
    pub(super) fn data(&mut self) {
        self.last_data = Some(Instant::now());
    }

    /// Returns true if no further data messages are expected.
    pub(super) fn is_quiet(&self) -> bool {
        self.last_data.is_none_or(|t| t.elapsed() >= QUIET)
    }
}
