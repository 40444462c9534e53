//! Looking ahead in a burst.

/// A step of a look ahead at a connection. Each reads memory that the step before has fetched, so
/// an owner takes the steps one after the other, with the work for other connections in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Fetches the state of the connection.
    Conn,
    /// Fetches its queue pair.
    Qp,
    /// Fetches the entries of the queue pair's queues.
    Queues,
}

impl Step {
    /// All steps, in their order.
    pub const ALL: [Step; 3] = [Step::Conn, Step::Qp, Step::Queues];
}
