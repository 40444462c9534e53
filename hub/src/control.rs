//! The way from the hub to the control plane.

use std::sync::Arc;

use heddle_engine::Share;
use heddle_rings::Bells;
use heddle_rings::cq::CqLink;
use heddle_types::{AppId, TenantId};
use heddle_verbs::{DeviceError, EventQueue, Qp, TakenEvents};

/// Requests of a device to the control plane.
#[derive(Debug)]
pub enum ControlRequest {
    /// There is a new application: workers have to listen to its doorbells.
    Open {
        /// Number of the application.
        app: AppId,
        /// The principal that pays for the application's use of common stores.
        tenant: TenantId,
        /// The share that the application's connections have of the workers' turns.
        share: Arc<Share>,
        /// Doorbells of the application.
        bells: Bells,
        /// Counter of the events that the application has taken.
        taken: TakenEvents,
    },
    /// A completion queue has other room: workers have to write there.
    ResizeCq {
        /// Owner of the completion queue.
        app: AppId,
        /// The room that workers write to.
        link: CqLink,
    },
    /// A queue pair has to end, whatever its state.
    FailQp {
        /// Owner of the queue pair.
        app: AppId,
        /// The queue pair to end.
        qp: Qp,
    },
    /// A request to the connection manager.
    Cm {
        /// The application that asks.
        app: AppId,
        /// The request itself.
        request: heddle_types::Request,
        /// The queue pair that the request is about, in Connect and Accept.
        qp: Option<Qp>,
        /// The queue for the events, in Listen and Connect.
        events: Option<EventQueue>,
    },
}

/// The way to the control plane.
pub trait ControlPlane: Send + Sync + std::fmt::Debug {
    /// Hands a request over, without waiting for an answer.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    fn request(&self, request: ControlRequest) -> Result<(), DeviceError>;
}
