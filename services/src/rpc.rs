//! The program as a service of an appliance.

pub mod program;

use std::net::SocketAddr;

use heddle_rpc::server::ServerError;
use heddle_rpc::{Server, ServerConfig};
use heddle_verbs::{Device, DeviceError, ListenFailure, ListenParams, Waker};
use tracing::warn;

use self::program::{BINDING, Bench, PROGRAM, VERSION};
use crate::server::Serve;
use crate::service::Limits;

/// The highest number of connections at a time.
const MAX_CONNS: usize = 64;
/// Bytes of registered memory, and the share that the calls of one connection may have.
const MEMORY: usize = 32 << 20;
const CONNECTION_MEMORY: usize = 8 << 20;

/// The server of `heddle bench --op rpc --connect`.
pub(crate) struct RpcService(Server);

impl RpcService {
    /// Starts to listen.
    ///
    /// # Errors
    /// The error of the device.
    pub(crate) fn new(
        device: &Device,
        addr: SocketAddr,
        listen: ListenParams,
        limits: &Limits,
        waker: Option<&Waker>,
    ) -> Result<RpcService, DeviceError> {
        let config = ServerConfig {
            listen,
            memory: MEMORY,
            connection_memory: CONNECTION_MEMORY,
            connections: MAX_CONNS,
            peer_connections: limits.share_of_peer(MAX_CONNS),
            waker: waker.cloned(),
            ..ServerConfig::default()
        };
        let mut server = Server::new(device, addr, config).map_err(|error| match error {
            ServerError::Device(error) => error,
            // The system gives no descriptor.
            other => DeviceError::Socket(other.to_string()),
        })?;
        let program = Bench::new(server.memory().clone());
        if let Err(error) = server.register(PROGRAM, VERSION..=VERSION, BINDING, program) {
            warn!(%error, "rpc");
        }
        Ok(RpcService(server))
    }
}

impl Serve for RpcService {
    fn step(&mut self) -> bool {
        self.0.step()
    }

    fn stop_listening(&mut self) {
        self.0.stop_listening();
    }

    fn end(&mut self) {
        self.0.stop_listening();
        self.0.drain();
    }

    fn conns(&self) -> usize {
        self.0.connections()
    }

    fn is_listening(&self) -> Result<bool, ListenFailure> {
        match self.0.listening() {
            Ok(is) => Ok(is),
            Err(ServerError::Listen(failure)) => Err(failure),
            // The server reports no other error for a listener.
            Err(_) => Ok(false),
        }
    }

    fn has_work(&self) -> bool {
        !self.0.arm()
    }
}
