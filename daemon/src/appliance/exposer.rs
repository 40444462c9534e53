//! The address that Prometheus asks, which can change: the server there, and the move to another
//! address.

use core::convert::Infallible;
use core::net::SocketAddr;
use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_local};

use super::Appliance;

/// The server, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Exposer(RefCell<Option<Server>>);

#[derive(Debug)]
struct Server {
    addr: SocketAddr,
    task: JoinHandle<Infallible>,
}

impl Exposer {
    /// Answers at `listener`, and nowhere else any more: cuts off the answers that are under way at
    /// the old address.
    pub(crate) async fn serve(&self, listener: TcpListener, app: Rc<Appliance>) {
        self.stop().await;
        // Without an address the server could not be distinguished from any other.
        let Ok(addr) = listener.local_addr() else { return };
        let task = spawn_local(heddle_metrics::serve(listener, app));
        *self.0.borrow_mut() = Some(Server { addr, task });
    }

    /// Stops answering; returns the address of the server that was stopped.
    pub(crate) async fn stop(&self) -> Option<SocketAddr> {
        let Server { addr, task } = self.0.take()?;
        task.abort();
        // After this wait the address is free.
        let _ = task.await;
        Some(addr)
    }

    /// Binds `addr` while the old server still answers. If both addresses have the same port (all
    /// addresses instead of one, or the reverse), `addr` is available only after the old server has
    /// stopped; if that fails, the old server is started again.
    ///
    /// # Errors
    /// The reason, in one line; nothing has changed.
    pub(crate) async fn bind(
        &self,
        addr: SocketAddr,
        app: &Rc<Appliance>,
    ) -> Result<TcpListener, String> {
        let port = self.0.borrow().as_ref().map(|s| s.addr.port());
        let failed = |e: std::io::Error| format!("metrics on {addr}: {e}");
        match TcpListener::bind(addr).await {
            Err(e) if e.kind() == ErrorKind::AddrInUse && port == Some(addr.port()) => {
                let old = self.stop().await;
                let bound = TcpListener::bind(addr).await;
                if bound.is_err()
                    && let Some(old) = old
                {
                    match TcpListener::bind(old).await {
                        Ok(listener) => self.serve(listener, Rc::clone(app)).await,
                        Err(e) => tracing::error!("metrics on {old}: {e}"),
                    }
                }
                bound.map_err(failed)
            }
            bound => bound.map_err(failed),
        }
    }
}
