//! Forged packets against a server, from an attacker who sees none of its packets.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use clap::builder::TypedValueParser;
use heddle_base::{Random, Seed, Sum};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use socket2::{Domain, Protocol, Socket, Type};

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// The kernel takes the IP header from the caller, with whatever source address.
const RAW: i32 = 255;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// The MTUs that forged errors report, of ICMP and of ICMPv6: IPv6 has no smaller one.
const MTU: u16 = 552;
const MTU_V6: u32 = 1280;
/// The time of which the packets leave at once.
const SLICE: Duration = Duration::from_millis(1);

/// The kinds of packets. The first three come from forged addresses of the server's subnet (the first
/// 16 bits of its address, or 64 of IPv6), all others pretend to belong to the connection of `--from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// SYNs from random addresses and ports
    Syn,
    /// ACKs from random addresses and ports, which belong to no connection
    Stray,
    /// SYNs and ACKs by turns, from random addresses and ports: guesses at SYN cookies
    Guess,
    /// RSTs of the connection, with random numbers
    Reset,
    /// SYNs of the connection, with random numbers
    InnerSyn,
    /// FINs of the connection, with random numbers
    Fin,
    /// Data of the connection, with random numbers
    Data,
    /// ICMP errors that quote the connection with random numbers, and report a small MTU
    Icmp,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// The kind of packets
    #[arg(value_enum)]
    kind: Kind,
    /// The server
    #[arg(value_name = "ADDR:PORT")]
    to: SocketAddr,
    /// The client of the connection that the packets pretend to belong to
    #[arg(long, value_name = "ADDR:PORT")]
    from: SocketAddr,
    /// Packets per second
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = rate())]
    rate: u32,
    /// How long to send, at most
    #[arg(long, value_name = "T", default_value_t = 2.0, value_parser = crate::source::seconds)]
    seconds: f64,
    /// The seed of addresses and numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn rate() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=1_000_000)
}

/// Sends as planned, and returns the number of packets.
pub(crate) fn run(plan: &Plan) -> Result<Value, Box<dyn Error>> {
    if plan.to.is_ipv4() != plan.from.is_ipv4() {
        return Err(format!("{} and {} are of two versions of IP", plan.to, plan.from).into());
    }
    let socket = Socket::new(Domain::for_address(plan.to), Type::RAW, Some(Protocol::from(RAW)))
        .map_err(|e| format!("no raw socket: {e} (needs root)"))?;
    let to = SocketAddr::new(plan.to.ip(), 0).into();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut random = Random::new(&Seed::from_u64(plan.seed));
    let (start, time) = (Instant::now(), Duration::from_secs_f64(plan.seconds));
    let (mut sent, mut refused) = (0u64, 0u64);
    while start.elapsed() < time && !stop.load(Ordering::Relaxed) {
        // A packet that is late is sent late: the rate is that of the whole time.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let due = (start.elapsed().as_secs_f64() * f64::from(plan.rate)) as u64;
        while sent + refused < due {
            match socket.send_to(&packet(plan, &mut random), &to) {
                Ok(_) => sent += 1,
                Err(e) if is_full(&e) => refused += 1,
                Err(e) => return Err(e.into()),
            }
        }
        thread::sleep(SLICE);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({ "packets": sent, "refused": refused, "seconds": seconds, "connections": [] }))
}

fn is_full(e: &io::Error) -> bool {
    e.kind() == ErrorKind::WouldBlock
        || e.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

/// Returns a random port above the privileged ones.
fn port(random: &mut Random) -> u16 {
    u16::try_from(1024 + random.below(64_512)).unwrap_or(u16::MAX)
}

/// Returns another address of the server's subnet, of none of the hosts of the lab: theirs are
/// below 10.77.1.0, and below 2^63 within their /64.
fn neighbor(server: IpAddr, random: &mut Random) -> IpAddr {
    match server {
        IpAddr::V4(server) => {
            let [a, b, ..] = server.octets();
            let [_, _, c, d] = random.next_u32().to_be_bytes();
            Ipv4Addr::new(a, b, c.max(1), d.clamp(1, 254)).into()
        }
        IpAddr::V6(server) => {
            let id = 1 << 63 | random.next_u64();
            let subnet = server.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(subnet | u128::from(id)).into()
        }
    }
}

/// Returns an IP packet of the plan's kind.
fn packet(plan: &Plan, random: &mut Random) -> Vec<u8> {
    let (known, flags, len) = match plan.kind {
        Kind::Syn => (false, SYN, 0),
        Kind::Stray => (false, ACK, 0),
        Kind::Guess => (false, if random.chance(0.5) { SYN } else { ACK }, 0),
        Kind::Reset => (true, RST, 0),
        Kind::InnerSyn => (true, SYN, 0),
        Kind::Fin => (true, FIN | ACK, 0),
        Kind::Data => (true, PSH | ACK, 100),
        Kind::Icmp => return icmp(plan, random),
    };
    let from = if known {
        plan.from
    } else {
        let address = neighbor(plan.to.ip(), random);
        SocketAddr::new(address, port(random))
    };
    let segment = segment(from, plan.to, flags, len, random);
    ip(from.ip(), plan.to.ip(), TCP, &segment)
}

/// Returns a TCP segment with random numbers.
fn segment(
    from: SocketAddr,
    to: SocketAddr,
    flags: u8,
    len: usize,
    random: &mut Random,
) -> Vec<u8> {
    let mut s = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    s.extend(random.next_u32().to_be_bytes());
    let ack = if flags & ACK == 0 { 0 } else { random.next_u32() };
    s.extend(ack.to_be_bytes());
    s.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    s.resize(s.len() + len, 0x5a);
    let sum = pseudo(from.ip(), to.ip(), TCP, s.len()).plus(Sum::of(&s)).complement();
    s[16..18].copy_from_slice(&sum.to_be_bytes());
    s
}

/// Returns the sum of the pseudo-header of `len` bytes of payload.
fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> Sum {
    let len = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    let rest = [&len[..], &[0, 0, 0, protocol]].concat();
    Sum::of(&octets(from)).plus(Sum::of(&octets(to))).plus(Sum::of(&rest))
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Returns an ICMP error, "fragmentation needed" or "packet too big", from a random address, about
/// a segment that the server may have sent.
fn icmp(plan: &Plan, random: &mut Random) -> Vec<u8> {
    let (server, client) = (plan.to.ip(), plan.from.ip());
    let quoted = segment(plan.to, plan.from, ACK, 0, random);
    let quoted = ip(server, client, TCP, &quoted);
    let from = neighbor(server, random);
    let (protocol, mut message, sum) = if server.is_ipv4() {
        let mut message = vec![3, 4, 0, 0, 0, 0];
        message.extend(MTU.to_be_bytes());
        message.extend(&quoted[..28]);
        let sum = Sum::of(&message);
        (ICMP, message, sum)
    } else {
        let mut message = vec![2, 0, 0, 0];
        message.extend(MTU_V6.to_be_bytes());
        message.extend(&quoted);
        let sum = pseudo(from, server, ICMPV6, message.len()).plus(Sum::of(&message));
        (ICMPV6, message, sum)
    };
    message[2..4].copy_from_slice(&sum.complement().to_be_bytes());
    ip(from, server, protocol, &message)
}

fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = |header: usize| u16::try_from(header + payload.len()).unwrap_or(u16::MAX);
    let mut p;
    if from.is_ipv4() {
        p = vec![0x45, 0];
        p.extend(len(20).to_be_bytes());
        p.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    } else {
        p = vec![0x60, 0, 0, 0];
        p.extend(len(0).to_be_bytes());
        p.extend([protocol, 64]);
    }
    p.extend(octets(from));
    p.extend(octets(to));
    if from.is_ipv4() {
        let sum = Sum::of(&p).complement();
        p[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    p.extend_from_slice(payload);
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server and its client, over either version of IP.
    const ENDS: [(&str, &str); 2] =
        [("10.77.0.12:7471", "10.77.0.1:40000"), ("[fd77::12]:7471", "[fd77::1]:40000")];

    /// The parts of a packet.
    struct Parts {
        from: IpAddr,
        to: IpAddr,
        protocol: u8,
        payload: Vec<u8>,
    }

    fn parts(p: &[u8]) -> Parts {
        let v6 = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&p[at..at + 16]).unwrap());
        let v4 = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&p[at..at + 4]).unwrap());
        let length = |at: usize| usize::from(u16::from_be_bytes([p[at], p[at + 1]]));
        if p[0] >> 4 == 6 {
            assert_eq!(length(4), p.len() - 40);
            return Parts { from: v6(8), to: v6(24), protocol: p[6], payload: p[40..].to_vec() };
        }
        assert_eq!(length(2), p.len());
        assert!(Sum::of(&p[..20]).is_valid());
        Parts { from: v4(12), to: v4(16), protocol: p[9], payload: p[20..].to_vec() }
    }

    /// Returns packets of this kind over each version of IP, with server and client.
    fn packets(kind: Kind) -> Vec<(SocketAddr, SocketAddr, Vec<Parts>)> {
        let ends = ENDS.iter().map(|(to, from)| (to.parse().unwrap(), from.parse().unwrap()));
        ends.map(|(to, from): (SocketAddr, SocketAddr)| {
            let plan = Plan { kind, to, from, rate: 1, seconds: 1.0, seed: 1 };
            let mut random = Random::new(&Seed::from_u64(5));
            (to, from, (0..200).map(|_| parts(&packet(&plan, &mut random))).collect())
        })
        .collect()
    }

    #[test]
    fn test_packets_have_valid_checksums_and_go_to_the_server() {
        for &kind in Kind::value_variants() {
            for (server, _, packets) in packets(kind) {
                for p in packets {
                    assert_eq!(p.to, server.ip());
                    let sum = match p.protocol {
                        ICMP => Sum::ZERO,
                        other => pseudo(p.from, p.to, other, p.payload.len()),
                    };
                    assert!(sum.plus(Sum::of(&p.payload)).is_valid(), "{kind:?} {server}");
                }
            }
        }
    }

    #[test]
    fn test_strangers_are_many_and_no_host_of_the_lab() {
        for kind in [Kind::Syn, Kind::Stray, Kind::Guess] {
            for (server, _, packets) in packets(kind) {
                let sources: std::collections::BTreeSet<IpAddr> =
                    packets.iter().map(|p| p.from).collect();
                assert!(sources.len() > 190);
                assert!(sources.iter().all(|&from| match (from, server.ip()) {
                    (IpAddr::V4(from), IpAddr::V4(server)) =>
                        from.octets()[..2] == server.octets()[..2] && from.octets()[2] > 0,
                    (IpAddr::V6(from), IpAddr::V6(server)) =>
                        from.segments()[..4] == server.segments()[..4]
                            && from.segments()[4] >= 0x8000,
                    _ => false,
                }));
            }
        }
    }

    #[test]
    fn test_other_packets_pretend_to_belong_to_the_connection() {
        for kind in [Kind::Reset, Kind::InnerSyn, Kind::Fin, Kind::Data] {
            for (server, client, packets) in packets(kind) {
                let ports = [client.port().to_be_bytes(), server.port().to_be_bytes()].concat();
                for p in packets {
                    assert_eq!((p.from, &p.payload[..4]), (client.ip(), &ports[..]));
                }
            }
        }
        for (server, client, packets) in packets(Kind::Icmp) {
            for p in packets {
                let (kind, mtu, addresses) = match p.protocol {
                    ICMP => ([3, 4], [0, 0, 2, 40], 20),
                    _ => ([2, 0], [0, 0, 5, 0], 16),
                };
                assert_eq!((&p.payload[..2], &p.payload[4..8]), (&kind[..], &mtu[..]));
                let quoted = [octets(server.ip()), octets(client.ip())].concat();
                assert_eq!(p.payload[addresses..][..quoted.len()], quoted);
            }
        }
    }
}
