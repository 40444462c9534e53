//! Work requests on their way from an application to its queue pair.
//!
//! The application writes requests into queues of its own, and the RNIC's owner takes them from
//! there turn by turn, so that no queue pair keeps the others waiting. [`take_turn`] says what one
//! turn takes, and in which order; a worker and a simulation call the same.

use heddle_iwarp::QpContext;

/// Requests of each queue that a worker's turn takes at most.
pub const POST_TURN: usize = 64;

/// The queues of one queue pair as its application fills them.
///
/// A request that is taken is posted to the queue pair at once.
pub trait Posted {
    /// Why the queues cannot be understood any more.
    type Broken;

    /// Takes receives, at most `most` and as long as there are any; how many.
    fn take_recvs(&mut self, qp: &mut QpContext, most: usize) -> Result<usize, Self::Broken>;

    /// Returns true if there is a send request, and notes which receives were posted before it.
    fn has_send(&mut self) -> Result<bool, Self::Broken>;

    /// Returns true if some of the receives that [`has_send`](Posted::has_send) has noted are not
    /// taken.
    fn owes_recvs(&self) -> bool;

    /// Takes send requests that [`has_send`](Posted::has_send) has found, at most `most` and as long
    /// as there are any; how many.
    fn take_sends(&mut self, qp: &mut QpContext, most: usize) -> Result<usize, Self::Broken>;
}

/// Takes at most `most` requests of each queue of a queue pair; true if there may be more.
///
/// A send request is taken after all receives that were posted before it, in a later turn if they
/// are many: the peer may answer a Send with a message for each of these receives, and ends the
/// stream where one finds no buffer (RFC 5041 section 7.1).
///
/// # Errors
/// [`Posted::Broken`].
#[inline]
pub fn take_turn<P: Posted>(
    qp: &mut QpContext,
    posted: &mut P,
    most: usize,
) -> Result<bool, P::Broken> {
    let (mut recvs, mut sends) = (0, 0);
    loop {
        recvs += posted.take_recvs(qp, most - recvs)?;
        while sends < most && posted.has_send()? && !posted.owes_recvs() {
            sends += posted.take_sends(qp, most - sends)?;
        }
        let more = recvs == most || sends == most;
        // Receives that the application posted between the two looks go first, in this turn.
        if more || !posted.owes_recvs() {
            return Ok(more);
        }
    }
}
