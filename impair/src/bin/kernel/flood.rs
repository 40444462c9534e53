//! Forged packets against a server, from an attacker who sees none of its packets.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4};
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
/// The kernel takes the IP header from the caller, with whatever source address.
const RAW: i32 = 255;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// The MTU that forged ICMP errors report.
const MTU: u16 = 552;
/// The time of which the packets leave at once.
const SLICE: Duration = Duration::from_millis(1);

/// The kinds of packets. The first three come from forged addresses of the server's subnet (the first
/// 16 bits of its address), all others pretend to belong to the connection of `--from`.
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
    to: SocketAddrV4,
    /// The client of the connection that the packets pretend to belong to
    #[arg(long, value_name = "ADDR:PORT")]
    from: SocketAddrV4,
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
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))
        .map_err(|e| format!("no raw socket: {e} (needs root)"))?;
    let to = SocketAddrV4::new(*plan.to.ip(), 0).into();
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

/// Returns another address of the server's subnet.
fn neighbor(server: Ipv4Addr, random: &mut Random) -> Ipv4Addr {
    let [a, b, ..] = server.octets();
    let [_, _, c, d] = random.next_u32().to_be_bytes();
    // Addresses of the hosts themselves are all below 10.77.1.0 in this lab.
    Ipv4Addr::new(a, b, c.max(1), d.clamp(1, 254))
}

/// Returns an IP packet of the plan's kind.
fn packet(plan: &Plan, random: &mut Random) -> Vec<u8> {
    let stranger = || SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let (from, flags, len) = match plan.kind {
        Kind::Syn => (stranger(), SYN, 0),
        Kind::Stray => (stranger(), ACK, 0),
        Kind::Guess => (stranger(), if random.chance(0.5) { SYN } else { ACK }, 0),
        Kind::Reset => (plan.from, RST, 0),
        Kind::InnerSyn => (plan.from, SYN, 0),
        Kind::Fin => (plan.from, FIN | ACK, 0),
        Kind::Data => (plan.from, PSH | ACK, 100),
        Kind::Icmp => return icmp(plan, random),
    };
    let from = if from.ip().is_unspecified() {
        let address = neighbor(*plan.to.ip(), random);
        SocketAddrV4::new(address, port(random))
    } else {
        from
    };
    let segment = segment(from, plan.to, flags, len, random);
    ip(*from.ip(), *plan.to.ip(), TCP, &segment)
}

/// Returns a TCP segment with random numbers.
fn segment(
    from: SocketAddrV4,
    to: SocketAddrV4,
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
    let len = u16::try_from(s.len()).unwrap_or(u16::MAX).to_be_bytes();
    let pseudo = [&from.ip().octets()[..], &to.ip().octets(), &[0, TCP], &len].concat();
    let sum = Sum::of(&pseudo).plus(Sum::of(&s)).complement();
    s[16..18].copy_from_slice(&sum.to_be_bytes());
    s
}

/// Returns an ICMP error, "fragmentation needed", from a random address, about a segment that the
/// server may have sent.
fn icmp(plan: &Plan, random: &mut Random) -> Vec<u8> {
    let quoted = segment(plan.to, plan.from, ACK, 0, random);
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(MTU.to_be_bytes());
    message.extend(&ip(*plan.to.ip(), *plan.from.ip(), TCP, &quoted)[..28]);
    let sum = Sum::of(&message).complement();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ip(neighbor(*plan.to.ip(), random), *plan.to.ip(), ICMP, &message)
}

fn ip(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + payload.len()).unwrap_or(u16::MAX);
    let mut p = vec![0x45, 0];
    p.extend(len.to_be_bytes());
    p.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    p.extend(from.octets());
    p.extend(to.octets());
    let sum = Sum::of(&p).complement();
    p[10..12].copy_from_slice(&sum.to_be_bytes());
    p.extend_from_slice(payload);
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 12), 7471);
    const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 40_000);

    fn packets(kind: Kind) -> Vec<Vec<u8>> {
        let plan = Plan { kind, to: SERVER, from: CLIENT, rate: 1, seconds: 1.0, seed: 1 };
        let mut random = Random::new(&Seed::from_u64(5));
        (0..200).map(|_| packet(&plan, &mut random)).collect()
    }

    #[test]
    fn test_packets_have_valid_checksums_and_go_to_the_server() {
        for &kind in Kind::value_variants() {
            for p in packets(kind) {
                assert!(Sum::of(&p[..20]).is_valid(), "{kind:?}");
                assert_eq!(p[16..20], SERVER.ip().octets());
                assert_eq!(usize::from(u16::from_be_bytes([p[2], p[3]])), p.len());
                let len = u16::try_from(p.len() - 20).unwrap().to_be_bytes();
                let pseudo = [&p[12..20], &[0, TCP], &len].concat();
                let above = match p[9] {
                    ICMP => Sum::of(&p[20..]),
                    _ => Sum::of(&pseudo).plus(Sum::of(&p[20..])),
                };
                assert!(above.is_valid(), "{kind:?}");
            }
        }
    }

    #[test]
    fn test_strangers_are_many_and_no_host_of_the_lab() {
        for kind in [Kind::Syn, Kind::Stray, Kind::Guess] {
            let all = packets(kind);
            let sources: std::collections::BTreeSet<&[u8]> =
                all.iter().map(|p| &p[12..16]).collect();
            assert!(sources.len() > 190);
            assert!(sources.iter().all(|s| s[..2] == [10, 77] && s[2] > 0));
        }
    }

    #[test]
    fn test_other_packets_pretend_to_belong_to_the_connection() {
        let ports = [CLIENT.port().to_be_bytes(), SERVER.port().to_be_bytes()].concat();
        for kind in [Kind::Reset, Kind::InnerSyn, Kind::Fin, Kind::Data] {
            for p in packets(kind) {
                assert_eq!((&p[12..16], &p[20..24]), (&CLIENT.ip().octets()[..], &ports[..]));
            }
        }
        for p in packets(Kind::Icmp) {
            assert_eq!(p[20..22], [3, 4]);
            assert_eq!(
                (&p[40..44], &p[44..48]),
                (&SERVER.ip().octets()[..], &CLIENT.ip().octets()[..])
            );
        }
    }
}
