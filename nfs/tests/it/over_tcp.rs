//! The client over TCP, and the resources that a server on a socket commits.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Direct, Lab, message};
use heddle_nfs::client::{Client, ClientError, Pipeline, Transport};
use heddle_nfs::record;
use heddle_nfs::tcp::{Limits, Server, TcpTransport};
use heddle_nfs::wire::{
    DirEntryName, FileType, Opaque, Remove, Status, WccData, Xdr, mount, procedure,
};
use heddle_rpcrdma::rpc::{Auth, Reply};
use sha2::{Digest, Sha256};

fn serve(lab: &Lab, limits: Limits) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(listener, Arc::clone(&lab.service), limits).unwrap()
}

fn client(server: &Server, pipeline: Pipeline) -> Client<TcpTransport> {
    let transport =
        TcpTransport::connect(server.address(), "tester", Duration::from_secs(20)).unwrap();
    Client::new(transport, pipeline)
}

fn contents(len: usize) -> Vec<u8> {
    let mut x = 0x1234_5678_9abc_def1u64;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Writes a file and reads it back, and compares the digests of both directions with the file
/// itself.
fn copy<T: Transport>(client: &mut Client<T>, lab: &Lab, len: usize) {
    let root = client.mount("/data").unwrap();
    let data = contents(len);
    let file = client.create(root.handle, b"copy", 0o640).unwrap();
    let (mut sent, mut at) = (Sha256::new(), 0);
    let written = client.write(file, &mut Cursor::new(&data), |offset, piece| {
        assert_eq!(offset, at);
        at += piece.len() as u64;
        sent.update(piece);
    });
    assert_eq!(written.unwrap(), len as u64);
    assert!(fs::read(lab.path("copy")).unwrap() == data, "as it was written");
    let found = client.walk(&root, b"copy", true).unwrap();
    assert_eq!((found.handle, found.attributes.size), (file, len as u64));
    let mut received = Sha256::new();
    let read = client.read(file, found.attributes.size, |piece| {
        received.update(piece);
        Ok(())
    });
    assert_eq!(read.unwrap(), len as u64);
    let digest = Sha256::digest(&data);
    assert_eq!((sent.finalize(), received.finalize()), (digest, digest));
}

#[test]
fn test_files_of_many_sizes_are_written_and_read() {
    let lab = Lab::new();
    let server = serve(&lab, Limits::default());
    for pipeline in [
        Pipeline::default(),
        Pipeline { size: 4096, depth: 3 },
        Pipeline { size: 1, depth: 1 },
        Pipeline { size: u32::MAX, depth: 2 },
    ] {
        let mut client = client(&server, pipeline);
        let lens: &[usize] =
            if pipeline.size == 1 { &[0, 1, 9] } else { &[0, 1, 4096, 70_001, 5 << 20] };
        lens.iter().for_each(|&len| copy(&mut client, &lab, len));
        // The transport returns replies in the reverse order of the calls.
        let mut client = Client::new(Direct::new(&lab.service), pipeline);
        lens.iter().for_each(|&len| copy(&mut client, &lab, len));
    }
}

#[test]
fn test_client_lists_directories_and_walks_paths() {
    let lab = Lab::new();
    let server = serve(&lab, Limits::default());
    let mut client = client(&server, Pipeline::default());
    fs::create_dir_all(lab.path("a/b")).unwrap();
    fs::write(lab.path("a/b/f"), b"x").unwrap();
    symlink("b/f", lab.path("a/short")).unwrap();
    symlink("../a/b", lab.path("a/up")).unwrap();
    symlink("loop", lab.path("loop")).unwrap();
    symlink("/etc/passwd", lab.path("absolute")).unwrap();
    let root = client.mount("/data").unwrap();
    let f = client.walk(&root, b"a/b/f", true).unwrap();
    for path in [&b"/a//b/./f"[..], b"a/short", b"a/up/f", b"a/up/../up/f", b"../../a/b/f"] {
        assert_eq!(client.walk(&root, path, true).unwrap(), f);
    }
    let link = client.walk(&root, b"a/short", false).unwrap();
    assert_eq!(link.attributes.kind, FileType::Symlink);
    assert_eq!(client.readlink(link.handle).unwrap(), b"b/f");
    for path in [&b"loop"[..], b"absolute"] {
        assert!(matches!(client.walk(&root, path, true), Err(ClientError::Path { .. })));
    }
    let missing = client.walk(&root, b"a/nowhere", true).unwrap_err();
    assert!(matches!(missing, ClientError::Status { status: Status::NOENT, .. }), "{missing}");
    assert_eq!(missing.to_string(), "LOOKUP nowhere: the name is not there");

    let many = client.mkdir(root.handle, b"many", 0o755).unwrap();
    let mut expected = BTreeMap::new();
    for i in 0..3000 {
        let name = format!("file-{i}");
        fs::write(lab.path("many").join(&name), vec![0; i % 7]).unwrap();
        expected.insert(name.into_bytes(), i as u64 % 7);
    }
    let mut seen = BTreeMap::new();
    let listed = client.list(many, |entry| {
        let size = entry.attributes.unwrap().size;
        assert!(seen.insert(entry.name.0.to_vec(), size).is_none());
    });
    listed.unwrap();
    assert_eq!(seen, expected);
}

#[test]
fn test_mount_returns_exported_directories_only() {
    let lab = Lab::new();
    let server = serve(&lab, Limits::default());
    let mut client = client(&server, Pipeline::default());
    fs::create_dir_all(lab.path("sub/dir")).unwrap();
    fs::write(lab.path("file"), b"").unwrap();
    symlink("../outside", lab.path("out")).unwrap();
    let root = lab.root();
    for path in ["/data", "/data/", "/", "", "/data/sub/..", "/data/../.."] {
        assert_eq!(client.mount(path).unwrap().handle, root, "{path}");
    }
    let dir = lab.handle("sub/dir");
    for path in ["/data/sub/dir", "/sub/dir", "/data//sub/./dir/"] {
        assert_eq!(client.mount(path).unwrap().handle, dir, "{path}");
    }
    for (path, status) in [
        ("/other", Status::NOENT),
        ("/datasub", Status::NOENT),
        ("/data/file", Status::NOTDIR),
        ("/data/out", Status::NOTDIR),
        ("/data/out/secret", Status::NOTDIR),
    ] {
        let error = client.mount(path).unwrap_err();
        assert!(matches!(error, ClientError::Status { status: s, .. } if s == status), "{error}");
    }
    // DUMP lists the clients and their mounts.
    let dump = client.call(mount::DUMP, &()).unwrap();
    let text = String::from_utf8_lossy(&dump);
    assert!(text.contains("tester") && text.contains("/data/sub/dir"), "{text}");
    client.call(mount::UMNTALL, &()).unwrap();
    assert_eq!(client.call(mount::DUMP, &()).unwrap(), [0; 4]);
    let exports = client.call(mount::EXPORT, &()).unwrap();
    assert_eq!(exports, b"\0\0\0\x01\0\0\0\x05/data\0\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn test_handles_of_a_mount_survive_server_restart() {
    let mut lab = Lab::new();
    fs::create_dir_all(lab.path("a/b")).unwrap();
    fs::write(lab.path("a/b/f"), b"still there").unwrap();
    let server = serve(&lab, Limits::default());
    let mut before = client(&server, Pipeline::default());
    let root = before.mount("/data").unwrap();
    let f = before.walk(&root, b"a/b/f", true).unwrap();
    drop(server);
    assert!(before.getattr(f.handle).is_err(), "it is gone, and its connections are");
    lab.restart();
    let server = serve(&lab, Limits::default());
    let mut after = client(&server, Pipeline::default());
    let mut data = Vec::new();
    after.read(f.handle, 1, |piece| data.write_all(piece)).unwrap();
    assert_eq!(data, b"still there");
    assert_eq!(after.walk(&root, b"a/b/f", true).unwrap().handle, f.handle);
}

/// The client writes data again that the server may have lost; here a transport replaces the first
/// server by another.
#[test]
fn test_client_rewrites_data_that_restarted_server_may_have_lost() {
    let mut lab = Lab::new();
    let first = Arc::clone(&lab.service);
    lab.restart();
    let second = Arc::clone(&lab.service);
    struct Restarting(Direct, Arc<heddle_nfs::Service>, u64);
    impl Transport for Restarting {
        fn submit(
            &mut self,
            call: &heddle_nfs::client::Outgoing<'_>,
        ) -> Result<heddle_nfs::client::Token, heddle_nfs::client::TransportError> {
            if self.0.next == self.2 {
                self.0.service = Arc::clone(&self.1);
            }
            self.0.submit(call)
        }
        fn wait(
            &mut self,
        ) -> Result<heddle_nfs::client::Returned, heddle_nfs::client::TransportError> {
            self.0.wait()
        }
    }
    let data = contents(100_000);
    // The restart comes before the first WRITE, between WRITEs, or before COMMIT.
    for at in 3..30 {
        let transport = Restarting(Direct::new(&first), Arc::clone(&second), at);
        let mut client = Client::new(transport, Pipeline { size: 8192, depth: 4 });
        let root = client.mount("/data").unwrap();
        let file = client.create(root.handle, b"f", 0o600).unwrap();
        let mut begins = 0;
        let written = client.write(file, &mut Cursor::new(&data), |offset, _| {
            begins += u32::from(offset == 0);
        });
        assert_eq!(written.unwrap(), 100_000);
        assert!(fs::read(lab.path("f")).unwrap() == data);
        // Three calls come before the WRITEs, and there are thirteen WRITEs.
        let lost = (4..=16).contains(&at);
        assert_eq!(begins, 1 + u32::from(lost), "restart before call {at}");
    }
}

fn silent_until_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    match stream.read(&mut [0; 16]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn test_connections_that_break_rules_are_closed_and_others_served() {
    let lab = Lab::new();
    let limits = Limits { idle: Duration::from_millis(300), ..Limits::default() };
    let server = serve(&lab, limits);
    let connect = || TcpStream::connect(server.address()).unwrap();
    for bytes in [
        // A mark longer than any message, a message that is no call, a reply.
        &b"\xff\xff\xff\xff"[..],
        b"\x80\0\0\x04abcd",
        b"\x80\0\0\x08abcd\0\0\0\x01",
        // The stream ends within a message.
        b"\x80\0\0\x40half",
    ] {
        let mut stream = connect();
        stream.write_all(bytes).unwrap();
        assert!(silent_until_closed(&mut stream), "{bytes:?}");
    }
    // The server treats a call in fragments like any other.
    let mut stream = connect();
    let call = message(procedure::NULL, Auth::NONE, &[]);
    for (i, piece) in call.chunks(7).enumerate() {
        let last = if (i + 1) * 7 >= call.len() { 1 << 31 } else { 0 };
        let mark: u32 = last | u32::try_from(piece.len()).unwrap();
        stream.write_all(&mark.to_be_bytes()).unwrap();
        stream.write_all(piece).unwrap();
    }
    let mut reply = Vec::new();
    assert!(record::read(&mut stream, &mut reply, 100).unwrap());
    assert!(Reply::decode(&reply).unwrap().0.has_results());
}

#[test]
fn test_connections_are_limited_in_total_and_per_address() {
    let lab = Lab::new();
    let limits = Limits { connections: 8, of_address: 3, ..Limits::default() };
    let server = serve(&lab, limits);
    let mut taken: Vec<_> = (0..3).map(|_| client(&server, Pipeline::default())).collect();
    for client in &mut taken {
        client.mount("/data").unwrap();
    }
    assert_eq!(server.connections(), 3);
    assert!(client(&server, Pipeline::default()).mount("/data").is_err());
    taken.pop();
    let start = Instant::now();
    while client(&server, Pipeline::default()).mount("/data").is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "a place is free again");
    }
}

/// Connects from another address of this host.
fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, host], 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    });
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Returns true if the server answers a call on the connection.
fn is_served(mut stream: &TcpStream) -> bool {
    let mut reply = Vec::new();
    let sent = record::write(&mut stream, &message(procedure::NULL, Auth::NONE, &[]));
    sent.is_ok() && matches!(record::read(&mut stream, &mut reply, 4096), Ok(true))
}

#[test]
fn test_addresses_that_have_all_connections_leave_one_to_another() {
    let lab = Lab::new();
    let limits = Limits { connections: 8, of_address: 4, ..Limits::default() };
    let server = serve(&lab, limits);
    let mut taken = Vec::new();
    for host in [2, 3] {
        taken.extend((0..4).map(|_| connect_from(host, server.address())));
        assert!(taken.iter().all(is_served));
    }
    // The first connection has been without a call for the longest.
    assert!(taken[1..].iter().all(is_served));
    let newcomer = connect_from(4, server.address());
    assert!(is_served(&newcomer));
    assert!(!is_served(&taken[0]), "one of the addresses that have most");
    assert!(taken[1..].iter().all(is_served) && is_served(&newcomer));
    assert!(!is_served(&connect_from(3, server.address())), "it has its share");
    // The server ends no connection when eight addresses have one each.
    drop((taken, newcomer));
    let start = Instant::now();
    while server.connections() > 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    let all: Vec<_> = (10..18).map(|host| connect_from(host, server.address())).collect();
    assert!(all.iter().all(is_served));
    assert!(
        !is_served(&connect_from(10, server.address())),
        "an address that has as many as others"
    );
    assert!(is_served(&connect_from(20, server.address())), "an address that has none");
}

#[test]
fn test_remove_that_is_repeated_on_one_connection_is_done_once() {
    let lab = Lab::new();
    let server = serve(&lab, Limits::default());
    fs::write(lab.path("old"), b"").unwrap();
    let at = Remove { dir: lab.root(), name: Opaque(b"old") };
    let call = message(procedure::REMOVE, Auth::NONE, &at.bytes());
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut reply = Vec::new();
    for _ in 0..2 {
        record::write(&mut stream, &call).unwrap();
        assert!(record::read(&mut stream, &mut reply, 4096).unwrap());
        let (_, results) = Reply::decode(&reply).unwrap();
        let done = Result::<WccData, (Status, WccData)>::whole(results).unwrap();
        assert!(done.is_ok(), "{done:?}");
    }
    assert_eq!(lab.service.counts().calls, 1);
    // The server carries out a repeated call anew if the call changes nothing.
    let at = DirEntryName { dir: lab.root(), name: Opaque(b"old") };
    let call = message(procedure::LOOKUP, Auth::NONE, &at.bytes());
    record::write(&mut stream, &call).unwrap();
    assert!(record::read(&mut stream, &mut reply, 4096).unwrap());
    assert_eq!(lab.service.counts().failed, 1);
}
