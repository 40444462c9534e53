//! Headers of RPC messages (RFC 5531 section 9): what a Payload stream begins with.
//!
//! ```text
//!   call   xid │ 0 │ 2 │ program │ version │ procedure │ credential │ verifier │ arguments
//!   reply  xid │ 1 │ 0 │ verifier │ status │ results
//!          xid │ 1 │ 1 │ 0, lowest │ highest RPC version; or 1, why authentication failed
//! ```
//!
//! Arguments and results are the program's: they are what decoding leaves. Reasons why authentication
//! failed are kept when they are not the RFC's, since more are assigned; other codes are refused.

mod auth;
#[cfg(test)]
mod tests;

pub use auth::{Auth, AuthSys, AuthSysError, Flavor, GIDS_MAX, Gids, MACHINE_NAME_MAX};

use crate::header::Xid;
use crate::xdr::{self, NoRoom, Reader, Writer, measure};

/// The version of RPC itself.
pub const VERSION: u32 = 2;

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// The procedure that every program has: no arguments, no results.
pub const NULL_PROCEDURE: u32 = 0;

/// Which procedure is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Procedure {
    /// Number of the program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Number of the procedure in it.
    pub procedure: u32,
}

/// The header of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Its transaction.
    pub xid: Xid,
    /// What is called.
    pub procedure: Procedure,
    /// Who calls.
    pub cred: Auth<'a>,
    /// What proves it.
    pub verf: Auth<'a>,
}

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFault {
    /// It ends before its header does, or is a reply.
    #[error(transparent)]
    Xdr(xdr::Fault),
    /// Of another version of RPC.
    #[error("RPC version {version}")]
    Version {
        /// Which one.
        version: u32,
    },
    /// The credential is none.
    #[error("credential: {0}")]
    Cred(xdr::Fault),
    /// The verifier is none.
    #[error("verifier: {0}")]
    Verf(xdr::Fault),
}

/// A [`CallFault`], and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at octet {at}: {fault}")]
pub struct CallError {
    /// The transaction of the call, if it has one.
    pub xid: Option<Xid>,
    /// Offset in the message.
    pub at: usize,
    /// What is wrong.
    pub fault: CallFault,
}

impl CallError {
    /// What the call is replied to with; `None` when it is not known to be a call.
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
    /// Octets of the shortest header: no Read chunk can be nearer to the front of a stream.
    pub const MIN_LEN: usize = 40;

    /// Reads the header of a call. Gives it with what is behind: the arguments.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(octets: &'a [u8]) -> Result<(Call<'a>, &'a [u8]), CallError> {
        let mut r = Reader::new(octets);
        let mut xid = None;
        let call = Call::read(&mut r, &mut xid).map_err(|(at, fault)| {
            // A message that is not known to be a call has no transaction here.
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

    /// Octets of the header.
    pub fn encoded_len(&self) -> usize {
        measure(|w| self.put(w))
    }

    /// Writes the header to the front of `out` and gives its length; the arguments go behind it.
    ///
    /// # Errors
    /// When `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(out);
        self.put(&mut w);
        w.finish()
    }
}

/// The header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// That of the call.
    pub xid: Xid,
    /// What has come of it.
    pub body: ReplyBody<'a>,
}

/// What has come of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    /// The caller was taken for who it says it is.
    Accepted {
        /// What proves that the server is.
        verf: Auth<'a>,
        /// Whether the procedure was executed.
        status: Status,
    },
    /// It was not.
    Denied(Denied),
}

/// What has come of a call that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was executed: results follow.
    Success,
    /// There is no such program.
    ProgUnavail,
    /// There is no such version of it.
    ProgMismatch {
        /// The lowest version there is.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// There is no such procedure in it.
    ProcUnavail,
    /// The arguments cannot be read.
    GarbageArgs,
    /// Something of the server's own.
    SystemErr,
}

/// Why a call was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Its version of RPC is not spoken.
    RpcMismatch {
        /// The lowest version that is.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// Authentication failed.
    AuthError(AuthStat),
}

/// Why authentication failed. IANA assigns more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AuthStat(pub u32);

impl AuthStat {
    /// It has not.
    pub const OK: AuthStat = AuthStat(0);
    /// The credential is bad.
    pub const BAD_CRED: AuthStat = AuthStat(1);
    /// The client must begin a new session.
    pub const REJECTED_CRED: AuthStat = AuthStat(2);
    /// The verifier is bad.
    pub const BAD_VERF: AuthStat = AuthStat(3);
    /// The verifier is too old, or was used before.
    pub const REJECTED_VERF: AuthStat = AuthStat(4);
    /// It is not enough for this server.
    pub const TOO_WEAK: AuthStat = AuthStat(5);
    /// The server's verifier is bad. Not sent: of the client.
    pub const INVALID_RESP: AuthStat = AuthStat(6);
    /// Of an unknown reason. Not sent: of the client.
    pub const FAILED: AuthStat = AuthStat(7);
    /// Kerberos: any error.
    pub const KERB_GENERIC: AuthStat = AuthStat(8);
    /// Kerberos: the credential is too old.
    pub const TIME_EXPIRE: AuthStat = AuthStat(9);
    /// Kerberos: the ticket file.
    pub const TKT_FILE: AuthStat = AuthStat(10);
    /// Kerberos: the authenticator cannot be read.
    pub const DECODE: AuthStat = AuthStat(11);
    /// Kerberos: the ticket is of another address.
    pub const NET_ADDR: AuthStat = AuthStat(12);
    /// RPCSEC_GSS: no credentials for the user.
    pub const GSS_CRED_PROBLEM: AuthStat = AuthStat(13);
    /// RPCSEC_GSS: the context.
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
    /// One of a server that does not prove itself.
    pub const fn accepted(xid: Xid, status: Status) -> Reply<'static> {
        Reply { xid, body: ReplyBody::Accepted { verf: Auth::NONE, status } }
    }

    /// Whether results follow.
    pub const fn has_results(&self) -> bool {
        matches!(self.body, ReplyBody::Accepted { status: Status::Success, .. })
    }

    /// Reads the header of a reply. Gives it with what is behind: the results of a success, and
    /// nothing otherwise.
    ///
    /// # Errors
    /// What is wrong with it; also, of one that has no results, what is behind it.
    pub fn decode(octets: &'a [u8]) -> Result<(Reply<'a>, &'a [u8]), xdr::Error> {
        let mut r = Reader::new(octets);
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

    /// Octets of the header.
    pub fn encoded_len(&self) -> usize {
        measure(|w| self.put(w))
    }

    /// Writes the header to the front of `out` and gives its length; the results go behind it.
    ///
    /// # Errors
    /// When `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(out);
        self.put(&mut w);
        w.finish()
    }
}
