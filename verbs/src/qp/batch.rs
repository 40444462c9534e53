//! Requests that the application posts one by one, with one doorbell for all of them.

use heddle_base::sync::MutexGuard;
use heddle_types::{PostError, RecvWr, SendWr};

use super::{Producer, Qp, QueueWords, RQ, SQ, lock};
use crate::error::BatchError;

/// Requests of a send queue under way to its worker: see [`Qp::sends`].
#[derive(Debug)]
pub struct Sends<'q>(Batch<'q>);

/// Receives of a queue pair under way to its worker: see [`Qp::recvs`].
#[derive(Debug)]
pub struct Recvs<'q>(Batch<'q>);

impl Sends<'_> {
    /// Adds a request.
    ///
    /// # Errors
    /// [`PostError`]; this request was not posted then, and the requests before it were.
    #[inline(never)]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let q = &*self.0.qp.0;
        let result = q.put_send(q.block.words(), &mut self.0.queue, wr);
        self.0.noted(result)
    }

    /// Rings the worker for all requests added.
    ///
    /// # Errors
    /// [`PostError::Ended`], with the number of requests that the worker took before the end of the
    /// connection.
    pub fn finish(mut self) -> Result<(), BatchError> {
        self.0.tell()
    }
}

impl Recvs<'_> {
    /// Adds a receive.
    ///
    /// # Errors
    /// As [`Sends::post`].
    #[inline(never)]
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let q = &*self.0.qp.0;
        let result = q.put_recv(q.block.words(), &mut self.0.queue, wr);
        self.0.noted(result)
    }

    /// Rings the worker for all receives added.
    ///
    /// # Errors
    /// As [`Sends::finish`].
    pub fn finish(mut self) -> Result<(), BatchError> {
        self.0.tell()
    }
}

#[derive(Debug)]
struct Batch<'q> {
    qp: &'q Qp,
    queue: MutexGuard<'q, Producer>,
    at: QueueWords,
    /// Requests that the application posted before the first request of the batch.
    before: u64,
    /// The queue had no room for a request of the batch.
    full: bool,
    told: bool,
}

impl<'q> Batch<'q> {
    fn new(qp: &'q Qp, queue: MutexGuard<'q, Producer>, at: QueueWords) -> Batch<'q> {
        Batch { before: queue.posted(), qp, queue, at, full: false, told: false }
    }

    #[inline]
    fn noted(&mut self, result: Result<(), PostError>) -> Result<(), PostError> {
        self.full |= result == Err(PostError::Full);
        result
    }

    /// Rings the worker; a full queue is rung as well, as [`Qp::post_send`] does.
    fn tell(&mut self) -> Result<(), BatchError> {
        self.told = true;
        if self.queue.posted() == self.before && !self.full {
            return Ok(());
        }
        self.qp.ring_or_end(self.qp.0.block.words(), &self.queue, self.at, self.before)
    }
}

impl Drop for Batch<'_> {
    /// Rings for an owner that did not finish, so that the worker sees the posted requests.
    fn drop(&mut self) {
        if !self.told {
            // Ignore the result: an owner that wants it calls `finish`.
            let _ = self.tell();
        }
    }
}

impl Qp {
    /// Posts requests one by one, with one doorbell at the end; the send queue is locked until
    /// then.
    ///
    /// The worker may begin with the first request before the last is posted: it takes the requests
    /// that it finds when it looks.
    pub fn sends(&self) -> Sends<'_> {
        Sends(Batch::new(self, lock(&self.0.sq), SQ))
    }

    /// Posts receives one by one, as [`sends`](Qp::sends) does for send requests.
    pub fn recvs(&self) -> Recvs<'_> {
        Recvs(Batch::new(self, lock(&self.0.rq), RQ))
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use heddle_base::sync::atomic::Ordering;

    use super::*;
    use crate::qp::lost::tests::Bench;
    use heddle_rings::layout::{qp as at, state};
    use heddle_rings::qp::header;

    fn write(wr_id: u64) -> SendWr<'static> {
        SendWr::write(wr_id, &[], heddle_types::Stag(9), 0)
    }

    fn rings(qp: &Qp) -> Vec<u32> {
        qp.0.bells.take(0).collect()
    }

    #[test]
    fn test_batch_rings_doorbell_once_after_all_its_requests() {
        let mut b = Bench::new(8);
        let mut sends = b.qp.sends();
        (1..=5).for_each(|id| sends.post(&write(id)).unwrap());
        assert!(rings(&b.qp).is_empty());
        sends.finish().unwrap();
        assert_eq!(rings(&b.qp), [3]);
        b.take_sends(5);
        let mut recvs = b.qp.recvs();
        (1..=2).for_each(|id| recvs.post(&RecvWr::new(id, &[])).unwrap());
        recvs.finish().unwrap();
        assert_eq!(rings(&b.qp), [3]);
    }

    #[test]
    fn test_unfinished_batch_rings_on_drop_and_empty_batch_does_not() {
        let mut b = Bench::new(8);
        b.qp.sends().post(&write(1)).unwrap();
        assert_eq!(rings(&b.qp), [3]);
        b.take_sends(1);
        drop(b.qp.sends());
        b.qp.recvs().finish().unwrap();
        assert!(rings(&b.qp).is_empty());
    }

    /// The ring makes the worker publish how many requests it has retired without a completion.
    #[test]
    fn test_batch_without_room_rings_doorbell() {
        let b = Bench::new(2);
        assert_eq!(b.qp.post_sends(&[write(1), write(2)]), Ok(()));
        assert_eq!(rings(&b.qp), [3]);
        let full = BatchError { posted: 0, error: PostError::Full };
        assert_eq!(b.qp.post_sends(&[write(3)]), Err(full));
        assert_eq!(rings(&b.qp), [3]);
    }

    /// A worker ends the queue pair when it has taken some of the batch.
    #[test]
    fn test_batch_on_ended_queue_pair_reports_how_many_were_taken() {
        for taken in 0..=3usize {
            let b = Bench::new(8);
            b.qp.post_send(&write(0)).unwrap();
            let mut sends = b.qp.sends();
            (1..=3).for_each(|id| sends.post(&write(id)).unwrap());
            let words = header(&b.qp.0.block);
            words[at::SQ_FINAL].store(1 + taken as u64, Ordering::SeqCst);
            words[at::STATE].store(state::DEAD, Ordering::SeqCst);
            let ended = BatchError { posted: taken, error: PostError::Ended };
            assert_eq!(sends.finish(), if taken == 3 { Ok(()) } else { Err(ended) });
        }
    }
}
