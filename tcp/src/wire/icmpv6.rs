//! The ICMPv6 messages that the stack understands (RFC 4443), neighbor and router discovery among
//! them (RFC 4861), by smoltcp's packet types.

use arrayvec::ArrayVec;
use core::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::{
    Icmpv6Message, Icmpv6Packet, NdiscNeighborFlags, NdiscOption, NdiscOptionType,
    NdiscPrefixInfoFlags,
};

use super::icmpv4::Quoted;
use super::{MacAddr, be16, be32, ipv6};
use crate::SeqNumber;

/// A received ICMPv6 message, checksum verified.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// A packet of ours did not reach its destination.
    Unreachable {
        /// The reason, as on the wire (RFC 4443 section 3.1).
        code: u8,
        /// The quoted part of the packet, when it was TCP.
        quoted: Option<Quoted>,
    },
    /// A packet of ours was larger than a link on its way carries.
    TooBig {
        /// The link's MTU.
        mtu: u32,
        /// The quoted part of the packet, when it was TCP.
        quoted: Option<Quoted>,
    },
    /// A packet of ours outlived its hop limit.
    TimeExceeded {
        /// The quoted part of the packet, when it was TCP.
        quoted: Option<Quoted>,
    },
    /// A question for the hardware address of `target`.
    NeighborSolicit {
        /// The address asked for.
        target: Ipv6Addr,
        /// The hardware address of the host that asks, if the message has it.
        source: Option<MacAddr>,
    },
    /// A statement about the hardware address of `target`.
    NeighborAdvert {
        /// The address that the statement is about.
        target: Ipv6Addr,
        /// The hardware address of `target`, if the message has it.
        station: Option<MacAddr>,
        /// True if the sender is a router.
        router: bool,
        /// True if the message answers a question of its receiver.
        solicited: bool,
        /// True if the hardware address is to replace what the receiver knows.
        overrides: bool,
    },
    /// A router's statement about itself and its link.
    RouterAdvert(RouterAdvert),
    /// Any other message.
    Other,
}

/// A router's statement about itself and its link (RFC 4861 section 4.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterAdvert {
    /// The hop limit for packets of the link's hosts; 0 says nothing.
    pub hop_limit: u8,
    /// For how many seconds the router is a default router; 0: it is none.
    pub lifetime: u16,
    /// The router's hardware address, if the message has it.
    pub station: Option<MacAddr>,
    /// The link's MTU, if the message has it.
    pub mtu: Option<u32>,
    /// The first prefixes of the message.
    pub prefixes: ArrayVec<Prefix, MAX_PREFIXES>,
}

/// The most prefixes that the parser takes from one message.
pub const MAX_PREFIXES: usize = 8;

/// A prefix that a router tells (RFC 4861 section 4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The prefix; bits beyond `len` mean nothing.
    pub addr: Ipv6Addr,
    /// Bits of the prefix, at most 128.
    pub len: u8,
    /// True if hosts with the prefix are on the link.
    pub on_link: bool,
    /// True if hosts may make addresses of the prefix (RFC 4862).
    pub autonomous: bool,
    /// For how many seconds the prefix is valid; `u32::MAX`: for ever.
    pub valid: u32,
    /// For how many seconds new connections may use addresses of the prefix.
    pub preferred: u32,
}

/// Type of an echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Types of the messages of neighbor and router discovery, redirects among them.
pub const DISCOVERY: core::ops::RangeInclusive<u8> = 133..=137;
/// The hop limit of messages of neighbor discovery: no router has forwarded a message that arrives
/// with it (RFC 4861 section 11.2).
pub const HOP_LIMIT: u8 = 255;

const ROUTER_SOLICIT: u8 = 133;
const NEIGHBOR_SOLICIT: u8 = 135;
const NEIGHBOR_ADVERT: u8 = 136;
const SOURCE_STATION: u8 = 1;
const TARGET_STATION: u8 = 2;
/// Bytes before the options.
const NEIGHBOR_LEN: usize = 24;
const ROUTER_ADVERT_LEN: usize = 16;

impl<'a> Message<'a> {
    /// Reads a message from `src` to `dst`. Returns `None` when the message is too short, its
    /// checksum is wrong, or an option of a discovery message is malformed (RFC 4861 sections 6.1
    /// and 7.1). The caller checks addresses and the hop limit.
    pub fn parse(bytes: &'a [u8], src: Ipv6Addr, dst: Ipv6Addr) -> Option<Message<'a>> {
        let len = u32::try_from(bytes.len()).ok()?;
        let sum = ipv6::pseudo_header(ipv6::ICMP, src, dst, len);
        if bytes.len() < 8 || !sum.plus(heddle_base::Sum::of(bytes)).is_valid() {
            return None;
        }
        // smoltcp refuses types that it does not know, which are no errors.
        let Ok(packet) = Icmpv6Packet::new_checked(bytes) else {
            return (!DISCOVERY.contains(&bytes[0])).then_some(Message::Other);
        };
        let quote = || quote(&bytes[8..]);
        Some(match packet.msg_type() {
            Icmpv6Message::EchoRequest => Message::EchoRequest {
                ident: packet.echo_ident(),
                seq: packet.echo_seq_no(),
                data: &bytes[8..],
            },
            Icmpv6Message::DstUnreachable => {
                Message::Unreachable { code: packet.msg_code(), quoted: quote() }
            }
            Icmpv6Message::PktTooBig => {
                Message::TooBig { mtu: packet.pkt_too_big_mtu(), quoted: quote() }
            }
            Icmpv6Message::TimeExceeded => Message::TimeExceeded { quoted: quote() },
            Icmpv6Message::NeighborSolicit => {
                let mut source = None;
                for option in Options(bytes.get(NEIGHBOR_LEN..)?) {
                    let option = option?;
                    if option.option_type() == NdiscOptionType::SourceLinkLayerAddr {
                        source = station(&option);
                    }
                }
                Message::NeighborSolicit { target: packet.target_addr(), source }
            }
            Icmpv6Message::NeighborAdvert => {
                let mut told = None;
                for option in Options(bytes.get(NEIGHBOR_LEN..)?) {
                    let option = option?;
                    if option.option_type() == NdiscOptionType::TargetLinkLayerAddr {
                        told = station(&option);
                    }
                }
                let flags = packet.neighbor_flags();
                Message::NeighborAdvert {
                    target: packet.target_addr(),
                    station: told,
                    router: flags.contains(NdiscNeighborFlags::ROUTER),
                    solicited: flags.contains(NdiscNeighborFlags::SOLICITED),
                    overrides: flags.contains(NdiscNeighborFlags::OVERRIDE),
                }
            }
            Icmpv6Message::RouterAdvert => {
                let options = bytes.get(ROUTER_ADVERT_LEN..)?;
                let lifetime = u16::try_from(packet.router_lifetime().secs()).unwrap_or(u16::MAX);
                let hop_limit = packet.current_hop_limit();
                let told = RouterAdvert { hop_limit, lifetime, ..RouterAdvert::default() };
                Message::RouterAdvert(told.with_options(options)?)
            }
            _ => Message::Other,
        })
    }
}

impl RouterAdvert {
    fn with_options(mut self, options: &[u8]) -> Option<RouterAdvert> {
        for option in Options(options) {
            let option = option?;
            match option.option_type() {
                NdiscOptionType::SourceLinkLayerAddr => self.station = station(&option),
                NdiscOptionType::Mtu => self.mtu = Some(option.mtu()),
                NdiscOptionType::PrefixInformation => {
                    let flags = option.prefix_flags();
                    let seconds =
                        |d: smoltcp::time::Duration| u32::try_from(d.secs()).unwrap_or(u32::MAX);
                    // Prefixes beyond the room of the list do not count.
                    let _ = self.prefixes.try_push(Prefix {
                        addr: option.prefix(),
                        len: option.prefix_len().min(128),
                        on_link: flags.contains(NdiscPrefixInfoFlags::ON_LINK),
                        autonomous: flags.contains(NdiscPrefixInfoFlags::ADDRCONF),
                        valid: seconds(option.valid_lifetime()),
                        preferred: seconds(option.preferred_lifetime()),
                    });
                }
                _ => {}
            }
        }
        Some(self)
    }
}

/// The options of a discovery message; `None` for the first that is malformed.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Option<NdiscOption<&'a [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Ok(option) = NdiscOption::new_checked(self.0) else {
            self.0 = &[];
            return Some(None);
        };
        // `new_checked` has found as many bytes.
        let (this, rest) = self.0.split_at_checked(8 * usize::from(option.data_len()))?;
        self.0 = rest;
        Some(Some(NdiscOption::new_unchecked(this)))
    }
}

/// Returns the Ethernet address of an option that holds one, if a station can have it.
fn station(option: &NdiscOption<&[u8]>) -> Option<MacAddr> {
    let bytes = option.link_layer_addr();
    let mac = MacAddr(*bytes.as_bytes().first_chunk()?);
    mac.is_station().then_some(mac)
}

/// Reads the packet that an error quotes, if it is TCP without extension headers.
fn quote(bytes: &[u8]) -> Option<Quoted> {
    let h = bytes.first_chunk::<{ ipv6::HEADER_LEN }>()?;
    if h[0] >> 4 != 6 || h[6] != ipv6::TCP {
        return None;
    }
    let tcp = bytes[ipv6::HEADER_LEN..].first_chunk::<8>()?;
    let addr = |at: usize| {
        let octets: [u8; 16] = *h[at..].first_chunk()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    Some(Quoted {
        src: addr(8)?,
        dst: addr(24)?,
        src_port: be16(tcp, 0),
        dst_port: be16(tcp, 2),
        seq: SeqNumber(be32(tcp, 4)),
        total_len: u32::from(be16(h, 4)) + 40,
    })
}

/// Returns the segment that an error quotes, for the kinds of error that [`Message`] distinguishes.
/// The function verifies neither the checksum nor anything else of the message: it serves callers
/// that must know whom the message concerns before they read it.
pub fn quoted(bytes: &[u8]) -> Option<Quoted> {
    match (Icmpv6Message::from(*bytes.first()?), bytes.get(8..)?) {
        (
            Icmpv6Message::DstUnreachable | Icmpv6Message::PktTooBig | Icmpv6Message::TimeExceeded,
            packet,
        ) => quote(packet),
        _ => None,
    }
}

/// Returns the echo reply to a request, from `src` to `dst`.
pub fn echo_reply(src: Ipv6Addr, dst: Ipv6Addr, ident: u16, seq: u16, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 8 + data.len()];
    let mut packet = Icmpv6Packet::new_unchecked(&mut out[..]);
    packet.set_msg_type(Icmpv6Message::EchoReply);
    packet.set_echo_ident(ident);
    packet.set_echo_seq_no(seq);
    packet.payload_mut().copy_from_slice(data);
    packet.fill_checksum(&src, &dst);
    out
}

/// Returns the question for the hardware address of `target`, from `src` to `dst`. The question
/// tells our own address `mac`, unless `src` is unspecified (RFC 4861 section 4.3).
pub fn neighbor_solicit(src: Ipv6Addr, dst: Ipv6Addr, target: Ipv6Addr, mac: MacAddr) -> Vec<u8> {
    let tells = (!src.is_unspecified()).then_some((SOURCE_STATION, mac));
    sealed(NEIGHBOR_SOLICIT, 0, &target.octets(), tells, src, dst)
}

/// Returns the statement that `target` has the hardware address `mac`, from `src` to `dst`;
/// `solicited` where it answers a question of the single host `dst`.
pub fn neighbor_advert(
    src: Ipv6Addr,
    dst: Ipv6Addr,
    target: Ipv6Addr,
    mac: MacAddr,
    solicited: bool,
) -> Vec<u8> {
    let flags = if solicited {
        NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE
    } else {
        NdiscNeighborFlags::OVERRIDE
    };
    let tells = Some((TARGET_STATION, mac));
    sealed(NEIGHBOR_ADVERT, flags.bits(), &target.octets(), tells, src, dst)
}

/// Returns the question for routers, from `src` to `dst`.
pub fn router_solicit(src: Ipv6Addr, dst: Ipv6Addr, mac: MacAddr) -> Vec<u8> {
    let tells = (!src.is_unspecified()).then_some((SOURCE_STATION, mac));
    sealed(ROUTER_SOLICIT, 0, &[], tells, src, dst)
}

/// Returns a discovery message with its checksum: `flags` is the first byte after the checksum, and
/// `station` an option.
fn sealed(
    kind: u8,
    flags: u8,
    rest: &[u8],
    station: Option<(u8, MacAddr)>,
    src: Ipv6Addr,
    dst: Ipv6Addr,
) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    out.extend_from_slice(rest);
    if let Some((option, mac)) = station {
        out.extend_from_slice(&[option, 1]);
        out.extend_from_slice(&mac.0);
    }
    Icmpv6Packet::new_unchecked(&mut out[..]).fill_checksum(&src, &dst);
    out
}

#[cfg(test)]
mod tests;
