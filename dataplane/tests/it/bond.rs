//! Bonds: LACP between two bonds of rings, active-backup over tap interfaces in a bridge, and devices
//! that cannot be members.
//!
//! Devices of the kernel need root; their tests are ignored, by name.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use heddle_dataplane::*;

/// Longer than anything takes here: LACP waits for two seconds before it aggregates, and for three
/// before it believes that a partner is silent.
const PATIENCE: Duration = Duration::from_secs(60);

const BROADCAST: [u8; 6] = [0xff; 6];

/// Returns a broadcast with a number where [`tcp`] has the source port, of a type for experiments: a
/// bridge may look into packets of IP, and drop those that no host has sent.
fn broadcast(pool: Mempool, number: u16) -> Mbuf {
    let mut h = BROADCAST.to_vec();
    h.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    h.resize(34, 0);
    h.extend(number.to_be_bytes());
    h.resize(74, 9);
    frame(pool, &h)
}

/// A port with its queues.
struct Side {
    port: Port,
    queues: Vec<(RxQueue, TxQueue)>,
    /// Source ports of the frames that came; LACPDUs never come.
    got: Vec<u16>,
    /// How many of the frames had a tag of VLAN 10.
    tags: u16,
}

impl Side {
    fn new(mut port: Port) -> Side {
        let queues = port.take_queues();
        Side { port, queues, got: Vec::new(), tags: 0 }
    }

    /// Takes one burst of each queue, as a worker does that has nothing to send.
    fn turn(&mut self) {
        for (rx, _) in &mut self.queues {
            let mut burst = Burst::new();
            rx.burst(&mut burst);
            for m in &burst {
                let bytes = content(m);
                assert_ne!(bytes[12..14], [0x88, 0x09], "DPDK keeps the frames of LACP");
                let at = if bytes[12..14] == [0x81, 0] { 38 } else { 34 };
                self.tags += u16::from(at == 38);
                if bytes[..2] != [0x33, 0x33] && bytes.len() >= at + 2 {
                    self.got.push(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
                }
            }
        }
    }

    fn send(&mut self, m: Mbuf) -> bool {
        let mut burst = Burst::new();
        burst.push(m);
        self.queues[0].1.burst(&mut burst) == 1
    }

    fn state(&self) -> BondState {
        self.port.bond().unwrap()
    }

    /// Returns whether the link of each member is up, and whether the member carries frames.
    fn members(&self) -> Vec<(bool, bool)> {
        self.state().members.iter().map(|m| (m.up, m.active)).collect()
    }
}

/// Lets both sides take turns until `done`.
fn until(sides: &mut [&mut Side], what: &str, mut done: impl FnMut(&mut [&mut Side]) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done(sides) {
        sides.iter_mut().for_each(|s| s.turn());
        if Instant::now() > end {
            let states: Vec<_> =
                sides.iter().map(|s| (s.port.link(), s.port.bond(), &s.got)).collect();
            panic!("{what}: {states:?}");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns two bonds of two rings each, once LACP has agreed on all members.
fn rings(name: &str, hash: TransmitHash, queues: usize) -> (Side, Side) {
    let config = || {
        let pools: Vec<_> = (0..queues).map(|_| pool(4095)).collect();
        PortConfig { steered: queues > 1, pools: pools.clone(), ..PortConfig::new(pools[0]) }
    };
    let configs = [&config(), &config()];
    let both = Port::bonded_rings(&eal(), name, 1023, hash, [2, queues], configs).unwrap();
    let (mut a, mut b) = (Side::new(both.0), Side::new(both.1));
    assert!(!a.port.link().up, "no member carries frames before LACP has agreed");
    let all = [(true, true); 2];
    until(&mut [&mut a, &mut b], "LACP agrees", |s| s.iter().all(|s| s.members() == all));
    (a, b)
}

/// Takes the link of a member down or up at both of its ends.
fn set_link(pair: &str, member: usize, up: bool) {
    use heddle_dpdk_sys as sys;
    for end in ["a", "b"] {
        let name = CString::new(format!("{pair}{member}.{end}")).unwrap();
        let device = CString::new(format!("net_ring_{}", name.to_str().unwrap())).unwrap();
        let mut id = 0;
        // SAFETY: the EAL runs; the names are NUL-terminated, and `id` outlives the calls. rings
        // have a link in name only, which no other thread touches.
        unsafe {
            assert_eq!(sys::rte_eth_dev_get_port_by_name(device.as_ptr(), &mut id), 0);
            let rc = if up {
                sys::rte_eth_dev_set_link_up(id)
            } else {
                sys::rte_eth_dev_set_link_down(id)
            };
            assert_eq!(rc, 0);
        }
    }
}

/// Returns the frame with a tag of VLAN 10.
fn tagged(pool: Mempool, m: &Mbuf) -> Mbuf {
    let mut bytes = content(m);
    bytes.splice(12..12, [0x81, 0, 0, 10]);
    frame(pool, &bytes)
}

/// Sends a frame of each of 32 flows, and waits until all have come. Returns the frames that each
/// member has sent, with LACPDUs that may come between.
fn flows(a: &mut Side, b: &mut Side, pool: Mempool) -> Vec<u64> {
    flows_of(a, b, pool, |m| m)
}

/// As [`flows`], with frames that `change` has changed.
fn flows_of(a: &mut Side, b: &mut Side, pool: Mempool, change: impl Fn(Mbuf) -> Mbuf) -> Vec<u64> {
    let before: Vec<_> = a.port.member_stats().iter().map(|s| s.tx_frames).collect();
    b.got.clear();
    let to = b.port.mac();
    for flow in 0..32 {
        assert!(a.send(change(tcp(pool, to, 40_000 + flow))), "flow {flow}");
    }
    until(&mut [a, b], "all flows come", |s| s[1].got.len() >= 32);
    let mut got = b.got.clone();
    got.sort_unstable();
    assert_eq!(got, (40_000..40_032).collect::<Vec<_>>(), "each once");
    let after = a.port.member_stats();
    after.iter().zip(before).map(|(s, before)| s.tx_frames - before).collect()
}

#[test]
fn test_lacp_agrees_and_shares_flows_over_the_members_by_hash() {
    let pool = pool(1023);
    for (n, hash) in [TransmitHash::Layer34, TransmitHash::Layer2].into_iter().enumerate() {
        let (mut a, mut b) = rings(&format!("hash{n}-"), hash, 1);
        assert!(a.port.link().up && b.port.link().up);
        let shares = flows(&mut a, &mut b, pool);
        let carrying = shares.iter().filter(|frames| **frames >= 8).count();
        assert_eq!(carrying, if hash == TransmitHash::Layer34 { 2 } else { 1 }, "{shares:?}");
        // A broadcast comes, as ARP needs it, and a frame for another station does not.
        b.got.clear();
        assert!(a.send(tcp(pool, [2, 9, 9, 9, 9, 9], 7)) && a.send(tcp(pool, BROADCAST, 8)));
        until(&mut [&mut a, &mut b], "the broadcast comes", |s| !s[1].got.is_empty());
        assert_eq!(b.got, [8]);
        let lacp = a.state().members[1].lacp.unwrap();
        assert_eq!((lacp.system, lacp.aggregator), (b.port.mac(), Some(0)));
        until(&mut [&mut a, &mut b], "the partner says that it distributes", |s| {
            let lacp = s[0].state().members[1].lacp.unwrap();
            lacp.partner.to_string().ends_with("in-sync,collecting,distributing")
        });
    }
    assert_eq!(pool.in_use(), 0);
}

/// The hash looks behind the tag, and the tag stays, also with fewer members.
#[test]
fn test_frames_of_vlans_are_shared_over_the_members() {
    let pool = pool(1023);
    let (mut a, mut b) = rings("vlan-", TransmitHash::Layer34, 1);
    let shares = flows_of(&mut a, &mut b, pool, |m| tagged(pool, &m));
    assert!(shares.iter().all(|frames| *frames >= 8), "{shares:?}");
    assert_eq!(b.tags, 32);
    set_link("vlan-", 1, false);
    let only = [(true, true), (false, false)];
    until(&mut [&mut a, &mut b], "one is left", |s| s.iter().all(|s| s.members() == only));
    let shares = flows_of(&mut a, &mut b, pool, |m| tagged(pool, &m));
    assert_eq!((shares[1], b.tags), (0, 64));
    drop((a, b));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_aggregate_goes_on_without_a_member_and_with_it_again() {
    let pool = pool(1023);
    let (mut a, mut b) = rings("lost-", TransmitHash::Layer34, 1);
    assert_eq!(a.port.poll_bond().map(|s| s.members.len()), Some(2), "since it was opened");
    assert_eq!(a.port.poll_bond(), None);
    set_link("lost-", 0, false);
    let only = [(false, false), (true, true)];
    until(&mut [&mut a, &mut b], "one is left", |s| s.iter().all(|s| s.members() == only));
    let news = a.port.poll_bond().unwrap();
    assert!(!news.members[0].up && news.members[0].lacp.is_none());
    assert!(a.port.link().up && b.port.link().up);
    let shares = flows(&mut a, &mut b, pool);
    assert_eq!(shares[0], 0, "nothing goes where no link is");
    set_link("lost-", 0, true);
    let all = [(true, true); 2];
    until(&mut [&mut a, &mut b], "LACP agrees again", |s| s.iter().all(|s| s.members() == all));
    assert!(flows(&mut a, &mut b, pool).iter().all(|frames| *frames >= 8));
    let (port, members) = (a.port.stats(), a.port.member_stats());
    assert_eq!(port.rx_frames, members.iter().map(|m| m.rx_frames).sum::<u64>(), "{port:?}");
    // Without any member, frames stay with their sender.
    set_link("lost-", 0, false);
    set_link("lost-", 1, false);
    until(&mut [&mut a, &mut b], "no link is left", |s| s.iter().all(|s| !s.port.link().up));
    let to = b.port.mac();
    assert!(!a.send(tcp(pool, to, 1)));
    assert_eq!(a.queues[0].1.counters().tx_refused, 1);
    assert_eq!(pool.in_use(), 0);
}

/// A ring keeps the frames that its other end does not take, as the queue of a NIC without a link
/// does.
#[test]
fn test_memory_of_frames_at_a_lost_member_comes_back_with_its_link_or_its_port() {
    let pool = pool(1023);
    let (mut a, mut b) = rings("held-", TransmitHash::Layer34, 1);
    let memory = Memory::new(4096);
    let to = b.port.mac();
    let send = |a: &mut Side| {
        for flow in 0..16 {
            let mut m = tcp(pool, to, 41_000 + flow);
            m.chain(memory.external(pool, 0, 1000).unwrap()).unwrap();
            assert!(a.send(m));
        }
    };
    let lose = |a: &mut Side, b: &mut Side| {
        set_link("held-", 0, false);
        // The other end takes what comes to the member that is left, and no more from the first.
        until(&mut [a, b], "one is left", |s| s.iter().all(|s| s.members()[0] == (false, false)));
    };
    send(&mut a);
    assert_eq!(memory.references(), 16);
    set_link("held-", 0, false);
    // Only after both ends have noticed does the other end take frames.
    let end = Instant::now() + PATIENCE;
    while a.members()[0].0 || b.members()[0].0 {
        assert!(Instant::now() < end, "the loss is not noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
    until(&mut [&mut a, &mut b], "the second brings its frames", |s| !s[1].got.is_empty());
    let held = memory.references();
    assert!(0 < held && held < 16, "{held}: some wait at the lost member");
    set_link("held-", 0, true);
    until(&mut [&mut a, &mut b], "the first brings its frames", |_| memory.references() == 0);
    let all = [(true, true); 2];
    until(&mut [&mut a, &mut b], "LACP agrees again", |s| s.iter().all(|s| s.members() == all));
    // With the port, the memory comes back at once.
    send(&mut a);
    lose(&mut a, &mut b);
    drop((a, b));
    assert_eq!((memory.references(), pool.in_use()), (0, 0));
}

#[test]
fn test_workers_share_a_bond_by_queues() {
    let (mut a, mut b) = rings("many-", TransmitHash::Layer34, 2);
    assert_eq!((a.queues.len(), a.port.spread()), (2, &QueueSpread::Unknown));
    let pool = pool(1023);
    let to = b.port.mac();
    for flow in 0..32_u16 {
        let mut burst = Burst::new();
        burst.push(tcp(pool, to, 42_000 + flow));
        assert_eq!(a.queues[usize::from(flow % 2)].1.burst(&mut burst), 1);
    }
    until(&mut [&mut a, &mut b], "all flows come", |s| s[1].got.len() >= 32);
    assert!(a.port.member_stats().iter().all(|s| s.tx_frames >= 8));
}

fn open_bond(bond: Bond, config: &PortConfig) -> Result<Port, PortError> {
    Port::open(&eal(), &PortSource::Bond(Box::new(bond)), config)
}

fn bond(mode: BondMode, members: &[&str]) -> Bond {
    Bond::new(mode, members.iter().map(|m| m.parse().unwrap()).collect())
}

#[test]
fn test_member_has_no_other_owner_and_comes_back_with_the_bond() {
    let p = pool(8191);
    let config = PortConfig::new(p);
    let one = bond(BondMode::ActiveBackup, &["net_null20,size=300", "net_null21,size=300"]);
    let mut port = open_bond(one, &config).unwrap();
    assert_eq!(port.driver(), "net_bonding");
    let (mut rx, mut tx) = port.take_queues().pop().unwrap();
    assert!(port.wait_link(PATIENCE).up);
    let mut burst = Burst::new();
    assert_eq!(rx.burst(&mut burst), 32, "a null device always has frames");
    assert_eq!(tx.burst(&mut burst), 32);
    // The frames of the second, which carries nothing, go where no one asks for them.
    let end = Instant::now() + PATIENCE;
    while port.bond().unwrap().backup_drops == 0 {
        assert!(Instant::now() < end, "{:?}", port.bond());
        rx.burst(&mut burst);
        burst.clear();
    }
    let name = port.name().to_owned();
    let owned = |e: PortError| {
        let text = e.to_string();
        assert!(matches!(&e, PortError::Bonded { bond, .. } if *bond == name), "{text}");
        assert!(text.contains("net_null21: it is a member of the bond net_bonding"), "{text}");
    };
    owned(open("net_null21", p).unwrap_err());
    let device = PortSource::Device("net_null21".into());
    owned(Port::open(&eal(), &device, &config).unwrap_err());
    let two = bond(BondMode::ActiveBackup, &["net_null22", "net_null21"]);
    owned(open_bond(two.clone(), &config).unwrap_err());
    assert!(open("net_null22", p).is_ok(), "the first member of a bond that failed is free again");
    let source = PortSource::Device(name.clone());
    assert!(matches!(Port::open(&eal(), &source, &config), Err(PortError::InUse(n)) if n == name));
    drop((port, rx, tx));
    assert_eq!(p.in_use(), 0);
    drop(open_bond(two, &config).unwrap());
    drop(open("net_null21", p).unwrap());
}

#[test]
fn test_bonds_that_cannot_be_are_errors_that_name_the_member() {
    let config = PortConfig::new(pool(4095));
    let is = |bond: Bond, why: &str| {
        let e = open_bond(bond, &config).unwrap_err().to_string();
        assert!(e.contains(why) && !e.contains('\n'), "{e}");
    };
    let backup = |members: &[&str]| bond(BondMode::ActiveBackup, members);
    is(backup(&[]), "1 to 8 members");
    is(backup(&["net_null23", "net_null23"]), "net_null23 is given twice");
    is(backup(&["net_null23", "0000:3b:00.0"]), "0000:3b:00.0: there is no such device");
    is(backup(&["net_null23", "net_bogus0"]), "net_bogus0: no driver");
    is(Bond { primary: Some("x".into()), ..backup(&["net_null23"]) }, "x, is none of the members");
    // Rings take no station address, which an active-backup bond gives its active member.
    is(backup(&["net_ring24"]), "MAC address");
    let many = PortConfig { pools: vec![pool(255); 2000], ..config.clone() };
    let e = open_bond(backup(&["net_null23"]), &many).unwrap_err();
    assert!(matches!(e, PortError::Limit { wanted: 2000, .. }), "{e}");
    assert!(open("net_null23", pool(255)).is_ok(), "removed after each error");
}

/// A worker's memory and threads are at the processor socket of its port.
#[test]
fn test_bond_is_at_the_socket_of_its_devices() {
    use heddle_dpdk_sys as sys;
    eal();
    let names = ["net_null25", "net_null26"];
    for name in names {
        let name = CString::new(name).unwrap();
        // SAFETY: the EAL runs; the strings are NUL-terminated and copied.
        let rc = unsafe {
            sys::rte_eal_hotplug_add(c"vdev".as_ptr(), name.as_ptr(), c"size=300".as_ptr())
        };
        assert_eq!(rc, 0);
    }
    let of_eal = |name: &str| Member::Device(name.into());
    let bond = Bond::new(BondMode::ActiveBackup, names.map(of_eal).to_vec());
    let source = PortSource::Bond(Box::new(bond));
    let at = source.socket(&eal());
    let port = Port::open(&eal(), &source, &PortConfig::new(pool(4095))).unwrap();
    assert!(at.is_some() && port.socket() == at, "{at:?}, {:?}", port.socket());
}

/// A bridge with the interfaces of a bond's members, and of a far end.
struct Switch(Veth);

impl Switch {
    fn new() -> Switch {
        let far = Veth::new("hdlsw", 1500);
        ip("link add hdlswitch type bridge");
        up_and_quiet("hdlswitch");
        ip(&format!("link set {} master hdlswitch", far.0));
        Switch(far)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        ip("link del hdlswitch");
    }
}

fn plug_in(interface: &str) {
    up_and_quiet(interface);
    ip(&format!("link set {interface} master hdlswitch"));
}

#[test]
#[ignore = "needs root: makes tap interfaces and a bridge"]
fn test_active_backup_moves_to_the_member_that_has_a_link() {
    let pool = pool(8191);
    let switch = Switch::new();
    let taps = ["net_tap30,iface=hdlbond0", "net_tap31,iface=hdlbond1"];
    for primary in [None, Some("net_tap30")] {
        let bond = Bond { primary: primary.map(Into::into), ..bond(BondMode::ActiveBackup, &taps) };
        let mut near = Side::new(open_bond(bond, &PortConfig::new(pool)).unwrap());
        let (far, far_rx, far_tx) =
            open(&format!("net_af_packet30,iface={}", switch.0.1), pool).unwrap();
        let mut far = Side { port: far, queues: vec![(far_rx, far_tx)], got: Vec::new(), tags: 0 };
        plug_in("hdlbond0");
        plug_in("hdlbond1");
        let mac = near.port.mac();
        let mut next = 100;
        // Frames go through the member, both ways, and once each.
        let mut through = |near: &mut Side, far: &mut Side, members: [(bool, bool); 2]| {
            until(&mut [near, far], "a member takes over", |s| s[0].members() == members);
            near.port.poll_bond();
            assert!(near.port.link().up);
            assert_eq!(near.port.mac(), mac);
            let active = members.iter().position(|m| m.1).unwrap();
            let sent = |s: &Side| s.port.member_stats()[active].tx_frames;
            let before = sent(near);
            (near.got, far.got) = (Vec::new(), Vec::new());
            // The bridge needs a moment until a port forwards.
            until(&mut [near, far], "frames go both ways", |s| {
                next = next.max(100) % 30_000 + 1;
                assert!(s[0].send(broadcast(pool, next)));
                assert!(s[1].send(broadcast(pool, 30_000 + next)));
                s.iter().all(|s| !s.got.is_empty())
            });
            assert!(sent(near) > before);
            near.turn();
            let mut once = near.got.clone();
            once.dedup();
            // Its own broadcasts come back to the members that carry nothing, and are dropped there.
            let theirs = once.iter().all(|n| *n > 30_000);
            assert!(once == near.got && theirs, "{members:?}: {:?}", near.got);
        };
        through(&mut near, &mut far, [(true, true), (true, false)]);
        ip("link set hdlbond0 down");
        through(&mut near, &mut far, [(false, false), (true, true)]);
        ip("link set hdlbond0 up");
        match primary {
            // The member that has taken over goes on, until it loses its own link.
            None => {
                through(&mut near, &mut far, [(true, false), (true, true)]);
                ip("link set hdlbond1 carrier off");
                through(&mut near, &mut far, [(true, true), (false, false)]);
                ip("link set hdlbond1 carrier on");
            }
            Some(_) => through(&mut near, &mut far, [(true, true), (true, false)]),
        }
        assert!(near.state().backup_drops > 0, "{:?}", near.state());
        // Without a link, frames stay with the sender; registered memory comes back nevertheless
        // once there is a link again.
        ip("link set hdlbond0 down");
        ip("link set hdlbond1 down");
        until(&mut [&mut near], "both links are lost", |s| !s[0].port.link().up);
        assert_eq!(near.members(), [(false, false); 2]);
        let memory = Memory::new(4096);
        let mut burst = Burst::new();
        let mut m = broadcast(pool, 7);
        m.chain(memory.external(pool, 0, 500).unwrap()).unwrap();
        burst.push(m);
        assert_eq!(near.queues[0].1.burst(&mut burst), 0);
        ip("link set hdlbond1 up");
        until(&mut [&mut near], "the second comes back", |s| s[0].port.link().up);
        assert_eq!(near.queues[0].1.burst(&mut burst), 1);
        assert_eq!(memory.references(), 0);
        drop((near, far));
        assert_eq!(pool.in_use(), 0);
    }
}

/// Virtual devices can lose their interface of the kernel, as NICs can be unplugged.
#[test]
#[ignore = "needs root: makes tap interfaces"]
fn test_member_that_is_gone_leaves_with_its_memory_and_its_counters_stay() {
    let pool = pool(8191);
    let taps = ["net_tap32,iface=hdlgone0", "net_tap33,iface=hdlgone1"];
    let bond = bond(BondMode::ActiveBackup, &taps);
    let mut near = Side::new(open_bond(bond, &PortConfig::new(pool)).unwrap());
    up_and_quiet("hdlgone0");
    up_and_quiet("hdlgone1");
    until(&mut [&mut near], "the first is active", |s| {
        s[0].members() == [(true, true), (true, false)]
    });
    let memory = Memory::new(4096);
    let send = |near: &mut Side| {
        for n in 0..20 {
            let mut m = broadcast(pool, n);
            m.chain(memory.external(pool, 0, 500).unwrap()).unwrap();
            assert!(near.send(m));
        }
    };
    send(&mut near);
    assert!(near.port.release_lost().is_empty(), "nothing is lost");
    ip("link del hdlgone0");
    assert!(near.port.release_lost().is_empty(), "no thread says that it has ended its burst");
    assert!(!near.state().members[0].gone);
    let before = (near.port.stats(), near.port.member_stats()[0]);
    assert!(before.0.tx_frames >= 20 && before.1.tx_frames >= 20, "{before:?}");
    let stop = AtomicBool::new(false);
    let released = std::thread::scope(|s| {
        let queues = &mut near.queues;
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut burst = Burst::new();
                queues[0].0.burst(&mut burst);
            }
        });
        let released = near.port.release_lost();
        stop.store(true, Ordering::Relaxed);
        released
    });
    assert_eq!(released, ["net_tap32"]);
    assert!(open("net_tap32,iface=hdlgone2", pool).is_ok(), "others may have the device");
    assert_eq!(near.port.member_stats()[0], before.1);
    assert!(near.port.stats().tx_frames >= before.0.tx_frames, "{:?}", near.port.stats());
    until(&mut [&mut near], "the second is active", |s| s[0].members()[1] == (true, true));
    assert!(near.state().members[0].gone);
    send(&mut near);
    assert_eq!(memory.references(), 0);
    assert!(near.port.stats().tx_frames >= before.0.tx_frames + 20);
    ip("link del hdlgone1");
    assert!(near.port.release_lost().is_empty(), "the last one stays");
    assert!(!near.state().members[1].gone);
    drop(near);
    assert_eq!(pool.in_use(), 0);
}
