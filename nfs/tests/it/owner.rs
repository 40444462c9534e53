//! Modes and owners: the owner of a file reads and writes it whatever its mode is (RFC 1813 section
//! 4.4), new contents do not keep the set-ID rights of the old, and IDs that a client may not set
//! make no call fail.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::thread;

use crate::common::Lab;
use heddle_nfs::Options;
use heddle_nfs::wire::{
    Commit, CommitOk, Created, DirEntryName, Handle, How, Mkdir, Opaque, Sattr, Setattr, Status,
    WccData, procedure,
};
use rustix::fs::{Gid, Uid};
use rustix::process::{getegid, geteuid, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user without rights: `nobody`.
const NOBODY: u32 = 65_534;

/// Makes a service that keeps descriptors of two files.
fn lab() -> Lab {
    Lab::with(Options { sync: false, descriptors: 2, ..Options::default() })
}

/// Runs `test` as a user without privileges who owns the exported directory. A root process becomes
/// `nobody` for the test; any other user has no privileges anyway.
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

/// Makes the service use other files until it evicts its earlier descriptors.
fn evict(lab: &Lab) {
    for name in [&b"other0"[..], b"other1", b"other2", b"other3"] {
        let made = lab.create(lab.root(), name, How::Unchecked(Sattr::default())).unwrap();
        lab.write(made.object.unwrap(), 0, b"other").unwrap();
    }
}

/// Returns the permissions of a file of the export, as the host sees them.
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
        // Only root can make files of two users.
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
                    // The test has six files and the service two descriptors, so nearly each WRITE
                    // opens its file.
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
            // Round 594 + i was the last to set this file's mode.
            assert_eq!(mode(lab, &format!("f{i}")), [0o400, 0o444][i % 2], "f{i}");
        }
    });
}

#[test]
fn test_create_succeeds_although_owner_may_not_be_set() {
    as_user_without_privileges(&mut lab(), |lab| {
        let own = (geteuid().as_raw(), getegid().as_raw());
        let ids = [(Some(1234), None), (None, Some(1234)), (Some(1234), Some(1234))];
        for (i, (uid, gid)) in ids.into_iter().chain([(Some(own.0), Some(own.1))]).enumerate() {
            let attributes = Sattr { mode: Some(0o640), uid, gid, ..Sattr::default() };
            let name = format!("file{i}");
            lab.create(lab.root(), name.as_bytes(), How::Guarded(attributes)).unwrap();
            let at = DirEntryName { dir: lab.root(), name: Opaque(b"dir") };
            let call = Mkdir { at, attributes };
            let made = lab.call::<Created, WccData>(procedure::MKDIR, &call).unwrap();
            let attributes = made.attributes.unwrap();
            assert_eq!((attributes.uid, attributes.gid), own);
            assert_eq!((attributes.mode, mode(lab, &name)), (0o640, 0o640));
            fs::remove_dir(lab.path("dir")).unwrap();
            // SETATTR of an existing object reports the failure.
            if i < 3 {
                let ids = Sattr { uid, gid, ..Sattr::default() };
                assert_eq!(set(lab, lab.handle(&name), ids), Err(Status::PERM));
            }
        }
    });
}

#[test]
fn test_write_and_truncation_take_set_id_bits_away() {
    let lab = lab();
    let cases =
        [(0o6755, 0o755), (0o4711, 0o711), (0o2755, 0o755), (0o2745, 0o2745), (0o1755, 0o1755)];
    for (i, (before, after)) in cases.into_iter().enumerate() {
        let name = format!("program{i}");
        let bits = fs::Permissions::from_mode(before);
        fs::write(lab.path(&name), b"a program").unwrap();
        fs::set_permissions(lab.path(&name), bits.clone()).unwrap();
        let file = lab.handle(&name);
        lab.write(file, 0, b"").unwrap();
        lab.read(file, 0, 1).unwrap();
        commit(&lab, file).unwrap();
        assert_eq!(mode(&lab, &name), before, "nothing was changed");
        let written = lab.write(file, 0, b"another").unwrap();
        assert_eq!((mode(&lab, &name), written.wcc.after.unwrap().mode), (after, after));
        for size in [3, 9] {
            fs::set_permissions(lab.path(&name), bits.clone()).unwrap();
            set(&lab, file, Sattr { size: Some(size), ..Sattr::default() }).unwrap();
            assert_eq!(mode(&lab, &name), after, "{before:o} {size}");
        }
        fs::set_permissions(lab.path(&name), bits).unwrap();
        let how = How::Unchecked(Sattr { size: Some(0), ..Sattr::default() });
        lab.create(lab.root(), name.as_bytes(), how).unwrap();
        assert_eq!(mode(&lab, &name), after, "{before:o}");
    }
}

#[test]
fn test_write_to_running_program_is_refused_and_not_put_off() {
    let lab = lab();
    fs::copy("/bin/sleep", lab.path("sleep")).unwrap();
    let file = lab.handle("sleep");
    let mut running = Command::new(lab.path("sleep")).arg("1000").spawn().unwrap();
    let said =
        (lab.write(file, 0, b"x"), set(&lab, file, Sattr { size: Some(0), ..Sattr::default() }));
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(said, (Err(Status::ACCES), Err(Status::ACCES)));
    lab.write(file, 0, b"x").unwrap();
}
