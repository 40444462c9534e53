//! A connection that accounts for its requests.

use std::time::{Duration, Instant};

use heddle_verbs::{
    Connection, Cqe, DisconnectReason, Ends, PostError, Queue, RecvWr, SendWr, Sge, WaitError,
};

use super::ledger::Ledger;
use super::{ExchangeError, PATIENCE};

/// A connection, with the outstanding requests of its queues.
#[derive(Debug)]
pub(super) struct Accounted {
    connection: Connection,
    sends: Ledger,
    recvs: Ledger,
}

impl Accounted {
    /// Makes an account; `recvs` has the receives posted before the connection was established.
    pub(super) fn new(connection: Connection, recvs: Ledger) -> Accounted {
        Accounted { connection, sends: Ledger::default(), recvs }
    }

    /// Returns the number of requests posted, on both queues.
    pub(super) fn posted(&self) -> u64 {
        self.sends.posted() + self.recvs.posted()
    }

    /// Returns true if no request is outstanding.
    pub(super) fn is_settled(&self) -> bool {
        self.sends.is_settled() && self.recvs.is_settled()
    }

    /// Posts the request that `request` makes for the given number.
    pub(super) fn send<'a>(
        &mut self,
        request: impl FnOnce(u64) -> SendWr<'a>,
    ) -> Result<u64, PostError> {
        // `request` decides whether the request is signaled, so it is called with the next number
        // before the ledger assigns that number.
        let mut wr = request(self.sends.posted());
        wr.wr_id = self.sends.post(wr.signaled);
        self.connection.post_send(&wr).inspect_err(|_| self.sends.refused())?;
        Ok(wr.wr_id)
    }

    pub(super) fn recv(&mut self, sges: &[Sge]) -> Result<u64, PostError> {
        let id = self.recvs.post(true);
        let posted = self.connection.post_recv(&RecvWr::new(id, sges));
        posted.inspect_err(|_| self.recvs.refused())?;
        Ok(id)
    }

    /// Returns the next completion, after checking that it is one of success; `None` when none
    /// comes in time.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Option<Cqe>, ExchangeError> {
        match self.connection.wait(timeout) {
            Ok(cqe) => {
                account(&mut self.sends, &mut self.recvs, &cqe)?;
                if cqe.status.is_success() {
                    Ok(Some(cqe))
                } else {
                    Err(ExchangeError::Failed(cqe.status))
                }
            }
            Err(WaitError::TimedOut) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Ends the connection, if it is still up, and settles the account.
    pub(super) fn finish(self) -> Result<DisconnectReason, ExchangeError> {
        let Accounted { connection, mut sends, mut recvs } = self;
        let cq = connection.cq().clone();
        let reason = connection.disconnect()?;
        // The device reports the end after all completions.
        while let Some(cqe) = cq.poll() {
            account(&mut sends, &mut recvs, &cqe)?;
        }
        cq.check().map_err(|e| ExchangeError::Wait(e.into()))?;
        sends.close()?;
        recvs.close()?;
        Ok(reason)
    }

    /// Finds the cause of `failure`: if the connection has ended, the function settles the account
    /// and returns the reason of the end; otherwise it returns `failure`.
    pub(super) fn explain(mut self, failure: ExchangeError) -> ExchangeError {
        if !matches!(failure, ExchangeError::Failed(_) | ExchangeError::Post(_)) {
            return failure;
        }
        let until = Instant::now() + PATIENCE;
        while self.connection.end().is_none() {
            if Instant::now() > until {
                return failure;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match self.finish() {
            Ok(reason) => ExchangeError::Ended(reason),
            Err(e) => e,
        }
    }
}

fn account(sends: &mut Ledger, recvs: &mut Ledger, cqe: &Cqe) -> Result<(), ExchangeError> {
    match cqe.queue {
        Queue::Sq => sends.complete(cqe.wr_id)?,
        Queue::Rq => recvs.complete(cqe.wr_id)?,
    }
    Ok(())
}

/// Posts a receive before there is a connection.
pub(super) fn post_early(ends: &Ends, recvs: &mut Ledger, sges: &[Sge]) -> Result<u64, PostError> {
    let id = recvs.post(true);
    ends.qp.post_recv(&RecvWr::new(id, sges))?;
    Ok(id)
}
