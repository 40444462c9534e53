//! Handles: they outlive the server and names, and lead to no other object.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::{Duration, Instant};

use crate::common::{Lab, SECRET};
use heddle_nfs::Options;
use heddle_nfs::wire::{
    Created, DirEntryName, Fattr, Handle, How, Mkdir, Opaque, Readdir, Rename, RenameDone, Sattr,
    Setattr, Status, Time, Verifier, WccData, procedure,
};

/// Returns the result of GETATTR after the server has had time to search.
fn patient(lab: &Lab, handle: Handle) -> Result<Fattr, Status> {
    let start = Instant::now();
    loop {
        match lab.getattr(handle) {
            Err(Status::JUKEBOX) if start.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            said => return said,
        }
    }
}

#[test]
fn test_handles_survive_a_restart_of_the_server() {
    let mut lab = Lab::new();
    fs::create_dir_all(lab.path("a/b/c")).unwrap();
    fs::write(lab.path("a/b/c/f"), b"contents").unwrap();
    symlink("f", lab.path("a/b/c/l")).unwrap();
    let handles = ["", "a", "a/b/c", "a/b/c/f", "a/b/c/l"].map(|path| lab.handle(path));
    let before = handles.map(|h| lab.getattr(h).unwrap());
    lab.restart();
    assert_eq!(lab.read(handles[3], 0, 100).unwrap().0, b"contents");
    // A search reads directories, so it changes their access times.
    let but_atime = |a: Fattr| Fattr { atime: Time::default(), ..a };
    let after = handles.map(|h| patient(&lab, h).unwrap());
    assert_eq!(after.map(but_atime), before.map(but_atime));
    assert_eq!(lab.lookup(handles[2], b"..").unwrap().object, lab.handle("a/b"));
    assert_eq!(lab.handle("a/b/c/f"), handles[3]);
}

#[test]
fn test_all_names_of_an_object_have_one_handle_which_stays() {
    let mut lab = Lab::new();
    fs::create_dir_all(lab.path("a")).unwrap();
    fs::create_dir_all(lab.path("b")).unwrap();
    fs::write(lab.path("a/f"), b"x").unwrap();
    fs::hard_link(lab.path("a/f"), lab.path("b/g")).unwrap();
    let f = lab.handle("a/f");
    assert_eq!(lab.handle("b/g"), f);
    // A process of the host changes the names.
    fs::remove_file(lab.path("a/f")).unwrap();
    assert_eq!(patient(&lab, f).unwrap().nlink, 1);
    fs::rename(lab.path("b/g"), lab.path("a/h")).unwrap();
    lab.restart();
    fs::rename(lab.path("a"), lab.path("b/a")).unwrap();
    assert_eq!(patient(&lab, f).unwrap().fileid, fs::metadata(lab.path("b/a/h")).unwrap().ino());
    assert_eq!(lab.read(f, 0, 1).unwrap().0, b"x");
}

#[test]
fn test_handle_of_removed_file_stays_stale_when_inode_is_reused() {
    let mut lab = Lab::new();
    fs::write(lab.path("f"), b"old").unwrap();
    let old = lab.handle("f");
    fs::remove_file(lab.path("f")).unwrap();
    assert_eq!(patient(&lab, old), Err(Status::STALE));
    lab.restart();
    for i in 0..50 {
        fs::write(lab.path(&format!("new{i}")), b"new").unwrap();
    }
    let new: Vec<_> = (0..50).map(|i| lab.handle(&format!("new{i}"))).collect();
    assert_eq!(patient(&lab, old), Err(Status::STALE));
    assert_eq!(lab.service.counts().stale, 1);
    // The server finds the object that has the number now without a search.
    assert!(new.iter().all(|&handle| lab.getattr(handle).is_ok()));
}

#[test]
fn test_forged_handles_are_refused() {
    let lab = Lab::new();
    let mut bytes = lab.root().as_slice().to_vec();
    for bad in [&b""[..], b"x", &[0; 28], &[0xff; 64], &bytes[..27]] {
        assert_eq!(lab.getattr(Handle::new(bad).unwrap()), Err(Status::BADHANDLE), "{bad:?}");
    }
    let other = Lab::new();
    assert_eq!(lab.getattr(other.root()), Err(Status::STALE), "of another export");
    // The numbers of a file beside the export, and of objects that do not exist.
    let outside = fs::metadata(lab.base.path().join("outside/secret")).unwrap();
    for ino in [outside.ino(), 0, 1, u64::MAX] {
        bytes[12..20].copy_from_slice(&ino.to_be_bytes());
        let handle = Handle::new(&bytes).unwrap();
        assert_eq!(patient(&lab, handle), Err(Status::STALE));
    }
}

#[test]
fn test_directory_that_becomes_a_symbolic_link_leads_nowhere() {
    let mut lab = Lab::new();
    fs::create_dir(lab.path("d")).unwrap();
    fs::write(lab.path("d/secret"), b"inside").unwrap();
    let secret = lab.handle("d/secret");
    lab.restart();
    fs::rename(lab.path("d"), lab.path("e")).unwrap();
    symlink(lab.base.path().join("outside"), lab.path("d")).unwrap();
    patient(&lab, secret).unwrap();
    assert_eq!(lab.read(secret, 0, 100).unwrap().0, b"inside");
    fs::remove_dir_all(lab.path("e")).unwrap();
    assert_eq!(patient(&lab, secret), Err(Status::STALE));
    assert_eq!(fs::read_to_string(lab.base.path().join("outside/secret")).unwrap(), SECRET);
}

#[test]
fn test_few_descriptors_and_places_serve_many_objects() {
    let lab = Lab::with(Options { descriptors: 2, places: 20, sync: false, ..Options::default() });
    // Count only descriptors of this test's directory: other tests of the process open some too.
    let here = lab.path("").canonicalize().unwrap();
    let links =
        || fs::read_dir("/proc/self/fd").unwrap().flatten().map(|f| fs::read_link(f.path()));
    let open = || links().flatten().filter(|to| to.starts_with(&here)).count();
    let handles: Vec<Handle> = (0..100)
        .map(|i| {
            let dir = format!("d{}", i % 5);
            fs::create_dir_all(lab.path(&dir)).unwrap();
            fs::write(lab.path(&format!("{dir}/f{i}")), i.to_string()).unwrap();
            lab.handle(&format!("{dir}/f{i}"))
        })
        .collect();
    for (i, &handle) in handles.iter().enumerate().step_by(7) {
        patient(&lab, handle).unwrap();
        assert_eq!(lab.read(handle, 0, 10).unwrap().0, i.to_string().as_bytes());
    }
    // Two that the service keeps, the export's own, and one in use by each of its threads.
    assert!((1..=12).contains(&open()), "{}", open());
}

#[test]
fn test_searches_for_unknown_handles_take_little_time() {
    let lab = Lab::new();
    for i in 0..2000 {
        fs::write(lab.path(&format!("f{i}")), b"").unwrap();
    }
    let mut bytes = lab.root().as_slice().to_vec();
    let mut made_up = |ino: u64| {
        bytes[12..20].copy_from_slice(&ino.to_be_bytes());
        Handle::new(&bytes).unwrap()
    };
    let said: Vec<_> = (0..2000).map(|i| lab.getattr(made_up(u64::MAX - i)).unwrap_err()).collect();
    let searched = said.iter().filter(|&&s| s == Status::STALE).count();
    assert!(said.iter().all(|s| [Status::STALE, Status::JUKEBOX].contains(s)));
    assert!((1..500).contains(&searched), "{searched} of 2000");
    // The server remembers that a search did not find the object.
    assert_eq!(patient(&lab, made_up(u64::MAX)), Err(Status::STALE));
    assert!((0..100).all(|_| lab.getattr(made_up(u64::MAX)) == Err(Status::STALE)));
}

#[test]
fn test_handle_is_stale_while_file_is_moved_away_and_valid_after_return() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"x").unwrap();
    let f = lab.handle("f");
    let away = lab.base.path().join("f");
    fs::rename(lab.path("f"), &away).unwrap();
    assert_eq!(patient(&lab, f), Err(Status::STALE));
    fs::rename(&away, lab.path("g")).unwrap();
    assert_eq!(lab.handle("g"), f);
    assert_eq!(lab.read(f, 0, 1).unwrap().0, b"x");
}

/// Makes every call that takes the handle of a directory or of a file in it.
fn ask_all(lab: &Lab, dir: Handle, file: Handle) -> Vec<Status> {
    let at = |name| DirEntryName { dir, name: Opaque(name) };
    let list = Readdir { dir, cookie: 0, verifier: Verifier::default(), count: 4096 };
    let size = Sattr { size: Some(0), ..Sattr::default() };
    let set = Setattr { object: file, attributes: size, guard: None };
    let rename = Rename { from: at(b"f"), to: at(b"g") };
    vec![
        lab.getattr(dir).unwrap_err(),
        lab.getattr(file).unwrap_err(),
        lab.lookup(dir, b"f").unwrap_err(),
        lab.lookup(dir, b"..").unwrap_err(),
        lab.read(file, 0, 10).unwrap_err(),
        lab.write(file, 0, b"x").unwrap_err(),
        lab.create(dir, b"new", How::Guarded(Sattr::default())).unwrap_err().0,
        lab.refused::<WccData, WccData>(procedure::REMOVE, &at(b"f")),
        lab.refused::<RenameDone, RenameDone>(procedure::RENAME, &rename),
        lab.refused::<WccData, WccData>(procedure::SETATTR, &set),
        lab.refused::<(), Option<Fattr>>(procedure::READDIR, &list),
    ]
}

#[test]
fn test_directory_that_is_moved_out_is_out_of_reach_from_the_next_call_on() {
    let lab = Lab::new();
    fs::create_dir_all(lab.path("a/d/e")).unwrap();
    fs::write(lab.path("a/d/e/f"), b"inside").unwrap();
    let (dir, file) = (lab.handle("a/d/e"), lab.handle("a/d/e/f"));
    // Use all of them, so that the service keeps descriptors.
    lab.write(file, 0, b"INSIDE").unwrap();
    assert_eq!(lab.read(file, 0, 10).unwrap().0, b"INSIDE");
    let away = lab.base.path().join("outside/d");
    for by_link in [false, true] {
        fs::rename(lab.path("a/d"), &away).unwrap();
        if by_link {
            // A way through a symbolic link to the moved directory leads out as well.
            symlink(&away, lab.path("a/d")).unwrap();
        }
        let said = ask_all(&lab, dir, file);
        assert!(said.iter().all(|s| [Status::STALE, Status::JUKEBOX].contains(s)), "{said:?}");
        assert_eq!(patient(&lab, file), Err(Status::STALE));
        assert_eq!(patient(&lab, dir), Err(Status::STALE));
        assert_eq!(fs::read(away.join("e/f")).unwrap(), b"INSIDE");
        assert_eq!(crate::common::names(&away.join("e")), ["f"]);
        if by_link {
            fs::remove_file(lab.path("a/d")).unwrap();
        }
        fs::rename(&away, lab.path("a/d")).unwrap();
        assert_eq!((lab.handle("a/d/e"), lab.handle("a/d/e/f")), (dir, file), "it is back");
        assert_eq!(lab.read(file, 0, 10).unwrap().0, b"INSIDE");
    }
}

#[test]
fn test_directory_that_is_moved_within_the_export_is_found_with_all_below() {
    let lab = Lab::new();
    fs::create_dir_all(lab.path("a/d/e")).unwrap();
    fs::create_dir_all(lab.path("b")).unwrap();
    fs::write(lab.path("a/d/e/f"), b"inside").unwrap();
    let (dir, file) = (lab.handle("a/d/e"), lab.handle("a/d/e/f"));
    fs::rename(lab.path("a/d"), lab.path("b/x")).unwrap();
    patient(&lab, file).unwrap();
    assert_eq!(lab.read(file, 0, 10).unwrap().0, b"inside");
    lab.getattr(dir).unwrap();
    assert_eq!(lab.lookup(dir, b"..").unwrap().object, lab.handle("b/x"));
}

#[test]
fn test_paths_longer_than_kernel_limit_are_reached() {
    let lab = Lab::new();
    let name = "n".repeat(200);
    let mut dir = lab.root();
    for _ in 0..60 {
        let at = DirEntryName { dir, name: Opaque(name.as_bytes()) };
        let call = Mkdir { at, attributes: Sattr::default() };
        let made = lab.call::<Created, WccData>(procedure::MKDIR, &call).unwrap();
        dir = made.object.unwrap();
    }
    let made = lab.create(dir, b"f", How::Guarded(Sattr::default())).unwrap();
    lab.write(made.object.unwrap(), 0, b"deep").unwrap();
    assert_eq!(lab.read(made.object.unwrap(), 0, 10).unwrap().0, b"deep");
}
