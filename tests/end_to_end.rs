//! The program at work: alone, with a peer of its own over shared memory (`net_memif`), and on
//! capture files.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_heddle"));
    c.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

/// Waits for the end, with somebody to read what is said meanwhile.
fn wait(mut child: Child, what: &str) -> Output {
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().expect("it is our child");
            panic!("{what} did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let end = |t: JoinHandle<Vec<u8>>| t.join().expect("it reads to the end");
    Output { status, stdout: end(stdout), stderr: end(stderr) }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        }
        bytes
    })
}

/// Runs to the end; stdout and stderr.
fn run(args: &[&str], status: i32) -> (String, String) {
    let out = wait(command(args).spawn().expect("the binary was built"), &format!("{args:?}"));
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    assert_eq!(out.status.code(), Some(status), "{args:?}: {}", text(&out.stderr));
    (text(&out.stdout), text(&out.stderr))
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a file of this test"))
        .expect("a file of this test")
}

#[test]
fn test_bench_writes_one_object_for_one_size() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.json");
    let path = file.to_str().unwrap();
    let args = [
        "bench", "--inline", "--op", "send", "--size", "3000", "--iters", "200", "--qps", "2",
        "--depth", "8", "--verify", "--crc", "off", "--mtu", "2000", "--json", path,
    ];
    let (out, _) = run(&args, 0);
    assert_eq!(out.lines().count(), 2, "{out}");
    let v = json(&file);
    for (field, want) in [
        ("op", Value::from("send")),
        ("mode", "bw".into()),
        ("size", 3000.into()),
        ("qps", 2.into()),
        ("depth", 8.into()),
        ("mtu", 2000.into()),
        ("crc", false.into()),
        ("wire", "ring".into()),
        ("ops", 400.into()),
        ("bytes", 1_200_000.into()),
        ("verified", true.into()),
        ("drops", 0.into()),
        ("fast_retransmits", 0.into()),
        ("lcores", Value::Array(Vec::new())),
    ] {
        assert_eq!(v[field], want, "{field}");
    }
    let (seconds, gbit) = (v["seconds"].as_f64().unwrap(), v["gbit_per_s"].as_f64().unwrap());
    assert!((gbit * seconds / (1_200_000.0 * 8e-9) - 1.0).abs() < 1e-9);
}

#[test]
fn test_bench_writes_an_array_for_several_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.json");
    let args = [
        "bench",
        "--inline",
        "--sizes",
        "512..4K",
        "--iters",
        "50",
        "--json",
        file.to_str().unwrap(),
    ];
    run(&args, 0);
    let v = json(&file);
    let sizes: Vec<_> = v.as_array().unwrap().iter().map(|r| r["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [512, 1024, 2048, 4096]);
    assert!(v.as_array().unwrap().iter().all(|r| r["verified"] == false && r["ops"] == 50));
}

#[test]
fn test_bench_fails_when_the_figures_cannot_be_written() {
    let args = ["bench", "--inline", "--iters", "5", "--json", "/nonexistent/r.json"];
    let (_, err) = run(&args, 1);
    assert!(err.starts_with("heddle: cannot write /nonexistent/r.json"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn test_bench_on_a_processor_that_is_not_there() {
    let (_, err) = run(&["bench", "--lcores", "1000,1001", "--iters", "5"], 1);
    assert!(err.contains("1001") || err.contains("1000"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn test_demo_moves_a_file_three_ways() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    let bytes: Vec<u8> = (0..300_001u32).flat_map(u32::to_le_bytes).take(300_001).collect();
    fs::write(&file, bytes).unwrap();
    let (out, _) = run(&["demo", "--file", file.to_str().unwrap()], 0);
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].contains("300001 bytes"), "{out}");
    let hash = lines[0].rsplit(' ').next().unwrap();
    for (line, op) in lines[2..].iter().zip(["send", "write", "read"]) {
        assert!(line.starts_with(op) && line.contains(hash) && line.ends_with("same"), "{out}");
    }
    assert_eq!(lines.len(), 5, "{out}");
}

#[test]
fn test_demo_refuses_an_empty_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("empty");
    fs::write(&file, b"").unwrap();
    let (_, err) = run(&["demo", "--file", file.to_str().unwrap()], 1);
    assert!(err.contains("is empty"), "{err}");
}

/// A server that has said that it listens; told to end when dropped.
struct Server(Option<Child>);

impl Server {
    fn start(args: &[&str], listeners: usize) -> Server {
        let mut child = command(args).spawn().expect("the binary was built");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let server = Server(Some(child));
        for _ in 0..listeners {
            let line = lines.next().expect("it listens").expect("text");
            assert!(line.contains(" listening on "), "{line}");
        }
        server
    }

    fn wait(mut self) -> Output {
        wait(self.0.take().expect("it runs"), "the server")
    }

    /// Ends it as an operator would; its exit status.
    fn stop(self) -> Option<i32> {
        let pid = self.0.as_ref().expect("it runs").id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .expect("a file of this test")
                .success()
        );
        self.wait().status.code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Memif {
    _dir: tempfile::TempDir,
    server: String,
    clients: String,
}

/// Two ends of shared memory. Each client has an address of its own: within a second of the last,
/// the server would not believe that the same address has moved to another device.
fn memif() -> Memif {
    let dir = tempfile::tempdir().expect("a file of this test");
    let socket = dir.path().join("s").display().to_string();
    let end =
        |n: u8, role: &str| format!("net_memif{n},role={role},socket={socket},socket-abstract=no");
    Memif { server: end(0, "server"), clients: end(1, "client"), _dir: dir }
}

#[test]
fn test_serve_and_its_clients_over_shared_memory() {
    for mode in [&["--inline"][..], &[]] {
        let m = memif();
        let listen = ["10.1.0.1:7174=rping", "10.1.0.1:7471=perf", "10.1.0.1:9=sink"];
        let mut args = vec!["serve", "--vdev", &m.server, "--ip", "10.1.0.1/24"];
        args.extend(listen.iter().flat_map(|l| ["--listen", l]));
        args.extend(mode);
        let server = Server::start(&args, 3);
        let rping = [
            "rping", "-c", "-a", "10.1.0.1", "-C", "20", "-S", "5000", "-V", "-v", "--vdev",
            &m.clients,
        ];
        let (out, _) = run(&[&rping[..], &["--ip", "10.1.0.2/24"]].concat(), 0);
        assert_eq!(
            out.lines().filter(|l| l.starts_with("ping data: rdma-ping-")).count(),
            20,
            "{out}"
        );
        assert!(out.contains("20 messages of 5000 bytes"), "{out}");
        let (_, err) = run(&[&rping[..], &["--ip", "10.1.0.3/24", "-p", "1"]].concat(), 1);
        assert!(err.contains("cannot connect to 10.1.0.1:1"), "{err}");
        let file = m._dir.path().join("r.json");
        for (n, op) in ["write", "read", "send"].iter().enumerate() {
            let ip = format!("10.1.0.{}/24", 10 + n);
            let args = [
                "bench",
                "--connect",
                "10.1.0.1:7471",
                "--vdev",
                &m.clients,
                "--ip",
                &ip,
                "--op",
                op,
                "--sizes",
                "1K..4K",
                "--iters",
                "100",
                "--verify",
                "--json",
                file.to_str().unwrap(),
            ];
            run(&args, 0);
            let v = json(&file);
            assert!(
                v.as_array().unwrap().iter().all(|r| r["verified"] == true && r["wire"] == "vdev"),
                "{v}"
            );
        }
        // The rping service does not take it for one of its own; the bench says so.
        let args = [
            "bench",
            "--connect",
            "10.1.0.1:7174",
            "--vdev",
            &m.clients,
            "--ip",
            "10.1.0.20/24",
            "--iters",
            "1",
        ];
        let (_, err) = run(&args, 1);
        assert!(err.contains("private data"), "{err}");
        assert_eq!(server.stop(), Some(0), "{mode:?}");
    }
}

#[test]
fn test_rping_server_ends_with_its_client() {
    let m = memif();
    let args = [
        "rping",
        "-s",
        "-v",
        "-a",
        "10.1.0.1",
        "-p",
        "2000",
        "--vdev",
        &m.server,
        "--ip",
        "10.1.0.1/24",
    ];
    let server = Server::start(&args, 1);
    let args = [
        "rping",
        "-c",
        "-a",
        "10.1.0.1",
        "-p",
        "2000",
        "-C",
        "3",
        "-V",
        "--crc",
        "off",
        "--mpa",
        "1",
        "--vdev",
        &m.clients,
        "--ip",
        "10.1.0.2/24",
    ];
    run(&args, 0);
    assert_eq!(server.wait().status.code(), Some(0));
}

/// A capture file of Ethernet frames.
fn write_pcap(path: &Path, frames: &[&[u8]]) {
    let mut b = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        b.extend(word.to_le_bytes());
    }
    for f in frames {
        let len = u32::try_from(f.len()).expect("a file of this test");
        for word in [0, 0, len, len] {
            b.extend(word.to_le_bytes());
        }
        b.extend(*f);
    }
    fs::write(path, b).expect("a file of this test");
}

/// The frames of a capture file, without the time.
fn read_pcap(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).expect("a file of this test");
    let mut frames = Vec::new();
    let mut rest = &bytes[24..];
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("a file of this test")) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

#[test]
fn test_pcap_answers_a_question_the_same_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // Who has 10.0.0.1? Tell 10.0.0.9.
    let mut arp =
        b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\x09\x08\x06\0\x01\x08\0\x06\x04\0\x01".to_vec();
    arp.extend(b"\x02\0\0\0\0\x09\x0a\0\0\x09\0\0\0\0\0\0\x0a\0\0\x01");
    arp.resize(60, 0);
    write_pcap(&at("in"), &[&arp, b"\xff\xff\xff\xff\xff\xff not a frame"]);
    let mut seen = Vec::new();
    for out in ["a", "b"] {
        let (rx, tx) = (at("in"), at(out));
        let args = [
            "pcap",
            "--rx",
            rx.to_str().unwrap(),
            "--tx",
            tx.to_str().unwrap(),
            "--ip",
            "10.0.0.1/24",
            "--listen",
            "10.0.0.1:7174=rping",
        ];
        let (text, _) = run(&args, 0);
        assert!(text.contains("tx_arp_replies"), "{text}");
        seen.push((text, read_pcap(&tx)));
    }
    assert_eq!(seen[0], seen[1]);
    let [reply] = &seen[0].1[..] else { panic!("{:?}", seen[0].1) };
    assert_eq!(&reply[..6], b"\x02\0\0\0\0\x09");
    assert_eq!(&reply[20..22], b"\0\x02", "a reply");
    assert_eq!((&reply[28..32], &reply[38..42]), (&b"\x0a\0\0\x01"[..], &b"\x0a\0\0\x09"[..]));
}
