//! A server that runs out of descriptors. A call that fails for want of one has to tell the client
//! to come again (`JUKEBOX`), changes nothing, and does not claim that an object is gone. The file
//! has only one test, as all tests of a process share its descriptors.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

#[path = "it/common.rs"]
mod common;

use std::fs::{self, File};
use std::time::{Duration, Instant};

use common::{Lab, mode, names};
use heddle_nfs::Options;
use heddle_nfs::wire::{
    Created, DirEntryName, Handle, How, Link, LinkDone, Mkdir, Opaque, Remove, Rename, RenameDone,
    Setattr, Status, Symlink, Verifier, WccData, procedure,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The descriptors that a call can use, and a few more.
const ENOUGH: usize = 8;

/// Takes all free descriptors except `free`, until the returned value is dropped.
fn all_but(free: usize) -> Vec<File> {
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }
    all.truncate(all.len() - free);
    all
}

fn at(dir: Handle, name: &[u8]) -> DirEntryName<'_> {
    DirEntryName { dir, name: Opaque(name) }
}

/// Repeats a call with more and more descriptors free until it succeeds; each call before that has
/// to fail for now and leave the tree as it was.
fn with_few(lab: &Lab, what: &str, call: impl Fn() -> Result<(), Status>) {
    let before = tree(lab);
    for free in 0..=ENOUGH {
        let hog = all_but(free);
        let done = call();
        drop(hog);
        match done {
            Ok(()) => return assert_ne!(tree(lab), before, "{what}"),
            Err(status) => assert_eq!(status, Status::JUKEBOX, "{what} with {free}"),
        }
        assert_eq!(tree(lab), before, "{what} with {free}");
    }
    panic!("{what} was not done with {ENOUGH} descriptors");
}

/// Returns all names and permissions.
fn tree(lab: &Lab) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt;
    let list =
        |dir: &'static str| names(&lab.path(dir)).into_iter().map(move |n| format!("{dir}/{n}"));
    let all = list("").chain(list("d"));
    all.map(|path| {
        let stat = fs::symlink_metadata(lab.path(path.trim_start_matches('/'))).unwrap();
        format!("{path} {:o}", stat.permissions().mode())
    })
    .collect()
}

#[test]
fn test_lack_of_descriptors_is_temporary_and_leaves_no_partial_change() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let lab = Lab::with(Options { descriptors: 1, ..Options::default() });
    fs::create_dir(lab.path("d")).unwrap();
    for name in ["d/f", "g", "other"] {
        fs::write(lab.path(name), b"x").unwrap();
    }
    let [root, dir, f, g, other] = ["", "d", "d/f", "g", "other"].map(|path| lab.handle(path));
    // The service keeps a descriptor only of the last file.
    lab.getattr(other).unwrap();
    for free in 0..2 {
        let hog = all_but(free);
        let said = [lab.getattr(f), lab.getattr(g)];
        drop(hog);
        assert!(said.iter().all(|s| matches!(s, Ok(_) | Err(Status::JUKEBOX))), "{free}: {said:?}");
        lab.getattr(other).unwrap();
    }
    let start = Instant::now();
    while lab.getattr(f) == Err(Status::JUKEBOX) {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    lab.getattr(f).unwrap();
    lab.read(g, 0, 1).unwrap();

    let status = |(status, _)| status;
    for (name, how) in [
        (&b"guarded"[..], How::Guarded(mode(0o640))),
        (b"unchecked", How::Unchecked(mode(0o640))),
        (b"exclusive", How::Exclusive(Verifier(*b"verifier"))),
    ] {
        with_few(&lab, "CREATE", || lab.create(root, name, how).map(drop).map_err(status));
    }
    let call = Mkdir { at: at(root, b"made"), attributes: mode(0o750) };
    let make = |done: Result<Created, (Status, WccData)>| done.map(drop).map_err(status);
    with_few(&lab, "MKDIR", || make(lab.call(procedure::MKDIR, &call)));
    let call = Symlink { at: at(root, b"link"), attributes: mode(0o777), path: Opaque(b"x") };
    with_few(&lab, "SYMLINK", || make(lab.call(procedure::SYMLINK, &call)));
    let call = Setattr { object: g, attributes: mode(0o400), guard: None };
    let change = |done: Result<WccData, (Status, WccData)>| done.map(drop).map_err(status);
    with_few(&lab, "SETATTR", || change(lab.call(procedure::SETATTR, &call)));
    let call = Link { file: f, at: at(root, b"name") };
    with_few(&lab, "LINK", || {
        lab.call::<LinkDone, LinkDone>(procedure::LINK, &call).map(drop).map_err(|(s, _)| s)
    });
    let call = Rename { from: at(dir, b"f"), to: at(root, b"g") };
    with_few(&lab, "RENAME", || {
        lab.call::<RenameDone, RenameDone>(procedure::RENAME, &call).map(drop).map_err(|(s, _)| s)
    });
    let call = Remove { dir: root, name: Opaque(b"other") };
    with_few(&lab, "REMOVE", || change(lab.call(procedure::REMOVE, &call)));
    let call = Remove { dir: root, name: Opaque(b"made") };
    with_few(&lab, "RMDIR", || change(lab.call(procedure::RMDIR, &call)));
}
