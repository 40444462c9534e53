//! MOUNT version 3 (RFC 1813 Appendix I).

use heddle_rpcrdma::rpc::Procedure;
use heddle_rpcrdma::xdr::{self, Fault, Reader};

use super::{Handle, NAME_MAX, Opaque, PATH_MAX, Xdr};

/// The program.
pub const PROGRAM: u32 = 100_005;
/// Its version.
pub const VERSION: u32 = 3;

const fn of(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: VERSION, procedure }
}

/// No arguments, no results.
pub const NULL: Procedure = of(0);
/// The handle of a path.
pub const MNT: Procedure = of(1);
/// Who has mounted what.
pub const DUMP: Procedure = of(2);
/// A path is not mounted any more.
pub const UMNT: Procedure = of(3);
/// Nothing is.
pub const UMNTALL: Procedure = of(4);
/// What can be mounted.
pub const EXPORT: Procedure = of(5);

/// Names of the procedures, by their numbers.
pub const NAMES: [&str; 6] = ["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"];

/// A path (`dirpath`).
pub type DirPath<'a> = Opaque<'a, PATH_MAX>;
/// A name of a host or a group (`name`).
pub type HostName<'a> = Opaque<'a, NAME_MAX>;

/// What MNT gives: a handle, and by which flavors of authentication it can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Of the directory.
    pub handle: Handle,
    /// Numbers of flavors, the preferred one first.
    pub flavors: Vec<u32>,
}

/// What EXPORT says of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported<'a> {
    /// Its path.
    pub path: DirPath<'a>,
    /// Whom it is for: everybody, when there is none.
    pub groups: Vec<HostName<'a>>,
}

/// Most groups of a directory that are read.
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

/// Most flavors that are read.
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

/// A list of which each entry is of type `T`.
///
/// # Errors
/// What is wrong with the octets; more than `max` entries.
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
