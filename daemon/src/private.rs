//! The place of a user's private RNIC, and the check whether there is one.
//!
//! Three files lie together: the socket, a lock, and a log. The RNIC holds the lock for as long as
//! it lives, so the system releases the lock however the process ends. A process that finds the
//! lock free and a socket beside it knows that the socket is a leftover.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// The directory and names of a private RNIC's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Path of the control socket.
    pub socket: PathBuf,
}

/// Longest path of a control socket, in bytes: `sun_path` without its NUL.
const LONGEST: usize = 107;

impl Place {
    /// Returns the place of the RNIC whose socket is at `socket`.
    pub fn at(socket: impl Into<PathBuf>) -> Place {
        Place { socket: socket.into() }
    }

    /// Returns the place of this user's RNIC: `heddle` in `XDG_RUNTIME_DIR`, given as `runtime`, or
    /// else `/tmp/heddle-UID`. Makes the directory if necessary.
    ///
    /// # Errors
    /// The reason why the directory cannot be used, in one line, for example because other users
    /// could have put files there.
    pub fn of_user(runtime: Option<&Path>) -> Result<Place, String> {
        let uid = rustix::process::geteuid().as_raw();
        Place::of(runtime, Path::new("/tmp"), uid)
    }

    fn of(runtime: Option<&Path>, tmp: &Path, uid: u32) -> Result<Place, String> {
        // After `sudo` and `su` the environment names the directory of another user.
        let usable = |dir: &&Path| {
            dir.is_absolute() && fs::metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == uid)
        };
        let dir = match runtime.filter(usable) {
            Some(runtime) => runtime.join("heddle"),
            None => tmp.join(format!("heddle-{uid}")),
        };
        make(&dir, uid)?;
        Ok(Place::at(dir.join("private.sock")))
    }

    /// Returns the path of the log.
    pub fn log(&self) -> PathBuf {
        self.socket.with_extension("log")
    }

    /// Returns the path of the file whose lock the RNIC holds.
    fn lock_file(&self) -> PathBuf {
        self.socket.with_extension("lock")
    }

    /// Takes the lock, for an RNIC that is about to start. Tries for a while, because a process
    /// that only looks also holds the lock, for a moment.
    ///
    /// # Errors
    /// In one line: that there is an RNIC already, or why the lock cannot be taken.
    pub fn lock(&self) -> Result<Lock, String> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let until = Instant::now() + PATIENCE;
        if self.socket.as_os_str().len() > LONGEST {
            let path = self.socket.display();
            return Err(format!("{path}: the path of a socket has at most {LONGEST} bytes"));
        }
        let file = self.open().map_err(|e| self.fail(&e))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(rustix::io::Errno::AGAIN) if Instant::now() < until => {
                    sleep(Duration::from_millis(10));
                }
                Err(rustix::io::Errno::AGAIN) => {
                    let path = self.socket.display();
                    return Err(format!("there is a private RNIC already, at {path}"));
                }
                Err(e) => return Err(self.fail(&e.into())),
            }
        }
    }

    /// Returns true if an RNIC holds the lock, or is about to.
    ///
    /// # Errors
    /// The reason why the lock cannot be checked.
    pub fn is_taken(&self) -> Result<bool, String> {
        let file = self.open().map_err(|e| self.fail(&e))?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::AGAIN) => Ok(true),
            Err(e) => Err(self.fail(&e.into())),
        }
    }

    fn open(&self) -> std::io::Result<File> {
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.mode(0o600).custom_flags(nofollow).open(self.lock_file())
    }

    fn fail(&self, e: &std::io::Error) -> String {
        format!("the lock {}: {e}", self.lock_file().display())
    }
}

/// The lock of an RNIC; free again when dropped, and when the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Makes a directory for this user alone, or checks that an existing one is.
fn make(dir: &Path, uid: u32) -> Result<(), String> {
    let fail = |what: &dyn core::fmt::Display| format!("the directory {}: {what}", dir.display());
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(fail(&e)),
    }
    // The check also covers a directory that was just made, because it may have been replaced. A
    // link would lead anywhere.
    let m = fs::symlink_metadata(dir).map_err(|e| fail(&e))?;
    if !m.is_dir() {
        return Err(fail(&"it is no directory"));
    }
    if m.uid() != uid {
        return Err(fail(&format!("it is user {}'s, and not {uid}'s", m.uid())));
    }
    if m.mode() & 0o077 != 0 {
        return Err(fail(&"others may use it: it has to have mode 0700"));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn test_private_socket_is_in_runtime_directory_or_in_own_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (runtime, tmp) = (dir.path().join("run"), dir.path().join("tmp"));
        fs::create_dir(&runtime).unwrap();
        fs::create_dir(&tmp).unwrap();
        let place = Place::of(Some(&runtime), &tmp, uid()).unwrap();
        assert_eq!(place.socket, runtime.join("heddle/private.sock"));
        assert_eq!(place.log(), runtime.join("heddle/private.log"));
        assert_eq!(fs::metadata(runtime.join("heddle")).unwrap().mode() & 0o777, 0o700);
        // The second call finds the directory.
        assert_eq!(Place::of(Some(&runtime), &tmp, uid()).unwrap(), place);
        let own = tmp.join(format!("heddle-{}/private.sock", uid()));
        for unusable in [None, Some(Path::new("run")), Some(Path::new("/nowhere"))] {
            assert_eq!(Place::of(unusable, &tmp, uid()).unwrap().socket, own, "{unusable:?}");
        }
    }

    #[test]
    fn test_directory_that_others_may_use_or_have_made_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(format!("heddle-{}", uid()));
        let refused = || Place::of(None, dir.path(), uid()).unwrap_err();
        fs::create_dir(&own).unwrap();
        for mode in [0o701, 0o720, 0o777] {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
            assert!(refused().contains("mode 0700"), "{mode:o}");
        }
        fs::remove_dir(&own).unwrap();
        symlink(dir.path(), &own).unwrap();
        assert!(refused().contains("no directory"));
        fs::remove_file(&own).unwrap();
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
        let theirs = make(&own, uid() + 1).unwrap_err();
        assert!(theirs.contains("user"), "{theirs}");
        assert!(Place::of(None, dir.path(), uid()).is_ok());
    }

    #[test]
    fn test_lock_is_exclusive_and_free_after_its_holder_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::at(dir.path().join("a.sock"));
        assert_eq!(place.is_taken(), Ok(false));
        let lock = place.lock().unwrap();
        assert_eq!(place.is_taken(), Ok(true));
        let e = place.lock().unwrap_err();
        assert!(e.contains("already"), "{e}");
        drop(lock);
        assert_eq!(place.is_taken(), Ok(false));
        // Another process is looking at this moment.
        let looker = place.open().unwrap();
        flock(&looker, FlockOperation::LockShared).unwrap();
        let waiting = place.clone();
        let taker = std::thread::spawn(move || waiting.lock());
        drop(looker);
        taker.join().unwrap().unwrap();
        // A link is not followed.
        symlink(dir.path().join("x"), dir.path().join("b.lock")).unwrap();
        assert!(Place::at(dir.path().join("b.sock")).lock().is_err());
        assert!(!dir.path().join("x").exists());
        let long = Place::at(dir.path().join("n".repeat(120)));
        assert!(long.lock().unwrap_err().contains("107"));
    }
}
