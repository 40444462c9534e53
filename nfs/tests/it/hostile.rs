//! Messages of every kind that no client sends: the service gives one answer or none, of bounded
//! length, and reaches nothing beside the export.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{Lab, message, mode};
use heddle_nfs::wire::{
    Access, Commit, Create, DirEntryName, Handle, How, Link, MESSAGE_MAX, Mkdir, Mknod, MknodKind,
    OfHandle, Opaque, Read, Readdir, Readdirplus, Rename, Sattr, SetTime, Setattr, Stable, Symlink,
    Time, Verifier, Write, Xdr, mount, procedure,
};
use heddle_rpcrdma::rpc::{
    Auth, AuthStat, Denied, Flavor, Procedure, Reply, ReplyBody, Status as RpcStatus,
};

/// A small generator (xorshift) with a fixed seed, so that a failure can be reproduced.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }
}

/// Returns a call of each procedure, with all its fields in use.
fn calls(dir: Handle, file: Handle) -> Vec<(Procedure, Vec<u8>)> {
    let at = |name| DirEntryName { dir, name: Opaque(name) };
    let time = SetTime::Client(Time { seconds: 1, nanoseconds: 2 });
    let full = Sattr { atime: time, mtime: time, size: Some(3), ..mode(0o700) };
    let of = OfHandle { object: file }.bytes();
    let verifier = Verifier::default();
    let stable = Stable::FileSync;
    use procedure as p;
    vec![
        (p::GETATTR, of.clone()),
        (p::SETATTR, Setattr { object: file, attributes: full, guard: None }.bytes()),
        (p::LOOKUP, at(b"file").bytes()),
        (p::ACCESS, Access { object: dir, access: 0x3f }.bytes()),
        (p::READLINK, of.clone()),
        (p::READ, Read { file, offset: 1, count: 100 }.bytes()),
        (p::WRITE, Write { file, offset: 1, count: 5, stable, data: Opaque(b"12345") }.bytes()),
        (p::CREATE, Create { at: at(b"c"), how: How::Unchecked(full) }.bytes()),
        (p::CREATE, Create { at: at(b"e"), how: How::Exclusive(verifier) }.bytes()),
        (p::MKDIR, Mkdir { at: at(b"m"), attributes: full }.bytes()),
        (
            p::SYMLINK,
            Symlink { at: at(b"s"), attributes: full, path: Opaque(b"../outside") }.bytes(),
        ),
        (p::MKNOD, Mknod { at: at(b"n"), kind: MknodKind::Fifo(full) }.bytes()),
        (p::REMOVE, at(b"c").bytes()),
        (p::RMDIR, at(b"m").bytes()),
        (p::RENAME, Rename { from: at(b"e"), to: at(b"f") }.bytes()),
        (p::LINK, Link { file, at: at(b"l") }.bytes()),
        (p::READDIR, Readdir { dir, cookie: 0, verifier, count: 4096 }.bytes()),
        (
            p::READDIRPLUS,
            Readdirplus { dir, cookie: 0, verifier, dircount: 4096, maxcount: 4096 }.bytes(),
        ),
        (p::FSSTAT, of.clone()),
        (p::FSINFO, of.clone()),
        (p::PATHCONF, of),
        (p::COMMIT, Commit { file, offset: 0, count: 0 }.bytes()),
        (mount::MNT, Opaque::<99>(b"/data/dir").bytes()),
        (mount::DUMP, vec![]),
        (mount::UMNT, Opaque::<99>(b"/data").bytes()),
        (mount::UMNTALL, vec![]),
        (mount::EXPORT, vec![]),
    ]
}

fn lab() -> (Lab, Handle, Handle) {
    let lab = Lab::new();
    fs::create_dir(lab.path("dir")).unwrap();
    fs::write(lab.path("dir/file"), b"contents").unwrap();
    symlink("../../outside", lab.path("dir/out")).unwrap();
    let (dir, file) = (lab.handle("dir"), lab.handle("dir/file"));
    (lab, dir, file)
}

/// Returns the answer to a message, and checks that there is one or none.
fn answer(lab: &Lab, message: &[u8]) -> Option<Vec<u8>> {
    let mut reply = Vec::new();
    let handled = lab.service.handle(message, &mut reply);
    assert_eq!(handled.is_some(), !reply.is_empty());
    assert!(reply.len() <= MESSAGE_MAX as usize, "{}", reply.len());
    let item = handled?.item;
    if let Some(item) = item {
        assert!((item.offset + item.length) as usize <= reply.len() && item.offset % 4 == 0);
    }
    Reply::decode(&reply).unwrap();
    Some(reply)
}

fn status(reply: &[u8]) -> ReplyBody<'_> {
    Reply::decode(reply).unwrap().0.body
}

#[test]
fn test_truncated_or_overlong_call_is_answered_with_garbage_args() {
    let (lab, dir, file) = lab();
    let mut refused = 0;
    for (p, arguments) in calls(dir, file) {
        for len in (0..arguments.len()).step_by(4) {
            let reply = answer(&lab, &message(p, Auth::NONE, &arguments[..len])).unwrap();
            let garbage = matches!(
                status(&reply),
                ReplyBody::Accepted { status: RpcStatus::GarbageArgs, .. }
            );
            assert!(garbage, "{p:?} {len} of {}", arguments.len());
            refused += 1;
        }
        let long = [&arguments[..], &[0; 4]].concat();
        let reply = answer(&lab, &message(p, Auth::NONE, &long)).unwrap();
        assert!(matches!(
            status(&reply),
            ReplyBody::Accepted { status: RpcStatus::GarbageArgs, .. }
        ));
        refused += 1;
    }
    assert_eq!((lab.service.counts().garbage, lab.service.counts().failed), (refused, 0));
}

#[test]
fn test_mutated_calls_of_every_procedure_get_decodable_replies() {
    let (lab, dir, file) = lab();
    let calls = calls(dir, file);
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let mut carried_out = BTreeMap::new();
    for round in 0..20_000 {
        let (p, arguments) = &calls[rng.below(calls.len())];
        let mut bytes = message(*p, Auth::NONE, arguments);
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len());
            match rng.below(4) {
                0 => bytes[at] = rng.next().to_le_bytes()[0],
                1 => bytes[at] ^= 1 << rng.below(8),
                2 => bytes.truncate(at.max(1)),
                // Overwrites a length or number anywhere in the message.
                _ => {
                    let at = at & !3;
                    let big = [u32::MAX, 1 << 31, MESSAGE_MAX, 65, 256][rng.below(5)];
                    let to = bytes.iter_mut().skip(at);
                    to.zip(big.to_be_bytes()).for_each(|(to, byte)| *to = byte);
                }
            }
        }
        if let Some(reply) = answer(&lab, &bytes) {
            let done = u32::from(Reply::decode(&reply).unwrap().0.has_results());
            *carried_out.entry((p.program, p.procedure)).or_insert(0) += done;
        }
        if round % 1000 == 0 {
            // A call that was carried out may have changed these objects.
            let _ = fs::create_dir(lab.path("dir"));
            let _ = fs::write(lab.path("dir/file"), b"contents");
        }
    }
    // Many of the changed messages are still valid calls.
    assert!(carried_out.len() == 26 && carried_out.values().all(|&n| n > 20), "{carried_out:?}");
}

#[test]
fn test_random_bytes_are_dropped_or_refused() {
    let (lab, ..) = lab();
    let mut rng = Rng(42);
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..rng.below(200)).map(|_| rng.next().to_le_bytes()[0]).collect();
        if rng.below(2) == 0 {
            // Random bytes follow after a valid-looking call header.
            let p = Procedure {
                program: [procedure::PROGRAM, mount::PROGRAM, 5][rng.below(3)],
                version: [3, 3, 4][rng.below(3)],
                procedure: u32::try_from(rng.below(25)).unwrap(),
            };
            bytes = message(p, Auth::NONE, &bytes);
        }
        answer(&lab, &bytes);
    }
    let counts = lab.service.counts();
    assert!(counts.dropped > 5000 && counts.garbage > 1000 && counts.unavailable > 1000);
}

#[test]
fn test_unknown_programs_versions_and_procedures_are_reported() {
    let (lab, ..) = lab();
    let body = |program, version, procedure| {
        let p = Procedure { program, version, procedure };
        let reply: &'static [u8] = answer(&lab, &message(p, Auth::NONE, &[])).unwrap().leak();
        match status(reply) {
            ReplyBody::Accepted { status, .. } => status,
            ReplyBody::Denied(denied) => panic!("{denied:?}"),
        }
    };
    let versions = RpcStatus::ProgMismatch { low: 3, high: 3 };
    assert_eq!(body(100_003, 4, 1), versions);
    assert_eq!(body(100_005, 1, 0), versions);
    assert_eq!(body(100_000, 2, 0), RpcStatus::ProgUnavail);
    assert_eq!(body(100_003, 3, 22), RpcStatus::ProcUnavail);
    assert_eq!(body(100_005, 3, 6), RpcStatus::ProcUnavail);
    assert_eq!(body(100_003, 3, 0), RpcStatus::Success);
    assert_eq!(lab.service.counts().unavailable, 5);
}

#[test]
fn test_invalid_credentials_are_denied() {
    let (lab, dir, _) = lab();
    let arguments = OfHandle { object: dir }.bytes();
    let mut denied = 0;
    for (flavor, body, stat) in [
        (Flavor::SYS, &b""[..], AuthStat::BAD_CRED),
        (Flavor::SYS, &[0xff; 20], AuthStat::BAD_CRED),
        (Flavor::GSS, b"1234", AuthStat::REJECTED_CRED),
        (Flavor(77), b"", AuthStat::REJECTED_CRED),
    ] {
        let cred = Auth::new(flavor, body).unwrap();
        let reply = answer(&lab, &message(procedure::GETATTR, cred, &arguments)).unwrap();
        assert_eq!(status(&reply), ReplyBody::Denied(Denied::AuthError(stat)));
        denied += 1;
        // A client that only probes the server with NULL need not identify itself.
        let reply = answer(&lab, &message(procedure::NULL, cred, &[])).unwrap();
        assert!(matches!(status(&reply), ReplyBody::Accepted { .. }));
    }
    assert_eq!(lab.service.counts().denied, denied);
}
