//! The machine on which a benchmark runs.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::pin;

/// The facts about a machine that figures depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The name of the host.
    pub name: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The model of the first processor.
    pub processor: String,
    /// The number of processors that are online.
    pub processors: usize,
    /// The number of processors on which the process may run.
    pub usable_processors: usize,
}

impl Host {
    /// Reads the facts about this machine. A fact that the kernel does not give is empty.
    pub fn read() -> Host {
        let line = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let usable_processors = pin::available().len();
        Host {
            name: line("/proc/sys/kernel/hostname"),
            kernel: line("/proc/sys/kernel/osrelease"),
            processor: model(&cpus).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: cpus.lines().filter(|l| l.starts_with("processor")).count(),
            usable_processors,
        }
    }
}

/// Returns the model of the first processor. Arm's list has only numbers, so there may be none.
fn model(cpus: &str) -> Option<String> {
    let line = cpus.lines().find(|l| l.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_host_names_kernel_and_processors() {
        let host = Host::read();
        assert!(!host.name.is_empty() && !host.kernel.is_empty() && !host.processor.is_empty());
        assert!(0 < host.usable_processors && host.usable_processors <= host.processors);
    }

    #[test]
    fn test_model_is_that_of_the_first_processor() {
        let cpus = "processor\t: 0\nmodel name\t: A: 3 GHz\n\nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(model(cpus).as_deref(), Some("A: 3 GHz"));
        assert_eq!(model("processor\t: 0\nCPU part\t: 0xd0c\n"), None);
    }
}
