//! What is forwarded: its words, and whether it makes sense beside the rest.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use heddle_cm::gateway::{Gateway, GatewayRule};
use heddle_cm::{CmId, ListenerId};
use heddle_ctl::ForwardRule;
use heddle_iwarp::mpa::frame::RtrSet;
use heddle_verbs::{ListenParams, Protocol, Transport};

use super::{Config, Port};
use crate::service::{ServiceKind, ServiceSpec};

/// A listener that forwards: what comes over one protocol goes on over the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Where what comes there goes.
    pub to: SocketAddr,
    /// And over what.
    pub over: Transport,
    /// Connections at a time.
    pub connections: usize,
    /// How long the target may take to answer.
    pub timeout: Duration,
}

/// Connections at a time, when nothing is said.
pub(crate) const CONNECTIONS: usize = 64;
/// How long a target may take, when nothing is said: less than Linux waits for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may be given.
pub(crate) const TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);
pub(crate) const TIMEOUTS_TEXT: &str = "a target has between 100ms and 60s to answer";

/// Why InfiniBand is asked for in vain.
pub(crate) const NOT_SPOKEN: &str = "needs cm = true in [infiniband]";

/// Why a service is not given over InfiniBand.
pub(crate) fn no_data(kind: &ServiceKind) -> String {
    format!(
        "{kind} moves data, and over InfiniBand's connection management none are carried: of the \
         services only cmtime needs none"
    )
}

/// Where to.
///
/// # Errors
/// What is expected.
pub(crate) fn target(s: &str) -> Result<SocketAddr, String> {
    let to = ServiceSpec::address(s).map_err(|e| e.to_string())?;
    if to.ip().is_unspecified() || to.ip().is_multicast() {
        return Err(format!("{} is the address of none or many", to.ip()));
    }
    Ok(to)
}

/// Over what.
///
/// # Errors
/// What is expected.
pub(crate) fn over(s: &str) -> Result<Transport, String> {
    match s {
        "iwarp" => Ok(Transport::Iwarp),
        "infiniband" => Ok(Transport::InfiniBand),
        _ => Err(format!("'{s}' is none of iwarp, infiniband")),
    }
}

impl Forward {
    /// The same, as the RNIC is to have it. One address gets its share of the connections, as of a
    /// service; nobody waits for first messages where none need be sent.
    pub(crate) fn rule(&self, config: &Config) -> ForwardRule {
        let share = (self.connections / config.limits.peer_share.max(1)).max(1);
        let params = ListenParams {
            // All listeners share the room there is for InfiniBand's requests.
            backlog: self.connections.min(ListenParams::default().backlog),
            max_startups_per_peer: Some(share),
            max_conns_per_peer: Some(share),
            ..ListenParams::default().mpa(config.mpa)
        };
        let protocol = match self.over {
            // We begin with nothing, and need not be told that the peer may.
            Transport::Iwarp => Protocol::Mpa(config.mpa.peer_to_peer(RtrSet::NONE)),
            Transport::InfiniBand => Protocol::InfiniBand,
        };
        ForwardRule {
            addr: self.addr,
            params,
            from: self.from(),
            target: self.to,
            protocol,
            timeout: self.timeout,
            most: self.connections,
        }
    }

    /// What is forwarded: the other protocol than that of the target.
    pub fn from(&self) -> Transport {
        match self.over {
            Transport::Iwarp => Transport::InfiniBand,
            Transport::InfiniBand => Transport::Iwarp,
        }
    }
}

/// The protocol's name.
pub(crate) const fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Iwarp => "iwarp",
        Transport::InfiniBand => "infiniband",
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forward to {} over {}", self.to, name(self.over))
    }
}

/// Whether a listener may forward so, beside `others` and with these ports.
///
/// # Errors
/// Why not, in the words of the configuration.
pub(crate) fn check(new: &Forward, ports: &[Port], others: &[Forward]) -> Result<(), String> {
    let ours: Vec<IpAddr> =
        ports.iter().flat_map(|p| &p.addresses).map(heddle_tcp::Cidr::addr).collect();
    let mut gateway = Gateway::new(ours.clone(), CmId(0));
    for (n, f) in (0..).zip(others) {
        let rule = GatewayRule {
            listener: ListenerId(n),
            addr: f.addr,
            from: f.from(),
            target: f.to,
            protocol: Protocol::default(),
            timeout: f.timeout,
            most: f.connections,
        };
        // They were checked before.
        let _ = gateway.add(rule);
    }
    gateway.check(new.addr, new.to).map_err(|_| round(new, others, &ours))?;
    if ours.contains(&new.to.ip()) {
        return Err(format!(
            "{} is an address of a port: it connects to nobody there",
            new.to.ip()
        ));
    }
    Ok(())
}

/// The way of a request that comes back.
fn round(new: &Forward, others: &[Forward], ours: &[IpAddr]) -> String {
    let reaches = |to: SocketAddr, at: SocketAddr| {
        let any = at.ip().is_unspecified() && ours.contains(&to.ip());
        to.port() == at.port() && (to.ip() == at.ip() || any)
    };
    let (mut way, mut at) = (format!("{} to {}", new.addr, new.to), new.to);
    for _ in others {
        let next = others.iter().find(|f| reaches(at, f.addr));
        let Some(next) = next.filter(|_| !reaches(at, new.addr)) else { break };
        at = next.to;
        way += &format!(" to {at}");
    }
    format!("a loop: what comes to {way}")
}
