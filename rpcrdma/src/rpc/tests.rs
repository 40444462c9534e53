use proptest::prelude::*;

use super::*;
use crate::xdr::Fault;

const XID: Xid = Xid(0xabad_cafe);
const READ: Procedure = Procedure { program: 100_003, version: 3, procedure: 6 };

fn bytes(units: &[u32]) -> Vec<u8> {
    units.iter().flat_map(|u| u.to_be_bytes()).collect()
}

fn sys() -> AuthSys<'static> {
    let gids = Gids::new(&[7, 8]).unwrap();
    AuthSys { stamp: 0x0102_0304, machine: b"krypton", uid: 1000, gid: 100, gids }
}

/// AUTH_SYS with the machine name from the example in RFC 5531.
const SYS_UNITS: [u32; 8] = [0x0102_0304, 7, 0x6b72_7970, 0x746f_6e00, 1000, 100, 2, 7];

#[test]
fn test_call_encodes_as_in_rfc_5531() {
    let mut body = [0; AuthSys::MAX_LEN];
    let cred = sys().encode(&mut body).unwrap();
    let call = Call { xid: XID, procedure: READ, cred, verf: Auth::NONE };
    let want = [&[XID.0, 0, 2, 100_003, 3, 6, 1, 36][..], &SYS_UNITS, &[8, 0, 0]].concat();
    let mut out = [0; 200];
    let len = call.encode(&mut out).unwrap();
    assert_eq!(out[..len], bytes(&want));
    assert_eq!(call.encoded_len(), len);
    assert!(call.encode(&mut out[..len - 1]).is_err());
    out[len..len + 3].copy_from_slice(b"abc");
    let (read, args) = Call::decode(&out[..len + 3]).unwrap();
    assert_eq!((read, args), (call, &b"abc"[..]));
    assert_eq!(AuthSys::decode(&read.cred), Ok(sys()));
    for end in 0..len {
        assert!(Call::decode(&out[..end]).is_err(), "{end}");
    }
}

#[test]
fn test_shortest_call_is_ten_units() {
    let call = Call { xid: XID, procedure: READ, cred: Auth::NONE, verf: Auth::NONE };
    assert_eq!(call.encoded_len(), Call::MIN_LEN);
}

#[test]
fn test_call_of_another_rpc_version_is_denied_with_ours() {
    for version in [0, 1, 3] {
        let e = Call::decode(&bytes(&[XID.0, 0, version, 100_003, 3, 6])).unwrap_err();
        assert_eq!((e.at, e.fault), (8, CallFault::Version { version }));
        let body = ReplyBody::Denied(Denied::RpcMismatch { low: 2, high: 2 });
        assert_eq!(e.reply(), Some(Reply { xid: XID, body }));
    }
}

#[test]
fn test_bad_credential_and_verifier_are_denied_with_their_own_codes() {
    let head = [XID.0, 0, 2, 100_003, 3, 6];
    let stat = |units: &[u32]| {
        let e = Call::decode(&bytes(&[&head, units].concat())).unwrap_err();
        match e.reply().map(|r| r.body) {
            Some(ReplyBody::Denied(Denied::AuthError(stat))) => (e.fault, stat),
            other => panic!("{other:?}"),
        }
    };
    let long = Fault::Length { len: 401, max: 400 };
    assert_eq!(stat(&[1, 401]), (CallFault::Cred(long), AuthStat::BAD_CRED));
    assert_eq!(stat(&[0, 0, 1, 401]), (CallFault::Verf(long), AuthStat::BAD_VERF));
    assert_eq!(stat(&[1, 3, 1]).0, CallFault::Cred(Fault::Padding));
    let body = [0; 400];
    assert!(Auth::new(Flavor::GSS, &body).is_some());
    assert_eq!(Auth::new(Flavor::GSS, &[0; 401]), None);
}

#[test]
fn test_malformed_call_gets_no_reply() {
    for units in [&[XID.0][..], &[XID.0, 1], &[XID.0, 2, 2], &[XID.0, 0], &[XID.0, 0, 2, 1]] {
        let e = Call::decode(&bytes(units)).unwrap_err();
        assert_eq!(e.reply(), None, "{units:?}");
    }
}

#[test]
fn test_every_kind_of_reply_encodes_as_in_rfc_5531() {
    let accepted = |status| Reply::accepted(XID, status);
    let denied = |d| Reply { xid: XID, body: ReplyBody::Denied(d) };
    let stat = |n| denied(Denied::AuthError(AuthStat(n)));
    let all: [(Reply<'_>, &[u32]); 11] = [
        (accepted(Status::Success), &[0, 0, 0, 0]),
        (accepted(Status::ProgUnavail), &[0, 0, 0, 1]),
        (accepted(Status::ProgMismatch { low: 2, high: 4 }), &[0, 0, 0, 2, 2, 4]),
        (accepted(Status::ProcUnavail), &[0, 0, 0, 3]),
        (accepted(Status::GarbageArgs), &[0, 0, 0, 4]),
        (accepted(Status::SystemErr), &[0, 0, 0, 5]),
        (denied(Denied::RpcMismatch { low: 2, high: 2 }), &[1, 0, 2, 2]),
        (stat(AuthStat::OK.0), &[1, 1, 0]),
        (stat(AuthStat::BAD_CRED.0), &[1, 1, 1]),
        (stat(AuthStat::GSS_CTX_PROBLEM.0), &[1, 1, 14]),
        (stat(4711), &[1, 1, 4711]),
    ];
    for (reply, units) in all {
        let want = bytes(&[&[XID.0, 1], units].concat());
        let mut out = [0; 64];
        let len = reply.encode(&mut out).unwrap();
        assert_eq!((&out[..len], reply.encoded_len()), (&want[..], len));
        assert_eq!(Reply::decode(&want), Ok((reply, &[][..])));
        for end in 0..len {
            assert!(Reply::decode(&want[..end]).is_err(), "{reply:?}: {end}");
        }
        // Results follow a success; nothing follows any other status.
        let behind = Reply::decode(&out[..len + 4]);
        match reply.has_results() {
            true => assert_eq!(behind, Ok((reply, &[0; 4][..]))),
            false => assert_eq!(behind.map_err(|e| e.at), Err(len)),
        }
    }
}

#[test]
fn test_reply_of_codes_that_are_not_assigned_is_refused() {
    for units in [&[0, 0][..], &[1, 2], &[1, 0, 0, 0, 6], &[1, 1, 2, 0]] {
        let e = Reply::decode(&bytes(&[&[XID.0], units].concat())).unwrap_err();
        assert!(matches!(e.fault, Fault::Enum { .. }), "{units:?}: {e}");
    }
}

#[test]
fn test_auth_stats_have_the_numbers_of_the_rfc() {
    let all = [
        AuthStat::OK,
        AuthStat::BAD_CRED,
        AuthStat::REJECTED_CRED,
        AuthStat::BAD_VERF,
        AuthStat::REJECTED_VERF,
        AuthStat::TOO_WEAK,
        AuthStat::INVALID_RESP,
        AuthStat::FAILED,
        AuthStat::KERB_GENERIC,
        AuthStat::TIME_EXPIRE,
        AuthStat::TKT_FILE,
        AuthStat::DECODE,
        AuthStat::NET_ADDR,
        AuthStat::GSS_CRED_PROBLEM,
        AuthStat::GSS_CTX_PROBLEM,
    ];
    assert!(all.iter().map(|s| s.0).eq(0..15));
}

#[test]
fn test_wrapped_messages_are_not_reduced() {
    let gss = |units: &[u32]| {
        let body = bytes(units);
        Auth::new(Flavor::GSS, &body).unwrap().may_reduce()
    };
    assert!(gss(&[1, 0, 99, 1, 0]));
    assert!(!gss(&[1, 0, 99, 2, 0]) && !gss(&[1, 0, 99, 3, 0]), "integrity and privacy");
    for control in 1..4 {
        assert!(!gss(&[1, control, 0, 1, 0]));
    }
    assert!(!gss(&[2, 0, 99, 1, 0]) && !gss(&[1, 0, 99]) && !gss(&[]), "not understood");
    assert!(Auth::NONE.may_reduce() && Auth::new(Flavor::SYS, &[]).unwrap().may_reduce());
}

#[test]
fn test_auth_sys_keeps_to_its_limits() {
    let name = [b'n'; 256];
    let gids = Gids::new(&[1; 16]).unwrap();
    assert_eq!(Gids::new(&[1; 17]), None);
    let longest = AuthSys { machine: &name[..255], gids, ..sys() };
    let mut out = [0; AuthSys::MAX_LEN];
    let cred = longest.encode(&mut out).unwrap();
    assert_eq!(cred.body().len(), AuthSys::MAX_LEN);
    assert_eq!(AuthSys::decode(&cred), Ok(longest));
    let long = AuthSys { machine: &name, ..sys() };
    assert_eq!(long.encode(&mut [0; 400]), Err(AuthSysError::Name { len: 256 }));
    assert!(matches!(sys().encode(&mut [0; 35]), Err(AuthSysError::NoRoom(_))));

    let read = |units: &[u32]| {
        let body = bytes(units);
        AuthSys::decode(&Auth::new(Flavor::SYS, &body).unwrap()).map(drop)
    };
    let fault = |units: &[u32]| match read(units) {
        Err(AuthSysError::Xdr(e)) => e.fault,
        other => panic!("{other:?}"),
    };
    let many = [&[0, 0, 0, 0, 17][..], &[1; 17]].concat();
    assert_eq!(fault(&many), Fault::Length { len: 17, max: 16 });
    assert_eq!(fault(&[0, 256]), Fault::Length { len: 256, max: 255 });
    assert_eq!(fault(&[0, 0, 0, 0, 0, 0]), Fault::Trailing { left: 4 });
    assert_eq!(fault(&[0, 0, 0, 0, 1]), Fault::End { need: 4, have: 0 });
    assert_eq!(read(&[0, 0, 0, 0, 0]), Ok(()));
    let other = Auth::new(Flavor::SHORT, &[]).unwrap();
    assert_eq!(AuthSys::decode(&other), Err(AuthSysError::Flavor(Flavor::SHORT)));
}

proptest! {
    #[test]
    fn prop_calls_are_read_as_they_were_written(
        xid: u32, program: u32, version: u32, procedure: u32,
        flavors: (u32, u32),
        cred in prop::collection::vec(any::<u8>(), 0..=400),
        verf in prop::collection::vec(any::<u8>(), 0..=400),
        args in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let call = Call {
            xid: Xid(xid),
            procedure: Procedure { program, version, procedure },
            cred: Auth::new(Flavor(flavors.0), &cred).unwrap(),
            verf: Auth::new(Flavor(flavors.1), &verf).unwrap(),
        };
        let mut out = vec![0; call.encoded_len()];
        call.encode(&mut out).unwrap();
        out.extend(&args);
        prop_assert_eq!(Call::decode(&out), Ok((call, &args[..])));
    }

    /// A decoded message encodes to the same bytes.
    #[test]
    fn prop_any_bytes_are_read_or_refused(
        kind in 0u32..2, stat in 0u32..3, rest in prop::collection::vec(0u32..4, 0..12),
    ) {
        let all = bytes(&[&[1, kind, stat], &rest[..]].concat());
        let mut out = vec![0; all.len()];
        if let Ok((call, args)) = Call::decode(&all) {
            let len = call.encode(&mut out).unwrap();
            prop_assert_eq!((&out[..len], args), all.split_at(len));
        }
        if let Ok((reply, results)) = Reply::decode(&all) {
            let len = reply.encode(&mut out).unwrap();
            prop_assert_eq!((&out[..len], results), all.split_at(len));
        }
    }
}
