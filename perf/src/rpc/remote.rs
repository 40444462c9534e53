//! The client alone, for the `rpc` service of another process or host.

use std::net::SocketAddr;

use heddle_dataplane::Clock;

use super::load::{Load, LoadOutcome};
use super::pair::{drive, run_client};
use super::{RpcError, RpcRun};
use crate::embedded::Remote;
use crate::own_process::OwnProcess;

/// The number of looks at the completion queue before the thread yields the processor.
const LOOKS: u32 = 256;

impl Remote {
    /// Runs a round of calls to `server`, on the calling thread.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn run_rpc(&mut self, server: SocketAddr, what: RpcRun) -> Result<LoadOutcome, RpcError> {
        let progress = self.progress.clone();
        let (endpoint, clock) = self.endpoint().ok_or(RpcError::Lost)?;
        run_client(endpoint, clock, server, what, &progress)
    }
}

impl OwnProcess {
    /// Runs a round of calls to `server`, on the calling thread.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn run_rpc(&self, server: SocketAddr, what: RpcRun) -> Result<LoadOutcome, RpcError> {
        let mut load = Load::new(self.device(), &Clock::system(), server, what)?;
        let mut looks = 0u32;
        drive(&mut load, &self.progress, || {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        })
    }
}
