//! The invariant CRC: over what routers leave as it is.

use crc32fast::Hasher;

use super::header::BTH_LEN;

/// Octets of the invariant CRC at the end of a packet.
pub const ICRC_LEN: usize = 4;

/// Octets of a UDP header.
pub(super) const UDP_LEN: usize = 8;
/// Octets of an IPv4 header without options.
pub(super) const IPV4_LEN: usize = 20;
/// Octets of an IPv6 header without extensions.
pub(super) const IPV6_LEN: usize = 40;

/// The invariant CRC of a RoCEv2 packet, as it stands on the wire. `packet` is the IP packet up to
/// where the CRC is put: its length fields count the CRC already.
///
/// It is the CRC-32 of Ethernet, its least significant octet first. What may change on the way counts
/// as ones: of IPv4 type of service, time to live and header checksum; of IPv6 traffic class, flow
/// label and hop limit; the UDP checksum; the octet of the BTH with the congestion bits. Eight octets
/// of ones stand in front, where InfiniBand has its local route header.
///
/// `None` when it is neither an IPv4 packet without options nor an IPv6 packet, or shorter than IP,
/// UDP and base transport headers are.
pub fn icrc(packet: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let ip_len = match packet.first()? {
        0x45 => IPV4_LEN,
        version if version >> 4 == 6 => IPV6_LEN,
        _ => return None,
    };
    let head_len = ip_len + UDP_LEN + BTH_LEN;
    let (head, rest) = packet.split_at_checked(head_len)?;
    let mut masked = [0xff; 8 + IPV6_LEN + UDP_LEN + BTH_LEN];
    let masked = &mut masked[..8 + head_len];
    let h = &mut masked[8..];
    h.copy_from_slice(head);
    if ip_len == IPV4_LEN {
        h[1] = 0xff;
        h[8] = 0xff;
        h[10..12].fill(0xff);
    } else {
        h[0] |= 0x0f;
        h[1..4].fill(0xff);
        h[7] = 0xff;
    }
    h[ip_len + 6..ip_len + UDP_LEN].fill(0xff);
    h[ip_len + UDP_LEN + 4] = 0xff;
    let mut crc = Hasher::new();
    crc.update(masked);
    crc.update(rest);
    Some(crc.finalize().to_le_bytes())
}
