//! Requests that change something.

use std::path::PathBuf;

use heddle_cm::CmId;
use heddle_ctl::{Kill, Question};
use heddle_perf::service::{ServiceKind, ServiceSpec};
use heddle_socket::admin::{ConnKill, LastReload, ListenAdd, ListenDel, LogLevel, Reloaded};
use heddle_socket::{Fault, FaultKind};
use heddle_tcp::Addressing;

use super::{Appliance, silent};
use crate::change::{self, Change, Net};
use crate::config::{Config, ConfigError, level};

fn invalid(what: impl ToString) -> Fault {
    Fault::new(FaultKind::Invalid, what.to_string())
}

impl Appliance {
    pub(crate) async fn listen_add(&self, args: &ListenAdd) -> Result<(), Fault> {
        let addr = ServiceSpec::address(&args.address).map_err(invalid)?;
        let kind: ServiceKind = args.service.parse().map_err(invalid)?;
        let _turn = self.changing.lock().await;
        if self.config.borrow().service_at(addr).is_some() {
            return Err(invalid(format!("a service listens on {addr} already")));
        }
        self.make(&Change::ListenAdd(ServiceSpec { addr, kind })).await.map_err(invalid)
    }

    pub(crate) async fn listen_del(&self, args: &ListenDel) -> Result<(), Fault> {
        let addr = ServiceSpec::address(&args.address).map_err(invalid)?;
        let _turn = self.changing.lock().await;
        if self.config.borrow().service_at(addr).is_none() {
            let text = format!("no service listens on {addr}");
            return Err(Fault::new(FaultKind::NotFound, text));
        }
        self.make(&Change::ListenDel(addr)).await.map_err(invalid)
    }

    pub(crate) async fn conn_kill(&self, args: &ConnKill) -> Result<(), Fault> {
        let how = if args.in_order { Kill::InOrder } else { Kill::Reset };
        let id = CmId(args.conn);
        let known = self.ask(|reply| Question::Kill { id, how, reply }).await;
        match known.ok_or_else(|| silent("the control plane"))? {
            true => Ok(()),
            false => {
                let text = format!("there is no connection {}", args.conn);
                Err(Fault::new(FaultKind::NotFound, text))
            }
        }
    }

    pub(crate) async fn log_level(&self, args: &LogLevel) -> Result<(), Fault> {
        let level = level(&args.level).map_err(invalid)?;
        let _turn = self.changing.lock().await;
        self.make(&Change::LogLevel(level)).await.map_err(invalid)
    }

    /// Reads the configuration anew and carries out the difference.
    ///
    /// # Errors
    /// When it is not one, or has what cannot change: nothing has changed then.
    pub(crate) async fn reload(&self) -> Result<Reloaded, Fault> {
        let _turn = self.changing.lock().await;
        let result = self.read_and_change().await;
        let error = match &result {
            Ok(r) if r.failed.is_empty() => None,
            Ok(r) => Some(r.failed.join("; ")),
            Err(fault) => Some(fault.text.clone()),
        };
        match &error {
            None => tracing::info!("the configuration was read anew"),
            Some(error) => tracing::error!("reload: {error}"),
        }
        *self.last_reload.borrow_mut() = Some(LastReload { at_ns: self.at_ns(), error });
        result
    }

    async fn read_and_change(&self) -> Result<Reloaded, Fault> {
        let Some(file) = self.file.clone() else {
            return Err(invalid("it was not started with a configuration file"));
        };
        let new = read(file).await?;
        let changes = change::changes(&self.config.borrow(), &new).map_err(|fixed| {
            let each: Vec<_> = fixed.iter().map(ToString::to_string).collect();
            invalid(each.join("; "))
        })?;
        let mut done = Reloaded::default();
        for change in changes {
            match self.make(&change).await {
                Ok(()) => done.applied.push(change.to_string()),
                Err(e) => done.failed.push(format!("{change}: {e}")),
            }
        }
        Ok(done)
    }

    /// Makes one change; it is in force then.
    async fn make(&self, change: &Change) -> Result<(), String> {
        match change {
            Change::LogLevel(level) => self.logging.set_level(*level)?,
            Change::Access(control) => crate::front::permit(control)?,
            Change::ListenDel(addr) => self.serve(|s, done| s.stop(*addr, done)).await?,
            Change::Addresses(nets) => self.set_addresses(nets).await?,
            Change::ListenAdd(spec) => self.start_service(*spec).await?,
            // They are looked at when they are needed.
            Change::Terms(..) | Change::Clients(_) | Change::Deadline(_) => {}
        }
        change::apply(&mut self.config.borrow_mut(), change);
        Ok(())
    }
}

impl Appliance {
    async fn set_addresses(&self, nets: &[Net]) -> Result<(), String> {
        let net = |(addrs, routes): &Net| Addressing::new(addrs.clone(), routes.clone());
        let nets: Vec<_> =
            nets.iter().map(net).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
        let done = self.ask(|reply| Question::SetAddressing { nets, reply }).await;
        done.ok_or("the control plane does not answer")?.map_err(|e| e.to_string())
    }
}

/// A file may be on a disk that is asleep, or be a pipe that nobody writes to.
async fn read(path: PathBuf) -> Result<Config, Fault> {
    let read = tokio::task::spawn_blocking(move || Config::read(&path));
    let read = tokio::time::timeout(super::SERVICE, read).await;
    let read = read.map_err(|_| invalid("the file cannot be read in time"))?;
    let read = read.map_err(|_| Fault::new(FaultKind::Failed, "reading the file has failed"))?;
    read.map_err(|e| match &e {
        ConfigError::Wrong { path, problems } => {
            let each: Vec<_> = problems.iter().map(|p| format!("{}:{p}", path.display())).collect();
            invalid(each.join("; "))
        }
        ConfigError::Read { .. } => invalid(e),
    })
}
