//! The ICMP messages that the stack understands (RFC 792), by smoltcp's packet types.

use core::net::{IpAddr, Ipv4Addr};

use smoltcp::wire::{Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet};

use super::{be16, be32, ipv4};
use crate::SeqNumber;

/// A received ICMP message, checksum verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// An echo request: identifier, sequence number and data as they came.
    EchoRequest {
        /// Identifier, which the reply repeats.
        ident: u16,
        /// Sequence number, which the reply repeats.
        seq: u16,
        /// Data, which the reply repeats.
        data: &'a [u8],
    },
    /// A datagram of ours did not reach its destination.
    Unreachable {
        /// The reason, as on the wire (RFC 792, RFC 1122 section 3.2.2.1).
        code: u8,
        /// Next-hop MTU, when the code is "fragmentation needed" (RFC 1191).
        mtu: u16,
        /// The quoted part of the datagram, when it was TCP.
        quoted: Option<Quoted>,
    },
    /// A datagram of ours outlived its TTL.
    TimeExceeded {
        /// The quoted part of the datagram, when it was TCP.
        quoted: Option<Quoted>,
    },
    /// Any other message.
    Other,
}

/// Type of an echo request.
pub const ECHO_REQUEST: u8 = 8;
/// Code of a [`Message::Unreachable`] for a datagram too large to forward without fragmentation.
pub const CODE_FRAG_NEEDED: u8 = 4;

/// The TCP segment that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Source address: one of our addresses, when the quote is true.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port of the quoted segment.
    pub src_port: u16,
    /// Destination port of the quoted segment.
    pub dst_port: u16,
    /// Sequence number of the quoted segment.
    pub seq: SeqNumber,
    /// Length of the datagram in bytes, IP header included, as that header says.
    pub total_len: u32,
}

impl<'a> Message<'a> {
    /// Reads a message. Returns `None` when the message is too short or its checksum is wrong.
    pub fn parse(bytes: &'a [u8]) -> Option<Message<'a>> {
        // smoltcp checks the length that its message types need. For the types below, this length
        // is never less than the eight bytes read here.
        let packet = Icmpv4Packet::new_checked(bytes).ok()?;
        if !packet.verify_checksum() || bytes.len() < 8 {
            return None;
        }
        Some(match packet.msg_type() {
            Icmpv4Message::EchoRequest => Message::EchoRequest {
                ident: packet.echo_ident(),
                seq: packet.echo_seq_no(),
                data: &bytes[8..],
            },
            Icmpv4Message::DstUnreachable => Message::Unreachable {
                code: packet.msg_code(),
                mtu: match Icmpv4DstUnreachable::from(packet.msg_code()) {
                    Icmpv4DstUnreachable::FragRequired => be16(bytes, 6),
                    _ => 0,
                },
                quoted: Quoted::parse(&bytes[8..]),
            },
            Icmpv4Message::TimeExceeded => {
                Message::TimeExceeded { quoted: Quoted::parse(&bytes[8..]) }
            }
            _ => Message::Other,
        })
    }
}

impl Quoted {
    /// Reads the quoted datagram, which has at least eight bytes beyond the IP header.
    fn parse(bytes: &[u8]) -> Option<Quoted> {
        let h = bytes.first_chunk::<{ ipv4::HEADER_LEN }>()?;
        let header_len = usize::from(h[0] & 0xf) * 4;
        if h[0] >> 4 != 4 || header_len < ipv4::HEADER_LEN || h[9] != ipv4::PROTO_TCP {
            return None;
        }
        let tcp = bytes.get(header_len..)?.first_chunk::<8>()?;
        Some(Quoted {
            src: Ipv4Addr::from_bits(be32(h, 12)).into(),
            dst: Ipv4Addr::from_bits(be32(h, 16)).into(),
            src_port: be16(tcp, 0),
            dst_port: be16(tcp, 2),
            seq: SeqNumber(be32(tcp, 4)),
            total_len: be16(h, 2).into(),
        })
    }
}

/// Returns the segment that an error quotes, for the kinds of error that [`Message`] distinguishes.
/// The function verifies neither the checksum nor anything else of the message: it serves callers
/// that must know whom the message concerns before they read it.
pub fn quoted(bytes: &[u8]) -> Option<Quoted> {
    match (Icmpv4Message::from(*bytes.first()?), bytes.get(8..)?) {
        (Icmpv4Message::DstUnreachable | Icmpv4Message::TimeExceeded, quote) => {
            Quoted::parse(quote)
        }
        _ => None,
    }
}

/// Returns the echo reply to a request.
pub fn echo_reply(ident: u16, seq: u16, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 8 + data.len()];
    let mut packet = Icmpv4Packet::new_unchecked(&mut out[..]);
    packet.set_msg_type(Icmpv4Message::EchoReply);
    packet.set_echo_ident(ident);
    packet.set_echo_seq_no(seq);
    packet.data_mut().copy_from_slice(data);
    packet.fill_checksum();
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_base::Sum;
    use proptest::prelude::*;

    fn sealed(mut b: Vec<u8>) -> Vec<u8> {
        b[2..4].fill(0);
        let sum = Sum::of(&b).complement();
        b[2..4].copy_from_slice(&sum.to_be_bytes());
        b
    }

    /// Returns a destination unreachable message that quotes a TCP segment 10.0.0.1:4096 ->
    /// 10.0.0.2:80.
    fn unreachable(code: u8, mtu: u16) -> Vec<u8> {
        let mut b = vec![3, code, 0, 0, 0, 0, 0, 0];
        b[6..8].copy_from_slice(&mtu.to_be_bytes());
        b.extend(
            b"\x45\x00\x00\x28\x00\x00\x40\x00\x40\x06\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02",
        );
        b.extend(b"\x10\x00\x00\x50\x00\x00\x00\x07");
        sealed(b)
    }

    #[test]
    fn test_echo_request_and_reply() {
        let request = sealed(b"\x08\x00\x00\x00\x12\x34\x00\x02ping!".to_vec());
        let want = Message::EchoRequest { ident: 0x1234, seq: 2, data: b"ping!" };
        assert_eq!(Message::parse(&request), Some(want));
        let reply = echo_reply(0x1234, 2, b"ping!");
        assert!(Sum::of(&reply).is_valid());
        assert_eq!((reply[0], &reply[4..]), (0, &request[4..]));
    }

    #[test]
    fn test_quoted_segment_is_found_despite_wrong_checksum() {
        let mut b = unreachable(CODE_FRAG_NEEDED, 1400);
        let Some(Message::Unreachable { quoted: told, .. }) = Message::parse(&b) else { panic!() };
        b[2] ^= 1;
        assert_eq!(quoted(&b), told);
        assert!(told.is_some());
        b[0] = 11;
        assert_eq!(quoted(&b), told);
        for (kind, len) in [(8, b.len()), (5, b.len()), (3, b.len() - 1), (3, 7), (3, 0)] {
            b[0] = kind;
            assert_eq!(quoted(&b[..len]), None, "type {kind}, {len} bytes");
        }
    }

    #[test]
    fn test_icmp_message_with_wrong_checksum_or_too_short_is_refused() {
        let mut b = sealed(b"\x08\x00\x00\x00\x12\x34\x00\x02x".to_vec());
        for n in 0..8 {
            assert_eq!(Message::parse(&b[..n]), None);
        }
        b[8] ^= 1;
        assert_eq!(Message::parse(&b), None);
    }

    #[test]
    fn test_unreachable_quotes_the_segment() {
        let quoted = Some(Quoted {
            src: Ipv4Addr::new(10, 0, 0, 1).into(),
            dst: Ipv4Addr::new(10, 0, 0, 2).into(),
            src_port: 4096,
            dst_port: 80,
            seq: SeqNumber(7),
            total_len: 40,
        });
        let b = unreachable(1, 0);
        assert_eq!(Message::parse(&b), Some(Message::Unreachable { code: 1, mtu: 0, quoted }));
        let b = unreachable(CODE_FRAG_NEEDED, 1400);
        assert_eq!(Message::parse(&b), Some(Message::Unreachable { code: 4, mtu: 1400, quoted }));
    }

    proptest! {
        #[test]
        fn test_any_bytes_do_not_panic(b in proptest::collection::vec(any::<u8>(), 0..64), seal: bool) {
            let b = if seal && b.len() >= 4 { sealed(b) } else { b };
            let _ = Message::parse(&b);
        }

        #[test]
        fn test_truncated_quotes_do_not_panic(n in 8usize..36, at in 8usize..36, v: u8) {
            let mut b = unreachable(3, 0);
            b[at] = v;
            b.truncate(n);
            let _ = Message::parse(&sealed(b));
        }
    }
}
