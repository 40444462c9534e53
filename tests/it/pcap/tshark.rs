//! Compares a capture with tshark's reading of it.

use std::path::Path;
use std::process::Command;

use crate::pcap::decode::{self, Fpdu, Header, Message, Place};
use crate::pcap::script::*;
use crate::pcap::wire::IPS;

/// A filter for faulty frames, whatever they carry.
pub(crate) const BAD: &str = "_ws.malformed || ip.checksum.status == 0 || tcp.checksum.status == 0 \
                              || _ws.expert.severity == error || tcp.flags.reset == 1";

/// Runs tshark with its guesses about the content of Sends (RPC-over-RDMA, SMB Direct) switched
/// off, because the Sends here are neither.
pub(crate) fn tshark(file: &Path, args: &[&str]) -> String {
    let out = Command::new("tshark")
        .arg("-r")
        .arg(file)
        .args(["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"])
        .args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"])
        .args(args)
        .output()
        .expect("tshark is needed (Debian: apt install tshark)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("tshark writes UTF-8")
}

/// Returns the values of these fields in each frame that `filter` selects; a field may occur
/// several times in a frame.
pub(crate) fn fields(file: &Path, filter: &str, names: &[&str]) -> Vec<Vec<Vec<String>>> {
    let mut args = vec!["-Y", filter, "-T", "fields", "-E", "separator=|", "-E", "occurrence=a"];
    for name in names {
        args.extend(["-e", name]);
    }
    let values = |cell: &str| cell.split(',').filter(|v| !v.is_empty()).map(value).collect();
    tshark(file, &args).lines().map(|line| line.split('|').map(values).collect()).collect()
}

/// Returns a value as tshark prints it until version 4.0: later ones have words for single bits.
fn value(text: &str) -> String {
    match text {
        "True" => "1",
        "False" => "0",
        other => other,
    }
    .to_owned()
}

/// An FPDU as tshark shows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The frame that holds its last byte.
    pub(crate) frame: usize,
    pub(crate) ulpdu_len: usize,
    pub(crate) header: Header,
}

/// Parses a number as tshark prints it.
pub(crate) fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .unwrap_or_else(|_| panic!("{text} is no number"))
}

/// Returns the FPDUs that tshark finds in the frames of one direction, in order.
pub(crate) fn fpdus(file: &Path, filter: &str) -> Vec<Seen> {
    const NAMES: [&str; 13] = [
        "frame.number",
        "iwarp_mpa.ulpdulength",
        "iwarp_ddp.tagged_flag",
        "iwarp_ddp.last_flag",
        "iwarp_ddp.dv",
        "iwarp_rdma.version",
        "iwarp_rdma.opcode",
        "iwarp_ddp.stag",
        "iwarp_ddp.tagged_offset",
        "iwarp_rdma.inval_stag",
        "iwarp_ddp.qn",
        "iwarp_ddp.msn",
        "iwarp_ddp.mo",
    ];
    let mut all = Vec::new();
    for row in fields(file, filter, &NAMES) {
        let mut row = row.into_iter().map(|cell| cell.into_iter());
        let mut columns: [_; 13] = std::array::from_fn(|_| row.next().expect("as asked"));
        let frame = columns[0].next().expect("each has one").parse().expect("a number");
        let count = columns[1].len();
        // tshark prints the fields of a tagged or an untagged header only for FPDUs that have such
        // a header.
        let mut take = |column: usize| {
            let v = columns[column].next();
            v.unwrap_or_else(|| panic!("frame {frame} has no more {}", NAMES[column]))
        };
        for _ in 0..count {
            let ulpdu_len = take(1).parse().expect("a number");
            let (tagged, last) = (take(2) == "1", take(3) == "1");
            assert_eq!((number(&take(4)), number(&take(5))), (1, 1), "versions");
            let opcode = u8::try_from(number(&take(6))).expect("4 bits");
            let mut word = |column| u32::try_from(number(&take(column))).expect("32 bits");
            let place = if tagged {
                let stag = word(7);
                Place::Tagged { stag, to: number(&take(8)) }
            } else {
                let invalidates = matches!(opcode, 4 | 6);
                let invalidate = if invalidates { word(9) } else { 0 };
                Place::Untagged { invalidate, qn: word(10), msn: word(11), mo: word(12) }
            };
            all.push(Seen { frame, ulpdu_len, header: Header { opcode, last, place } });
        }
        assert!(columns.iter().all(|c| c.len() == 0), "frame {frame}: more fields than FPDUs");
    }
    all
}

/// Returns a filter for frames of this side that hold an FPDU, or the end of one.
fn sent_by(i: usize) -> String {
    format!("iwarp_mpa.fpdu && ip.src == {}", IPS[i])
}

/// Counts the checked CRCs: the good and the bad ones.
pub(crate) fn crcs(file: &Path) -> (usize, usize) {
    count_crcs(&tshark(file, &["-V", "-O", "iwarp_mpa"]))
}

fn count_crcs(text: &str) -> (usize, usize) {
    (text.matches("Good CRC").count(), text.matches("Bad CRC").count())
}

/// Checks that tshark finds no fault, and finds in each frame the same FPDUs and messages as the
/// decoder.
pub(crate) fn check(file: &Path, crc: bool, all: &[Vec<Fpdu>; 2], messages: &[Vec<Message>; 2]) {
    assert_eq!(tshark(file, &["-Y", BAD]), "");
    for (i, all) in all.iter().enumerate() {
        let seen = fpdus(file, &sent_by(i));
        let read = |f: &Fpdu| {
            let header = decode::segment(&f.ulpdu).0;
            Seen { frame: f.frames.1, ulpdu_len: f.ulpdu.len(), header }
        };
        let want: Vec<_> = all.iter().map(read).collect();
        for (seen, want) in seen.iter().zip(&want) {
            assert_eq!(seen, want);
        }
        assert_eq!(seen.len(), want.len(), "side {i}");
        check_fields(file, i, &messages[i]);
    }
    let text = tshark(file, &["-V", "-O", "iwarp_mpa,iwarp_ddp_rdmap"]);
    let count = all.iter().map(Vec::len).sum();
    assert_eq!(count_crcs(&text), if crc { (count, 0) } else { (0, 0) });
    for (opcode, name) in OPCODES {
        let seen = text.matches(&format!("= OpCode: {name} (0x{opcode:x})")).count();
        let is = |f: &&Fpdu| decode::segment(&f.ulpdu).0.opcode == opcode;
        assert_eq!(seen, all.iter().flatten().filter(is).count(), "{name}");
    }
}

/// tshark's name for each opcode.
const OPCODES: [(u8, &str); 12] = [
    (WRITE, "Write"),
    (READ_REQUEST, "Read Request"),
    (READ_RESPONSE, "Read Response"),
    (SEND, "Send"),
    (SEND_INV, "Send with Invalidate"),
    (SEND_SE, "Send with SE"),
    (SEND_SE_INV, "Send with SE and Invalidate"),
    (TERMINATE, "Terminate"),
    (IMMEDIATE, "Unknown"),
    (IMMEDIATE_SE, "Unknown"),
    (ATOMIC_REQUEST, "Atomic Request"),
    (ATOMIC_RESPONSE, "Atomic Response"),
];

/// A field of a message: its name, the messages that have it, its offset in the payload, and its
/// length; after RFC 5040 sections 4.4 and 4.8, and RFC 7306 section 5.2.
type Field = (&'static str, fn(&Message) -> bool, usize, usize);

const FIELDS: [Field; 20] = [
    ("iwarp_rdma.sinkstag", is_read, 0, 4),
    ("iwarp_rdma.sinkto", is_read, 4, 8),
    ("iwarp_rdma.rdmardsz", is_read, 12, 4),
    ("iwarp_rdma.srcstag", is_read, 16, 4),
    ("iwarp_rdma.srcto", is_read, 20, 8),
    ("iwarp_rdma.atomic.opcode", is_atomic, 0, 4),
    ("iwarp_rdma.atomic.request_identifier", is_atomic, 4, 4),
    ("iwarp_rdma.atomic.remote_stag", is_atomic, 8, 4),
    ("iwarp_rdma.atomic.remote_tagged_offset", is_atomic, 12, 8),
    ("iwarp_rdma.atomic.add_data", is_fetch_add, 20, 8),
    ("iwarp_rdma.atomic.add_mask", is_fetch_add, 28, 8),
    ("iwarp_rdma.atomic.swap_data", is_cmp_swap, 20, 8),
    ("iwarp_rdma.atomic.swap_mask", is_cmp_swap, 28, 8),
    ("iwarp_rdma.atomic.compare_data", is_atomic, 36, 8),
    ("iwarp_rdma.atomic.compare_mask", is_atomic, 44, 8),
    ("iwarp_rdma.atomic.original_request_identifier", is_answer, 0, 4),
    ("iwarp_rdma.atomic.original_remote_data_value", is_answer, 4, 8),
    ("iwarp_rdma.term_errcode_ddp_tagged", is_terminate, 1, 1),
    ("iwarp_rdma.term_ddp_seg_len", is_terminate, 4, 2),
    ("iwarp_rdma.term_ddp_h", is_terminate, 6, 14),
];

fn is_read(m: &Message) -> bool {
    m.opcode == READ_REQUEST
}

fn is_atomic(m: &Message) -> bool {
    m.opcode == ATOMIC_REQUEST
}

fn is_fetch_add(m: &Message) -> bool {
    is_atomic(m) && m.payload[3] == 0
}

fn is_cmp_swap(m: &Message) -> bool {
    is_atomic(m) && m.payload[3] == 2
}

fn is_answer(m: &Message) -> bool {
    m.opcode == ATOMIC_RESPONSE
}

fn is_terminate(m: &Message) -> bool {
    m.opcode == TERMINATE
}

/// Checks the fields of the messages that one side has sent.
fn check_fields(file: &Path, i: usize, messages: &[Message]) {
    let rows = fields(file, &sent_by(i), &FIELDS.map(|(name, ..)| name));
    for (column, (name, which, at, len)) in FIELDS.into_iter().enumerate() {
        let seen = rows.iter().flat_map(|row| &row[column]).map(|v| match name {
            // tshark prints byte strings in hex.
            "iwarp_rdma.term_ddp_seg_len" | "iwarp_rdma.term_ddp_h" => v.clone(),
            _ => format!("{:0width$x}", number(v), width = 2 * len),
        });
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let are = messages.iter().filter(|m| which(m));
        let want: Vec<_> = are.map(|m| hex(&m.payload[at..at + len])).collect();
        assert_eq!(seen.collect::<Vec<_>>(), want, "side {i}: {name}");
    }
}
