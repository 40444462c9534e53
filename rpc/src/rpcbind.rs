//! rpcbind (RFC 1833), which tells where programs are: its entries, as RPC-over-RDMA has them (RFC 8166
//! section 9, draft section 9), and a program that answers from a list of them.
//!
//! Where an entry is, is said by a *netid*, which names the transport, and a *universal address*, which is
//! address and port in text (RFC 5665 section 5.2.3).

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use heddle_rpcrdma::xdr;

use crate::body::{Body, TooLong};
use crate::server::{Program, Refusal, Repeat, Request};

/// The number of rpcbind.
pub const PROGRAM: u32 = 100_000;
/// The port of rpcbind.
pub const PORT: u16 = 111;
/// The port of NFS over RDMA (RFC 8267).
pub const NFS_PORT: u16 = 20_049;

/// Procedures of versions 3 and 4.
pub mod procedure {
    /// Adds an entry.
    pub const SET: u32 = 1;
    /// Takes one away.
    pub const UNSET: u32 = 2;
    /// Where a program is.
    pub const GETADDR: u32 = 3;
    /// All entries.
    pub const DUMP: u32 = 4;
}

/// Octets of the longest text in an entry that is read. The RFC has no limit.
const TEXT_MAX: u32 = 1024;

/// Where a version of a program is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The transport.
    pub netid: String,
    /// Where, as the transport has it.
    pub address: String,
    /// Who has made the entry; any text.
    pub owner: String,
}

impl Entry {
    /// That of a program over RDMA at this address.
    pub fn rdma(program: u32, version: u32, address: SocketAddr) -> Entry {
        let netid = netid(address.ip()).to_owned();
        let (address, owner) = (universal_address(address), String::new());
        Entry { program, version, netid, address, owner }
    }

    /// Puts it at the end of arguments or results.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn encode(&self, body: &mut Body) -> Result<(), TooLong> {
        body.u32(self.program)?.u32(self.version)?;
        for text in [&self.netid, &self.address, &self.owner] {
            body.opaque(text.as_bytes())?;
        }
        Ok(())
    }

    /// Reads one. Octets that are no UTF-8 are replaced: they are nobody's netid or address.
    ///
    /// # Errors
    /// What is wrong with the octets.
    pub fn decode(r: &mut crate::BodyReader<'_>) -> Result<Entry, xdr::Error> {
        let (program, version) = (r.u32()?, r.u32()?);
        let [netid, address, owner] = [text(r)?, text(r)?, text(r)?];
        Ok(Entry { program, version, netid, address, owner })
    }
}

fn text(r: &mut crate::BodyReader<'_>) -> Result<String, xdr::Error> {
    Ok(String::from_utf8_lossy(&r.opaque(TEXT_MAX)?.to_vec()).into_owned())
}

/// The netid of RPC-over-RDMA with such addresses.
pub const fn netid(ip: IpAddr) -> &'static str {
    match ip {
        IpAddr::V4(_) => "rdma",
        IpAddr::V6(_) => "rdma6",
    }
}

/// Address and port as text: `10.0.0.1.78.81` is port 20049 of 10.0.0.1.
pub fn universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// The address and port that a text says; `None` when it says none.
pub fn parse_universal_address(text: &str) -> Option<SocketAddr> {
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let octet = |s: &str| {
        let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| s.parse::<u8>().ok()).flatten()
    };
    let port = u16::from_be_bytes([octet(high)?, octet(low)?]);
    let ip = ip.parse().or_else(|_| ip.parse::<Ipv6Addr>().map(IpAddr::V6)).ok()?;
    Some(SocketAddr::new(ip, port))
}

/// The program, for a server whose owner says what there is: it answers where programs are, and lets no
/// peer change that. Versions 3 and 4, without what they have besides.
#[derive(Clone, Debug, Default)]
pub struct Rpcbind {
    /// What there is.
    pub entries: Vec<Entry>,
}

impl Rpcbind {
    /// The versions that it speaks.
    pub const VERSIONS: std::ops::RangeInclusive<u32> = 3..=4;

    fn carry_out(&self, request: &Request) -> Result<Body, Refusal> {
        let (mut r, mut results) = (request.arguments.reader(), Body::new());
        match request.procedure.procedure {
            procedure::SET | procedure::UNSET => {
                Entry::decode(&mut r)?;
                // FALSE: not done.
                results.u32(0)?;
            }
            procedure::GETADDR => {
                let asked = Entry::decode(&mut r)?;
                results.opaque(self.address(&asked).as_bytes())?;
            }
            procedure::DUMP => {
                for entry in &self.entries {
                    results.u32(1)?;
                    entry.encode(&mut results)?;
                }
                results.u32(0)?;
            }
            _ => return Err(Refusal::ProcUnavail),
        }
        r.finish()?;
        Ok(results)
    }

    /// Where a program is, by the transport that is asked for; of another version when there is not that
    /// one: the program itself then says which there are. Nothing when it is not there.
    fn address(&self, asked: &Entry) -> &str {
        let is = |e: &&Entry| e.program == asked.program && e.netid == asked.netid;
        let all = || self.entries.iter().filter(is);
        let exact = all().find(|e| e.version == asked.version);
        exact.or_else(|| all().next()).map_or("", |e| &e.address)
    }
}

impl Program for Rpcbind {
    fn call(&mut self, request: Request) {
        let outcome = self.carry_out(&request);
        request.reply(outcome);
    }

    fn repeat(&self, _: heddle_rpcrdma::rpc::Procedure) -> Repeat {
        Repeat::Always
    }
}
