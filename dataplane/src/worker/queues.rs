//! Applications' queues at a worker: doorbells, queue pairs, completion queues.

use std::sync::Arc;

use heddle_base::Fetch;
use heddle_engine::{Completions, Retired, Share, SharedReceives, Shares, Step};
use heddle_rings::cq::{CqLink, CqProducer};
use heddle_rings::worker::WorkerQp;
use heddle_rings::{BELLS, Bells};
use heddle_shm::closer;
use heddle_types::{AppId, ConnId, Cqe, Queue};

use crate::MbufRnic;

/// A queue pair that this worker runs.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) conn: ConnId,
    pub(super) qp: WorkerQp,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    app: AppId,
}

/// Doorbells of an application, for a worker to listen to. The thread that makes this value
/// allocates the memory that the worker needs for it.
#[derive(Debug)]
pub struct Doorbells {
    app: AppId,
    bells: Bells,
    /// By bell: the slot that it rings for, plus one; 0 if it rings for none.
    slots: Box<[u32]>,
    share: Arc<Share>,
}

impl Doorbells {
    /// Returns the doorbells of application `app`, whose connections have `share`.
    pub fn new(app: AppId, bells: Bells, share: Arc<Share>) -> Doorbells {
        Doorbells { app, bells, slots: vec![0; BELLS].into(), share }
    }
}

/// Applications for which a worker has room from the start.
const APPS: usize = 256;

/// A number that no completion queue has.
const NONE: u32 = u32::MAX;

/// The producing end of a completion queue, and the count of the queue pairs that use it.
#[derive(Debug)]
struct Producer {
    app: AppId,
    number: u32,
    users: u32,
    end: CqProducer,
}

/// The completion queues of a worker, while it writes to them.
struct Cqs<'w> {
    list: &'w mut [Option<Producer>],
    touched: &'w mut Vec<usize>,
}

impl<'w> Cqs<'w> {
    /// Writes completions of a queue pair, by runs of one of its queues; returns how many had no
    /// room. This function publishes the free places in the queues before the application sees the
    /// completions, because an application that sees a completion may post to the place of that
    /// request. The completions are staged before that, for an application whose RNIC is killed in
    /// between.
    #[inline]
    fn complete<'c>(
        &mut self,
        qp: &mut WorkerQp,
        to: [u32; 2],
        retired: Retired,
        runs: impl Iterator<Item = (Queue, impl Iterator<Item = &'c Cqe>)>,
    ) -> u64 {
        // `first` and `second` are the queues with staged completions: most queue pairs complete to
        // one queue at a time.
        let (mut lost, mut first, mut second) = (0, NONE, NONE);
        for (queue, run) in runs {
            let (cq, retired) = match queue {
                Queue::Sq => (to[0], retired.sq),
                Queue::Rq => (to[1], retired.rq),
            };
            if let Some(end) = self.producer(cq) {
                lost += end.stage(queue, retired, run);
            }
            *(if first == NONE || first == cq { &mut first } else { &mut second }) = cq;
        }
        qp.retire(retired.sq, retired.rq);
        self.publish(first);
        if second != NONE {
            self.publish(second);
        }
        lost
    }

    #[inline]
    fn publish(&mut self, cq: u32) {
        if let Some(Some(p)) = self.list.get_mut(cq as usize) {
            p.end.publish();
        }
    }

    /// Returns the producing end of a completion queue that the caller is about to write to.
    #[inline]
    fn producer(&mut self, cq: u32) -> Option<&mut CqProducer> {
        let cq = cq as usize;
        let p = self.list.get_mut(cq)?.as_mut()?;
        if !p.end.has_news() {
            self.touched.push(cq);
        }
        Some(&mut p.end)
    }
}

/// All queues of a worker.
#[derive(Debug)]
pub(super) struct Queues {
    /// This worker's number in doorbells and completion queues.
    worker: usize,
    apps: Vec<Doorbells>,
    /// By index of the connection.
    slots: Vec<Option<Box<Slot>>>,
    cqs: Vec<Option<Producer>>,
    /// Completion queues with news for waiting applications.
    touched: Vec<usize>,
    /// The shares of the queue pairs, by slot.
    pub(super) shares: Shares,
}

impl Queues {
    pub(super) fn new(worker: usize, conns: usize) -> Queues {
        Queues {
            worker,
            apps: Vec::with_capacity(APPS),
            slots: (0..conns).map(|_| None).collect(),
            cqs: Vec::with_capacity(conns.min(1024)),
            touched: Vec::with_capacity(conns.min(1024)),
            shares: Shares::default(),
        }
    }

    pub(super) fn open_app(&mut self, doorbells: Doorbells) {
        self.apps.push(doorbells);
    }

    pub(super) fn close_app(&mut self, app: AppId) {
        if let Some(at) = self.apps.iter().position(|a| a.app == app) {
            let_go(self.apps.swap_remove(at));
        }
    }

    /// Returns the share of an application.
    pub(super) fn share(&self, app: AppId) -> Option<&Arc<Share>> {
        Some(&self.apps.iter().find(|a| a.app == app)?.share)
    }

    /// Calls `f` with the slot of each queue pair whose doorbell has rung.
    #[inline]
    pub(super) fn take_bells(&self, mut f: impl FnMut(usize)) {
        for app in &self.apps {
            for bell in app.bells.take(self.worker) {
                // No queue pair has this bell, so its ring means nothing.
                if let Some(slot) = app.slots.get(bell as usize).and_then(|s| s.checked_sub(1)) {
                    f(slot as usize);
                }
            }
        }
    }

    #[inline]
    pub(super) fn slot(&mut self, index: usize) -> Option<&mut Slot> {
        self.slots.get_mut(index)?.as_deref_mut()
    }

    /// Takes a step of the look ahead at the rings of a queue pair.
    #[inline]
    pub(super) fn fetch(&self, index: usize, step: Step, fetch: impl Fetch) {
        let Some(Some(slot)) = self.slots.get(index) else { return };
        match step {
            Step::Conn => fetch.value::<Slot>(slot),
            Step::Qp => slot.qp.fetch_block(fetch),
            Step::Queues => slot.qp.fetch_words(fetch),
        }
    }

    /// Returns the slot of a connection.
    #[inline]
    pub(super) fn of(&mut self, conn: ConnId) -> Option<&mut Slot> {
        self.slot(conn.index()).filter(|s| s.conn == conn)
    }

    /// Returns true if requests, or entries that make no sense, wait in the rings of a connection's
    /// queue pair.
    pub(super) fn has_posts(&mut self, conn: ConnId) -> bool {
        self.of(conn).is_some_and(|s| s.qp.has_posts())
    }

    /// Returns true if a connection can get a queue pair.
    pub(super) fn is_free(&self, conn: ConnId) -> bool {
        self.slots.get(conn.index()).is_some_and(Option::is_none)
    }

    /// Gives a connection its queue pair, whose doorbell the worker listens to from here on.
    /// Returns the shared receive queue that the queue pair takes buffers from, if it has one.
    pub(super) fn insert(
        &mut self,
        conn: ConnId,
        app: AppId,
        mut qp: WorkerQp,
    ) -> Option<Box<dyn SharedReceives>> {
        // `take_links` returns `None` for a queue pair that was given to a worker before, which no
        // caller does: such a queue pair would have no completion queues.
        let (cqs, srq) = match qp.take_links().map(|links| *links) {
            Some(l) => ([self.cq(app, &l.send_cq), self.cq(app, &l.recv_cq)], l.srq),
            None => ([u32::MAX; 2], None),
        };
        let [send_cq, recv_cq] = cqs;
        let index = conn.index();
        if let Some(a) = self.apps.iter_mut().find(|a| a.app == app)
            && let Some(bell) = a.slots.get_mut(qp.bell() as usize)
        {
            *bell = u32::try_from(index + 1).unwrap_or(0);
        }
        qp.attach(self.worker);
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(Box::new(Slot { conn, qp, send_cq, recv_cq, app }));
        }
        srq
    }

    /// Removes the queue pair of a connection; no turn takes its application's posts afterwards.
    pub(super) fn remove(&mut self, conn: ConnId) -> Option<Box<Slot>> {
        let entry = self.slots.get_mut(conn.index())?;
        let slot = entry.take_if(|s| s.conn == conn)?;
        if let Some(a) = self.apps.iter_mut().find(|a| a.app == slot.app)
            && let Some(bell) = a.slots.get_mut(slot.qp.bell() as usize)
            // The bell may ring for another queue pair by now.
            && *bell as usize == conn.index() + 1
        {
            *bell = 0;
        }
        self.shares.leave(conn.index());
        Some(slot)
    }

    /// Releases a queue pair and its completion queues.
    pub(super) fn leave(&mut self, slot: Box<Slot>) {
        self.leave_cqs([slot.send_cq, slot.recv_cq], slot);
    }

    /// Joins the completion queues of a queue pair; returns `None` if it has joined its queues
    /// already.
    pub(super) fn join_cqs(&mut self, app: AppId, qp: &mut WorkerQp) -> Option<[u32; 2]> {
        let links = qp.take_links()?;
        Some([self.cq(app, &links.send_cq), self.cq(app, &links.recv_cq)])
    }

    /// Leaves the completion queues that `what` has used, and drops `what` on another thread.
    pub(super) fn leave_cqs(&mut self, cqs: [u32; 2], what: impl Send + 'static) {
        let ends = cqs.map(|cq| {
            let place = self.cqs.get_mut(cq as usize)?;
            let p = place.as_mut()?;
            p.users -= 1;
            if p.users > 0 {
                return None;
            }
            p.end.notify();
            place.take()
        });
        // Drop both in one piece, because each piece costs memory and a wake-up.
        let_go((what, ends));
    }

    /// Returns the number of a completion queue's producing end, for one more queue pair.
    fn cq(&mut self, app: AppId, link: &CqLink) -> u32 {
        let is = |p: &Producer| p.app == app && p.number == link.number();
        if let Some(at) = self.cqs.iter().position(|p| p.as_ref().is_some_and(is)) {
            if let Some(p) = &mut self.cqs[at] {
                p.users += 1;
                p.end.renew(link);
            }
            return number(at);
        }
        let producer =
            Producer { app, number: link.number(), users: 1, end: link.producer(self.worker) };
        let at = self.cqs.iter().position(Option::is_none).unwrap_or(self.cqs.len());
        if at == self.cqs.len() {
            self.cqs.push(None);
        }
        self.cqs[at] = Some(producer);
        number(at)
    }

    /// Makes a completion queue use its new memory.
    pub(super) fn resize_cq(&mut self, app: AppId, link: &CqLink) {
        let producer = self.cqs.iter_mut().flatten();
        match producer.into_iter().find(|p| p.app == app && p.number == link.number()) {
            Some(p) => p.end.renew(link),
            // No queue pair of this worker has the queue. The application must learn that nothing
            // more comes to the old memory.
            None => let_go(link.producer(self.worker)),
        }
    }

    /// Returns the connections that have a queue pair.
    pub(super) fn conns(&self) -> Vec<ConnId> {
        self.slots.iter().flatten().map(|s| s.conn).collect()
    }

    /// Notes that this queue never gets some of its completions.
    pub(super) fn lose(&mut self, cq: u32) {
        let Queues { cqs, touched, .. } = self;
        if let Some(end) = (Cqs { list: cqs, touched }).producer(cq) {
            end.lose();
        }
    }

    /// Writes the completions of a connection's queue pair; returns how many had no room. Without
    /// `retired`, they are its last.
    #[inline(never)]
    pub(super) fn complete(
        &mut self,
        conn: ConnId,
        all: &Completions,
        retired: Option<Retired>,
    ) -> u64 {
        let Queues { slots, cqs, touched, .. } = self;
        let slot = slots.get_mut(conn.index()).and_then(Option::as_deref_mut);
        let Some(Slot { send_cq, recv_cq, qp, .. }) = slot.filter(|s| s.conn == conn) else {
            return 0;
        };
        let retired = retired.unwrap_or_else(|| qp.taken());
        Cqs { list: cqs, touched }.complete(qp, [*send_cq, *recv_cq], retired, all.runs())
    }

    /// Writes completions of a queue pair whose connection, if it ever had one, is over; returns
    /// how many had no room.
    pub(super) fn complete_last(
        &mut self,
        qp: &mut WorkerQp,
        to: [u32; 2],
        [sends, recvs]: [&[Cqe]; 2],
    ) -> u64 {
        let runs = [(Queue::Sq, sends.iter()), (Queue::Rq, recvs.iter())];
        // An empty run must not fire a queue that is armed.
        let runs = runs.into_iter().filter(|(_, run)| run.len() > 0);
        let Queues { cqs, touched, .. } = self;
        let taken = qp.taken();
        Cqs { list: cqs, touched }.complete(qp, to, taken, runs)
    }

    /// Wakes the applications that wait for completions written since the last call.
    #[inline]
    pub(super) fn notify(&mut self) {
        while let Some(cq) = self.touched.pop() {
            if let Some(Some(p)) = self.cqs.get_mut(cq) {
                p.end.notify();
            }
        }
    }
}

/// Heap bytes that an idle established connection of iWARP takes on its side, in all layers together: TCP
/// and its tables, send and held queue, queue pair, the worker's end of the application's queues,
/// its places in this worker's tables, the connection manager's record, and a word of the
/// allocator's for each of the three pieces of memory that hold these. Posted requests come on top,
/// as do the rings that the application shares, counters that few connections need, the tables of
/// an RNIC with tenants' shares, and the state of each peer's address, however many connections it
/// has.
const CONN_BYTES: usize = MbufRnic::CONN_BYTES
    + size_of::<Slot>()
    + size_of::<Option<Box<Slot>>>()
    + size_of::<usize>()
    + heddle_cm::CONN_BYTES
    + 3 * size_of::<usize>();

const _: () = assert!(CONN_BYTES <= 2048);

/// Drops, on another thread, memory of an application of which this worker may be the last owner:
/// giving memory back takes locks, which a thread that does not run may hold.
pub(super) fn let_go(what: impl Send + 'static) {
    closer::release(closer::MEMORY, what);
}

/// Returns the number of a completion queue; there are far fewer queues than numbers.
fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
