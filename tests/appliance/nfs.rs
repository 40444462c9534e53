//! Directories that the appliance exports.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use heddle_nfs::client::{Client, Pipeline};
use heddle_nfs::tcp::TcpTransport;
use serde_json::{Value, json};

use crate::lab::{Appliance, listen};

const HOST: &str = "127.0.0.1:20048";

fn export(dir: &Path, options: &str) -> String {
    listen(20049, &service(dir, options))
}

fn service(dir: &Path, options: &str) -> String {
    format!("nfs:{}{options}", dir.display())
}

/// Listeners with their services.
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

/// A file of the export, as the host's TCP gives it.
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
fn test_an_export_comes_changes_and_goes_while_it_runs() {
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
    // Another one in its place takes over both of its addresses.
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

#[test]
fn test_what_is_not_there_leaves_everything_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let a = Appliance::start(&listen(7174, "rping"));
    up(&a);
    let before = listeners(&a);
    a.write(&(export(&dir.path().join("missing"), "") + &listen(7175, "sink")));
    let (status, text) = a.refusal(&["reload"]);
    assert_eq!(status, 1);
    assert!(text.contains("missing") && text.contains("No such file"), "{text}");
    assert_eq!(listeners(&a), before);
    // Somebody else has the socket.
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
