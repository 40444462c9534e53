//! Random operations, by NFS in one directory and by the system in another. Both have to give the
//! same results and leave the same tree. The server restarts now and then.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::common::{Lab, mode};
use heddle_nfs::wire::{
    Created, DirEntryName, Handle, How, Link, LinkDone, Mkdir, Opaque, Rename, RenameDone, Sattr,
    Setattr, Status, Symlink, WccData, procedure,
};
use proptest::prelude::*;

/// An operation. Directories and names are few, so that operations meet.
#[derive(Clone, Debug)]
enum Op {
    Write(u8, u8, u16, u8),
    Truncate(u8, u8, u16),
    Chmod(u8, u8, u16),
    Read(u8, u8, u16),
    Mkdir(u8, u8),
    Symlink(u8, u8, u8),
    Remove(u8, u8),
    Rmdir(u8, u8),
    Rename(u8, u8, u8, u8),
    Link(u8, u8, u8, u8),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let (d, n) = (0..4u8, 0..5u8);
    let at = (d, n);
    prop_oneof![
        4 => (at.clone(), any::<u16>(), any::<u8>()).prop_map(|((d, n), o, b)| Op::Write(d, n, o, b)),
        1 => (at.clone(), any::<u16>()).prop_map(|((d, n), s)| Op::Truncate(d, n, s)),
        1 => (at.clone(), 0..0o1000u16).prop_map(|((d, n), m)| Op::Chmod(d, n, m)),
        2 => (at.clone(), any::<u16>()).prop_map(|((d, n), o)| Op::Read(d, n, o)),
        3 => at.clone().prop_map(|(d, n)| Op::Mkdir(d, n)),
        1 => (at.clone(), any::<u8>()).prop_map(|((d, n), t)| Op::Symlink(d, n, t)),
        2 => at.clone().prop_map(|(d, n)| Op::Remove(d, n)),
        1 => at.clone().prop_map(|(d, n)| Op::Rmdir(d, n)),
        3 => (at.clone(), at.clone()).prop_map(|((d, n), (e, m))| Op::Rename(d, n, e, m)),
        1 => (at.clone(), at).prop_map(|((d, n), (e, m))| Op::Link(d, n, e, m)),
        1 => Just(Op::Restart),
    ]
}

/// Returns the path of a directory. Directory 0 is the top; the others are below the top or below
/// each other.
fn dir(d: u8) -> &'static str {
    ["", "n0", "n0/n1", "n2"][usize::from(d)]
}

fn name(n: u8) -> String {
    format!("n{n}")
}

/// Returns the tree below a directory: kind, mode, contents and number of names of each object.
fn tree(top: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let contents = if metadata.is_dir() {
                dirs.push(path.clone());
                vec![]
            } else if metadata.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let below = path.strip_prefix(top).unwrap().to_owned();
            all.insert(below, (metadata.mode(), metadata.nlink(), contents));
        }
    }
    all
}

/// Carries out the operation with the system.
fn plain(top: &Path, op: &Op) -> io::Result<Vec<u8>> {
    // The server follows no symbolic link on its way, so this function follows none either.
    let parent = |d: u8| {
        let mut path = top.to_owned();
        for part in dir(d).split('/').filter(|p| !p.is_empty()) {
            path.push(part);
            if !fs::symlink_metadata(&path)?.is_dir() {
                return Err(io::Error::from_raw_os_error(20));
            }
        }
        Ok(path)
    };
    let at = |d, n| Ok::<_, io::Error>(parent(d)?.join(name(n)));
    let regular = |path: &Path| match fs::symlink_metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(22)),
    };
    match *op {
        Op::Write(d, n, offset, b) => {
            let path = at(d, n)?;
            if fs::symlink_metadata(&path).is_ok_and(|m| !m.is_file()) {
                return Err(io::Error::from_raw_os_error(17));
            }
            let new = !path.exists();
            let file =
                fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
            if new {
                file.set_permissions(fs::Permissions::from_mode(0o640))?;
            }
            file.write_all_at(&[b; 300], offset.into())?;
        }
        Op::Truncate(d, n, size) => {
            let path = at(d, n)?;
            match fs::symlink_metadata(&path)? {
                m if m.is_dir() => return Err(io::Error::from_raw_os_error(21)),
                _ => regular(&path)?,
            }
            fs::OpenOptions::new().write(true).open(path)?.set_len(size.into())?;
        }
        Op::Chmod(d, n, mode) => {
            let path = at(d, n)?;
            if fs::symlink_metadata(&path)?.is_symlink() {
                return Err(io::Error::from_raw_os_error(95));
            }
            fs::set_permissions(path, fs::Permissions::from_mode(u32::from(mode) | 0o700))?;
        }
        Op::Read(d, n, offset) => {
            let path = at(d, n)?;
            regular(&path)?;
            let mut data = vec![0; 1000];
            let read = fs::File::open(path)?.read_at(&mut data, offset.into())?;
            data.truncate(read);
            return Ok(data);
        }
        Op::Mkdir(d, n) => {
            let path = at(d, n)?;
            fs::create_dir(&path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o750))?;
        }
        Op::Symlink(d, n, to) => symlink(format!("to{to}"), at(d, n)?)?,
        Op::Remove(d, n) => {
            let path = at(d, n)?;
            if fs::symlink_metadata(&path)?.is_dir() {
                return Err(io::Error::from_raw_os_error(21));
            }
            fs::remove_file(path)?;
        }
        Op::Rmdir(d, n) => fs::remove_dir(at(d, n)?)?,
        Op::Rename(d, n, e, m) => {
            let (from, to) = (at(d, n)?, at(e, m)?);
            fs::rename(from, to)?;
        }
        Op::Link(d, n, e, m) => {
            let (from, to) = (at(d, n)?, at(e, m)?);
            if fs::symlink_metadata(&from)?.is_dir() {
                return Err(io::Error::from_raw_os_error(21));
            }
            fs::hard_link(from, to)?;
        }
        Op::Restart => {}
    }
    Ok(vec![])
}

fn walk(lab: &Lab, path: &str) -> Result<Handle, Status> {
    let names = path.split('/').filter(|n| !n.is_empty());
    let mut at = lab.root();
    for name in names {
        at = lab.lookup(at, name.as_bytes())?.object;
    }
    // A walk through a symbolic link or a file fails, since neither is a directory.
    Ok(at)
}

/// Carries out the operation by NFS.
fn remote(lab: &mut Lab, op: &Op) -> Result<Vec<u8>, Status> {
    if matches!(op, Op::Restart) {
        lab.restart();
        return Ok(vec![]);
    }
    let lab = &*lab;
    let find = |d, n| {
        let dir = walk(lab, dir(d))?;
        lab.lookup(dir, name(n).as_bytes()).map(|found| found.object)
    };
    let fails = |done: Result<(), Status>| done.map(|()| vec![]);
    let set = |object, attributes| {
        let call = Setattr { object, attributes, guard: None };
        fails(lab.call::<WccData, WccData>(procedure::SETATTR, &call).map(drop).map_err(|e| e.0))
    };
    match *op {
        Op::Write(d, n, offset, b) => {
            let how = How::Unchecked(mode(0o640));
            let made = lab.create(walk(lab, dir(d))?, name(n).as_bytes(), how).map_err(|e| e.0)?;
            fails(lab.write(made.object.unwrap(), offset.into(), &[b; 300]).map(drop))
        }
        Op::Truncate(d, n, size) => {
            set(find(d, n)?, Sattr { size: Some(size.into()), ..Sattr::default() })
        }
        Op::Chmod(d, n, bits) => set(find(d, n)?, mode(u32::from(bits) | 0o700)),
        Op::Read(d, n, offset) => lab.read(find(d, n)?, offset.into(), 1000).map(|r| r.0),
        Op::Mkdir(d, n) => {
            let name = name(n);
            let at = DirEntryName { dir: walk(lab, dir(d))?, name: Opaque(name.as_bytes()) };
            let call = Mkdir { at, attributes: mode(0o750) };
            fails(lab.call::<Created, WccData>(procedure::MKDIR, &call).map(drop).map_err(|e| e.0))
        }
        Op::Symlink(d, n, to) => {
            let (name, to) = (name(n), format!("to{to}"));
            let at = DirEntryName { dir: walk(lab, dir(d))?, name: Opaque(name.as_bytes()) };
            let path = Opaque(to.as_bytes());
            let call = Symlink { at, attributes: mode(0o777), path };
            let done = lab.call::<Created, WccData>(procedure::SYMLINK, &call);
            fails(done.map(drop).map_err(|e| e.0))
        }
        Op::Remove(d, n) | Op::Rmdir(d, n) => {
            let p = if matches!(op, Op::Remove(..)) { procedure::REMOVE } else { procedure::RMDIR };
            let name = name(n);
            let call = DirEntryName { dir: walk(lab, dir(d))?, name: Opaque(name.as_bytes()) };
            fails(lab.call::<WccData, WccData>(p, &call).map(drop).map_err(|e| e.0))
        }
        Op::Rename(d, n, e, m) => {
            let (n, m) = (name(n), name(m));
            let from = DirEntryName { dir: walk(lab, dir(d))?, name: Opaque(n.as_bytes()) };
            let to = DirEntryName { dir: walk(lab, dir(e))?, name: Opaque(m.as_bytes()) };
            let done = lab.call::<RenameDone, RenameDone>(procedure::RENAME, &Rename { from, to });
            fails(done.map(drop).map_err(|e| e.0))
        }
        Op::Link(d, n, e, m) => {
            let file = find(d, n)?;
            let m = name(m);
            let at = DirEntryName { dir: walk(lab, dir(e))?, name: Opaque(m.as_bytes()) };
            let done = lab.call::<LinkDone, LinkDone>(procedure::LINK, &Link { file, at });
            fails(done.map(drop).map_err(|e| e.0))
        }
        Op::Restart => unreachable!("above"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn prop_a_directory_by_nfs_is_as_one_by_the_system(
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut lab = Lab::new();
        let plain_dir = tempfile::tempdir().unwrap();
        for (i, op) in ops.iter().enumerate() {
            let expected = plain(plain_dir.path(), op);
            let done = remote(&mut lab, op);
            match (&expected, &done) {
                (Ok(expected), Ok(done)) => prop_assert_eq!(expected, done, "{} {:?}", i, op),
                (Err(_), Err(_)) => {}
                _ => prop_assert!(false, "{i} {op:?}: {expected:?}, by NFS {done:?}"),
            }
        }
        prop_assert_eq!(tree(&lab.path("")), tree(plain_dir.path()));
    }
}
