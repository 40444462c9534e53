//! Who calls (RFC 5531 section 8): credentials that are kept beyond the message that they came in.

use heddle_rpcrdma::rpc::{Auth, AuthStat, AuthSys, AuthSysError, Flavor, Gids};

/// A caller's user and groups, by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysCredential {
    /// Any number.
    pub stamp: u32,
    /// Name of the caller's machine, at most 255 octets; not always UTF-8.
    pub machine: Vec<u8>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its other groups, at most 16.
    pub gids: Gids,
}

/// Who calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE: nobody in particular.
    #[default]
    None,
    /// AUTH_SYS. What it says is not proven: whoever can reach the port can say it.
    Sys(SysCredential),
}

impl Credential {
    /// Reads that of a call. A flavor that is not taken is too weak for us, as far as a caller need
    /// know: it may try another.
    pub(crate) fn decode(auth: &Auth<'_>) -> Result<Credential, AuthStat> {
        match auth.flavor() {
            // RFC 5531 section 10: the body has no octets.
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

    /// Gives it to `f` as it stands in a call.
    ///
    /// # Errors
    /// When the machine's name is too long.
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
    fn test_credential_of_either_flavor_is_read_as_it_was_written() {
        let gids = Gids::new(&[5, 6]).unwrap();
        let sys = SysCredential { stamp: 1, machine: b"loom".to_vec(), uid: 2, gid: 3, gids };
        for credential in [Credential::None, Credential::Sys(sys)] {
            let back = credential.encoded(|auth| Credential::decode(&auth)).unwrap();
            assert_eq!(back, Ok(credential));
        }
    }

    #[test]
    fn test_what_is_no_credential_and_what_is_one_of_another_flavor_are_refused() {
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
