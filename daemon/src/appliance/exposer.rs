//! Where Prometheus asks, which can change: who answers there, and how another place comes first.

use core::convert::Infallible;
use core::net::SocketAddr;
use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_local};

use super::Appliance;

/// Who answers, if anybody does.
#[derive(Debug, Default)]
pub(crate) struct Exposer(RefCell<Option<Server>>);

#[derive(Debug)]
struct Server {
    addr: SocketAddr,
    task: JoinHandle<Infallible>,
}

impl Exposer {
    /// Answers at `listener`, and nowhere else any more: who is being answered elsewhere is cut off.
    pub(crate) async fn serve(&self, listener: TcpListener, app: Rc<Appliance>) {
        self.stop().await;
        // Without an address it cannot be told from any other.
        let Ok(addr) = listener.local_addr() else { return };
        let task = spawn_local(heddle_metrics::serve(listener, app));
        *self.0.borrow_mut() = Some(Server { addr, task });
    }

    /// Answers nowhere; where it did.
    pub(crate) async fn stop(&self) -> Option<SocketAddr> {
        let Server { addr, task } = self.0.take()?;
        task.abort();
        // Then nobody listens there.
        let _ = task.await;
        Some(addr)
    }

    /// Listens at `addr`, while it is answered where it was until now. An address that has that one's
    /// port (all addresses instead of one, or the other way round) can be had only when that one is given
    /// up first: it is had again where this fails.
    ///
    /// # Errors
    /// Why not, in one line; nothing has changed.
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
