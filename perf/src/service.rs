//! What an appliance can serve.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use core::time::Duration;
use heddle_verbs::{Device, DeviceError, ListenFailure, ListenParams, Waker};

use crate::rping::RpingServer;
use crate::workload::{PerfServer, Sink};

/// Name of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// The server of `rping`.
    Rping,
    /// The server of `heddle bench --connect`.
    Perf,
    /// Takes everything and counts it.
    Sink,
}

/// A service and where it listens: `ADDR:PORT=SERVICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Where.
    pub addr: SocketAddr,
    /// What.
    pub kind: ServiceKind,
}

/// Not a [`ServiceSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No `=`.
    #[error("'{0}' names no service (expected ADDR:PORT=SERVICE, as 10.0.0.1:7174=rping)")]
    NoService(String),
    /// Not an address.
    #[error("'{0}' is not an address and port (as 10.0.0.1:7174)")]
    Address(String),
    /// Not a service.
    #[error("unknown service '{0}' (known: rping, perf, sink)")]
    Unknown(String),
    /// An address of a family that is not served.
    #[error("'{0}': IPv6 is not served yet")]
    Ipv6(SocketAddr),
}

impl FromStr for ServiceSpec {
    type Err = ServiceError;

    fn from_str(s: &str) -> Result<ServiceSpec, ServiceError> {
        let (addr, kind) = s.split_once('=').ok_or_else(|| ServiceError::NoService(s.into()))?;
        let addr: SocketAddr = addr.parse().map_err(|_| ServiceError::Address(addr.into()))?;
        if addr.is_ipv6() {
            return Err(ServiceError::Ipv6(addr));
        }
        if addr.port() == 0 {
            return Err(ServiceError::Address(addr.to_string()));
        }
        let kind = match kind {
            "rping" => ServiceKind::Rping,
            "perf" => ServiceKind::Perf,
            "sink" => ServiceKind::Sink,
            _ => return Err(ServiceError::Unknown(kind.into())),
        };
        Ok(ServiceSpec { addr, kind })
    }
}

impl fmt::Display for ServiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServiceKind::Rping => "rping",
            ServiceKind::Perf => "perf",
            ServiceKind::Sink => "sink",
        })
    }
}

/// What a service lets its peers have, so that none keeps the others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Share of a service's connections that one address may have: one in so many, 1 and more.
    pub peer_share: usize,
    /// How long a client may take from its connection to its first message, where the service
    /// waits for one (rping, perf); for ever when `None`.
    pub first_message: Option<Duration>,
    /// Octets of registered memory that benchmarks of one address may have.
    pub peer_memory: u64,
}

impl Default for Limits {
    /// A quarter of the connections, 5 s, any memory.
    fn default() -> Limits {
        Limits { peer_share: 4, first_message: Some(Duration::from_secs(5)), peer_memory: u64::MAX }
    }
}

impl Limits {
    /// Of `most` connections, those of one address.
    pub(crate) fn share_of_peer(&self, most: usize) -> usize {
        (most / self.peer_share.max(1)).max(1)
    }
}

/// Services of one RNIC, stepped together.
#[derive(Default)]
pub struct Services(Vec<Service>);

enum Service {
    Rping(RpingServer),
    Perf(PerfServer),
    Sink(Sink),
}

impl Services {
    /// Starts all of `specs`. `waker` is woken when one of them has something to do.
    pub fn start(
        device: &Device,
        specs: &[ServiceSpec],
        params: &ListenParams,
        waker: Option<&Waker>,
    ) -> Result<Services, DeviceError> {
        Services::start_with(device, specs, params, &Limits::default(), waker)
    }

    /// Starts all of `specs` with other limits than the usual ones.
    pub fn start_with(
        device: &Device,
        specs: &[ServiceSpec],
        params: &ListenParams,
        limits: &Limits,
        waker: Option<&Waker>,
    ) -> Result<Services, DeviceError> {
        let start = |s: &ServiceSpec| {
            let (params, limits) = (params.clone(), *limits);
            Ok(match s.kind {
                ServiceKind::Rping => {
                    let s = RpingServer::with_limits(device, s.addr, params, limits, waker, false)?;
                    Service::Rping(s)
                }
                ServiceKind::Perf => {
                    Service::Perf(PerfServer::with_limits(device, s.addr, params, limits, waker)?)
                }
                ServiceKind::Sink => {
                    Service::Sink(Sink::with_limits(device, s.addr, params, limits, waker)?)
                }
            })
        };
        specs.iter().map(start).collect::<Result<_, _>>().map(Services)
    }

    /// Takes no more connections; those there are go on.
    pub fn stop_listening(&mut self) {
        for s in &mut self.0 {
            match s {
                Service::Rping(s) => s.stop_listening(),
                Service::Perf(s) => s.stop_listening(),
                Service::Sink(s) => s.stop_listening(),
            }
        }
    }

    /// Does what there is to do; true when there was something. Never blocks.
    #[inline]
    pub fn step(&mut self) -> bool {
        let mut busy = false;
        for s in &mut self.0 {
            busy |= match s {
                Service::Rping(s) => s.step(),
                Service::Perf(s) => s.step(),
                Service::Sink(s) => s.step(),
            };
        }
        busy
    }

    /// Whether all of them listen: false until the RNIC does.
    ///
    /// # Errors
    /// [`ListenFailure`]: one of them never will.
    pub fn is_listening(&self) -> Result<bool, ListenFailure> {
        let mut all = true;
        for s in &self.0 {
            all &= match s {
                Service::Rping(s) => s.is_listening(),
                Service::Perf(s) => s.is_listening(),
                Service::Sink(s) => s.is_listening(),
            }?;
        }
        Ok(all)
    }

    /// Whether a step would find something, or has to be made all the time. Arms the completion
    /// queues of all: to be asked before sleeping.
    pub fn has_work(&self) -> bool {
        // Each is asked, so that each is armed.
        self.0.iter().fold(false, |work, s| {
            work | match s {
                Service::Rping(s) => s.has_work(),
                Service::Perf(s) => s.has_work(),
                Service::Sink(s) => s.has_work(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_service_spec_of_an_address_and_of_the_unspecified_one() {
        let s: ServiceSpec = "10.0.0.1:7174=rping".parse().unwrap();
        assert_eq!((s.addr.to_string().as_str(), s.kind), ("10.0.0.1:7174", ServiceKind::Rping));
        let s: ServiceSpec = "0.0.0.0:1=sink".parse().unwrap();
        assert_eq!((s.addr.port(), s.kind), (1, ServiceKind::Sink));
    }

    #[test]
    fn test_service_spec_faults_are_told_apart() {
        let e = |s: &str| s.parse::<ServiceSpec>().unwrap_err();
        assert!(matches!(e("10.0.0.1:7174"), ServiceError::NoService(_)));
        assert!(matches!(e("10.0.0.1=rping"), ServiceError::Address(_)));
        assert!(matches!(e("10.0.0.1:0=rping"), ServiceError::Address(_)));
        assert!(matches!(e("10.0.0.1:70000=rping"), ServiceError::Address(_)));
        assert!(matches!(e("10.0.0.1:1=ftp"), ServiceError::Unknown(_)));
        assert!(matches!(e("[::]:1=sink"), ServiceError::Ipv6(_)));
        assert!(matches!(e("[fd00::1]:1=sink"), ServiceError::Ipv6(_)));
        assert!(e("x=y").to_string().lines().count() == 1);
    }
}
