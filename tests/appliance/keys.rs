//! Keys of the file whose effect is visible only to a peer or to the system. Each test fails if the
//! appliance reads its key but does not act on it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

use heddle::Device;
use heddle_nfs::wire::Status;
use heddle_testkit::mpa;

use crate::lab::{Appliance, PATIENCE, listen};
use crate::nfs::{by_rdma, export, status};

/// Connects from the peers' kernel and requests a connection of MPA revision 1. Returns the socket,
/// and true if the service has accepted.
fn ask(a: &Appliance, port: u16) -> (TcpStream, bool) {
    let at = format!("10.77.0.1:{port}").parse().unwrap();
    let exchange = || {
        let mut tcp = TcpStream::connect_timeout(&at, PATIENCE).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        tcp.write_all(&mpa::request(b"")).unwrap();
        let accepted = !mpa::read_reply(&mut tcp).unwrap().rejected;
        (tcp, accepted)
    };
    a.lab.peers.run(exchange)
}

#[test]
fn test_first_message_limits_how_long_client_may_be_silent() {
    let mut a =
        Appliance::start(&format!("[limits]\nfirst-message = \"2s\"\n{}", listen(7174, "rping")));
    let (mut tcp, accepted) = ask(&a, 7174);
    assert!(accepted);
    let mut rest = Vec::new();
    // The service ends the connection, in order or by a reset.
    let ended = tcp.read_to_end(&mut rest);
    let log = a.log();
    assert!(log.contains("nothing came within 2 s"), "{ended:?}: {log}");
}

#[test]
fn test_peer_share_limits_connections_of_one_address_per_service() {
    let dir = tempfile::tempdir().unwrap();
    // Without the key, rping would accept 256 connections and NFS 64.
    let a = Appliance::start(&format!(
        "[limits]\npeer-share = 64\nfirst-message = \"0s\"\n{}{}",
        listen(7174, "rping"),
        export(dir.path(), "")
    ));
    for (port, share) in [(7174, 4), (20_049, 1)] {
        let all: Vec<_> = (0..=share).map(|_| ask(&a, port)).collect();
        let accepted = all.iter().filter(|(_, accepted)| *accepted).count();
        assert_eq!((accepted, all[share].1), (share, false), "port {port}");
    }
}

/// The appliance holds an existing connection to the limit of the new file.
#[test]
fn test_changed_peer_limits_apply_to_existing_connections() {
    let file = |stall: &str| {
        let rping = listen(7174, "rping");
        format!("[limits]\nfirst-message = \"0s\"\n[mpa]\nfpdu-stall = \"{stall}\"\n{rping}")
    };
    let a = Appliance::start(&file("86400s"));
    let (mut tcp, accepted) = ask(&a, 7174);
    assert!(accepted);
    // Send only the first bytes of the longest FPDU.
    tcp.write_all(&64_768_u16.to_be_bytes()).unwrap();
    tcp.write_all(&[0; 998]).unwrap();
    let unfinished = || {
        let stats = a.ask(&["stats"]);
        let all = stats["counters"].as_array().unwrap().iter();
        let of = all.filter(|c| c["name"] == "unfinished_timeouts");
        of.map(|c| c["value"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(unfinished(), 0);
    a.write(&file("1s"));
    let applied = a.ask(&["reload"])["applied"].clone();
    assert_eq!(applied, serde_json::json!(["patience with peers"]));
    let ended = tcp.read(&mut [0]);
    assert!(ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
    assert_eq!(unfinished(), 1);
}

/// Counts the threads of the process with this name.
fn threads(pid: i32, name: &str) -> usize {
    let all = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map_while(Result::ok);
    let names = all.filter_map(|t| fs::read_to_string(t.path().join("comm")).ok());
    names.filter(|n| n.trim_end() == name).count()
}

/// Counts the descriptors of the process that are open on files below `dir`.
fn open_below(pid: i32, dir: &Path) -> usize {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map_while(Result::ok);
    let to = all.filter_map(|fd| fs::read_link(fd.path()).ok());
    to.filter(|to| to.starts_with(dir) && to != dir).count()
}

#[test]
fn test_exports_use_configured_threads_descriptors_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    for n in 0..40 {
        fs::write(path.join(n.to_string()), "x").unwrap();
    }
    let limits = ",workers=3,flushers=1,descriptors=17,memory=7";
    let a = Appliance::start(&export(&path, limits));
    assert_eq!(threads(a.pid(), "nfs-rdma"), 3);
    let registered = a.ask(&["mrs"]);
    let of_services = |m: &&serde_json::Value| m["owner"] == "services" && m["len"] == 7 << 20;
    let regions = registered["mrs"].as_array().unwrap();
    assert_eq!(regions.iter().filter(of_services).count(), 1, "{registered}");
    let sockets = tempfile::tempdir().unwrap();
    let socket = sockets.path().join("peer");
    let _peer = a.peer(&socket);
    let device = Device::open(&socket).unwrap();
    let mut client = by_rdma(&device);
    let root = client.mount("/").unwrap().handle;
    for n in 0..40 {
        let file = client.lookup(root, n.to_string().as_bytes()).unwrap().handle;
        client.read(file, 1, |_| Ok(())).unwrap();
    }
    // A call that was just answered may still hold a descriptor of its own.
    let until = Instant::now() + PATIENCE;
    while open_below(a.pid(), &path) != 17 {
        let n = open_below(a.pid(), &path);
        assert!(Instant::now() < until, "{n} descriptors");
    }
    for n in 0..8 {
        assert_eq!(status(client.create(root, format!("new{n}").as_bytes(), 0o644)), Status::OK);
    }
    assert_eq!(threads(a.pid(), "nfs-flush"), 1);
}

/// The client claims to be root.
#[test]
fn test_exports_squash_users_and_serve_clients_as_configured() {
    let [dir, sockets] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let exports = [
        ("all_squash,anonuid=3001,anongid=3002", Some((3001, 3002))),
        ("root_squash,client=10.77.0.0/28", Some((65_534, 65_534))),
        ("root_squash,anonuid=3003,anongid=3004", Some((3003, 3004))),
        ("no_root_squash,client=10.77.0.9", Some((0, 0))),
        ("all_squash,client=10.77.0.8,client=10.78.0.0/16", None),
        ("ro", None),
    ];
    let path = |n: usize| dir.path().join(n.to_string());
    let mut service = "nfs:".to_owned();
    for (n, (options, _)) in exports.iter().enumerate() {
        fs::create_dir(path(n)).unwrap();
        fs::set_permissions(path(n), fs::Permissions::from_mode(0o777)).unwrap();
        service += &format!("{}{},{options}", if n > 0 { "," } else { "" }, path(n).display());
    }
    // Users other than root must be able to reach the files.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let a = Appliance::start(&listen(20_049, &service));
    let socket = sockets.path().join("peer");
    let _peer = a.peer(&socket);
    let device = Device::open(&socket).unwrap();
    let mut client = by_rdma(&device);
    for (n, (options, owner)) in exports.into_iter().enumerate() {
        let root = client.mount(path(n).to_str().unwrap());
        let made = root.and_then(|root| client.create(root.handle, b"made", 0o644));
        let Some(owner) = owner else {
            if options == "ro" {
                assert_eq!(status(made), Status::ROFS);
            } else {
                // RPC refuses the client before NFS sees the call.
                let refused = made.map_err(|e| e.to_string());
                assert!(
                    refused.as_ref().is_err_and(|e| e.contains("authentication failed")),
                    "{options}: {refused:?}"
                );
            }
            continue;
        };
        assert_eq!(status(made), Status::OK, "{options}");
        let made = fs::metadata(path(n).join("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), owner, "{options}");
    }
}
