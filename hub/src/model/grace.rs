//! Grace periods: the pool gives memory out again only when no worker can refer to it.

use std::sync::Arc;

use heddle_base::sync::atomic::{AtomicU64, Ordering};
use loom::cell::UnsafeCell;
use loom::thread;

use super::check;
use crate::memory::Readers;

/// A table entry, and the memory that the entry leads to. The model checker fails a run that reads
/// and writes the memory without an order between the two.
struct Table {
    entry: AtomicU64,
    memory: UnsafeCell<u64>,
}

#[test]
fn test_memory_is_not_written_while_worker_reads_it() {
    check(|| {
        let table = Arc::new(Table { entry: AtomicU64::new(1), memory: UnsafeCell::new(7) });
        let readers = Readers::default();
        let reader = readers.reader();
        let worker = {
            let table = table.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if table.entry.load(Ordering::Acquire) != 0 {
                        table.memory.with(|_| ());
                    }
                    reader.quiescent();
                }
            })
        };
        table.entry.store(0, Ordering::Release);
        let mut grace = readers.grace();
        if grace.is_over() {
            table.memory.with_mut(|_| ());
        }
        worker.join().unwrap();
        assert!(grace.is_over(), "the worker is gone");
        table.memory.with_mut(|_| ());
    });
}
