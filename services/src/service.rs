//! The services that an appliance can run.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use core::time::Duration;
use heddle_verbs::{Device, DeviceError, ListenFailure, ListenParams, Waker};

use crate::bench::BenchServer;
use crate::perftest::{Perftest, Program, Test};
use crate::rdmacm::{Cmtime, Messages, RdmaServer, Ucmatose};
use crate::rpc::RpcService;
use crate::rping::RpingServer;
use crate::server::{Protocol, Serve, Server};
use crate::sink::Sink;

/// A service that an appliance can run, with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// The server of `rping`.
    Rping,
    /// The server of `heddle bench --connect`.
    Perf,
    /// The server of `heddle bench --op rpc --connect`.
    Rpc,
    /// A service that takes all messages and counts them.
    Sink,
    /// The server of `rdma_client`.
    RdmaServer,
    /// The server of `ucmatose`.
    Ucmatose(Messages),
    /// The server of `cmtime`.
    Cmtime,
    /// The server of a program of perftest.
    Perftest(Test),
}

/// A service and its address: `ADDR:PORT=SERVICE`, with `,count=N` and `,size=N` after services
/// that need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// The address and port at which the service listens.
    pub addr: SocketAddr,
    /// The service to run there.
    pub kind: ServiceKind,
    /// True if the service also answers InfiniBand's requests. Their connections carry no data, so
    /// this suits services that [need none](ServiceKind::needs_data).
    pub infiniband: bool,
}

/// The names of the services, for messages and help.
pub const SERVICES: &str = "rping, perf, rpc, sink, rdma_server, ucmatose, cmtime, ib_write_bw, \
                            ib_read_bw, ib_send_bw, ib_write_lat, ib_read_lat, ib_send_lat";

/// Why a text is not a [`ServiceSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The text has no `=`.
    #[error("'{0}' names no service (expected ADDR:PORT=SERVICE, as 10.0.0.1:7174=rping)")]
    NoService(String),
    /// The part before the `=` is not an address.
    #[error("'{0}' is not an address and port (as 10.0.0.1:7174)")]
    Address(String),
    /// The name is not a service's.
    #[error("unknown service '{0}' (known: {SERVICES})")]
    Unknown(String),
    /// An option after the name is not for this service, or out of range.
    #[error("'{given}': {name} takes {takes}")]
    Option {
        /// The option in the text.
        given: String,
        /// The service's name.
        name: String,
        /// The options that the service takes.
        takes: String,
    },
}

impl FromStr for ServiceSpec {
    type Err = ServiceError;

    fn from_str(s: &str) -> Result<ServiceSpec, ServiceError> {
        let (addr, kind) = s.split_once('=').ok_or_else(|| ServiceError::NoService(s.into()))?;
        let (addr, kind) = (ServiceSpec::address(addr)?, kind.parse()?);
        Ok(ServiceSpec { addr, kind, infiniband: false })
    }
}

impl ServiceSpec {
    /// Parses an address and port on which a service can listen.
    ///
    /// # Errors
    /// [`ServiceError::Address`].
    pub fn address(s: &str) -> Result<SocketAddr, ServiceError> {
        let addr: SocketAddr = s.parse().map_err(|_| ServiceError::Address(s.into()))?;
        if addr.port() == 0 {
            return Err(ServiceError::Address(addr.to_string()));
        }
        Ok(addr)
    }
}

impl FromStr for ServiceKind {
    type Err = ServiceError;

    fn from_str(s: &str) -> Result<ServiceKind, ServiceError> {
        let mut words = s.split(',');
        let name = words.next().unwrap_or_default();
        let program = Program::ALL.into_iter().find(|p| p.name() == name);
        let mut kind = match name {
            "rping" => ServiceKind::Rping,
            "perf" => ServiceKind::Perf,
            "rpc" => ServiceKind::Rpc,
            "sink" => ServiceKind::Sink,
            "rdma_server" => ServiceKind::RdmaServer,
            "ucmatose" => ServiceKind::Ucmatose(Messages::default()),
            "cmtime" => ServiceKind::Cmtime,
            _ => match program {
                Some(p) => ServiceKind::Perftest(Test::new(p)),
                None => return Err(ServiceError::Unknown(name.into())),
            },
        };
        for word in words {
            let value = word.split_once('=').and_then(|(key, n)| Some((key, n.parse().ok()?)));
            if !value.is_some_and(|(key, n)| kind.set(key, n)) {
                let (given, name, takes) = (word.into(), name.into(), kind.takes());
                return Err(ServiceError::Option { given, name, takes });
            }
        }
        Ok(kind)
    }
}

impl ServiceKind {
    /// Returns true if the service is of no use where connections carry no data, as over
    /// InfiniBand.
    pub const fn needs_data(self) -> bool {
        !matches!(self, ServiceKind::Cmtime)
    }

    /// Sets an option. Returns false when the service has no such option, or refuses the value.
    fn set(&mut self, key: &str, n: u32) -> bool {
        let (value, most) = match (self, key) {
            (ServiceKind::Ucmatose(m), "count") => (&mut m.count, Messages::MAX_COUNT),
            (ServiceKind::Ucmatose(m), "size") => (&mut m.size, Messages::MAX_SIZE),
            (ServiceKind::Perftest(t), "size") => (&mut t.size, Test::MAX_SIZE),
            _ => return false,
        };
        let fits = (1..=most).contains(&n);
        if fits {
            *value = n;
        }
        fits
    }

    /// Returns the options that [`set`](Self::set) takes, for messages.
    fn takes(self) -> String {
        match self {
            ServiceKind::Ucmatose(_) => {
                let (count, size) = (Messages::MAX_COUNT, Messages::MAX_SIZE);
                format!("count=1..{count} and size=1..{size}")
            }
            ServiceKind::Perftest(_) => format!("size=1..{}", Test::MAX_SIZE),
            _ => "no options".into(),
        }
    }
}

impl fmt::Display for ServiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServiceKind::Rping => "rping",
            ServiceKind::Perf => "perf",
            ServiceKind::Rpc => "rpc",
            ServiceKind::Sink => "sink",
            ServiceKind::RdmaServer => "rdma_server",
            ServiceKind::Ucmatose(_) => "ucmatose",
            ServiceKind::Cmtime => "cmtime",
            ServiceKind::Perftest(t) => t.program.name(),
        })
    }
}

/// A service's limits for its peers, so that no peer keeps the others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The divisor that gives the share of a service's connections for one address, at least 1: 4
    /// means a quarter.
    pub peer_share: usize,
    /// How long a client may take from its connection to its first message, where the service waits
    /// for one (rping, perf); `None` sets no limit.
    pub first_message: Option<Duration>,
    /// Bytes of registered memory that benchmarks of one address may have.
    pub peer_memory: u64,
    /// Completions of all its connections for which a benchmark's server has room.
    pub completions: u32,
}

impl Default for Limits {
    /// A quarter of the connections, 5 s, any memory, 65,536 completions.
    fn default() -> Limits {
        Limits {
            peer_share: 4,
            first_message: Some(Duration::from_secs(5)),
            peer_memory: u64::MAX,
            completions: 1 << 16,
        }
    }
}

impl Limits {
    /// Returns how many of `most` connections one address may have.
    pub(crate) fn share_of_peer(&self, most: usize) -> usize {
        (most / self.peer_share.max(1)).max(1)
    }
}

/// The services of one RNIC, stepped together.
#[derive(Default)]
pub struct Services(Vec<Box<dyn Serve>>);

impl Services {
    /// Starts all of `specs`. The services wake `waker` when a step has work to do.
    pub fn start(
        device: &Device,
        specs: &[ServiceSpec],
        params: &ListenParams,
        waker: Option<&Waker>,
    ) -> Result<Services, DeviceError> {
        Services::start_with(device, specs, params, &Limits::default(), waker)
    }

    /// Starts all of `specs` with limits other than the defaults.
    pub fn start_with(
        device: &Device,
        specs: &[ServiceSpec],
        params: &ListenParams,
        limits: &Limits,
        waker: Option<&Waker>,
    ) -> Result<Services, DeviceError> {
        let start = |s: &ServiceSpec| start(device, *s, params.clone(), *limits, waker);
        specs.iter().map(start).collect::<Result<_, _>>().map(Services)
    }

    /// Takes no more connections; the existing ones go on.
    pub fn stop_listening(&mut self) {
        self.0.iter_mut().for_each(|s| s.stop_listening());
    }

    /// Takes no more connections, and ends the existing ones in order: the caller calls
    /// [`step`](Services::step) until none is left. Dropping the services earlier unregisters
    /// memory to which peers may still be writing.
    pub fn end(&mut self) {
        self.0.iter_mut().for_each(|s| s.end());
    }

    /// Returns the number of connections of all services.
    pub fn conns(&self) -> usize {
        self.0.iter().map(|s| s.conns()).sum()
    }

    /// Does the work that is due. Returns true if there was any. Never blocks.
    #[inline]
    pub fn step(&mut self) -> bool {
        // The fold does not stop at a busy service, so each service has its turn.
        self.0.iter_mut().fold(false, |busy, s| busy | s.step())
    }

    /// Returns true if all services listen, and false until the RNIC does.
    ///
    /// # Errors
    /// [`ListenFailure`] if one of the services never will.
    pub fn is_listening(&self) -> Result<bool, ListenFailure> {
        self.0.iter().try_fold(true, |all, s| Ok(all & s.is_listening()?))
    }

    /// Returns true if a step would find work, or if the caller has to step all the time. Arms the
    /// completion queues of all services, so the caller asks before it sleeps.
    pub fn has_work(&self) -> bool {
        // The fold does not stop early, so that it arms each service.
        self.0.iter().fold(false, |work, s| work | s.has_work())
    }
}

fn start(
    device: &Device,
    ServiceSpec { addr, kind, infiniband }: ServiceSpec,
    params: ListenParams,
    limits: Limits,
    waker: Option<&Waker>,
) -> Result<Box<dyn Serve>, DeviceError> {
    let params = ListenParams { infiniband, ..params };
    Ok(match kind {
        ServiceKind::Rping => {
            RpingServer::with_limits(device, addr, params, limits, waker, false)?.into_service()
        }
        ServiceKind::Perf => {
            Box::new(BenchServer::with_limits(device, addr, params, limits, waker)?)
        }
        ServiceKind::Rpc => Box::new(RpcService::new(device, addr, params, &limits, waker)?),
        ServiceKind::Sink => Sink::with_limits(device, addr, params, limits, waker)?.into_service(),
        ServiceKind::RdmaServer => {
            Box::new(Server::new(device, addr, params, limits, waker, RdmaServer)?)
        }
        ServiceKind::Ucmatose(messages) => {
            Box::new(Server::new(device, addr, params, limits, waker, Ucmatose(messages))?)
        }
        ServiceKind::Cmtime => {
            // `cmtime` makes all its connections at once, so the listener needs a larger backlog.
            let (backlog, max_startups_per_peer) = (Cmtime::MAX_CONNS, Some(Cmtime::PER_PEER));
            let params = ListenParams { backlog, max_startups_per_peer, ..params };
            Box::new(Server::new(device, addr, params, limits, waker, Cmtime)?)
        }
        ServiceKind::Perftest(test) => {
            let perftest = Perftest::new(device, test, &limits);
            Box::new(Server::new(device, addr, params, limits, waker, perftest)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_service_spec_of_an_address_and_of_the_unspecified_one() {
        let s: ServiceSpec = "10.0.0.1:7174=rping".parse().unwrap();
        assert_eq!((s.addr.to_string().as_str(), s.kind), ("10.0.0.1:7174", ServiceKind::Rping));
        for any in ["0.0.0.0:1=sink", "[::]:1=sink", "[fd00::1]:1=sink"] {
            let s: ServiceSpec = any.parse().unwrap();
            assert_eq!((s.addr.port(), s.kind), (1, ServiceKind::Sink));
        }
    }

    #[test]
    fn test_service_spec_faults_are_told_apart() {
        let e = |s: &str| s.parse::<ServiceSpec>().unwrap_err();
        assert!(matches!(e("10.0.0.1:7174"), ServiceError::NoService(_)));
        assert!(matches!(e("10.0.0.1=rping"), ServiceError::Address(_)));
        assert!(matches!(e("10.0.0.1:0=rping"), ServiceError::Address(_)));
        assert!(matches!(e("10.0.0.1:70000=rping"), ServiceError::Address(_)));
        assert!(matches!(e("10.0.0.1:1=ftp"), ServiceError::Unknown(_)));
        assert!(matches!(e("fd00::1:1=sink"), ServiceError::Address(_)));
        assert!(matches!(e("[fd00::1]:0=sink"), ServiceError::Address(_)));
        assert!(e("x=y").to_string().lines().count() == 1);
    }

    #[test]
    fn test_service_names_are_listed_and_round_trip() {
        for name in SERVICES.split(", ") {
            assert_eq!(name.parse::<ServiceKind>().unwrap().to_string(), name);
        }
        assert_eq!(SERVICES.split(", ").count(), 13);
    }

    #[test]
    fn test_service_options_are_taken_within_their_ranges_and_by_those_that_have_them() {
        let kind = |s: &str| s.parse::<ServiceKind>();
        let messages = Messages { count: 3, size: 3000 };
        assert_eq!(kind("ucmatose,count=3,size=3000").unwrap(), ServiceKind::Ucmatose(messages));
        let test = Test { program: Program::WriteLat, size: 8 << 20 };
        assert_eq!(kind("ib_write_lat,size=8388608").unwrap(), ServiceKind::Perftest(test));
        for bad in [
            "ib_write_lat,size=0",
            "ib_write_lat,size=8388609",
            "ib_write_lat,count=1",
            "ib_write_lat,size",
            "ib_write_lat,size=-1",
            "ib_write_lat,",
            "ucmatose,count=129",
            "ucmatose,count=0",
            "ucmatose,size=1048577",
            "rping,size=64",
        ] {
            let e = kind(bad).unwrap_err();
            assert!(matches!(e, ServiceError::Option { .. }), "{bad}: {e}");
            assert!(e.to_string().contains(bad.split(',').next().unwrap()), "{e}");
        }
        assert!(matches!(kind("rpin,size=64"), Err(ServiceError::Unknown(_))));
    }
}
