//! Benchmarks on a device whose RNIC is another process's.
//!
//! The thread that runs them has no RNIC to poll, so this is what an application sees: posts into
//! shared memory, and completions out of it.

use std::net::SocketAddr;

use heddle_dataplane::Clock;
use heddle_verbs::Device;

use crate::embedded::{BenchError, drive, report};
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::spec::{BenchSpec, Wire};
use crate::workload::{Client, Run};

/// Looks at the completion queue before others have the processor.
const LOOKS: u32 = 256;

/// A client of a server somewhere else, on a device that another process serves.
pub struct OwnProcess {
    device: Device,
    server: SocketAddr,
    /// Where runs say how far they are.
    pub progress: Progress,
}

impl OwnProcess {
    /// Runs on `device`, towards `server`.
    pub fn new(device: Device, server: SocketAddr) -> OwnProcess {
        OwnProcess { device, server, progress: Progress::default() }
    }

    /// What it runs on.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Runs one size, on the calling thread, which the caller has bound to `core`. What was sent again
    /// and lost is the other process's to know.
    pub fn run(
        &mut self,
        spec: &BenchSpec,
        run: Run,
        core: Option<usize>,
    ) -> Result<BenchReport, BenchError> {
        self.progress.set(0);
        let client = Client::new(&self.device, &Clock::system(), self.server, run)?;
        let mut looks = 0u32;
        let outcome = drive(client, &self.progress, || {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        })?;
        let mut report = report(spec, &run, &outcome, Wire::Socket);
        report.lcores.extend(core);
        report.sides = 0;
        Ok(report)
    }
}
