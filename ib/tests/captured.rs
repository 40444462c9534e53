//! Packets that other implementations have sent; `tests/data/README.md` lists them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use heddle_ib::cm::{Mad, Message};
use heddle_ib::roce::UdPacket;

fn packets(prefix: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "hex"));
    files.retain(|p| p.file_name().unwrap().to_string_lossy().starts_with(prefix));
    files.sort();
    let read = |p: PathBuf| {
        let text = fs::read_to_string(&p).unwrap();
        let digits: String = text.split_whitespace().collect();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let bytes = (0..digits.len()).step_by(2).map(byte).collect();
        (p, bytes)
    };
    files.into_iter().map(read).collect()
}

/// This crate understands the messages of Linux, and would send the same bytes: Linux uses no bit
/// that this crate treats as reserved.
#[test]
fn test_messages_of_linux_are_written_as_they_were_read() {
    for (file, packet) in packets("rxe-") {
        let file = file.display();
        let ud = UdPacket::parse_gsi(&packet).unwrap_or_else(|e| panic!("{file}: {e}"));
        let mad = Mad::parse(ud.payload).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(mad.emit()[..], *ud.payload, "{file}");
        if let Message::Req(req) = mad.message {
            assert_eq!(req.primary.local_gid.ip(), ud.repr.src, "{file}");
            assert_eq!(req.primary.remote_gid.ip(), ud.repr.dst, "{file}");
        }
    }
}

/// The adapters' packets are no management datagrams, but have a CRC too.
#[test]
fn test_icrc_matches_captured_packets_of_other_senders() {
    let all = packets("");
    assert!(all.len() >= 2, "the files are there");
    for (file, packet) in all {
        let (body, crc) = packet.split_last_chunk::<4>().unwrap();
        assert_eq!(heddle_ib::roce::icrc(body), Some(*crc), "{}", file.display());
    }
}
