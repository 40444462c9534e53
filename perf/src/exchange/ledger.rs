//! The requests posted to a queue, each of which has to complete once and in its turn.

use std::collections::VecDeque;

/// A completion without a posted request, or a posted request without a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// No request is outstanding: this one completes for the second time, or was never posted.
    #[error("request {0} completes, and nothing is outstanding")]
    Twice(u64),
    /// Another signaled request comes before this one.
    #[error("request {got} completes before request {want}")]
    Turn {
        /// The request that completed.
        got: u64,
        /// The request that had to complete first.
        want: u64,
    },
    /// The connection is over, and these requests have not completed.
    #[error("{0} requests never complete, the first of them {1}")]
    Lost(usize, u64),
}

/// The requests of one queue, in the order in which they were posted.
#[derive(Debug, Default)]
pub struct Ledger {
    outstanding: VecDeque<(u64, bool)>,
    posted: u64,
}

impl Ledger {
    /// Returns the number of the next request, which counts as posted; [`refused`](Self::refused)
    /// takes it back.
    pub fn post(&mut self, signaled: bool) -> u64 {
        let id = self.posted;
        self.posted += 1;
        self.outstanding.push_back((id, signaled));
        id
    }

    /// Takes back the request posted last, which the device did not take.
    pub fn refused(&mut self) {
        if self.outstanding.pop_back().is_some() {
            self.posted -= 1;
        }
    }

    /// Records that a request has completed, and with it the unsignaled requests before it.
    pub fn complete(&mut self, id: u64) -> Result<(), LedgerError> {
        while let Some((next, signaled)) = self.outstanding.pop_front() {
            if next == id {
                return Ok(());
            }
            if signaled || next > id {
                return Err(LedgerError::Turn { got: id, want: next });
            }
        }
        Err(LedgerError::Twice(id))
    }

    /// Returns the number of posted requests.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns true if every signaled request has completed.
    pub fn is_settled(&self) -> bool {
        self.outstanding.iter().all(|(_, signaled)| !signaled)
    }

    /// Checks the account at the end of the queue, when no request can complete any more.
    pub fn close(&self) -> Result<(), LedgerError> {
        let mut lost = self.outstanding.iter().filter(|(_, signaled)| *signaled);
        match lost.next() {
            None => Ok(()),
            Some((first, _)) => Err(LedgerError::Lost(1 + lost.count(), *first)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(signaled: &[bool]) -> Ledger {
        let mut l = Ledger::default();
        for (n, s) in signaled.iter().enumerate() {
            assert_eq!(l.post(*s), n as u64);
        }
        l
    }

    #[test]
    fn test_ledger_accepts_each_completion_once_in_order() {
        let mut l = with(&[true, true]);
        assert_eq!(l.complete(0), Ok(()));
        assert!(!l.is_settled());
        assert_eq!(l.close(), Err(LedgerError::Lost(1, 1)));
        assert_eq!(l.complete(1), Ok(()));
        assert!(l.is_settled());
        assert_eq!(l.close(), Ok(()));
        assert_eq!(l.complete(1), Err(LedgerError::Twice(1)));
    }

    #[test]
    fn test_ledger_detects_a_skipped_completion() {
        let mut l = with(&[true, true]);
        assert_eq!(l.complete(1), Err(LedgerError::Turn { got: 1, want: 0 }));
    }

    #[test]
    fn test_ledger_detects_a_duplicate_completion() {
        let mut l = with(&[true, false, true]);
        assert_eq!(l.complete(0), Ok(()));
        assert_eq!(l.complete(0), Err(LedgerError::Turn { got: 0, want: 1 }));
    }

    #[test]
    fn test_ledger_completes_unsignaled_requests_with_the_next_signaled_one() {
        let mut l = with(&[false, false, true, false]);
        assert_eq!(l.complete(2), Ok(()));
        assert!(l.is_settled());
        assert_eq!(l.close(), Ok(()));
    }

    #[test]
    fn test_ledger_does_not_count_refused_requests() {
        let mut l = with(&[true]);
        assert_eq!(l.post(true), 1);
        l.refused();
        assert_eq!((l.posted(), l.post(true)), (1, 1));
    }
}
