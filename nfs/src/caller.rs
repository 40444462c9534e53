//! The callers that a service admits, and the user as whom it carries out a call.
//!
//! By default the service carries out all calls as the user that the server runs as. A service with
//! the privilege to act for users (CAP_SETUID and CAP_SETGID) can instead act as the user that a
//! caller claims to be, or as an anonymous user: the kernel then decides what the call may do, by
//! the same rules as for a local process.
//!
//! Linux keeps the user per thread. A thread that carries out a call takes the effective user,
//! group and groups of the caller, gives up all effective capabilities unless the caller is root,
//! and turns back into the server when the call is done. No other thread is affected, so calls of
//! different users run side by side. The thread finds objects by handle as the server, since a
//! caller need not be able to search the directories above; the thread turns into the caller after
//! that. The server's threads put changes on the disk. A new thread inherits the user of the thread
//! that starts it, so the service starts these threads outside of the part of a call that runs as a
//! user.
//!
//! AUTH_SYS is the caller's unproven claim. A list of clients says whose claims the service
//! believes.

use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use heddle_rpcrdma::rpc::{Auth, AuthSys};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// The user and group of anonymous callers, unless the configuration names others.
pub const ANONYMOUS: u32 = 65_534;

/// The addresses of some clients: a prefix, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// A text is not a [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address, or ADDRESS/PREFIX")]
pub struct NetworkError;

impl Network {
    /// Returns true if `address` is in this network. The caller may write an IPv4 address as an
    /// IPv6 one.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, true),
            IpAddr::V6(v6) => (u128::from(v6), false),
        };
        let ((own, own_v4), (other, other_v4)) = (bits(self.address), bits(address));
        let differing = (own ^ other).leading_zeros();
        own_v4 == other_v4 && differing >= u32::from(self.prefix)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(s: &str) -> Result<Network, NetworkError> {
        let (address, prefix) = s.split_once('/').map_or((s, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().map_err(|_| NetworkError)?;
        let address = address.to_canonical();
        let all = if matches!(address, IpAddr::V4(Ipv4Addr { .. })) { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(all), str::parse).map_err(|_| NetworkError)?;
        if prefix > all {
            return Err(NetworkError);
        }
        Ok(Network { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix == all {
            return self.address.fmt(f);
        }
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The user as whom the service carries out calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Every call runs as the user that the server runs as, whatever the caller says.
    #[default]
    Server,
    /// Every call runs as the anonymous user.
    All,
    /// A call runs as the user that the caller claims to be, except that root becomes the anonymous
    /// user.
    Root,
    /// A call runs as the user that the caller claims to be.
    None,
}

/// The clients that may call, and the user as whom the service carries out their calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The clients whose calls the service carries out; an empty list admits every client.
    pub clients: Vec<Network>,
    /// The user as whom the service carries out calls.
    pub squash: Squash,
    /// The user ID of the anonymous user.
    pub anonuid: u32,
    /// The group ID of the anonymous user.
    pub anongid: u32,
}

impl Default for Access {
    fn default() -> Access {
        let squash = Squash::default();
        Access { clients: Vec::new(), squash, anonuid: ANONYMOUS, anongid: ANONYMOUS }
    }
}

impl Access {
    /// Returns true if the service carries out calls of `peer`. A caller within the process has no
    /// address and is always admitted.
    pub(crate) fn admits(&self, peer: Option<IpAddr>) -> bool {
        let listed = |peer| self.clients.iter().any(|network| network.contains(peer));
        self.clients.is_empty() || peer.is_none_or(listed)
    }

    /// Returns the user as whom a call with this credential is carried out; `None` stands for the
    /// server's own user.
    pub(crate) fn user(&self, cred: &Auth<'_>) -> Option<User> {
        let anonymous = User::new(self.anonuid, self.anongid, Vec::new());
        let said = match self.squash {
            Squash::Server => return None,
            Squash::All => return Some(anonymous),
            Squash::Root | Squash::None => AuthSys::decode(cred),
        };
        let Ok(said) = said else { return Some(anonymous) };
        let squashed = self.squash == Squash::Root;
        // The system calls take the last number as "leave unchanged", which here would mean the
        // server.
        if said.uid == u32::MAX || said.gid == u32::MAX || (squashed && said.uid == 0) {
            return Some(anonymous);
        }
        let group = |gid| if squashed && gid == 0 { self.anongid } else { gid };
        let groups = said.gids.as_slice().iter().copied().filter(|&gid| gid != u32::MAX);
        Some(User::new(said.uid, group(said.gid), groups.map(group).collect()))
    }
}

/// The service cannot act for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The server does not have the right.
    #[error("acting for users takes CAP_SETUID and CAP_SETGID, which root has")]
    Privilege,
    /// No user has this number.
    #[error("{0} is the number of no user or group")]
    Number(u32),
}

/// A user as whom the service carries out calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl User {
    /// Makes a user from numbers none of which is `u32::MAX`.
    fn new(uid: u32, gid: u32, groups: Vec<u32>) -> User {
        let groups = groups.into_iter().map(Gid::from_raw).collect();
        User { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid), groups }
    }
}

/// The identity and capabilities that the server's threads have while they carry out no call.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    user: User,
    capabilities: CapabilitySets,
}

impl Server {
    /// Returns the calling thread's identity, or `None` if `access` lets every call run as the
    /// server.
    ///
    /// # Errors
    /// [`AccessError`], also when the thread cannot grant what `access` asks for.
    pub(crate) fn check(access: &Access) -> Result<Option<Server>, AccessError> {
        let ids = [access.anonuid, access.anongid];
        if let Some(&id) = ids.iter().find(|&&id| id == u32::MAX) {
            return Err(AccessError::Number(id));
        }
        if access.squash == Squash::Server {
            return Ok(None);
        }
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        let own = capabilities(None).ok().filter(|own| own.effective.contains(needed));
        let groups = getgroups().map_err(|_| AccessError::Privilege)?;
        let user = User { uid: geteuid(), gid: getegid(), groups };
        Ok(Some(Server { user, capabilities: own.ok_or(AccessError::Privilege)? }))
    }

    /// Turns the calling thread into `user`.
    ///
    /// # Errors
    /// The error of the system call; the thread is the server again then.
    fn become_user(&self, user: &User) -> Result<(), Errno> {
        let turned = set_thread_groups(&user.groups)
            .and_then(|()| set_thread_res_gid(None, user.gid, None))
            .and_then(|()| set_thread_res_uid(None, user.uid, None));
        // The kernel takes the capabilities away from a thread that was root; a thread that has
        // capabilities for another reason gives them up itself.
        let turned = turned.and_then(|()| {
            let effective = CapabilitySet::empty();
            let none = CapabilitySets { effective, ..self.capabilities };
            if user.uid.is_root() { Ok(()) } else { set_capabilities(None, none) }
        });
        turned.inspect_err(|_| self.become_server())
    }

    /// Turns the calling thread back into what it was.
    fn become_server(&self) {
        let turn = || {
            // The saved user is the server's, and a thread may take its saved user without a
            // capability; with the capabilities back, the thread may set the groups.
            set_thread_res_uid(None, self.user.uid, None)?;
            set_capabilities(None, self.capabilities)?;
            set_thread_res_gid(None, self.user.gid, None)?;
            set_thread_groups(&self.user.groups)
        };
        // A turn fails at most for want of memory. A thread that went on as a user would carry out
        // calls of others as that user.
        while let Err(error) = turn() {
            tracing::error!(%error, "a thread of NFS cannot turn back into the server's user");
            std::thread::yield_now();
        }
    }
}

/// The call that the thread carries out for a user.
struct Call {
    server: Server,
    user: User,
    /// True while the thread is the user.
    turned: bool,
}

thread_local! {
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

/// A call for a user, until it is dropped.
#[must_use]
pub(crate) struct Calling(());

impl Calling {
    /// Begins a call for a user. The thread turns into the user after `as_server` has found the
    /// first object.
    pub(crate) fn begin(server: &Server, user: User) -> Calling {
        let call = Call { server: server.clone(), user, turned: false };
        CALL.with_borrow_mut(|current| *current = Some(call));
        Calling(())
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if let Some(call) = CALL.take().filter(|call| call.turned) {
            call.server.become_server();
        }
    }
}

/// Runs `act` as the server, to find an object or to open one for the server's own use. If the
/// thread carries out a call for a user, the thread is that user afterwards, also when `act` fails.
///
/// # Errors
/// The errors of `act`; the error of the system call when the thread cannot become the user.
pub(crate) fn as_server<T, E: From<Errno>>(act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    CALL.with_borrow_mut(|call| {
        if let Some(call) = call.as_mut().filter(|call| call.turned) {
            call.server.become_server();
            call.turned = false;
        }
    });
    let done = act();
    CALL.with_borrow_mut(|call| {
        if let Some(call) = call {
            call.server.become_user(&call.user)?;
            call.turned = true;
        }
        done
    })
}

/// Returns true if the thread carries out a call for a user. The caller then has to check again
/// that this user may use a descriptor that was opened before.
pub(crate) fn is_for_user() -> bool {
    CALL.with_borrow(Option::is_some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_network_contains_addresses_of_its_prefix() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "::ffff:10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("10.1.2.4/31", "10.1.2.5", true),
            ("10.1.2.4/31", "10.1.2.6", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "fe80::1", true),
            ("::/0", "1.2.3.4", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
        ];
        for (network, address, contained) in cases {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), contained, "{network} {address}");
            assert_eq!(parsed.to_string(), network);
        }
        for bad in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "host", "10.0.0.0/-1"] {
            assert_eq!(bad.parse::<Network>(), Err(NetworkError), "{bad}");
        }
    }
}
