//! The side that begins, and compares.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use heddle_base::{Random, Seed};
use heddle_services::bench::pattern;
use heddle_verbs::{
    Access, Connection, Cqe, Device, Ends, Mr, Pd, Queue, Region, SendWr, Stag, WaitError,
};

use super::account::Accounted;
use super::ledger::Ledger;
use super::{COUNTER, DEPTH, ExchangeError, Open, PATIENCE, SLOT, Tally};

/// The instructions for a client.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The server's address.
    pub remote: SocketAddr,
    /// The seed that determines bytes, lengths and operations.
    pub seed: u64,
    /// Rounds per second, of up to [`DEPTH`] messages each.
    pub rate: f64,
    /// The number of rounds after which the client replaces a connection; 0: never.
    pub rounds: u64,
    /// Bytes of the longest message, at most [`SLOT`].
    pub longest: usize,
    /// True if each connection registers memory of the program, and does not use the device's
    /// memory.
    pub own_memory: bool,
    /// True if connections may end or fail: the client then makes new ones.
    pub expendable: bool,
}

/// How long a client that its peer has left waits before the next connection.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs one connection after the other until `stop` is set.
///
/// # Errors
/// [`ExchangeError`]; with [`Plan::expendable`] no error that the peer explains.
pub fn run(
    device: &Device,
    plan: &Plan,
    stop: &AtomicBool,
    tally: &Arc<Tally>,
) -> Result<(), ExchangeError> {
    let mut random = Random::new(&Seed::from_u64(plan.seed));
    // All connections share this protection domain, which lives as long as the device.
    let pd = device.alloc_pd()?;
    while !stop.load(Ordering::Relaxed) {
        let result = Client::connect(device, pd, plan, random.next_u64())
            .and_then(|client| client.run(plan, stop, tally));
        match result {
            Err(e) if plan.expendable && e.is_of_the_peer() => std::thread::sleep(PAUSE),
            result => result?,
        }
    }
    Ok(())
}

/// The kind of a message: what it does, and what its completion has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A Write, and a Read of the written bytes.
    WriteRead,
    /// A Send, which the server returns.
    Echo,
    /// A Write with Immediate Data, which the server returns as a Send.
    Immediate,
    /// An addition to the counter.
    Add,
}

/// A message in flight.
#[derive(Clone, Copy, Debug)]
struct Message {
    number: u64,
    kind: Kind,
    /// The index of the message's place in all regions.
    slot: usize,
    len: usize,
    /// The request whose completion ends it, and its queue.
    awaits: (Queue, u64),
}

struct Client {
    account: Accounted,
    source: Mr,
    sink: Mr,
    grant: (Stag, u64),
    random: Random,
    seed: u64,
    messages: u64,
    added: u64,
    under_way: Vec<Message>,
}

impl Client {
    fn connect(device: &Device, pd: Pd, plan: &Plan, seed: u64) -> Result<Client, ExchangeError> {
        let n = u32::try_from(2 * DEPTH).unwrap_or(u32::MAX);
        let ends = Ends::with(device, pd, 3 * n, |init| init.depths(n, n))?;
        let len = DEPTH * SLOT;
        let (source, sink) = if plan.own_memory {
            let own = Arc::new(Region::shared(2 * len).map_err(std::io::Error::other)?);
            (
                device.register_mr(pd, &own, (0, len), 0, Access::NONE)?,
                device.register_mr(pd, &own, (len, len), 0, Access::LOCAL_WRITE)?,
            )
        } else {
            (
                device.alloc_mr(pd, len, Access::NONE)?,
                device.alloc_mr(pd, len, Access::LOCAL_WRITE)?,
            )
        };
        let params = heddle_verbs::ConnectParams::new(ends.qp.clone());
        let connection = device.dial_with(plan.remote, params, ends)?.wait()?;
        let grant = granted(&connection).ok_or(ExchangeError::Stranger)?;
        Ok(Client {
            account: Accounted::new(connection, Ledger::default()),
            source,
            sink,
            grant,
            random: Random::new(&Seed::from_u64(seed)),
            seed,
            messages: 0,
            added: 0,
            under_way: Vec::with_capacity(DEPTH),
        })
    }

    fn run(mut self, plan: &Plan, stop: &AtomicBool, tally: &Tally) -> Result<(), ExchangeError> {
        let _open = Open::new(tally);
        match self.rounds(plan, stop, tally) {
            Ok(()) => self.account.finish().map(drop),
            Err(e) => Err(self.account.explain(e)),
        }
    }

    fn rounds(
        &mut self,
        plan: &Plan,
        stop: &AtomicBool,
        tally: &Tally,
    ) -> Result<(), ExchangeError> {
        let mut next = Instant::now();
        let mut posted = 0;
        for round in 0.. {
            if stop.load(Ordering::Relaxed) || plan.rounds > 0 && round == plan.rounds {
                break;
            }
            let most = self.below(DEPTH);
            let begun = Instant::now();
            for slot in 0..=most {
                self.post(slot, plan.longest)?;
            }
            while !self.under_way.is_empty() || !self.account.is_settled() {
                let cqe = self.account.next(PATIENCE)?.ok_or(WaitError::TimedOut)?;
                self.complete(&cqe, tally)?;
            }
            tally.round(begun.elapsed());
            Tally::add(&tally.requests, self.account.posted() - posted);
            posted = self.account.posted();
            next += Duration::from_secs_f64(1.0 / plan.rate);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            // The client does not make up for missed rounds.
            next = next.max(Instant::now());
        }
        Ok(())
    }

    /// Returns a number below `n`.
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random.below(n as u64)).unwrap_or(0)
    }

    /// Begins a message at `slot`, where none is in flight.
    fn post(&mut self, slot: usize, longest: usize) -> Result<(), ExchangeError> {
        let number = self.messages;
        self.messages += 1;
        let at = slot * SLOT;
        let (stag, to) = (self.grant.0, self.grant.1 + (COUNTER + at) as u64);
        // Half of the messages are short.
        let bound = if self.random.below(2) == 0 { longest.min(64) } else { longest };
        let len = 1 + self.below(bound);
        let kind = match self.random.below(8) {
            0..=2 => Kind::WriteRead,
            3..=5 => Kind::Echo,
            6 => Kind::Immediate,
            _ => Kind::Add,
        };
        if kind != Kind::Add {
            let mut bytes = vec![0; len];
            pattern::fill(&mut bytes, self.seed, number);
            self.source.write(at, &bytes);
            // Cleared, so that bytes of an earlier message do not pass for this one.
            self.sink.zero(at, len.max(8));
        }
        let from = [self.source.sge(at, len)];
        let account = &mut self.account;
        let awaits = match kind {
            Kind::WriteRead => {
                account.send(|id| SendWr::write(id, &from, stag, to).unsignaled())?;
                let sink = [self.sink.sge(at, len)];
                (Queue::Sq, account.send(|id| SendWr::read(id, &sink, stag, to))?)
            }
            Kind::Echo => {
                let id = account.recv(&[self.sink.sge(at, len)])?;
                account.send(|id| SendWr::send(id, &from))?;
                (Queue::Rq, id)
            }
            Kind::Immediate => {
                let id = account.recv(&[self.sink.sge(at, SLOT)])?;
                account.send(|id| SendWr::write_immediate(id, &from, stag, to, number))?;
                (Queue::Rq, id)
            }
            Kind::Add => {
                let sink = [self.sink.sge(at, 8)];
                let (stag, to) = self.grant;
                (Queue::Sq, account.send(|id| SendWr::fetch_add(id, &sink, stag, to, 1))?)
            }
        };
        self.under_way.push(Message { number, kind, slot, len, awaits });
        Ok(())
    }

    /// Checks the received bytes if this completion is the one that a message awaits.
    fn complete(&mut self, cqe: &Cqe, tally: &Tally) -> Result<(), ExchangeError> {
        let done = |m: &Message| m.awaits == (cqe.queue, cqe.wr_id);
        let Some(n) = self.under_way.iter().position(done) else { return Ok(()) };
        let m = self.under_way.swap_remove(n);
        let bytes = self.check(&m, cqe.len as usize)?;
        Tally::add(&tally.messages, 1);
        Tally::add(&tally.bytes, bytes as u64);
        Ok(())
    }

    /// Compares the received bytes of a message, and returns how many it compared.
    fn check(&mut self, m: &Message, came: usize) -> Result<usize, ExchangeError> {
        let what = match m.kind {
            Kind::WriteRead => "what was written",
            Kind::Echo => "what was sent",
            Kind::Immediate => "Immediate Data",
            Kind::Add => "the counter",
        };
        let want = match m.kind {
            Kind::WriteRead | Kind::Echo => m.len,
            Kind::Immediate | Kind::Add => 8,
        };
        if came != want {
            return Err(ExchangeError::Length(came, want));
        }
        let mut got = vec![0; want];
        self.sink.read(m.slot * SLOT, &mut got);
        let differs = match m.kind {
            Kind::WriteRead | Kind::Echo => pattern::first_difference(&got, self.seed, m.number),
            Kind::Immediate => {
                got.iter().zip(m.number.to_be_bytes()).position(|(got, want)| *got != want)
            }
            Kind::Add => {
                // No other client adds to this counter, and the server carries out additions in
                // order.
                let found = u64::from_ne_bytes(got.try_into().unwrap_or_default());
                let want = self.added;
                self.added += 1;
                return if found == want {
                    Ok(8)
                } else {
                    Err(ExchangeError::Counter(found, want))
                };
            }
        };
        match differs {
            None => Ok(want),
            Some(at) => Err(ExchangeError::Differs { message: m.number, what, at }),
        }
    }
}

/// Returns the region that the server has granted.
fn granted(connection: &Connection) -> Option<(Stag, u64)> {
    let (stag, to) = connection.private_data().split_first_chunk()?;
    Some((Stag(u32::from_be_bytes(*stag)), u64::from_be_bytes(to.try_into().ok()?)))
}
