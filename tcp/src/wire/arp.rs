//! ARP for IPv4 over Ethernet (RFC 826), by smoltcp's packet types.

use core::net::Ipv4Addr;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use super::{MacAddr, Malformed};

/// Bytes of an ARP packet.
pub const PACKET_LEN: usize = 28;

/// The operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The sender asks which station has the target address.
    Request,
    /// The sender states its own address.
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Request or reply.
    pub operation: Operation,
    /// Hardware address of the sender.
    pub sender_mac: MacAddr,
    /// Protocol address of the sender.
    pub sender_ip: Ipv4Addr,
    /// Hardware address of the target (meaningless in a request).
    pub target_mac: MacAddr,
    /// Protocol address of the target.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Reads an ARP packet.
    ///
    /// # Errors
    /// Fails when the packet is too short, not IPv4 over Ethernet, or neither request nor reply.
    pub fn parse(bytes: &[u8]) -> Result<Arp, Malformed> {
        let packet = ArpPacket::new_checked(bytes).map_err(|_| Malformed::Truncated)?;
        let repr = ArpRepr::parse(&packet).map_err(|_| Malformed::Header)?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_hardware_addr,
            target_protocol_addr,
        } = repr
        else {
            return Err(Malformed::Header);
        };
        Ok(Arp {
            operation: match operation {
                ArpOperation::Request => Operation::Request,
                ArpOperation::Reply => Operation::Reply,
                ArpOperation::Unknown(_) => return Err(Malformed::Header),
            },
            sender_mac: MacAddr(source_hardware_addr.0),
            sender_ip: source_protocol_addr,
            target_mac: MacAddr(target_hardware_addr.0),
            target_ip: target_protocol_addr,
        })
    }

    /// Writes the packet to `out`.
    pub fn emit(&self, out: &mut [u8; PACKET_LEN]) {
        ArpRepr::EthernetIpv4 {
            operation: match self.operation {
                Operation::Request => ArpOperation::Request,
                Operation::Reply => ArpOperation::Reply,
            },
            source_hardware_addr: EthernetAddress(self.sender_mac.0),
            source_protocol_addr: self.sender_ip,
            target_hardware_addr: EthernetAddress(self.target_mac.0),
            target_protocol_addr: self.target_ip,
        }
        .emit(&mut ArpPacket::new_unchecked(&mut out[..]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn test_roundtrip(reply: bool, a: [u8; 6], b: [u8; 6], x: u32, y: u32) {
            let p = Arp {
                operation: if reply { Operation::Reply } else { Operation::Request },
                sender_mac: MacAddr(a), sender_ip: Ipv4Addr::from_bits(x),
                target_mac: MacAddr(b), target_ip: Ipv4Addr::from_bits(y),
            };
            let mut out = [0; PACKET_LEN];
            p.emit(&mut out);
            prop_assert_eq!(Arp::parse(&out), Ok(p));
        }

        #[test]
        fn test_any_bytes_do_not_panic(b in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Arp::parse(&b);
        }
    }

    #[test]
    fn test_golden_bytes() {
        let mut out = [0; PACKET_LEN];
        Arp {
            operation: Operation::Request,
            sender_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_mac: MacAddr([0; 6]),
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        }
        .emit(&mut out);
        assert_eq!(
            out,
            *b"\x00\x01\x08\x00\x06\x04\x00\x01\x02\x00\x00\x00\x00\x01\x0a\x00\x00\x01\
               \x00\x00\x00\x00\x00\x00\x0a\x00\x00\x02"
        );
    }

    #[test]
    fn test_other_protocols_and_operations_are_refused() {
        let mut out = [0; PACKET_LEN];
        let good = b"\x00\x01\x08\x00\x06\x04\x00\x01";
        for (at, v) in [(1, 2), (2, 9), (4, 8), (5, 16), (7, 3)] {
            out[..8].copy_from_slice(good);
            assert!(Arp::parse(&out).is_ok());
            out[at] = v;
            assert!(Arp::parse(&out).is_err(), "byte {at}");
        }
        out[..8].copy_from_slice(good);
        assert_eq!(Arp::parse(&out[..27]), Err(Malformed::Truncated));
    }
}
