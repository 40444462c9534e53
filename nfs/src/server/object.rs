//! Procedures that look at an object: GETATTR, LOOKUP, ACCESS, READLINK, FSSTAT, FSINFO, PATHCONF.

use heddle_rpcrdma::reduce::Item;
use rustix::fs::{Access as Mode, AtFlags, accessat, fstatvfs, readlinkat};

use super::{Handled, Outcome, Share};
use crate::export::Object;
use crate::export::name::{Checked, check};
use crate::wire::{
    Access, AccessOk, Attributes, Fattr, FileType, Fsinfo, Fsstat, IO_MAX, Lookup, LookupOk,
    NAME_MAX, OfHandle, Pathconf, Status, Time, Xdr, put_opaque,
};

// Bits of ACCESS (RFC 1813 section 3.3.4).
const READ: u32 = 1;
const LOOKUP: u32 = 2;
const MODIFY: u32 = 4;
const EXTEND: u32 = 8;
const DELETE: u32 = 0x10;
const EXECUTE: u32 = 0x20;

/// Properties of FSINFO: hard links, symbolic links, the same PATHCONF for all objects, times that
/// clients can set.
const PROPERTIES: u32 = 0x01 | 0x02 | 0x08 | 0x10;

/// The preferred number of bytes that a client asks of a directory.
const DTPREF: u32 = 64 << 10;

/// The highest number of names of an object, where the file system does not say: the limit of ext4.
const LINK_MAX: u32 = 65_000;

impl Share {
    pub(super) fn getattr(&self, call: &OfHandle) -> Outcome<Attributes, ()> {
        let object = self.export.object(&call.object).map_err(|e| (e, ()))?;
        Ok(Attributes { attributes: object.attributes })
    }

    pub(super) fn lookup(&self, call: &Lookup<'_>) -> Outcome<LookupOk, Option<Fattr>> {
        let dir = self.export.object(&call.dir).map_err(|e| (e, None))?;
        let found = self.entry(&dir, call.name.0);
        let attributes = self.export.attributes(&dir);
        let object = found.map_err(|e| (e, attributes))?;
        Ok(LookupOk {
            object: self.export.handle(&object),
            attributes: Some(object.attributes),
            dir: attributes,
        })
    }

    pub(super) fn entry(&self, dir: &Object, name: &[u8]) -> Result<Object, Status> {
        if dir.attributes.kind != FileType::Directory {
            return Err(Status::NOTDIR);
        }
        match check(name)? {
            Checked::This => Ok(dir.clone()),
            Checked::Parent => self.export.parent(dir),
            Checked::Plain(name) => self.export.lookup(dir, name),
        }
    }

    pub(super) fn access(&self, call: &Access) -> Outcome<AccessOk, Option<Fattr>> {
        let object = self.export.object(&call.object).map_err(|e| (e, None))?;
        let may = |mode| {
            let (links, name) = self.export.link(&object);
            accessat(links, name, mode, AtFlags::EACCESS).is_ok()
        };
        let write = !self.export.is_read_only();
        let mut access = 0;
        if may(Mode::READ_OK) {
            access |= READ;
        }
        if object.attributes.kind == FileType::Directory {
            if may(Mode::EXEC_OK) {
                access |= LOOKUP;
            }
            if write && may(Mode::WRITE_OK | Mode::EXEC_OK) {
                access |= MODIFY | EXTEND | DELETE;
            }
        } else {
            if may(Mode::EXEC_OK) {
                access |= EXECUTE;
            }
            if write && may(Mode::WRITE_OK) {
                access |= MODIFY | EXTEND;
            }
        }
        Ok(AccessOk { attributes: Some(object.attributes), access: access & call.access })
    }

    /// Writes the results itself, since RDMA may place the path.
    pub(super) fn readlink(&self, call: &OfHandle, out: &mut Vec<u8>) -> Handled {
        let start = out.len();
        let read = self.export.object(&call.object).map_err(|e| (e, None)).and_then(|object| {
            let attributes = Some(object.attributes);
            if object.attributes.kind != FileType::Symlink {
                return Err((Status::INVAL, attributes));
            }
            let path = readlinkat(&object.path, c"", Vec::new());
            path.map(|path| (attributes, path)).map_err(|e| (e.into(), attributes))
        });
        let (attributes, path) = match read {
            Ok(read) => read,
            Err((status, attributes)) => {
                status.put(out);
                attributes.put(out);
                return Handled::default();
            }
        };
        Status::OK.put(out);
        attributes.put(out);
        let offset = out.len() + 4 - start;
        put_opaque(out, path.to_bytes());
        Handled { item: item(offset, path.to_bytes().len()), apart: false }
    }

    pub(super) fn fsstat(&self, call: &OfHandle) -> Outcome<Fsstat, Option<Fattr>> {
        let object = self.export.object(&call.object).map_err(|e| (e, None))?;
        let attributes = Some(object.attributes);
        let fs = fstatvfs(&object.path).map_err(|e| (e.into(), attributes))?;
        let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
        Ok(Fsstat {
            attributes,
            total_bytes: bytes(fs.f_blocks),
            free_bytes: bytes(fs.f_bfree),
            available_bytes: bytes(fs.f_bavail),
            total_files: fs.f_files,
            free_files: fs.f_ffree,
            available_files: fs.f_favail,
            invariant: 0,
        })
    }

    pub(super) fn fsinfo(&self, call: &OfHandle) -> Outcome<Fsinfo, Option<Fattr>> {
        let object = self.export.object(&call.object).map_err(|e| (e, None))?;
        Ok(Fsinfo {
            attributes: Some(object.attributes),
            rtmax: IO_MAX,
            rtpref: IO_MAX,
            rtmult: 4096,
            wtmax: IO_MAX,
            wtpref: IO_MAX,
            wtmult: 4096,
            dtpref: DTPREF,
            maxfilesize: u64::from(u32::MAX >> 1) << 32 | u64::from(u32::MAX),
            time_delta: Time { seconds: 0, nanoseconds: 1 },
            properties: PROPERTIES,
        })
    }

    pub(super) fn pathconf(&self, call: &OfHandle) -> Outcome<Pathconf, Option<Fattr>> {
        let object = self.export.object(&call.object).map_err(|e| (e, None))?;
        let attributes = Some(object.attributes);
        let fs = fstatvfs(&object.path).map_err(|e| (e.into(), attributes))?;
        Ok(Pathconf {
            attributes,
            linkmax: LINK_MAX,
            name_max: u32::try_from(fs.f_namemax).unwrap_or(NAME_MAX).min(NAME_MAX),
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }
}

/// Returns an item of results; `None` for an empty item, which RDMA does not place.
pub(super) fn item(offset: usize, length: usize) -> Option<Item> {
    let (offset, length) = (u32::try_from(offset).ok()?, u32::try_from(length).ok()?);
    (length > 0).then_some(Item { offset, length })
}
