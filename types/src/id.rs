//! Names of connections, listeners, workers and applications.

use core::fmt;

/// Names a connection. A name is never used again while the manager lives.
///
/// The caller that hands a request to connect in chooses its name, below
/// [`PASSIVE`](Self::PASSIVE). The manager names the connections that peers make, from
/// [`PASSIVE`](Self::PASSIVE) on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CmId(pub u64);

impl CmId {
    /// The first name of a connection that a peer makes.
    pub const PASSIVE: CmId = CmId(1 << 63);

    /// Returns true if a peer made the connection.
    pub const fn is_passive(self) -> bool {
        self.0 >= CmId::PASSIVE.0
    }
}

impl fmt::Display for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Names a listener. The caller that hands the request in chooses the name, and never uses it again
/// while the manager lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListenerId(pub u64);

/// Names a connection of one engine: its place in tables, and the number of times that the place
/// has had a connection. The name of a released connection never names a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// Names no connection.
    pub const NONE: ConnId = ConnId::new(u32::MAX, u32::MAX);

    /// Returns the name of the connection at `index`; its engine alone calls this function, with
    /// another `generation` for each connection that it puts there.
    pub const fn new(index: u32, generation: u32) -> ConnId {
        ConnId { index, generation }
    }

    /// Returns an index below the most connections that the engine takes, for tables kept beside
    /// it. No two connections have the same index at a time.
    #[inline]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Returns the [index](Self::index) as its engine counts.
    #[inline]
    pub const fn slot(self) -> u32 {
        self.index
    }

    /// Returns the number that tells connections with the same index apart.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}.{}", self.index, self.generation)
    }
}

/// Index of a worker, below the number of workers that the manager was made with; see
/// `heddle_cm::Ports`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WorkerId(pub usize);

/// Names the owner of listeners and connections, an application: a process or a tenant. The name is
/// never used again after [`Request::AppGone`](crate::Request::AppGone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u64);

/// Names the account that pays for an application's share of a common store, such as a user with
/// several applications. An application without an account
/// (`heddle_cm::ConnectionManager::set_tenant`) is a tenant by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TenantId {
    /// An account that several applications may share.
    Account(u64),
    /// An application without an account.
    App(AppId),
}
