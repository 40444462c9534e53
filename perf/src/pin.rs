//! Threads bound to processors.

/// Why a thread could not be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The processor does not exist, or this process may not use it.
    #[error("processor {0} does not exist or may not be used")]
    NoSuchCore(usize),
    /// The system refused to bind the thread.
    #[error("the system does not let this thread run on processor {0} alone")]
    Refused(usize),
    /// The process may use fewer processors than the caller needs.
    #[error("this needs {wanted} processors, and the process may use {have}")]
    TooFew {
        /// The number of processors that the caller needs.
        wanted: usize,
        /// The number of processors that the process may use.
        have: usize,
    },
}

pub use heddle_dataplane::lcore::available;
use heddle_dataplane::lcore::bind_to;

/// Returns the first `N` processors that this process may use.
pub fn first<const N: usize>() -> Result<[usize; N], PinError> {
    let all = available();
    all.first_chunk().copied().ok_or(PinError::TooFew { wanted: N, have: all.len() })
}

/// Binds the calling thread to `core`.
pub fn pin_to(core: usize) -> Result<(), PinError> {
    if !available().contains(&core) {
        return Err(PinError::NoSuchCore(core));
    }
    if bind_to(&[core]) { Ok(()) } else { Err(PinError::Refused(core)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_pin_accepts_existing_processor_and_refuses_missing_one() {
        let [core] = first().unwrap();
        let got = std::thread::spawn(move || {
            pin_to(core).unwrap();
            available()
        });
        assert_eq!(got.join().unwrap(), [core]);
        assert_eq!(pin_to(9999), Err(PinError::NoSuchCore(9999)));
        assert!(matches!(first::<5000>(), Err(PinError::TooFew { wanted: 5000, .. })));
    }
}
