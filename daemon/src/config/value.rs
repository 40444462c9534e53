//! Values that are written as words: addresses, users and groups.

use core::fmt;
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use heddle_base::units::{ByteRate, UnitError};
use heddle_hub::Addresses;
use heddle_tcp::Cidr;
use nix::errno::Errno;
use nix::unistd::{Gid, Group, User};

/// Parses an address with its prefix length.
///
/// # Errors
/// The expected form.
pub fn cidr(s: &str) -> Result<Cidr, String> {
    let form = "expected ADDRESS/PREFIX, as 10.0.0.1/24 or fd00::1/64";
    let (addr, prefix) = s.split_once('/').ok_or(form)?;
    let addr: IpAddr = addr.parse().map_err(|_| form)?;
    let digits = prefix.bytes().all(|b| b.is_ascii_digit());
    let prefix: u8 = prefix.parse().ok().filter(|_| digits).ok_or(form)?;
    if addr.is_unspecified() || addr.is_multicast() {
        return Err("an RNIC needs an address of its own, not that of none or many".into());
    }
    Cidr::new(addr, prefix).ok_or_else(|| form.into())
}

/// Returns the value that has a name.
///
/// # Errors
/// The names.
pub(crate) fn named<T: Copy>(s: &str, names: &[(&str, T)]) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == s).map(|(_, value)| *value);
    let all: Vec<_> = names.iter().map(|(name, _)| *name).collect();
    found.ok_or_else(|| format!("'{s}' is none of {}", all.join(", ")))
}

/// Parses an address.
///
/// # Errors
/// When `s` is not an address.
pub(super) fn ip(s: &str) -> Result<IpAddr, String> {
    s.parse().map_err(|_| format!("'{s}' is no IP address"))
}

/// Parses `ADDRESS[/PREFIX]:PORT[-PORT]`, or `any`.
///
/// # Errors
/// The expected form.
pub(super) fn addresses(s: &str) -> Result<Vec<Addresses>, String> {
    if s == "any" {
        return Ok(Addresses::any());
    }
    let wrong = || format!("'{s}' is none of any, ADDRESS[/PREFIX]:PORT[-PORT]");
    let (at, ports) = s.rsplit_once(':').ok_or_else(wrong)?;
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port = |p: &str| p.parse::<u16>().map_err(|_| wrong());
    let ports = port(first)?..=port(last)?;
    let (addr, prefix) = at.split_once('/').map_or((at, None), |(a, p)| (a, Some(p)));
    let addr: IpAddr =
        addr.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| wrong())?;
    let most = if addr.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(Ok(most), |p| p.parse::<u8>().map_err(|_| wrong()))?;
    if prefix > most || ports.is_empty() {
        return Err(wrong());
    }
    Ok(vec![Addresses { addr, prefix, ports }])
}

/// The least rate of a share: with less, a tenant's orderly closes could time out while they wait
/// for the rate.
const LEAST_RATE: u64 = 1_000_000;

/// Parses a rate, or `none`.
///
/// # Errors
/// The expected form.
pub(super) fn rate(s: &str) -> Result<Option<u64>, String> {
    if s == "none" {
        return Ok(None);
    }
    let ByteRate(bytes) = s.parse().map_err(|e: UnitError| format!("{e}, or none"))?;
    if bytes < LEAST_RATE {
        return Err(format!("'{s}' is less than {}", ByteRate(LEAST_RATE)));
    }
    Ok(Some(bytes))
}

/// A set of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// Processes of the user with this id.
    User(u32),
    /// Processes whose group is this one, and users that are members of it.
    Group {
        /// Group id.
        gid: u32,
        /// Members of the group when the file was read.
        members: BTreeSet<u32>,
    },
    /// All users.
    Any,
}

impl Principal {
    /// Returns true if the principal covers a process of this user and group.
    pub fn covers(&self, uid: u32, gid: u32) -> bool {
        match self {
            Principal::User(u) => *u == uid,
            Principal::Group { gid: g, members } => *g == gid || members.contains(&uid),
            Principal::Any => true,
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::User(u) => write!(f, "user:{u}"),
            Principal::Group { gid, .. } => write!(f, "group:{gid}"),
            Principal::Any => f.write_str("any"),
        }
    }
}

/// Users and groups by their names.
#[derive(Clone, Debug, Default)]
pub struct Accounts(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    /// The accounts of the system, from all sources of nsswitch.conf(5): files, directory services.
    #[default]
    System,
    /// The users and groups of a list.
    Listed { users: BTreeMap<String, u32>, groups: BTreeMap<String, (u32, Vec<String>)> },
}

impl Accounts {
    /// Returns the users and groups of this system. A look-up may wait for a directory service.
    pub fn of_system() -> Accounts {
        Accounts(Source::System)
    }

    /// Parses lists of this form (passwd(5), group(5)). Lines of another form are left out.
    pub fn parse(passwd: &str, group: &str) -> Accounts {
        let users = passwd.lines().filter_map(|l| {
            let mut fields = l.split(':');
            Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
        });
        let groups = group.lines().filter_map(|l| {
            let mut fields = l.split(':');
            let name = fields.next()?.to_owned();
            let gid = fields.nth(1)?.parse().ok()?;
            let members = fields.next().unwrap_or("").split(',').filter(|m| !m.is_empty());
            Some((name, (gid, members.map(str::to_owned).collect())))
        });
        Accounts(Source::Listed { users: users.collect(), groups: groups.collect() })
    }

    /// Returns the number of a user; `None` if there is no user of that name.
    fn user(&self, name: &str) -> Result<Option<u32>, String> {
        match &self.0 {
            Source::Listed { users, .. } => Ok(users.get(name).copied()),
            Source::System => match looked_up(User::from_name(name)) {
                Ok(user) => Ok(user.map(|u| u.uid.as_raw())),
                Err(e) => Err(format!("the system cannot look up the user '{name}': {e}")),
            },
        }
    }

    /// Returns the number of a group, and the names of its members; `None` if there is no group of
    /// that name.
    fn group_named(&self, name: &str) -> Result<Option<(u32, Vec<String>)>, String> {
        match &self.0 {
            Source::Listed { groups, .. } => Ok(groups.get(name).cloned()),
            Source::System => of_group(name, Group::from_name(name)),
        }
    }

    /// As [`group_named`](Self::group_named), for a number.
    fn group_numbered(&self, gid: u32) -> Result<Option<(u32, Vec<String>)>, String> {
        match &self.0 {
            Source::Listed { groups, .. } => Ok(groups.values().find(|(g, _)| *g == gid).cloned()),
            Source::System => of_group(&gid.to_string(), Group::from_gid(Gid::from_raw(gid))),
        }
    }

    /// Parses `user:NAME`, `group:NAME` or `any`; a number is a name as well.
    ///
    /// # Errors
    /// The expected form, or that there is no account of that name.
    pub(super) fn principal(&self, s: &str) -> Result<Principal, String> {
        match s.split_once(':') {
            None if s == "any" => Ok(Principal::Any),
            Some(("user", name)) => match self.user(name)? {
                Some(uid) => Ok(Principal::User(uid)),
                None => {
                    let uid = name.parse().map_err(|_| format!("there is no user '{name}'"))?;
                    Ok(Principal::User(uid))
                }
            },
            Some(("group", name)) => self.group(name),
            _ => Err(format!("'{s}' is none of user:NAME, group:NAME, any")),
        }
    }

    fn group(&self, name: &str) -> Result<Principal, String> {
        let found = match self.group_named(name)? {
            Some(found) => found,
            None => {
                let gid = self.gid(name)?;
                self.group_numbered(gid)?.unwrap_or((gid, Vec::new()))
            }
        };
        let (gid, names) = found;
        let mut members = BTreeSet::new();
        for name in names {
            // A group may have members that the system does not know.
            members.extend(self.user(&name)?);
        }
        Ok(Principal::Group { gid, members })
    }

    /// Returns the number of a group.
    ///
    /// # Errors
    /// When there is no group of that name.
    pub(super) fn gid(&self, name: &str) -> Result<u32, String> {
        match self.group_named(name)? {
            Some((gid, _)) => Ok(gid),
            None => name.parse().map_err(|_| format!("there is no group '{name}'")),
        }
    }
}

fn of_group(
    name: &str,
    found: nix::Result<Option<Group>>,
) -> Result<Option<(u32, Vec<String>)>, String> {
    let fail = |e| format!("the system cannot look up the group '{name}': {e}");
    Ok(looked_up(found).map_err(fail)?.map(|g| (g.gid.as_raw(), g.mem)))
}

/// Returns `None` also for the errors by which systems say that there is no such name
/// (getpwnam_r(3)), as where a container has no list of users.
fn looked_up<T>(found: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match found {
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        found => found,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_cidr_accepts_both_families_and_extreme_prefixes() {
        for good in ["10.0.0.1/24", "10.0.0.1/0", "10.0.0.1/32", "fd00::1/64", "fd00::1/128"] {
            let c = cidr(good).unwrap();
            assert_eq!(format!("{}/{}", c.addr(), c.prefix()), good);
        }
    }

    #[test]
    fn test_cidr_refuses_malformed_text() {
        for bad in [
            "",
            "10.0.0.1",
            "10.0.0.1/",
            "10.0.0.1/33",
            "fd00::1/129",
            "10.0.0/8",
            "x/8",
            "10.0.0.1/+8",
            "0.0.0.0/0",
            "224.0.0.1/4",
            "10.0.0.1/24/2",
        ] {
            assert!(cidr(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn test_listen_rule_matches_ranges_of_ports_and_networks() {
        let contain = |s: &str, at: &str| {
            addresses(s).unwrap().iter().any(|a| a.contain(at.parse().unwrap()))
        };
        assert!(contain("10.0.0.0/24:7000-7999", "10.0.0.9:7999"));
        assert!(!contain("10.0.0.0/24:7000-7999", "10.0.1.9:7999"));
        assert!(contain("10.0.0.1:80", "10.0.0.1:80") && !contain("10.0.0.1:80", "10.0.0.1:81"));
        assert!(contain("[fd00::]/16:1-65535", "[fd00::7]:9") && contain("any", "0.0.0.0:1"));
        for bad in ["", "10.0.0.1", "10.0.0.1:", ":80", "10.0.0.1:9-8", "10.0.0.1/33:80", "x:1"] {
            assert!(addresses(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn test_rate_has_a_unit_and_is_no_less_than_a_megabyte() {
        assert_eq!(rate("none"), Ok(None));
        assert_eq!(rate("8Mbit/s"), Ok(Some(1_000_000)));
        assert_eq!(rate("999kB/s"), Err("'999kB/s' is less than 1MB/s".into()));
        let form = "'50k' is not a rate such as 100MB/s or 10Gbit/s, or none";
        assert_eq!(rate("50k"), Err(form.into()));
    }

    #[test]
    fn test_principal_covers_users_group_members_and_numeric_ids() {
        let a = Accounts::parse(
            "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::\nbad line\nbob:x:1001:1001::",
            "rdma:x:50:ann,nobody-known,\nempty:x:51:\nbroken\n",
        );
        let covers = |s: &str, uid, gid| a.principal(s).unwrap().covers(uid, gid);
        assert!(covers("user:ann", 1000, 7) && !covers("user:ann", 1001, 1000));
        assert!(covers("group:rdma", 1000, 7), "a member");
        assert!(covers("group:rdma", 1, 50), "by its own group");
        assert!(!covers("group:rdma", 1001, 1001) && !covers("group:empty", 1000, 50));
        assert!(covers("user:77", 77, 1) && covers("group:77", 1, 77) && covers("any", 5, 5));
        for bad in ["user:carl", "group:none", "ann", "user", "users:ann", "user:-1", ""] {
            assert!(a.principal(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn test_principal_of_system_knows_its_accounts() {
        let a = Accounts::of_system();
        assert_eq!(a.principal("user:root"), Ok(Principal::User(0)));
        let Ok(Principal::Group { gid: 0, .. }) = a.principal("group:root") else {
            panic!("{:?}", a.principal("group:root"))
        };
        assert_eq!(a.principal("user:4294967294"), Ok(Principal::User(u32::MAX - 1)));
        for bad in ["user:no such user", "group:no such group", "user:a\0b", "group:-1"] {
            assert!(a.principal(bad).is_err(), "{bad:?}");
        }
    }
}
