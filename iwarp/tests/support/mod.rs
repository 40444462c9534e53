//! Reads captures and returns the streams in them.

use pcap_file::pcap::PcapReader;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket,
    TcpSeqNumber,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Returns the folder of the captures in the repository.
pub(crate) fn captures_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/siw")
}

type Endpoint = (IpAddress, u16);

/// A TCP connection: the bytes of each direction, from the first byte after the SYN on.
pub(crate) struct Connection {
    /// Bytes from the side that sent the SYN.
    pub(crate) from_client: Vec<u8>,
    /// Bytes from the other side.
    pub(crate) from_server: Vec<u8>,
}

#[derive(Default)]
struct Half {
    start: Option<TcpSeqNumber>,
    /// Segments by their offset in the stream.
    segments: BTreeMap<usize, Vec<u8>>,
}

impl Half {
    /// Returns the stream; panics at a gap, and where two segments disagree about a byte.
    fn join(self, name: &str) -> Vec<u8> {
        let mut out: Vec<u8> = Vec::new();
        for (at, bytes) in self.segments {
            assert!(at <= out.len(), "{name}: no segment for stream offset {}", out.len());
            let known = (out.len() - at).min(bytes.len());
            assert_eq!(out[at..at + known], bytes[..known], "{name}: retransmission differs");
            out.extend_from_slice(&bytes[known..]);
        }
        out
    }
}

/// Reads a classic pcap of Ethernet frames and assembles its TCP connections, in the order of their
/// SYNs. Checks every checksum, so the streams are exactly what was sent.
pub(crate) fn connections(path: &Path) -> Vec<Connection> {
    let name = path.display().to_string();
    let file = File::open(path).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut reader = PcapReader::new(file).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut order: Vec<(Endpoint, Endpoint)> = Vec::new();
    let mut halves: BTreeMap<(Endpoint, Endpoint), Half> = BTreeMap::new();
    while let Some(packet) = reader.next_packet() {
        let data = packet.unwrap_or_else(|e| panic!("{name}: {e}")).data;
        with_tcp(&data, &name, |src, dst, tcp| {
            let key = ((src, tcp.src_port()), (dst, tcp.dst_port()));
            if tcp.syn() {
                if !tcp.ack() && !order.contains(&key) {
                    order.push(key);
                }
                halves.entry(key).or_default().start = Some(tcp.seq_number() + 1);
            }
            let payload = tcp.payload();
            let half = halves.entry(key).or_default();
            if let (Some(start), false) = (half.start, payload.is_empty()) {
                let at = usize::try_from(tcp.seq_number().0.wrapping_sub(start.0)).unwrap();
                let known = half.segments.entry(at).or_default();
                if known.len() < payload.len() {
                    *known = payload.to_vec();
                }
            }
        });
    }
    assert!(!order.is_empty(), "{name}: no TCP connection from its SYN on");
    let mut take = |key| halves.remove(&key).unwrap_or_default().join(&name);
    order
        .into_iter()
        .map(|(a, b)| Connection { from_client: take((a, b)), from_server: take((b, a)) })
        .collect()
}

fn with_tcp(frame: &[u8], name: &str, mut f: impl FnMut(IpAddress, IpAddress, &TcpPacket<&[u8]>)) {
    let eth = EthernetFrame::new_checked(frame).unwrap();
    let mut tcp = |src, dst, bytes| {
        let tcp = TcpPacket::new_checked(bytes).unwrap();
        assert!(tcp.verify_checksum(&src, &dst), "{name}: TCP checksum");
        f(src, dst, &tcp);
    };
    match eth.ethertype() {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(eth.payload()).unwrap();
            assert!(ip.verify_checksum(), "{name}: IP checksum");
            if ip.next_header() == IpProtocol::Tcp {
                tcp(ip.src_addr().into(), ip.dst_addr().into(), ip.payload());
            }
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(eth.payload()).unwrap();
            if ip.next_header() == IpProtocol::Tcp {
                tcp(ip.src_addr().into(), ip.dst_addr().into(), ip.payload());
            }
        }
        _ => {}
    }
}
