//! The flow rules for a device that the kernel of the host uses as well.
//!
//! `mlx5` and `mlx4` are bifurcated: the kernel's driver stays, and with it the host's addresses,
//! its SSH and everything else of the host. In isolated mode, we receive the frames that a rule of
//! ours takes and no others. The rules take unicast to our station address: ARP, and IP for our
//! addresses. Our station address differs from the host's ([`MacPlan::Add`](super::MacPlan)), so
//! that the host keeps its own ARP.
//!
//! An ARP request is a broadcast, and a rule for it could not tell which address the request asks
//! for: the rule would take the host's requests away. So broadcasts stay with the host, and a
//! program there has to answer for us; `docs/guide/hardware.md` says how.
//! [`PortConfig::broadcast_arp`](super::PortConfig) makes us take broadcasts after all, for a
//! device on which the host itself has no address.

use std::net::IpAddr;

use heddle_dpdk_sys as sys;

use super::plan::PortPlan;

/// A rule that selects frames for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// The destination station address.
    pub dst_mac: [u8; 6],
    /// The type of the payload (EtherType).
    pub ether_type: u16,
    /// The destination IP address; `None` means any.
    pub dst_ip: Option<IpAddr>,
    /// Whether the rule selects TCP only. Such a rule goes before the rule for the rest.
    pub tcp: bool,
    /// Whether the frames go over all queues, by RSS; otherwise they go to the first queue.
    pub spread: bool,
}

const BROADCAST: [u8; 6] = [0xff; 6];
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Returns the rules for a port that has these addresses, in order of priority.
pub(super) fn rules(plan: &PortPlan, addrs: &[IpAddr], broadcast_arp: bool) -> Vec<FlowRule> {
    if !plan.isolated {
        return Vec::new();
    }
    let mac = plan.mac.addr();
    let spread = plan.rss.is_some();
    let arp =
        |dst_mac| FlowRule { dst_mac, ether_type: ARP, dst_ip: None, tcp: false, spread: false };
    let mut addrs = addrs.to_vec();
    addrs.sort();
    addrs.dedup();
    let ip = |tcp: bool| {
        addrs.iter().map(move |&addr| FlowRule {
            dst_mac: mac,
            ether_type: if addr.is_ipv4() { IPV4 } else { IPV6 },
            dst_ip: Some(addr),
            tcp,
            spread: tcp && spread,
        })
    };
    let mut all: Vec<FlowRule> = ip(true).chain(ip(false)).collect();
    all.push(arp(mac));
    if broadcast_arp {
        all.push(arp(BROADCAST));
    }
    all
}

impl FlowRule {
    /// Returns the rule in the form that the shim takes.
    pub(super) fn raw(&self) -> sys::heddle_flow {
        let mut dst_ip = [0; 16];
        let ip_len = match self.dst_ip {
            None => 0,
            Some(IpAddr::V4(a)) => {
                dst_ip[..4].copy_from_slice(&a.octets());
                4
            }
            Some(IpAddr::V6(a)) => {
                dst_ip = a.octets();
                16
            }
        };
        sys::heddle_flow {
            dst_mac: self.dst_mac,
            ether_type: self.ether_type,
            dst_ip,
            ip_len,
            tcp: u8::from(self.tcp),
            // In DPDK, the lower number goes first.
            priority: u8::from(!self.tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::PortConfig;
    use crate::port::plan::{devices, plan};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn of(queues: usize, addrs: &[&str], broadcast_arp: bool) -> Vec<FlowRule> {
        let config = PortConfig {
            mac: Some(MAC),
            addrs: addrs.iter().map(|a| a.parse().unwrap()).collect(),
            broadcast_arp,
            ..crate::port::plan::tests::config()
        };
        let plan = plan("dev", &devices::mlx5(), queues, 2048, &config).unwrap();
        rules(&plan, &config.addrs, broadcast_arp)
    }

    #[test]
    fn test_flow_rules_match_only_own_addresses() {
        let rules = of(4, &["10.0.0.9", "10.0.0.10", "fd00::9", "10.0.0.9"], false);
        assert_eq!(rules.len(), 3 + 3 + 1);
        for r in &rules {
            assert_eq!(r.dst_mac, MAC, "no broadcast, and nothing for the host: {r:?}");
            assert_eq!(r.dst_ip.is_none(), r.ether_type == ARP);
            let v4 = r.dst_ip.is_none_or(|a| a.is_ipv4());
            assert_eq!(r.ether_type == IPV6, !v4);
            assert_eq!(r.spread, r.tcp, "only TCP is spread");
        }
        assert!(rules[..3].iter().all(|r| r.tcp) && rules[3..].iter().all(|r| !r.tcp));
    }

    #[test]
    fn test_flow_rules_do_not_spread_over_one_queue() {
        assert!(of(1, &["10.0.0.9"], false).iter().all(|r| !r.spread));
    }

    #[test]
    fn test_flow_rules_match_broadcasts_only_when_asked() {
        let rules = of(1, &["10.0.0.9"], true);
        let broadcast: Vec<_> = rules.iter().filter(|r| r.dst_mac == BROADCAST).collect();
        assert_eq!(broadcast.len(), 1);
        assert_eq!((broadcast[0].ether_type, broadcast[0].dst_ip), (ARP, None));
    }

    #[test]
    fn test_exclusive_device_needs_no_flow_rules() {
        let config = crate::port::plan::tests::config();
        let p = plan("dev", &devices::ice(), 4, 2048, &config).unwrap();
        assert_eq!(rules(&p, &config.addrs, true), []);
    }

    #[test]
    fn test_flow_rules_are_encoded_for_the_driver() {
        let raw = of(2, &["10.0.0.9"], false)[0].raw();
        assert_eq!((raw.dst_mac, raw.ether_type, raw.ip_len), (MAC, IPV4, 4));
        assert_eq!((&raw.dst_ip[..5], raw.tcp, raw.priority), (&[10, 0, 0, 9, 0][..], 1, 0));
        let rest = of(2, &["fd00::9"], false)[1].raw();
        assert_eq!((rest.ether_type, rest.ip_len, rest.tcp, rest.priority), (IPV6, 16, 0, 1));
        assert_eq!((rest.dst_ip[0], rest.dst_ip[15]), (0xfd, 9));
    }
}
