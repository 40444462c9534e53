//! The owner of a file reads and writes it whatever its mode is (RFC 1813 section 4.4).
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::thread;

use common::Lab;
use heddle_nfs::Options;
use heddle_nfs::wire::{Commit, CommitOk, Handle, How, Sattr, Setattr, Status, WccData, procedure};
use rustix::fs::{Gid, Uid};
use rustix::process::{geteuid, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user without rights: `nobody`.
const NOBODY: u32 = 65_534;

/// A service that keeps descriptors of two files.
fn lab() -> Lab {
    Lab::with(Options { sync: false, descriptors: 2, ..Options::default() })
}

/// Runs `test` as a user without privileges who owns the exported directory. Root becomes one for it; anyone
/// else is one already.
fn as_user_without_privileges(lab: &mut Lab, test: impl FnOnce(&mut Lab) + Send) {
    let run = || {
        if geteuid().is_root() {
            for path in [lab.base.path().to_owned(), lab.path("")] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
        }
        assert!(!getuid().is_root());
        test(lab);
    };
    thread::scope(|scope| {
        let done = scope.spawn(run).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Has the service use other files until descriptors of those before are evicted.
fn evict(lab: &Lab) {
    for name in [&b"other0"[..], b"other1", b"other2", b"other3"] {
        let made = lab.create(lab.root(), name, How::Unchecked(Sattr::default())).unwrap();
        lab.write(made.object.unwrap(), 0, b"other").unwrap();
    }
}

/// Permissions of a file of the export, as the host sees them.
fn mode(lab: &Lab, name: &str) -> u32 {
    fs::metadata(lab.path(name)).unwrap().permissions().mode() & 0o7777
}

fn made(lab: &Lab, name: &[u8], mode: u32) -> Handle {
    let how = How::Guarded(Sattr { mode: Some(mode), ..Sattr::default() });
    lab.create(lab.root(), name, how).unwrap().object.unwrap()
}

fn set(lab: &Lab, object: Handle, attributes: Sattr) -> Result<(), Status> {
    let call = Setattr { object, attributes, guard: None };
    let done = lab.call::<WccData, WccData>(procedure::SETATTR, &call);
    done.map(drop).map_err(|(status, _)| status)
}

fn commit(lab: &Lab, file: Handle) -> Result<(), Status> {
    let call = Commit { file, offset: 0, count: 0 };
    let done = lab.call::<CommitOk, WccData>(procedure::COMMIT, &call);
    done.map(drop).map_err(|(status, _)| status)
}

#[test]
fn test_owner_writes_read_only_file_after_its_descriptor_was_evicted() {
    as_user_without_privileges(&mut lab(), |lab| {
        let file = made(lab, b"file", 0o444);
        lab.write(file, 0, b"first ").unwrap();
        evict(lab);
        lab.write(file, 6, b"second").unwrap();
        assert_eq!(fs::read(lab.path("file")).unwrap(), b"first second");
        assert_eq!(mode(lab, "file"), 0o444, "the mode is the client's");
        evict(lab);
        commit(lab, file).unwrap();
        evict(lab);
        set(lab, file, Sattr { size: Some(5), ..Sattr::default() }).unwrap();
        assert_eq!((lab.getattr(file).unwrap().size, mode(lab, "file")), (5, 0o444));
    });
}

#[test]
fn test_owner_writes_and_reads_file_of_any_mode_after_restart() {
    as_user_without_privileges(&mut lab(), |lab| {
        for (name, bits) in [("read", 0o444), ("write", 0o200), ("none", 0o000), ("run", 0o111)] {
            let file = made(lab, name.as_bytes(), bits);
            lab.write(file, 0, b"before").unwrap();
            lab.restart();
            lab.write(file, 6, b" and after").unwrap();
            lab.restart();
            assert_eq!(lab.read(file, 0, 100).unwrap().0, b"before and after", "{name}");
            assert_eq!(mode(lab, name), bits, "{name}");
        }
    });
}

#[test]
fn test_user_who_is_not_the_owner_is_refused_and_the_mode_stays() {
    if !getuid().is_root() {
        // Files of two users take root to make.
        return;
    }
    let mut lab = lab();
    fs::write(lab.path("file"), b"of root").unwrap();
    fs::set_permissions(lab.path("file"), fs::Permissions::from_mode(0o644)).unwrap();
    as_user_without_privileges(&mut lab, |lab| {
        let file = lab.handle("file");
        assert_eq!(lab.read(file, 0, 100).unwrap().0, b"of root");
        assert_eq!(lab.write(file, 0, b"x").unwrap_err(), Status::ACCES);
        let size = Sattr { size: Some(0), ..Sattr::default() };
        assert_eq!(set(lab, file, size), Err(Status::ACCES));
        assert_eq!(fs::read(lab.path("file")).unwrap(), b"of root");
    });
    assert_eq!(mode(&lab, "file"), 0o644);
}

#[test]
fn test_mode_that_is_set_while_the_owner_writes_stays() {
    as_user_without_privileges(&mut lab(), |lab| {
        let files: Vec<_> = (0..6).map(|i| made(lab, format!("f{i}").as_bytes(), 0o444)).collect();
        let (lab, files) = (&*lab, &files);
        thread::scope(|scope| {
            for offset in 0..3 {
                scope.spawn(move || {
                    // Six files and two kept descriptors: nearly each WRITE opens its file.
                    for (round, file) in files.iter().cycle().take(600).enumerate() {
                        lab.write(*file, (round + offset) as u64, b"x").unwrap();
                    }
                });
            }
            scope.spawn(move || {
                for (round, file) in files.iter().cycle().take(600).enumerate() {
                    let mode = [0o400, 0o444][round % 2];
                    set(lab, *file, Sattr { mode: Some(mode), ..Sattr::default() }).unwrap();
                    assert_eq!(lab.getattr(*file).unwrap().mode & 0o077, mode & 0o077);
                }
            });
        });
        for i in 0..6 {
            // Round 594 + i was the last to set one.
            assert_eq!(mode(lab, &format!("f{i}")), [0o400, 0o444][i % 2], "f{i}");
        }
    });
}
