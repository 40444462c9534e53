//! Authentication fields of RPC messages (RFC 5531 section 8.2 and Appendix A).

use crate::xdr::{Error, NoRoom, Reader, Writer};

/// Octets of the longest body of a field.
const BODY_MAX: u32 = 400;

/// Octets of the longest machine name.
pub const MACHINE_NAME_MAX: usize = NAME as usize;
const NAME: u32 = 255;

/// Most groups besides the first.
pub const GIDS_MAX: usize = GIDS as usize;
const GIDS: u32 = 16;

/// What the octets of a field are. IANA assigns more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flavor(pub u32);

impl Flavor {
    /// Nothing.
    pub const NONE: Flavor = Flavor(0);
    /// User and groups, as the caller says ([`AuthSys`]).
    pub const SYS: Flavor = Flavor(1);
    /// What a server gave in place of them.
    pub const SHORT: Flavor = Flavor(2);
    /// Diffie-Hellman.
    pub const DH: Flavor = Flavor(3);
    /// RPCSEC_GSS.
    pub const GSS: Flavor = Flavor(6);
}

/// A credential or a verifier: opaque data of a flavor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'a> {
    flavor: Flavor,
    body: &'a [u8],
}

impl<'a> Auth<'a> {
    /// AUTH_NONE.
    pub const NONE: Auth<'static> = Auth { flavor: Flavor::NONE, body: &[] };

    /// One with `body`, at most 400 octets; `None` for more.
    pub const fn new(flavor: Flavor, body: &'a [u8]) -> Option<Auth<'a>> {
        if body.len() > BODY_MAX as usize { None } else { Some(Auth { flavor, body }) }
    }

    /// What its octets are.
    pub const fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Its octets, at most 400.
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Whether items of a message with this credential may be placed. They may not where RPCSEC_GSS
    /// wraps arguments and results for integrity or privacy, nor in its own control messages (RFC 8166
    /// section 8.2.2): of its credentials (RFC 2203 section 5) only those of data without a service
    /// may, and one that cannot be read may not.
    pub fn may_reduce(&self) -> bool {
        const VERSION: u32 = 1;
        const DATA: u32 = 0;
        const NO_SERVICE: u32 = 1;
        if self.flavor != Flavor::GSS {
            return true;
        }
        // Version, procedure, sequence number, service.
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

/// Groups of a caller besides its first: at most [`GIDS_MAX`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Gids {
    // What is not used is zero, so that equal groups are equal values.
    gids: [u32; GIDS_MAX],
    len: usize,
}

impl Gids {
    /// `gids`; `None` for more than [`GIDS_MAX`].
    pub fn new(gids: &[u32]) -> Option<Gids> {
        let mut all = Gids::default();
        all.gids.get_mut(..gids.len())?.copy_from_slice(gids);
        all.len = gids.len();
        Some(all)
    }

    /// The groups.
    pub fn as_slice(&self) -> &[u32] {
        self.gids.get(..self.len).unwrap_or(&self.gids)
    }
}

impl core::fmt::Debug for Gids {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The body of an AUTH_SYS credential: who the caller is by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// Any number.
    pub stamp: u32,
    /// Name of the caller's machine, at most [`MACHINE_NAME_MAX`] octets; not always UTF-8.
    pub machine: &'a [u8],
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its other groups.
    pub gids: Gids,
}

/// What cannot be an AUTH_SYS credential, or cannot be written as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthSysError {
    /// Another flavor.
    #[error("not AUTH_SYS but {}", .0.0)]
    Flavor(Flavor),
    /// Not XDR of its type.
    #[error(transparent)]
    Xdr(#[from] Error),
    /// The machine's name is too long.
    #[error("machine name of {len} octets")]
    Name {
        /// Octets of it.
        len: usize,
    },
    /// No room for it.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

impl<'a> AuthSys<'a> {
    /// Octets of the longest body. It is shorter than what a field may have.
    pub const MAX_LEN: usize = 20 + 256 + 4 * GIDS_MAX;

    /// Reads a credential.
    ///
    /// # Errors
    /// What is wrong with it; a server replies AUTH_BADCRED.
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

    /// Writes the body into `out`, which has room for [`AuthSys::MAX_LEN`] octets or as many as it
    /// needs, and gives the credential.
    ///
    /// # Errors
    /// When the machine's name is too long, or `out` too short.
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
        // At most 16.
        w.u32(u32::try_from(gids.len()).unwrap_or(0));
        gids.iter().for_each(|&gid| w.u32(gid));
        let len = w.finish()?;
        let body = out.get(..len).unwrap_or(&[]);
        Ok(Auth { flavor: Flavor::SYS, body })
    }
}
