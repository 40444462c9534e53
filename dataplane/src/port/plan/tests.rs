use std::net::{IpAddr, Ipv4Addr};

use heddle_tcp::Vid;

use super::devices::*;
use super::*;

const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

pub(in crate::port) fn config() -> PortConfig {
    PortConfig {
        mtu: 1500,
        rx_desc: 1000,
        tx_desc: 1000,
        pools: Vec::new(),
        promiscuous: false,
        steered: false,
        rss_key: crate::port::RSS_KEY,
        mac: None,
        addrs: vec![ADDR],
        vlans: Vec::new(),
        broadcast_arp: false,
        offloads: Offloads::default(),
        rx_interrupt: false,
    }
}

/// Returns the plan of a device whose pools have buffers for the MTU.
fn plan_of(caps: &Capabilities, queues: usize, config: &PortConfig) -> Result<PortPlan, PortError> {
    let room = crate::MempoolConfig::room_for_mtu(config.mtu) - crate::mempool::HEADROOM;
    plan("dev", caps, queues, u32::from(room), config)
}

/// Returns the plan of one pair of queues that interrupts if `rx_interrupt` asks for it.
pub(in crate::port) fn planned(caps: &Capabilities, rx_interrupt: bool) -> PortPlan {
    plan_of(caps, 1, &PortConfig { rx_interrupt, ..config() }).unwrap()
}

fn ok(caps: &Capabilities, queues: usize) -> PortPlan {
    plan_of(caps, queues, &config()).unwrap()
}

fn refused(caps: &Capabilities, queues: usize, config: &PortConfig) -> String {
    let e = plan_of(caps, queues, config).unwrap_err().to_string();
    assert!(e.starts_with("device dev: "), "{e}");
    e
}

#[test]
fn test_rss_table_and_key_have_sizes_of_the_device() {
    for (caps, key, table) in [
        (ice(), 52, 512),
        (i40e(), 52, 512),
        (ixgbe(), 40, 128),
        (ena(), 40, 128),
        (virtio_rss(), 40, 128),
    ] {
        let p = ok(&caps, 4);
        let rss = p.rss.unwrap();
        assert_eq!((rss.key.len(), rss.table.len()), (key, table), "{}", caps.driver);
        assert_eq!(rss.types, sys::HEDDLE_RSS_TCP4 | sys::HEDDLE_RSS_TCP6);
        let share = |q| rss.table.iter().filter(|&&e| e == q).count();
        assert_eq!([0, 1, 2, 3].map(share), [table / 4; 4]);
        assert_eq!(p.unknown, None);
        let gives_hash = caps.rx_offloads & sys::HEDDLE_RX_OFFLOAD_RSS_HASH != 0;
        assert_eq!(p.caps.rx_hash, gives_hash, "{}", caps.driver);
    }
}

#[test]
fn test_port_with_one_queue_needs_no_rss() {
    for caps in [ice(), virtio(), vmxnet3(), af_packet(), tap(), memif(), ring()] {
        let p = ok(&caps, 1);
        assert_eq!((p.rss, p.unknown, p.caps.rx_hash), (None, None, false), "{}", caps.driver);
    }
}

#[test]
fn test_plan_refuses_or_steers_queues_that_device_cannot_feed() {
    for (caps, queues, why) in [
        (virtio(), 2, "known"),
        (vmxnet3(), 2, "show"),
        (af_packet(), 2, "known"),
        (tap(), 2, "known"),
        (memif(), 2, "known"),
        (ixgbe(), 17, "16 queues"),
        (i40e(), 65, "64 queues"),
        (Capabilities { reta_size: 32, ..ice() }, 33, "32 queues"),
        (Capabilities { rss_types: sys::HEDDLE_RSS_TCP6, ..ice() }, 2, "known"),
        (Capabilities { hash_key_size: 16, ..ice() }, 2, "show"),
        (Capabilities { hash_key_size: 64, ..ice() }, 2, "show"),
    ] {
        let e = refused(&caps, queues, &config());
        assert!(e.contains(why), "{}: {e}", caps.driver);
        let steered = PortConfig { steered: true, ..config() };
        let p = plan_of(&caps, queues, &steered).unwrap();
        assert_eq!(p.rss, None);
        assert!(p.unknown.unwrap().contains(why));
    }
    // Up to these limits the numbers are possible.
    for (caps, queues) in [(ixgbe(), 16), (i40e(), 64), (ice(), 64)] {
        assert!(ok(&caps, queues).rss.is_some());
    }
    // Rings are joined queue to queue.
    let p = ok(&ring(), 4);
    assert_eq!((p.rss, p.unknown), (None, None));
}

#[test]
fn test_plan_refuses_zero_or_too_many_queues() {
    let e = refused(&vmxnet3(), 9, &PortConfig { steered: true, ..config() });
    assert!(e.contains("9 asked for, at most 8"), "{e}");
    assert!(refused(&ice(), 0, &config()).contains("at least 1"));
    assert!(refused(&ice(), 1 << 20, &config()).contains("at most 64"));
}

#[test]
fn test_plan_fits_descriptors_to_limits_of_device() {
    for (caps, desc) in [
        (ice(), (1024, 1024)),
        (ixgbe(), (1000, 1000)),
        (ena(), (1000, 1000)),
        (ring(), (1000, 1000)),
    ] {
        let p = ok(&caps, 1);
        assert_eq!((p.rx_desc, p.tx_desc), desc, "{}", caps.driver);
    }
    let few = PortConfig { rx_desc: 1, tx_desc: 1, ..config() };
    let p = plan_of(&vmxnet3(), 1, &few).unwrap();
    assert_eq!((p.rx_desc, p.tx_desc), (128, 512));
    let many = PortConfig { rx_desc: u16::MAX, tx_desc: u16::MAX, ..config() };
    let p = plan_of(&ena(), 1, &many).unwrap();
    assert_eq!((p.rx_desc, p.tx_desc), (1024, 1024));
}

/// A limit on segments stands only where our frames can exceed it: the queue copies only frames
/// beyond the device's limit.
#[test]
fn test_plan_limits_segments_only_where_a_frame_can_exceed_them() {
    let at = |caps: &Capabilities, mtu| {
        let config = PortConfig { mtu, ..config() };
        plan_of(caps, 1, &config).unwrap().max_segs
    };
    assert_eq!([at(&ice(), 1500), at(&ice(), 9000)], [Some(8), Some(8)]);
    assert_eq!([at(&i40e(), 1500), at(&i40e(), 9000)], [Some(8), Some(8)]);
    assert_eq!([at(&vmxnet3(), 1500), at(&vmxnet3(), 9000)], [None, Some(16)]);
    assert_eq!([at(&ena(), 1500), at(&ena(), 9000)], [None, Some(17)]);
    assert_eq!([at(&ixgbe(), 1500), at(&ixgbe(), 9000)], [None, Some(40)]);
    assert_eq!([at(&virtio(), 1500), at(&virtio(), 9000)], [None, None]);
    assert_eq!(at(&ring(), 9000), None);
    // A driver that reports no limit leaves zeros.
    let silent = Capabilities { nb_seg_max: 0, nb_mtu_seg_max: 0, ..ice() };
    assert_eq!(at(&silent, 9000), None);
    let tso_only = Capabilities { nb_seg_max: 8, nb_mtu_seg_max: 0, ..ice() };
    assert_eq!(at(&tso_only, 9000), Some(8));
}

/// Four Writes of 300 bytes are nine segments, and 57 at an MTU of 9000.
#[test]
fn test_longest_chain_covers_largest_frame_sent() {
    assert!(longest_chain(1500) >= 9 + 2);
    assert!(longest_chain(9000) >= 57 + 2);
    assert_eq!(longest_chain(u16::MAX), 513);
}

#[test]
fn test_transmit_rules_follow_capabilities_of_device() {
    let rules = |caps: &Capabilities, has| {
        let r = ok(caps, 1).tx_rules(has);
        (r.max_segs, r.prepares)
    };
    const ANY: usize = usize::MAX;
    assert_eq!((rules(&ice(), true), rules(&ice(), false)), ((8, true), (8, false)));
    assert_eq!(rules(&virtio(), true), (ANY, true), "TCP's alone is reason enough");
    // The configuration asks for no checksum, so there is nothing to prepare.
    assert_eq!(rules(&ring(), true), (ANY, false));
    assert!(!rules(&tap(), true).1, "it computes none");
    let single = Capabilities { tx_offloads: TX_SUMS_ONLY, ..ice() };
    assert_eq!(rules(&single, true), (1, true), "no chains at all");
}

const TX_SUMS_ONLY: u64 = sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM | sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM;

#[test]
fn test_plan_enables_only_offloads_that_device_has() {
    let p = ok(&ice(), 1);
    let all = PortCaps {
        rx_ip_checksum: true,
        rx_tcp_checksum: true,
        tx_ip_checksum: true,
        tx_tcp_checksum: true,
        tso: true,
        lro: false,
        multi_segs: true,
        rx_hash: false,
        rx_vlan_strip: false,
    };
    assert_eq!(p.caps, all);
    // Buffers that hold a whole frame need no scattering, and a single queue needs no hash.
    assert_eq!(p.rx_offloads & sys::HEDDLE_RX_OFFLOAD_SCATTER, 0);
    let v = ok(&virtio(), 1);
    assert_eq!(v.caps, PortCaps { rx_ip_checksum: false, tx_ip_checksum: false, ..all });
    assert_eq!((p.cuts, v.cuts), (32, 32));
    let t = ok(&tap(), 1);
    assert!(!t.caps.tx_tcp_checksum && !t.caps.tx_ip_checksum);
    assert_eq!(ok(&memif(), 1).caps, PortCaps { multi_segs: true, ..PortCaps::default() });
}

#[test]
fn test_mtu_stays_within_both_limits() {
    let at = |mtu| PortConfig { mtu, ..config() };
    assert!(refused(&ice(), 1, &at(9703)).contains("at most 9702"));
    assert!(plan_of(&ice(), 1, &at(9702)).is_ok());
    assert!(refused(&ice(), 1, &at(67)).contains("at least 68"));
    assert!(plan_of(&ice(), 1, &at(68)).is_ok());
    assert!(refused(&tap(), 1, &at(1505)).contains("at most 1504"));
    // The drivers take longer frames than they report; the kernel's interface does not.
    assert!(plan_of(&memif(), 1, &at(9000)).is_ok());
    assert!(refused(&af_packet(), 1, &at(1501)).contains("at most 1500"));
    let longer = Capabilities { host_mtu: Some(9000), ..af_packet() };
    assert_eq!(
        plan_of(&longer, 1, &at(9000)).unwrap().mtu,
        MtuPlan { configured: 1500, set: None }
    );
}

#[test]
fn test_device_gets_mtu_only_if_the_kernel_has_not_set_enough() {
    let mtu = |caps: &Capabilities, mtu| {
        let config = PortConfig { mtu, ..config() };
        plan_of(caps, 1, &config).unwrap().mtu
    };
    assert_eq!(mtu(&ice(), 9000), MtuPlan { configured: 9000, set: Some(9000) });
    assert_eq!(mtu(&af_packet(), 1500).set, None);
    // The kernel must not have to cut the host's own frames.
    assert_eq!(mtu(&mlx5(), 1500).set, None);
    assert_eq!(mtu(&mlx5(), 9000).set, Some(9000));
    let long = Capabilities { host_mtu: Some(9000), ..mlx5() };
    assert_eq!(mtu(&long, 4000).set, None);
}

#[test]
fn test_small_buffers_need_a_device_that_scatters() {
    let small = |caps: &Capabilities| {
        let config = PortConfig { mtu: 9000, ..config() };
        plan("dev", caps, 1, 2048, &config)
    };
    let p = small(&ice()).unwrap();
    assert_ne!(p.rx_offloads & sys::HEDDLE_RX_OFFLOAD_SCATTER, 0);
    let e = small(&ena()).unwrap_err().to_string();
    assert!(e.contains("receive buffers of 2048 asked for, at least 9018"), "{e}");
    assert!(small(&memif()).is_ok() && small(&ring()).is_ok());
    let e = plan("dev", &vmxnet3(), 1, 1024, &config()).unwrap_err().to_string();
    assert!(e.contains("at least 1646"), "{e}");
}

#[test]
fn test_mac_address_is_own_requested_or_invented() {
    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 9];
    let mac = |caps: &Capabilities, asked| {
        plan_of(caps, 1, &PortConfig { mac: asked, ..config() }).unwrap().mac
    };
    let own = ice().mac.unwrap();
    assert_eq!(mac(&ice(), None), MacPlan::Own(own));
    assert_eq!(mac(&ice(), Some(OURS)), MacPlan::Set(OURS));
    // The device has no address, and gets an invented one.
    let MacPlan::Set(invented) = mac(&ring(), None) else { panic!() };
    assert_eq!(invented[..2], [0x02, 0x48]);
    // The address stands beside that of an interface of the kernel.
    let MacPlan::Beside(tap_mac) = mac(&tap(), None) else { panic!() };
    assert_ne!(tap_mac, tap().mac.unwrap());
    let MacPlan::Add(beside) = mac(&mlx5(), None) else { panic!() };
    assert_eq!((beside[0] & 3, beside != own), (2, true));
    assert_eq!(mac(&mlx5(), Some(OURS)), MacPlan::Add(OURS));
}

#[test]
fn test_device_shared_with_kernel_needs_addresses_to_filter_by() {
    let nobody = PortConfig { addrs: Vec::new(), ..config() };
    assert!(refused(&mlx5(), 1, &nobody).contains("kernel"));
    assert!(ok(&mlx5(), 1).isolated);
    assert!(!plan_of(&ice(), 1, &nobody).unwrap().isolated);
}

#[test]
fn test_plan_keeps_numa_socket_of_the_device() {
    assert_eq!((ok(&ice(), 1).socket, ok(&memif(), 1).socket), (Some(1), None));
}

#[test]
fn test_trains_are_no_longer_than_device_can_cut() {
    assert_eq!(ok(&ixgbe(), 1).cuts, 19, "40 mbufs: headers, and two for each segment");
    assert_eq!(ok(&vmxnet3(), 1).cuts, 11, "24 mbufs, though the driver says 255");
    let tiny = Capabilities { nb_seg_max: 4, ..ixgbe() };
    let plan = ok(&tiny, 1);
    assert!(
        plan.cuts == 1 && !plan.caps.tso && plan.tx_offloads & sys::HEDDLE_TX_OFFLOAD_TCP_TSO == 0
    );
    // A device that cannot write the checksums of what it cuts.
    for missing in [
        sys::HEDDLE_TX_OFFLOAD_TCP_CKSUM,
        sys::HEDDLE_TX_OFFLOAD_IPV4_CKSUM,
        sys::HEDDLE_TX_OFFLOAD_MULTI_SEGS,
        sys::HEDDLE_TX_OFFLOAD_TCP_TSO,
    ] {
        let caps = Capabilities { tx_offloads: ice().tx_offloads & !missing, ..ice() };
        let plan = ok(&caps, 1);
        assert!(plan.cuts == 1 && !plan.caps.tso, "{missing:#x}");
    }
    assert_eq!(ok(&tap(), 1).cuts, 1, "it computes no checksum");
}

#[test]
fn test_configuration_switches_each_offload_off() {
    let all = ok(&ice(), 1).caps;
    let with = |offloads| plan_of(&ice(), 1, &PortConfig { offloads, ..config() }).unwrap();
    let on = Offloads::default();
    let plan = with(Offloads { tso: false, ..on });
    assert_eq!((plan.caps, plan.cuts), (PortCaps { tso: false, ..all }, 1));
    let plan = with(Offloads { rx_checksum: false, ..on });
    assert_eq!(plan.caps, PortCaps { rx_ip_checksum: false, rx_tcp_checksum: false, ..all });
    let plan = with(Offloads { tx_checksum: false, ..on });
    let none = PortCaps { tx_ip_checksum: false, tx_tcp_checksum: false, tso: false, ..all };
    assert_eq!((plan.caps, plan.cuts), (none, 1), "nothing is cut without checksums");
}

#[test]
fn test_rings_leave_frames_uncut_only_where_both_ends_say_so() {
    let ring = Capabilities { rings: true, ..memif() };
    assert_eq!(ok(&ring, 1).cuts, 1);
    let offloads = Offloads { rings: true, ..Offloads::default() };
    let plan = plan_of(&ring, 1, &PortConfig { offloads, ..config() }).unwrap();
    assert!(
        plan.cuts > 1 && plan.caps.tso && plan.caps.tx_tcp_checksum && plan.caps.rx_tcp_checksum
    );
    // Another device has no such wire.
    let plan = plan_of(&memif(), 1, &PortConfig { offloads, ..config() }).unwrap();
    assert!(plan.cuts == 1 && !plan.caps.tso);
}

#[test]
fn test_device_joins_segments_only_where_it_vouches_for_them_and_scatters() {
    const LRO: u64 = sys::HEDDLE_RX_OFFLOAD_TCP_LRO;
    let joins = |caps: &Capabilities, may: Offloads| {
        let plan = plan_of(caps, 1, &PortConfig { offloads: may, ..config() }).unwrap();
        assert_eq!(plan.caps.lro && caps.driver != "net_vhost", plan.switches_lro());
        (plan.caps.lro, plan.max_lro_pktlen)
    };
    let all = Offloads::default();
    let with = |more| Capabilities { rx_offloads: virtio().rx_offloads | more, ..virtio() };
    assert_eq!(joins(&with(0), all), (false, 0));
    assert_eq!(joins(&with(LRO), all), (true, 0), "the driver has no limit of its own");
    let limited = Capabilities { max_lro_pktlen: 65_280, ..with(LRO) };
    assert_eq!(joins(&limited, all), (true, 65_280));
    for may in [Offloads { lro: false, ..all }, Offloads { rx_checksum: false, ..all }] {
        assert_eq!(joins(&limited, may), (false, 0));
    }
    for missing in [sys::HEDDLE_RX_OFFLOAD_TCP_CKSUM, sys::HEDDLE_RX_OFFLOAD_SCATTER] {
        let rx_offloads = limited.rx_offloads & !missing;
        assert_eq!(joins(&Capabilities { rx_offloads, ..limited.clone() }, all), (false, 0));
    }
    // A long frame takes many buffers even where a buffer holds the MTU.
    let plan = ok(&limited, 1);
    assert_ne!(plan.rx_offloads & sys::HEDDLE_RX_OFFLOAD_SCATTER, 0);
    let without = plan.clone().without_lro();
    assert_eq!((without.switches_lro(), without.caps.lro), (false, false));
    assert_eq!(without.max_lro_pktlen, 0);
    assert_eq!(PortCaps { lro: true, ..without.caps }, plan.caps);
    // The back end of vhost has no such offload: its arguments decide what the guest may send.
    assert!(joins(&vhost(), all).0);
    let cut = Capabilities { args: "iface=/tmp/s".into(), ..vhost() };
    assert!(!joins(&cut, all).0);
}

#[test]
fn test_back_end_sends_trains_only_to_far_end_that_is_known_to_join() {
    let far = |far_end_joins| Capabilities { far_end_joins, joined: true, ..vhost() };
    let plan = |caps: &Capabilities, offloads| {
        let plan = plan_of(caps, 1, &PortConfig { offloads, ..config() }).unwrap();
        assert_eq!(plan.tx_offloads & sys::HEDDLE_TX_OFFLOAD_TCP_TSO, 0, "the driver has no such");
        (plan.caps.tso, plan.cuts)
    };
    let all = Offloads::default();
    assert_eq!(plan(&far(true), all), (true, 32));
    assert_eq!(plan(&far(false), all), (false, 1));
    assert_eq!(plan(&far(true), Offloads { tso: false, ..all }), (false, 1));
    assert_eq!(plan(&far(true), Offloads { tx_checksum: false, ..all }), (false, 1));
}

#[test]
fn test_plan_has_tags_taken_out_where_the_port_has_vlans() {
    const STRIP: u64 = sys::HEDDLE_RX_OFFLOAD_VLAN_STRIP;
    const FILTER: u64 = sys::HEDDLE_RX_OFFLOAD_VLAN_FILTER;
    let with = |caps: Capabilities, vlans: &[u16]| {
        let caps = Capabilities { rx_offloads: caps.rx_offloads | STRIP | FILTER, ..caps };
        let vlans = vlans.iter().filter_map(|v| Vid::new(*v)).collect();
        let p = plan_of(&caps, 1, &PortConfig { vlans, ..config() }).unwrap();
        (p.caps.rx_vlan_strip, p.rx_offloads & STRIP != 0, p.filters_vlans())
    };
    assert_eq!(with(ice(), &[]), (false, false, false));
    assert_eq!(with(ice(), &[10, 20]), (true, true, false));
    // Virtio has to be told of VLANs that come later, too.
    assert_eq!(with(virtio(), &[]), (false, false, true));
    assert_eq!(with(virtio(), &[10]), (true, true, true));
    let vlans = vec![Vid::new(10).unwrap()];
    let tagged = PortConfig { vlans, ..config() };
    let p = plan_of(&ring(), 1, &tagged).unwrap();
    assert!(!p.caps.rx_vlan_strip && !p.filters_vlans(), "rings have neither");
    assert!(refused(&mlx5(), 1, &tagged).contains("no VLANs"));
    // The tag takes four bytes beyond the MTU.
    let short = Capabilities { max_rx_pktlen: 1518, ..ice() };
    assert!(plan_of(&short, 1, &config()).is_ok());
    assert!(refused(&short, 1, &tagged).contains("an MTU of 1500 asked for, at most 1496"));
    let room = |vlans: Vec<Vid>| {
        let config = PortConfig { vlans, mtu: 9000, ..config() };
        let caps = Capabilities { rx_offloads: 0, ..ice() };
        plan("dev", &caps, 1, 9018, &config).map(drop)
    };
    assert!(room(Vec::new()).is_ok() && room(tagged.vlans.clone()).is_err());
}

/// Returns what DPDK reports for a bond of these devices.
fn bond_of(members: Vec<Capabilities>) -> Capabilities {
    let least = |of: fn(&Capabilities) -> u16| members.iter().map(of).min().unwrap();
    let all = |of: fn(&Capabilities) -> u64| members.iter().map(of).fold(u64::MAX, |a, b| a & b);
    let caps = Capabilities {
        driver: "net_bonding".into(),
        min_mtu: 46,
        max_mtu: u16::MAX,
        max_rx_pktlen: members.iter().map(|m| m.max_rx_pktlen).min().unwrap(),
        max_rx_queues: least(|m| m.max_rx_queues),
        max_tx_queues: least(|m| m.max_tx_queues),
        rx_offloads: all(|m| m.rx_offloads),
        tx_offloads: all(|m| m.tx_offloads),
        rss_types: all(|m| m.rss_types),
        reta_size: least(|m| m.reta_size),
        hash_key_size: members.iter().map(|m| m.hash_key_size).min().unwrap(),
        mac: members[0].mac,
        ..Capabilities::default()
    };
    caps.bonded(members)
}

#[test]
fn test_bond_does_what_all_its_members_can() {
    let both = bond_of(vec![ice(), ixgbe()]);
    let p = ok(&both, 4);
    let rss = p.rss.clone().unwrap();
    assert_eq!((rss.key.len(), rss.table.len()), (40, 128));
    assert!(refused(&both, 17, &config()).contains("16"), "those of ixgbe");
    let mtu = |mtu| PortConfig { mtu, ..config() };
    assert_eq!(plan_of(&both, 1, &mtu(9702)).unwrap().mtu.set, None, "the bond sets it");
    assert!(refused(&both, 1, &mtu(9703)).contains("at most 9702"), "ice takes no more");
    let p = ok(&bond_of(vec![ice(), e1000e()]), 1);
    assert!(!p.caps.tso && p.caps.tx_tcp_checksum && p.bonded);
    assert!(refused(&bond_of(vec![ice(), e1000e()]), 2, &config()).contains("at most 1"));
    // A filter of VLANs, which virtio needs, is on only where both have one.
    let vlans = PortConfig { vlans: vec![Vid::new(10).unwrap()], ..config() };
    assert!(!plan_of(&bond_of(vec![virtio(), e1000e()]), 1, &vlans).unwrap().filters_vlans());
    // The interface of a tap has the tap's address, so the bond has another.
    assert!(matches!(ok(&bond_of(vec![ice(), tap()]), 1).mac, MacPlan::Beside(_)));
    let packets = bond_of(vec![af_packet(), af_packet()]);
    assert!(!ok(&packets, 1).kernel_link, "each has an interface of its own");
    assert!(refused(&packets, 1, &mtu(1501)).contains("at most 1500"));
}

#[test]
fn test_members_of_a_bond_share_the_receive_buffers() {
    let of = |n| ok(&bond_of(vec![ice(); n]), 1).rx_desc;
    let usual = config().rx_desc;
    assert_eq!((of(1), of(2), of(4)), (usual, usual, usual));
    assert_eq!(of(8), 512);
}

#[test]
fn test_bond_never_interrupts() {
    assert!(
        planned(&ice(), true).rx_interrupt && !planned(&bond_of(vec![ice()]), true).rx_interrupt
    );
}
