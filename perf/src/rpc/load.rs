//! The client: so many calls under way on each connection, timed and compared.
//!
//! Items lie in *slots* of registered memory, one for each call under way. Calls are answered in order, so
//! call `i` of a connection has slot `i % depth`. With `verify` each call has octets of its own, which
//! whoever gets them compares. Without it the octets are a slot's, or for GET the same for all, so that
//! nothing is done for each call; the first of each slot are compared, and for GET what lies in the slots
//! at the end.

use std::collections::VecDeque;
use std::net::SocketAddr;

use heddle_base::Instant;
use heddle_dataplane::Clock;
use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, Buffer, CallError, Client, ClientConfig, Opaque};
use heddle_verbs::{Device, Protocol};

use super::program::{BINDING, Call, MAX_SIZE};
use super::report::Work;
use super::{RpcError, RpcRun};
use crate::spec::Until;
use crate::workload::client::{Measure, Outcome};
use crate::workload::{Step, pattern};

/// A call that was made.
struct Made {
    call: PendingCall,
    number: u64,
    at: Instant,
}

/// A connection.
struct Conn {
    client: Client,
    slots: Vec<Buffer>,
    made: VecDeque<Made>,
    /// Number of the next call.
    next: u64,
    /// Whether the results come within messages, as short ones do: nothing lies in the slots then.
    in_messages: bool,
}

/// What came of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadOutcome {
    /// What was measured.
    pub outcome: Outcome,
    /// The version that was spoken.
    pub version: u32,
    /// What the transport did for a call.
    pub work: Work,
}

/// One run, from its connections to their end. [`step`](Load::step) it, with the RNIC's polls in between,
/// until it is done.
pub struct Load {
    what: RpcRun,
    conns: Vec<Conn>,
    measure: Measure,
    clock: Clock,
    /// Lent for octets.
    scratch: Vec<u8>,
    done: Option<LoadOutcome>,
}

impl Load {
    /// Prepares everything. Connections are made by the first calls.
    ///
    /// # Errors
    /// No memory, or what the device says.
    pub fn new(
        device: &Device,
        clock: &Clock,
        server: SocketAddr,
        what: RpcRun,
    ) -> Result<Load, RpcError> {
        let measure = Measure::new(clock, &what.run);
        let conns = (0..what.run.qps).map(|_| Conn::new(device, server, &what));
        let conns = conns.collect::<Result<_, _>>()?;
        Ok(Load { what, conns, measure, clock: clock.clone(), scratch: Vec::new(), done: None })
    }

    /// Does what there is to do, without waiting.
    ///
    /// # Errors
    /// The first call that failed, or had wrong octets.
    pub fn step(&mut self) -> Result<Step, RpcError> {
        if self.done.is_some() {
            for conn in &self.conns {
                conn.client.step();
            }
            return Ok(Step::Done);
        }
        let now = self.clock.now();
        self.measure.tick(now);
        let (mut busy, mut left) = (false, false);
        for conn in &mut self.conns {
            busy |= conn.client.step();
            while let Some((made, results)) = conn.taken()? {
                busy = true;
                conn.check(&self.what, made.number, &results, &mut self.scratch)?;
                self.measure.count(made.at, self.clock.now());
            }
            let over = match self.what.run.until {
                Until::Iters(n) => conn.next >= n,
                Until::Elapsed(_) => self.measure.ended.is_some(),
            };
            if !over {
                busy |= conn.make(&self.what, &self.clock, &mut self.scratch)?;
            }
            left |= !over || !conn.made.is_empty();
        }
        if left {
            return Ok(if busy { Step::Busy } else { Step::Idle });
        }
        self.end()?;
        Ok(Step::Done)
    }

    /// Calls that were measured so far.
    pub fn ops(&self) -> u64 {
        self.measure.ops
    }

    /// What was measured, once it is over.
    pub fn outcome(&self) -> Option<LoadOutcome> {
        self.done
    }

    /// Ends all connections.
    pub fn close(&self) {
        self.conns.iter().for_each(|conn| conn.client.close());
    }

    fn end(&mut self) -> Result<(), RpcError> {
        self.measure.end(self.clock.now());
        let (mut version, mut counters) = (0, Vec::new());
        for conn in &self.conns {
            conn.check_slots(&self.what)?;
            version = conn.client.version().unwrap_or(version);
            counters.extend(conn.client.transport_counters());
        }
        let work = Work::of(&counters);
        let outcome = self.measure.outcome(self.what.run.verify);
        self.done = Some(LoadOutcome { outcome, version, work });
        self.close();
        Ok(())
    }
}

impl Conn {
    fn new(device: &Device, server: SocketAddr, what: &RpcRun) -> Result<Conn, RpcError> {
        let run = &what.run;
        let config = ClientConfig {
            transport: what.transport(),
            protocol: Protocol::Mpa(run.mpa),
            binding: Box::new(BINDING),
            memory: what.memory() / run.qps.max(1) as usize,
            calls: run.depth as usize,
            ..ClientConfig::default()
        };
        let client = Client::new(device, server, config)?;
        let slots = match what.call {
            Call::Echo => 0,
            Call::Get | Call::Put => run.depth,
        };
        let mut octets = vec![0; run.size as usize];
        let slot = |slot: u32| {
            // What GET is to bring is not there before.
            let name = u64::from(slot) + u64::from(what.call == Call::Get);
            pattern::fill(&mut octets, run.seed, name);
            client.memory().take_copy(&octets)
        };
        let slots = (0..slots).map(slot).collect::<Result<_, _>>()?;
        let made = VecDeque::with_capacity(run.depth as usize);
        Ok(Conn { client, slots, made, next: 0, in_messages: false })
    }

    /// Makes calls until as many are under way as may be; whether there were any.
    fn make(
        &mut self,
        what: &RpcRun,
        clock: &Clock,
        scratch: &mut Vec<u8>,
    ) -> Result<bool, RpcError> {
        let run = &what.run;
        let most = match run.until {
            Until::Iters(n) => n,
            Until::Elapsed(_) => u64::MAX,
        };
        let mut any = false;
        while self.made.len() < run.depth as usize && self.next < most {
            let number = self.next;
            let (slot, name) = (self.slot(number), what.name(number));
            let mut arguments = Body::new();
            let call = self.client.call(what.call.procedure());
            let call = match what.call {
                Call::Echo => {
                    // Without `verify` the octets of all calls are those of the first.
                    if what.compares(number) || scratch.len() != run.size as usize {
                        scratch.resize(run.size as usize, 0);
                        pattern::fill(scratch, run.seed, name);
                    }
                    arguments.opaque(scratch)?;
                    call.results_max(run.size.saturating_add(7))
                }
                Call::Get => {
                    arguments.u64(run.seed)?.u64(name)?.u32(run.size)?;
                    slot.into_iter().fold(call, |call, slot| call.room(slot.clone()))
                }
                Call::Put => {
                    let Some(slot) = slot else { break };
                    if run.verify {
                        scratch.resize(run.size as usize, 0);
                        pattern::fill(scratch, run.seed, name);
                        // It is as long.
                        let _ = slot.write(0, scratch);
                    }
                    let compare = what.compares(number);
                    arguments.u64(run.seed)?.u64(name)?.u32(compare.into())?.item(slot.clone())?;
                    call
                }
            };
            let at = clock.now();
            let made = call.arguments(arguments).send();
            let call = made.map_err(|error| self.failed(number, error))?;
            self.made.push_back(Made { call, number, at });
            self.next += 1;
            any = true;
        }
        Ok(any)
    }

    /// The oldest call under way and its results, when they have come.
    fn taken(&mut self) -> Result<Option<(Made, Body)>, RpcError> {
        let Some(outcome) = self.made.front_mut().and_then(|made| made.call.try_take()) else {
            return Ok(None);
        };
        let Some(made) = self.made.pop_front() else { return Ok(None) };
        match outcome {
            Ok(results) => Ok(Some((made, results))),
            Err(error) => Err(self.failed(made.number, error)),
        }
    }

    fn failed(&self, number: u64, error: CallError) -> RpcError {
        RpcError::Call { number, error, failure: self.client.last_failure() }
    }

    fn slot(&self, number: u64) -> Option<&Buffer> {
        let count = self.slots.len().max(1) as u64;
        self.slots.get(usize::try_from(number % count).unwrap_or(0))
    }

    /// Looks at results as far as they are compared.
    fn check(
        &mut self,
        what: &RpcRun,
        number: u64,
        results: &Body,
        scratch: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let (run, mut r) = (&what.run, results.reader());
        let unread = |_| RpcError::Results { number };
        let wrong = match what.call {
            Call::Put => {
                let (wrong, at) = (r.flag().map_err(unread)?, r.u32().map_err(unread)?);
                wrong.then_some(at as usize)
            }
            Call::Echo | Call::Get => {
                let data = r.opaque(MAX_SIZE).map_err(unread)?;
                if data.len() != run.size as usize {
                    return Err(RpcError::Results { number });
                }
                self.in_messages = matches!(data, Opaque::Octets(_));
                let compared = what.compares(number).then(|| {
                    scratch.clear();
                    scratch.extend(data.to_vec());
                    pattern::first_difference(scratch, run.seed, what.name(number))
                });
                compared.flatten()
            }
        };
        r.finish().map_err(unread)?;
        wrong.map_or(Ok(()), |at| Err(RpcError::Wrong { number, size: run.size, at }))
    }

    /// Looks at what lies in the slots at the end of a run that has not compared each call.
    fn check_slots(&self, what: &RpcRun) -> Result<(), RpcError> {
        let RpcRun { call: Call::Get, run, .. } = what else { return Ok(()) };
        if run.verify || self.in_messages {
            return Ok(());
        }
        let first = self.next.saturating_sub(self.slots.len() as u64);
        for number in first..self.next {
            let octets = self.slot(number).map(Buffer::to_vec).unwrap_or_default();
            if let Some(at) = pattern::first_difference(&octets, run.seed, what.name(number)) {
                return Err(RpcError::Wrong { number, size: run.size, at });
            }
        }
        Ok(())
    }
}

impl RpcRun {
    /// Which octets a call has.
    fn name(&self, number: u64) -> u64 {
        match self.call {
            _ if self.run.verify => number,
            Call::Echo | Call::Get => 0,
            Call::Put => number % u64::from(self.run.depth.max(1)),
        }
    }

    /// Whether a call's octets are compared when they come.
    fn compares(&self, number: u64) -> bool {
        self.run.verify || number < u64::from(self.run.depth)
    }
}
