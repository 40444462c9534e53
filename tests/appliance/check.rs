//! `heddle serve --check-config`: everything that is wrong with a file on this host, in one run.

use std::process::Output;

use crate::lab::{file, heddle};
use crate::net::{Lab, SERVER_IFACE};

/// Runs the check in the server's namespace, on a file with one port and `more`; `change` may
/// rewrite the text.
fn check(lab: &Lab, more: &str, change: impl Fn(String) -> String) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heddle.toml");
    std::fs::write(&path, change(file(dir.path(), more))).unwrap();
    let mut c = heddle();
    c.args(["serve", "--check-config", "--config"]).arg(path);
    lab.server.run(|| c.output()).unwrap()
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn test_check_of_usable_file_prints_summary() {
    let lab = Lab::new(1500);
    let more = crate::lab::listen(7174, "rping");
    let out = check(&lab, &more, |text| text);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = String::from_utf8(out.stdout).unwrap();
    for part in [
        "heddle.toml is usable on this host:",
        "port0: net_af_packet0,iface=srv, 10.77.0.1/16, MTU 1500, 1 worker\n",
        "listeners: rping on 10.77.0.1:7174\n",
        "mode 0666\n",
        "metrics: none\n",
        "drivers: of DPDK ",
    ] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
}

#[test]
fn test_check_reports_everything_the_host_lacks_in_one_run() {
    let lab = Lab::new(1500);
    let more = "[dpdk]\nmemory = 65536\nhugepages = \"require\"\n[workers]\nlcores = [4095]\n\
                [limits]\nframes = 5\n\
                [[port]]\nvdev = \"net_af_packt1,iface=srv\"\naddresses = [\"10.1.0.1/24\"]\n\
                [[port]]\nvdev = \"net_af_packet2,iface=svr\"\naddresses = [\"10.2.0.1/24\"]\n\
                [[port]]\nvdev = \"net_af_packet3\"\naddresses = [\"10.3.0.1/24\"]\n\
                [[port]]\npci = \"0000:fe:1f.7\"\naddresses = [\"10.4.0.1/24\"]\n\
                [[listen]]\naddress = \"10.77.0.1:20049\"\nservice = \"nfs:/no/such/directory\"\n";
    let out = check(&lab, more, |text| {
        let socket = text.rfind("socket = ").unwrap();
        let end = socket + text[socket..].find('\n').unwrap();
        let text = format!("{}socket = \"/no/such/dir/sock\"{}", &text[..socket], &text[end..]);
        text.replace("addresses = [\"10.77", "mtu = 1501\naddresses = [\"10.77")
    });
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(2), "{text}");
    for (key, what) in [
        ("dpdk.hugepages", "MiB of hugepages are required"),
        ("workers.lcores[0]", "processor 4095"),
        ("limits.frames", "5 is not between 1024 and"),
        ("port[0].vdev", "net_af_packt; did you mean net_af_packet?"),
        ("port[1].vdev", "there is no interface svr in this network namespace; did you mean srv?"),
        ("port[2].vdev", "net_af_packet needs iface=INTERFACE"),
        ("port[3].pci", "this machine has no device 0000:fe:1f.7"),
        ("port[4].mtu", "the interface srv takes packets of 1500 bytes at most"),
        ("control.socket", "the directory /no/such/dir does not exist"),
        ("listen[0].service", "/no/such/directory"),
    ] {
        let found = text.lines().find(|l| l.contains(&format!(": {key}: ")));
        assert!(found.is_some_and(|l| l.contains(what)), "{key}: no {what:?} in\n{text}");
    }
}

/// `/sys` shows the interfaces of another namespace than the one that the check runs in.
#[test]
fn test_check_reads_mtu_and_state_of_interface_in_its_own_namespace() {
    let lab = Lab::new(9000);
    let jumbo = |text: String| text.replace("addresses", "mtu = 9000\naddresses");
    let out = check(&lab, "", jumbo);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let down = ["link", "set", SERVER_IFACE, "down"];
    let done = lab.server.run(|| std::process::Command::new("ip").args(down).status());
    assert!(done.unwrap().success());
    let out = check(&lab, "", jumbo);
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(0), "a warning alone: {text}");
    assert!(text.contains("port[0].vdev: the interface srv is down"), "{text}");
    assert!(text.contains("warning: "), "{text}");
}

#[test]
fn test_check_of_file_alone_does_not_look_at_host() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heddle.toml");
    let port =
        "[[port]]\nvdev = \"net_af_packet0,iface=nosuchiface\"\naddresses = [\"10.0.0.1/24\"]\n";
    let metrics = "[metrics]\nlisten = \"203.0.113.7:9184\"\n";
    std::fs::write(&path, format!("{metrics}{port}")).unwrap();
    let run = |what: &str| heddle().args(["serve", what, "--config"]).arg(&path).output().unwrap();
    let out = run("--check-config=file");
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let out = run("--check-config=host");
    assert_eq!(out.status.code(), Some(2));
    let text = stderr(&out);
    assert!(text.contains("there is no interface nosuchiface"), "{text}");
    assert!(text.contains("the host does not have the address 203.0.113.7"), "{text}");
}
