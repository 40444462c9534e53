//! Bonds of the file.

use core::time::Duration;

use heddle_dataplane::{Bond, BondMode, PortSource, TransmitHash};

use super::{accounts, parse, wrong};
use crate::config::Config;

const A: &str = "addresses = [\"10.0.0.1/24\"]\n";

fn port(bond: &str) -> String {
    format!("[[port]]\n{A}[port.bond]\n{bond}\n")
}

fn bond(text: &str) -> Bond {
    match &parse(&port(text)).ports[0].source {
        PortSource::Bond(bond) => (**bond).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_every_key_of_a_bond_sets_its_field() {
    let usual =
        bond("mode = \"active-backup\"\nmembers = [\"0000:03:00.0\", \"net_tap1,iface=t\"]");
    let names: Vec<_> = usual.members.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["0000:03:00.0", "net_tap1,iface=t"]);
    let members = usual.members.clone();
    assert_eq!(usual, Bond::new(BondMode::ActiveBackup, members.clone()));
    let all = bond(
        "mode = \"active-backup\"\nmembers = [\"0000:03:00.0\", \"net_tap1,iface=t\"]\n\
         primary = \"net_tap1\"\nlink-interval = \"50ms\"",
    );
    let interval = Duration::from_millis(50);
    assert_eq!(all, Bond { primary: Some("net_tap1".into()), interval, ..usual });
    let lacp = "mode = \"802.3ad\"\nmembers = [\"0000:03:00.0\", \"net_tap1,iface=t\"]\n";
    assert_eq!(bond(lacp).hash, TransmitHash::Layer34);
    let lacp = bond(&format!("{lacp}hash = \"l2\""));
    let hash = TransmitHash::Layer2;
    assert_eq!(lacp, Bond { hash, ..Bond::new(BondMode::Lacp, members) });
}

#[test]
fn test_bond_is_shown_as_it_is_read() {
    for keys in [
        "mode = \"active-backup\"\nprimary = \"net_tap1\"\nlink-interval = \"50ms\"",
        "mode = \"802.3ad\"\nhash = \"l2+3\"",
    ] {
        let config =
            parse(&port(&format!("{keys}\nmembers = [\"net_tap0,iface=t\", \"net_tap1\"]")));
        assert_eq!(Config::parse(&config.to_text().unwrap(), &accounts()).as_ref(), Ok(&config));
        let devices: Vec<_> = config.ports[0].source.on_bus().collect();
        assert!(devices.is_empty(), "{devices:?}");
    }
    let text = "mode = \"802.3ad\"\nmembers = [\"0000:03:00.0\", \"net_tap1\", \"0000:04:00.0\"]";
    let config = parse(&port(text));
    let source = &config.ports[0].source;
    assert_eq!(source.on_bus().collect::<Vec<_>>(), ["0000:03:00.0", "0000:04:00.0"]);
    assert_eq!(source.to_string(), "802.3ad bond of 0000:03:00.0 and net_tap1 and 0000:04:00.0");
}

#[test]
fn test_parser_refuses_bonds_that_cannot_be() {
    let m = "members = [\"net_tap0\", \"net_tap1\"]";
    let backup = format!("mode = \"active-backup\"\n{m}");
    let nine: Vec<_> = (0..9).map(|n| format!("\"net_tap{n}\"")).collect();
    for (text, line, expected) in [
        (port(m), 3, "a bond needs its mode"),
        (port("mode = \"active-backup\""), 3, "a bond needs members"),
        (port(&format!("mode = \"round-robin\"\n{m}")), 4, "none of active-backup, 802.3ad"),
        (port("mode = \"802.3ad\"\nmembers = [\"net_tap0,,\"]"), 5, "an argument is empty"),
        (port("mode = \"802.3ad\"\nmembers = [\"net_tap0\", \"net_tap0\"]"), 3, "given twice"),
        (
            port(&format!("mode = \"802.3ad\"\nmembers = [{}]", nine.join(", "))),
            3,
            "1 to 8 members, not 9",
        ),
        (port(&format!("{backup}\nprimary = \"net_tap2\"")), 3, "none of the members"),
        (port(&format!("mode = \"802.3ad\"\n{m}\nprimary = \"net_tap1\"")), 3, "active-backup"),
        (port(&format!("{backup}\nhash = \"l2\"")), 6, "only an 802.3ad bond"),
        (port(&format!("mode = \"802.3ad\"\n{m}\nhash = \"l4\"")), 6, "none of l3+4, l2+3, l2"),
        (port(&format!("{backup}\nlink-interval = \"0s\"")), 3, "every 1ms to 10s"),
        (
            format!("[[port]]\nvdev = \"net_tap5\"\n{A}[port.bond]\n{backup}\n"),
            2,
            "vdev, pci or bond, and no two",
        ),
        (
            format!("[[port]]\npci = \"0000:03:00.0\"\n{A}[port.bond]\n{backup}\n"),
            2,
            "vdev, pci or bond, and no two",
        ),
        (
            format!(
                "[[port]]\nvdev = \"net_tap1,iface=t\"\naddresses = [\"10.1.0.1/24\"]\n{}",
                port(&backup)
            ),
            6,
            "another port has this device",
        ),
    ] {
        let problems = wrong(&text);
        let [(at, _, what)] = &problems[..] else { panic!("{text}: {problems:?}") };
        assert!(*at == line && what.contains(expected), "{text}: {problems:?}");
    }
}
