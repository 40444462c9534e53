//! Many threads call one service: no thread waits for ever, and no thread gets another's data.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{Lab, mode, names};
use heddle_nfs::Options;
use heddle_nfs::wire::{
    DirEntryName, Handle, How, Mkdir, Opaque, Rename, RenameDone, Sattr, Status, WccData, procedure,
};

const THREADS: usize = 6;
const ROUNDS: usize = 150;

/// Makes a file, moves it from directory to directory past the other threads, and checks that it
/// stays the same.
fn one(lab: &Lab, dirs: &[Handle], thread: usize) -> Result<(), Status> {
    let name = format!("mine-{thread}");
    let at = |dir| DirEntryName { dir, name: Opaque(name.as_bytes()) };
    for round in 0..ROUNDS {
        let (from, to) = (dirs[(thread + round) % dirs.len()], dirs[(thread * 3) % dirs.len()]);
        let empty = Sattr { size: Some(0), ..mode(0o600) };
        let made = lab.create(from, name.as_bytes(), How::Unchecked(empty)).map_err(|e| e.0)?;
        let file = made.object.unwrap();
        let data = format!("{thread} {round}");
        lab.write(file, 0, data.as_bytes())?;
        let call = Rename { from: at(from), to: at(to) };
        lab.call::<RenameDone, RenameDone>(procedure::RENAME, &call).map_err(|e| e.0)?;
        assert_eq!(lab.lookup(to, name.as_bytes())?.object, file);
        assert_eq!(lab.read(file, 0, 100)?.0, data.as_bytes());
        let removed = lab.call::<WccData, WccData>(procedure::REMOVE, &at(to));
        let wcc = removed.map_err(|e| e.0)?;
        assert!(wcc.before.is_some() && wcc.after.is_some());
    }
    Ok(())
}

#[test]
fn test_threads_may_move_files_past_each_other_concurrently() {
    // Few descriptors, so that the service evicts one thread's descriptors while another thread
    // uses them.
    let lab = Arc::new(Lab::with(Options { descriptors: 3, sync: false, ..Options::default() }));
    let dirs: Vec<Handle> = (0..4)
        .map(|i| {
            let name = format!("d{i}");
            let at = DirEntryName { dir: lab.root(), name: Opaque(name.as_bytes()) };
            let call = Mkdir { at, attributes: mode(0o700) };
            let made: Result<heddle_nfs::wire::Created, (Status, WccData)> =
                lab.call(procedure::MKDIR, &call);
            made.unwrap().object.unwrap()
        })
        .collect();
    let (done, wait) = mpsc::channel();
    for thread in 0..THREADS {
        let (lab, dirs, done) = (Arc::clone(&lab), dirs.clone(), done.clone());
        std::thread::spawn(move || {
            let outcome = one(&lab, &dirs, thread);
            drop(lab);
            done.send(outcome).unwrap();
        });
    }
    for _ in 0..THREADS {
        let outcome = wait.recv_timeout(Duration::from_secs(120)).expect("a thread hangs");
        outcome.unwrap();
    }
    for i in 0..4 {
        assert!(names(&lab.path(&format!("d{i}"))).is_empty());
    }
    assert_eq!(lab.service.counts().failed, 0);
}
