//! Reading, writing, making, renaming and removing, compared with the state of the file system.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use crate::common::{Lab, mode, names};
use heddle_nfs::Options;
use heddle_nfs::wire::{
    Commit, CommitOk, Created, DirEntryName, Handle, How, Link, LinkDone, Mkdir, Mknod, MknodKind,
    Opaque, Rename, RenameDone, Sattr, Stable, Status, Symlink, Verifier, WccData, Write, WriteOk,
    procedure,
};

fn at(dir: Handle, name: &[u8]) -> DirEntryName<'_> {
    DirEntryName { dir, name: Opaque(name) }
}

#[test]
fn test_read_returns_data_and_end_of_file() {
    let lab = Lab::new();
    let contents: Vec<u8> = (0..3_000_001u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
    fs::write(lab.path("f"), &contents).unwrap();
    let f = lab.handle("f");
    let len = contents.len() as u64;
    for (offset, count, got) in [
        (0, 0, 0),
        (0, 1, 1),
        (0, 1 << 20, 1 << 20),
        (0, u32::MAX, 1 << 20),
        (5, 7, 7),
        (len - 3, 3, 3),
        (len - 3, 4, 3),
        (len, 10, 0),
        (len + 1, 10, 0),
        (u64::MAX, u32::MAX, 0),
    ] {
        let (data, eof) = lab.read(f, offset, count).unwrap();
        let start = usize::try_from(offset.min(len)).unwrap();
        assert_eq!(data, contents[start..start + got], "{offset} {count}");
        assert_eq!(eof, offset.saturating_add(got as u64) >= len, "{offset} {count}");
    }
    assert_eq!(lab.read(lab.root(), 0, 1).unwrap_err(), Status::INVAL);
    assert_eq!(lab.service.counts().read_bytes, 2 * (1 << 20) + 14);
}

#[test]
fn test_write_stores_data_and_returns_attributes_before_and_after() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"0123456789").unwrap();
    let f = lab.handle("f");
    let mut verifiers = Vec::new();
    for (stable, offset, data) in [
        (Stable::Unstable, 2, &b"ab"[..]),
        (Stable::DataSync, 9, b"cde"),
        (Stable::FileSync, 20, b""),
        (Stable::FileSync, 15, b"f"),
    ] {
        let before = lab.getattr(f).unwrap();
        let count = u32::try_from(data.len()).unwrap();
        let call = Write { file: f, offset, count, stable, data: Opaque(data) };
        let done: WriteOk = lab.call::<_, WccData>(procedure::WRITE, &call).unwrap();
        assert_eq!((done.count, done.committed), (count, stable));
        assert_eq!(done.wcc.before, Some(before.wcc()));
        assert_eq!(done.wcc.after, Some(lab.getattr(f).unwrap()));
        verifiers.push(done.verifier);
    }
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"01ab45678cde\0\0\0f");
    verifiers.dedup();
    assert_eq!(verifiers.len(), 1);
    let call = Write { file: f, offset: 0, count: 2, stable: Stable::Unstable, data: Opaque(b"x") };
    assert_eq!(lab.refused::<WriteOk, WccData>(procedure::WRITE, &call), Status::INVAL);
    assert_eq!(lab.write(f, i64::MAX as u64, b"x").unwrap_err(), Status::FBIG);
    assert_eq!(lab.write(f, u64::MAX, b"x").unwrap_err(), Status::FBIG);
    assert_eq!(lab.write(lab.root(), 0, b"x").unwrap_err(), Status::INVAL);
}

#[test]
fn test_verifier_of_writes_changes_at_a_restart_and_only_then() {
    let mut lab = Lab::new();
    fs::write(lab.path("f"), b"").unwrap();
    let file = lab.handle("f");
    let commit = |lab: &Lab| -> Verifier {
        let call = Commit { file, offset: 0, count: 0 };
        lab.call::<CommitOk, WccData>(procedure::COMMIT, &call).unwrap().verifier
    };
    let first = commit(&lab);
    assert_eq!(lab.write(file, 0, b"x").unwrap().verifier, first);
    assert_eq!(commit(&lab), first);
    lab.restart();
    assert_ne!(commit(&lab), first);
}

/// The server has reported the data as written, so the client can still have it put on the disk.
#[test]
fn test_commit_works_after_export_became_read_only() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"").unwrap();
    let file = lab.handle("f");
    let written = lab.write(file, 0, b"x").unwrap().verifier;
    lab.service.shares()[0].export().set(true, true);
    assert_eq!(lab.write(file, 1, b"y").unwrap_err(), Status::ROFS);
    let call = Commit { file, offset: 0, count: 0 };
    let committed = lab.call::<CommitOk, WccData>(procedure::COMMIT, &call).unwrap();
    assert_eq!(committed.verifier, written);
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"x");
}

#[test]
fn test_create_follows_unchecked_and_guarded_modes() {
    let lab = Lab::new();
    let root = lab.root();
    let made = lab.create(root, b"f", How::Guarded(mode(0o4666))).unwrap();
    assert_eq!(made.object.unwrap(), lab.handle("f"));
    // The new file has exactly the given mode, whatever the umask, except for the bit that gives
    // rights away.
    assert_eq!(made.attributes.unwrap().mode, 0o666);
    assert!(made.dir.before.unwrap().mtime <= made.dir.after.unwrap().mtime);
    fs::write(lab.path("f"), b"12345").unwrap();
    let (status, wcc) = lab.create(root, b"f", How::Guarded(mode(0o600))).unwrap_err();
    assert!(status == Status::EXIST && wcc.before.is_some() && wcc.after.is_some());
    lab.create(root, b"f", How::Unchecked(mode(0o600))).unwrap();
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"12345", "it is as it was");
    let empty = Sattr { size: Some(0), ..mode(0o600) };
    lab.create(root, b"f", How::Unchecked(empty)).unwrap();
    let metadata = fs::metadata(lab.path("f")).unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o7777), (0, 0o666));
    // Only the client that made this file can write it, through the descriptor from CREATE.
    let made = lab.create(root, b"readonly", How::Guarded(mode(0o444))).unwrap();
    lab.write(made.object.unwrap(), 0, b"x").unwrap();
}

#[test]
fn test_create_refuses_names_that_exist_or_lead_away() {
    let lab = Lab::new();
    let root = lab.root();
    symlink(lab.base.path().join("outside/new"), lab.path("new")).unwrap();
    symlink(lab.base.path().join("outside/secret"), lab.path("old")).unwrap();
    fs::create_dir(lab.path("dir")).unwrap();
    let empty = Sattr { size: Some(0), ..mode(0o600) };
    for name in [&b"new"[..], b"old", b"dir", b".", b".."] {
        for how in [How::Unchecked(empty), How::Guarded(empty), How::Exclusive(Verifier([1; 8]))] {
            assert_eq!(lab.create(root, name, how).unwrap_err().0, Status::EXIST, "{name:?}");
        }
    }
    for (name, status) in
        [(&b"../x"[..], Status::INVAL), (b"", Status::INVAL), (&[b'x'; 256], Status::NAMETOOLONG)]
    {
        assert_eq!(lab.create(root, name, How::Guarded(empty)).unwrap_err().0, status);
    }
    let (status, _) = lab.create(lab.handle("old"), b"x", How::Guarded(empty)).unwrap_err();
    assert_eq!(status, Status::NOTDIR);
    // A call that fails half-way leaves no object.
    let bad = Sattr { size: Some(u64::MAX), ..mode(0o600) };
    assert_eq!(lab.create(root, b"bad", How::Guarded(bad)).unwrap_err().0, Status::FBIG);
    assert_eq!(names(&lab.path("")), ["dir", "new", "old"]);
}

#[test]
fn test_exclusive_create_recognizes_its_verifier_after_a_restart() {
    let mut lab = Lab::new();
    let mine = How::Exclusive(Verifier(*b"\x81verify!"));
    let made = lab.create(lab.root(), b"f", mine).unwrap().object.unwrap();
    assert_eq!(lab.create(lab.root(), b"f", mine).unwrap().object.unwrap(), made);
    lab.restart();
    assert_eq!(lab.create(lab.root(), b"f", mine).unwrap().object.unwrap(), made);
    let other = How::Exclusive(Verifier(*b"another!"));
    assert_eq!(lab.create(lab.root(), b"f", other).unwrap_err().0, Status::EXIST);
    lab.write(made, 0, b"x").unwrap();
    assert_eq!(lab.create(lab.root(), b"f", mine).unwrap_err().0, Status::EXIST);
}

#[test]
fn test_mkdir_symlink_and_mknod_make_objects_with_attributes() {
    let lab = Lab::new();
    let root = lab.root();
    let call = Mkdir { at: at(root, b"d"), attributes: mode(0o2751) };
    let made: Created = lab.call::<_, WccData>(procedure::MKDIR, &call).unwrap();
    assert_eq!(made.attributes.unwrap(), lab.getattr(lab.handle("d")).unwrap());
    assert_eq!(fs::metadata(lab.path("d")).unwrap().permissions().mode() & 0o7777, 0o2751);
    assert_eq!(lab.refused::<Created, WccData>(procedure::MKDIR, &call), Status::EXIST);

    let symlink = |name: &'static [u8], path: &'static [u8]| {
        let path = Opaque(path);
        let call = Symlink { at: at(root, name), attributes: mode(0o777), path };
        lab.call::<Created, WccData>(procedure::SYMLINK, &call).map_err(|(status, _)| status)
    };
    symlink(b"l", b"../outside/secret").unwrap();
    assert_eq!(fs::read_link(lab.path("l")).unwrap().to_str(), Some("../outside/secret"));
    assert_eq!(symlink(b"l", b"x"), Err(Status::EXIST));
    assert_eq!(symlink(b"m", b""), Err(Status::INVAL));
    assert_eq!(symlink(b"m", b"a\0b"), Err(Status::INVAL));
    assert_eq!(symlink(b"m", Box::leak(vec![b'x'; 4096].into())), Err(Status::NAMETOOLONG));

    let mknod = |name: &'static [u8], kind| {
        let call = Mknod { at: at(root, name), kind };
        lab.call::<Created, WccData>(procedure::MKNOD, &call).map_err(|(status, _)| status)
    };
    mknod(b"fifo", MknodKind::Fifo(mode(0o640))).unwrap();
    mknod(b"sock", MknodKind::Socket(mode(0o600))).unwrap();
    let fifo = fs::metadata(lab.path("fifo")).unwrap();
    assert!(fifo.file_type().is_fifo() && fifo.mode() & 0o7777 == 0o640);
    assert!(fs::metadata(lab.path("sock")).unwrap().file_type().is_socket());
    let device = heddle_nfs::wire::Device { major: 1, minor: 3 };
    assert_eq!(mknod(b"null", MknodKind::Character(mode(0o666), device)), Err(Status::PERM));
    assert_eq!(mknod(b"disk", MknodKind::Block(mode(0o666), device)), Err(Status::PERM));
    let regular = MknodKind::Other(heddle_nfs::wire::FileType::Regular);
    assert_eq!(mknod(b"file", regular), Err(Status::BADTYPE));
    // The server does not open a pipe: that would wait for a process at the other end.
    assert_eq!(lab.read(lab.handle("fifo"), 0, 1).unwrap_err(), Status::INVAL);
    assert_eq!(lab.write(lab.handle("fifo"), 0, b"x").unwrap_err(), Status::INVAL);
    assert_eq!(names(&lab.path("")), ["d", "fifo", "l", "sock"]);
}

fn remove(lab: &Lab, dir: Handle, name: &[u8]) -> Result<WccData, Status> {
    lab.call::<_, WccData>(procedure::REMOVE, &at(dir, name)).map_err(|(status, _)| status)
}

fn rmdir(lab: &Lab, dir: Handle, name: &[u8]) -> Result<WccData, Status> {
    lab.call::<_, WccData>(procedure::RMDIR, &at(dir, name)).map_err(|(status, _)| status)
}

#[test]
fn test_remove_refuses_directories_and_rmdir_refuses_files() {
    let lab = Lab::new();
    let root = lab.root();
    fs::create_dir_all(lab.path("d/full")).unwrap();
    fs::write(lab.path("f"), b"").unwrap();
    symlink(lab.base.path().join("outside"), lab.path("l")).unwrap();
    assert_eq!(remove(&lab, root, b"d"), Err(Status::ISDIR));
    assert_eq!(rmdir(&lab, root, b"f"), Err(Status::NOTDIR));
    assert_eq!(rmdir(&lab, root, b"l"), Err(Status::NOTDIR));
    assert_eq!(rmdir(&lab, root, b"d"), Err(Status::NOTEMPTY));
    assert_eq!(rmdir(&lab, lab.handle("d"), b"."), Err(Status::INVAL));
    assert_eq!(rmdir(&lab, lab.handle("d/full"), b".."), Err(Status::EXIST));
    assert_eq!(remove(&lab, root, b".."), Err(Status::INVAL));
    assert_eq!(remove(&lab, root, b"nowhere"), Err(Status::NOENT));
    let (f, full) = (lab.handle("f"), lab.handle("d/full"));
    for name in [&b"f"[..], b"l"] {
        let wcc = remove(&lab, root, name).unwrap();
        assert!(wcc.before.unwrap().mtime <= wcc.after.unwrap().mtime);
    }
    rmdir(&lab, lab.handle("d"), b"full").unwrap();
    rmdir(&lab, root, b"d").unwrap();
    assert!(names(&lab.path("")).is_empty());
    for gone in [f, full] {
        let said = lab.getattr(gone).unwrap_err();
        assert!([Status::STALE, Status::JUKEBOX].contains(&said), "{said:?}");
    }
}

fn rename(lab: &Lab, from: (Handle, &[u8]), to: (Handle, &[u8])) -> Result<RenameDone, Status> {
    let call = Rename { from: at(from.0, from.1), to: at(to.0, to.1) };
    lab.call::<_, RenameDone>(procedure::RENAME, &call).map_err(|(status, _)| status)
}

#[test]
fn test_rename_keeps_handles_and_replaces_what_was_there() {
    let lab = Lab::new();
    let root = lab.root();
    fs::create_dir_all(lab.path("a/sub")).unwrap();
    fs::create_dir_all(lab.path("b")).unwrap();
    fs::write(lab.path("a/f"), b"f").unwrap();
    fs::write(lab.path("b/g"), b"g").unwrap();
    let (a, b, sub) = (lab.handle("a"), lab.handle("b"), lab.handle("a/sub"));
    let (f, g) = (lab.handle("a/f"), lab.handle("b/g"));
    rename(&lab, (a, b"f"), (b, b"g")).unwrap();
    assert_eq!(lab.read(f, 0, 9).unwrap().0, b"f");
    assert_eq!(lab.handle("b/g"), f);
    assert!(lab.getattr(g).is_err() && !lab.path("a/f").exists());
    // A directory moves with its contents; its `..` then leads to another directory.
    rename(&lab, (root, b"a"), (b, b"moved")).unwrap();
    assert_eq!(lab.lookup(a, b"..").unwrap().object, b);
    assert_eq!(lab.lookup(sub, b"..").unwrap().object, a);
    assert_eq!(lab.handle("b/moved/sub"), sub);
    assert_eq!(rename(&lab, (root, b"b"), (sub, b"x")), Err(Status::INVAL), "into itself");
    assert_eq!(rename(&lab, (b, b"g"), (b, b"moved")), Err(Status::ISDIR));
    assert_eq!(rename(&lab, (b, b"moved"), (b, b"g")), Err(Status::NOTDIR));
    assert_eq!(rename(&lab, (b, b"nowhere"), (b, b"x")), Err(Status::NOENT));
    assert_eq!(rename(&lab, (b, b".."), (b, b"x")), Err(Status::INVAL));
    assert_eq!(rename(&lab, (b, b"g"), (b, b"../../outside/g")), Err(Status::INVAL));
}

#[test]
fn test_link_gives_an_object_another_name() {
    let lab = Lab::new();
    let root = lab.root();
    fs::create_dir(lab.path("d")).unwrap();
    fs::write(lab.path("f"), b"x").unwrap();
    symlink(lab.base.path().join("outside/secret"), lab.path("l")).unwrap();
    let link = |file, name: &'static [u8]| {
        let call = Link { file, at: at(lab.handle("d"), name) };
        lab.call::<LinkDone, LinkDone>(procedure::LINK, &call).map_err(|(status, _)| status)
    };
    let f = lab.handle("f");
    assert_eq!(link(f, b"f2").unwrap().attributes.unwrap().nlink, 2);
    assert_eq!(lab.handle("d/f2"), f);
    // The symbolic link itself gets another name.
    link(lab.handle("l"), b"l2").unwrap();
    assert!(fs::symlink_metadata(lab.path("d/l2")).unwrap().is_symlink());
    assert_eq!(link(f, b"f2"), Err(Status::EXIST));
    assert_eq!(link(f, b"a/b"), Err(Status::INVAL));
    assert_eq!(link(root, b"root"), Err(Status::ISDIR));
    // The first known name goes; the server still finds the object.
    remove(&lab, lab.handle("d"), b"f2").unwrap();
    assert_eq!(lab.read(f, 0, 1).unwrap().0, b"x");
}

#[test]
fn test_read_only_export_refuses_every_change() {
    let lab = Lab::with(Options { read_only: true, ..Options::default() });
    fs::create_dir(lab.path("d")).unwrap();
    fs::write(lab.path("f"), b"x").unwrap();
    let (root, f) = (lab.root(), lab.handle("f"));
    let rofs = |status| assert_eq!(status, Status::ROFS);
    rofs(lab.write(f, 0, b"y").unwrap_err());
    rofs(lab.create(root, b"n", How::Unchecked(mode(0o600))).unwrap_err().0);
    rofs(remove(&lab, root, b"f").unwrap_err());
    rofs(rmdir(&lab, root, b"d").unwrap_err());
    rofs(rename(&lab, (root, b"f"), (root, b"g")).unwrap_err());
    let set = heddle_nfs::wire::Setattr { object: f, attributes: mode(0o600), guard: None };
    rofs(lab.refused::<WccData, WccData>(procedure::SETATTR, &set));
    let call = Mkdir { at: at(root, b"n"), attributes: mode(0o700) };
    rofs(lab.refused::<Created, WccData>(procedure::MKDIR, &call));
    let call = Symlink { at: at(root, b"n"), attributes: mode(0o700), path: Opaque(b"x") };
    rofs(lab.refused::<Created, WccData>(procedure::SYMLINK, &call));
    let call = Mknod { at: at(root, b"n"), kind: MknodKind::Fifo(mode(0o600)) };
    rofs(lab.refused::<Created, WccData>(procedure::MKNOD, &call));
    let call = Link { file: f, at: at(root, b"n") };
    rofs(lab.refused::<LinkDone, LinkDone>(procedure::LINK, &call));
    assert_eq!(lab.read(f, 0, 9).unwrap().0, b"x");
    assert_eq!(names(&lab.path("")), ["d", "f"]);
    assert_eq!(lab.getattr(f).unwrap().mode, fs::metadata(lab.path("f")).unwrap().mode() & 0o7777);
}
