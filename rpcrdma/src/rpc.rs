//! Headers of RPC messages (RFC 5531 section 9), with which a Payload stream begins.
//!
//! ```text
//!   call   xid │ 0 │ 2 │ program │ version │ procedure │ credential │ verifier │ arguments
//!   reply  xid │ 1 │ 0 │ verifier │ status │ results
//!          xid │ 1 │ 1 │ 0, lowest │ highest RPC version; or 1, why authentication failed
//! ```
//!
//! Decoding leaves the arguments or results, which belong to the program. The decoder keeps reasons
//! for failed authentication that the RFC does not define, since IANA assigns more; it refuses
//! other unknown codes.

mod auth;
#[cfg(test)]
mod tests;

pub use auth::{Auth, AuthSys, AuthSysError, Flavor, GIDS_MAX, Gids, MACHINE_NAME_MAX};

use crate::header::Xid;
use crate::xdr::{self, NoRoom, Reader, Writer, measure};

/// The version of the RPC protocol itself.
pub const VERSION: u32 = 2;

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// Procedure 0 of every program: it has no arguments and no results.
pub const NULL_PROCEDURE: u32 = 0;

/// The procedure that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Procedure {
    /// Number of the program.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Number of the procedure in the program.
    pub procedure: u32,
}

/// The header of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Transaction identifier.
    pub xid: Xid,
    /// The procedure that is called.
    pub procedure: Procedure,
    /// Credential: the identity that the caller claims.
    pub cred: Auth<'a>,
    /// Verifier: the proof of the credential.
    pub verf: Auth<'a>,
}

/// The reason why a call is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFault {
    /// The message ends before the header does, or is a reply.
    #[error(transparent)]
    Xdr(xdr::Fault),
    /// The call has another version of RPC.
    #[error("RPC version {version}")]
    Version {
        /// Version of RPC in the call.
        version: u32,
    },
    /// The credential is malformed.
    #[error("credential: {0}")]
    Cred(xdr::Fault),
    /// The verifier is malformed.
    #[error("verifier: {0}")]
    Verf(xdr::Fault),
}

/// A [`CallFault`] and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {fault}")]
pub struct CallError {
    /// Transaction identifier of the call, if the message is known to be a call.
    pub xid: Option<Xid>,
    /// Byte offset in the message.
    pub at: usize,
    /// The fault at that place.
    pub fault: CallFault,
}

impl CallError {
    /// Returns the reply to the faulty call; `None` when the message is not known to be a call.
    pub fn reply(&self) -> Option<Reply<'static>> {
        let denied = match self.fault {
            CallFault::Xdr(_) => return None,
            CallFault::Version { .. } => Denied::RpcMismatch { low: VERSION, high: VERSION },
            CallFault::Cred(_) => Denied::AuthError(AuthStat::BAD_CRED),
            CallFault::Verf(_) => Denied::AuthError(AuthStat::BAD_VERF),
        };
        self.xid.map(|xid| Reply { xid, body: ReplyBody::Denied(denied) })
    }
}

impl<'a> Call<'a> {
    /// Length of the shortest header in bytes: no Read chunk can be nearer to the front of a
    /// stream.
    pub const MIN_LEN: usize = 40;

    /// Decodes the header of a call. Returns the header, and the arguments after it.
    ///
    /// # Errors
    /// Returns the fault in the header.
    pub fn decode(bytes: &'a [u8]) -> Result<(Call<'a>, &'a [u8]), CallError> {
        let mut r = Reader::new(bytes);
        let mut xid = None;
        let call = Call::read(&mut r, &mut xid).map_err(|(at, fault)| {
            // `xid` is still `None` if the message is not known to be a call.
            CallError { xid, at, fault }
        })?;
        Ok((call, r.rest()))
    }

    fn read(r: &mut Reader<'a>, known: &mut Option<Xid>) -> Result<Call<'a>, (usize, CallFault)> {
        let header = |e: xdr::Error| (e.at, CallFault::Xdr(e.fault));
        let xid = Xid(r.u32().map_err(header)?);
        let at = r.at();
        let value = r.u32().map_err(header)?;
        if value != CALL {
            return Err((at, CallFault::Xdr(xdr::Fault::Enum { value })));
        }
        *known = Some(xid);
        let at = r.at();
        let version = r.u32().map_err(header)?;
        if version != VERSION {
            return Err((at, CallFault::Version { version }));
        }
        let program = r.u32().map_err(header)?;
        let version = r.u32().map_err(header)?;
        let procedure = Procedure { program, version, procedure: r.u32().map_err(header)? };
        let cred = Auth::decode(r).map_err(|e| (e.at, CallFault::Cred(e.fault)))?;
        let verf = Auth::decode(r).map_err(|e| (e.at, CallFault::Verf(e.fault)))?;
        Ok(Call { xid, procedure, cred, verf })
    }

    fn put(&self, w: &mut Writer<'_>) {
        let Procedure { program, version, procedure } = self.procedure;
        for unit in [self.xid.0, CALL, VERSION, program, version, procedure] {
            w.u32(unit);
        }
        self.cred.encode(w);
        self.verf.encode(w);
    }

    /// Returns the length of the header in bytes.
    pub fn encoded_len(&self) -> usize {
        measure(|w| self.put(w))
    }

    /// Writes the header to the front of `out` and returns its length in bytes; the arguments
    /// follow the header.
    ///
    /// # Errors
    /// Returns an error when `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(out);
        self.put(&mut w);
        w.finish()
    }
}

/// The header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// XID of the call.
    pub xid: Xid,
    /// The outcome of the call.
    pub body: ReplyBody<'a>,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    /// The server accepted the caller's authentication.
    Accepted {
        /// Verifier: the proof of the server's identity.
        verf: Auth<'a>,
        /// Status of the procedure's execution.
        status: Status,
    },
    /// The server rejected the call.
    Denied(Denied),
}

/// The outcome of an accepted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The server executed the procedure: results follow.
    Success,
    /// The server has no such program.
    ProgUnavail,
    /// The server has no such version of the program.
    ProgMismatch {
        /// Lowest version that the server has.
        low: u32,
        /// Highest version that the server has.
        high: u32,
    },
    /// The program has no such procedure.
    ProcUnavail,
    /// The server could not decode the arguments.
    GarbageArgs,
    /// The server had an internal error.
    SystemErr,
}

/// The reason why a server denied a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The server does not speak the call's version of RPC.
    RpcMismatch {
        /// Lowest version that the server speaks.
        low: u32,
        /// Highest version that the server speaks.
        high: u32,
    },
    /// Authentication failed.
    AuthError(AuthStat),
}

/// The reason why authentication failed. IANA assigns more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AuthStat(pub u32);

impl AuthStat {
    /// Authentication did not fail.
    pub const OK: AuthStat = AuthStat(0);
    /// The credential is bad.
    pub const BAD_CRED: AuthStat = AuthStat(1);
    /// The client must begin a new session.
    pub const REJECTED_CRED: AuthStat = AuthStat(2);
    /// The verifier is bad.
    pub const BAD_VERF: AuthStat = AuthStat(3);
    /// The verifier is too old, or was used before.
    pub const REJECTED_VERF: AuthStat = AuthStat(4);
    /// The authentication is too weak for this server.
    pub const TOO_WEAK: AuthStat = AuthStat(5);
    /// The server's verifier is bad. Never sent: the client reports it locally.
    pub const INVALID_RESP: AuthStat = AuthStat(6);
    /// The reason is unknown. Never sent: the client reports it locally.
    pub const FAILED: AuthStat = AuthStat(7);
    /// Kerberos: any error.
    pub const KERB_GENERIC: AuthStat = AuthStat(8);
    /// Kerberos: the credential is too old.
    pub const TIME_EXPIRE: AuthStat = AuthStat(9);
    /// Kerberos: the ticket file is bad.
    pub const TKT_FILE: AuthStat = AuthStat(10);
    /// Kerberos: the authenticator cannot be decoded.
    pub const DECODE: AuthStat = AuthStat(11);
    /// Kerberos: the ticket belongs to another address.
    pub const NET_ADDR: AuthStat = AuthStat(12);
    /// RPCSEC_GSS: no credentials for the user.
    pub const GSS_CRED_PROBLEM: AuthStat = AuthStat(13);
    /// RPCSEC_GSS: the context is bad.
    pub const GSS_CTX_PROBLEM: AuthStat = AuthStat(14);
}

const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;

impl Status {
    const fn code(self) -> u32 {
        match self {
            Status::Success => 0,
            Status::ProgUnavail => 1,
            Status::ProgMismatch { .. } => 2,
            Status::ProcUnavail => 3,
            Status::GarbageArgs => 4,
            Status::SystemErr => 5,
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Status, xdr::Error> {
        let at = r.at();
        Ok(match r.u32()? {
            0 => Status::Success,
            1 => Status::ProgUnavail,
            2 => Status::ProgMismatch { low: r.u32()?, high: r.u32()? },
            3 => Status::ProcUnavail,
            4 => Status::GarbageArgs,
            5 => Status::SystemErr,
            value => return Err(xdr::Error { at, fault: xdr::Fault::Enum { value } }),
        })
    }
}

impl Denied {
    fn decode(r: &mut Reader<'_>) -> Result<Denied, xdr::Error> {
        let at = r.at();
        Ok(match r.u32()? {
            RPC_MISMATCH => Denied::RpcMismatch { low: r.u32()?, high: r.u32()? },
            AUTH_ERROR => Denied::AuthError(AuthStat(r.u32()?)),
            value => return Err(xdr::Error { at, fault: xdr::Fault::Enum { value } }),
        })
    }
}

impl<'a> Reply<'a> {
    /// Creates the reply of a server that sends no verifier.
    pub const fn accepted(xid: Xid, status: Status) -> Reply<'static> {
        Reply { xid, body: ReplyBody::Accepted { verf: Auth::NONE, status } }
    }

    /// Returns true if results follow the header.
    pub const fn has_results(&self) -> bool {
        matches!(self.body, ReplyBody::Accepted { status: Status::Success, .. })
    }

    /// Decodes the header of a reply. Returns the header, and the bytes after it: the results of a
    /// success, and nothing otherwise.
    ///
    /// # Errors
    /// Returns the fault in the header, or reports bytes that follow a reply without results.
    pub fn decode(bytes: &'a [u8]) -> Result<(Reply<'a>, &'a [u8]), xdr::Error> {
        let mut r = Reader::new(bytes);
        let xid = Xid(r.u32()?);
        let at = r.at();
        let value = r.u32()?;
        if value != REPLY {
            return Err(xdr::Error { at, fault: xdr::Fault::Enum { value } });
        }
        let at = r.at();
        let body = match r.u32()? {
            ACCEPTED => {
                let verf = Auth::decode(&mut r)?;
                ReplyBody::Accepted { verf, status: Status::decode(&mut r)? }
            }
            DENIED => ReplyBody::Denied(Denied::decode(&mut r)?),
            value => return Err(xdr::Error { at, fault: xdr::Fault::Enum { value } }),
        };
        let reply = Reply { xid, body };
        if !reply.has_results() {
            r.finish()?;
        }
        Ok((reply, r.rest()))
    }

    fn put(&self, w: &mut Writer<'_>) {
        w.u32(self.xid.0);
        w.u32(REPLY);
        match &self.body {
            ReplyBody::Accepted { verf, status } => {
                w.u32(ACCEPTED);
                verf.encode(w);
                w.u32(status.code());
                if let Status::ProgMismatch { low, high } = *status {
                    w.u32(low);
                    w.u32(high);
                }
            }
            ReplyBody::Denied(denied) => {
                w.u32(DENIED);
                match *denied {
                    Denied::RpcMismatch { low, high } => {
                        w.u32(RPC_MISMATCH);
                        w.u32(low);
                        w.u32(high);
                    }
                    Denied::AuthError(stat) => {
                        w.u32(AUTH_ERROR);
                        w.u32(stat.0);
                    }
                }
            }
        }
    }

    /// Returns the length of the header in bytes.
    pub fn encoded_len(&self) -> usize {
        measure(|w| self.put(w))
    }

    /// Writes the header to the front of `out` and returns its length in bytes; the results follow
    /// the header.
    ///
    /// # Errors
    /// Returns an error when `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(out);
        self.put(&mut w);
        w.finish()
    }
}
