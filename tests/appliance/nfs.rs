//! Directories that the appliance exports.

use std::io::Cursor;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use heddle::Device;
use heddle::rpc;
use heddle_nfs::client::rdma::{self, RdmaTransport};
use heddle_nfs::client::{Client, ClientError, Pipeline};
use heddle_nfs::tcp::TcpTransport;
use heddle_nfs::wire::Status;
use serde_json::{Value, json};

use crate::lab::{Appliance, listen};

const HOST: &str = "127.0.0.1:20048";

pub fn export(dir: &Path, options: &str) -> String {
    listen(20049, &service(dir, options))
}

fn service(dir: &Path, options: &str) -> String {
    format!("nfs:{}{options}", dir.display())
}

/// Returns the listeners with their services.
fn listeners(a: &Appliance) -> Vec<(String, String)> {
    let status = a.ask(&["status"]);
    let all = status["listeners"].as_array().unwrap().iter();
    let all = all.filter(|l| l["state"] == "listening");
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    all.map(|l| (text(&l["address"]), text(&l["service"]))).collect()
}

fn up(a: &Appliance) {
    let up = || std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(a.lab.server.run(up).unwrap().success());
}

/// Reads a file of the export over the host's TCP.
fn read(a: &Appliance, dir: &Path, name: &str) -> Option<Vec<u8>> {
    let (dir, name) = (dir.to_str().unwrap().to_owned(), name.to_owned());
    a.lab.server.run(move || {
        let addr: SocketAddr = HOST.parse().unwrap();
        let transport = TcpTransport::connect(addr, "tester", Duration::from_secs(20)).ok()?;
        let mut client = Client::new(transport, Pipeline::default());
        let root = client.mount(&dir).unwrap();
        let found = client.walk(&root, name.as_bytes(), true).unwrap();
        let mut data = Vec::new();
        let read = client.read(found.handle, found.attributes.size, |piece| {
            data.extend_from_slice(piece);
            Ok(())
        });
        read.unwrap();
        Some(data)
    })
}

#[test]
fn test_export_is_added_changed_and_removed_at_run_time() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "contents").unwrap();
    let a = Appliance::start("");
    up(&a);
    let tcp = format!(",tcp={HOST}");
    let at = "10.77.0.1:20049".to_owned();
    a.write(&export(dir.path(), &tcp));
    assert_eq!(a.ask(&["reload"])["failed"], json!([]));
    assert_eq!(listeners(&a), [(at.clone(), service(dir.path(), &tcp))]);
    assert_eq!(read(&a, dir.path(), "file").unwrap(), b"contents");
    let calls = |a: &Appliance| {
        let stats = a.ask(&["stats"]);
        let mut all = stats["counters"].as_array().unwrap().iter();
        all.find(|c| c["part"] == "nfs" && c["name"] == "read_bytes").map(|c| c["value"].clone())
    };
    assert_eq!(calls(&a), Some(json!(8)));
    // Another export in its place takes over both of its addresses.
    let ro = format!(",ro,tcp={HOST}");
    a.write(&export(dir.path(), &ro));
    assert_eq!(a.ask(&["reload"])["failed"], json!([]));
    assert_eq!(listeners(&a), [(at.clone(), service(dir.path(), &ro))]);
    assert_eq!(read(&a, dir.path(), "file").unwrap(), b"contents");
    a.ask(&["listen", "del", &at]);
    assert_eq!(listeners(&a), []);
    a.ask(&["listen", "add", &format!("{at}={}", service(dir.path(), ""))]);
    assert_eq!(listeners(&a), [(at, service(dir.path(), ""))]);
    assert!(read(&a, dir.path(), "file").is_none(), "nobody answers by TCP");
}

pub fn by_rdma(device: &Device) -> Client<RdmaTransport<fn(&rpc::Client)>> {
    let server = "10.77.0.1:20049".parse().unwrap();
    let config = rdma::config(Pipeline::default(), "tester");
    let client = rpc::Client::new(device, server, config).unwrap();
    Client::new(RdmaTransport::new(client, rdma::sleep), Pipeline::default())
}

pub fn status(outcome: Result<impl Sized, ClientError>) -> Status {
    match outcome {
        Ok(_) => Status::OK,
        Err(ClientError::Status { status, .. }) => status,
        Err(other) => panic!("{other}"),
    }
}

/// Returns the status of the only export.
fn exported(a: &Appliance) -> Value {
    let status = a.ask(&["status"]);
    let mut all = status["listeners"].as_array().unwrap().iter().map(|l| l["nfs"].clone());
    let export = all.find(|e| !e.is_null()).unwrap();
    assert!(all.all(|e| e.is_null()), "{status}");
    export
}

#[test]
fn test_changed_options_keep_connections_and_new_directory_reconnects() {
    let [dir, other, sockets] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let metrics = "[metrics]\nlisten = \"127.0.0.1:9184\"\n";
    let a = Appliance::start(&(export(dir.path(), "") + metrics));
    up(&a);
    let socket = sockets.path().join("peer");
    let _peer = a.peer(&socket);
    let device = Device::open(&socket).unwrap();
    let mut client = by_rdma(&device);
    let root = client.mount("/").unwrap().handle;
    assert_eq!(status(client.create(root, b"one", 0o644)), Status::OK);
    let conn = |options| a.conns(&service(dir.path(), options), 1)[0]["conn"].clone();
    let first = conn("");
    for (options, name, outcome) in [(",ro", "two", Status::ROFS), (",async", "three", Status::OK)]
    {
        a.write(&(export(dir.path(), options) + metrics));
        let done = json!([format!("{} on 10.77.0.1:20049", service(dir.path(), options))]);
        assert_eq!(a.ask(&["reload"])["applied"], done);
        assert_eq!(status(client.create(root, name.as_bytes(), 0o644)), outcome);
        assert_eq!(conn(options), first, "it was made again");
    }
    let export_now = exported(&a);
    assert_eq!((&export_now["rdma2"], &export_now["failed"]), (&json!(1), &json!(1)));
    let top = a.ask(&["top", "--once"]);
    assert_eq!(
        (&top["exports"][0]["conns"], &top["exports"][0]["tcp_conns"]),
        (&json!(1), &json!(0))
    );
    let text = crate::links::get(&a, "/metrics");
    let of = format!("listener=\"10.77.0.1:20049\",export=\"{}\"", dir.path().display());
    for line in [
        format!("heddle_nfs_errors_total{{{of},status=\"ROFS\"}} 1"),
        "heddle_nfs_connections{listener=\"10.77.0.1:20049\",transport=\"rdma-2\"} 1".into(),
        format!("heddle_nfs_call_seconds_count{{{of},program=\"NFS\",procedure=\"CREATE\"}} 3"),
        "heddle_rpc_connections_total{listener=\"10.77.0.1:20049\"} 1".into(),
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in {text}");
    }
    a.write(&(export(other.path(), "") + metrics));
    assert_eq!(a.ask(&["reload"])["failed"], json!([]));
    // The old handles are stale, and the calls with them changed nothing in the old directory.
    assert_eq!(status(client.create(root, b"four", 0o644)), Status::STALE);
    let root = client.mount("/").unwrap().handle;
    assert_eq!(status(client.create(root, b"four", 0o644)), Status::OK);
    assert!(other.path().join("four").exists() && !dir.path().join("four").exists());
    assert!(!dir.path().join("two").exists() && dir.path().join("three").exists());
}

#[test]
fn test_exports_of_one_listener_change_independently_of_each_other() {
    let [kept, other, sockets] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let file = |options: &str, more: &str| {
        let metrics = "[metrics]\nlisten = \"127.0.0.1:9184\"\n";
        export(kept.path(), &format!("{options}{more}")) + metrics
    };
    let beside = |options: &str| format!(",{}{options}", other.path().display());
    let a = Appliance::start(&file("", ""));
    up(&a);
    let socket = sockets.path().join("peer");
    let _peer = a.peer(&socket);
    let device = Device::open(&socket).unwrap();
    let mut client = by_rdma(&device);
    let root = client.mount(kept.path().to_str().unwrap()).unwrap().handle;
    assert_eq!(status(client.create(root, b"one", 0o644)), Status::OK);
    let reload = |options: &str, more: &str| {
        a.write(&file(options, more));
        let done = a.ask(&["reload"]);
        assert_eq!((&done["failed"], &done["applied"].as_array().unwrap().len()), (&json!([]), &1));
        let service = service(kept.path(), &format!("{options}{more}"));
        a.conns(&service, 1)[0]["conn"].clone()
    };
    let first = reload(",async", "");
    assert_eq!(reload(",async", &beside("")), first, "the connection stays");
    let mut second = client.mount(other.path().to_str().unwrap()).unwrap().handle;
    assert_eq!(status(client.create(second, b"two", 0o644)), Status::OK);
    // The reload changes one directory and leaves the other as it was.
    assert_eq!(reload(",async", &beside(",ro")), first);
    assert_eq!(status(client.create(second, b"three", 0o644)), Status::ROFS);
    assert_eq!(status(client.create(root, b"three", 0o644)), Status::OK);
    let rows = |a: &Appliance| {
        let status = a.ask(&["status"]);
        let all = status["listeners"].as_array().unwrap().iter();
        let all = all.flat_map(|l| l["exports"].as_array().cloned().unwrap_or_default());
        let row = |e: Value| (e["export"].as_str().unwrap().to_owned(), e["failed"].clone());
        all.map(row).collect::<Vec<_>>()
    };
    let of = |dir: &Path, options: &str| format!("{}{options}", dir.display());
    let both = [(of(kept.path(), ",async"), json!(0)), (of(other.path(), ",ro"), json!(1))];
    assert_eq!(rows(&a), both);
    let text = crate::links::get(&a, "/metrics");
    for (dir, failed) in [(kept.path(), 0), (other.path(), 1)] {
        let of = format!("listener=\"10.77.0.1:20049\",export=\"{}\"", dir.display());
        let line = format!("heddle_nfs_failed_total{{{of}}} {failed}");
        assert!(text.lines().any(|l| l == line), "no {line} in {text}");
    }
    // A missing directory makes the reload leave everything as it is.
    a.write(&file("", &format!("{},/nowhere", beside(""))));
    assert!(a.refusal(&["reload"]).1.contains("/nowhere"));
    assert_eq!(rows(&a), both);
    // The directory goes and comes back: its handles are stale, and then valid again.
    assert_eq!(reload(",async", ""), first);
    assert_eq!(status(client.getattr(second)), Status::STALE);
    assert_eq!(status(client.getattr(root)), Status::OK);
    assert_eq!(reload(",async", &beside("")), first);
    assert_eq!(status(client.create(second, b"four", 0o644)), Status::OK);
    second = client.mount(other.path().to_str().unwrap()).unwrap().handle;
    assert_eq!(status(client.create(second, b"five", 0o644)), Status::OK);
    let names = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    assert_eq!((names(kept.path()), names(other.path())), (2, 3));
}

/// The host's limit on a file's length must reach the client as an error: the signal of the limit
/// would end the appliance.
#[test]
fn test_write_beyond_file_size_limit_of_host_fails_alone() {
    const LIMIT: u64 = 1 << 20;
    let [dir, sockets] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let a = Appliance::start(&export(dir.path(), ""));
    let limits = [format!("--pid={}", a.pid()), format!("--fsize={LIMIT}")];
    assert!(std::process::Command::new("prlimit").args(limits).status().unwrap().success());
    let socket = sockets.path().join("peer");
    let _peer = a.peer(&socket);
    let device = Device::open(&socket).unwrap();
    let mut client = by_rdma(&device);
    let root = client.mount("/").unwrap().handle;
    for (len, outcome) in [(LIMIT + 1, Status::FBIG), (LIMIT, Status::OK)] {
        let file = client.create(root, b"file", 0o644).unwrap();
        let mut source = Cursor::new(vec![7; usize::try_from(len).unwrap()]);
        assert_eq!(status(client.write(file, &mut source, |_, _| ())), outcome, "{len} bytes");
    }
    assert_eq!(dir.path().join("file").metadata().unwrap().len(), LIMIT);
}

#[test]
fn test_reload_with_missing_directory_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let a = Appliance::start(&listen(7174, "rping"));
    up(&a);
    let before = listeners(&a);
    a.write(&(export(&dir.path().join("missing"), "") + &listen(7175, "sink")));
    let (status, text) = a.refusal(&["reload"]);
    assert_eq!(status, 1);
    assert!(text.contains("missing") && text.contains("No such file"), "{text}");
    assert_eq!(listeners(&a), before);
    // Another process has the socket.
    let taken = a.lab.server.run(|| std::net::TcpListener::bind(HOST).unwrap());
    a.write(&(export(dir.path(), &format!(",tcp={HOST}")) + &listen(7175, "sink")));
    let (_, text) = a.refusal(&["reload"]);
    assert!(text.contains(&format!("tcp={HOST}: Address already in use")), "{text}");
    assert_eq!(listeners(&a), before);
    drop(taken);
    let (_, text) = a.refusal(&["listen", "add", "10.77.0.1:20049=nfs:/nowhere"]);
    assert!(text.contains("/nowhere"), "{text}");
    let (_, text) = a.refusal(&["listen", "add", "10.77.0.1:20049=nfs:srv"]);
    assert!(text.contains("absolute path"), "{text}");
}
