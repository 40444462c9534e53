//! The work of ports: checksums that they have checked or fill in, and tags of VLANs.

use heddle_base::Sum;
use heddle_dpdk_sys as sys;
use heddle_tcp::wire::vlan::{TAG_AT, TAG_LEN};
use heddle_tcp::{RxChecksum, Tag};

use super::Mbuf;

/// The checksums that the port fills in when it sends a frame.
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
    /// The port fills in the IPv4 header checksum.
    pub ip_checksum: bool,
    /// The port fills in the TCP checksum.
    pub tcp_checksum: bool,
    /// Bytes of payload of each segment into which the port cuts the frame; 0 if it does not cut.
    /// The port then fills in both checksums, and the sum of the pseudo-header has no length.
    pub segment: u16,
}

impl Mbuf {
    /// Returns the port's verdict on the IPv4 header's checksum and on TCP's.
    #[inline]
    pub(super) fn rx_checksum(&self) -> RxChecksum {
        rx_checksum(self.head().ol_flags(), || ip_header_is_right(self.data()))
    }

    /// Returns the port's RSS hash, if it gave one.
    #[inline]
    pub fn rss_hash(&self) -> Option<u32> {
        let m = self.head();
        m.has(sys::HEDDLE_MBUF_F_RX_RSS_HASH).then(|| m.rss_hash())
    }

    /// Returns the tag that the port, or [`take_tag`](Self::take_tag), has taken out of the frame.
    #[inline]
    pub(crate) fn tag(&self) -> Option<Tag> {
        let m = self.head();
        m.has(sys::HEDDLE_MBUF_F_RX_VLAN_STRIPPED).then(|| Tag(m.vlan_tci()))
    }

    /// Takes the tag out of a received frame, as a port does that strips tags: the station addresses
    /// move up to the type after the tag. Returns false if there is no whole tag, or others may see
    /// the frame.
    #[cold]
    pub(crate) fn take_tag(&mut self) -> bool {
        let Some(tag) = Tag::of(self.data()) else { return false };
        let Some(head) = self.data_mut() else { return false };
        head.copy_within(..TAG_AT, TAG_LEN);
        let m = self.head();
        let len = 4_u16;
        const { assert!(TAG_LEN == 4) }
        m.set_data_off(m.data_off() + len);
        m.set_data_len(m.data_len() - len);
        m.set_pkt_len(m.pkt_len() - u32::from(len));
        m.set_vlan_tci(tag.0);
        let stripped = sys::HEDDLE_MBUF_F_RX_VLAN | sys::HEDDLE_MBUF_F_RX_VLAN_STRIPPED;
        m.set_ol_flags(m.ol_flags() | stripped);
        true
    }

    /// Copies the port's findings about `other` to this frame, which is a copy of `other`.
    pub(crate) fn inherit_rx_flags(&mut self, other: &Mbuf) {
        let (m, from) = (self.head(), other.head());
        let buffer = sys::HEDDLE_MBUF_F_EXTERNAL | sys::HEDDLE_MBUF_F_INDIRECT;
        m.set_ol_flags(m.ol_flags() & buffer | from.ol_flags() & !buffer);
        m.set_rss_hash(from.rss_hash());
        m.set_vlan_tci(from.vlan_tci());
    }

    /// Returns true if the port cuts the frame into TCP segments.
    pub(crate) fn is_cut(&self) -> bool {
        self.head().has(sys::HEDDLE_MBUF_F_TX_TCP_SEG)
    }

    /// Sets the checksums that the port fills in; replaces all flags of a received frame.
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
        if o.segment > 0 {
            flags |= sys::HEDDLE_MBUF_F_TX_TCP_SEG;
        }
        m.set_ol_flags(flags);
        // Tunnels, which use the bits above, are not used.
        m.set_tx_offload(
            u64::from(o.l2_len & 0x7f)
                | u64::from(o.l3_len & 0x1ff) << 7
                | u64::from(o.l4_len) << 16
                | u64::from(o.segment) << 24,
        );
    }
}

/// Returns the verdict of `ol_flags` on both checksums. Each checksum has two bits: not checked,
/// right, wrong, and "none": not filled in though the bytes are whole. The stack verifies every
/// checksum that is not known to be right.
#[inline]
fn rx_checksum(flags: u64, ip_is_right: impl FnOnce() -> bool) -> RxChecksum {
    match flags & (IP | L4) {
        // A ring has brought a frame whose sender left the checksum to a port: the frame has been
        // in this process's memory alone. No device sets this flag in a frame that it receives.
        0 if flags & sys::HEDDLE_MBUF_F_TX_TCP_CKSUM != 0 => RxChecksum::Good,
        0 => RxChecksum::Unknown,
        GOOD => RxChecksum::Good,
        told => rx_checksum_told(told, ip_is_right),
    }
}

const IP: u64 = sys::HEDDLE_MBUF_F_RX_IP_CKSUM_MASK;
const L4: u64 = sys::HEDDLE_MBUF_F_RX_L4_CKSUM_MASK;
const GOOD: u64 = sys::HEDDLE_MBUF_F_RX_IP_CKSUM_GOOD | sys::HEDDLE_MBUF_F_RX_L4_CKSUM_GOOD;

/// Virtio reports "none" for TCP on a frame that another machine on the same host has sent, whose
/// sender left the checksum to a device that does not exist. The frame has been on no wire, and its
/// field holds only the sum of the pseudo-header, so the stack must not verify the field. Virtio
/// does not check the IPv4 header, which is whole: this function verifies it, since one result
/// covers both. If the header is wrong, the stack, which checks the header first, finds that and
/// counts it.
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

/// Returns true if the checksum of the IPv4 header after an Ethernet header is right.
fn ip_header_is_right(frame: &[u8]) -> bool {
    let header = frame.get(14..).unwrap_or_default();
    let words = header.first().map_or(0, |first| usize::from(first & 0x0f));
    header.get(..4 * words.max(5)).is_some_and(|h| Sum::of(h).is_valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_ip_checksum_is_verified_when_device_does_not() {
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

    /// Tries each state of each checksum, beside flags for other purposes.
    #[test]
    fn test_checksum_flags_of_device_decide_what_stack_verifies() {
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
            // Virtio's flags for a frame of the same host, with an IPv4 header that is right or
            // not.
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
