//! The wire format of NFS version 3 and MOUNT version 3 (RFC 1813), in both directions.
//!
//! Each type reads itself from a [`Reader`] and appends itself to a buffer ([`Xdr`]). A reader is
//! total and strict and checks each length against the limit of its type before it takes anything.
//! Names and data borrow from the message, so no claim of a peer makes the reader allocate memory.

mod arguments;
mod attributes;
mod handle;
pub mod mount;
mod results;
mod status;

pub use arguments::{
    Access, Commit, Create, DirEntryName, How, Link, Lookup, Mkdir, Mknod, MknodKind, OfHandle,
    Read, Readdir, Readdirplus, Remove, Rename, Setattr, Stable, Symlink, Write, WriteApart,
};
pub use attributes::{Device, Fattr, FileType, Sattr, SetTime, Time, WccAttr, WccData};
pub use handle::Handle;
pub use results::{
    AccessOk, Attributes, CommitOk, Created, DirPlus, DirPlusEntry, Fsinfo, Fsstat, LinkDone,
    LookupOk, Pathconf, ReadOk, ReadlinkOk, RenameDone, WriteOk,
};
pub use status::Status;

use heddle_rpcrdma::rpc::Procedure;
use heddle_rpcrdma::xdr::{self, Reader, padded};

/// The longest name in a directory, in bytes, that the service accepts: Linux's limit.
pub const NAME_MAX: u32 = 255;

/// The longest path of a symbolic link or of a mount, in bytes: Linux's limit, without the
/// terminating zero.
pub const PATH_MAX: u32 = 4095;

/// Bytes of data in the longest READ and WRITE, as [`Fsinfo`] reports them.
pub const IO_MAX: u32 = 1 << 20;

/// The longest call that the service accepts and the longest reply that it makes, in bytes: the
/// longest data and its header.
pub const MESSAGE_MAX: u32 = IO_MAX + 4096;

/// Procedures of NFS version 3 (RFC 1813 section 3.3).
#[allow(missing_docs, reason = "the RFC's names")]
pub mod procedure {
    use super::Procedure;

    /// The RPC program number of NFS.
    pub const PROGRAM: u32 = 100_003;
    /// The version of NFS that this crate has.
    pub const VERSION: u32 = 3;

    const fn of(procedure: u32) -> Procedure {
        Procedure { program: PROGRAM, version: VERSION, procedure }
    }

    pub const NULL: Procedure = of(0);
    pub const GETATTR: Procedure = of(1);
    pub const SETATTR: Procedure = of(2);
    pub const LOOKUP: Procedure = of(3);
    pub const ACCESS: Procedure = of(4);
    pub const READLINK: Procedure = of(5);
    pub const READ: Procedure = of(6);
    pub const WRITE: Procedure = of(7);
    pub const CREATE: Procedure = of(8);
    pub const MKDIR: Procedure = of(9);
    pub const SYMLINK: Procedure = of(10);
    pub const MKNOD: Procedure = of(11);
    pub const REMOVE: Procedure = of(12);
    pub const RMDIR: Procedure = of(13);
    pub const RENAME: Procedure = of(14);
    pub const LINK: Procedure = of(15);
    pub const READDIR: Procedure = of(16);
    pub const READDIRPLUS: Procedure = of(17);
    pub const FSSTAT: Procedure = of(18);
    pub const FSINFO: Procedure = of(19);
    pub const PATHCONF: Procedure = of(20);
    pub const COMMIT: Procedure = of(21);

    pub use heddle_rpcrdma::binding::NFS3_PROCEDURES as NAMES;
}

/// A type of the protocol.
pub trait Xdr<'a>: Sized {
    /// Reads a value.
    ///
    /// # Errors
    /// The fault in the bytes.
    fn get(r: &mut Reader<'a>) -> Result<Self, xdr::Error>;

    /// Appends the value to `out`.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads a value that takes up all of `bytes`.
    ///
    /// # Errors
    /// The fault in the bytes, or that bytes follow after the value.
    fn whole(bytes: &'a [u8]) -> Result<Self, xdr::Error> {
        let mut r = Reader::new(bytes);
        let value = Self::get(&mut r)?;
        r.finish()?;
        Ok(value)
    }

    /// Returns the encoded bytes of the value.
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }
}

impl Xdr<'_> for () {
    fn get(_: &mut Reader<'_>) -> Result<(), xdr::Error> {
        Ok(())
    }

    fn put(&self, _: &mut Vec<u8>) {}
}

impl Xdr<'_> for u32 {
    fn get(r: &mut Reader<'_>) -> Result<u32, xdr::Error> {
        r.u32()
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Xdr<'_> for u64 {
    fn get(r: &mut Reader<'_>) -> Result<u64, xdr::Error> {
        r.u64()
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Xdr<'_> for bool {
    fn get(r: &mut Reader<'_>) -> Result<bool, xdr::Error> {
        r.flag()
    }

    fn put(&self, out: &mut Vec<u8>) {
        u32::from(*self).put(out);
    }
}

/// Fixed opaque data of eight bytes: a verifier. Only equality of verifiers means anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verifier(pub [u8; 8]);

impl Xdr<'_> for Verifier {
    fn get(r: &mut Reader<'_>) -> Result<Verifier, xdr::Error> {
        r.u64().map(|v| Verifier(v.to_be_bytes()))
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

/// Variable-length opaque data or a string of at most `MAX` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opaque<'a, const MAX: u32>(pub &'a [u8]);

impl<'a, const MAX: u32> Xdr<'a> for Opaque<'a, MAX> {
    fn get(r: &mut Reader<'a>) -> Result<Self, xdr::Error> {
        r.opaque(MAX).map(Opaque)
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.0);
    }
}

/// A name in a directory, as it is on the wire: of any length, so that the service can answer a
/// name that is too long with the status for that.
pub type Name<'a> = Opaque<'a, MESSAGE_MAX>;

/// The path in a symbolic link.
pub type Path<'a> = Opaque<'a, MESSAGE_MAX>;

/// The data of a READ or WRITE.
pub type Data<'a> = Opaque<'a, MESSAGE_MAX>;

/// Appends variable-length opaque data, with length and padding.
pub(crate) fn put_opaque(out: &mut Vec<u8>, data: &[u8]) {
    u32::try_from(data.len()).unwrap_or(u32::MAX).put(out);
    out.extend_from_slice(data);
    put_padding(out, data.len());
}

/// Appends the padding that follows opaque data of `len` bytes.
pub(crate) fn put_padding(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + padded(len) - len, 0);
}

impl<'a, T: Xdr<'a>> Xdr<'a> for Option<T> {
    fn get(r: &mut Reader<'a>) -> Result<Option<T>, xdr::Error> {
        if r.flag()? { T::get(r).map(Some) } else { Ok(None) }
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
}

/// Results of a procedure: `T` on success, otherwise the status of the failure and `F`.
impl<'a, T: Xdr<'a>, F: Xdr<'a>> Xdr<'a> for Result<T, (Status, F)> {
    fn get(r: &mut Reader<'a>) -> Result<Self, xdr::Error> {
        match Status::get(r)? {
            Status::OK => T::get(r).map(Ok),
            status => F::get(r).map(|fail| Err((status, fail))),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Ok(done) => {
                Status::OK.put(out);
                done.put(out);
            }
            Err((status, fail)) => {
                status.put(out);
                fail.put(out);
            }
        }
    }
}

/// Defines structures whose fields follow one another on the wire.
macro_rules! structs {
    ($($(#[$meta:meta])* pub struct $name:ident $(<$lt:lifetime>)? {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $(<$lt>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        $crate::wire::structs!(@impl $name [$($lt)?] $($field)*);
    )*};
    (@impl $name:ident [] $($field:ident)*) => {
        impl $crate::wire::Xdr<'_> for $name {
            fn get(r: &mut heddle_rpcrdma::xdr::Reader<'_>)
                -> Result<Self, heddle_rpcrdma::xdr::Error>
            {
                Ok($name { $($field: $crate::wire::Xdr::get(r)?,)* })
            }

            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
        }
    };
    (@impl $name:ident [$lt:lifetime] $($field:ident)*) => {
        impl<$lt> $crate::wire::Xdr<$lt> for $name<$lt> {
            fn get(r: &mut heddle_rpcrdma::xdr::Reader<$lt>)
                -> Result<Self, heddle_rpcrdma::xdr::Error>
            {
                Ok($name { $($field: $crate::wire::Xdr::get(r)?,)* })
            }

            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
        }
    };
}
pub(crate) use structs;
