//! Forwarders: their form in a file, and their check against the rest of the configuration.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use heddle_gateway::Rule;
use heddle_gateway::pairing::{Pairing, PairingRule};
use heddle_types::{CmId, ListenAt, ListenerId, TcpTerms, mpa::RtrSet};
use heddle_verbs::{ListenParams, Protocol, Transport};

use super::{Config, Port};
use crate::service::{ServiceKind, ServiceSpec};

/// A listener that forwards: connections that come over one protocol go on over the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Address and port of the listener.
    pub addr: SocketAddr,
    /// Address and port that requests are sent to.
    pub to: SocketAddr,
    /// Protocol towards the target.
    pub over: Transport,
    /// Largest number of simultaneous connections.
    pub connections: usize,
    /// Time that the target has to answer.
    pub timeout: Duration,
    /// Settings of TCP for the connections over iWARP, where they differ from the RNIC's.
    pub tcp: TcpTerms,
}

/// Default number of simultaneous connections.
pub(crate) const CONNECTIONS: usize = 64;
/// Default time for a target to answer: less than Linux waits for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Range of the time for a target to answer.
pub(crate) const TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);
pub(crate) const TIMEOUTS_TEXT: &str = "a target has between 100ms and 60s to answer";

/// The reason why InfiniBand is not available.
pub(crate) const NOT_SPOKEN: &str = "needs cm = true in [infiniband]";

/// Returns the reason why a service cannot be offered over InfiniBand.
pub(crate) fn no_data(kind: &ServiceKind) -> String {
    format!(
        "{kind} moves data, and over InfiniBand's connection management none are carried: of the \
         services only cmtime needs none"
    )
}

/// Parses the target.
///
/// # Errors
/// The expected form.
pub(crate) fn target(s: &str) -> Result<SocketAddr, String> {
    let to = ServiceSpec::address(s).map_err(|e| e.to_string())?;
    if to.ip().is_unspecified() || to.ip().is_multicast() {
        return Err(format!("{} is the address of none or many", to.ip()));
    }
    Ok(to)
}

/// Parses the protocol towards the target.
///
/// # Errors
/// The expected names.
pub(crate) fn over(s: &str) -> Result<Transport, String> {
    match s {
        "iwarp" => Ok(Transport::Iwarp),
        "infiniband" => Ok(Transport::InfiniBand),
        _ => Err(format!("'{s}' is none of iwarp, infiniband")),
    }
}

impl Forward {
    /// Returns the rule for the RNIC. Each address gets its share of the connections, as with a
    /// service. There is no time limit for first messages, because a forwarded connection may stay
    /// silent.
    pub(crate) fn rule(&self, config: &Config) -> Rule {
        let share = (self.connections / config.limits.peer_share.max(1)).max(1);
        let params = ListenParams {
            // All listeners share the room for InfiniBand's requests.
            backlog: self.connections.min(ListenParams::default().backlog),
            max_startups_per_peer: Some(share),
            max_conns_per_peer: Some(share),
            tcp: self.tcp,
            ..ListenParams::default().mpa(config.mpa)
        };
        let protocol = match self.over {
            // The gateway sends nothing first, so it does not ask for the peer-to-peer model.
            Transport::Iwarp => Protocol::Mpa(config.mpa.peer_to_peer(RtrSet::NONE)),
            Transport::InfiniBand => Protocol::InfiniBand,
        };
        Rule {
            addr: self.addr,
            params,
            from: self.from(),
            target: self.to,
            protocol,
            timeout: self.timeout,
            most: self.connections,
            tcp: self.tcp,
        }
    }

    /// Returns the protocol of the requests that are forwarded: the one that the target does not
    /// speak.
    pub fn from(&self) -> Transport {
        match self.over {
            Transport::Iwarp => Transport::InfiniBand,
            Transport::InfiniBand => Transport::Iwarp,
        }
    }
}

/// Returns the protocol's name.
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

/// Returns `Ok` if a listener may forward in this way, beside `others` and with these ports.
///
/// # Errors
/// The reason, in the words of the configuration.
pub(crate) fn check(new: &Forward, ports: &[Port], others: &[Forward]) -> Result<(), String> {
    let ours: Vec<IpAddr> = ports.iter().flat_map(Port::all_addresses).map(|c| c.addr()).collect();
    let mut pairing = Pairing::new(ours.clone(), CmId(0));
    for (n, f) in (0..).zip(others) {
        let rule = PairingRule {
            listener: ListenerId(n),
            addr: f.addr,
            from: f.from(),
            target: f.to,
            protocol: Protocol::default(),
            timeout: f.timeout,
            most: f.connections,
            tcp: f.tcp,
        };
        // These rules have been checked already.
        let _ = pairing.add(rule);
    }
    pairing.check(new.addr, new.to).map_err(|_| round(new, others, &ours))?;
    if ours.contains(&new.to.ip()) {
        return Err(format!(
            "{} is an address of a port: it connects to nobody there",
            new.to.ip()
        ));
    }
    Ok(())
}

/// Returns the way of a request that comes back.
fn round(new: &Forward, others: &[Forward], ours: &[IpAddr]) -> String {
    let reaches = |to: SocketAddr, at: SocketAddr| {
        let any = ListenAt::new(at.ip(), false).takes(to.ip()) && ours.contains(&to.ip());
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
