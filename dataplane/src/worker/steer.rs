//! Steering of frames between workers that share a port which does not spread flows by a known
//! rule.
//!
//! A port that spreads flows over its queues by a rule we know (RSS), or whose queues are joined to
//! another queue each, needs little of this. If the port has fewer queues than workers, or spreads
//! by a rule of its own, the workers steer: a worker that owns a receive queue looks at the
//! addresses of each frame and hands on the frames of other workers. A worker without a transmit
//! queue hands its frames to one that has a queue.
//!
//! ```text
//!           receive queue                         transmit queue
//!                 │                                      ▲
//!                 ▼       frames of worker 1             │        frames of worker 1
//!   worker 0   Spread::steer ────────────┐        SharedTx ◀───────────┐
//!                 │ its own              │               ▲ its own     │
//!                 ▼                      ▼               │             │
//!              stack 0                stack 1         stack 0       stack 1
//! ```
//!
//! Between two workers there is a ring for each direction, with one producer and one consumer, so
//! there is no lock and no worker waits. If there is no room for a received frame, the worker drops
//! and counts it, as a NIC's full queue would; a frame to send stays with the worker that made it.
//!
//! A worker that has panicked goes on handing frames on ([`Worker::poll_closed`](super::Worker)),
//! because the others depend on its queues. A worker notices at its rings that another worker no
//! longer exists: it frees and counts the frames for that worker.

mod ring;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

use std::sync::Arc;

use arrayvec::ArrayVec;
use heddle_rings::wakeup::{WorkerWaker, WorkerWakers};
use heddle_tcp::{Rss, Spread, SpreadError};

pub use rx::{RxEnd, SteeredRx};
pub use tx::{Relay, SharedTx, TxEnd};

use crate::{Mempool, RxQueue, TxQueue};
use rx::Outlet;

/// Frames that may be on their way from one worker to another.
const RING: usize = 1024;

heddle_base::counters! {
    /// Counters of frames that passed between workers of one port.
    pub struct SteerCounters {
        /// Received frames handed to the worker that they are for.
        rx_steered,
        /// Received frames that other workers handed to this one.
        rx_from_workers,
        /// Received frames dropped because the worker that they are for was behind.
        steer_full,
        /// Frames dropped because their worker no longer exists.
        steer_gone,
        /// Copies for other workers not made because no buffer was free.
        steer_no_mbuf,
        /// Frames handed to the worker that has the transmit queue.
        tx_relayed,
        /// Frames sent for workers that have no transmit queue.
        tx_for_workers,
    }
}

/// How the frames of a port come to its workers.
#[derive(Clone, Debug)]
pub enum Sharing {
    /// There is a single worker.
    Alone,
    /// Each queue is joined to a queue of another port.
    Pairs,
    /// The port spreads flows over its queues by this rule, whose entries are queues, one for each
    /// worker.
    ByPort(Arc<Rss>),
    /// The workers spread the flows by this rule.
    BySoftware(Arc<Rss>),
}

/// A worker's ends at a port, and its share of the flows.
#[derive(Debug)]
pub struct Ends {
    /// The source of the worker's frames.
    pub rx: RxEnd,
    /// The destination of the worker's frames.
    pub tx: TxEnd,
    /// The rule that decides which connections belong to the worker.
    pub spread: Spread,
}

/// Makes the ends of `workers` workers at a port with these queues, which go to the first of them.
/// There must be at least one queue, and at most one for each worker; exactly one for each unless
/// the workers spread flows themselves. Copies of frames come from `pool`. `wakers` wakes sleeping
/// workers when other workers hand them frames; the number beside it is the first worker's.
///
/// # Errors
/// Fails if the rule is for another number of workers.
pub fn share(
    queues: Vec<(RxQueue, TxQueue)>,
    workers: u16,
    sharing: &Sharing,
    pool: Mempool,
    wakers: Option<(&Arc<WorkerWakers>, usize)>,
) -> Result<Vec<Ends>, SpreadError> {
    let spread = |me| match sharing {
        Sharing::Alone => Ok(Spread::alone()),
        Sharing::Pairs => Spread::pairs(me, workers),
        Sharing::ByPort(rss) => Spread::by_port(rss.clone(), me),
        Sharing::BySoftware(rss) => Spread::by_software(rss.clone(), me),
    };
    let spreads: Vec<Spread> = (0..workers).map(spread).collect::<Result<_, _>>()?;
    if spreads.iter().any(|s| s.workers() != workers) {
        let worker = workers.saturating_sub(1);
        return Err(SpreadError::NoSuchWorker { worker, workers: spreads[0].workers() });
    }
    let (with, all) = (queues.len(), spreads.len());
    if with == all && !spreads[0].steers() {
        let ends = |((rx, tx), spread): ((RxQueue, TxQueue), _)| Ends {
            rx: rx.into(),
            tx: tx.into(),
            spread,
        };
        return Ok(queues.into_iter().zip(spreads).map(ends).collect());
    }
    let waker = |to: usize| wakers.map(|(all, first)| WorkerWaker::new(all, first + to));
    let by_software = matches!(sharing, Sharing::BySoftware(_));
    let mut rxs: Vec<_> = spreads.iter().map(|s| steered(s.clone(), by_software, pool)).collect();
    // Make a ring from each worker that has a queue to each other worker.
    for from in 0..with {
        for to in (0..all).filter(|&to| to != from) {
            let (sender, receiver) = ring::ring(RING);
            rxs[from].outlets[to] = Some(Outlet::new(sender.waking(waker(to))));
            rxs[to].inlets.push(receiver);
        }
    }
    let mut txs = Vec::with_capacity(all);
    for (owner, (rx_queue, tx_queue)) in queues.into_iter().enumerate() {
        rxs[owner].queue = Some(rx_queue);
        txs.push(TxEnd::Queue(tx_queue));
    }
    for worker in with..all {
        let (sender, receiver) = ring::ring(RING);
        let owner = worker % with;
        let multi_segs = txs[owner].supports_multi_segs();
        let cuts = txs[owner].cuts();
        let served = txs.remove(owner).serve(receiver);
        txs.insert(owner, served);
        let counters = SteerCounters::default();
        let ring = sender.waking(waker(owner));
        txs.push(TxEnd::Relay(Box::new(Relay { ring, multi_segs, cuts, counters })));
    }
    let ends = |((rx, tx), spread)| Ends { rx: RxEnd::Steered(Box::new(rx)), tx, spread };
    Ok(rxs.into_iter().zip(txs).zip(spreads).map(ends).collect())
}

/// Returns an end that has neither queue nor rings yet.
fn steered(spread: Spread, by_software: bool, pool: Mempool) -> SteeredRx {
    SteeredRx {
        queue: None,
        outlets: (0..spread.workers()).map(|_| None).collect(),
        spread,
        by_software,
        inlets: Vec::new(),
        pool,
        taken: ArrayVec::new(),
        first: 0,
        counters: SteerCounters::default(),
    }
}
