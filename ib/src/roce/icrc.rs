//! The invariant CRC, which covers the bytes that routers do not change.

use crc32fast::Hasher;

use super::header::BTH_LEN;

/// Bytes of the invariant CRC at the end of a packet.
pub const ICRC_LEN: usize = 4;

/// Bytes of a UDP header.
pub(super) const UDP_LEN: usize = 8;
/// Bytes of an IPv4 header without options.
pub(super) const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header without extensions.
pub(super) const IPV6_LEN: usize = 40;

/// Returns the invariant CRC of a RoCEv2 packet, as on the wire. `packet` is the IP packet up to
/// the place of the CRC; its length fields already count the CRC.
///
/// The CRC is the CRC-32 of Ethernet, least significant byte first. Fields that may change on the
/// way count as ones: in IPv4 type of service, time to live and header checksum; in IPv6 traffic
/// class, flow label and hop limit; the UDP checksum; the byte of the BTH with the congestion bits.
/// Eight bytes of ones come first, where InfiniBand has its local route header.
///
/// Returns `None` when the packet is neither an IPv4 packet without options nor an IPv6 packet, or
/// is shorter than IP, UDP and base transport headers.
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
