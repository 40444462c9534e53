//! The binding of NFS version 3 (RFC 8267 section 4; RFC 1813 defines the types).
//!
//! Four items may be placed: the data of WRITE, the path of SYMLINK, the data in READ's results and
//! the path in READLINK's results. Each is the last part of its message.

use super::{Entry, Error, Reply, ReplySize, Stream, Table};
use crate::rpc::Procedure;
use crate::xdr::{self, Reader};

/// NFS version 3: the procedures of program 100003.
pub const NFS3: Table<'static> = Table(&[
    entry(0, Reply::Fixed(0)),
    entry(1, Reply::Fixed(STATUS + FATTR)),
    entry(2, Reply::Fixed(STATUS + WCC_DATA)),
    entry(3, Reply::Fixed(STATUS + FH + 2 * POST_OP_ATTR)),
    entry(4, Reply::Fixed(STATUS + POST_OP_ATTR + 4)),
    Entry { results: Some(readlink_results), ..entry(5, Reply::Of(readlink_size)) },
    Entry { results: Some(read_results), ..entry(6, Reply::Of(read_size)) },
    Entry {
        arguments: Some(write_arguments),
        ..entry(7, Reply::Fixed(STATUS + WCC_DATA + 4 + 4 + VERF))
    },
    entry(8, Reply::Fixed(MADE)),
    entry(9, Reply::Fixed(MADE)),
    Entry { arguments: Some(symlink_arguments), ..entry(10, Reply::Fixed(MADE)) },
    entry(11, Reply::Fixed(MADE)),
    entry(12, Reply::Fixed(STATUS + WCC_DATA)),
    entry(13, Reply::Fixed(STATUS + WCC_DATA)),
    entry(14, Reply::Fixed(STATUS + 2 * WCC_DATA)),
    entry(15, Reply::Fixed(STATUS + POST_OP_ATTR + WCC_DATA)),
    entry(16, Reply::Of(readdir_size)),
    entry(17, Reply::Of(readdirplus_size)),
    entry(18, Reply::Fixed(STATUS + POST_OP_ATTR + 6 * 8 + 4)),
    entry(19, Reply::Fixed(STATUS + POST_OP_ATTR + 7 * 4 + 8 + 8 + 4)),
    entry(20, Reply::Fixed(STATUS + POST_OP_ATTR + 6 * 4)),
    entry(21, Reply::Fixed(STATUS + WCC_DATA + VERF)),
]);

/// The names of the procedures, indexed by procedure number.
pub const NFS3_PROCEDURES: [&str; 22] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];

const fn entry(procedure: u32, reply: Reply) -> Entry {
    let procedure = Procedure { program: 100_003, version: 3, procedure };
    Entry { procedure, arguments: None, results: None, reply }
}

/// The longest path that the binding expects, in bytes. RFC 1813 sets no limit; this is the limit
/// of Linux.
const PATH_MAX: u32 = 4096;

/// Length of the longest file handle in bytes.
const FHSIZE: u32 = 64;

// The largest encoded size of each type, in bytes.
const STATUS: u32 = 4;
const FATTR: u32 = 84;
const POST_OP_ATTR: u32 = 4 + FATTR;
const WCC_ATTR: u32 = 24;
const WCC_DATA: u32 = 4 + WCC_ATTR + POST_OP_ATTR;
const FH: u32 = 4 + FHSIZE;
const POST_OP_FH: u32 = 4 + FH;
const VERF: u32 = 8;
/// The results of the procedures that create an object.
const MADE: u32 = STATUS + POST_OP_FH + POST_OP_ATTR + WCC_DATA;

/// Reads the status. Returns true if the procedure succeeded.
fn ok(s: &mut Stream<'_>) -> Result<bool, Error> {
    s.u32().map(|status| status == 0)
}

fn post_op_attr(s: &mut Stream<'_>) -> Result<(), Error> {
    if s.flag()? { s.skip(FATTR as usize) } else { Ok(()) }
}

/// Skips optional data of `bytes` bytes.
fn optional(s: &mut Stream<'_>, bytes: usize) -> Result<(), Error> {
    if s.flag()? { s.skip(bytes) } else { Ok(()) }
}

/// Skips a `set_atime` or `set_mtime`. Only a time that the client sets carries a value.
fn set_time(s: &mut Stream<'_>) -> Result<(), Error> {
    const CLIENT: u32 = 2;
    if s.u32()? == CLIENT { s.skip(8) } else { Ok(()) }
}

fn write_arguments(s: &mut Stream<'_>) -> Result<(), Error> {
    s.opaque(FHSIZE)?;
    // Offset, count, and how stable.
    s.skip(8 + 4 + 4)?;
    s.item()
}

fn symlink_arguments(s: &mut Stream<'_>) -> Result<(), Error> {
    s.opaque(FHSIZE)?;
    s.opaque(u32::MAX)?;
    // Mode, user, group, size; and two times.
    for bytes in [4, 4, 4, 8] {
        optional(s, bytes)?;
    }
    set_time(s)?;
    set_time(s)?;
    s.item()
}

fn readlink_results(s: &mut Stream<'_>) -> Result<(), Error> {
    let ok = ok(s)?;
    post_op_attr(s)?;
    if ok { s.item() } else { Ok(()) }
}

fn read_results(s: &mut Stream<'_>) -> Result<(), Error> {
    let ok = ok(s)?;
    post_op_attr(s)?;
    if !ok {
        return Ok(());
    }
    // The byte count and the end-of-file flag.
    s.u32()?;
    s.flag()?;
    s.item()
}

fn readlink_size(_: &mut Reader<'_>) -> Result<ReplySize, xdr::Error> {
    Ok(ReplySize { stream: STATUS + POST_OP_ATTR + 4, item: PATH_MAX })
}

fn read_size(r: &mut Reader<'_>) -> Result<ReplySize, xdr::Error> {
    r.opaque(FHSIZE)?;
    r.u64()?;
    Ok(ReplySize { stream: STATUS + POST_OP_ATTR + 4 + 4 + 4, item: r.u32()? })
}

/// Returns the reply size of a directory listing. The caller's `count` limits the part after the
/// status.
fn directory(count: u32) -> ReplySize {
    ReplySize { stream: STATUS.saturating_add(count.max(POST_OP_ATTR)), item: 0 }
}

fn readdir_size(r: &mut Reader<'_>) -> Result<ReplySize, xdr::Error> {
    r.opaque(FHSIZE)?;
    // The cookie and its verifier.
    r.take(16)?;
    r.u32().map(directory)
}

fn readdirplus_size(r: &mut Reader<'_>) -> Result<ReplySize, xdr::Error> {
    r.opaque(FHSIZE)?;
    // The cookie, its verifier, and `dircount`, which limits the bytes of names alone.
    r.take(20)?;
    r.u32().map(directory)
}
