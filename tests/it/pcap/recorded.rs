//! A recorded client comes in through `net_pcap`: the answer is the same to the last bit each time,
//! and Wireshark finds no fault in it.
//!
//! `scripts/record-pcap` makes the files anew.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use pcap_file::pcap::PcapWriter;

use crate::pcap::decode::{self, packets};
use crate::pcap::tshark::{BAD, tshark};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pcap").join(name)
}

/// Returns the appliance's answer to the recorded client.
fn answer(dir: &Path, name: &str, options: &[&str]) -> Vec<u8> {
    let tx = dir.join(name);
    let out = Command::new(env!("CARGO_BIN_EXE_heddle"))
        .arg("pcap")
        .arg("--rx")
        .arg(data("client.pcap"))
        .arg("--tx")
        .arg(&tx)
        .args(["--ip", "10.0.0.1/24", "--listen", "10.0.0.1:7174=rping", "--seed", "1"])
        .args(options)
        .output()
        .expect("the binary was built");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    std::fs::read(tx).expect("it was written")
}

/// Writes both directions into one file, because Wireshark recognizes an MPA Reply only after its
/// Request. Both directions have the same clock.
fn conversation(answer: &Path, both: &Path) {
    let mut all = packets(&data("client.pcap"));
    // Drop the filler frames, which stand for polls without a frame.
    all.retain(|p| p.data[12..14] != [0x88, 0xb5]);
    all.extend(packets(answer));
    all.sort_by_key(|p| p.timestamp);
    let mut writer = PcapWriter::new(File::create(both).expect("a new file")).expect("a header");
    for p in &all {
        writer.write_packet(p).expect("room for it");
    }
}

#[test]
fn test_recorded_session_gets_same_answer_each_time() {
    let dir = tempfile::tempdir().expect("a directory for the output");
    let (a, b) = (answer(dir.path(), "a.pcap", &[]), answer(dir.path(), "b.pcap", &[]));
    assert!(a == b, "two runs differ");
    let want = std::fs::read(data("server.pcap")).expect("it is part of the sources");
    assert!(a == want, "not what tests/data/pcap/server.pcap has");
}

#[test]
fn test_wireshark_finds_no_error_in_recorded_session() {
    let dir = tempfile::tempdir().expect("a directory for the output");
    answer(dir.path(), "server.pcap", &[]);
    let file = dir.path().join("both.pcap");
    conversation(&dir.path().join("server.pcap"), &file);
    assert_eq!(tshark(&file, &["-Y", BAD]), "");
    let checked = tshark(&file, &["-Y", "ip.checksum.status == 1 && tcp.checksum.status == 1"]);
    assert_eq!(checked.lines().count(), tshark(&file, &["-Y", "tcp"]).lines().count());
    assert_eq!(tshark(&file, &["-Y", "iwarp_mpa.rep"]).lines().count(), 1);
    let text = tshark(&file, &["-V", "-O", "iwarp_mpa"]);
    assert_eq!(text.matches("Bad CRC").count(), 0);
    let ours = tshark(&file, &["-V", "-O", "iwarp_mpa", "-Y", "ip.src == 10.0.0.1"]);
    assert!(ours.contains("Good CRC"), "no FPDU with a CRC");
}

#[test]
fn test_reply_carries_configured_startup_options() {
    let dir = tempfile::tempdir().expect("a directory for the output");
    let file = dir.path().join("both.pcap");
    for (options, markers) in [(&[][..], false), (&["--markers"], true)] {
        answer(dir.path(), "server.pcap", options);
        conversation(&dir.path().join("server.pcap"), &file);
        let [streams] = &decode::connections(&file)[..] else { panic!("one connection") };
        let (reply, _) = decode::startup(&streams[1], b"MPA ID Rep Frame");
        assert_eq!((reply.markers, reply.crc, reply.revision), (markers, true, 2), "{options:?}");
    }
}
