//! Multicast listener discovery: the messages by which a switch learns on which of its ports a group
//! is heard (RFC 3810; RFC 2710 for switches that speak version 1 alone).

use core::net::Ipv6Addr;
use core::time::Duration;

use smoltcp::wire::Icmpv6Packet;

use super::{be16, ipv6};

/// The hop-by-hop header of all these messages (RFC 3810 section 5): ICMPv6 follows, and routers
/// along the way look at the packet (Router Alert, RFC 2711).
pub const ROUTER_ALERT: [u8; 8] = [ipv6::ICMP, 0, 5, 2, 0, 0, 1, 0];
/// The hop limit of these messages: they stay on the link.
pub const HOP_LIMIT: u8 = 1;
/// The group of the routers that hear reports of version 2.
pub const ALL_V2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// The most groups in a report, which thus fits into the smallest MTU of IPv6.
pub const MAX_GROUPS: usize = 48;

const QUERY: u8 = 130;
const REPORT_V1: u8 = 131;
const REPORT_V2: u8 = 143;
const QUERY_V1_LEN: usize = 24;
const QUERY_V2_LEN: usize = 28;
/// Types of a group's record: all sources are heard, as before or since now.
const IS_EXCLUDE: u8 = 2;
const TO_EXCLUDE: u8 = 4;

/// A question which groups are heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The group asked for; `None` for all.
    pub group: Option<Ipv6Addr>,
    /// The time within which an answer must come.
    pub within: Duration,
    /// True if the asker understands version 1 alone.
    pub is_v1: bool,
}

impl Query {
    /// Reads the query in the payload of a packet with hop-by-hop options, from `src` to `dst`;
    /// `None` for anything else.
    pub fn parse(payload: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> Option<Query> {
        let (options, message) = payload.split_first_chunk::<8>()?;
        // The header must hold the option, in any place; the rest of it may be padding.
        let alerts = options[2..] == ROUTER_ALERT[2..] || options[2..] == [1, 0, 5, 2, 0, 0];
        if options[..2] != [ipv6::ICMP, 0] || !alerts {
            return None;
        }
        let len = u32::try_from(message.len()).ok()?;
        let sum = ipv6::pseudo_header(ipv6::ICMP, src, dst, len);
        let is_query = message.first() == Some(&QUERY) && message.get(1) == Some(&0);
        if !is_query || !sum.plus(heddle_base::Sum::of(message)).is_valid() {
            return None;
        }
        let code = be16(message.get(..QUERY_V1_LEN)?, 4);
        let octets: [u8; 16] = *message[8..].first_chunk()?;
        let group = Ipv6Addr::from(octets);
        let (ms, is_v1) = match message.len() {
            QUERY_V1_LEN => (u64::from(code), true),
            n if n >= QUERY_V2_LEN => (delay(code), false),
            _ => return None,
        };
        let group = (!group.is_unspecified()).then_some(group);
        Some(Query { group, within: Duration::from_millis(ms), is_v1 })
    }
}

/// Returns the milliseconds of a maximum response code (RFC 3810 section 5.1.3).
fn delay(code: u16) -> u64 {
    if code < 0x8000 {
        return code.into();
    }
    let (mantissa, exponent) = (u64::from(code & 0xfff), u32::from(code >> 12 & 7));
    (mantissa | 0x1000) << (exponent + 3)
}

/// Returns a packet's payload that reports that `groups` (of which the first [`MAX_GROUPS`] count)
/// are heard from now on, or that they still are. The packet goes to [`ALL_V2_ROUTERS`].
pub fn report(src: Ipv6Addr, groups: &[Ipv6Addr], is_new: bool) -> Vec<u8> {
    let groups = &groups[..groups.len().min(MAX_GROUPS)];
    let count = u16::try_from(groups.len()).unwrap_or(0);
    let mut message = vec![REPORT_V2, 0, 0, 0, 0, 0];
    message.extend(count.to_be_bytes());
    for group in groups {
        message.extend([if is_new { TO_EXCLUDE } else { IS_EXCLUDE }, 0, 0, 0]);
        message.extend(group.octets());
    }
    sealed(message, src, ALL_V2_ROUTERS)
}

/// Returns the payload of a report of version 1 that `group` is heard. The packet goes to the group.
pub fn report_v1(src: Ipv6Addr, group: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![REPORT_V1, 0, 0, 0, 0, 0, 0, 0];
    message.extend(group.octets());
    sealed(message, src, group)
}

fn sealed(mut message: Vec<u8>, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&src, &dst);
    [&ROUTER_ALERT[..], &message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

    fn query(code: u16, group: Ipv6Addr, rest: &[u8]) -> Vec<u8> {
        let [a, b] = code.to_be_bytes();
        let message = [&[QUERY, 0, 0, 0, a, b, 0, 0][..], &group.octets(), rest].concat();
        sealed(message, ROUTER, ipv6::ALL_NODES)
    }

    fn parse(bytes: &[u8]) -> Option<Query> {
        Query::parse(bytes, ROUTER, ipv6::ALL_NODES)
    }

    #[test]
    fn test_queries_of_both_versions() {
        let any = Ipv6Addr::UNSPECIFIED;
        let second = Duration::from_secs(1);
        let v1 = parse(&query(1000, any, &[])).unwrap();
        assert_eq!(v1, Query { group: None, within: second, is_v1: true });
        let group = ipv6::solicited_node(ROUTER);
        let v2 = parse(&query(1000, group, &[2, 125, 0, 0])).unwrap();
        assert_eq!(v2, Query { group: Some(group), within: second, is_v1: false });
        // 1001 with exponent 1: (0x1000 + 0x100) << 4.
        let long = parse(&query(0x9100, any, &[2, 125, 0, 0])).unwrap();
        assert_eq!(long.within, Duration::from_millis(0x1100 << 4));
    }

    #[test]
    fn test_router_alert_may_follow_its_padding() {
        let mut bytes = query(1000, Ipv6Addr::UNSPECIFIED, &[]);
        bytes[2..8].copy_from_slice(&[1, 0, 5, 2, 0, 0]);
        assert!(parse(&bytes).is_some());
        bytes[2..8].copy_from_slice(&[1, 4, 0, 0, 0, 0]);
        assert_eq!(parse(&bytes), None, "no router alert");
    }

    #[test]
    fn test_malformed_queries_are_none() {
        let good = query(1000, Ipv6Addr::UNSPECIFIED, &[2, 125, 0, 0]);
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]), None, "{len} bytes");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(parse(&bad), None, "byte {at}");
        }
        let between = query(1000, Ipv6Addr::UNSPECIFIED, &[0, 0]);
        assert_eq!(parse(&between), None, "neither version 1 nor 2");
    }

    #[test]
    fn test_reports_have_a_valid_checksum_and_all_groups() {
        let groups: Vec<_> = (1..=50).map(|n| ipv6::solicited_node((n << 64 | n).into())).collect();
        let bytes = report(ROUTER, &groups, true);
        assert_eq!(bytes.len(), 8 + 8 + 20 * MAX_GROUPS);
        assert!(ipv6::HEADER_LEN + bytes.len() <= usize::from(ipv6::MIN_MTU));
        let len = u32::try_from(bytes.len() - 8).unwrap();
        let sum = ipv6::pseudo_header(ipv6::ICMP, ROUTER, ALL_V2_ROUTERS, len);
        assert!(sum.plus(heddle_base::Sum::of(&bytes[8..])).is_valid());
        assert_eq!(bytes[14..16], [0, 48]);
        assert_eq!(bytes[16..20], [TO_EXCLUDE, 0, 0, 0]);
        assert_eq!(bytes[20..36], groups[0].octets());
        assert_eq!(report(ROUTER, &groups[..1], false)[16], IS_EXCLUDE);
        let v1 = report_v1(ROUTER, groups[0]);
        assert_eq!((v1.len(), v1[8]), (32, REPORT_V1));
    }
}
