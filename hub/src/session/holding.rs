//! Pages of a client's sparse region, on their way to be populated.
//!
//! As in [`preparing`](super::preparing), a lane of [`closer`] populates them, piece by piece. A
//! session that [may wait itself](super::Session::of_own_user) populates small registrations
//! itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_shm::account::Account;
use heddle_shm::region::{Hold, HoldError, Holding};
use heddle_shm::{Region, Waker, closer};

/// Pages that a lane populates.
#[derive(Debug)]
pub(super) struct Populating {
    done: Arc<Mutex<Option<Result<Hold, HoldError>>>>,
}

impl Populating {
    /// Holds `[off, off + len)` of `region` on `account` at once; `lane` will release the pages.
    pub(super) fn at_once(
        region: Arc<Region>,
        range: (usize, usize),
        account: &Arc<Account>,
        lane: usize,
    ) -> Populating {
        let held = Holding::start(region, range, account, lane).and_then(|mut holding| {
            loop {
                match holding.step() {
                    Ok(false) => {}
                    Ok(true) => return Ok(holding.finish()),
                    Err(e) => {
                        holding.abandon();
                        return Err(e);
                    }
                }
            }
        });
        Populating { done: Arc::new(Mutex::new(Some(held))) }
    }

    /// Makes `lane` hold `[off, off + len)` of `region` on `account`, and wakes `waker` when the
    /// lane holds the pages or has failed.
    pub(super) fn start(
        region: Arc<Region>,
        range: (usize, usize),
        account: Arc<Account>,
        lane: usize,
        waker: Waker,
    ) -> Populating {
        let done = Arc::new(Mutex::new(None));
        let told = done.clone();
        closer::run(lane, move || match Holding::start(region, range, &account, lane) {
            Ok(holding) => Work { holding, lane, told, waker }.go_on(),
            Err(e) => tell(&told, Err(e), &waker),
        });
        Populating { done }
    }

    pub(super) fn is_done(&self) -> bool {
        lock(&self.done).is_some()
    }

    /// Returns the hold; `None` while the lane is not done.
    pub(super) fn take(self) -> Option<Result<Hold, HoldError>> {
        lock(&self.done).take()
    }
}

/// A job of the lane.
struct Work {
    holding: Holding,
    lane: usize,
    told: Arc<Mutex<Option<Result<Hold, HoldError>>>>,
    waker: Waker,
}

impl Work {
    fn go_on(mut self) {
        // The session may have ended.
        if Arc::strong_count(&self.told) == 1 {
            return;
        }
        let result = match self.holding.step() {
            Ok(false) => return closer::run(self.lane, move || self.go_on()),
            Ok(true) => Ok(self.holding.finish()),
            Err(e) => {
                self.holding.abandon();
                Err(e)
            }
        };
        tell(&self.told, result, &self.waker);
    }
}

fn tell(
    told: &Mutex<Option<Result<Hold, HoldError>>>,
    result: Result<Hold, HoldError>,
    waker: &Waker,
) {
    *lock(told) = Some(result);
    waker.wake();
}

fn lock<T>(done: &Mutex<T>) -> MutexGuard<'_, T> {
    done.lock().unwrap_or_else(PoisonError::into_inner)
}
