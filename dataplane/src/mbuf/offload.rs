//! What ports compute for us: checksums they have checked and checksums they shall fill in.

use heddle_dpdk_sys as sys;
use heddle_tcp::RxChecksum;

use super::Mbuf;

/// What the port shall fill in when it sends a frame.
///
/// With `tcp_checksum`, the checksum field must hold the sum of the pseudo-header, not
/// complemented; with `ip_checksum`, the field must be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Bytes of the Ethernet header.
    pub l2_len: u8,
    /// Bytes of the IP header.
    pub l3_len: u16,
    /// Bytes of the TCP header.
    pub l4_len: u8,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// Fill in the IPv4 header checksum.
    pub ip_checksum: bool,
    /// Fill in the TCP checksum.
    pub tcp_checksum: bool,
}

impl Mbuf {
    /// What the port says of the IPv4 header's checksum and of TCP's.
    #[inline]
    pub(super) fn rx_checksum(&self) -> RxChecksum {
        rx_checksum(self.head().ol_flags())
    }

    /// The port's RSS hash, when it gave one.
    #[inline]
    pub fn rss_hash(&self) -> Option<u32> {
        let m = self.head();
        m.has(sys::HEDDLE_MBUF_F_RX_RSS_HASH).then(|| m.rss_hash())
    }

    /// What the port found out about `other` is said of this frame, a copy of it.
    pub(crate) fn inherit_rx_flags(&mut self, other: &Mbuf) {
        let (m, from) = (self.head(), other.head());
        let buffer = sys::HEDDLE_MBUF_F_EXTERNAL | sys::HEDDLE_MBUF_F_INDIRECT;
        m.set_ol_flags(m.ol_flags() & buffer | from.ol_flags() & !buffer);
        m.set_rss_hash(from.rss_hash());
    }

    /// Says what the port shall fill in; replaces all flags a received frame came with.
    #[inline]
    pub fn set_tx_offload(&mut self, o: TxOffload) {
        let m = self.head();
        let mut flags = m.ol_flags() & (sys::HEDDLE_MBUF_F_EXTERNAL | sys::HEDDLE_MBUF_F_INDIRECT);
        if o.ip_checksum || o.tcp_checksum {
            flags |= if o.ipv6 { sys::HEDDLE_MBUF_F_TX_IPV6 } else { sys::HEDDLE_MBUF_F_TX_IPV4 };
        }
        if o.ip_checksum && !o.ipv6 {
            flags |= sys::HEDDLE_MBUF_F_TX_IP_CKSUM;
        }
        if o.tcp_checksum {
            flags |= sys::HEDDLE_MBUF_F_TX_TCP_CKSUM;
        }
        m.set_ol_flags(flags);
        // TSO and tunnels, in the bits above, are not used.
        m.set_tx_offload(
            u64::from(o.l2_len & 0x7f)
                | u64::from(o.l3_len & 0x1ff) << 7
                | u64::from(o.l4_len) << 16,
        );
    }
}

/// What `ol_flags` say of both checksums. Each has two bits: not looked at, right, wrong, and "none":
/// not filled in though the bytes are whole. The stack verifies whatever is not known to be right.
#[inline]
fn rx_checksum(flags: u64) -> RxChecksum {
    const IP: u64 = sys::HEDDLE_MBUF_F_RX_IP_CKSUM_MASK;
    const L4: u64 = sys::HEDDLE_MBUF_F_RX_L4_CKSUM_MASK;
    const GOOD: u64 = sys::HEDDLE_MBUF_F_RX_IP_CKSUM_GOOD | sys::HEDDLE_MBUF_F_RX_L4_CKSUM_GOOD;
    match flags & (IP | L4) {
        0 => RxChecksum::Unknown,
        GOOD => RxChecksum::Good,
        told if told & IP == sys::HEDDLE_MBUF_F_RX_IP_CKSUM_BAD => RxChecksum::Bad,
        told if told & L4 == sys::HEDDLE_MBUF_F_RX_L4_CKSUM_BAD => RxChecksum::Bad,
        _ => RxChecksum::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each state of each checksum, beside flags of other things.
    #[test]
    fn test_both_checksums_are_right_or_one_is_wrong_or_the_stack_looks() {
        let ip = [
            0,
            sys::HEDDLE_MBUF_F_RX_IP_CKSUM_GOOD,
            sys::HEDDLE_MBUF_F_RX_IP_CKSUM_BAD,
            sys::HEDDLE_MBUF_F_RX_IP_CKSUM_NONE,
        ];
        let l4 = [
            0,
            sys::HEDDLE_MBUF_F_RX_L4_CKSUM_GOOD,
            sys::HEDDLE_MBUF_F_RX_L4_CKSUM_BAD,
            sys::HEDDLE_MBUF_F_RX_L4_CKSUM_NONE,
        ];
        use RxChecksum::{Bad, Good, Unknown};
        let want = [
            [Unknown, Unknown, Bad, Unknown],
            [Unknown, Good, Bad, Unknown],
            [Bad, Bad, Bad, Bad],
            [Unknown, Unknown, Bad, Unknown],
        ];
        for (ip, want) in ip.into_iter().zip(want) {
            for (l4, want) in l4.into_iter().zip(want) {
                assert_eq!(rx_checksum(ip | l4 | sys::HEDDLE_MBUF_F_RX_RSS_HASH), want);
            }
        }
    }
}
