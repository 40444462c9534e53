use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const OTHER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const HOUR: u32 = 3600;

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn net(addrs: &[&str]) -> Addressing {
    let addrs = addrs.iter().map(|a| a.parse().unwrap()).collect();
    Addressing::new(addrs, Vec::new()).unwrap()
}

fn host(adverts: RouterAdverts) -> Autoconf {
    Autoconf::new(adverts, MAC, 1500, net(&["10.0.0.1/24"]))
}

fn prefix(addr: &str, valid: u32, preferred: u32) -> Prefix {
    let addr = addr.parse().unwrap();
    Prefix { addr, len: 64, on_link: true, autonomous: true, valid, preferred }
}

fn advert(lifetime: u16, prefixes: &[Prefix]) -> RouterAdvert {
    let prefixes = prefixes.iter().copied().collect();
    RouterAdvert { lifetime, prefixes, ..RouterAdvert::default() }
}

fn addrs(net: &Addressing) -> Vec<String> {
    net.addrs().iter().map(Cidr::to_string).collect()
}

fn routes(net: &Addressing) -> Vec<String> {
    net.routes().iter().map(Route::to_string).collect()
}

#[test]
fn test_port_makes_an_address_of_a_prefix_and_a_default_route() {
    let mut a = host(RouterAdverts::Addresses);
    assert!(a.heard(at(0), ROUTER, &advert(1800, &[prefix("fd00:1::", HOUR, HOUR)])));
    let now = a.addressing(at(0));
    let made = ["10.0.0.1/24", "fe80::ff:fe00:7/64", "fd00:1::ff:fe00:7/64"];
    assert_eq!(addrs(&now), made);
    assert_eq!(routes(&now), ["::/0 via fe80::1"]);
    let hop = now.route("2001:db8::1".parse().unwrap()).unwrap();
    assert_eq!(hop.local, "fd00:1::ff:fe00:7".parse::<IpAddr>().unwrap());
    assert!(!a.heard(at(1), ROUTER, &advert(1800, &[prefix("fd00:1::", HOUR, HOUR)])), "no news");
    // Bits beyond the length of the prefix do not count.
    assert!(!a.heard(at(1), ROUTER, &advert(1800, &[prefix("fd00:1::5", HOUR, HOUR)])));
}

#[test]
fn test_prefix_without_the_flag_for_the_link_takes_nothing_back() {
    let mut a = host(RouterAdverts::Addresses);
    let on_link = prefix("fd00:1::", HOUR, HOUR);
    let silent = Prefix { on_link: false, ..on_link };
    a.heard(at(0), ROUTER, &advert(0, &[silent]));
    assert_eq!(addrs(&a.addressing(at(0)))[2], "fd00:1::ff:fe00:7/128");
    a.heard(at(1), ROUTER, &advert(0, &[on_link]));
    assert_eq!(addrs(&a.addressing(at(1)))[2], "fd00:1::ff:fe00:7/64");
    a.heard(at(2), OTHER, &advert(0, &[silent]));
    assert_eq!(addrs(&a.addressing(at(2)))[2], "fd00:1::ff:fe00:7/64");
}

#[test]
fn test_port_takes_only_what_it_is_told_to_take() {
    let mut ignores = host(RouterAdverts::Ignore);
    assert!(!ignores.heard(at(0), ROUTER, &advert(1800, &[prefix("fd00:1::", HOUR, HOUR)])));
    assert_eq!(ignores.addressing(at(0)), net(&["10.0.0.1/24"]));
    assert_eq!(ignores.next_timeout(at(0)), None);
    let mut routed = host(RouterAdverts::Routes);
    assert!(routed.heard(at(0), ROUTER, &advert(1800, &[prefix("fd00:1::", HOUR, HOUR)])));
    assert_eq!(addrs(&routed.addressing(at(0))), ["10.0.0.1/24", "fe80::ff:fe00:7/64"]);
    assert_eq!(routes(&routed.addressing(at(0))), ["::/0 via fe80::1"]);
}

#[test]
fn test_router_serves_until_its_lifetime_ends_or_it_resigns() {
    let mut a = host(RouterAdverts::Routes);
    a.heard(at(0), ROUTER, &advert(60, &[]));
    a.heard(at(1), OTHER, &advert(600, &[]));
    assert_eq!(routes(&a.addressing(at(59))), ["::/0 via fe80::1"]);
    assert_eq!(a.next_timeout(at(1)), Some(at(60)));
    assert_eq!(routes(&a.addressing(at(60))), ["::/0 via fe80::2"]);
    a.on_timeout(at(60));
    assert!(a.heard(at(61), OTHER, &advert(0, &[])));
    assert_eq!(routes(&a.addressing(at(61))), [""; 0]);
    assert_eq!(a.next_timeout(at(61)), None);
}

#[test]
fn test_router_that_answers_takes_the_place_of_one_that_does_not() {
    let third: Ipv6Addr = "fe80::3".parse().unwrap();
    let mut a = host(RouterAdverts::Routes);
    for (s, router) in [(0, ROUTER), (1, OTHER), (2, third)] {
        a.heard(at(s), router, &advert(600, &[]));
    }
    assert!(a.prefer(third, ROUTER));
    assert_eq!(routes(&a.addressing(at(3))), ["::/0 via fe80::3"]);
    // Another worker of the port says the same later, and a third finds another router.
    assert!(!a.prefer(third, ROUTER) && !a.prefer(OTHER, ROUTER));
    assert!(!a.prefer("fe80::4".parse().unwrap(), third), "no router of this link");
    // Advertisements meanwhile change nothing.
    assert!(!a.heard(at(4), ROUTER, &advert(600, &[])));
    assert_eq!(routes(&a.addressing(at(4))), ["::/0 via fe80::3"]);
    assert!(a.prefer(ROUTER, third));
    assert_eq!(routes(&a.addressing(at(5))), ["::/0 via fe80::1"]);
}

#[test]
fn test_no_router_replaces_what_the_owner_configured() {
    let via = "fd00:1::9".parse().unwrap();
    let fixed = Addressing::new(
        vec!["fd00:1::ff:fe00:7/80".parse().unwrap(), "fd00:1::8/64".parse().unwrap()],
        vec![Route::default_via(via)],
    )
    .unwrap();
    let mut a = Autoconf::new(RouterAdverts::Addresses, MAC, 1500, fixed);
    a.heard(at(0), ROUTER, &advert(60, &[prefix("fd00:1::", HOUR, HOUR)]));
    let now = a.addressing(at(0));
    assert_eq!(addrs(&now), ["fd00:1::ff:fe00:7/80", "fd00:1::8/64", "fe80::ff:fe00:7/64"]);
    assert_eq!(routes(&now), ["::/0 via fd00:1::9"]);
    a.heard(at(1), ROUTER, &advert(60, &[prefix("fd00:1::", 0, 0)]));
    assert_eq!(addrs(&a.addressing(at(1))).len(), 3);
}

#[test]
fn test_prefixes_that_make_no_address() {
    let mut a = host(RouterAdverts::Addresses);
    let good = prefix("fd00:1::", HOUR, HOUR);
    for p in [
        Prefix { autonomous: false, ..good },
        Prefix { len: 63, ..good },
        Prefix { preferred: HOUR + 1, ..good },
        Prefix { valid: 0, preferred: 0, ..good },
        prefix("fe80::", HOUR, HOUR),
        prefix("ff02::", HOUR, HOUR),
    ] {
        a.heard(at(0), ROUTER, &advert(0, &[p]));
        assert_eq!(addrs(&a.addressing(at(0))).len(), 2, "{p:?}");
    }
    a.heard(at(0), ROUTER, &advert(0, &[Prefix { on_link: false, ..good }]));
    assert_eq!(addrs(&a.addressing(at(0)))[2], "fd00:1::ff:fe00:7/128", "no link of ours");
}

/// RFC 4862 section 5.5.3, rule (e).
#[test]
fn test_advertisement_cannot_end_an_address_at_once() {
    let mut a = host(RouterAdverts::Addresses);
    let tell = |a: &mut Autoconf, now, valid| {
        a.heard(at(now), ROUTER, &advert(0, &[prefix("fd00:1::", valid, valid)]));
        a.made[0].valid
    };
    let hours = |h: u64| at(h * u64::from(HOUR));
    assert_eq!(tell(&mut a, 0, 5 * HOUR), Some(hours(5)));
    assert_eq!(tell(&mut a, 0, 0), Some(hours(2)), "to two hours, and no further");
    assert_eq!(tell(&mut a, 60, 1), Some(hours(2)), "no more than two hours were left");
    assert_eq!(tell(&mut a, 60, u32::MAX), None, "for ever");
    a.heard(at(60), ROUTER, &advert(0, &[prefix("fd00:1::", 9 * HOUR, 60)]));
    a.on_timeout(at(60) + Duration::from_secs(9 * 3600));
    assert!(a.made.is_empty());
}

#[test]
fn test_deprecated_address_serves_only_alone() {
    let mut a = host(RouterAdverts::Addresses);
    a.heard(at(0), ROUTER, &advert(1800, &[prefix("2001:db8::", HOUR, 60)]));
    let far = "2001:db8:0:1::1".parse().unwrap();
    let local = |a: &Autoconf, now| a.addressing(at(now)).route(far).unwrap().local.to_string();
    assert_eq!(a.next_timeout(at(9)), Some(at(60)), "the address is deprecated then");
    assert_eq!(local(&a, 61), "2001:db8::ff:fe00:7");
    a.heard(at(62), ROUTER, &advert(1800, &[prefix("fd00:1::", HOUR, HOUR)]));
    assert_eq!(local(&a, 62), "fd00:1::ff:fe00:7");
    assert_eq!(addrs(&a.addressing(at(62))).len(), 4, "connections keep the other");
}

#[test]
fn test_address_that_another_host_has_is_not_made_again() {
    let mut a = host(RouterAdverts::Addresses);
    let told = advert(1800, &[prefix("fd00:1::", HOUR, HOUR)]);
    a.heard(at(0), ROUTER, &told);
    let ip = "fd00:1::ff:fe00:7".parse().unwrap();
    assert!(a.conflict(ip) && !a.conflict(ip));
    assert!(!a.conflict("fe80::ff:fe00:7".parse().unwrap()), "not made of a prefix");
    a.heard(at(1), ROUTER, &told);
    assert_eq!(addrs(&a.addressing(at(1))), ["10.0.0.1/24", "fe80::ff:fe00:7/64"]);
}

#[test]
fn test_mtu_is_between_the_least_of_ipv6_and_the_ports() {
    let mut a = host(RouterAdverts::Routes);
    for (told, mtu) in [(1280, 1280), (1279, 1280), (1400, 1400), (1501, 1400), (u32::MAX, 1400)] {
        a.heard(at(0), ROUTER, &RouterAdvert { mtu: Some(told), ..advert(60, &[]) });
        assert_eq!(a.addressing(at(0)).ipv6_mtu(), Some(mtu), "{told}");
    }
    a.heard(at(1), ROUTER, &advert(60, &[]));
    assert_eq!(a.addressing(at(1)).ipv6_mtu(), Some(1400), "an advertisement without an MTU");
}

#[test]
fn test_port_asks_three_times_unless_a_router_answers() {
    let mut a = host(RouterAdverts::Routes);
    assert_eq!(a.next_timeout(at(0)), Some(at(0)));
    assert!(a.on_timeout(at(0)) && !a.on_timeout(at(3)) && a.on_timeout(at(4)));
    assert!(a.on_timeout(at(8)) && !a.on_timeout(at(12)));
    a.restart(at(100));
    assert!(a.on_timeout(at(100)));
    a.heard(at(101), ROUTER, &advert(60, &[]));
    assert!(!a.on_timeout(at(104)));
}

#[test]
fn test_hostile_routers_fill_no_more_than_their_room() {
    let mut a = host(RouterAdverts::Addresses);
    for n in 0..1000_u16 {
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n);
        let p = Ipv6Addr::new(0xfd00, n, 0, 0, 0, 0, 0, 0).to_string();
        a.heard(at(0), from, &advert(u16::MAX, &[prefix(&p, u32::MAX, u32::MAX)]));
    }
    let now = a.addressing(at(0));
    assert_eq!((now.addrs().len(), now.routes().len()), (2 + MAX_MADE, 1));
    assert!(
        !a.heard(at(0), "2001:db8::1".parse().unwrap(), &advert(9, &[])),
        "no link-local router"
    );
}
