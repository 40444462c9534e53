//! The hash by which ports spread received segments (Microsoft, "RSS hashing functions"; DPDK's
//! `rte_thash` computes the same).
//!
//! Each set bit of the input adds (by exclusive or) the 32 bits of the key that start at its place.
//! The sum is linear, so the code looks up the contribution of four bits in a table made once from
//! the key. An IPv4 segment costs 24 loads out of 1.5 KiB for its addresses and ports, which is
//! small enough to stay in a processor's first cache beside other data. Linearity also gives the
//! contribution of one part of the input without the rest: see [`Toeplitz::of_port`].

use core::net::{IpAddr, SocketAddr};

/// Bytes of the longest input, two IPv6 addresses and two ports.
const MAX_INPUT: usize = 36;
/// Bytes of the shortest key: one bit further for each bit of input, 32 bits at a time.
pub const MIN_KEY: usize = MAX_INPUT + 4;

/// The contributions of the two halves of a byte, by their value.
type Byte = [[u32; 16]; 2];

/// The hash for one key.
pub(super) struct Toeplitz(Box<[Byte; MAX_INPUT]>);

impl Toeplitz {
    /// Returns the hash of `key`, of which the first [`MIN_KEY`] bytes matter; `None` when the key
    /// has fewer.
    pub(super) fn new(key: &[u8]) -> Option<Toeplitz> {
        let key = key.first_chunk::<MIN_KEY>()?;
        let bit = |at: usize| u32::from(key[at / 8] >> (7 - at % 8) & 1);
        let window = |at: usize| (0..32).fold(0, |w, i| w << 1 | bit(at + i));
        let mut rows = Box::new([[[0; 16]; 2]; MAX_INPUT]);
        for (byte, halves) in rows.iter_mut().enumerate() {
            for (half, sums) in halves.iter_mut().enumerate() {
                for (value, sum) in sums.iter_mut().enumerate() {
                    let first = 8 * byte + 4 * half;
                    *sum = (0..4)
                        .filter(|i| value >> (3 - i) & 1 != 0)
                        .fold(0, |s, i| s ^ window(first + i));
                }
            }
        }
        Some(Toeplitz(rows))
    }

    /// Returns the hash of up to [`MAX_INPUT`] bytes.
    #[inline(always)]
    fn of(&self, input: &[u8]) -> u32 {
        self.0.iter().zip(input).fold(0, |sum, (row, &byte)| sum ^ add(row, byte))
    }

    /// Returns the hash of a segment over IPv4: addresses and ports as in its headers, the sender's
    /// first.
    #[inline]
    pub(super) fn of_v4(&self, input: &[u8; 12]) -> u32 {
        self.of(input)
    }

    /// Returns where the destination port lies in the input, for addresses of the family of `ip`.
    pub(super) fn port_at(ip: IpAddr) -> usize {
        if ip.is_ipv4() { 10 } else { 34 }
    }

    /// Returns the contribution of a port at `at` in the input. The contribution adds to the hash
    /// of the same input with zeros there.
    #[inline]
    pub(super) fn of_port(&self, at: usize, port: u16) -> u32 {
        let [hi, lo] = port.to_be_bytes();
        add(&self.0[at], hi) ^ add(&self.0[at + 1], lo)
    }

    /// Returns the hash of a segment from `src` to `dst` of either family; `None` when the families
    /// differ.
    pub(super) fn of_segment(&self, src: SocketAddr, dst: SocketAddr) -> Option<u32> {
        let mut input = [0; MAX_INPUT];
        let addrs = match (src, dst) {
            (SocketAddr::V4(s), SocketAddr::V4(d)) => {
                input[..4].copy_from_slice(&s.ip().octets());
                input[4..8].copy_from_slice(&d.ip().octets());
                8
            }
            (SocketAddr::V6(s), SocketAddr::V6(d)) => {
                input[..16].copy_from_slice(&s.ip().octets());
                input[16..32].copy_from_slice(&d.ip().octets());
                32
            }
            _ => return None,
        };
        input[addrs..addrs + 2].copy_from_slice(&src.port().to_be_bytes());
        input[addrs + 2..addrs + 4].copy_from_slice(&dst.port().to_be_bytes());
        Some(self.of(&input[..addrs + 4]))
    }
}

#[inline(always)]
fn add(row: &Byte, byte: u8) -> u32 {
    row[0][usize::from(byte >> 4)] ^ row[1][usize::from(byte & 15)]
}

#[cfg(test)]
mod tests {
    use super::super::tests::KEY;
    use super::*;
    use proptest::prelude::*;

    /// The values that Microsoft publishes for verifying an implementation: destination, source,
    /// hash.
    const PUBLISHED: [(&str, &str, u32); 8] = [
        ("161.142.100.80:1766", "66.9.149.187:2794", 0x51cc_c178),
        ("65.69.140.83:4739", "199.92.111.2:14230", 0xc626_b0ea),
        ("12.22.207.184:38024", "24.19.198.95:12898", 0x5c2b_394a),
        ("209.142.163.6:2217", "38.27.205.30:48228", 0xafc7_327f),
        ("202.188.127.2:1303", "153.39.163.191:44251", 0x10e8_28a2),
        ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x4020_7d3d),
        ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0xdde5_1bbf),
        (
            "[fe80::200:f8ff:fe21:67cf]:38024",
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            0x02d1_feef,
        ),
    ];

    #[test]
    fn test_toeplitz_hash_matches_published_values() {
        let hash = Toeplitz::new(&KEY).unwrap();
        for (dst, src, value) in PUBLISHED {
            let got = hash.of_segment(src.parse().unwrap(), dst.parse().unwrap());
            assert_eq!(got, Some(value), "{src} to {dst}");
        }
        let six = "[::1]:1".parse().unwrap();
        assert_eq!(hash.of_segment("10.0.0.1:1".parse().unwrap(), six), None);
    }

    #[test]
    fn test_toeplitz_key_that_is_too_short_is_refused() {
        assert!(Toeplitz::new(&KEY[..39]).is_none() && Toeplitz::new(&KEY).is_some());
        let (long, seven) = ([&KEY[..], &[0xff; 12]].concat(), "[::7]:7".parse().unwrap());
        let of = |key: &[u8]| Toeplitz::new(key).unwrap().of_segment(seven, seven);
        assert_eq!(of(&long), of(&KEY), "of 52 bytes the last 12 are for longer inputs");
    }

    /// Computes the hash by its definition, bit by bit.
    fn by_definition(key: &[u8], input: &[u8]) -> u32 {
        let mut sum = 0;
        for at in (0..input.len() * 8).filter(|at| input[at / 8] & 0x80 >> (at % 8) != 0) {
            for i in (0..32).filter(|i| key[(at + i) / 8] & 0x80 >> ((at + i) % 8) != 0) {
                sum ^= 0x8000_0000 >> i;
            }
        }
        sum
    }

    proptest! {
        #[test]
        fn test_toeplitz_tables_match_the_definition(key: [u8; 40], input: [u8; 12], port: u16) {
            let hash = Toeplitz::new(&key).unwrap();
            prop_assert_eq!(hash.of_v4(&input), by_definition(&key, &input));
            let (mut without, mut with) = (input, input);
            without[10..].fill(0);
            with[10..].copy_from_slice(&port.to_be_bytes());
            prop_assert_eq!(hash.of_v4(&without) ^ hash.of_port(10, port), hash.of_v4(&with));
        }
    }
}
