//! What NFS exports need of the host: taken before they are started, so that what is not there to be had
//! is known before anything changes.

use core::net::SocketAddr;
use core::time::Duration;
use std::io::ErrorKind;

use tokio::time::{Instant, sleep, timeout};

use super::{Appliance, SERVICE};
use crate::change::Change;
use crate::nfs::Opened;
use crate::service::{Nfs, ServiceKind, ServiceSpec};
use crate::services::Exports;

/// How long whoever gives up a socket of the host may take: it ends the connections there first.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// How often it is tried.
const STEP: Duration = Duration::from_millis(20);

/// Opens the directory. A disk may be asleep, or the server of a file system not there.
///
/// # Errors
/// Why not, in one line.
async fn open(nfs: &Nfs) -> Result<Opened, String> {
    let nfs = nfs.clone();
    let opened = tokio::task::spawn_blocking(move || Opened::new(&nfs));
    let opened = timeout(SERVICE, opened).await.map_err(|_| "the directory does not answer")?;
    opened.map_err(|_| "opening the directory has failed")?
}

/// What an export needs, with the socket of the host bound.
///
/// # Errors
/// Why not, in one line.
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
    /// Those that run.
    pub(crate) fn exports(&self) -> Exports {
        self.services.borrow().exports()
    }

    /// What the export that a change starts needs; the socket only where no other export has to give
    /// it up first.
    ///
    /// # Errors
    /// What cannot be had, in one line.
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
