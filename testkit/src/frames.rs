//! Writes and reads Ethernet frames by hand: ARP, IPv4 with ICMP echo or TCP.

use std::net::Ipv4Addr;

/// A MAC address, in the order of the wire.
pub type Mac = [u8; 6];

/// TCP's flag FIN.
pub const FIN: u8 = 0x01;
/// TCP's flag SYN.
pub const SYN: u8 = 0x02;
/// TCP's flag RST.
pub const RST: u8 = 0x04;
/// TCP's flag PSH.
pub const PSH: u8 = 0x08;
/// TCP's flag ACK.
pub const ACK: u8 = 0x10;
/// TCP's flag ECE (RFC 3168): a packet arrived with the mark of congestion.
pub const ECE: u8 = 0x40;
/// TCP's flag CWR: the sender has reduced its window.
pub const CWR: u8 = 0x80;

const BROADCAST: Mac = [0xff; 6];

/// The sender and the receiver of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// MAC and address of our side.
    pub from: (Mac, Ipv4Addr),
    /// MAC and address of the other side.
    pub to: (Mac, Ipv4Addr),
}

/// A TCP segment.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// Source port, in host byte order.
    pub source: u16,
    /// Destination port, in host byte order.
    pub dest: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number; has a meaning with the flag ACK.
    pub ack: u32,
    /// TCP's flags, such as [`SYN`].
    pub flags: u8,
    /// The window, unscaled as in the header.
    pub window: u16,
    /// Options; the writer pads them to whole words.
    pub options: Vec<u8>,
    /// The bytes after the header.
    pub payload: Vec<u8>,
}

/// A received packet.
#[derive(Debug)]
pub enum Packet {
    /// `sender` asks for the MAC of `wanted`.
    ArpRequest {
        /// The addresses of the sender.
        sender: (Mac, Ipv4Addr),
        /// The address whose MAC it asks for.
        wanted: Ipv4Addr,
    },
    /// `sender` announces its MAC to `to`.
    ArpReply {
        /// The addresses of the sender.
        sender: (Mac, Ipv4Addr),
        /// The address that asked.
        to: Ipv4Addr,
    },
    /// The answer to an echo request.
    EchoReply,
    /// A segment for `to`.
    Tcp {
        /// The address of the receiver.
        to: Ipv4Addr,
        /// Header fields and payload.
        segment: Segment,
    },
    /// A UDP datagram, from its IP header on.
    Udp {
        /// The payload.
        bytes: Vec<u8>,
    },
}

fn ethernet(to: Mac, from: Mac, kind: u16) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes()].concat()
}

fn arp(to: Mac, operation: u8, from: (Mac, Ipv4Addr), about: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut f = ethernet(to, from.0, 0x0806);
    f.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    for (mac, ip) in [from, about] {
        f.extend(mac);
        f.extend(ip.octets());
    }
    f
}

/// Builds a broadcast ARP request for the MAC of `wanted`.
pub fn arp_request(from: (Mac, Ipv4Addr), wanted: Ipv4Addr) -> Vec<u8> {
    arp(BROADCAST, 1, from, ([0; 6], wanted))
}

/// Builds an ARP reply to `to`.
pub fn arp_reply(from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr)) -> Vec<u8> {
    arp(to.0, 2, from, to)
}

fn ipv4(path: &Path, ttl: u8, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut f = ethernet(path.to.0, path.from.0, 0x0800);
    let len = u16::try_from(20 + body.len()).expect("a packet's length");
    let mut h = [0x45, 0, 0, 0, 0, 0, 0x40, 0, ttl, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    h[2..4].copy_from_slice(&len.to_be_bytes());
    h[12..16].copy_from_slice(&path.from.1.octets());
    h[16..20].copy_from_slice(&path.to.1.octets());
    let sum = checksum(&[&h]);
    h[10..12].copy_from_slice(&sum.to_be_bytes());
    f.extend(h);
    f.extend(body);
    f
}

/// Returns a frame of IPv4 with the mark of congestion.
pub fn marked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[15] |= 3;
    frame[24..26].fill(0);
    let sum = checksum(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Builds an ICMP echo request.
pub fn echo(path: &Path, number: u16, body: &[u8]) -> Vec<u8> {
    let mut b = vec![8, 0, 0, 0, 0x12, 0x34];
    b.extend(number.to_be_bytes());
    b.extend(body);
    let sum = checksum(&[&b]);
    b[2..4].copy_from_slice(&sum.to_be_bytes());
    ipv4(path, 64, 1, &b)
}

impl Segment {
    /// Builds a frame of the segment.
    pub fn frame(&self, path: &Path) -> Vec<u8> {
        self.frame_with_ttl(path, 64)
    }

    /// Builds a frame that may pass through `ttl` routers.
    pub fn frame_with_ttl(&self, path: &Path, ttl: u8) -> Vec<u8> {
        let mut b = self.bytes();
        let sum = checksum(&[&pseudo_header(path.from.1, path.to.1, b.len()), &b]);
        b[16..18].copy_from_slice(&sum.to_be_bytes());
        ipv4(path, ttl, 6, &b)
    }

    /// Returns header and payload, with a checksum of 0.
    ///
    /// # Panics
    /// Panics if the options do not fit into a header.
    pub fn bytes(&self) -> Vec<u8> {
        let options = self.options.len().next_multiple_of(4);
        let words = u8::try_from((20 + options) / 4).expect("at most 40 bytes of options");
        let mut b = Vec::with_capacity(20 + options + self.payload.len());
        b.extend(self.source.to_be_bytes());
        b.extend(self.dest.to_be_bytes());
        b.extend(self.seq.to_be_bytes());
        b.extend(self.ack.to_be_bytes());
        b.extend([words << 4, self.flags]);
        b.extend(self.window.to_be_bytes());
        b.extend([0; 4]);
        b.extend(&self.options);
        b.resize(20 + options, 1);
        b.extend(&self.payload);
        b
    }
}

impl Packet {
    /// Reads a frame. Returns `None` for a packet that no test needs.
    ///
    /// # Panics
    /// Panics if a checksum is wrong: the program never sends such a frame.
    pub fn parse(f: &[u8]) -> Option<Packet> {
        match f.get(12..14)? {
            [0x08, 0x06] => Packet::parse_arp(f.get(14..42)?),
            [0x08, 0x00] => Packet::parse_ipv4(&f[14..]),
            _ => None,
        }
    }

    fn parse_arp(b: &[u8]) -> Option<Packet> {
        let sender = (b[8..14].try_into().ok()?, address(&b[14..18]));
        let about = address(&b[24..28]);
        match b[7] {
            1 => Some(Packet::ArpRequest { sender, wanted: about }),
            2 => Some(Packet::ArpReply { sender, to: about }),
            _ => None,
        }
    }

    fn parse_ipv4(b: &[u8]) -> Option<Packet> {
        let len = usize::from(u16::from_be_bytes([*b.get(2)?, *b.get(3)?]));
        let (header, body) = b.get(..len)?.split_at_checked(20)?;
        assert_eq!(checksum(&[header]), 0, "IPv4 header checksum");
        let (from, to) = (address(&header[12..16]), address(&header[16..20]));
        match header[9] {
            1 if body.first() == Some(&0) => Some(Packet::EchoReply),
            17 => Some(Packet::Udp { bytes: b[..len].to_vec() }),
            6 => {
                assert_eq!(
                    checksum(&[&pseudo_header(from, to, body.len()), body]),
                    0,
                    "TCP checksum"
                );
                Some(Packet::Tcp { to, segment: Segment::parse(body)? })
            }
            _ => None,
        }
    }
}

impl Segment {
    /// Reads a segment. Returns `None` if its data offset is impossible.
    pub fn parse(b: &[u8]) -> Option<Segment> {
        let short = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let long = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let data = usize::from(*b.get(12)? >> 4) * 4;
        Some(Segment {
            options: b.get(20..data)?.to_vec(),
            payload: b[data..].to_vec(),
            source: short(0),
            dest: short(2),
            seq: long(4),
            ack: long(8),
            flags: b[13],
            window: short(14),
        })
    }

    /// Returns the body of the option `kind`.
    pub fn option(&self, kind: u8) -> Option<&[u8]> {
        let mut rest = &self.options[..];
        loop {
            match rest {
                [] | [0, ..] => return None,
                [1, more @ ..] => rest = more,
                [k, len, ..] => {
                    let body = rest.get(2..usize::from(*len))?;
                    if *k == kind {
                        return Some(body);
                    }
                    rest = &rest[usize::from(*len)..];
                }
                [_] => return None,
            }
        }
    }
}

fn address(b: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(b[0], b[1], b[2], b[3])
}

fn pseudo_header(from: Ipv4Addr, to: Ipv4Addr, len: usize) -> [u8; 12] {
    let mut p = [0; 12];
    p[..4].copy_from_slice(&from.octets());
    p[4..8].copy_from_slice(&to.octets());
    p[9] = 6;
    p[10..].copy_from_slice(&u16::try_from(len).expect("a packet's length").to_be_bytes());
    p
}

/// Computes the Internet checksum of consecutive pieces, which all have even length except the last.
pub fn checksum(pieces: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for p in pieces {
        for pair in p.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}
