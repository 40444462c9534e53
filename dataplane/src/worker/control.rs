//! What the control plane and a worker say to each other, through bounded rings.

use heddle_cm::AppId;
use heddle_rnic::{FpduMode, Order};
use heddle_tcp::ConnId;
use heddle_verbs::cq::CqLink;
use heddle_verbs::ring::Bells;
use heddle_verbs::worker::WorkerQp;

/// An order to a worker, carried out in turn with the others.
#[derive(Debug)]
pub enum Command {
    /// One for its RNIC; not [`Order::EnterFpduMode`].
    Order(Order),
    /// End the start-up and run a queue pair; [`Report::Entered`](heddle_rnic::Report::Entered)
    /// answers.
    EnterFpduMode {
        /// The connection.
        conn: ConnId,
        /// How.
        mode: Box<FpduMode>,
        /// Whose queue pair it is.
        app: AppId,
        /// The queue pair.
        qp: Box<WorkerQp>,
    },
    /// Write the completions of this queue where it has room now.
    ResizeCq {
        /// Whose it is.
        app: AppId,
        /// Where.
        link: CqLink,
    },
    /// Hear the doorbells of an application.
    OpenApp {
        /// Which.
        app: AppId,
        /// Its doorbells.
        bells: Bells,
    },
    /// Hear them no more.
    CloseApp {
        /// Which.
        app: AppId,
    },
    /// Answer with everything counted.
    Snapshot {
        /// Where to.
        reply: crossbeam_channel::Sender<Box<crate::WorkerSnapshot>>,
    },
}
