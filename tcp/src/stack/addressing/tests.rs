//! Tests of the addresses and routes that a port can have, and of the ways that they lead.

use super::*;

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn net(addrs: &[&str], routes: &[(&str, &str)]) -> Result<Addressing, AddrError> {
    let route = |&(dest, via): &(&str, &str)| Route {
        dest: dest.parse().unwrap(),
        via: via.parse().unwrap(),
    };
    Addressing::new(
        addrs.iter().map(|a| a.parse().unwrap()).collect(),
        routes.iter().map(route).collect(),
    )
}

#[test]
fn test_prefix_contains_addresses_up_to_its_bounds() {
    let c: Cidr = "10.1.2.3/24".parse().unwrap();
    assert!(c.contains("10.1.2.255".parse().unwrap()));
    assert!(!c.contains("10.1.3.0".parse().unwrap()));
    assert!(!c.contains("::1".parse().unwrap()));
    let all: Cidr = "10.1.2.3/0".parse().unwrap();
    assert!(all.contains("192.0.2.1".parse().unwrap()));
    let one: Cidr = "10.1.2.3/32".parse().unwrap();
    assert!(one.contains("10.1.2.3".parse().unwrap()));
    assert!(!one.contains("10.1.2.2".parse().unwrap()));
    let six: Cidr = "2001:db8::1/64".parse().unwrap();
    assert!(six.contains("2001:db8::ffff".parse().unwrap()));
    assert!(!six.contains("2001:db8:0:1::".parse().unwrap()));
    assert!("::1/0".parse::<Cidr>().unwrap().contains("::2".parse().unwrap()));
    for bad in ["10.0.0.1", "10.0.0.1/33", "::/129", "x/8", "10.0.0.1/x"] {
        assert_eq!(bad.parse::<Cidr>(), Err(CidrError), "{bad}");
    }
    assert_eq!(c.to_string(), "10.1.2.3/24");
}

#[test]
fn test_link_recognizes_its_broadcast_addresses() {
    let c: Cidr = "10.1.2.3/24".parse().unwrap();
    assert!(c.is_broadcast(ip("10.1.2.255")) && c.is_broadcast(ip("10.1.2.0")));
    assert!(!c.is_broadcast(ip("10.1.2.1")) && !c.is_broadcast(ip("10.1.3.255")));
    let pair: Cidr = "10.1.2.0/31".parse().unwrap();
    assert!(!pair.is_broadcast(ip("10.1.2.1")) && !pair.is_broadcast(ip("10.1.2.0")));
}

#[test]
fn test_peer_address_must_be_a_single_other_host() {
    let c = net(&["10.1.2.3/24"], &[]).unwrap();
    for bad in [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "10.1.2.3",
        "10.1.2.255",
        "10.1.2.0",
    ] {
        assert!(!c.is_peer(ip(bad)), "{bad}");
    }
    assert!(c.is_peer(ip("10.1.2.4")) && c.is_peer(ip("10.1.3.255")));
}

#[test]
fn test_host_address_check_refuses_invalid_addresses() {
    let check = |addrs: &[&str], gateway: Option<&str>| {
        let addrs: Vec<Cidr> = addrs.iter().map(|a| a.parse().unwrap()).collect();
        check_addrs(&addrs, gateway.map(|g| g.parse().unwrap())).map_err(|e| e.to_string())
    };
    for (addrs, gateway) in [
        (&["10.0.0.1/24"][..], None),
        (&["10.0.0.1/24", "10.0.0.2/24", "192.0.2.1/32"], Some("10.0.0.254")),
        (&["10.0.0.0/31"], Some("10.0.0.1")),
        (&["10.0.0.1/0"], Some("192.0.2.1")),
        (&["fd00::1/64", "fe80::1/64", "10.0.0.1/24"], Some("fe80::ff")),
        (&["fd00::1/64"], Some("fe80::ff")),
        (&["2001:db8::/127", "2001:db8::5/128"], Some("2001:db8::1")),
    ] {
        assert_eq!(check(addrs, gateway), Ok(()), "{addrs:?}");
    }
    for (addrs, gateway, why) in [
        (&["10.0.0.0/24"][..], None, "no address for a host"),
        (&["10.0.0.255/24"], None, "no address for a host"),
        (&["127.0.0.1/8"], None, "no address for a host"),
        (&["0.0.0.0/0"], None, "no address for a host"),
        (&["224.0.0.1/24"], None, "no address for a host"),
        (&["255.255.255.255/32"], None, "no address for a host"),
        (&["fd00::/64"], None, "no address for a host"),
        (&["::1/128"], None, "no address for a host"),
        (&["::/0"], None, "no address for a host"),
        (&["ff02::1/64"], None, "no address for a host"),
        (&["::ffff:10.0.0.1/96"], None, "no address for a host"),
        (&["fd00::1/64", "fd00::1/48"], None, "fd00::1 is given twice"),
        (&["10.0.0.1/24", "10.0.0.1/16"], None, "10.0.0.1 is given twice"),
        (&["10.0.0.1/24", "10.0.0.255/16"], None, "10.0.0.255/16 is no address for a host"),
        (&["10.0.0.255/16", "10.0.0.1/24"], None, "10.0.0.255/16 is no address for a host"),
        (&["10.0.0.1/24"], Some("10.0.1.1"), "10.0.1.1 is on no link"),
        (&["10.0.0.1/24"], Some("10.0.0.1"), "10.0.0.1 is on no link"),
        (&["10.0.0.1/24"], Some("10.0.0.255"), "10.0.0.255 is on no link"),
        (&["10.0.0.1/24"], Some("fd00::1"), "fd00::1 is on no link"),
    ] {
        let e = check(addrs, gateway).unwrap_err();
        assert!(e.contains(why), "{addrs:?} {gateway:?}: {e}");
    }
}

#[test]
fn test_route_check_refuses_invalid_routes() {
    let ours = ["10.0.0.1/24", "10.1.0.1/16"];
    for routes in [
        &[("0.0.0.0/0", "10.0.0.254")][..],
        &[("192.0.2.0/24", "10.1.9.9"), ("192.0.2.0/25", "10.0.0.9"), ("192.0.2.1/32", "10.0.0.9")],
        // A part of a link may lie behind a router of this link.
        &[("10.1.128.0/17", "10.1.0.254")],
    ] {
        let net = net(&ours, routes).unwrap();
        assert_eq!(net.routes().len(), routes.len());
        assert_eq!(net.routes()[0].to_string(), format!("{} via {}", routes[0].0, routes[0].1));
    }
    for (routes, why) in [
        (&[("192.0.2.0/24", "10.2.0.1")][..], "the gateway 10.2.0.1 is on no link"),
        (&[("192.0.2.0/24", "10.0.0.1")], "the gateway 10.0.0.1 is on no link"),
        (&[("192.0.2.0/24", "10.0.0.255")], "the gateway 10.0.0.255 is on no link"),
        (&[("192.0.2.1/24", "10.0.0.9")], "192.0.2.1/24 is no network"),
        (&[("128.0.0.0/0", "10.0.0.9")], "128.0.0.0/0 is no network"),
        (&[("2001:db8::/32", "10.0.0.9")], "the other family"),
        (&[("192.0.2.0/24", "fe80::1")], "the other family"),
        (
            &[("192.0.2.0/24", "10.0.0.9"), ("192.0.2.0/24", "10.1.0.9")],
            "there are two routes to 192.0.2.0/24",
        ),
    ] {
        let e = net(&ours, routes).unwrap_err().to_string();
        assert!(e.contains(why), "{routes:?}: {e}");
    }
    assert_eq!(net(&[], &[("0.0.0.0/0", "10.0.0.9")]), Err(AddrError::Gateway(ip("10.0.0.9"))));
    assert!(net(&[], &[]).is_ok());
    let fe80 = "fe80::1".parse().unwrap();
    assert_eq!(Route::default_via(fe80).to_string(), "::/0 via fe80::1");
}

#[test]
fn test_addressing_limits_numbers_of_addresses_and_routes() {
    let addr = |i: u32| Cidr::new(Ipv4Addr::from_bits(0x0a00_0001 + i).into(), 8).unwrap();
    let addrs = |n: usize| (0..).take(n).map(addr).collect::<Vec<_>>();
    assert!(Addressing::new(addrs(MAX_ADDRS), vec![]).is_ok());
    let more = Addressing::new(addrs(MAX_ADDRS + 1), vec![]);
    assert_eq!(more, Err(AddrError::TooManyAddrs(MAX_ADDRS + 1)));
    let via = ip("10.9.9.9");
    let dest = |i: u32| Cidr::new(Ipv4Addr::from_bits(0xc000_0000 + i).into(), 32).unwrap();
    let routes = |n: usize| (0..).take(n).map(|i| Route { dest: dest(i), via }).collect::<Vec<_>>();
    assert!(Addressing::new(addrs(1), routes(MAX_ROUTES)).is_ok());
    let more = Addressing::new(addrs(1), routes(MAX_ROUTES + 1));
    assert_eq!(more, Err(AddrError::TooManyRoutes(MAX_ROUTES + 1)));
}

/// Returns our address, the next hop and the length of the prefix for a host.
fn way(net: &Addressing, to: &str) -> Option<(String, String, u8)> {
    let hop = net.route(to.parse().unwrap())?;
    Some((hop.local.to_string(), hop.next.to_string(), hop.prefix))
}

#[test]
fn test_longest_prefix_selects_the_route() {
    let net = net(
        &["10.0.0.1/24", "10.1.0.1/16", "10.1.5.1/24", "10.0.0.2/24"],
        &[
            ("0.0.0.0/0", "10.0.0.254"),
            ("192.0.2.0/24", "10.1.0.254"),
            ("192.0.2.128/25", "10.1.5.254"),
            ("10.1.128.0/17", "10.1.0.253"),
            ("10.0.0.0/24", "10.1.0.252"),
        ],
    )
    .unwrap();
    for (to, local, next, prefix) in [
        // Hosts on our links: by the first of two addresses of the link, and of two links by the
        // longer prefix. A route to exactly that link changes nothing.
        ("10.0.0.9", "10.0.0.1", "10.0.0.9", 24),
        ("10.1.0.9", "10.1.0.1", "10.1.0.9", 16),
        ("10.1.5.9", "10.1.5.1", "10.1.5.9", 24),
        // Part of a link lies behind a router, which the stack reaches directly.
        ("10.1.200.1", "10.1.0.1", "10.1.0.253", 17),
        ("10.1.0.253", "10.1.0.1", "10.1.0.253", 16),
        // Hosts over a gateway, from our address on the gateway's link.
        ("192.0.2.1", "10.1.0.1", "10.1.0.254", 24),
        ("192.0.2.129", "10.1.5.1", "10.1.5.254", 25),
        ("198.51.100.1", "10.0.0.1", "10.0.0.254", 0),
    ] {
        let want = Some((local.to_owned(), next.to_owned(), prefix));
        assert_eq!(way(&net, to), want, "to {to}");
    }
    assert_eq!(way(&net, "2001:db8::1"), None);
}

#[test]
fn test_ipv6_routes_lead_from_an_address_that_the_other_end_can_answer() {
    let net = net(
        &["fe80::1/64", "2001:db8:1::1/64", "fd00::1/64", "10.0.0.1/24"],
        &[("::/0", "fe80::ff"), ("fd00:1::/32", "fd00::ff")],
    )
    .unwrap();
    for (to, local, next, prefix) in [
        ("fe80::9", "fe80::1", "fe80::9", 64),
        ("2001:db8:1::9", "2001:db8:1::1", "2001:db8:1::9", 64),
        ("fd00::9", "fd00::1", "fd00::9", 64),
        // Beyond the routers: the address with the most bits in common, and no link-local one.
        ("2001:db8:2::9", "2001:db8:1::1", "fe80::ff", 0),
        ("fd00:1::9", "fd00::1", "fd00::ff", 32),
        ("10.0.0.9", "10.0.0.1", "10.0.0.9", 24),
    ] {
        let want = Some((local.to_owned(), next.to_owned(), prefix));
        assert_eq!(way(&net, to), want, "to {to}");
    }
    let alone = super::Addressing::new(
        vec!["fe80::1/64".parse().unwrap()],
        vec![Route::default_via("fe80::ff".parse().unwrap())],
    );
    assert_eq!(way(&alone.unwrap(), "2001:db8::1"), None, "only a link-local address is ours");
}

#[test]
fn test_a_port_with_ipv6_has_a_link_local_address() {
    let mac = [0x02, 0, 0x5e, 0x10, 0, 0x52];
    let shown = |n: Addressing| n.addrs().iter().map(Cidr::to_string).collect::<Vec<_>>();
    let of = |addrs: &[&str]| shown(net(addrs, &[]).unwrap().with_station(mac));
    assert_eq!(of(&["fd00::1/64"]), ["fd00::1/64", "fe80::5eff:fe10:52/64"]);
    assert_eq!(of(&["10.0.0.1/24"]), ["10.0.0.1/24"]);
    assert_eq!(of(&["fe80::1/64", "fd00::1/64"]), ["fe80::1/64", "fd00::1/64"]);
    let port = net(&["10.0.0.1/24"], &[]).unwrap().with_station(mac);
    let changed = net(&["fd00::1/64"], &[("::/0", "fe80::ff")]).unwrap().at_port_of(&port);
    assert_eq!(way(&changed, "fe80::9"), Some(("fe80::5eff:fe10:52".into(), "fe80::9".into(), 64)));
    assert_eq!(way(&changed, "2001:db8::1"), Some(("fd00::1".into(), "fe80::ff".into(), 0)));
    let again = changed.clone().with_station(mac);
    assert_eq!(again, changed, "once is enough");
    let inside = Addressing::inside(["fd00::1".parse().unwrap()], true).with_station(mac);
    assert_eq!(shown(inside), ["fd00::1/128", "127.0.0.1/8", "::1/128"]);
}

#[test]
fn test_destination_without_route_is_unreachable() {
    let net = net(&["10.0.0.1/24"], &[("192.0.2.0/24", "10.0.0.254")]).unwrap();
    assert_eq!(way(&net, "198.51.100.1"), None);
    assert_eq!(way(&net, "192.0.3.0"), None);
    assert!(way(&net, "192.0.2.255").is_some());
    assert_eq!(way(&Addressing::default(), "10.0.0.1"), None);
}
