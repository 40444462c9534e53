//! The drain: no new connections and applications, while existing ones go on.
//!
//! The connection manager resets new connections of peers, whatever listener they come to, so
//! listeners stay where they are, and a client elsewhere sees that it has to go to another server.
//! Existing applications may still make connections, because they may need them to come to their
//! end.

use heddle_ctl::{Kill, Question};
use heddle_socket::Fault;
use heddle_socket::admin::{DrainArgs, Drained, End};

use super::{Appliance, silent};

impl Appliance {
    /// Returns true while new connections and applications are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get().is_some()
    }

    /// Returns the beginning of the drain.
    pub(crate) fn draining_since(&self) -> Option<u64> {
        self.draining.get()
    }

    /// Begins a drain, or goes on with the one that has begun. Ends all connections if `args` asks
    /// for that; the caller watches how many are left.
    pub(crate) async fn drain(&self, args: &DrainArgs) -> Result<Drained, Fault> {
        let _turn = self.changing.lock().await;
        self.set_draining(true).await?;
        let since_ns = self.draining.get().unwrap_or_else(|| {
            tracing::warn!("new connections and applications are refused: heddle drain");
            self.at_ns()
        });
        self.draining.set(Some(since_ns));
        match args.end {
            None => {}
            Some(End::InOrder) => self.end_all(Kill::InOrder).await,
            Some(End::Reset) => self.end_all(Kill::Reset).await,
        }
        let conns = self.connections().await.ok_or_else(|| silent("the control plane"))?;
        let applications = self.applications.borrow().count();
        Ok(Drained { since_ns, conns, applications })
    }

    /// Takes new connections and applications again.
    pub(crate) async fn undrain(&self) -> Result<(), Fault> {
        let _turn = self.changing.lock().await;
        self.set_draining(false).await?;
        if self.draining.take().is_some() {
            tracing::warn!("new connections and applications are taken again: heddle undrain");
        }
        Ok(())
    }

    async fn set_draining(&self, draining: bool) -> Result<(), Fault> {
        let told = self.ask(|reply| Question::SetDraining { draining, reply }).await;
        told.ok_or_else(|| silent("the control plane"))
    }
}
