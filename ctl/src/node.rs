//! An RNIC on threads of its own.

use std::time::Duration;

use heddle_dataplane::{Eal, LcoreWorker, Port};

use crate::control::ControlThread;
use crate::endpoint::{Endpoint, OpenError};
use crate::{Device, Snapshot};

/// An RNIC whose worker runs on a pinned lcore and whose control plane has a thread that sleeps
/// when there is nothing to do. Dropping it stops both.
#[derive(Debug)]
pub struct Node {
    worker: LcoreWorker<()>,
    _control: ControlThread,
    device: Device,
    port: Port,
}

impl Node {
    /// Moves `endpoint` to processor `core`.
    pub fn start(eal: &Eal, endpoint: Endpoint, core: usize) -> Result<Node, OpenError> {
        let Endpoint { mut worker, control, device, port, clock, .. } = endpoint;
        device.set_threaded();
        let control = ControlThread::spawn(control, clock).map_err(OpenError::Thread)?;
        let name = format!("heddle-w{core}");
        let worker = LcoreWorker::spawn(eal, core, &name, move |stop| {
            while !stop.is_set() {
                if !worker.poll() {
                    std::hint::spin_loop();
                }
            }
        })?;
        Ok(Node { worker, _control: control, device, port })
    }

    /// The application's handle.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Whether the worker still runs; it ends early only by a defect.
    pub fn is_running(&self) -> bool {
        !self.worker.is_finished()
    }
}

/// How long a worker may take to answer a question.
const ANSWER: Duration = Duration::from_secs(1);
