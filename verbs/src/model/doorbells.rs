//! Doorbells, and the words that say which workers sleep.

use std::sync::Arc;

use heddle_base::sync::atomic::{AtomicU64, Ordering, fence};
use heddle_rings::wakeup::WorkerWakers;
use heddle_rings::{Area, Bells};
use loom::thread;

use super::check;

fn bells() -> Bells {
    let area = Area::new(Bells::bytes(1) + 128).unwrap();
    Bells::new(&area, 1).unwrap()
}

/// Runs a turn of the worker, which records the value of each queue pair that has rung.
fn turn(bells: &Bells, posted: &[AtomicU64; 2], heard: &mut [u64; 2]) {
    for bell in bells.take(0) {
        let i = usize::from(bell != 0);
        heard[i] = posted[i].load(Ordering::SeqCst);
    }
}

fn ring(bells: &Bells, posted: &AtomicU64, bell: u32, n: u64) {
    posted.store(n, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    bells.ring(0, bell);
}

/// Two queue pairs, each rung by a thread: after the last ring the worker finds the bell and sees
/// every store before that ring. The second bell is in the word of the first, or in another word.
#[test]
fn test_worker_sees_everything_stored_before_last_ring() {
    [1, 64].into_iter().for_each(sees_both);
}

fn sees_both(second: u32) {
    check(move || {
        let bells = bells();
        let posted: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let worker = {
            let (bells, posted) = (bells.clone(), posted.clone());
            thread::spawn(move || {
                let mut heard = [0; 2];
                turn(&bells, &posted, &mut heard);
                heard
            })
        };
        let other = {
            let (bells, posted) = (bells.clone(), posted.clone());
            thread::spawn(move || ring(&bells, &posted[1], second, 1))
        };
        ring(&bells, &posted[0], 0, 1);
        other.join().unwrap();
        let mut heard = worker.join().unwrap();
        turn(&bells, &posted, &mut heard);
        assert_eq!(heard, [1, 1], "a ring is lost");
    });
}

/// The second ring leaves a bell alone that still rings, so the first ring has to be enough.
#[test]
fn test_worker_hears_second_ring_of_a_bell_that_is_still_ringing() {
    check(|| {
        let bells = bells();
        let posted: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let worker = {
            let (bells, posted) = (bells.clone(), posted.clone());
            thread::spawn(move || {
                let mut heard = [0; 2];
                turn(&bells, &posted, &mut heard);
                heard
            })
        };
        for n in 1..=2 {
            ring(&bells, &posted[0], 0, n);
        }
        let mut heard = worker.join().unwrap();
        turn(&bells, &posted, &mut heard);
        assert_eq!(heard[0], 2, "what was posted last is not seen");
    });
}

/// The worker says that it sleeps, looks once more, and sleeps: either this look finds the
/// application's ring, or the ring wakes the worker.
#[test]
fn test_ring_wakes_sleeping_worker_that_did_not_find_it() {
    check(|| {
        let wakers = WorkerWakers::new(1).unwrap();
        let mut sleeper = wakers.sleeper(&[0]).unwrap();
        let bells = bells().waking(Some(wakers));
        let theirs = {
            let bells = bells.clone();
            thread::spawn(move || {
                fence(Ordering::SeqCst);
                bells.ring(0, 3);
            })
        };
        sleeper.arm();
        let found = bells.take(0).count() > 0;
        theirs.join().unwrap();
        assert!(found || sleeper.clear(), "a wake-up is lost");
        sleeper.disarm();
    });
}
