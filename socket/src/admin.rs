//! Requests with which administrators observe and change an appliance.
//!
//! | `op` | `args` | answer | may |
//! |---|---|---|---|
//! | `status` | | [`Status`] | look |
//! | `conns` | [`ConnsArgs`], may be absent | [`Conns`] | look |
//! | `mrs` | [`MrsArgs`], may be absent | [`Mrs`] | look |
//! | `ports` | | [`Ports`] | look |
//! | `stats` | | [`Stats`] | look |
//! | `listen-add` | [`ListenAdd`] | null | change |
//! | `listen-del` | [`ListenDel`] | null | change |
//! | `conn-kill` | [`ConnKill`] | null | change |
//! | `application-kill` | [`ApplicationKill`] | null | change |
//! | `reload` | | [`Reloaded`] | change |
//! | `log-level` | [`LogLevel`] | null | change |
//! | `drain` | [`DrainArgs`], may be absent | [`Drained`] | change |
//! | `undrain` | | null | change |
//! | `log` | | [`LogLines`] | change |
//! | `config` | | [`Settings`] | look |
//! | `config-diff` | | [`Differences`] | look |
//!
//! A queue pair is shown with its connection. Times of the appliance are nanoseconds since its
//! start (`at_ns`): a client computes a rate from the difference of two answers. Counters begin at
//! 0 with the appliance, or with the connection, and wrap at 2^64. Addresses are written
//! `ADDRESS:PORT`. Later versions may add fields to answers; a client ignores fields that it does
//! not know.

use serde::{Deserialize, Serialize};

use crate::bounds::{Bound, Bounded, Rule, bound};

mod asked;
mod changes;
mod conns;
mod ports;
mod status;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

pub use asked::{
    ApplicationKill, ConnKill, ConnsArgs, DrainArgs, End, Forward, ListenAdd, ListenDel, LogLevel,
    MAX_CONNS, MAX_MRS, MrsArgs,
};
pub use changes::{Difference, Differences, Drained, LogLines, Reloaded, Settings};
pub use conns::{Agreed, Conn, Conns, Mr, Mrs, Qp, Tcp};
pub use ports::{Counter, Port, PortBond, PortLacp, PortMember, PortVlan, Ports, Stats};
pub use status::{
    Application, ControlStatus, Export, ExportedDirectory, LastReload, Listener, Status,
    WorkerStatus,
};

/// A request of an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", content = "args", rename_all = "kebab-case")]
pub enum Request {
    /// Report the state of the appliance, in short.
    Status,
    /// List connections and their queue pairs.
    Conns(Option<ConnsArgs>),
    /// List registered memory.
    Mrs(Option<MrsArgs>),
    /// Report the state and the counters of each port.
    Ports,
    /// Report all counters.
    Stats,
    /// Start a service.
    ListenAdd(ListenAdd),
    /// Stop a service from taking connections; its existing connections go on.
    ListenDel(ListenDel),
    /// End a connection.
    ConnKill(ConnKill),
    /// End an application of another process: the application loses its device and all objects of
    /// the device.
    ApplicationKill(ApplicationKill),
    /// Read the configuration again and carry out its changes.
    Reload,
    /// Log at another level until the configuration is read again.
    LogLevel(LogLevel),
    /// Refuse new connections and applications from here on; existing ones go on.
    Drain(Option<DrainArgs>),
    /// Take new connections and applications again.
    Undrain,
    /// Report the last lines of the log. They may name users and files, so the right to look is not
    /// enough.
    Log,
    /// Report all settings in force, with their defaults.
    Config,
    /// Compare the settings in force with those of the configuration file.
    ConfigDiff,
}

impl Bounded for Request {
    const BOUNDS: &'static [Bound] = &[
        bound("conns", "after", Rule::Name),
        bound("conns", "limit", Rule::Clamp(1, MAX_CONNS as u64)),
        bound("conns", "port", Rule::Name),
        bound("conns", "worker", Rule::Name),
        bound("listen-add", "forward.connections", Rule::Within(1, 1 << 20)),
        bound("listen-add", "forward.timeout_ms", Rule::Within(1, 3_600_000)),
        bound("conn-kill", "conn", Rule::Name),
        bound("application-kill", "application", Rule::Name),
    ];
}

impl Request {
    /// Returns true if the request changes the appliance.
    pub const fn changes(&self) -> bool {
        match self {
            Request::Status
            | Request::Conns(_)
            | Request::Mrs(_)
            | Request::Ports
            | Request::Stats
            | Request::Config
            | Request::ConfigDiff => false,
            Request::ListenAdd(_)
            | Request::ListenDel(_)
            | Request::ConnKill(_)
            | Request::ApplicationKill(_)
            | Request::Reload
            | Request::LogLevel(_)
            | Request::Drain(_)
            | Request::Undrain
            | Request::Log => true,
        }
    }
}
