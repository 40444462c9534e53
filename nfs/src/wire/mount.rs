//! MOUNT version 3 (RFC 1813 Appendix I).

use heddle_rpcrdma::rpc::Procedure;
use heddle_rpcrdma::xdr::{self, Fault, Reader};

use super::{Handle, NAME_MAX, Opaque, PATH_MAX, Xdr};

/// The RPC program number of MOUNT.
pub const PROGRAM: u32 = 100_005;
/// The version of MOUNT that belongs to NFS version 3.
pub const VERSION: u32 = 3;

const fn of(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: VERSION, procedure }
}

/// Does nothing: no arguments, no results.
pub const NULL: Procedure = of(0);
/// Returns the handle of a path.
pub const MNT: Procedure = of(1);
/// Lists the clients that have mounted a path, and the paths.
pub const DUMP: Procedure = of(2);
/// Reports that the client has unmounted a path.
pub const UMNT: Procedure = of(3);
/// Reports that the client has unmounted all paths.
pub const UMNTALL: Procedure = of(4);
/// Lists the paths that clients can mount.
pub const EXPORT: Procedure = of(5);

/// The names of the procedures, at the index of their numbers.
pub const NAMES: [&str; 6] = ["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"];

/// A path (`dirpath`).
pub type DirPath<'a> = Opaque<'a, PATH_MAX>;
/// A name of a host or a group (`name`).
pub type HostName<'a> = Opaque<'a, NAME_MAX>;

/// The results of MNT: a handle, and the flavors of authentication with which clients can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The handle of the mounted directory.
    pub handle: Handle,
    /// The numbers of the flavors, the preferred one first.
    pub flavors: Vec<u32>,
}

/// An entry in the results of EXPORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported<'a> {
    /// The path of the exported directory.
    pub path: DirPath<'a>,
    /// The clients that may mount the directory; an empty list admits every client.
    pub groups: Vec<HostName<'a>>,
}

/// The highest number of groups of one directory that the reader accepts.
const GROUPS_MAX: u32 = 4096;

impl<'a> Xdr<'a> for Exported<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Exported<'a>, xdr::Error> {
        Ok(Exported { path: Xdr::get(r)?, groups: list(r, GROUPS_MAX)? })
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.path.put(out);
        for group in &self.groups {
            true.put(out);
            group.put(out);
        }
        false.put(out);
    }
}

/// The highest number of flavors that the reader accepts.
const FLAVORS_MAX: u32 = 64;

impl Xdr<'_> for Mounted {
    fn get(r: &mut Reader<'_>) -> Result<Mounted, xdr::Error> {
        let handle = Handle::get(r)?;
        let flavors = (0..r.count(FLAVORS_MAX)?).map(|_| r.u32()).collect::<Result<_, _>>()?;
        Ok(Mounted { handle, flavors })
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.handle.put(out);
        u32::try_from(self.flavors.len()).unwrap_or(0).put(out);
        self.flavors.iter().for_each(|flavor| flavor.put(out));
    }
}

/// Reads a list whose entries are of type `T`.
///
/// # Errors
/// The fault in the bytes; a fault if the list has more than `max` entries.
pub fn list<'a, T: Xdr<'a>>(r: &mut Reader<'a>, max: u32) -> Result<Vec<T>, xdr::Error> {
    let mut all = Vec::new();
    for len in 0.. {
        let at = r.at();
        let Some(entry) = Xdr::get(r)? else { break };
        if len == max {
            return Err(xdr::Error {
                at,
                fault: Fault::Length { len: max.saturating_add(1), max },
            });
        }
        all.push(entry);
    }
    Ok(all)
}
