//! The address from which a program's connection comes, as a program of librdmacm sees it: by the
//! links and the routes of the RNIC's ports.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use heddle_ibverbs::rnic::SOCKET;

use crate::lab::{PATIENCE, heddle};
use crate::{c, library};

/// Two ports, each with a route for each version of IP, and the default route by the first one.
const PORTS: &str = r#"
[[port]]
vdev = "net_null0,no-rx=1"
addresses = ["10.77.0.1/24", "10.77.1.1/24", "fd00:77::1/64"]
gateway = "10.77.0.254"
routes = [{ to = "10.88.0.0/16", via = "10.77.1.254" }, { to = "fd00:88::/32", via = "fd00:77::fe" }]

[[port]]
vdev = "net_null1,no-rx=1"
addresses = ["10.78.0.1/24", "fd00:78::1/64"]
routes = [{ to = "10.88.5.0/24", via = "10.78.0.254" }, { to = "fd00:88:5::/48", via = "fd00:78::fe" }]
"#;

/// A process that does not outlive the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an RNIC with the ports of a file.
fn start(file: &Path, socket: &Path) -> Process {
    let mut rnic = Command::new(heddle());
    rnic.args(["serve", "--config"]).arg(file);
    rnic.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let rnic = Process(rnic.spawn().unwrap());
    let start = Instant::now();
    while UnixStream::connect(socket).is_err() {
        assert!(start.elapsed() < PATIENCE, "no RNIC");
        std::thread::sleep(Duration::from_millis(20));
    }
    rnic
}

/// The program, which answers each host with an address of ours.
struct Sources {
    _program: Process,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Sources {
    fn start(dir: &Path, socket: &Path) -> Sources {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ibverbs/c/sources.c");
        let mut run = Command::new(c::compile(&source, dir, &["-lrdmacm", "-libverbs"]));
        run.env("LD_LIBRARY_PATH", library::library()).env(SOCKET, socket);
        run.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = run.spawn().unwrap();
        let (to, from) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        Sources { _program: Process(program), to, from: BufReader::new(from) }
    }

    fn of(&mut self, host: &str) -> String {
        writeln!(self.to, "{host}").unwrap();
        let mut line = String::new();
        assert!(self.from.read_line(&mut line).unwrap() > 0, "the program has ended");
        line.trim_end().to_owned()
    }
}

#[test]
fn test_program_connects_from_the_address_that_its_route_leaves_by() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("heddle.toml"), dir.path().join("rnic"));
    let with = |ports: &str| {
        format!(
            "[workers]\nidle = \"backoff\"\n[control]\nsocket = \"{}\"\n{ports}",
            socket.display()
        )
    };
    std::fs::write(&file, with(PORTS)).unwrap();
    let _rnic = start(&file, &socket);
    let mut sources = Sources::start(dir.path(), &socket);
    for (host, source) in [
        // Hosts of a link.
        ("10.77.0.9", "10.77.0.1"),
        ("10.77.1.9", "10.77.1.1"),
        ("10.78.0.9", "10.78.0.1"),
        ("fd00:77::9", "fd00:77::1"),
        ("fd00:78::9", "fd00:78::1"),
        // The RNIC itself.
        ("10.78.0.1", "10.78.0.1"),
        // A route: the longest prefix counts, on whichever port it is.
        ("10.88.1.1", "10.77.1.1"),
        ("10.88.5.1", "10.78.0.1"),
        ("fd00:88:1::1", "fd00:77::1"),
        ("fd00:88:5::1", "fd00:78::1"),
        // The default route, which IPv6 has not.
        ("192.0.2.1", "10.77.0.1"),
        ("2001:db8::1", "none"),
    ] {
        assert_eq!(sources.of(host), source, "{host}");
    }
    // A program that runs sees what a reload changes.
    let moved = PORTS.replace("10.88.5.0/24", "10.88.1.0/24");
    let moved = moved.replace("10.77.1.1/24", "10.77.1.2/24");
    std::fs::write(&file, with(&moved)).unwrap();
    let reload =
        Command::new(heddle()).arg("reload").arg("--socket").arg(&socket).output().unwrap();
    assert!(reload.status.success(), "{}", String::from_utf8_lossy(&reload.stderr));
    for (host, source) in
        [("10.77.1.9", "10.77.1.2"), ("10.88.1.1", "10.78.0.1"), ("10.88.5.1", "10.77.1.2")]
    {
        assert_eq!(sources.of(host), source, "{host} after a reload");
    }
}
