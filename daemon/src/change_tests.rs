use super::*;

use crate::config::Accounts;

fn config(more: &str) -> Config {
    let text = format!("[[port]]\nvdev = \"net_null0\"\naddresses = [\"10.0.0.1/24\"]\n{more}");
    Config::parse(&text, &Accounts::default()).unwrap_or_else(|p| panic!("{more}: {p:?}"))
}

fn listen(all: &[(&str, &str)]) -> String {
    let one = |(a, s): &(&str, &str)| {
        format!("[[listen]]\naddress = \"10.0.0.1:{a}\"\nservice = \"{s}\"\n")
    };
    all.iter().map(one).collect()
}

fn named(old: &Config, new: &Config) -> Vec<String> {
    changes(old, new).unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn test_identical_configuration_needs_no_change() {
    let c = config(&listen(&[("1", "sink")]));
    assert_eq!(changes(&c, &c.clone()), Ok(vec![]));
}

#[test]
fn test_listeners_are_added_before_others_end_unless_they_replace_them() {
    let old = config(&listen(&[("1", "sink"), ("2", "rping"), ("3", "perf")]));
    let new = config(&listen(&[("2", "sink"), ("3", "perf"), ("4", "rping")]));
    assert_eq!(
        named(&old, &new),
        [
            "rping on 10.0.0.1:4",
            "no service on 10.0.0.1:1",
            "no service on 10.0.0.1:2",
            "sink on 10.0.0.1:2",
        ]
    );
}

/// The options of an export change for connected clients; its kind and its place do not.
#[test]
fn test_export_options_change_without_restarting_its_listener() {
    let export = |service: &str| config(&listen(&[("1", "sink"), ("2", service), ("3", "rping")]));
    let old = export("nfs:/srv/a,tcp=0.0.0.0:1");
    for set in ["nfs:/srv/a,ro,tcp=0.0.0.0:1", "nfs:/srv/a,ro,async,tcp=0.0.0.0:1"] {
        let new = export(set);
        assert_eq!(named(&old, &new), [format!("{set} on 10.0.0.1:2")]);
        let mut now = old.clone();
        changes(&old, &new).unwrap().iter().for_each(|c| apply(&mut now, c));
        assert_eq!(now, new);
    }
    for other in ["nfs:/srv/a,ro", "nfs:/srv/b,tcp=0.0.0.0:1", "sink"] {
        let want = ["no service on 10.0.0.1:2".into(), format!("{other} on 10.0.0.1:2")];
        assert_eq!(named(&old, &export(other)), want);
    }
    // The export is made anew for another reason, with its new options.
    let text = listen(&[("2", "nfs:/srv/a,ro")]) + "[mpa]\ncrc = false\n";
    let old = config(&listen(&[("2", "nfs:/srv/a")]));
    let want = ["no service on 10.0.0.1:2", "nfs:/srv/a,ro on 10.0.0.1:2"];
    assert_eq!(named(&old, &config(&text))[1..], want);
}

fn forward(port: &str, to: &str) -> String {
    format!(
        "[[listen]]\naddress = \"10.0.0.1:{port}\"\nforward = {{ to = \"{to}\", over = \"iwarp\" }}\n"
    )
}

#[test]
fn test_forward_rules_change_in_same_order_as_services() {
    let ib = "[infiniband]\ncm = true\n";
    let old = config(&format!("{ib}{}{}", forward("1", "10.0.0.8:1"), forward("2", "10.0.0.8:2")));
    let new = config(&format!(
        "{ib}{}{}{}",
        forward("2", "10.0.0.9:2"),
        listen(&[("1", "sink")]),
        "[[listen]]\naddress = \"10.0.0.1:3\"\nservice = \"cmtime\"\ninfiniband = true\n"
    ));
    assert_eq!(
        named(&old, &new),
        [
            "cmtime on 10.0.0.1:3, over InfiniBand too",
            "no service on 10.0.0.1:1",
            "no service on 10.0.0.1:2",
            "sink on 10.0.0.1:1",
            "forward to 10.0.0.9:2 over iwarp on 10.0.0.1:2"
        ]
    );
    let mut now = old.clone();
    changes(&old, &new).unwrap().iter().for_each(|c| apply(&mut now, c));
    // The configuration in force lists older entries first; the file has its own order.
    let mut new = new;
    [&mut now, &mut new].into_iter().for_each(|c| c.listen.sort_by_key(|s| s.addr));
    assert_eq!(now, new);
    // A forwarder answers with the start-up options, and with the share of each peer.
    let other = config(&format!("{ib}[mpa]\ncrc = false\n{}", forward("1", "10.0.0.8:1")));
    let old = config(&format!("{ib}{}", forward("1", "10.0.0.8:1")));
    let want = ["no service on 10.0.0.1:1", "forward to 10.0.0.8:1 over iwarp on 10.0.0.1:1"];
    assert_eq!(named(&old, &other)[1..], want);
}

#[test]
fn test_changed_startup_options_and_shares_recreate_listeners() {
    let services = listen(&[("1", "sink")]);
    let old = config(&services);
    for more in ["[mpa]\ncrc = false\n", "[limits]\npeer-share = 2\n"] {
        let new = config(&format!("{services}{more}"));
        assert_eq!(
            named(&old, &new),
            [
                "start-up options and shares of services",
                "no service on 10.0.0.1:1",
                "sink on 10.0.0.1:1"
            ],
            "{more}"
        );
    }
}

/// A listener at a removed address ends before the address goes; a listener at a new address starts
/// after the address comes.
#[test]
fn test_addresses_change_after_old_listeners_end_and_before_new_ones() {
    let file = |addr: &str, more: &str| {
        let text = format!(
            "[[port]]\nvdev = \"net_null0\"\naddresses = [\"{addr}/24\"]\n{more}\
             [[listen]]\naddress = \"{addr}:1\"\nservice = \"sink\"\n"
        );
        Config::parse(&text, &Accounts::default()).unwrap()
    };
    let (old, new) = (file("10.0.0.1", ""), file("10.0.0.2", ""));
    assert_eq!(
        named(&old, &new),
        ["no service on 10.0.0.1:1", "addresses and routes", "sink on 10.0.0.2:1"]
    );
    let mut now = old.clone();
    changes(&old, &new).unwrap().iter().for_each(|c| apply(&mut now, c));
    assert_eq!(now, new);
    let routed = file("10.0.0.1", "gateway = \"10.0.0.9\"\n");
    assert_eq!(named(&old, &routed), ["addresses and routes"]);
}

/// A VLAN comes with its addresses, and a listener there starts after it and ends before it.
#[test]
fn test_vlans_change_with_the_addresses() {
    let port = "[[port]]\nvdev = \"net_null0\"\naddresses = [\"10.0.0.1/24\"]\n";
    let file = |more: &str| {
        let text = format!("{port}{more}");
        Config::parse(&text, &Accounts::default()).unwrap_or_else(|p| panic!("{p:?}"))
    };
    let vlan = "[[port.vlan]]\nid = 10\naddresses = [\"10.0.10.1/24\"]\n";
    let service = "[[listen]]\naddress = \"10.0.10.1:1\"\nservice = \"sink\"\n";
    let (old, new) = (file(""), file(&format!("{vlan}{service}")));
    assert_eq!(named(&old, &new), ["addresses and routes", "sink on 10.0.10.1:1"]);
    assert_eq!(named(&new, &old), ["no service on 10.0.10.1:1", "addresses and routes"]);
    let urgent = file(&format!("{vlan}priority = 5\n{service}"));
    assert_eq!(named(&new, &urgent), ["addresses and routes"]);
    for (from, to) in [(&old, &new), (&new, &urgent), (&urgent, &old)] {
        let mut now = from.clone();
        changes(from, to).unwrap().iter().for_each(|c| apply(&mut now, c));
        assert_eq!(now, *to);
    }
}

/// The control plane ends a listener whose address its port no longer has, even if another port has
/// the address then.
#[test]
fn test_listener_is_recreated_when_its_address_moves_to_another_port() {
    let services = ["10.0.1.1", "10.0.2.1", "0.0.0.0"]
        .map(|a| format!("[[listen]]\naddress = \"{a}:1\"\nservice = \"sink\"\n"))
        .concat();
    let file = |first: &str, second: &str| {
        let port =
            |n, addresses| format!("[[port]]\nvdev = \"net_null{n}\"\naddresses = [{addresses}]\n");
        let text = port(0, first) + &port(1, second) + &services;
        Config::parse(&text, &Accounts::default()).unwrap_or_else(|p| panic!("{p:?}"))
    };
    let old = file("\"10.0.1.1/24\", \"10.0.3.1/24\"", "\"10.0.2.1/24\"");
    let new = file("\"10.0.3.1/24\"", "\"10.0.2.1/24\", \"10.0.1.1/24\"");
    assert_eq!(
        named(&old, &new),
        ["no service on 10.0.1.1:1", "addresses and routes", "sink on 10.0.1.1:1"]
    );
}

/// The changes, applied one after another, lead to the configuration that was asked for.
#[test]
fn test_changes_lead_from_any_configuration_to_any_other() {
    let all = [
        config(""),
        config(&listen(&[("1", "sink"), ("2", "rping")])),
        config(&format!("{}[mpa]\nmarkers = true\n", listen(&[("2", "sink")]))),
        config("[log]\nlevel = \"debug\"\n[shutdown]\ndeadline = \"1s\"\n"),
        config("[log]\nformat = \"json\"\n[metrics]\nlisten = \"127.0.0.1:9184\"\n"),
        config("[metrics]\nlisten = \"127.0.0.1:9185\"\n[tcp]\nkeepalive = \"0s\"\n"),
        config("[tcp]\nkeepalive = \"2s\"\n"),
        config("[tcp]\nuser-timeout = \"2s\"\nclose-limit = \"9s\"\n"),
        config("[infiniband]\nkeepalive = \"0s\"\n"),
        config("[control]\nread = [\"any\"]\nmode = \"0666\"\n[limits]\nfirst-message = \"1s\"\n"),
    ];
    for old in &all {
        for new in &all {
            let mut now = old.clone();
            for change in changes(old, new).unwrap() {
                apply(&mut now, &change);
            }
            // The order of the entries does not matter.
            let sorted = |c: &Config| {
                let mut c = c.clone();
                c.listen.sort_by_key(|s| s.addr);
                c
            };
            assert_eq!(sorted(&now), sorted(new));
        }
    }
}

#[test]
fn test_reload_names_every_unchangeable_key_and_changes_nothing() {
    let old = config("");
    let text = "[dpdk]\nmemory = 999\n[control]\nsocket = \"/x\"\n[infiniband]\ncm = true\n\
                [workers]\nlcores = [1]\n[memory]\nregistered = 1\n[limits]\nconnections = 9\n\
                registrations = 9\nframes = 4096\npeer-connections = 9\nfpdu-memory = 9\nrnr-wait = \"9s\"\n\
                 [tcp]\ncongestion = \"newreno\"\necn = \"off\"\npacing = \"off\"\n\
                 path-mtu-probing = \"on\"\nuser-timeout-option = \"adapt\"\n\
                 user-timeout-limit = \"900s\"\nreceive-window = 64\n\
                 receive-window-budget = 9\nsyn-cookies = \"off\"\n[[port]]\n\
                name = \"p\"\nvdev = \"net_null1\"\nmtu = 9000\nworkers = 2\nqueues = 1\n\
                router-advertisements = \"routes\"\n\
                addresses = [\"10.0.0.2/24\"]\n\
                gateway = \"10.0.0.3\"\n[[listen]]\naddress = \"10.0.0.2:1\"\nservice = \"sink\"\n";
    let new = Config::parse(text, &Accounts::default()).unwrap();
    let keys: Vec<_> = changes(&old, &new).unwrap_err().iter().map(|f| f.key).collect();
    assert_eq!(
        keys,
        [
            "dpdk",
            "control.socket",
            "port.name",
            "port.vdev, port.pci or port.bond",
            "port.mtu",
            "port.workers",
            "port.queues",
            "port.router-advertisements",
            "infiniband.cm",
            "workers",
            "memory",
            "limits.connections",
            "limits.registrations",
            "limits.frames",
            "limits.peer-connections",
            "limits.fpdu-memory",
            "limits.rnr-wait",
            "tcp.congestion",
            "tcp.ecn",
            "tcp.pacing",
            "tcp.path-mtu-probing",
            "tcp.user-timeout-option",
            "tcp.user-timeout-limit",
            "tcp.receive-window",
            "tcp.receive-window-budget",
            "tcp.syn-cookies"
        ]
    );
}

/// A key of the configuration that is neither compared nor carried out would be ignored silently.
#[test]
fn test_every_configuration_change_is_detected() {
    let old = config(&listen(&[("1", "sink")]));
    for more in [
        "[dpdk]\nmemory = 999\n",
        "[dpdk]\nhugepages = \"never\"\n",
        "[log]\nlevel = \"info\"\n",
        "[log]\nformat = \"json\"\n",
        "[control]\nsocket = \"/x\"\n",
        "[control]\nmode = \"0600\"\n",
        "[control]\ngroup = \"5\"\n",
        "[control]\nread = [\"any\"]\n",
        "[control]\nchange = [\"user:1\"]\n",
        "[control]\nclients = 3\n",
        "[workers]\nlcores = [1]\n",
        "[workers]\nidle = \"backoff\"\n",
        "[[port]]\nvdev = \"net_null1\"\naddresses = [\"10.1.0.1/24\"]\n",
        "[memory]\nregistered = 1\n",
        "[memory]\npages = \"4K\"\n",
        "[memory]\nqueues = 1\n",
        "[limits]\nconnections = 9\n",
        "[limits]\nregistrations = 9\n",
        "[limits]\nframes = 4096\n",
        "[limits]\npeer-share = 9\n",
        "[limits]\npeer-connections = 9\n",
        "[limits]\nfpdu-memory = 9\n",
        "[limits]\nrnr-wait = \"9s\"\n",
        "[limits]\nfirst-message = \"9s\"\n",
        "[mpa]\ncrc = false\n",
        "[mpa]\nrevision = 1\n",
        "[mpa]\nrtr = [\"send\"]\n",
        "[mpa]\nmarkers = true\n",
        "[mpa]\nfpdu-stall = \"9s\"\n",
        "[tcp]\nkeepalive = \"9s\"\n",
        "[tcp]\nuser-timeout = \"9s\"\n",
        "[tcp]\nzero-window = \"9s\"\n",
        "[tcp]\nclose-stall = \"9s\"\n",
        "[tcp]\nclose-limit = \"9s\"\n",
        "[tcp]\ncongestion = \"newreno\"\n",
        "[tcp]\necn = \"off\"\n",
        "[tcp]\npacing = \"off\"\n",
        "[tcp]\npath-mtu-probing = \"off\"\n",
        "[tcp]\nuser-timeout-option = \"adapt\"\n",
        "[tcp]\nuser-timeout-limit = \"900s\"\n",
        "[tcp]\nreceive-window = 64\n",
        "[tcp]\nsyn-cookies = \"off\"\n",
        "[tcp]\nreceive-window = 1024\n",
        "[tcp]\nreceive-window-budget = 9\n",
        "[infiniband]\ncm = true\n",
        "[metrics]\nlisten = \"127.0.0.1:9184\"\n",
        "[shutdown]\ndeadline = \"9s\"\n",
        "[[client]]\nwho = \"any\"\n",
    ] {
        let new = config(&format!("{}{more}", listen(&[("1", "sink")])));
        assert_ne!(changes(&old, &new), Ok(vec![]), "{more}");
    }
}

#[test]
fn test_differences_name_both_values_and_whether_a_restart_is_needed() {
    let old = config("[[listen]]\naddress = \"10.0.0.1:1\"\nservice = \"sink\"\n");
    let new = config(
        "[log]\nlevel = \"info\"\n[limits]\nframes = 2048\n[tcp]\nkeepalive = \"7s\"\n\
         [[listen]]\naddress = \"10.0.0.1:2\"\nservice = \"rping\"\n\
         [[listen]]\naddress = \"10.0.0.1:1\"\nservice = \"sink\"\n",
    );
    let all = differences(&old, &new).unwrap();
    let fixed: Vec<_> = all.iter().map(|d| (d.key.as_str(), d.fixed.is_some())).collect();
    let want = [
        ("limits.frames", true),
        ("listen[10.0.0.1:2].address", false),
        ("listen[10.0.0.1:2].infiniband", false),
        ("listen[10.0.0.1:2].service", false),
        ("log.level", false),
        ("tcp.keepalive", false),
    ];
    assert_eq!(fixed, want, "a listener is the same at any place: {all:?}");
    assert_eq!((&all[0].old, &all[0].new), (&Some(16_384.into()), &Some(2048.into())));
    assert_eq!((&all[3].old, &all[3].new), (&None, &Some("rping".into())));
    assert_eq!(differences(&old, &old).unwrap(), []);
}
