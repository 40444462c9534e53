//! What a service counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// What a service has counted since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$meta])* pub $name: u64,)*
        }

        impl Counts {
            /// Each with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn get(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Calls that were carried out, whatever their status.
    calls,
    /// Those of them with a status that is not OK.
    failed,
    /// Calls of which the arguments could not be read.
    garbage,
    /// Calls of a program, version or procedure that there is not.
    unavailable,
    /// Calls whose credential was refused.
    denied,
    /// Messages that are no calls: they were not answered.
    dropped,
    /// Calls with a handle that is none of ours or of something that is not there any more.
    stale,
    /// Octets read.
    read_bytes,
    /// Octets written.
    written_bytes,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
