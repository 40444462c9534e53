//! The client: it keeps a number of calls in flight on each connection, times and compares them.
//!
//! Items lie in *slots* of registered memory, one for each call in flight. The server answers calls
//! in order, so call `i` of a connection has slot `i % depth`. With `verify` each call has bytes of
//! its own, and the receiving end compares them. Without `verify` the bytes belong to a slot, or
//! for GET are the same for all calls, so that the client does no work per call; it compares the
//! first call of each slot, and for GET the contents of the slots at the end.

use std::collections::VecDeque;
use std::net::SocketAddr;

use heddle_base::Instant;
use heddle_dataplane::Clock;
use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, Buffer, CallError, Client, ClientConfig, Opaque};
use heddle_services::Step;
use heddle_services::bench::pattern;
use heddle_services::rpc::program::{BINDING, Call, MAX_SIZE};
use heddle_verbs::{Device, Protocol};

use super::report::Work;
use super::{RpcError, RpcRun};
use crate::spec::Until;
use crate::workload::client::{Measure, Outcome};

/// A call that was made.
struct Made {
    call: PendingCall,
    number: u64,
    at: Instant,
}

/// A connection, with its slots and its calls in flight.
struct Conn {
    client: Client,
    slots: Vec<Buffer>,
    made: VecDeque<Made>,
    /// The number of the next call.
    next: u64,
    /// True if the results arrive within messages, as short ones do: the slots then receive
    /// nothing.
    in_messages: bool,
}

/// The result of a load.
#[derive(Clone, Debug)]
pub struct LoadOutcome {
    /// The measured figures.
    pub outcome: Outcome,
    /// The version of RPC-over-RDMA that the connections used.
    pub version: u32,
    /// The transport's work per call.
    pub work: Work,
}

/// A run, from its connections to their end. The caller calls [`step`](Load::step), with the RNIC's
/// polls in between, until the run is done.
pub struct Load {
    what: RpcRun,
    conns: Vec<Conn>,
    measure: Measure,
    clock: Clock,
    /// A buffer for the bytes of a call, reused from call to call.
    scratch: Vec<u8>,
    done: Option<LoadOutcome>,
}

impl Load {
    /// Prepares everything. The first calls make the connections.
    ///
    /// # Errors
    /// There is no memory, or the device refuses.
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

    /// Does the work that is due, without waiting.
    ///
    /// # Errors
    /// The error of the first call that failed or had wrong bytes.
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

    /// Returns the number of calls measured so far.
    pub fn ops(&self) -> u64 {
        self.measure.ops
    }

    /// Returns the measured figures after the end of the run.
    pub fn outcome(&self) -> Option<LoadOutcome> {
        self.done.clone()
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
        let mut bytes = vec![0; run.size as usize];
        let slot = |slot: u32| {
            // For GET the slots begin with other bytes than the calls bring.
            let name = u64::from(slot) + u64::from(what.call == Call::Get);
            pattern::fill(&mut bytes, run.seed, name);
            client.memory().take_copy(&bytes)
        };
        let slots = (0..slots).map(slot).collect::<Result<_, _>>()?;
        let made = VecDeque::with_capacity(run.depth as usize);
        Ok(Conn { client, slots, made, next: 0, in_messages: false })
    }

    /// Makes calls until the depth is reached. Returns true if there were any.
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
                    // Without `verify` all calls have the bytes of the first.
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
                        // The slot has the same length as the item, so the write fits.
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

    /// Returns the oldest call in flight and its results, if they have arrived.
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

    /// Compares results, as far as the run compares them.
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
                self.in_messages = matches!(data, Opaque::Bytes(_));
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

    /// Compares the contents of the slots at the end of a run that has not compared each call.
    fn check_slots(&self, what: &RpcRun) -> Result<(), RpcError> {
        let RpcRun { call: Call::Get, run, .. } = what else { return Ok(()) };
        if run.verify || self.in_messages {
            return Ok(());
        }
        let first = self.next.saturating_sub(self.slots.len() as u64);
        for number in first..self.next {
            let bytes = self.slot(number).map(Buffer::to_vec).unwrap_or_default();
            if let Some(at) = pattern::first_difference(&bytes, run.seed, what.name(number)) {
                return Err(RpcError::Wrong { number, size: run.size, at });
            }
        }
        Ok(())
    }
}

impl RpcRun {
    /// Returns the number that determines the bytes of a call.
    fn name(&self, number: u64) -> u64 {
        match self.call {
            _ if self.run.verify => number,
            Call::Echo | Call::Get => 0,
            Call::Put => number % u64::from(self.run.depth.max(1)),
        }
    }

    /// Returns true if the client compares the bytes of a call when they arrive.
    fn compares(&self, number: u64) -> bool {
        self.run.verify || number < u64::from(self.run.depth)
    }
}
