//! Work requests on their way from an application to its queue pair.
//!
//! The application writes requests into its own queues, and the engine's owner takes the requests
//! from these queues turn by turn, so that no queue pair keeps the others waiting. [`take_turn`]
//! decides how many requests one turn takes, and in which order; workers and simulations both call
//! it.

/// Requests that a worker's turn takes from each queue, at most.
pub const POST_TURN: usize = 64;

/// The queues of one queue pair, as the application fills them.
///
/// An implementation posts each request that it takes to the queue pair at once.
pub trait Posted<Q> {
    /// The reason why the queues cannot be understood any more.
    type Broken;

    /// Takes up to `most` receives, while there are any, and returns how many it took.
    fn take_recvs(&mut self, qp: &mut Q, most: usize) -> Result<usize, Self::Broken>;

    /// Returns true if there is a send request, and notes which receives the application posted
    /// before it.
    fn has_send(&mut self) -> Result<bool, Self::Broken>;

    /// Returns true if some of the receives that [`has_send`](Posted::has_send) has noted are still
    /// in the queue.
    fn owes_recvs(&self) -> bool;

    /// Takes up to `most` of the send requests that [`has_send`](Posted::has_send) has found, while
    /// there are any, and returns how many it took.
    fn take_sends(&mut self, qp: &mut Q, most: usize) -> Result<usize, Self::Broken>;
}

/// Takes at most `most` requests from each queue of a queue pair; returns true if there may be
/// more.
///
/// This function takes a send request after all receives that the application posted before it, in
/// a later turn if the receives are many: the peer may answer a Send with a message for each of
/// these receives, and ends the stream if a message finds no buffer (RFC 5041 section 7.1).
///
/// # Errors
/// Returns [`Posted::Broken`] if the queues cannot be understood.
#[inline]
pub fn take_turn<Q, P: Posted<Q>>(
    qp: &mut Q,
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
        // Take receives that the application posted after `take_recvs` and before `has_send` first,
        // in this turn.
        if more || !posted.owes_recvs() {
            return Ok(more);
        }
    }
}
