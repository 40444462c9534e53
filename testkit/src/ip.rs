//! Writes and reads IPv4 and IPv6 packets around a body, with the fields that a test may want to set
//! wrong: the IP header of a TCP segment or of an ICMP message, neighbor discovery included.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::frames::{Mac, Segment, checksum};

/// The protocol number of TCP.
pub const TCP: u8 = 6;
/// The protocol number of ICMP over IPv4.
pub const ICMP: u8 = 1;
/// The protocol number of ICMP over IPv6.
pub const ICMPV6: u8 = 58;

/// The two ends of a packet, and the other fields of its IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// MAC and address of the sender.
    pub from: (Mac, IpAddr),
    /// MAC and address of the receiver.
    pub to: (Mac, IpAddr),
    /// TTL or hop limit.
    pub hops: u8,
    /// DSCP (upper six bits) and ECN (lower two).
    pub class: u8,
    /// The flow label; 0 over IPv4.
    pub label: u32,
}

impl Ip {
    /// Returns the header of a packet with 64 hops to go, and no more to say.
    pub fn new(from: (Mac, IpAddr), to: (Mac, IpAddr)) -> Ip {
        Ip { from, to, hops: 64, class: 0, label: 0 }
    }

    /// Returns true if the packet is one of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.from.1.is_ipv6()
    }

    /// Returns the protocol number of ICMP beside these addresses.
    pub fn icmp(&self) -> u8 {
        if self.is_ipv6() { ICMPV6 } else { ICMP }
    }

    /// Returns the bytes of the pseudo-header of a body.
    ///
    /// # Panics
    /// Panics if the body is longer than a packet.
    pub fn pseudo_header(&self, protocol: u8, len: usize) -> Vec<u8> {
        let len = u16::try_from(len).expect("a packet's length").to_be_bytes();
        match (self.from.1, self.to.1) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                [&from.octets()[..], &to.octets(), &[0, protocol], &len].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                [&from.octets()[..], &to.octets(), &[0, 0], &len, &[0, 0, 0, protocol]].concat()
            }
            _ => panic!("{} and {} are of two families", self.from.1, self.to.1),
        }
    }

    /// Builds a packet of `body`, from its IP header on.
    ///
    /// # Panics
    /// Panics if the body does not fit into a packet.
    pub fn packet(&self, protocol: u8, body: &[u8]) -> Vec<u8> {
        let len = |n: usize| u16::try_from(n).expect("a packet's length").to_be_bytes();
        let head = match (self.from.1, self.to.1) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let [a, b] = len(20 + body.len());
                let mut h = vec![0x45, self.class, a, b, 0, 0, 0x40, 0, self.hops, protocol, 0, 0];
                h.extend(from.octets());
                h.extend(to.octets());
                let sum = checksum(&[&h]);
                h[10..12].copy_from_slice(&sum.to_be_bytes());
                h
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let word = 6 << 28 | u32::from(self.class) << 20 | self.label & 0xf_ffff;
                let mut h = word.to_be_bytes().to_vec();
                h.extend(len(body.len()));
                h.extend([protocol, self.hops]);
                h.extend(from.octets());
                h.extend(to.octets());
                h
            }
            _ => panic!("{} and {} are of two families", self.from.1, self.to.1),
        };
        [&head, body].concat()
    }

    /// Builds the frame of a packet.
    pub fn frame(&self, protocol: u8, body: &[u8]) -> Vec<u8> {
        let kind: [u8; 2] = if self.is_ipv6() { [0x86, 0xdd] } else { [0x08, 0x00] };
        [&self.to.0[..], &self.from.0, &kind, &self.packet(protocol, body)].concat()
    }

    /// Builds the frame of a segment.
    pub fn segment(&self, segment: &Segment) -> Vec<u8> {
        self.frame(TCP, &self.with_checksum(TCP, 16, segment.bytes()))
    }

    /// Builds the frame of an ICMP message, whose checksum is still 0.
    pub fn icmp_message(&self, message: Vec<u8>) -> Vec<u8> {
        let protocol = self.icmp();
        let message = if self.is_ipv6() {
            self.with_checksum(protocol, 2, message)
        } else {
            let mut message = message;
            let sum = checksum(&[&message]);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            message
        };
        self.frame(protocol, &message)
    }

    /// Returns `body` with its checksum at `at`, which covers the pseudo-header.
    pub fn with_checksum(&self, protocol: u8, at: usize, mut body: Vec<u8>) -> Vec<u8> {
        body[at..at + 2].fill(0);
        let sum = checksum(&[&self.pseudo_header(protocol, body.len()), &body]);
        body[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        body
    }

    /// Reads a frame. Returns the header, the protocol and the body; `None` if the frame is neither
    /// IPv4 nor IPv6.
    ///
    /// # Panics
    /// Panics if a checksum or a length is wrong, or a header has a form that Heddle and Linux do
    /// not send: the frame has to be right.
    pub fn parse(frame: &[u8]) -> Option<(Ip, u8, &[u8])> {
        let mac = |at: usize| frame[at..at + 6].try_into().expect("six bytes");
        let (to, from, packet) = (mac(0), mac(6), &frame[14..]);
        let short = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        let (ip, protocol, body) = match frame[12..14] {
            [0x08, 0x00] => {
                assert_eq!(packet[0], 0x45, "an IPv4 header without options");
                assert_eq!(packet[6] & 0x3f, 0, "no fragment");
                assert_eq!(checksum(&[&packet[..20]]), 0, "the IPv4 header's checksum");
                let ip = |at: usize| {
                    let bytes: [u8; 4] = packet[at..at + 4].try_into().expect("four bytes");
                    IpAddr::V4(Ipv4Addr::from(bytes))
                };
                let (from, to) = ((from, ip(12)), (to, ip(16)));
                let ip = Ip { from, to, hops: packet[8], class: packet[1], label: 0 };
                (ip, packet[9], &packet[20..short(2)])
            }
            [0x86, 0xdd] => {
                let word = u32::from_be_bytes(packet[..4].try_into().expect("four bytes"));
                assert_eq!(word >> 28, 6, "IPv6's version");
                let ip = |at: usize| {
                    let bytes: [u8; 16] = packet[at..at + 16].try_into().expect("sixteen bytes");
                    IpAddr::V6(Ipv6Addr::from(bytes))
                };
                let class = u8::try_from(word >> 20 & 0xff).expect("eight bits");
                let (from, to) = ((from, ip(8)), (to, ip(24)));
                let ip = Ip { from, to, hops: packet[7], class, label: word & 0xf_ffff };
                (ip, packet[6], &packet[40..40 + short(4)])
            }
            _ => return None,
        };
        match protocol {
            TCP | ICMPV6 => {
                let sum = checksum(&[&ip.pseudo_header(protocol, body.len()), body]);
                assert_eq!(sum, 0, "the checksum of protocol {protocol}");
            }
            ICMP => assert_eq!(checksum(&[body]), 0, "ICMP's checksum"),
            _ => {}
        }
        Some((ip, protocol, body))
    }
}

/// Returns the group that hears questions for `ip`, and its MAC (RFC 4291 section 2.7.1, RFC 2464
/// section 7).
pub fn solicited_node(ip: Ipv6Addr) -> (Mac, Ipv6Addr) {
    let [.., a, b, c] = ip.octets();
    let group =
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    ([0x33, 0x33, 0xff, a, b, c], group)
}

/// Builds a message of neighbor discovery about `target` (RFC 4861 sections 4.3 and 4.4): a question
/// if `flags` is `None`, otherwise a statement with these flags in its first byte. It has the MAC
/// `mac` as its option.
pub fn neighbor_message(flags: Option<u8>, target: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let (kind, option) = if flags.is_some() { (136, 2) } else { (135, 1) };
    let mut m = vec![kind, 0, 0, 0, flags.unwrap_or(0), 0, 0, 0];
    m.extend(target.octets());
    m.extend([option, 1]);
    m.extend(mac);
    m
}
