//! Credentials of callers (RFC 5531 section 8), in a form that outlives the message that carried
//! them.

use heddle_rpcrdma::rpc::{Auth, AuthStat, AuthSys, AuthSysError, Flavor, Gids};

/// The user and groups that a caller claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysCredential {
    /// An arbitrary number of the caller's choice.
    pub stamp: u32,
    /// Name of the caller's machine, at most 255 bytes; not always UTF-8.
    pub machine: Vec<u8>,
    /// Effective user of the caller.
    pub uid: u32,
    /// Effective group of the caller.
    pub gid: u32,
    /// Other groups of the caller, at most 16.
    pub gids: Gids,
}

/// The identity of a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE: no identity.
    #[default]
    None,
    /// AUTH_SYS: the identity is not proven, since any host that can reach the port can claim it.
    Sys(SysCredential),
}

impl Credential {
    /// Decodes the credential of a call. A flavor that this end does not take is reported as too
    /// weak, so that the caller may try another.
    pub(crate) fn decode(auth: &Auth<'_>) -> Result<Credential, AuthStat> {
        match auth.flavor() {
            // RFC 5531 section 10: the body is empty.
            Flavor::NONE if auth.body().is_empty() => Ok(Credential::None),
            Flavor::SYS => {
                let sys = AuthSys::decode(auth).map_err(|_| AuthStat::BAD_CRED)?;
                let AuthSys { stamp, machine, uid, gid, gids } = sys;
                let machine = machine.to_vec();
                Ok(Credential::Sys(SysCredential { stamp, machine, uid, gid, gids }))
            }
            Flavor::NONE => Err(AuthStat::BAD_CRED),
            _ => Err(AuthStat::TOO_WEAK),
        }
    }

    /// Calls `f` with the credential as encoded in a call.
    ///
    /// # Errors
    /// Returns an error when the machine's name is too long.
    pub fn encoded<T>(&self, f: impl FnOnce(Auth<'_>) -> T) -> Result<T, AuthSysError> {
        match self {
            Credential::None => Ok(f(Auth::NONE)),
            Credential::Sys(sys) => {
                let SysCredential { stamp, ref machine, uid, gid, gids } = *sys;
                let mut body = [0; AuthSys::MAX_LEN];
                Ok(f(AuthSys { stamp, machine, uid, gid, gids }.encode(&mut body)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_credential_of_either_flavor_decodes_to_what_was_encoded() {
        let gids = Gids::new(&[5, 6]).unwrap();
        let sys = SysCredential { stamp: 1, machine: b"loom".to_vec(), uid: 2, gid: 3, gids };
        for credential in [Credential::None, Credential::Sys(sys)] {
            let back = credential.encoded(|auth| Credential::decode(&auth)).unwrap();
            assert_eq!(back, Ok(credential));
        }
    }

    #[test]
    fn test_malformed_and_foreign_credentials_are_refused() {
        let refused = |flavor, body| Credential::decode(&Auth::new(flavor, body).unwrap());
        assert_eq!(refused(Flavor::SYS, &[1]), Err(AuthStat::BAD_CRED));
        assert_eq!(refused(Flavor::NONE, &[1]), Err(AuthStat::BAD_CRED));
        assert_eq!(refused(Flavor::GSS, &[]), Err(AuthStat::TOO_WEAK));
    }

    #[test]
    fn test_machine_name_that_is_too_long_is_not_sent() {
        let sys = SysCredential { machine: vec![b'x'; 256], ..SysCredential::default() };
        let error = Credential::Sys(sys).encoded(|_| ()).unwrap_err();
        assert_eq!(error, AuthSysError::Name { len: 256 });
    }
}
