//! Listeners: services, and forwarders.

use std::collections::BTreeSet;

use heddle_gateway::MAX_FORWARDED;
use heddle_nfs::{ANONYMOUS, Access, Squash};
use heddle_types::TcpTerms;
use heddle_verbs::Transport;
use toml::Spanned;

use super::Checker;
use crate::config::forward::{self, Forward};
use crate::config::{Port, file};
use crate::service::{Nfs, NfsExport, ServiceKind, ServiceSpec};

/// All listeners of a file.
pub(super) struct Listeners {
    pub(super) services: Vec<ServiceSpec>,
    pub(super) forward: Vec<Forward>,
}

impl Checker<'_> {
    pub(super) fn listen(
        &mut self,
        all: &[Spanned<file::Listen>],
        ports: &[Port],
        infiniband: bool,
    ) -> Listeners {
        let mut listeners = Listeners { services: Vec::new(), forward: Vec::new() };
        let (mut taken, mut of_host) = (BTreeSet::new(), BTreeSet::new());
        for l in all {
            let at = Spanned::new(l.span(), ());
            let l = l.get_ref();
            let Some(address) =
                l.address.as_ref().filter(|_| l.service.is_some() || l.forward.is_some())
            else {
                let keys = ["listen.address", "listen.service", "listen.forward"];
                let what = "a listener needs address and service, or forward in its place";
                self.lacks(&at, &keys, what);
                continue;
            };
            let addr = self.word(address, ServiceSpec::address);
            if let (Some(_), Some(forward)) = (&l.service, &l.forward) {
                self.wrong(forward, "a listener has service or forward, not both");
                continue;
            }
            let kind = l.service.as_ref().and_then(|s| self.service(s, &l.export));
            let also = self.infiniband(l, kind.as_ref(), infiniband);
            let tcp = self.tcp_terms([&l.congestion, &l.ecn, &l.pacing]);
            if let (Some(first), None) = (l.export.first(), &l.service) {
                self.wrong(first, "exports need the service nfs");
            }
            // The other problems of an entry are reported, whether its address is good or not.
            let goes = l.forward.as_ref().and_then(|f| self.forward(f, infiniband));
            let Some(addr) = addr else { continue };
            let ours = |p: &Port| p.all_addresses().any(|c| c.addr() == addr.ip());
            // Without ports, that problem has been reported already.
            let known = self.addresses_known && !ports.is_empty();
            if !addr.ip().is_unspecified() && known && !ports.iter().any(ours) {
                let have = ports.iter().flat_map(Port::all_addresses);
                let have = have.map(|c| c.addr().to_string());
                let have = have.collect::<Vec<_>>().join(", ");
                let what = format!("no port has the address {} (they have {have})", addr.ip());
                self.wrong(address, what);
            }
            if (kind.is_some() || goes.is_some()) && !taken.insert(addr) {
                self.wrong(address, format!("{addr} is given twice"));
                continue;
            }
            if let Some(tcp) = kind.as_ref().and_then(ServiceKind::nfs).and_then(|nfs| nfs.tcp)
                && !of_host.insert(tcp)
                && let Some(service) = &l.service
            {
                self.wrong(service, format!("tcp={tcp} is given twice"));
            }
            if kind.as_ref().and_then(ServiceKind::nfs).is_some_and(|nfs| nfs.rpcbind)
                && listeners.services.iter().any(|s| s.kind.nfs().is_some_and(|nfs| nfs.rpcbind))
                && let Some(service) = &l.service
            {
                self.wrong(service, "rpcbind is given twice: it knows one place of NFS");
            }
            if let Some(kind) = kind {
                listeners.services.push(ServiceSpec { addr, kind, infiniband: also, tcp });
            }
            if let (Some(to), Some(goes)) =
                (l.forward.as_ref().and_then(|f| f.get_ref().to.as_ref()), goes)
            {
                let goes = Forward { addr, tcp, ..goes };
                match forward::check(&goes, ports, &listeners.forward) {
                    Ok(()) => listeners.forward.push(goes),
                    Err(why) => self.wrong(to, why),
                }
            }
        }
        listeners
    }

    /// Returns the service: given in one text, or with exports in tables of their own.
    fn service(
        &mut self,
        given: &Spanned<String>,
        exports: &[Spanned<file::Export>],
    ) -> Option<ServiceKind> {
        if exports.is_empty() {
            return self.word(given, str::parse::<ServiceKind>);
        }
        let before = self.problems.len();
        let exports: Vec<_> = exports.iter().filter_map(|e| self.export(e)).collect();
        if self.problems.len() > before {
            return None;
        }
        self.word(given, |s| Nfs::of_listener(s, exports)).map(ServiceKind::Nfs)
    }

    fn export(&mut self, given: &Spanned<file::Export>) -> Option<NfsExport> {
        let e = given.get_ref();
        let Some(path) = &e.path else {
            self.lacks(given, &["listen.export.path"], "an export needs path");
            return None;
        };
        if !path.get_ref().starts_with('/') || path.get_ref().contains(',') {
            self.wrong(path, "path is the absolute path of a directory, without a comma");
            return None;
        }
        let squashes = [
            ("server", Squash::Server),
            ("all", Squash::All),
            ("root", Squash::Root),
            ("none", Squash::None),
        ];
        let clients = e.client.as_ref().map(|list| &list.get_ref()[..]).unwrap_or_default();
        // The last number belongs to no user.
        let ids = 0..=i64::from(u32::MAX - 1);
        let access = Access {
            clients: clients.iter().filter_map(|c| self.word(c, str::parse)).collect(),
            squash: self.choice(&e.squash, &squashes, Squash::Server),
            anonuid: self.number(&e.anonuid, ids.clone(), ANONYMOUS),
            anongid: self.number(&e.anongid, ids, ANONYMOUS),
        };
        let (read_only, sync) = (self.is(&e.ro, false), !self.is(&e.not_sync, false));
        Some(NfsExport { read_only, sync, access, ..NfsExport::new(path.get_ref()) })
    }

    /// Returns true if the service also answers InfiniBand's requests.
    fn infiniband(&mut self, l: &file::Listen, kind: Option<&ServiceKind>, spoken: bool) -> bool {
        let Some(given) = l.infiniband.as_ref().filter(|g| *g.get_ref()) else { return false };
        if l.forward.is_some() {
            self.wrong(given, "which requests are forwarded is said by 'over' of forward");
        } else if let Some(kind) = kind.filter(|k| k.needs_data()) {
            self.wrong(given, forward::no_data(kind));
        } else if !spoken {
            self.wrong(given, forward::NOT_SPOKEN);
        }
        true
    }

    /// Returns the target of a forwarder; its own address is not known here.
    fn forward(&mut self, given: &Spanned<file::Forward>, spoken: bool) -> Option<Forward> {
        let f = given.get_ref();
        if !spoken {
            self.wrong(given, forward::NOT_SPOKEN);
        }
        let (Some(to), Some(over)) = (&f.to, &f.over) else {
            let keys = ["listen.forward.to", "listen.forward.over"];
            self.lacks(given, &keys, "forward needs to and over");
            return None;
        };
        let target = self.word(to, forward::target);
        let over = self.word(over, forward::over);
        let most = i64::try_from(MAX_FORWARDED).unwrap_or(i64::MAX);
        let connections = self.number(&f.connections, 1..=most, forward::CONNECTIONS);
        let timeout = self.time(&f.timeout, forward::TIMEOUT);
        if let Some(given) = &f.timeout
            && !forward::TIMEOUTS.contains(&timeout)
        {
            self.wrong(given, forward::TIMEOUTS_TEXT);
        }
        let over: Transport = over?;
        let target = target?;
        let tcp = TcpTerms::default();
        Some(Forward { addr: target, to: target, over, connections, timeout, tcp })
    }
}
