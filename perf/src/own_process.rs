//! Benchmarks on a device whose RNIC belongs to another process.
//!
//! The thread that runs them has no RNIC to poll, so the figures are those of an application, which
//! posts into shared memory and takes completions from it.

use std::net::SocketAddr;

use heddle_dataplane::Clock;
use heddle_verbs::Device;

use crate::embedded::{BenchError, add_intervals, connect, report};
use crate::progress::Progress;
use crate::report::{BenchReport, warnings};
use crate::spec::{BenchSpec, Wire};
use crate::usage::Usage;
use crate::workload::Run;

/// The number of looks at the completion queue before the thread yields the processor.
const LOOKS: u32 = 256;

/// A client of a server elsewhere, on a device that another process serves.
pub struct OwnProcess {
    device: Device,
    server: SocketAddr,
    /// The counter in which runs report how far they are.
    pub progress: Progress,
}

impl OwnProcess {
    /// Makes a client that runs on `device`, towards `server`.
    pub fn new(device: Device, server: SocketAddr) -> OwnProcess {
        OwnProcess { device, server, progress: Progress::default() }
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Runs one size, on the calling thread, which the caller has bound to `core`. Only the other
    /// process knows about retransmits and losses.
    pub fn run(
        &mut self,
        spec: &BenchSpec,
        run: Run,
        core: Option<usize>,
    ) -> Result<BenchReport, BenchError> {
        self.progress.clear();
        let used = Usage::of_process();
        let mut looks = 0u32;
        let clock = Clock::system();
        let outcome = connect(&self.device, &clock, self.server, run, &self.progress, || {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        })?;
        let mut report = report(spec, &run, &outcome, Wire::Socket);
        add_intervals(&mut report, &self.progress);
        report.processor = Usage::of_process().since(used);
        report.lcores.extend(core);
        report.sides = 0;
        report.warnings = warnings(&report, spec);
        Ok(report)
    }
}
