//! A session with a server, and the export that holds a path.

use std::fs;
use std::time::Duration;

use heddle::connection::{MpaOptions, Protocol};
use heddle::nfs::client::rdma::{self, RdmaTransport};
use heddle::nfs::client::{Client, ClientError, Found, Transport, TransportError, export_of};
use heddle::nfs::tcp::TcpTransport;
use heddle::nfs::wire::Handle;
use heddle::rpc;

use super::place::Remote;
use super::{Common, Failure};
use crate::cli::rnic::Rnic;
use crate::cli::signals::Stop;

/// The longest silence of a MOUNT service over TCP.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// The work to do while the server sends nothing.
type Rest<'a> = Box<dyn FnMut(&rpc::Client) + 'a>;

/// A client of a server, in the export that holds a path.
pub(super) struct Session<'a> {
    pub(super) nfs: Client<RdmaTransport<Rest<'a>>>,
    /// The root of the export.
    pub(super) root: Found,
    /// The path from that root.
    pub(super) path: Vec<u8>,
}

/// Returns the name of this machine, for AUTH_SYS and MOUNT.
fn machine() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().chars().take(60).collect()
}

/// Returns the configuration of the client.
pub(super) fn config(common: &Common, mpa: MpaOptions) -> rpc::ClientConfig {
    let mut config = rdma::config(common.pipeline(), &machine());
    config.transport.speaks = common.rpc_version.speaks();
    config.protocol = Protocol::Mpa(mpa);
    config.timeout = common.timeout.0;
    config
}

impl<'a> Session<'a> {
    /// Connects to the server and mounts the export.
    pub(super) fn open(
        common: &Common,
        remote: &Remote,
        config: rpc::ClientConfig,
        rnic: &'a mut Rnic,
        stop: &'a Stop,
    ) -> Result<Session<'a>, Failure> {
        let rpc = rpc::Client::new(rnic.device(), remote.server, config)?;
        let rest: Rest<'a> = Box::new(move |client: &rpc::Client| {
            if stop.is_set() {
                client.close();
            }
            match rnic {
                Rnic::Own { endpoint, .. } => {
                    endpoint.poll();
                }
                Rnic::Served(_) => rdma::sleep(client),
            }
        });
        let mut nfs = Client::new(RdmaTransport::new(rpc, rest), common.pipeline());
        let path = remote.path.as_bytes();
        let (root, path) = match &common.mount {
            Some(service) => {
                let transport = TcpTransport::connect(service, &machine(), MOUNT_TIMEOUT)
                    .map_err(|e| Failure::failed(format!("MOUNT at {service}: {e}")))?;
                mounted(&mut Client::new(transport, common.pipeline()), path)?
            }
            None => mounted(&mut nfs, path)?,
        };
        let root = nfs.enter(root)?;
        Ok(Session { nfs, root, path })
    }

    /// Looks up the path.
    pub(super) fn find(&mut self, follow: bool) -> Result<Found, ClientError> {
        self.nfs.walk(&self.root, &self.path, follow)
    }
}

/// Returns the handle of the export that holds `path`, and the rest of the path.
fn mounted<T: Transport>(
    client: &mut Client<T>,
    path: &[u8],
) -> Result<(Handle, Vec<u8>), Failure> {
    let exports = client.exports().map_err(|e| match e {
        ClientError::Transport(TransportError::ProgUnavail) => Failure::failed(
            "the server answers no MOUNT by RDMA: --mount HOST:PORT names who does by TCP",
        ),
        other => other.into(),
    })?;
    let Some((export, rest)) = export_of(&exports, path) else {
        let all: Vec<_> = exports.iter().map(|e| String::from_utf8_lossy(e)).collect();
        let (path, all) = (String::from_utf8_lossy(path), all.join(", "));
        let what = if all.is_empty() { "nothing".into() } else { all };
        return Err(Failure::failed(format!("{path} is in no export: the server has {what}")));
    };
    Ok((client.export_root(export)?, rest))
}
