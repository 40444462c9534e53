//! Values that are written as words: addresses, users and groups.

use core::fmt;
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use heddle_tcp::Cidr;
use heddle_verbs::remote::Addresses;

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

/// Users and groups of a system, from the files that list them. Other accounts, such as those of a
/// directory service, have to be named by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    users: BTreeMap<String, u32>,
    groups: BTreeMap<String, (u32, Vec<String>)>,
}

impl Accounts {
    /// Reads the users and groups of `/etc/passwd` and `/etc/group`; a file that cannot be read
    /// counts as empty.
    pub fn of_system() -> Accounts {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        Accounts::parse(&text("/etc/passwd"), &text("/etc/group"))
    }

    /// Parses files of this form (passwd(5), group(5)). Lines of another form are left out.
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
        Accounts { users: users.collect(), groups: groups.collect() }
    }

    /// Parses `user:NAME`, `group:NAME` or `any`; a number is a name as well.
    ///
    /// # Errors
    /// The expected form, or that there is no account of that name.
    pub(super) fn principal(&self, s: &str) -> Result<Principal, String> {
        match s.split_once(':') {
            None if s == "any" => Ok(Principal::Any),
            Some(("user", name)) => match self.users.get(name) {
                Some(uid) => Ok(Principal::User(*uid)),
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
        let gid = self.gid(name)?;
        let members = self.groups.values().filter(|(g, _)| *g == gid);
        let members = members.flat_map(|(_, m)| m).filter_map(|m| self.users.get(m).copied());
        Ok(Principal::Group { gid, members: members.collect() })
    }

    /// Returns the number of a group.
    ///
    /// # Errors
    /// When there is no group of that name.
    pub(super) fn gid(&self, name: &str) -> Result<u32, String> {
        match self.groups.get(name) {
            Some((gid, _)) => Ok(*gid),
            None => name.parse().map_err(|_| format!("there is no group '{name}'")),
        }
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
}
