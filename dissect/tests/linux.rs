//! Captures of Linux's own traffic: compares what tshark and this crate read in them.
#![allow(clippy::unwrap_used, reason = "a test has to fail loudly")]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use heddle_dissect::{ChunkName, Decoder, Item, Memory, Rpc, Summary, Tcp, What};
use pcap_file::pcap::PcapReader;

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(file)
}

fn decode(file: &Path) -> (Vec<Item>, Summary) {
    let mut reader = PcapReader::new(File::open(file).unwrap()).unwrap();
    let (mut decoder, mut items) = (Decoder::new(None), Vec::new());
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let time = u64::try_from(packet.timestamp.as_nanos()).unwrap();
        decoder.frame(time, &packet.data, &mut items);
    }
    decoder.finish(&mut items);
    (items, decoder.summary())
}

/// Returns the values of these fields in each frame that has the first protocol of the filter.
fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut args = vec!["-o", "tcp.try_heuristic_first:TRUE", "-Y", filter, "-T", "fields"];
    args.extend(["-E", "separator=|", "-E", "occurrence=a"]);
    fields.iter().for_each(|f| args.extend(["-e", f]));
    let out = Command::new("tshark").arg("-r").arg(file).args(args).output();
    let out = out.expect("tshark is needed (Debian: apt install tshark)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
}

/// Returns transport messages as tshark's fields: frame, XID, credits, type, and their segments.
fn transports(items: &[Item]) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for item in items {
        let What::Rpcrdma(t) = &item.what else { continue };
        let kind = match t.header {
            "RDMA_MSG" => "0",
            "RDMA_NOMSG" => "1",
            other => panic!("{other}"),
        };
        let reads = t.reads.iter().flat_map(|c| &c.segments);
        let segments: Vec<&Memory> =
            reads.chain(t.writes.iter().flatten()).chain(t.reply.iter().flatten()).collect();
        let of = |f: &dyn Fn(&Memory) -> String| {
            segments.iter().map(|s| f(s)).collect::<Vec<_>>().join(",")
        };
        all.push(vec![
            item.frame.to_string(),
            format!("{:#010x}", t.xid),
            t.credits.to_string(),
            kind.into(),
            of(&|s| format!("{:#010x}", s.handle)),
            of(&|s| s.length.to_string()),
            of(&|s| format!("{:#018x}", s.offset)),
        ]);
    }
    all
}

#[test]
fn test_decoder_matches_tshark_on_rpcrdma_messages_of_linux() {
    let file = data("nfs/linux-v1.pcap");
    let (items, summary) = decode(&file);
    assert_eq!((summary.connections, summary.verdicts), (1, 0));
    let theirs = tshark(
        &file,
        "rpcordma",
        &[
            "frame.number",
            "rpcordma.xid",
            "rpcordma.flow_control",
            "rpcordma.msg_type",
            "rpcordma.rdma_handle",
            "rpcordma.rdma_length",
            "rpcordma.rdma_offset",
        ],
    );
    assert!(theirs.len() > 30, "tshark reads {} messages", theirs.len());
    assert_eq!(transports(&items), theirs);
}

/// All RDMA data belong to the chunks of calls, and each reply belongs to a call with a name.
#[test]
fn test_decoder_assigns_chunks_and_replies_of_linux_to_their_calls() {
    let (items, _) = decode(&data("nfs/linux-v1.pcap"));
    let mut moved = BTreeMap::new();
    let mut replies = BTreeMap::new();
    for item in &items {
        match &item.what {
            What::Rdma(rdma) => {
                let of = rdma.chunk.expect("all of it is of chunks");
                let name = match of.chunk {
                    ChunkName::Read { position: 112 } => "data of WRITE",
                    ChunkName::Reply => "reply",
                    other => panic!("{other:?}"),
                };
                *moved.entry((rdma.operation, name)).or_insert(0) += rdma.bytes;
                assert_eq!(rdma.rpc.is_some(), rdma.operation == "Write");
            }
            What::Rpcrdma(t) => {
                if let Some(Rpc::Reply { procedure, status, .. }) = &t.rpc {
                    assert_eq!(status, "SUCCESS");
                    let (program, name) = procedure.expect("its call is there").name.unwrap();
                    *replies.entry(format!("{program} {name}")).or_insert(0) += 1;
                }
            }
            _ => {}
        }
    }
    let want = BTreeMap::from([
        (("ReadRequest", "data of WRITE"), 5000),
        (("ReadResponse", "data of WRITE"), 5000),
        (("Write", "reply"), 272),
    ]);
    assert_eq!(moved, want);
    for (procedure, count) in [("NFS3 WRITE", 2), ("NFS3 MKDIR", 1), ("NFSACL NULL", 1)] {
        assert_eq!(replies.get(procedure), Some(&count), "{replies:?}");
    }
}

/// Traffic of siw without RPC: this crate finds as many messages as tshark counts FPDUs that end
/// one.
#[test]
fn test_decoder_counts_as_many_siw_messages_as_tshark() {
    for file in ["crc-small", "crc-page", "crc-large", "fixed-small", "fixed-page", "fixed-large"] {
        let file = data("siw").join(file).with_extension("pcap");
        let (items, summary) = decode(&file);
        assert_eq!((summary.connections, summary.verdicts), (1, 0), "{}", file.display());
        // Both sides close in order, and the capture lacks nothing.
        let tcp = |wanted: fn(&Tcp) -> bool| {
            items.iter().filter(|i| matches!(&i.what, What::Tcp(t) if wanted(t))).count()
        };
        assert_eq!(tcp(|t| matches!(t, Tcp::Fin)), 2, "{}", file.display());
        assert_eq!(tcp(|t| matches!(t, Tcp::Gap { .. })), 0, "{}", file.display());
        let mut ours = BTreeMap::new();
        for item in &items {
            if let What::Rdma(rdma) = &item.what {
                assert_eq!(rdma.chunk, None);
                *ours.entry(rdma.operation).or_insert(0) += 1;
            }
        }
        let names = BTreeMap::from([
            ("0x00", "Write"),
            ("0x01", "ReadRequest"),
            ("0x02", "ReadResponse"),
            ("0x03", "Send"),
        ]);
        let mut theirs = BTreeMap::new();
        let fields = ["iwarp_ddp.last_flag", "iwarp_rdma.opcode"];
        for row in tshark(&file, "iwarp_ddp_rdmap", &fields) {
            for (last, opcode) in row[0].split(',').zip(row[1].split(',')) {
                // tshark prints a bit as a number until version 4.0, and as a word from 4.2 on.
                if matches!(last, "1" | "True") {
                    *theirs.entry(names[opcode]).or_insert(0) += 1;
                }
            }
        }
        assert!(theirs.values().sum::<i32>() > 10, "{theirs:?}");
        assert_eq!(ours, theirs, "{}", file.display());
    }
}
