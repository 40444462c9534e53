//! File systems mounted below an export are no part of the export. The test mounts in a namespace
//! of its own.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::Lab;
use heddle_nfs::wire::{Fattr, Handle, Status};

const INSIDE: &str = "HEDDLE_TEST_MOUNTS";

fn run(program: &str, args: &[&Path]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// Returns a handle of the object at `of`, forged after the export's own handle.
fn forged(like: Handle, of: &Path) -> Handle {
    let about = fs::metadata(of).unwrap();
    let born = about.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut bytes = like.as_slice().to_vec();
    bytes.splice(12..20, about.ino().to_be_bytes());
    bytes.splice(20..28, u64::try_from(born.as_nanos()).unwrap().to_be_bytes());
    Handle::new(&bytes).unwrap()
}

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
fn test_directory_of_the_same_file_system_mounted_below_is_not_entered() {
    if env::var_os(INSIDE).is_none() {
        let mut inside = Command::new("unshare");
        inside.args(["--map-root-user", "--mount"]).arg(env::current_exe().unwrap());
        inside.arg("test_directory_of_the_same").env(INSIDE, "1");
        let out = inside.output().unwrap();
        let said = [out.stdout, out.stderr].concat();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&said));
        return;
    }
    let lab = Lab::new();
    let (outside, below) = (lab.base.path().join("outside"), lab.path("below"));
    fs::create_dir(&below).unwrap();
    assert_eq!(lab.lookup(lab.root(), b"below").unwrap().object, lab.handle("below"));
    let inside = forged(lab.root(), &below);
    assert_eq!(inside, lab.handle("below"), "it is the form of handles");
    run("mount", &[Path::new("--bind"), &outside, &below]);
    assert!(below.join("secret").exists());
    let looked = lab.lookup(lab.root(), b"below").map(|found| found.object);
    let directory = patient(&lab, forged(lab.root(), &outside));
    let secret = patient(&lab, forged(lab.root(), &below.join("secret")));
    run("umount", &[&below]);
    assert_eq!(looked, Err(Status::ACCES));
    assert_eq!((directory, secret), (Err(Status::STALE), Err(Status::STALE)));
}
