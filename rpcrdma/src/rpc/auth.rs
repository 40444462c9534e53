//! Authentication fields of RPC messages (RFC 5531 section 8.2 and Appendix A).

use crate::xdr::{Error, NoRoom, Reader, Writer};

/// Length of the longest body of an authentication field in bytes.
const BODY_MAX: u32 = 400;

/// Length of the longest machine name in bytes.
pub const MACHINE_NAME_MAX: usize = NAME as usize;
const NAME: u32 = 255;

/// The largest number of groups besides the first.
pub const GIDS_MAX: usize = GIDS as usize;
const GIDS: u32 = 16;

/// The format of an authentication field's body. IANA assigns more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flavor(pub u32);

impl Flavor {
    /// AUTH_NONE: an empty body.
    pub const NONE: Flavor = Flavor(0);
    /// AUTH_SYS: user and groups as the caller claims them ([`AuthSys`]).
    pub const SYS: Flavor = Flavor(1);
    /// AUTH_SHORT: a shorthand that a server issued in place of AUTH_SYS.
    pub const SHORT: Flavor = Flavor(2);
    /// AUTH_DH: Diffie-Hellman.
    pub const DH: Flavor = Flavor(3);
    /// RPCSEC_GSS (RFC 2203).
    pub const GSS: Flavor = Flavor(6);
}

/// A credential or a verifier: opaque data of a flavor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'a> {
    flavor: Flavor,
    body: &'a [u8],
}

impl<'a> Auth<'a> {
    /// An empty field of AUTH_NONE.
    pub const NONE: Auth<'static> = Auth { flavor: Flavor::NONE, body: &[] };

    /// Creates a field with `body`, at most 400 bytes; returns `None` for more.
    pub const fn new(flavor: Flavor, body: &'a [u8]) -> Option<Auth<'a>> {
        if body.len() > BODY_MAX as usize { None } else { Some(Auth { flavor, body }) }
    }

    /// Returns the format of the body.
    pub const fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Returns the body, at most 400 bytes.
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Returns true if items of a message with this credential may be placed. Items may not be
    /// placed where RPCSEC_GSS wraps arguments and results for integrity or privacy, nor in
    /// RPCSEC_GSS control messages (RFC 8166 section 8.2.2). So the only RPCSEC_GSS credential (RFC
    /// 2203 section 5) that allows placement is a readable credential of a data message without a
    /// service.
    pub fn may_reduce(&self) -> bool {
        const VERSION: u32 = 1;
        const DATA: u32 = 0;
        const NO_SERVICE: u32 = 1;
        if self.flavor != Flavor::GSS {
            return true;
        }
        // The version, procedure, sequence number and service.
        let mut r = Reader::new(self.body);
        match [r.u32(), r.u32(), r.u32(), r.u32()] {
            [Ok(version), Ok(procedure), Ok(_), Ok(service)] => {
                (version, procedure, service) == (VERSION, DATA, NO_SERVICE)
            }
            _ => false,
        }
    }

    pub(crate) fn decode(r: &mut Reader<'a>) -> Result<Auth<'a>, Error> {
        let flavor = Flavor(r.u32()?);
        Ok(Auth { flavor, body: r.opaque(BODY_MAX)? })
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.flavor.0);
        w.opaque(self.body);
    }
}

/// The groups of a caller besides its first: at most [`GIDS_MAX`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Gids {
    // Unused entries are zero, so that equal groups are equal values.
    gids: [u32; GIDS_MAX],
    len: usize,
}

impl Gids {
    /// Creates the groups from `gids`; returns `None` for more than [`GIDS_MAX`].
    pub fn new(gids: &[u32]) -> Option<Gids> {
        let mut all = Gids::default();
        all.gids.get_mut(..gids.len())?.copy_from_slice(gids);
        all.len = gids.len();
        Some(all)
    }

    /// Returns the groups in their order.
    pub fn as_slice(&self) -> &[u32] {
        self.gids.get(..self.len).unwrap_or(&self.gids)
    }
}

impl core::fmt::Debug for Gids {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The body of an AUTH_SYS credential: the identity that the caller claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// An arbitrary number of the caller's choice.
    pub stamp: u32,
    /// Name of the caller's machine, at most [`MACHINE_NAME_MAX`] bytes; not always UTF-8.
    pub machine: &'a [u8],
    /// Effective user of the caller.
    pub uid: u32,
    /// Effective group of the caller.
    pub gid: u32,
    /// Other groups of the caller.
    pub gids: Gids,
}

/// The reason why a credential is not a valid AUTH_SYS credential, or cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthSysError {
    /// The credential has another flavor.
    #[error("not AUTH_SYS but {}", .0.0)]
    Flavor(Flavor),
    /// The bytes are not XDR of the expected type.
    #[error(transparent)]
    Xdr(#[from] Error),
    /// The machine's name is too long.
    #[error("machine name of {len} bytes")]
    Name {
        /// Length of the name in bytes.
        len: usize,
    },
    /// The buffer has no room for the credential.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

impl<'a> AuthSys<'a> {
    /// Length of the longest body in bytes, which is below the limit of a field.
    pub const MAX_LEN: usize = 20 + 256 + 4 * GIDS_MAX;

    /// Decodes a credential.
    ///
    /// # Errors
    /// Returns the fault in the credential; a server replies AUTH_BADCRED.
    pub fn decode(cred: &Auth<'a>) -> Result<AuthSys<'a>, AuthSysError> {
        if cred.flavor != Flavor::SYS {
            return Err(AuthSysError::Flavor(cred.flavor));
        }
        let mut r = Reader::new(cred.body);
        let stamp = r.u32()?;
        let machine = r.opaque(NAME)?;
        let (uid, gid) = (r.u32()?, r.u32()?);
        let mut gids = Gids { len: r.count(GIDS)? as usize, ..Gids::default() };
        for to in gids.gids.iter_mut().take(gids.len) {
            *to = r.u32()?;
        }
        r.finish()?;
        Ok(AuthSys { stamp, machine, uid, gid, gids })
    }

    /// Writes the body into `out` and returns the credential. The body fits if `out` has
    /// [`AuthSys::MAX_LEN`] bytes.
    ///
    /// # Errors
    /// Returns an error when the machine's name is too long, or `out` is too short.
    pub fn encode<'b>(&self, out: &'b mut [u8]) -> Result<Auth<'b>, AuthSysError> {
        if self.machine.len() > MACHINE_NAME_MAX {
            return Err(AuthSysError::Name { len: self.machine.len() });
        }
        let mut w = Writer::new(out);
        w.u32(self.stamp);
        w.opaque(self.machine);
        w.u32(self.uid);
        w.u32(self.gid);
        let gids = self.gids.as_slice();
        // The count is at most 16.
        w.u32(u32::try_from(gids.len()).unwrap_or(0));
        gids.iter().for_each(|&gid| w.u32(gid));
        let len = w.finish()?;
        let body = out.get(..len).unwrap_or(&[]);
        Ok(Auth { flavor: Flavor::SYS, body })
    }
}
