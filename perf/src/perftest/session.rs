//! One client's test: its parameter connection, and the data connections that belong to it.

use core::net::IpAddr;
use std::time::{Duration, Instant};

use heddle_verbs::{Access, Device, DeviceError, Mr, OwnedPd, Reservation};

use super::server::Fault;
use super::wire::{Dest, Report};
use super::{Program, Test};

/// Octets cleared in a step: some 20 microseconds.
const PIECE: usize = 256 << 10;

/// Messages that took the way of data come no later than this behind one another, when a message on
/// the other connection says that they have all been sent.
const QUIET: Duration = Duration::from_millis(20);

/// Queue pairs of one test.
pub(super) const MAX_QPS: usize = 15;

/// A test, from its parameters on.
pub(super) struct Session {
    /// The client.
    pub(super) peer: IpAddr,
    /// Where its parameter connection is.
    pub(super) place: usize,
    pub(super) pd: OwnedPd,
    test: Test,
    memory: Memory,
    /// Dests that came.
    dests: u32,
    /// One for each data connection, in the order in which they came.
    pub(super) qps: Vec<DataQp>,
    /// The answer that waits, and the buffer of its question.
    pub(super) held: Option<(u32, Held)>,
    /// The latest message of data.
    last_data: Option<Instant>,
    pub(super) report: Report,
}

/// What an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// The memory.
    Memory,
    /// An end of messages that may still be on their way.
    Quiet(Dest),
}

enum Memory {
    None,
    Clearing(Reservation),
    Ready(Mr),
}

/// A queue pair of a test.
pub(super) struct DataQp {
    /// Where its connection is, while there is one.
    pub(super) place: Option<usize>,
    pub(super) qpn: u32,
    /// The client's end, once it has told.
    pub(super) client: Option<Dest>,
    /// Messages of `ib_write_lat` written so far.
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

    /// Has memory, or will have; what it has set aside is to be given back.
    pub(super) fn has_memory(&self) -> bool {
        !matches!(self.memory, Memory::None)
    }

    pub(super) fn reserve(&mut self, memory: Reservation) {
        self.memory = Memory::Clearing(memory);
    }

    /// Clears a piece; true when all of it is there.
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

    /// The memory, once it is there.
    pub(super) fn region(&self) -> Option<&Mr> {
        match &self.memory {
            Memory::Ready(mr) => Some(mr),
            _ => None,
        }
    }

    /// It has been told to connect its queue pairs, and has not said that they are.
    pub(super) fn awaits_data(&self) -> bool {
        self.dests == 1 && self.held.is_none()
    }

    /// A Dest has come. What is to be answered, now or when something that it waits for is there.
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

    /// The queue pair that answers the client's of this number: those that it names first come
    /// first.
    fn ours(&mut self, dest: Dest) -> Result<Dest, Fault> {
        let known = |q: &DataQp| q.client.is_none_or(|c| c.qpn == dest.qpn);
        let at = self.qps.iter().position(known).ok_or(Fault::NoSuchQp(dest.qpn))?;
        let region = self.region().ok_or(Fault::NoData)?;
        let (stag, to) = (region.stag().0, region.to());
        let qp = &mut self.qps[at];
        // Only the first is looked at: where the peer's memory is does not change in a test.
        qp.client.get_or_insert(dest);
        Ok(Dest { reads: dest.reads, qpn: qp.qpn, stag, to })
    }

    /// A message of data has come.
    pub(super) fn data(&mut self) {
        self.last_data = Some(Instant::now());
    }

    /// Whether messages of data that came earlier were the last.
    pub(super) fn is_quiet(&self) -> bool {
        self.last_data.is_none_or(|t| t.elapsed() >= QUIET)
    }
}
