//! Resources that the applications of one principal use together.
//!
//! A user may open many devices, so a quota for each device would limit nothing. The server of the
//! devices therefore gives all sessions of a principal one [`Account`]. A session reserves every
//! object there before it makes the object: checking and taking are one step. The account gets the
//! amount back when the object no longer exists, not when the application gives it up.

use core::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The kinds of resource that an account counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Applications: sessions with a device.
    Sessions,
    /// Bytes of memory, the principal's own and the devices'.
    Memory,
    /// Bytes of address space that sparse regions are mapped to.
    Mapped,
    /// Bytes for queues.
    Queues,
    /// Regions of memory that applications have brought.
    Regions,
    /// Connections of all the applications.
    Connections,
    /// Listeners of all the applications.
    Listeners,
    /// Queue pairs of all the applications.
    QueuePairs,
    /// Completion queues of all the applications.
    CompletionQueues,
    /// Shared receive queues of all the applications.
    SharedReceiveQueues,
    /// Protection domains.
    Domains,
    /// STags: regions, fast registrations and windows.
    Registrations,
    /// File descriptors that the RNIC's process holds for the applications.
    Descriptors,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 13] = [
        Kind::Sessions,
        Kind::Memory,
        Kind::Mapped,
        Kind::Queues,
        Kind::Regions,
        Kind::Connections,
        Kind::Listeners,
        Kind::QueuePairs,
        Kind::CompletionQueues,
        Kind::SharedReceiveQueues,
        Kind::Domains,
        Kind::Registrations,
        Kind::Descriptors,
    ];

    /// Returns the name of the kind, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Sessions => "applications of one user",
            Kind::Memory => "bytes of memory of all applications of one user",
            Kind::Mapped => "bytes of address space of all applications of one user",
            Kind::Queues => "bytes of queues of all applications of one user",
            Kind::Regions => "regions brought by all applications of one user",
            Kind::Connections => "connections of all applications of one user",
            Kind::Listeners => "listeners of all applications of one user",
            Kind::QueuePairs => "queue pairs of all applications of one user",
            Kind::CompletionQueues => "completion queues of all applications of one user",
            Kind::SharedReceiveQueues => "shared receive queues of all applications of one user",
            Kind::Domains => "protection domains of all applications of one user",
            Kind::Registrations => "registrations of all applications of one user",
            Kind::Descriptors => "descriptors held for all applications of one user",
        }
    }
}

/// The amounts that a principal may have.
pub trait Grants {
    /// Returns the amount of this kind.
    fn granted(&self, kind: Kind) -> u64;
}

/// A request exceeds the granted amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The kind of resource.
    pub kind: Kind,
    /// The granted amount.
    pub most: u64,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no more than {} {}", self.most, self.kind.name())
    }
}

/// Descriptors that the RNIC's process holds for all principals together.
#[derive(Debug)]
pub struct Descriptors {
    most: u64,
    used: AtomicU64,
}

impl Descriptors {
    /// Returns a limit of `most` descriptors.
    pub fn new(most: u64) -> Arc<Descriptors> {
        Arc::new(Descriptors { most, used: AtomicU64::new(0) })
    }
}

/// Resources that the applications of one principal have taken together, and the amounts granted.
#[derive(Debug)]
pub struct Account {
    number: u64,
    most: [AtomicU64; Kind::ALL.len()],
    used: [AtomicU64; Kind::ALL.len()],
    descriptors: Arc<Descriptors>,
    /// Amounts whose objects are on their way out; they still count.
    lingering: Mutex<Vec<Lingering>>,
}

struct Lingering {
    is_gone: Box<dyn Fn() -> bool + Send>,
    _held: Reserved,
}

impl fmt::Debug for Lingering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lingering")
    }
}

/// A reserved amount of an account; dropping this gives the amount back.
#[derive(Debug)]
pub struct Reserved {
    account: Arc<Account>,
    kind: Kind,
    n: u64,
}

impl Account {
    /// Returns an account with nothing taken, and with a number that no other account of this
    /// process has.
    pub fn new(grants: &impl Grants, descriptors: Arc<Descriptors>) -> Arc<Account> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Account {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            most: Kind::ALL.map(|kind| grants.granted(kind).into()),
            used: Kind::ALL.map(|_| AtomicU64::new(0)),
            descriptors,
            lingering: Mutex::default(),
        })
    }

    /// Returns the account's number, unique in this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Grants the amounts of `grants` from here on. Amounts already taken stay taken.
    pub fn grant(&self, grants: &impl Grants) {
        for (kind, most) in Kind::ALL.into_iter().zip(&self.most) {
            most.store(grants.granted(kind), Ordering::Relaxed);
        }
    }

    /// Returns the amount taken.
    pub fn used(&self, kind: Kind) -> u64 {
        self.sweep();
        self.used[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns true if nothing is taken.
    pub fn is_idle(&self) -> bool {
        self.sweep();
        self.used.iter().all(|used| used.load(Ordering::Relaxed) == 0)
    }

    /// Returns the amount granted.
    pub fn granted(&self, kind: Kind) -> u64 {
        self.most[kind as usize].load(Ordering::Relaxed)
    }

    /// Takes `n`, or nothing.
    ///
    /// # Errors
    /// [`Over`].
    pub fn take(self: &Arc<Account>, kind: Kind, n: u64) -> Result<Reserved, Over> {
        let most = self.granted(kind);
        let over = Over { kind, most };
        let used = &self.used[kind as usize];
        if add(used, n, most).is_err() {
            self.sweep();
            add(used, n, most).map_err(|()| over)?;
        }
        if kind == Kind::Descriptors {
            let all = &self.descriptors;
            if add(&all.used, n, all.most).is_err() {
                used.fetch_sub(n, Ordering::Relaxed);
                return Err(over);
            }
        }
        Ok(Reserved { account: Arc::clone(self), kind, n })
    }

    /// Keeps an amount reserved until `is_gone` returns true for the object that needed it.
    pub fn linger(
        self: &Arc<Account>,
        held: Reserved,
        is_gone: impl Fn() -> bool + Send + 'static,
    ) {
        if !is_gone() {
            let lingering = Lingering { is_gone: Box::new(is_gone), _held: held };
            self.lingering().push(lingering);
        }
    }

    fn sweep(&self) {
        // Drop the entries after the lock is released: an entry may hold the last reference to the
        // account.
        let gone: Vec<_> = self.lingering().extract_if(.., |l| (l.is_gone)()).collect();
        drop(gone);
    }

    fn lingering(&self) -> std::sync::MutexGuard<'_, Vec<Lingering>> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(to: &AtomicU64, n: u64, most: u64) -> Result<(), ()> {
    let more = |used: u64| used.checked_add(n).filter(|all| *all <= most);
    to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop).map_err(drop)
}

impl Reserved {
    /// Takes `n` more, or nothing.
    ///
    /// # Errors
    /// [`Over`].
    pub fn add(&mut self, n: u64) -> Result<(), Over> {
        let mut more = self.account.take(self.kind, n)?;
        self.n += core::mem::take(&mut more.n);
        Ok(())
    }

    /// Gives `n` of the reserved amount back, or all if it is less.
    pub fn give(&mut self, n: u64) {
        let n = n.min(self.n);
        self.n -= n;
        drop(Reserved { account: Arc::clone(&self.account), kind: self.kind, n });
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.account.used[self.kind as usize].fetch_sub(self.n, Ordering::Relaxed);
        if self.kind == Kind::Descriptors {
            self.account.descriptors.used.fetch_sub(self.n, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// The same amount of each kind.
    struct Each(u64);

    impl Grants for Each {
        fn granted(&self, _: Kind) -> u64 {
            self.0
        }
    }

    /// Goes through the kinds in the order of `ALL`, so that no kind counts in the place of
    /// another.
    #[test]
    fn test_every_resource_kind_is_counted_separately() {
        let all = Descriptors::new(1 << 20);
        let account = Account::new(&Each(20), all);
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            let most = 20;
            assert_eq!(account.granted(kind), most);
            let held = account.take(kind, most).unwrap();
            assert_eq!(account.take(kind, 1).err(), Some(Over { kind, most }), "{kind:?}");
            for other in Kind::ALL {
                assert_eq!(account.used(other), if other == kind { most } else { 0 });
            }
            drop(held);
            assert_eq!(account.used(kind), 0);
        }
        assert!(account.take(Kind::Memory, u64::MAX).is_err());
    }

    #[test]
    fn test_account_grants_growth_up_to_its_limit_and_shrinks_to_zero() {
        let account = Account::new(&Each(10), Descriptors::new(0));
        let mut held = account.take(Kind::Memory, 4).unwrap();
        let over = Over { kind: Kind::Memory, most: 10 };
        assert_eq!((held.add(7), held.add(6)), (Err(over), Ok(())));
        assert_eq!(account.used(Kind::Memory), 10);
        held.give(3);
        assert_eq!(account.used(Kind::Memory), 7);
        held.give(u64::MAX);
        assert_eq!(account.used(Kind::Memory), 0);
        drop(held);
        assert_eq!(account.used(Kind::Memory), 0);
    }

    #[test]
    fn test_concurrent_threads_take_no_more_than_account_grants() {
        let account = Account::new(&Each(10), Descriptors::new(0));
        let start = Barrier::new(4);
        let got: usize = std::thread::scope(|s| {
            let take = || {
                start.wait();
                (0..10).filter_map(|_| account.take(Kind::Listeners, 1).ok()).collect::<Vec<_>>()
            };
            let all: Vec<_> = (0..4).map(|_| s.spawn(take)).collect();
            let all: Vec<_> = all.into_iter().map(|t| t.join().unwrap()).collect();
            all.iter().map(Vec::len).sum()
        });
        assert_eq!((got, account.used(Kind::Listeners)), (10, 0));
    }

    #[test]
    fn test_lowered_grant_refuses_new_takes_and_keeps_existing_ones() {
        let account = Account::new(&Each(20), Descriptors::new(0));
        let held = account.take(Kind::Sessions, 3).unwrap();
        account.grant(&Each(2));
        assert!(account.take(Kind::Sessions, 1).is_err());
        drop(held);
        assert!(account.take(Kind::Sessions, 2).is_ok());
    }

    #[test]
    fn test_descriptors_of_all_accounts_share_a_common_limit() {
        let all = Descriptors::new(10);
        let [a, b] = [(); 2].map(|()| Account::new(&Each(20), all.clone()));
        let held = a.take(Kind::Descriptors, 8).unwrap();
        assert!(b.take(Kind::Descriptors, 3).is_err());
        assert_eq!(b.used(Kind::Descriptors), 0);
        drop(held);
        assert!(b.take(Kind::Descriptors, 10).is_ok());
    }

    #[test]
    fn test_lingering_object_counts_until_it_is_dropped() {
        let account = Account::new(&Each(20), Descriptors::new(0));
        let object = Arc::new(());
        let held = account.take(Kind::Memory, 7).unwrap();
        let weak = Arc::downgrade(&object);
        account.linger(held, move || weak.strong_count() == 0);
        assert_eq!(account.used(Kind::Memory), 7);
        drop(object);
        assert_eq!(account.used(Kind::Memory), 0);
    }
}
