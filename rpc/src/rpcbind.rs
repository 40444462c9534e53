//! rpcbind (RFC 1833), which reports the addresses of programs: its entries in the form for
//! RPC-over-RDMA (RFC 8166 section 9, draft section 9), and a program that answers from a list of
//! entries.
//!
//! An entry states an address by a *netid*, which names the transport, and a *universal address*,
//! which is the address and port as text (RFC 5665 section 5.2.3).

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use heddle_rpcrdma::xdr;

use crate::body::{Body, TooLong};
use crate::server::{Program, Refusal, Repeat, Request};

/// The program number of rpcbind.
pub const PROGRAM: u32 = 100_000;
/// The port of rpcbind.
pub const PORT: u16 = 111;
/// The port of NFS over RDMA (RFC 8267).
pub const NFS_PORT: u16 = 20_049;

/// The procedures of versions 3 and 4.
pub mod procedure {
    /// Adds an entry.
    pub const SET: u32 = 1;
    /// Removes an entry.
    pub const UNSET: u32 = 2;
    /// Returns the address of a program.
    pub const GETADDR: u32 = 3;
    /// Returns all entries.
    pub const DUMP: u32 = 4;
}

/// Length in bytes of the longest text that is read in an entry. The RFC sets no limit.
const TEXT_MAX: u32 = 1024;

/// The address of one version of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the program.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Netid, which names the transport.
    pub netid: String,
    /// Universal address, in the form of the transport.
    pub address: String,
    /// Name of the entry's creator; any text.
    pub owner: String,
}

impl Entry {
    /// Creates the entry of a program over RDMA at this address.
    pub fn rdma(program: u32, version: u32, address: SocketAddr) -> Entry {
        let netid = netid(address.ip()).to_owned();
        let (address, owner) = (universal_address(address), String::new());
        Entry { program, version, netid, address, owner }
    }

    /// Appends the entry to arguments or results.
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

    /// Decodes an entry. Bytes that are not UTF-8 are replaced, since no netid or address contains
    /// such bytes.
    ///
    /// # Errors
    /// Returns the fault in the bytes.
    pub fn decode(r: &mut crate::BodyReader<'_>) -> Result<Entry, xdr::Error> {
        let (program, version) = (r.u32()?, r.u32()?);
        let [netid, address, owner] = [text(r)?, text(r)?, text(r)?];
        Ok(Entry { program, version, netid, address, owner })
    }
}

fn text(r: &mut crate::BodyReader<'_>) -> Result<String, xdr::Error> {
    Ok(String::from_utf8_lossy(&r.opaque(TEXT_MAX)?.to_vec()).into_owned())
}

/// Returns the netid of RPC-over-RDMA for this kind of address.
pub const fn netid(ip: IpAddr) -> &'static str {
    match ip {
        IpAddr::V4(_) => "rdma",
        IpAddr::V6(_) => "rdma6",
    }
}

/// Returns address and port as text: `10.0.0.1.78.81` is port 20049 of 10.0.0.1.
pub fn universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// Parses a universal address; returns `None` when the text is not one.
pub fn parse_universal_address(text: &str) -> Option<SocketAddr> {
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let byte = |s: &str| {
        let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| s.parse::<u8>().ok()).flatten()
    };
    let port = u16::from_be_bytes([byte(high)?, byte(low)?]);
    let ip = ip.parse().or_else(|_| ip.parse::<Ipv6Addr>().map(IpAddr::V6)).ok()?;
    Some(SocketAddr::new(ip, port))
}

/// The rpcbind program, for a server whose owner lists the entries: the program answers queries,
/// and lets no peer change the entries. It speaks versions 3 and 4, without their other procedures.
#[derive(Clone, Debug, Default)]
pub struct Rpcbind {
    /// The entries that the owner lists.
    pub entries: Vec<Entry>,
}

impl Rpcbind {
    /// The versions that the program speaks.
    pub const VERSIONS: std::ops::RangeInclusive<u32> = 3..=4;

    fn carry_out(&self, request: &Request) -> Result<Body, Refusal> {
        let (mut r, mut results) = (request.arguments.reader(), Body::new());
        match request.procedure.procedure {
            procedure::SET | procedure::UNSET => {
                Entry::decode(&mut r)?;
                // FALSE reports that the change was not made.
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

    /// Returns the address of a program for the requested transport. If the requested version is
    /// missing, returns the address of another version, so that the program itself can report its
    /// versions. Returns an empty string when the program is missing.
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
