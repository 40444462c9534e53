//! The file of the control socket.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::config::Control;

/// A socket that listens; its file is removed when the socket is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: a different file of the same name is not ours to remove.
    file: Option<(u64, u64)>,
}

impl Socket {
    /// Listens. Replaces a file that a process left behind at its end.
    ///
    /// # Errors
    /// The reason, in one line.
    pub(super) fn bind(control: &Control) -> Result<Socket, String> {
        let path = control.path.clone();
        let fail =
            |what: &dyn std::fmt::Display| format!("the control socket {}: {what}", path.display());
        remove_stale(&path).map_err(|e| fail(&e))?;
        // Only this user can write to the file until its permissions are set. Clients are checked
        // by their credentials in any case.
        let listener = UnixListener::bind(&path).map_err(|e| fail(&e))?;
        let socket = Socket { listener, file: identity(&path), path: path.clone() };
        permit(control)?;
        socket.listener.set_nonblocking(true).map_err(|e| fail(&e))?;
        Ok(socket)
    }

    /// Returns the listener for the runtime of the calling thread.
    pub(super) fn listener(&self) -> std::io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Sets the permissions and the group of the file.
pub(crate) fn permit(control: &Control) -> Result<(), String> {
    let path = &control.path;
    let fail = |e: std::io::Error| format!("the control socket {}: {e}", path.display());
    if control.group.is_some() {
        chown(path, None, control.group).map_err(fail)?;
    }
    fs::set_permissions(path, Permissions::from_mode(control.mode)).map_err(fail)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Removes a socket at which no process listens.
fn remove_stale(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.to_string()),
        Ok(m) if !m.file_type().is_socket() => return Err("there is another file".into()),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err("somebody listens there already".into()),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| e.to_string())
        }
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_bind_replaces_only_a_stale_socket_at_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let control = Control { mode: 0o600, ..Control::at(&path) };
        let first = Socket::bind(&control).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let text = Socket::bind(&control).unwrap_err();
        assert!(text.contains("somebody listens there already"), "{text}");
        drop(first);
        assert!(!path.exists());
        // A process that was killed leaves its file in this state.
        drop(UnixListener::bind(&path).unwrap());
        let second = Socket::bind(&control).unwrap();
        // Another process has replaced the file, which is then not ours.
        fs::remove_file(&path).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(second);
        assert!(path.exists());

        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        let text = Socket::bind(&Control::at(&file)).unwrap_err();
        assert!(text.contains("another file"), "{text}");
        assert_eq!(fs::read(&file).unwrap(), b"precious");
        let nowhere = Socket::bind(&Control::at(dir.path().join("no/sock"))).unwrap_err();
        assert!(nowhere.contains("no/sock"), "{nowhere}");
    }
}
