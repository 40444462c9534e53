//! What ports compute for us: checksums they have checked and checksums they shall fill in.

use heddle_base::Sum;
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
        rx_checksum(self.head().ol_flags(), || ip_header_is_right(self.data()))
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
fn rx_checksum(flags: u64, ip_is_right: impl FnOnce() -> bool) -> RxChecksum {
    match flags & (IP | L4) {
        0 => RxChecksum::Unknown,
        GOOD => RxChecksum::Good,
        told => rx_checksum_told(told, ip_is_right),
    }
}

const IP: u64 = sys::HEDDLE_MBUF_F_RX_IP_CKSUM_MASK;
const L4: u64 = sys::HEDDLE_MBUF_F_RX_L4_CKSUM_MASK;
const GOOD: u64 = sys::HEDDLE_MBUF_F_RX_IP_CKSUM_GOOD | sys::HEDDLE_MBUF_F_RX_L4_CKSUM_GOOD;

/// "None" of TCP is what virtio says of a frame that another machine on the same host has sent and left
/// the checksum of to a device that is not there: it has been on no wire, and its field holds no more
/// than the sum of the pseudo-header, so it must not be verified. Virtio does not look at the IPv4
/// header, which is whole: that is verified here, since one word says both. Where it is wrong, the
/// stack, which looks at it first, finds that and counts it.
#[cold]
fn rx_checksum_told(told: u64, ip_is_right: impl FnOnce() -> bool) -> RxChecksum {
    const IP_NONE: u64 = sys::HEDDLE_MBUF_F_RX_IP_CKSUM_NONE;
    const L4_NONE: u64 = sys::HEDDLE_MBUF_F_RX_L4_CKSUM_NONE;
    const IP_GOOD: u64 = sys::HEDDLE_MBUF_F_RX_IP_CKSUM_GOOD;
    const L4_GOOD: u64 = sys::HEDDLE_MBUF_F_RX_L4_CKSUM_GOOD;
    let (ip, l4) = (told & IP, told & L4);
    if ip == sys::HEDDLE_MBUF_F_RX_IP_CKSUM_BAD || l4 == sys::HEDDLE_MBUF_F_RX_L4_CKSUM_BAD {
        return RxChecksum::Bad;
    }
    match (ip, l4) {
        (IP_GOOD | IP_NONE, L4_GOOD | L4_NONE) => RxChecksum::Good,
        (0, L4_NONE) if ip_is_right() => RxChecksum::Good,
        _ => RxChecksum::Unknown,
    }
}

/// Whether the checksum of the IPv4 header behind an Ethernet header is right.
fn ip_header_is_right(frame: &[u8]) -> bool {
    let header = frame.get(14..).unwrap_or_default();
    let words = header.first().map_or(0, |first| usize::from(first & 0x0f));
    header.get(..4 * words.max(5)).is_some_and(|h| Sum::of(h).is_valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_ip_header_is_looked_at_where_the_device_does_not() {
        for words in [5u8, 15] {
            let mut frame = vec![0; 14];
            frame.push(0x40 | words);
            frame.resize(14 + 4 * usize::from(words), 7);
            frame[24..26].fill(0);
            let sum = Sum::of(&frame[14..]).complement();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            frame.extend([9; 40]);
            assert!(ip_header_is_right(&frame));
            frame[20] ^= 1;
            assert!(!ip_header_is_right(&frame));
            assert!(!ip_header_is_right(&frame[..14 + 4 * usize::from(words) - 1]), "cut short");
        }
        assert!(!ip_header_is_right(&[]) && !ip_header_is_right(&[0; 14]));
    }

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
        for whole in [true, false] {
            // What virtio says of a frame of the same host, with an IPv4 header that is right or not.
            let same_host = if whole { Good } else { Unknown };
            let want = [
                [Unknown, Unknown, Bad, same_host],
                [Unknown, Good, Bad, Good],
                [Bad, Bad, Bad, Bad],
                [Unknown, Good, Bad, Good],
            ];
            for (ip, want) in ip.into_iter().zip(want) {
                for (l4, want) in l4.into_iter().zip(want) {
                    let flags = ip | l4 | sys::HEDDLE_MBUF_F_RX_RSS_HASH;
                    assert_eq!(rx_checksum(flags, || whole), want, "{ip:#x} {l4:#x}");
                }
            }
        }
    }
}
