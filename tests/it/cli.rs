//! The program as people call it: what it refuses, and how it ends.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs the program to its end, which must come soon.
fn heddle(args: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_heddle"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    let start = Instant::now();
    while child.try_wait().expect("it is our child").is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().expect("it is our child");
            panic!("{args:?} did not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().expect("it is our child")
}

/// Checks that the program refuses the arguments as wrong usage, in one line on stderr that
/// contains `what`.
fn assert_usage(args: &[&str], what: &str) {
    assert_complains(args, 2, what);
}

fn assert_complains(args: &[&str], status: i32, what: &str) {
    let out = heddle(args);
    let (stdout, stderr) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(status), "{args:?}: {stderr}");
    assert_eq!(stdout, "", "{args:?}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    assert!(stderr.starts_with("heddle: ") && stderr.contains(what), "{args:?}: {stderr}");
}

#[test]
fn test_version_names_dpdk() {
    let out = heddle(&["--version"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success());
    assert!(
        text.starts_with(concat!("heddle ", env!("CARGO_PKG_VERSION"), " (built for DPDK ")),
        "{text}"
    );
    assert!(text.contains(heddle::dpdk::VERSION));
}

#[test]
fn test_every_command_has_help() {
    let out = heddle(&["--help"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success());
    for command in ["bench", "serve", "rping", "cm", "pcap", "nfs", "dump", "demo"] {
        assert!(text.contains(command), "{command}: {text}");
        assert_eq!(heddle(&[command, "--help"]).status.code(), Some(0), "{command}");
    }
}

#[test]
fn test_missing_or_unknown_command_is_a_usage_error() {
    assert_eq!(heddle(&[]).status.code(), Some(2));
    assert_usage(&["brew"], "'brew'");
    assert_usage(&["bench", "--coffee"], "'--coffee'");
}

#[test]
fn test_bench_refuses_invalid_values_as_usage_errors() {
    for (args, what) in [
        (
            &["--op", "writ"][..],
            "possible values: write, read, send, write-imm, send-imm, fetch-add, cmp-swap, rpc",
        ),
        (&["--op", "fetch-add", "--size", "16"], "go with size 8 only"),
        (&["--op", "cmp-swap", "--sizes", "1..8"], "go with size 8 only"),
        (&["--op", "send-imm", "--size", "0"], "Immediate Data has 8 bytes"),
        (&["--mode", "fast"], "possible values: bw, lat, rate"),
        (&["--size", "64KB"], "64KB"),
        (&["--size", "128M"], "size 134217728 is not between"),
        (&["--size", "8", "--sizes", "1..8"], "cannot be used with"),
        (&["--sizes", "8..1"], "range of sizes"),
        (&["--depth", "0"], "depth 0"),
        (&["--qps", "0"], "number of connections 0"),
        (&["--iters", "0"], "number of operations 0"),
        (&["--duration", "10"], "with its unit"),
        (&["--duration", "1s", "--iters", "5"], "cannot be used with"),
        (&["--mtu", "575"], "MTU 575 is not between 576 and 9000"),
        (&["--mtu", "9001"], "MTU 9001 is not between 576 and 9000"),
        (&["--mtu", "70000"], "MTU 70000 is not between 576 and 9000"),
        (&["--seed", "99999999999999999999"], "--seed"),
        (&["--crc", "maybe"], "maybe"),
        (&["--rtr", "sends"], "sends"),
        (&["--mpa", "auto", "--rtr", "send"], "--mpa auto"),
        (&["--wire", "string"], "string"),
        (&["--wire", "vdev"], "--wire vdev needs two devices"),
        (&["--wire", "vdev", "--vdev", "net_null0"], "--wire vdev needs two devices"),
        (&["--vdev", "net_null0", "--server-vdev", "net_null1"], "--vdev goes with --wire vdev"),
        (&["--wire", "vdev", "--server-vdev", "net_null1"], "--vdev <ARGS>"),
        (&["--loss", "1.5"], "share of frames"),
        (&["--lcores", "0"], "two processors"),
        (&["--lcores", "1-0"], "goes down"),
        (&["--lcores", "0,1", "--inline"], "cannot be used with"),
        (&["--mode", "lat", "--depth", "2"], "depth of 1"),
        (&["--mode", "lat", "--size", "0"], "a byte to wait for"),
        (&["--verify", "--size", "0"], "nothing to verify"),
        (&["--qps", "1024", "--size", "1M", "--depth", "64"], "registered memory"),
        (&["--connect", "10.0.0.1"], "--connect"),
        (&["--connect", "10.0.0.1:1"], "--ip is missing"),
        (&["--connect", "10.0.0.1:1", "--ip", "10.0.0.2/24"], "--vdev, --pci or --bond is missing"),
        (&["--connect", "10.0.0.1:1", "--loss", "1%"], "not with --connect"),
        (&["--ip", "10.0.0.2/24"], "go with --connect"),
        (&["--json", "/"], "is a directory"),
        (&["--csv", "/nonexistent/r.csv"], "there is no directory /nonexistent"),
        (&["--report", "/nonexistent/r.html"], "there is no directory /nonexistent"),
        (&["--json", "-", "--csv", "-"], "only one of"),
        (&["--repeat", "0"], "--repeat"),
        (&["--repeat", "1001"], "--repeat"),
        (&["--interval", "9ms"], "interval in milliseconds 9"),
        (&["--interval", "3s"], "interval in milliseconds 3000"),
        (&["--warmup", "1s", "--iters", "5"], "cannot be used with"),
        (&["--rate", "0"], "is not a rate"),
        (&["--rate=-5"], "is not a rate"),
        (&["--rate", "5kb"], "'5kb' is not a rate"),
        (&["--rate", "1B/s"], "the rate is too low"),
        (&["--op", "send", "--size", "0", "--rate", "1MB/s"], "messages of size 0"),
        (&["--half"], "takes mode lat"),
        (&["--op", "rpc", "--repeat", "2"], "do not go with --op rpc"),
        (&["--op", "rpc", "--rate", "2"], "do not go with --op rpc"),
        (&["compare"], "A.json"),
        (&["compare", "a", "b", "--fail-above=-1"], "not a percentage"),
        (&["compare", "a", "b", "--fail-above=nan"], "not a percentage"),
        (&["--mode", "bw", "compare", "a", "b"], "cannot be used with"),
        (&["--rpc-version", "1"], "go with --op rpc"),
        (&["--rounds", "3"], "go with --op rpc"),
        (&["--op", "rpc", "--rpc-version", "3"], "'3'"),
        (&["--op", "rpc", "--dir", "up"], "'up'"),
        (&["--op", "rpc", "--rounds", "0"], "--rounds"),
        (&["--op", "rpc", "--size", "0"], "size of an RPC item 0"),
        (&["--op", "rpc", "--size", "2M"], "size of an RPC item 2097152"),
        (&["--op", "rpc", "--mode", "rate", "--depth", "257"], "depth of RPC 257"),
        (&["--op", "rpc", "--lcores", "0,1,2,3"], "takes two processors"),
        (&["--op", "rpc", "--raw", "10.0.0.1:1"], "--connect"),
        (&["-q", "-v"], "cannot be used with"),
    ] {
        assert_usage(&[&["bench"], args].concat(), what);
    }
}

#[test]
fn test_serve_refuses_invalid_values_as_usage_errors() {
    let net = ["--vdev", "net_null0", "--ip", "10.0.0.1/24"];
    let with = |more: &[&'static str]| [&["serve"], &net[..], more].concat();
    assert_usage(&with(&[]), "--listen");
    assert_usage(&with(&["--listen", "10.0.0.1:1"]), "names no service");
    assert_usage(&with(&["--listen", "10.0.0.1:1=ftp"]), "unknown service 'ftp'");
    assert_usage(&with(&["--listen", "10.0.0.1=rping"]), "address and port");
    assert_usage(&with(&["--listen", "10.0.0.9:1=rping"]), "no --ip has that address");
    let twice = ["--listen", "10.0.0.1:1=rping", "--listen", "10.0.0.1:1=sink"];
    assert_usage(&with(&twice), "given twice");
    assert_usage(&with(&["--listen", "10.0.0.1:1=sink", "--mtu", "99"]), "MTU 99");
    assert_usage(&with(&["--listen", "10.0.0.1:1=sink", "--memory", "0"]), "MiB of memory 0");
    for listen in ["10.0.0.1:0=sink", "10.0.0.1:65536=sink", "10.0.0.1:-1=sink", ":1=sink"] {
        assert_usage(&with(&["--listen", listen]), "address and port");
    }
    for listen in ["::1:1:x=sink", "[fd00::1]:0=rping", "[fd00::1]=rping"] {
        assert_usage(&with(&["--listen", listen]), "address and port");
    }
    assert_usage(&with(&["--listen", "10.0.0.1:1=sink", "--crc", "maybe"]), "maybe");
    assert_usage(&with(&["--listen", "10.0.0.1:1=sink", "--rtr", "none"]), "--rtr none");
}

/// The program reports a wrong device, address or gateway before it starts DPDK.
#[test]
fn test_commands_refuse_invalid_devices_and_addresses() {
    let listen = ["serve", "--listen", "0.0.0.0:1=sink"];
    let (vdev, ip) = (["--vdev", "net_null0"], ["--ip", "10.0.0.1/24"]);
    for (args, what) in [
        (&[&ip[..]][..], "--vdev, --pci or --bond is missing"),
        (&[&vdev[..]], "--ip is missing"),
        (&[&vdev, &["--pci", "3b:00.0"], &ip], "cannot be used with"),
        (&[&["--vdev", "eth0"], &ip], "starts with net_"),
        (&[&["--vdev", ""], &ip], "starts with net_"),
        (&[&["--vdev", "net_null0,"], &ip], "an argument is empty"),
        (&[&["--vdev", "net_null0,=1"], &ip], "an argument has no name"),
        (&[&["--vdev", "net_null 0"], &ip], "characters other than"),
        (&[&["--pci", "eth0"], &ip], "not a PCI address: \"eth0\""),
        (&[&["--pci", ""], &ip], "not a PCI address"),
        (&[&["--pci", "3b:00.8"], &ip], "not a PCI address"),
        (&[&vdev, &["--ip", "10.0.0.1/33"]], "ADDRESS/PREFIX"),
        (&[&vdev, &["--ip", "10.0.0.1/255.255.255.0"]], "ADDRESS/PREFIX"),
        (&[&vdev, &["--ip", "10.0.0.256/24"]], "ADDRESS/PREFIX"),
        (&[&vdev, &["--ip", "fd00::1/129"]], "ADDRESS/PREFIX"),
        (&[&vdev, &["--ip", "fd00::/64"]], "fd00::/64 is no address for a host"),
        (&[&vdev, &["--ip", "10.0.0.0/24"]], "10.0.0.0/24 is no address for a host"),
        (&[&vdev, &["--ip", "10.0.0.255/24"]], "10.0.0.255/24 is no address for a host"),
        (&[&vdev, &["--ip", "127.0.0.1/8"]], "127.0.0.1/8 is no address for a host"),
        (&[&vdev, &ip, &ip], "10.0.0.1 is given twice"),
        (&[&vdev, &ip, &["--gateway", "10.0.1.1"]], "the gateway 10.0.1.1 is on no link of ours"),
        (&[&vdev, &ip, &["--gateway", "10.0.0.1"]], "the gateway 10.0.0.1 is on no link of ours"),
        (&[&vdev, &ip, &["--gateway", "here"]], "--gateway"),
    ] {
        assert_usage(&[&listen[..], &args.concat()].concat(), what);
    }
}

#[test]
fn test_nfs_refuses_invalid_values_as_usage_errors() {
    let net = ["--vdev", "net_null0", "--ip", "10.0.0.1/24"];
    let with = |args: &[&'static str]| [&["nfs"], args, &net[..]].concat();
    assert_usage(&["nfs", "ls", "10.0.0.2:/a"], "--ip is missing");
    assert_usage(&with(&["ls", "/a"]), "'/a' is not ADDR[:PORT]:/PATH");
    assert_usage(&with(&["cat", "10.0.0.2:/a", "--depth", "0"]), "0 is not in 1..=64");
    assert_usage(&with(&["cat", "10.0.0.2:/a", "--rpc-version", "3"]), "'3'");
    for (from, to) in [("a", "b"), ("10.0.0.2:/a", "10.0.0.3:/b")] {
        assert_usage(&with(&["cp", from, to]), "one of FROM and TO is local");
    }
}

#[test]
fn test_rping_refuses_invalid_values_as_usage_errors() {
    let net = ["--vdev", "net_null0", "--ip", "10.0.0.1/24"];
    let with = |more: &[&'static str]| [&["rping"], &net[..], more].concat();
    assert_usage(&with(&[]), "-c");
    assert_usage(&with(&["-c"]), "-a");
    assert_usage(&with(&["-c", "-s", "-a", "10.0.0.2"]), "cannot be used with");
    assert_usage(&with(&["-c", "-a", "there"]), "there");
    assert_usage(&with(&["-c", "-a", "10.0.0.2", "-p", "0"]), "-p");
    assert_usage(&with(&["-c", "-a", "10.0.0.2", "-S", "25"]), "26..=65535");
    assert_usage(&with(&["-c", "-a", "10.0.0.2", "-S", "65536"]), "26..=65535");
    assert_usage(&with(&["-c", "-a", "10.0.0.2", "-P"]), "cannot be used with");
    assert_usage(&with(&["-c", "-a", "10.0.0.2", "--mpa", "3"]), "3");
    let both = ["-c", "-a", "10.0.0.2", "--mpa", "1", "--rtr", "read"];
    assert_usage(&with(&both), "--rtr");
    assert_usage(&["rping", "-c", "-a", "10.0.0.2"], "--ip is missing");
    assert_usage(&with(&["-s", "-a", "10.0.0.9"]), "-a 10.0.0.9: no --ip has that address");
    assert_usage(&with(&["-c", "-a", "10.0.0.2", "-p", "65536"]), "-p");
    assert_usage(&with(&["-c", "-a", "10.0.0.2", "--mtu", "9001"]), "MTU 9001");
}

#[test]
fn test_cm_refuses_invalid_values_as_usage_errors() {
    let net = ["--vdev", "net_null0", "--ip", "10.0.0.1/24"];
    let with = |more: &[&'static str]| [&["cm"], &net[..], more].concat();
    assert_usage(&with(&[]), "--connect");
    assert_usage(&with(&["--listen", "10.0.0.1:7"]), "ADDR:PORT=accept");
    assert_usage(&with(&["--listen", "10.0.0.1:7=perhaps"]), "'perhaps' is neither");
    assert_usage(&with(&["--listen", "10.0.0.1:7=reject,ird=1"]), "'ird' is none of");
    assert_usage(&with(&["--listen", "10.0.0.2:7=accept"]), "no --ip has that address");
    assert_usage(&with(&["--connect", "10.0.0.2"]), "'10.0.0.2' is not ADDR:PORT");
    assert_usage(&with(&["--connect", "10.0.0.2:7,end=5"]), "end: ");
    assert_usage(&["cm", "--connect", "10.0.0.2:7"], "--ip is missing");
}

#[test]
fn test_pcap_refuses_invalid_values_as_usage_errors() {
    assert_usage(&["pcap"], "--rx");
    assert_usage(&["pcap", "--rx", "a,b", "--tx", "c", "--ip", "10.0.0.1/24"], "comma");
    assert_usage(&["pcap", "--rx", "a", "--tx", "c", "--ip", "10.0.0.1"], "ADDRESS/PREFIX");
    assert_usage(&["pcap", "--rx", "a", "--tx", "c", "--ip", "fd00::1/x"], "ADDRESS/PREFIX");
    let all = ["pcap", "--rx", "a", "--tx", "c", "--ip", "10.0.0.1/24"];
    assert_usage(&[&all[..], &["--mtu", "575"]].concat(), "MTU 575");
    assert_usage(&[&all[..], &["--listen", "[::]:0=sink"]].concat(), "address and port");
}

/// Returns a capture with one frame of 60 bytes.
fn capture() -> Vec<u8> {
    let words = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, 60, 60];
    let mut b: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    b.resize(b.len() + 60, 0);
    b
}

const NFS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nfs/linux-v1.pcap");

#[test]
fn test_dump_prints_capture_as_lines_and_as_documents() {
    let out = heddle(&["dump", NFS]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!((out.status.code(), out.stderr), (Some(0), vec![]));
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].contains(" #18 ") && lines[0].contains("MPA Request"), "{}", lines[0]);
    let call =
        "10.88.0.2:40524 > 10.88.0.1:20049  RDMA_MSG 0xb99e4de5 credits 128  call NFS3 WRITE";
    assert_eq!(lines.iter().filter(|l| l.contains(call)).count(), 1, "{text}");
    let counts = lines[lines.len() - 1];
    assert!(counts.ends_with("1 MPA connections (0 forgotten), 0 verdicts"), "{counts}");

    let out = heddle(&["dump", "--json", "--port", "20049", NFS]);
    assert_eq!(out.status.code(), Some(0));
    let text = String::from_utf8(out.stdout).unwrap();
    let documents: Vec<serde_json::Value> =
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(documents.len(), lines.len());
    let call = documents.iter().find(|d| d["xid"] == 0xb99e_4de5_u32).unwrap();
    assert_eq!((&call["kind"], &call["from"]), (&"rpcrdma".into(), &"10.88.0.2:40524".into()));
    assert_eq!(call["rpc"]["name"][1], "WRITE");
    assert_eq!(call["reads"][0]["segments"][0]["length"], 5000);
    let counts = &documents[documents.len() - 1]["summary"];
    assert_eq!((&counts["connections"], &counts["verdicts"]), (&1.into(), &0.into()));

    let out = heddle(&["dump", "--port", "7", NFS]);
    assert!(String::from_utf8(out.stdout).unwrap().contains(" 0 TCP segments"));
}

/// The dump shows the frames before the damage.
#[test]
fn test_dump_fails_on_damaged_captures_after_whole_frames() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("capture");
    let whole = std::fs::read(NFS).unwrap();
    for (bytes, what, is_shown) in [
        (&whole[..whole.len() - 1], "it is cut off behind frame 73", true),
        (&whole[..30], "it is cut off behind frame 0", true),
        (&whole[..20], "it is cut off behind frame 0", false),
        (&b"no capture at all, but long enough"[..], "unknown file format", false),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let out = heddle(&["dump", file.to_str().unwrap()]);
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), stderr.lines().count()), (Some(1), 1), "{what}: {stderr}");
        assert!(stderr.starts_with("heddle: cannot read ") && stderr.contains(what), "{stderr}");
        assert_eq!(!out.stdout.is_empty(), is_shown, "{what}");
    }
    assert_complains(&["dump", "/nonexistent/f"], 1, "cannot read /nonexistent/f");
    assert_usage(&["dump"], "FILE");
    assert_usage(&["dump", "--port", "0", NFS], "--port");
}

/// A device would take the damage for the end of the file, or other frames for Ethernet.
#[test]
fn test_pcap_fails_on_damaged_captures() {
    let dir = tempfile::tempdir().unwrap();
    let (rx, tx) = (dir.path().join("rx"), dir.path().join("tx"));
    let pcap = |bytes: &[u8]| {
        std::fs::write(&rx, bytes).unwrap();
        let (rx, tx) = (rx.to_str().unwrap(), tx.to_str().unwrap());
        heddle(&["pcap", "--rx", rx, "--tx", tx, "--ip", "10.0.0.1/24"])
    };
    let with = |at: usize, word: u32| {
        let mut b = capture();
        b[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        b
    };
    assert_eq!(pcap(&capture()).status.code(), Some(0));
    let whole = capture();
    for (bytes, what) in [
        (&whole[..99], "record 1 is not whole"),
        (&whole[..30], "the header of record 1 is not whole"),
        (&whole[..20], "its header is not whole"),
        (&with(20, 101), "not Ethernet (link type 101"),
        (&with(32, 262_145), "record 1 has an impossible length of 262145 bytes"),
        (&with(32, u32::MAX), "record 1 has an impossible length"),
        (&with(0, 0x0a0d_0d0a), "pcapng"),
        (&with(0, 7), "unknown file format"),
        (&[], "unknown file format"),
    ] {
        let _ = std::fs::remove_file(&tx);
        let out = pcap(bytes);
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), stderr.lines().count()), (Some(1), 1), "{what}: {stderr}");
        assert!(stderr.starts_with("heddle: cannot read ") && stderr.contains(what), "{stderr}");
        assert!(!tx.exists(), "{what}: something was written");
    }
}

/// The program does not overwrite the file that it reads, whatever name the user gives.
#[test]
fn test_pcap_refuses_to_write_the_file_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (rx, hard, soft) =
        (dir.path().join("rx"), dir.path().join("hard"), dir.path().join("soft"));
    std::fs::write(&rx, capture()).unwrap();
    std::fs::hard_link(&rx, &hard).unwrap();
    std::os::unix::fs::symlink(&rx, &soft).unwrap();
    let dotted = dir.path().join("./rx");
    for tx in [&rx, &hard, &soft, &dotted] {
        let (rx, tx) = (rx.to_str().unwrap(), tx.to_str().unwrap());
        assert_usage(&["pcap", "--rx", rx, "--tx", tx, "--ip", "10.0.0.1/24"], "written over");
        assert_eq!(std::fs::read(rx).unwrap(), capture());
    }
}

#[test]
fn test_demo_refuses_files_of_unfit_kind_or_size() {
    let dir = tempfile::tempdir().unwrap();
    assert_complains(&["demo", "--file", "/dev/zero"], 1, "/dev/zero is no regular file");
    let path = dir.path().to_str().unwrap();
    assert_complains(&["demo", "--file", path], 1, "is no regular file");
    // The file has only a length: it takes no room on disk, and must take none in memory.
    let large = dir.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    assert_complains(&["demo", "--file", large.to_str().unwrap()], 1, "is larger than 256 MiB");
}

/// The program prints exactly one line, its own.
#[test]
fn test_demo_fails_with_one_line_when_descriptors_are_too_few() {
    for n in [5, 6, 8, 10] {
        let line = format!("ulimit -n {n}; exec \"$0\" demo --duration 1ms");
        let sh = Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_heddle")]).output();
        let out = sh.expect("there is a shell");
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{n}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{n}: {stderr}");
        assert!(stderr.starts_with("heddle: ") && stderr.contains("file descriptors"), "{stderr}");
    }
}

#[test]
fn test_commands_name_input_files_that_are_missing() {
    assert_complains(&["demo", "--file", "/nonexistent/f"], 1, "cannot read /nonexistent/f");
    let pcap = ["pcap", "--rx", "/nonexistent/f", "--tx", "/nonexistent/t", "--ip", "10.0.0.1/24"];
    assert_complains(&pcap, 1, "cannot read /nonexistent/f");
}

/// The message names the device, with the error of the device or its driver.
#[test]
fn test_commands_name_devices_that_do_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "not a capture file").unwrap();
    let not_pcap = format!("net_pcap0,rx_pcap={}", text.display());
    for (device, what) in [
        (["--vdev", "net_nosuchdriver0"], "device net_nosuchdriver0: no driver takes"),
        (["--vdev", "net_null0,nosuchkey=1"], "device net_null0,nosuchkey=1: "),
        (["--vdev", "net_af_packet0"], "device net_af_packet0: "),
        (
            ["--vdev", "net_af_packet0,iface=nosuchiface"],
            "device net_af_packet0,iface=nosuchiface: ",
        ),
        (["--vdev", "net_pcap0,rx_pcap=/nonexistent"], "No such file or directory"),
        (["--vdev", &*not_pcap], "unknown file format"),
        (["--vdev", "net_memif0,socket=/nonexistent/s,socket-abstract=no"], "socket"),
        (["--pci", "fffe:ff:1f.7"], "device fffe:ff:1f.7: there is no such device"),
    ] {
        let rest = ["--ip", "10.0.0.1/24", "--listen", "10.0.0.1:1=sink"];
        assert_complains(&[&["serve"], &device[..], &rest].concat(), 1, what);
    }
}

#[test]
fn test_commands_name_missing_processor_or_unreachable_peer() {
    let net = ["--vdev", "net_null0", "--ip", "10.0.0.1/24"];
    let with = |args: &[&'static str]| [args, &net[..]].concat();
    let serve = with(&["serve", "--listen", "10.0.0.1:1=sink", "--lcore", "999"]);
    assert_complains(&serve, 1, "processor 999");
    for (peer, what) in [
        ("192.0.2.1", "cannot connect to 192.0.2.1:7174: TCP connection failed: no route"),
        ("10.0.0.1", "not the address of a peer"),
        ("fd00::1", "TCP connection failed: no route"),
        ("10.0.0.9", "next hop cannot be resolved"),
    ] {
        assert_complains(&with(&["rping", "-c", "-C", "1", "-a", peer]), 1, what);
    }
}

/// With six descriptors a library below panicked; with some more there are still too few for DPDK.
#[test]
fn test_serve_without_descriptors_says_which_limit_to_raise() {
    for limit in [6, 40] {
        let script = format!(
            "ulimit -n {limit}; exec \"$0\" serve --vdev net_null0,no-rx=1 --ip 10.0.0.1/24 \
             --listen 10.0.0.1:1=sink"
        );
        let out = Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_heddle")]).output();
        let out = out.unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{limit}: {said}");
        assert!(said.contains("LimitNOFILE") && !said.contains("panicked"), "{limit}: {said}");
        assert_eq!(said.lines().count(), 1, "{limit}: {said}");
    }
}

/// The last of several services cannot start. The others end with it, and report nothing about
/// that.
#[test]
fn test_failed_serve_prints_a_single_reason() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nfs = format!("10.0.0.1:99=nfs:/usr,ro,tcp={}", taken.local_addr().unwrap());
    let mut serve = Command::new(env!("CARGO_BIN_EXE_heddle"));
    serve.args(["serve", "--vdev", "net_null0,no-rx=1", "--ip", "10.0.0.1/24"]);
    for port in 1..=40 {
        serve.args(["--listen", &format!("10.0.0.1:{port}=sink")]);
    }
    let out = serve.args(["--listen", &nfs]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("nfs:/usr"), "{said}");
    assert!(!said.contains("has ended"), "{said}");
}
