//! The answers to `ports` and `stats`: ports and counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All ports, with their counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ports {
    /// Time of the request, since the start.
    pub at_ns: u64,
    /// Ports in the order of the configuration.
    pub ports: Vec<Port>,
}

/// A port and its device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Name of the port in the configuration.
    pub name: String,
    /// Name of the port's device in DPDK.
    pub device: String,
    /// Name of the driver of the device.
    pub driver: String,
    /// Ethernet address of the port.
    pub mac: String,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// True if the link is up.
    pub up: bool,
    /// Speed of the link in Mb/s, where the device knows.
    pub mbps: Option<u32>,
    /// Number of times that the link came up or went down since the start.
    #[serde(default)]
    pub link_changes: u64,
    /// Time of the last such change, since the start; absent when the link has not changed.
    #[serde(default)]
    pub link_changed_ns: Option<u64>,
    /// Our addresses, with their prefixes.
    pub addresses: Vec<String>,
    /// Routes, `NETWORK/PREFIX via GATEWAY`.
    pub routes: Vec<String>,
    /// VLANs of the port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<PortVlan>,
    /// The bond that the port is; absent for a port of one device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<PortBond>,
    /// Number of workers that share the port.
    pub workers: usize,
    /// Offloads of the device: `rx-ip-checksum`, `rx-tcp-checksum`, `tx-ip-checksum`,
    /// `tx-tcp-checksum`, `tso`, `lro`, `multi-segs`, `rx-hash`,
    /// `rx-vlan-strip`.
    #[serde(default)]
    pub offloads: Vec<String>,
    /// Why the port's queues do not interrupt although the configuration asks for interrupts.
    #[serde(default)]
    pub no_interrupts: Option<String>,
    /// Counters of the device, by name.
    pub counters: BTreeMap<String, u64>,
}

/// A VLAN of a port, as the configuration has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortVlan {
    /// The VLAN's identifier.
    pub id: u16,
    /// Priority of its frames: a number, or `dscp`.
    pub priority: String,
    /// Our addresses in the VLAN, with their prefixes.
    pub addresses: Vec<String>,
    /// Routes, `NETWORK/PREFIX via GATEWAY`.
    pub routes: Vec<String>,
}

/// Several devices that are one port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortBond {
    /// `active-backup` or `802.3ad`.
    pub mode: String,
    /// Number of times that another member of an active-backup bond took over.
    pub switches: u64,
    /// Frames dropped because they came to members that carry nothing.
    pub backup_drops: u64,
    /// The members in the order of the configuration.
    pub members: Vec<PortMember>,
}

/// A member of a bond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortMember {
    /// Name of the device, or its address.
    pub device: String,
    /// True if its link is up.
    pub up: bool,
    /// True if it carries frames.
    pub active: bool,
    /// True if it was unplugged.
    #[serde(default)]
    pub gone: bool,
    /// Number of times that its link came up or went down since the start.
    pub link_changes: u64,
    /// The state of LACP, in an 802.3ad bond while the link is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacp: Option<PortLacp>,
    /// Counters of the device, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The state of LACP at a member of a bond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortLacp {
    /// The member whose aggregator the member has joined; absent before it has joined one.
    pub aggregator: Option<String>,
    /// Our state: `active`, `short`, `aggregable`, `in-sync`, `collecting`, `distributing`,
    /// `defaulted`, `expired`, joined by commas.
    pub actor: String,
    /// The state of the other end, likewise.
    pub partner: String,
    /// The system of the other end, as a station address; all zero before it has spoken.
    pub system: String,
    /// The key of the other end.
    pub key: u16,
    /// The number of the other end's port.
    pub port: u16,
}

/// All counters of the appliance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Time of the request, since the start.
    pub at_ns: u64,
    /// Numbers of the workers that have answered.
    pub workers: Vec<usize>,
    /// Numbers of the workers that have not answered in time.
    pub silent: Vec<usize>,
    /// The counters, each summed over all workers.
    pub counters: Vec<Counter>,
}

/// A counter with its help text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// Part of the appliance that counts.
    pub part: String,
    /// Name of the counter within its part.
    pub name: String,
    /// Help text: the event that the counter counts.
    pub help: String,
    /// Value of the counter, summed over all workers.
    pub value: u64,
    /// Value at each worker that has answered; empty where no worker counts this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<u64>,
}
