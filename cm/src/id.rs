use core::fmt;

/// Names a connection. Never used again while the manager lives.
///
/// The connections an application asks for are named by whoever hands the request in, with numbers
/// below [`PASSIVE`](Self::PASSIVE); those that peers make are named by the manager, from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CmId(pub u64);

impl CmId {
    /// The first name of a connection that a peer makes.
    pub const PASSIVE: CmId = CmId(1 << 63);

    /// Whether a peer made the connection.
    pub const fn is_passive(self) -> bool {
        self.0 >= CmId::PASSIVE.0
    }
}

impl fmt::Display for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Names a listener; chosen by whoever hands the request in, and never used again while the manager
/// lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListenerId(pub u64);

/// A worker: its index, below the number of workers the manager was made with; see
/// [`Ports`](crate::Ports).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WorkerId(pub usize);

/// Who owns listeners and connections: a process or a tenant. Never used again after
/// [`Request::AppGone`](crate::Request::AppGone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u64);

/// Who pays for what applications take of a common store: a user, say, of whom several applications
/// run. An application that was never given one
/// ([`ConnectionManager::set_tenant`](crate::ConnectionManager::set_tenant)) is a tenant by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TenantId {
    /// An account that several applications may share.
    Account(u64),
    /// One application.
    App(AppId),
}
