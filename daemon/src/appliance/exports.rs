//! Resources of the host for NFS exports. A change takes them before it starts the exports, so that
//! a resource that is not available shows before anything changes.

use core::net::SocketAddr;
use core::time::Duration;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use heddle_nfs::Share;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use tokio::time::{Instant, sleep, timeout};

use super::{Appliance, SERVICE};
use crate::change::Change;
use crate::nfs::{self, Opened};
use crate::service::{Nfs, NfsExport, NfsLimits, ServiceKind, ServiceSpec};
use crate::services::Exports;

/// Time that the owner of a host socket has to give it up; the owner first ends the connections
/// there.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// Interval between attempts to bind the socket.
const STEP: Duration = Duration::from_millis(20);

/// Opens the directories. Waits a limited time, because a disk may be asleep, or the server of a
/// file system unreachable.
///
/// # Errors
/// The reason, in one line.
pub(super) async fn open(nfs: &Nfs) -> Result<Opened, String> {
    let nfs = nfs.clone();
    let opened = tokio::task::spawn_blocking(move || Opened::new(&nfs));
    let opened = timeout(SERVICE, opened).await.map_err(|_| "the directory does not answer")?;
    opened.map_err(|_| "opening the directory has failed")?
}

/// Opens the directories for a client that may have directories below `roots` exported. Each
/// directory is reached from a descriptor of its root: whatever happens to names and links in the
/// meantime, no directory outside is opened.
///
/// # Errors
/// The reason, in one line.
pub(super) async fn below(roots: Vec<PathBuf>, nfs: &Nfs) -> Result<Opened, String> {
    let nfs = nfs.clone();
    let opened = tokio::task::spawn_blocking(move || open_below(&roots, &nfs));
    let opened = timeout(SERVICE, opened).await.map_err(|_| "the directory does not answer")?;
    opened.map_err(|_| "opening the directory has failed")?
}

fn open_below(roots: &[PathBuf], nfs: &Nfs) -> Result<Opened, String> {
    Opened::with(nfs, |export| share_below(roots, export, nfs.limits))
}

fn share_below(
    roots: &[PathBuf],
    export: &NfsExport,
    limits: NfsLimits,
) -> Result<Arc<Share>, String> {
    let dir = &export.directory;
    let below = roots.iter().find_map(|root| Some((root, dir.strip_prefix(root).ok()?)));
    let not = || format!("{} is in no directory of control.exports", dir.display());
    let (root, rest) = below.ok_or_else(not)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let failed = |e: Errno| format!("{}: {e}", dir.display());
    let root = openat(CWD, root, flags, Mode::empty()).map_err(failed)?;
    let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened = match openat2(&root, rest, flags, Mode::empty(), within) {
        // A link, or `..`, leads out of the root.
        Err(Errno::XDEV) => return Err(not()),
        opened => opened.map_err(failed)?,
    };
    let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
    nfs::open(Path::new(&path), export, limits)
}

/// Returns the resources of an export, with the host socket bound.
///
/// # Errors
/// The reason, in one line.
pub(super) async fn ready(nfs: &Nfs, opened: Option<Opened>) -> Result<Opened, String> {
    let mut opened = match opened {
        Some(opened) => opened,
        None => open(nfs).await?,
    };
    let until = Instant::now() + GIVEN_UP;
    loop {
        match opened.bind(nfs) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                sleep(STEP).await
            }
            bound => return bound.map(|()| opened).map_err(|e| of_host(nfs, &e)),
        }
    }
}

fn of_host(nfs: &Nfs, e: &std::io::Error) -> String {
    nfs.tcp.map_or_else(|| e.to_string(), |tcp| format!("tcp={tcp}: {e}"))
}

impl Appliance {
    /// Returns the exports that run.
    pub(crate) fn exports(&self) -> Exports {
        self.services.borrow().exports()
    }

    /// Takes the resources of the export that a change starts. Binds the socket only if no other
    /// export has to give it up first.
    ///
    /// # Errors
    /// The resource that is not available, in one line.
    pub(super) async fn prepare_export(
        &self,
        spec: &ServiceSpec,
        changes: &[Change],
    ) -> Result<Option<Opened>, String> {
        let Some(nfs) = spec.kind.nfs() else { return Ok(None) };
        let failed = |e: String| format!("{} on {}: {e}", spec.kind, spec.addr);
        let mut opened = open(nfs).await.map_err(failed)?;
        let port = nfs.tcp.as_ref().map(SocketAddr::port);
        let given_up = changes.iter().any(|change| {
            let Change::ListenDel(addr) = change else { return false };
            let config = self.config.borrow();
            let tcp = config.service_at(*addr).map(|s| &s.kind).and_then(ServiceKind::nfs);
            tcp.and_then(|nfs| nfs.tcp).map(|tcp| tcp.port()) == port
        });
        if !given_up {
            opened.bind(nfs).map_err(|e| failed(of_host(nfs, &e)))?;
        }
        Ok(Some(opened))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::service::ServiceKind;

    #[test]
    fn test_exports_open_only_directories_below_root_despite_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let [root, outside] = ["root", "outside"].map(|n| dir.path().join(n));
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("out")).unwrap();
        std::os::unix::fs::symlink("../../outside", root.join("a/up")).unwrap();
        std::os::unix::fs::symlink("a/b", root.join("in")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        let try_open = |roots: &[PathBuf], path: &Path| {
            // The first directory is good, and the other one must be checked all the same.
            let both = format!("nfs:{},{}", root.display(), path.display());
            let alone = format!("nfs:{}", path.display());
            let text = if path == root { alone } else { both };
            let Ok(ServiceKind::Nfs(nfs)) = text.parse() else { panic!("{text}") };
            open_below(roots, &nfs).map(drop)
        };
        let roots = [root.clone()];
        for good in ["", "a", "a/b", "in", "a/../a/b"] {
            assert_eq!(try_open(&roots, &root.join(good)), Ok(()), "{good}");
        }
        for bad in ["out", "a/up", "..", "../outside", "a/../../outside", "file", "nothing"] {
            assert!(try_open(&roots, &root.join(bad)).is_err(), "{bad}");
        }
        assert!(try_open(&roots, &outside).is_err());
        assert!(try_open(&roots, &dir.path().join("rootbeer")).is_err());
        assert!(try_open(&[], &root).is_err(), "without a root nothing is exported");
    }
}
