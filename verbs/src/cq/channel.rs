//! Completion events: one descriptor for several completion queues, one event for each arm.
//!
//! A worker disarms a queue with one compare-and-swap before it wakes the channel, so a queue that
//! this side has armed and that is now disarmed has fired. The channel therefore needs no queue of
//! events in shared memory: it counts wake-ups in its descriptor, and finds their queues by its own
//! record of arms and by the word ARMED.
//!
//! ```text
//!   Cq::arm ── record: armed ──▶ word ARMED ◀── worker: disarm, then one wake-up
//!                                  │                                    │
//!   event ◀── armed, and the word says NO ◀── take one wake-up ◀── descriptor
//! ```
//!
//! There are as many wake-ups as events, so the descriptor is readable exactly while there is an
//! event to fetch. When a queue is destroyed with events in it, the channel takes out their
//! wake-ups. A worker that is between its compare-and-swap and its wake-up at that moment makes the
//! descriptor readable once without an event.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use heddle_base::sync::atomic::{Ordering, fence};
use heddle_base::sync::{Mutex, MutexGuard};
use heddle_rings::Block;
use heddle_rings::layout::{armed, cq as at};
use heddle_shm::Waker;
use heddle_shm::waker::{Gathering, Source};

use super::Arm;

/// Most queues that share a waker. Apart from up to [`PILED`] unfetched events, a queue has at most
/// one wake-up in the server's socket, and a socket keeps some hundreds.
const LOT: usize = 16;

/// Number of unfetched events of one queue beyond which an arm moves the queue's wake-ups to the
/// bell, which counts without bound.
const PILED: u64 = 4;

/// Why a channel has no event.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// A signal was handled while the thread waited.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The RNICs of all completion queues of the channel no longer exist, and every event was
    /// fetched.
    #[error("the RNIC is gone")]
    Gone,
    /// The system refuses to wait.
    #[error("cannot wait: {0}")]
    System(io::Error),
}

impl From<io::Error> for ChannelError {
    fn from(e: io::Error) -> ChannelError {
        match e.kind() {
            io::ErrorKind::Interrupted => ChannelError::Interrupted,
            _ => ChannelError::System(e),
        }
    }
}

/// A descriptor for the events of several completion queues; clones are handles of the same
/// channel.
///
/// [`Device::create_cq_on`](crate::Device::create_cq_on) makes a queue whose events come here. Each
/// [`Cq::arm`](crate::Cq::arm) yields one event, which names the queue by its tag, as soon as a
/// completion arrives that the queue was armed for. This also holds when the program has polled
/// that completion meanwhile, and when it arms again before it has fetched the event. Arming a
/// queue whose arm has not fired adds no event (arming for [`Arm::Next`] widens an arm for
/// [`Arm::Solicited`], and never the other way round).
///
/// The descriptor is readable while there is an event. The program chooses whether the descriptor
/// blocks; the channel neither reads nor changes this flag:
/// [`try_event`](CompletionChannel::try_event) never waits and
/// [`get_event`](CompletionChannel::get_event) does. Several threads may wait; each event goes to
/// one of them.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    wakeups: Arc<Gathering>,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    list: Vec<Arc<Member>>,
    /// The member to look at first.
    next: usize,
    lots: Vec<Lot>,
    /// Every RNIC has ended: the descriptor stays readable.
    gone: bool,
}

/// Queues that share a waker.
#[derive(Debug)]
struct Lot {
    waker: Waker,
    number: u64,
    queues: usize,
}

/// The channel's record of one queue.
#[derive(Debug)]
pub(super) struct Member {
    tag: u64,
    block: Arc<Block>,
    lot: u64,
    state: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    /// An arm has yielded no event yet.
    armed: bool,
    /// Arms that fired before the queue was armed again.
    fired: u64,
    /// The queue's RNIC no longer exists.
    lost: bool,
}

/// A completion queue's link to its channel; when this is dropped, the queue leaves the channel.
#[derive(Debug)]
pub(super) struct Membership {
    channel: CompletionChannel,
    member: Arc<Member>,
}

/// A place in a channel for a queue that is being made.
pub(crate) struct Joining {
    channel: CompletionChannel,
    lot: u64,
    waker: Waker,
    /// The place has become that of a member.
    joined: bool,
}

impl CompletionChannel {
    /// Returns a channel without queues.
    ///
    /// # Errors
    /// The system's error if it gives no descriptors.
    pub fn new() -> io::Result<CompletionChannel> {
        let wakeups = Arc::new(Gathering::counting()?);
        Ok(CompletionChannel(Arc::new(Inner { wakeups, members: Mutex::default() })))
    }

    /// Returns the descriptor, for `poll`, `epoll` and the like. The descriptor is readable while
    /// there is an event, and for ever once the RNICs of all queues no longer exist.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.wakeups.fd()
    }

    /// Returns the number of completion queues whose events come here.
    pub fn queues(&self) -> usize {
        self.members().list.len()
    }

    /// Returns the tag of a queue that has fired, if there is one, without waiting.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn try_event(&self) -> Result<Option<u64>, ChannelError> {
        self.get_event(Some(Duration::ZERO))
    }

    /// Returns the tag of a queue that has fired; waits for one for `timeout`, or without bound.
    /// Returns `None` when no event came in time.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<u64>, ChannelError> {
        let end = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if let Some(tag) = self.take_event()? {
                return Ok(Some(tag));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            self.0.wakeups.wait_readable(left)?;
        }
    }

    /// Takes a wake-up and returns the tag of its event. Threads take wake-ups only while they hold
    /// the lock, so that another thread never counts wake-ups while one is missing.
    fn take_event(&self) -> Result<Option<u64>, ChannelError> {
        let mut members = self.members();
        while let Some(source) = self.0.wakeups.take_one()? {
            if members.gone {
                // Put a wake-up back for threads that wait or poll after this.
                self.0.wakeups.ring_times(1);
            }
            match members.find(source) {
                Some(tag) => return Ok(Some(tag)),
                None if members.gone => return Err(ChannelError::Gone),
                // The queue has left meanwhile.
                None => {}
            }
        }
        Ok(None)
    }

    #[cfg(test)]
    pub(crate) fn is_readable(&self) -> bool {
        self.0.wakeups.is_readable()
    }

    /// Returns a place with a waker for one more queue.
    pub(crate) fn begin(&self) -> Joining {
        let mut members = self.members();
        let lot = match members.lots.iter_mut().find(|lot| lot.queues < LOT) {
            Some(lot) => lot,
            None => {
                let waker = Waker::of(&self.0.wakeups);
                let number = waker.number().unwrap_or_default();
                members.lots.push(Lot { waker, number, queues: 0 });
                let last = members.lots.len() - 1;
                &mut members.lots[last]
            }
        };
        lot.queues += 1;
        let (lot, waker) = (lot.number, lot.waker.clone());
        Joining { channel: self.clone(), lot, waker, joined: false }
    }

    /// Notes that a queue of a lot has left.
    fn leave_lot(&self, members: &mut Members, number: u64) {
        let Some(i) = members.lots.iter().position(|lot| lot.number == number) else { return };
        members.lots[i].queues -= 1;
        if members.lots[i].queues > 0 {
            return;
        }
        members.lots.swap_remove(i);
        self.0.wakeups.forget(number);
        // An event takes a wake-up from any source, so the socket may have held the wake-up for an
        // event of another queue. Discard all wake-ups, and make new ones for the existing events.
        // A worker that has disarmed its queue and not yet woken the channel makes the descriptor
        // readable once without an event, but no event is without a wake-up.
        while let Ok(Some(_)) = self.0.wakeups.take_one() {}
        let events = members.list.iter().map(|member| member.events()).sum::<u64>();
        self.0.wakeups.ring_times(events.max(u64::from(members.gone)));
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Joining {
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Makes the queue a member. The queue exists by now, and the application does not have it yet.
    pub(super) fn join(mut self, block: &Arc<Block>, tag: u64) -> Membership {
        let member = Arc::new(Member {
            tag,
            block: block.clone(),
            lot: self.lot,
            state: Mutex::new(Record::default()),
        });
        let mut members = self.channel.members();
        members.list.push(member.clone());
        members.gone = false;
        drop(members);
        self.joined = true;
        Membership { channel: self.channel.clone(), member }
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if !self.joined {
            let mut members = self.channel.members();
            self.channel.leave_lot(&mut members, self.lot);
        }
    }
}

impl Members {
    /// Returns the tag of the next member with an event, and counts the event as fetched. Members
    /// that `source` wakes come first, if any of them has an event.
    fn find(&mut self, source: Source) -> Option<u64> {
        let woken = |member: &Member| match source {
            Source::Bell => true,
            Source::Server(number) => member.lot == number,
        };
        self.find_among(woken).or_else(|| self.find_among(|_| true))
    }

    fn find_among(&mut self, wanted: impl Fn(&Member) -> bool) -> Option<u64> {
        let count = self.list.len();
        for i in 0..count {
            let at = (self.next + i) % count;
            if let Some(member) = self.list.get(at)
                && wanted(member)
                && member.take_event()
            {
                self.next = (at + 1) % count;
                return Some(member.tag);
            }
        }
        None
    }
}

impl Member {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the queue was armed and is not armed any more. The caller holds the record's
    /// lock.
    fn has_fired(&self, record: &Record) -> bool {
        // Acquire: a thread that gets the event finds its completion.
        record.armed && self.block.words()[at::ARMED].load(Ordering::Acquire) == armed::NO
    }

    /// Returns the number of events not fetched yet.
    fn events(&self) -> u64 {
        let record = self.record();
        record.fired + u64::from(self.has_fired(&record))
    }

    fn take_event(&self) -> bool {
        let mut record = self.record();
        if self.has_fired(&record) {
            record.armed = false;
            record.fired += 1;
        }
        let is_there = record.fired > 0;
        record.fired -= u64::from(is_there);
        is_there
    }
}

impl Membership {
    /// See [`Cq::arm`](crate::Cq::arm).
    pub(super) fn arm(&self, arm: Arm) {
        let mut record = self.member.record();
        let before = self.member.block.words()[at::ARMED].fetch_max(arm.word(), Ordering::SeqCst);
        // As in `Cq::arm`.
        fence(Ordering::SeqCst);
        if record.armed && before == armed::NO {
            record.fired += 1;
        }
        record.armed = true;
        if record.lost {
            // No worker will look at the word, so fire at once.
            self.member.block.words()[at::ARMED].store(armed::NO, Ordering::SeqCst);
            self.channel.0.wakeups.ring();
        }
        let is_piled = record.fired > PILED;
        drop(record);
        if is_piled {
            self.unpile();
        }
    }

    /// See [`Cq::notify`](crate::Cq::notify).
    pub(super) fn fire(&self) {
        // Does as `CqProducer::notify`. If a worker disarms the queue at the same time, only one of
        // the two swaps finds the arm and yields the event.
        if self.member.block.words()[at::ARMED].swap(armed::NO, Ordering::AcqRel) != armed::NO {
            self.channel.0.wakeups.ring();
        }
    }

    /// See [`Cq::notify_of_rest`](crate::Cq::notify_of_rest).
    pub(super) fn fire_if_any(&self) {
        let armed = &self.member.block.words()[at::ARMED];
        // As in `fire`.
        let any =
            armed.compare_exchange(armed::NEXT, armed::NO, Ordering::AcqRel, Ordering::Relaxed);
        if any.is_ok() {
            self.channel.0.wakeups.ring();
        }
    }

    /// Moves the wake-ups of the queue's socket to the bell, because a full socket loses wake-ups.
    #[cold]
    fn unpile(&self) {
        let _members = self.channel.members();
        let wakeups = &self.channel.0.wakeups;
        wakeups.ring_times(wakeups.take_all_of(self.member.lot));
    }

    /// Notes that the RNIC no longer exists: an armed queue fires, since no worker will wake the
    /// program any more.
    pub(super) fn lose(&self) {
        let mut members = self.channel.members();
        let is_armed = {
            let mut record = self.member.record();
            self.member.block.words()[at::ARMED].store(armed::NO, Ordering::SeqCst);
            record.lost = true;
            record.armed
        };
        members.gone = members.list.iter().all(|member| member.record().lost);
        // This wakes once too often where the arm had fired before the worker ended: this side does
        // not know whether the worker came to wake the channel.
        if is_armed || members.gone {
            self.channel.0.wakeups.ring();
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut members = self.channel.members();
        members.list.retain(|member| !Arc::ptr_eq(member, &self.member));
        let (events, lost) = {
            let record = self.member.record();
            // The swap disarms the queue, so no wake-up follows from here on.
            let before = self.member.block.words()[at::ARMED].swap(armed::NO, Ordering::AcqRel);
            let fired = record.armed && before == armed::NO;
            (record.fired + u64::from(fired), record.lost)
        };
        if !lost {
            // A wake-up that is still on its way will find no event.
            for _ in 0..events {
                let _ = self.channel.0.wakeups.take_one();
            }
        }
        self.channel.leave_lot(&mut members, self.member.lot);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
