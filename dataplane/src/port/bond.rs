//! Bonds: several devices that are one port, joined by DPDK's bond device.
//!
//! This module has the description of a bond and of its state, and the rules for its members;
//! [`members`](super::members) makes the device. `docs/adr/0033-bonds.md` has the reasons.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use heddle_dpdk_sys as sys;

use super::caps::Capabilities;
use super::error::PortError;
use super::quirks::Quirks;
use super::vdev::VdevArg;

/// The most members of a bond.
pub const MAX_MEMBERS: usize = sys::HEDDLE_BOND_MEMBERS as usize;

/// How the members of a bond share its frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondMode {
    /// The active member carries all frames, and another takes over when its link is lost. Switches
    /// need no setting.
    #[default]
    ActiveBackup,
    /// All members carry frames that the other end of their cables agrees on, by LACP (IEEE
    /// 802.1AX, before that 802.3ad).
    Lacp,
}

impl BondMode {
    /// Each mode by its name, the default first.
    pub const NAMES: [(&str, BondMode); 2] =
        [("active-backup", BondMode::ActiveBackup), ("802.3ad", BondMode::Lacp)];
}

/// The header fields that choose the member for a sent frame, in [`BondMode::Lacp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransmitHash {
    /// Station addresses, IP addresses and ports: each connection has a member of its own.
    #[default]
    Layer34,
    /// Station addresses and IP addresses.
    Layer23,
    /// Station addresses: all frames to one station take one member.
    Layer2,
}

impl TransmitHash {
    /// Each choice by its name, the default first.
    pub const NAMES: [(&str, TransmitHash); 3] = [
        ("l3+4", TransmitHash::Layer34),
        ("l2+3", TransmitHash::Layer23),
        ("l2", TransmitHash::Layer2),
    ];

    pub(super) fn raw(self) -> u8 {
        match self {
            TransmitHash::Layer34 => sys::HEDDLE_BOND_HASH_L34,
            TransmitHash::Layer23 => sys::HEDDLE_BOND_HASH_L23,
            TransmitHash::Layer2 => sys::HEDDLE_BOND_HASH_L2,
        }
    }
}

fn name_of<T: Copy + PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, v)| *v == value).map_or("", |(name, _)| *name)
}

impl fmt::Display for BondMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&BondMode::NAMES, *self))
    }
}

impl fmt::Display for TransmitHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&TransmitHash::NAMES, *self))
    }
}

/// A device of a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// A virtual device, which the bond plugs in and removes.
    Vdev(VdevArg),
    /// A device that the EAL has already, as [`PortSource::Device`](super::PortSource).
    Device(String),
}

impl Member {
    /// Returns the device's name, or its address.
    pub fn name(&self) -> &str {
        match self {
            Member::Vdev(vdev) => vdev.name(),
            Member::Device(name) => name,
        }
    }
}

impl FromStr for Member {
    type Err = PortError;

    /// Reads a virtual device, whose name begins with `net_`, or else the address of a PCI device.
    fn from_str(s: &str) -> Result<Member, PortError> {
        if s.starts_with("net_") {
            return s.parse().map(Member::Vdev);
        }
        Ok(Member::Device(s.to_owned()))
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Member::Vdev(vdev) => write!(f, "{vdev}"),
            Member::Device(name) => f.write_str(name),
        }
    }
}

/// A bond and its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bond {
    /// How the members share frames.
    pub mode: BondMode,
    /// The members, 1 to [`MAX_MEMBERS`].
    pub members: Vec<Member>,
    /// In [`BondMode::ActiveBackup`], the name of the member that carries the frames whenever its
    /// link is up. When absent, the member that has taken over goes on.
    pub primary: Option<String>,
    /// In [`BondMode::Lacp`], the choice of the member for a sent frame.
    pub hash: TransmitHash,
    /// The interval in which the bond asks its members for their links.
    pub interval: Duration,
}

impl Bond {
    /// The interval between two looks at the links, unless another is chosen.
    pub const INTERVAL: Duration = Duration::from_millis(10);

    /// The shortest and the longest interval between two looks at the links.
    pub const INTERVALS: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(10)];

    /// Returns a bond with defaults.
    pub fn new(mode: BondMode, members: Vec<Member>) -> Bond {
        let (primary, hash) = (None, TransmitHash::default());
        Bond { mode, members, primary, hash, interval: Bond::INTERVAL }
    }

    /// Returns the error in the description, if it has any.
    pub fn problem(&self) -> Option<String> {
        let n = self.members.len();
        if !(1..=MAX_MEMBERS).contains(&n) {
            return Some(format!("a bond has 1 to {MAX_MEMBERS} members, not {n}"));
        }
        for (at, member) in self.members.iter().enumerate() {
            if self.members[..at].iter().any(|m| m.name() == member.name()) {
                return Some(format!("{} is given twice", member.name()));
            }
        }
        if let Some(primary) = &self.primary {
            if self.mode != BondMode::ActiveBackup {
                return Some("only an active-backup bond has a primary member".into());
            }
            if !self.members.iter().any(|m| m.name() == primary) {
                return Some(format!("the primary, {primary}, is none of the members"));
            }
        }
        let [shortest, longest] = Bond::INTERVALS;
        if !(shortest..=longest).contains(&self.interval) {
            return Some(format!("links are looked at every {shortest:?} to {longest:?}"));
        }
        None
    }
}

/// Returns the reason why a device cannot be a member of a bond; `None` if it can.
pub(super) fn refusal(mode: BondMode, member: &Capabilities) -> Option<&'static str> {
    let quirks = Quirks::of(member);
    if !member.members.is_empty() {
        return Some("it is a bond itself");
    }
    if quirks.bifurcated {
        return Some("the host's kernel uses it too; bond it there");
    }
    if mode == BondMode::ActiveBackup && quirks.kernel_link {
        return Some(
            "its driver reports its link as up at all times, so no other member would ever take \
             over; 802.3ad notices by LACP",
        );
    }
    None
}

/// The state of a bond at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondState {
    /// How the members share frames.
    pub mode: BondMode,
    /// The members in the order of the description.
    pub members: Vec<MemberState>,
    /// Frames dropped because they came to members that carry nothing.
    pub backup_drops: u64,
}

/// The state of a member of a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// The device's name, or its address.
    pub device: String,
    /// Whether the member's link is up.
    pub up: bool,
    /// Whether the member carries frames: it is the active one, or its other end has agreed by LACP.
    pub active: bool,
    /// Whether the member was unplugged.
    pub gone: bool,
    /// The state of LACP at the member, while its link is up.
    pub lacp: Option<Lacp>,
}

/// The agreement of LACP about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacp {
    /// The member, by its number, whose aggregator the member has joined.
    pub aggregator: Option<usize>,
    /// Our state.
    pub actor: LacpState,
    /// The state of the other end.
    pub partner: LacpState,
    /// The system of the other end, a station address; all zero before the other end has spoken.
    pub system: [u8; 6],
    /// The key of the other end: ports with the same key may be aggregated.
    pub key: u16,
    /// The number of the other end's port.
    pub port: u16,
}

impl Lacp {
    /// Returns true if the member collects and distributes frames.
    pub fn carries(&self) -> bool {
        self.actor.has(LacpState::COLLECTING | LacpState::DISTRIBUTING)
    }
}

/// The state of an end of a member, by the bits of IEEE 802.1AX section 6.4.2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LacpState(pub u8);

impl LacpState {
    const COLLECTING: u8 = 0x10;
    const DISTRIBUTING: u8 = 0x20;
    const NAMES: [&str; 8] = [
        "active",
        "short",
        "aggregable",
        "in-sync",
        "collecting",
        "distributing",
        "defaulted",
        "expired",
    ];

    fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }
}

impl fmt::Display for LacpState {
    /// Writes the names of the bits, joined by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |(n, _): &(usize, &&str)| self.0 >> n & 1 != 0;
        let names: Vec<&str> =
            LacpState::NAMES.iter().enumerate().filter(set).map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::port::plan::devices;

    fn bond(members: &[&str]) -> Bond {
        let members = members.iter().map(|m| m.parse().unwrap()).collect();
        Bond::new(BondMode::ActiveBackup, members)
    }

    #[test]
    fn test_bond_problem_names_the_member() {
        let is = |b: &Bond, why: &str| {
            let what = b.problem().unwrap_or_default();
            assert!(what.contains(why), "{what}");
        };
        is(&bond(&[]), "1 to 8 members, not 0");
        let nine: Vec<_> = (0..9).map(|n| format!("net_tap{n}")).collect();
        let nine: Vec<_> = nine.iter().map(String::as_str).collect();
        is(&bond(&nine), "not 9");
        assert_eq!(bond(&nine[..8]).problem(), None);
        assert_eq!(bond(&["0000:03:00.0"]).problem(), None, "a bond may begin with one");
        is(&bond(&["net_tap0,iface=a", "net_tap1", "net_tap0,iface=b"]), "net_tap0 is given twice");
        let two = bond(&["0000:03:00.0", "net_tap1,iface=t"]);
        let primary = |p: &str, b: &Bond| Bond { primary: Some(p.into()), ..b.clone() };
        assert_eq!(primary("net_tap1", &two).problem(), None);
        is(&primary("net_tap2", &two), "net_tap2, is none");
        is(&Bond { mode: BondMode::Lacp, ..primary("net_tap1", &two) }, "only an active-backup");
        is(&Bond { interval: Duration::ZERO, ..two.clone() }, "every 1ms to 10s");
        is(&Bond { interval: Duration::from_millis(10_001), ..two }, "every 1ms to 10s");
    }

    #[test]
    fn test_member_is_virtual_by_its_name() {
        assert!(
            matches!("net_tap0,iface=a".parse(), Ok(Member::Vdev(v)) if v.name() == "net_tap0")
        );
        assert!(matches!("0000:03:00.0".parse(), Ok(Member::Device(d)) if d == "0000:03:00.0"));
        assert!("net_tap0,,".parse::<Member>().is_err());
    }

    #[test]
    fn test_member_whose_link_is_always_up_needs_lacp() {
        let refusal = |mode, caps: &Capabilities| refusal(mode, caps).unwrap_or_default();
        let packet = devices::af_packet();
        assert!(refusal(BondMode::ActiveBackup, &packet).contains("up at all times"));
        assert_eq!(refusal(BondMode::Lacp, &packet), "");
        for mode in [BondMode::ActiveBackup, BondMode::Lacp] {
            assert!(refusal(mode, &devices::mlx5()).contains("kernel uses it too"));
            for caps in [devices::ice(), devices::virtio(), devices::tap()] {
                assert_eq!(refusal(mode, &caps), "", "{}", caps.driver);
            }
            let bond = Capabilities::default().bonded(vec![devices::ice()]);
            assert!(refusal(mode, &bond).contains("a bond itself"));
        }
    }

    #[test]
    fn test_lacp_state_is_written_by_names() {
        assert_eq!(LacpState(0).to_string(), "");
        let carrying = LacpState(0x3d);
        assert_eq!(carrying.to_string(), "active,aggregable,in-sync,collecting,distributing");
        let lacp = |actor| Lacp {
            aggregator: None,
            actor: LacpState(actor),
            partner: carrying,
            system: [0; 6],
            key: 0,
            port: 0,
        };
        assert!(lacp(0x30).carries());
        assert!(!lacp(0x1f).carries() && !lacp(0x2f).carries(), "both ways");
    }

    #[test]
    fn test_names_of_modes_and_hashes_are_written_as_they_are_read() {
        for (name, mode) in BondMode::NAMES {
            assert_eq!(mode.to_string(), name);
        }
        for (name, hash) in TransmitHash::NAMES {
            assert_eq!(hash.to_string(), name);
        }
        assert_eq!(BondMode::NAMES[0].1, BondMode::default());
        assert_eq!(TransmitHash::NAMES[0].1, TransmitHash::default());
    }
}
