//! Requests that change the appliance.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use heddle_ctl::{Kill, Question};
use heddle_gateway::MAX_FORWARDED;
use heddle_socket::admin::{
    ConnKill, Difference, Differences, LastReload, ListenAdd, ListenDel, LogLevel, Reloaded,
    Settings,
};
use heddle_socket::{Fault, FaultKind};
use heddle_tcp::Addressing;
use heddle_types::{CmId, Congestion, Ecn, Pacing, TcpTerms};
use tokio::net::TcpListener;

use super::taken::{self, Taken};
use super::{Appliance, addresses, exports, silent};
use crate::access::Access;
use crate::change::{self, Change, Net};
use crate::config::{self, Config, ConfigError, Forward, forward, level, value};
use crate::gateway;
use crate::nfs::Opened;
use crate::service::{ServiceError, ServiceKind, ServiceSpec};

/// Resources for changes, taken before the changes are made.
#[derive(Debug, Default)]
struct Prepared {
    /// The socket for Prometheus.
    metrics: Option<TcpListener>,
    /// Resources of NFS exports, by the addresses where they will listen.
    exports: BTreeMap<SocketAddr, Opened>,
}

/// Returns the settings of TCP that a listener is to have.
fn tcp_terms(args: &ListenAdd) -> Result<TcpTerms, String> {
    fn named<T: Copy>(given: Option<&String>, names: &[(&str, T)]) -> Result<Option<T>, String> {
        given.map(|s| value::named(s, names)).transpose()
    }
    Ok(TcpTerms {
        congestion: named(args.congestion.as_ref(), &Congestion::NAMES)?,
        ecn: named(args.ecn.as_ref(), &Ecn::NAMES)?,
        pacing: named(args.pacing.as_ref(), &Pacing::NAMES)?,
    })
}

fn invalid(what: impl ToString) -> Fault {
    Fault::new(FaultKind::Invalid, what.to_string())
}

impl Appliance {
    /// Starts a service, or forwards connections. A client without all rights may have only the
    /// directories exported that the configuration allows.
    pub(crate) async fn listen_add(&self, args: &ListenAdd, access: Access) -> Result<(), Fault> {
        let addr = ServiceSpec::address(&args.address).map_err(invalid)?;
        let _turn = self.changing.lock().await;
        if self.config.borrow().service_at(addr).is_some() {
            return Err(invalid(format!("a service listens on {addr} already")));
        }
        if let Some(f) = self.config.borrow().forward_at(addr) {
            return Err(invalid(format!("{addr} is taken: {f}")));
        }
        let change = self.to_listen(addr, args).map_err(invalid)?;
        let mut prepared = Prepared::default();
        if let Change::ListenAdd(ServiceSpec { kind: ServiceKind::Nfs(nfs), .. }) = &change
            && !access.secrets
        {
            let roots = self.config.borrow().control.as_ref().map(|c| c.exports.clone());
            let opened = exports::below(roots.unwrap_or_default(), nfs).await;
            let denied = |e| Fault::new(FaultKind::Denied, e);
            prepared.exports.insert(addr, opened.map_err(denied)?);
        }
        let mut reserved = addresses(&self.config.borrow());
        reserved.push(addr);
        self.reserve_now(reserved).await;
        let made = self.make(&change, &mut prepared).await.map_err(invalid);
        self.reserve(addresses(&self.config.borrow()));
        made
    }

    /// Returns the change that [`listen_add`](Self::listen_add) asks for, after checking it against
    /// the configuration in force, in the same way as the entries of a file are checked against
    /// each other.
    fn to_listen(&self, addr: SocketAddr, args: &ListenAdd) -> Result<Change, String> {
        let config = self.config.borrow();
        let Some(f) = &args.forward else {
            let kind: ServiceKind =
                args.service.parse().map_err(|e: ServiceError| e.to_string())?;
            if args.infiniband && kind.needs_data() {
                return Err(forward::no_data(&kind));
            }
            if args.infiniband && !config.infiniband {
                return Err(forward::NOT_SPOKEN.into());
            }
            let tcp = tcp_terms(args)?;
            let infiniband = args.infiniband;
            return Ok(Change::ListenAdd(ServiceSpec { addr, kind, infiniband, tcp }));
        };
        if !args.service.is_empty() || args.infiniband {
            return Err("a listener has a service or forwards, not both".into());
        }
        let timeout = f.timeout_ms.map_or(forward::TIMEOUT, Duration::from_millis);
        let connections = f.connections.unwrap_or(forward::CONNECTIONS);
        if !forward::TIMEOUTS.contains(&timeout) {
            return Err(forward::TIMEOUTS_TEXT.into());
        }
        if !(1..=MAX_FORWARDED).contains(&connections) {
            return Err(format!("{connections} is not between 1 and {MAX_FORWARDED}"));
        }
        let (to, over) = (forward::target(&f.to)?, forward::over(&f.over)?);
        let new = Forward { addr, to, over, connections, timeout, tcp: tcp_terms(args)? };
        forward::check(&new, &config.ports, &config.forward)?;
        Ok(Change::ForwardAdd(new))
    }

    pub(crate) async fn listen_del(&self, args: &ListenDel) -> Result<(), Fault> {
        let addr = ServiceSpec::address(&args.address).map_err(invalid)?;
        let _turn = self.changing.lock().await;
        let listens = |c: &Config| c.service_at(addr).is_some() || c.forward_at(addr).is_some();
        if !listens(&self.config.borrow()) {
            let text = format!("no service listens on {addr}");
            return Err(Fault::new(FaultKind::NotFound, text));
        }
        self.make(&Change::ListenDel(addr), &mut Prepared::default()).await.map_err(invalid)
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
        self.make(&Change::LogLevel(level), &mut Prepared::default()).await.map_err(invalid)
    }

    /// Reads the configuration again and makes the changes.
    ///
    /// # Errors
    /// When the file is not valid, or would change a fixed key: nothing has changed then.
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
        let mut prepared = self.prepare(&changes).await.map_err(invalid)?;
        let old = self.config.borrow().clone();
        // From here on no application can take an address between the end of one listener and the
        // start of another.
        let all = [addresses(&old), addresses(&new)].concat();
        self.reserve_now(all).await;
        let mut done = Reloaded::default();
        for change in changes {
            match self.make(&change, &mut prepared).await {
                Ok(()) => done.applied.push(change.to_string()),
                Err(e) => {
                    let again = self.restore(&old, &change).await;
                    let end = if again { "; what was there before listens again" } else { "" };
                    done.failed.push(format!("{change}: {e}{end}"));
                }
            }
        }
        self.reserve(addresses(&self.config.borrow()));
        Ok(done)
    }

    /// Starts the old service again if the service in its place does not start, and if the old
    /// service may still listen there: an address without a service helps no client. Returns true
    /// if the old service runs again, and false if there was none, or if it does not start either.
    async fn restore(&self, old: &Config, failed: &Change) -> bool {
        let addr = match failed {
            Change::ListenAdd(spec) => spec.addr,
            Change::ForwardAdd(forward) => forward.addr,
            _ => return false,
        };
        if self.config.borrow().service_at(addr).is_some() {
            return false;
        }
        let before = match (old.service_at(addr), old.forward_at(addr)) {
            (Some(spec), _) => Change::ListenAdd(spec.clone()),
            (None, Some(forward)) => Change::ForwardAdd(*forward),
            (None, None) => return false,
        };
        self.make(&before, &mut Prepared::default()).await.is_ok()
    }

    /// Takes the resources that may not be available, before any change is made.
    ///
    /// # Errors
    /// The resource that is not available, in one line; nothing has changed.
    async fn prepare(&self, changes: &[Change]) -> Result<Prepared, String> {
        let mut prepared = Prepared::default();
        for change in changes {
            match change {
                Change::Metrics(Some(addr)) => {
                    prepared.metrics = Some(self.exposer.bind(*addr, &self.me()?).await?);
                }
                Change::ListenAdd(spec) => {
                    let opened = self.prepare_export(spec, changes).await?;
                    prepared.exports.extend(opened.map(|opened| (spec.addr, opened)));
                }
                Change::ExportSet(spec) => {
                    let Some(nfs) = spec.kind.nfs() else { continue };
                    // This opens all directories, also to check that their access rights can be set
                    // up.
                    let opened = exports::open(nfs).await;
                    let opened = opened.map_err(|e| format!("{} on {}: {e}", spec.kind, spec.addr));
                    prepared.exports.insert(spec.addr, opened?);
                }
                _ => {}
            }
        }
        Ok(prepared)
    }

    /// Returns the appliance, for a task of its own to hold.
    fn me(&self) -> Result<Rc<Appliance>, String> {
        self.me.upgrade().ok_or_else(|| "it is about to end".into())
    }

    /// Makes one change, and enters it into the configuration in force.
    async fn make(&self, change: &Change, prepared: &mut Prepared) -> Result<(), String> {
        match change {
            Change::LogLevel(level) => self.logging.set_level(*level)?,
            Change::LogFormat(format) => self.logging.set_format(*format)?,
            Change::Metrics(_) => match prepared.metrics.take() {
                Some(listener) => self.exposer.serve(listener, self.me()?).await,
                None => drop(self.exposer.stop().await),
            },
            Change::Keepalive(keepalive) => {
                let keepalive = *keepalive;
                let told = self.ask(|reply| Question::SetKeepalive { keepalive, reply }).await;
                told.ok_or("the control plane does not answer")?;
            }
            Change::Patience(patience) => {
                let patience = *patience;
                let told = self.ask(|reply| Question::SetPatience { patience, reply }).await;
                told.ok_or("the control plane does not answer")?;
            }
            Change::IbKeepalive(keepalive) => {
                let keepalive = *keepalive;
                let told = self.ask(|reply| Question::SetIbKeepalive { keepalive, reply }).await;
                told.ok_or("the control plane does not answer")?;
            }
            Change::Access(control) => crate::front::permit(control)?,
            Change::ListenDel(addr) => self.stop_listening(*addr).await?,
            Change::Addresses(nets) => self.set_addresses(nets).await?,
            Change::ListenAdd(spec) => {
                let opened = prepared.exports.remove(&spec.addr);
                self.start_service(spec.clone(), opened).await?;
            }
            Change::ExportSet(spec) => {
                let (spec, opened) = (spec.clone(), prepared.exports.remove(&spec.addr));
                self.serve(|services, done| services.set(spec, opened, done)).await?;
            }
            Change::ForwardAdd(forward) => self.start_forwarding(*forward).await?,
            Change::Weight(weight) => self.set_weight(*weight),
            // The code that needs these values reads them from the configuration.
            Change::Terms(..) | Change::Clients(_) | Change::Deadline(_) => {}
        }
        change::apply(&mut self.config.borrow_mut(), change);
        if matches!(change, Change::Clients(_) | Change::Access(_)) {
            self.enforce();
        }
        Ok(())
    }
}

impl Appliance {
    /// Reports the settings in force.
    pub(crate) fn settings(&self) -> Result<Settings, Fault> {
        let config = self.config.borrow();
        let failed = |e| Fault::new(FaultKind::Failed, e);
        Ok(Settings {
            file: self.file.as_ref().map(|f| f.display().to_string()),
            text: config.to_text().map_err(failed)?,
            settings: config.to_value().map_err(failed)?,
        })
    }

    /// Compares the settings in force with the file.
    pub(crate) async fn differences(&self) -> Result<Differences, Fault> {
        let Some(file) = self.file.clone() else {
            return Err(invalid("it was not started with a configuration file"));
        };
        let name = file.display().to_string();
        let new = read(file).await?;
        let found = change::differences(&self.config.borrow(), &new);
        let found = found.map_err(|e| Fault::new(FaultKind::Failed, e))?;
        let differences = found.into_iter().map(|d| Difference {
            key: d.key,
            running: d.old,
            file: d.new,
            restart: d.fixed.map(str::to_owned),
        });
        Ok(Differences { file: name, differences: differences.collect() })
    }

    async fn set_addresses(&self, nets: &[Net]) -> Result<(), String> {
        let net = |(addrs, routes, vlans): &Net| {
            Addressing::new(addrs.clone(), routes.clone())?.with_vlans(vlans.clone())
        };
        let nets: Vec<_> =
            nets.iter().map(net).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
        let ours = gateway::addresses(nets.iter().flat_map(|n| n.all_addrs()).map(|(_, c)| c));
        let taken = |net: &Addressing| Taken {
            addrs: net.all_addrs().map(|(_, c)| c.addr()).collect(),
            vlans: net.vlans().iter().map(|v| v.vid).collect(),
        };
        let after: Vec<_> = nets.iter().map(taken).collect();
        let before: Vec<_> = {
            let of = |p: &config::Port| Taken {
                addrs: p.all_addresses().map(|c| c.addr()).collect(),
                vlans: p.vlans.iter().map(|v| v.vid).collect(),
            };
            self.config.borrow().ports.iter().map(of).collect()
        };
        taken::around(self.node.ports(), &before, &after, async {
            let done = self.ask(|reply| Question::SetAddressing { nets, reply }).await;
            done.ok_or("the control plane does not answer")?.map_err(|e| e.to_string())
        })
        .await?;
        if let Some(gateway) = self.gateway() {
            gateway.set_addresses(ours);
        }
        Ok(())
    }
}

/// Reads a configuration within a time limit, because a file may be on a disk that is asleep, or be
/// a pipe without a writer.
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
