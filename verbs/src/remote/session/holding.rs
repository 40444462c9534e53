//! Pages of a client's sparse region, on their way to be populated.
//!
//! As [`preparing`](super::preparing): a lane of [`closer`] does it, piece by piece.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::account::Account;
use crate::closer;
use crate::memory::{Hold, HoldError, Holding, Region};
use crate::waker::Waker;

/// Pages that a lane populates.
#[derive(Debug)]
pub(super) struct Populating {
    done: Arc<Mutex<Option<Result<Hold, HoldError>>>>,
}

impl Populating {
    /// Has `lane` hold `[off, off + len)` of `region` on `account`, and wakes `waker` when it does, or cannot.
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

    /// The hold; nothing while it is not done.
    pub(super) fn take(self) -> Option<Result<Hold, HoldError>> {
        lock(&self.done).take()
    }
}

/// What the lane has.
struct Work {
    holding: Holding,
    lane: usize,
    told: Arc<Mutex<Option<Result<Hold, HoldError>>>>,
    waker: Waker,
}

impl Work {
    fn go_on(mut self) {
        // Its session may be gone.
        if Arc::strong_count(&self.told) == 1 {
            return;
        }
        let result = match self.holding.step() {
            Ok(false) => return closer::run(self.lane, move || self.go_on()),
            Ok(true) => Ok(self.holding.finish()),
            Err(e) => {
                // Gives up what it counts before the session can start the next one, which would take pages
                // of this one for populated.
                drop(self.holding);
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
