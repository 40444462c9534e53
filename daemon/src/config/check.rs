//! From a file's text to its meaning: defaults, ranges, and contradictions.

mod listen;

use core::fmt::Display;
use core::net::SocketAddr;
use core::ops::RangeInclusive;
use core::str::FromStr;
use core::time::Duration;
use std::collections::BTreeSet;

use heddle_base::units::Span;
use heddle_ctl::{MAX_WORKERS, MTU, Patience};
use heddle_dataplane::{
    Bond, BondMode, Hugepages, IdlePolicy, IovaMode, Member, Naps, Offloads, PortSource,
    TransmitHash, VdevArg,
};
use heddle_hub::{Addresses, Policy, ShareTerms};
use heddle_tcp::autoconf::RouterAdverts;
use heddle_tcp::{
    Addressing, Cidr, Congestion, Ecn, Pacing, PathMtu, Priority, Route, SynCookies,
    UserTimeoutOption, Vid, Vlan,
};
use heddle_types::TcpTerms;
use heddle_types::mpa::{CrcPolicy, Revision, Rtr, RtrSet};
use heddle_verbs::{DeviceLimits, MpaOptions, PageSize};
use toml::Spanned;
use tracing_subscriber::filter::LevelFilter;

use super::file::{self, Key, Time};
use super::text::Read;
use super::{
    Accounts, ClientRule, Config, Control, Dpdk, Limits, Log, LogFormat, MAX_MEMORY, Memory, Port,
    Problem, Sharing, Workers, keepalive, value,
};

use listen::Listeners;

/// The kinds of addresses that devices may be made to use.
pub(super) const IOVA: [(&str, Option<IovaMode>); 3] =
    [("auto", None), ("va", Some(IovaMode::Va)), ("pa", Some(IovaMode::Pa))];

/// Beginning of the name of a device that stands in the place of one that could not be read.
pub(super) const UNKNOWN: &str = "unknown ";

/// Longest time for which a message may wait for a receive.
const LONGEST_RNR_WAIT: Duration = Duration::from_secs(60);

/// Weights of shares: a share with the least has a turn in a thousand of one with the most.
const WEIGHTS: RangeInclusive<i64> = 1..=1000;

/// The shortest timeout that a peer may ask for (RFC 5482 section 3.1).
const LEAST_ADVICE: Duration = Duration::from_secs(100);
/// Range of the time for which a peer may hold a connection up.
const SPAN: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// Collects all problems, so that one answer reports all of them.
struct Checker<'a> {
    text: &'a str,
    accounts: &'a Accounts,
    problems: Vec<Problem>,
    /// Paths of keys that are there, but of a wrong type or name.
    broken: BTreeSet<String>,
    /// Whether all addresses of all ports could be read; otherwise nothing can be said about an
    /// address that no port seems to have.
    addresses_known: bool,
}

/// Makes a configuration of what could be read of a file. With problems, which include those of the
/// reader, the configuration has defaults in place of what is wrong.
pub(super) fn check(text: &str, accounts: &Accounts, read: Read) -> (Config, Vec<Problem>) {
    let Read { file, problems, broken } = read;
    let addresses_known = !["port", "port.addresses"].iter().any(|key| broken.contains(*key));
    let mut c = Checker { text, accounts, problems, broken, addresses_known };
    let ports = c.ports(file.port);
    let workers = ports.iter().map(|p| p.workers).sum();
    let infiniband = c.is(&file.infiniband.cm, false);
    let Listeners { services, forward } = c.listen(&file.listen, &ports, infiniband);
    let limits = c.limits(&file.limits);
    let config = Config {
        dpdk: c.dpdk(&file.dpdk),
        log: c.log(&file.log),
        control: c.control(&file.control),
        metrics: c.metrics(&file.metrics),
        infiniband,
        ib_keepalive: c.ib_keepalive(&file.infiniband),
        listen: services,
        forward,
        workers: c.workers(&file.workers, workers),
        memory: c.memory(&file.memory),
        limits,
        weight: c.number(&file.limits.weight, WEIGHTS, 1),
        mpa: c.mpa(&file.mpa),
        keepalive: keepalive(c.time(&file.tcp.keepalive, Duration::from_secs(60))),
        sharing: c.sharing(&file.tcp),
        syn_cookies: c.choice(&file.tcp.syn_cookies, &SynCookies::NAMES, SynCookies::default()),
        patience: c.patience(&file.tcp, &file.mpa),
        clients: c.clients(&file.client, &limits),
        shutdown: c.time(&file.shutdown.deadline, Duration::from_secs(5)),
        ports,
        inner: super::inner(),
        private: None,
    };
    (config, c.problems)
}

impl Checker<'_> {
    fn ib_keepalive(&mut self, file: &file::Infiniband) -> Option<Duration> {
        let idle = self.time(&file.keepalive, Duration::from_secs(60));
        (!idle.is_zero()).then_some(idle)
    }

    fn wrong<T>(&mut self, at: &Spanned<T>, what: impl Display) {
        self.problems.push(Problem::at(self.text, at.span(), what));
    }

    /// Reports that a table at `at` lacks a key, unless one of `keys` is there and wrong, which has
    /// been reported.
    fn lacks<T>(&mut self, at: &Spanned<T>, keys: &[&str], what: impl Display) {
        if !keys.iter().any(|key| self.broken.contains(*key)) {
            self.wrong(at, what);
        }
    }

    /// Returns a number within its range, or the default.
    fn number<N: TryFrom<i64>>(
        &mut self,
        key: &Key<i64>,
        range: RangeInclusive<i64>,
        default: N,
    ) -> N {
        let Some(given) = key else { return default };
        let n = *given.get_ref();
        if range.contains(&n)
            && let Ok(n) = N::try_from(n)
        {
            return n;
        }
        self.wrong(given, format!("{n} is not between {} and {}", range.start(), range.end()));
        default
    }

    /// Returns the value that `parse` makes of a word; `None` when `parse` refuses the word.
    fn word<T, E: Display>(
        &mut self,
        given: &Spanned<String>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let parsed = parse(given.get_ref());
        parsed.map_err(|e| self.wrong(given, e)).ok()
    }

    fn is(&self, key: &Key<bool>, default: bool) -> bool {
        key.as_ref().map_or(default, |k| *k.get_ref())
    }

    fn choice<T: Copy>(&mut self, key: &Key<String>, choices: &[(&str, T)], default: T) -> T {
        self.chosen(key, choices).unwrap_or(default)
    }

    /// Returns the settings of TCP for listeners or connections, where they differ from `[tcp]`.
    fn tcp_terms(&mut self, [congestion, ecn, pacing]: [&Key<String>; 3]) -> TcpTerms {
        TcpTerms {
            congestion: self.chosen(congestion, &Congestion::NAMES),
            ecn: self.chosen(ecn, &Ecn::NAMES),
            pacing: self.chosen(pacing, &Pacing::NAMES),
        }
    }

    fn chosen<T: Copy>(&mut self, key: &Key<String>, choices: &[(&str, T)]) -> Option<T> {
        key.as_ref().and_then(|given| self.word(given, |s| value::named(s, choices)))
    }

    fn time(&mut self, key: &Key<Time>, default: Duration) -> Duration {
        let Some(given) = key else { return default };
        let parsed = Span::from_str(&given.get_ref().0).map_err(|e| self.wrong(given, e));
        parsed.map_or(default, |s| s.0)
    }

    fn dpdk(&mut self, f: &file::Dpdk) -> Dpdk {
        use Hugepages::{Auto, Never, Require};
        let pages = [("auto", Auto), ("never", Never), ("require", Require)];
        let memory = f.memory.is_some().then(|| self.number(&f.memory, 16..=65_536, 256));
        let hugepages = self.choice(&f.hugepages, &pages, Auto);
        Dpdk { memory, hugepages, iova: self.choice(&f.iova, &IOVA, None) }
    }

    fn log(&mut self, f: &file::Log) -> Log {
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        Log {
            level: self.choice(&f.level, &LEVELS, LevelFilter::WARN),
            format: self.choice(&f.format, &formats, LogFormat::Text),
        }
    }

    fn metrics(&mut self, f: &file::Metrics) -> Option<SocketAddr> {
        let form =
            |s: &str| format!("'{s}' is no address with a port (expected \"127.0.0.1:9184\")");
        let given = f.listen.as_ref()?;
        self.word(given, |s| s.parse().map_err(|_| form(s)))
    }

    /// Checks the control socket. An empty path means no socket.
    fn control(&mut self, f: &file::Control) -> Option<Control> {
        let mut control = Control::at(heddle_socket::DEFAULT_PATH);
        let accounts = self.accounts;
        if let Some(mode) = &f.mode {
            let octal = |s: &str| {
                let mode = u32::from_str_radix(s, 8).ok().filter(|m| *m <= 0o777);
                mode.ok_or_else(|| format!("'{s}' is no file mode (expected octal, as \"0660\")"))
            };
            control.mode = self.word(mode, octal).unwrap_or_default();
        }
        control.group = f.group.as_ref().and_then(|g| self.word(g, |s| accounts.gid(s)));
        control.clients = self.number(&f.clients, 1..=4096, control.clients);
        for given in &f.exports {
            let path = std::path::PathBuf::from(given.get_ref());
            if path.is_absolute() {
                control.exports.push(path);
            } else {
                self.wrong(given, "the path of a directory begins with /");
            }
        }
        for (given, list) in [(&f.read, &mut control.read), (&f.change, &mut control.change)] {
            let each = given.iter().filter_map(|g| self.word(g, |s| accounts.principal(s)));
            list.extend(each);
        }
        match &f.socket {
            None => Some(control),
            Some(path) if path.get_ref().is_empty() => None,
            Some(path) => {
                // The limit is the length of `sun_path` without its NUL.
                if path.get_ref().len() > 107 {
                    self.wrong(path, "the path of a socket has 107 bytes at most");
                }
                Some(Control { path: path.get_ref().into(), ..control })
            }
        }
    }

    fn ports(&mut self, files: Vec<Spanned<file::Port>>) -> Vec<Port> {
        if files.is_empty() && !self.broken.contains("port") {
            self.problems.push(Problem::at(self.text, 0..0, "there is no [[port]]"));
        }
        let mut ports: Vec<Port> = Vec::new();
        for (n, f) in files.into_iter().enumerate() {
            let at = Spanned::new(f.span(), ());
            let f = f.into_inner();
            let names = (f.name.clone(), f.addresses.clone());
            let vlans: Vec<_> = f.vlan.iter().map(|v| Spanned::new(v.span(), ())).collect();
            let device = [f.vdev.as_ref().map(Spanned::span), f.pci.as_ref().map(Spanned::span)];
            let device = device.into_iter().chain([f.bond.as_ref().map(Spanned::span)]);
            let device = device.flatten().next().map(|span| Spanned::new(span, ()));
            let port = self.port(n, &at, f);
            if ports.iter().any(|p| p.name == port.name) {
                let what = format!("another port is called {}", port.name);
                match &names.0 {
                    Some(name) => self.wrong(name, what),
                    None => self.wrong(&at, what),
                }
            }
            if let Some(device) = device
                && ports.iter().any(|p| p.names_device_of(&port))
            {
                self.wrong(&device, "another port has this device");
            }
            for (given, addr) in names.1.iter().zip(&port.addresses) {
                self.apart(given, *addr, &ports);
            }
            for (given, vlan) in vlans.iter().zip(&port.vlans) {
                let addrs = vlan.net.addrs().to_vec();
                addrs.into_iter().for_each(|addr| self.apart(given, addr, &ports));
            }
            ports.push(port);
        }
        let workers: usize = ports.iter().map(|p| p.workers).sum();
        if workers > MAX_WORKERS {
            let what =
                format!("{workers} workers: there can be {MAX_WORKERS} on all ports together");
            self.problems.push(Problem::at(self.text, 0..0, what));
        }
        ports
    }

    /// Reports an address of a port that another port has.
    fn apart<T>(&mut self, at: &Spanned<T>, addr: Cidr, others: &[Port]) {
        if others.iter().flat_map(Port::all_addresses).any(|a| a.addr() == addr.addr()) {
            self.wrong(at, format!("{} is the address of another port", addr.addr()));
        }
    }

    /// Checks a port and reports every problem in it. A port whose device is not known has another
    /// device here, so that checks against its addresses go on.
    fn port(&mut self, number: usize, at: &Spanned<()>, f: file::Port) -> Port {
        let source = match (&f.vdev, &f.pci, &f.bond) {
            (Some(v), None, None) => self.word(v, VdevArg::from_str).map(PortSource::Vdev),
            (None, Some(p), None) => Some(PortSource::Device(p.get_ref().clone())),
            (None, None, Some(b)) => self.bond(b).map(Box::new).map(PortSource::Bond),
            (None, None, None) => {
                let keys = ["port.vdev", "port.pci", "port.bond"];
                self.lacks(at, &keys, "a port needs vdev, pci or bond");
                None
            }
            (vdev, Some(pci), bond) if vdev.is_none() || bond.is_none() => {
                self.wrong(pci, "a port has vdev, pci or bond, and no two of them");
                None
            }
            (vdev, _, _) => {
                let given = vdev.as_ref().map_or_else(|| at.span(), Spanned::span);
                let what = "a port has vdev, pci or bond, and no two of them";
                self.wrong(&Spanned::new(given, ()), what);
                None
            }
        };
        let (min, max) = (i64::from(*MTU.start()), i64::from(*MTU.end()));
        let mtu = self.number(&f.mtu, min..=max, 1500);
        let most = i64::try_from(MAX_WORKERS).unwrap_or(i64::MAX);
        let workers = self.number(&f.workers, 1..=most, 1);
        let most = i64::try_from(workers).unwrap_or(i64::MAX);
        let queues = f.queues.is_some().then(|| self.number(&f.queues, 1..=most, 1));
        let offloads = self.offloads(f.offloads.as_deref());
        let addresses = self.addresses(&f.addresses);
        let adverts = f.router_advertisements.as_ref();
        let adverts = adverts.and_then(|a| self.word(a, RouterAdverts::from_str));
        let router_adverts = adverts.unwrap_or_default();
        let has_way = router_adverts == RouterAdverts::Addresses || !f.vlan.is_empty();
        if f.addresses.is_empty() && !has_way {
            self.lacks(at, &["port.addresses"], "a port needs addresses");
        }
        let routes = self.routes((&f.gateway, &f.routes), &addresses);
        let vlans = self.vlans(&f.vlan, &addresses);
        let name = f.name.map_or_else(|| format!("port{number}"), Spanned::into_inner);
        let source = source.unwrap_or_else(|| PortSource::Device(format!("{UNKNOWN}{number}")));
        Port {
            name,
            source,
            mtu,
            workers,
            queues,
            offloads,
            addresses,
            routes,
            router_adverts,
            vlans,
        }
    }

    /// Checks a bond; `None` if there is an error in it.
    fn bond(&mut self, given: &Spanned<file::Bond>) -> Option<Bond> {
        let f = given.get_ref();
        let before = self.problems.len();
        if f.mode.is_none() {
            self.lacks(given, &["port.bond.mode"], "a bond needs its mode");
        }
        let mode = self.choice(&f.mode, &BondMode::NAMES, BondMode::default());
        if f.members.is_empty() {
            self.lacks(given, &["port.bond.members"], "a bond needs members");
        }
        let members = f.members.iter().filter_map(|m| self.word(m, Member::from_str)).collect();
        let hash = self.choice(&f.hash, &TransmitHash::NAMES, TransmitHash::default());
        let interval = self.time(&f.link_interval, Bond::INTERVAL);
        let primary = f.primary.as_ref().map(|p| p.get_ref().clone());
        let bond = Bond { primary, hash, interval, ..Bond::new(mode, members) };
        if let Some(hash) = f.hash.as_ref().filter(|_| mode != BondMode::Lacp) {
            self.wrong(hash, "only an 802.3ad bond chooses among its members by a hash");
        }
        if self.problems.len() == before
            && let Some(why) = bond.problem()
        {
            self.wrong(given, why);
        }
        (self.problems.len() == before && !self.broken.contains("port.bond.members"))
            .then_some(bond)
    }

    /// Checks the VLANs of a port that has `addresses` besides.
    fn vlans(&mut self, given: &[Spanned<file::Vlan>], addresses: &[Cidr]) -> Vec<Vlan> {
        let mut vlans: Vec<Vlan> = Vec::new();
        for at in given {
            let f = at.get_ref();
            if f.id.is_none() {
                self.lacks(at, &["port.vlan.id"], "a VLAN needs its id");
            }
            let id = self.number(&f.id, 1..=4094, 0);
            let priority = f.priority.as_ref().and_then(|p| {
                let text = Spanned::new(p.span(), p.get_ref().0.clone());
                self.word(&text, Priority::from_str)
            });
            let addresses_here = self.addresses(&f.addresses);
            let heard = f.router_advertisements.as_ref();
            let heard = heard.and_then(|a| self.word(a, RouterAdverts::from_str));
            let router_adverts = heard.unwrap_or_default();
            if f.addresses.is_empty() && router_adverts != RouterAdverts::Addresses {
                self.lacks(at, &["port.vlan.addresses"], "a VLAN needs addresses");
            }
            let routes = self.routes((&f.gateway, &f.routes), &addresses_here);
            let Some(vid) = Vid::new(id) else { continue };
            let Ok(net) = Addressing::new(addresses_here, routes) else { continue };
            let priority = priority.unwrap_or_default();
            vlans.push(Vlan { vid, priority, router_adverts, net });
            // The check includes the VLANs before it, so a failure belongs to this VLAN.
            let all = Addressing::new(addresses.to_vec(), Vec::new()).unwrap_or_default();
            if let Err(e) = all.with_vlans(vlans.clone()) {
                self.wrong(at, e);
                vlans.pop();
            }
        }
        vlans
    }

    /// Returns the offloads of a list, or the usual ones if there is no list.
    fn offloads(&mut self, given: Option<&[Spanned<String>]>) -> Offloads {
        let Some(given) = given else { return Offloads::default() };
        let mut offloads = Offloads::NONE;
        for name in given {
            if !offloads.allow(name.get_ref()) {
                let [a, b, c, d] = Offloads::NAMES;
                self.wrong(name, format!("an offload is {a}, {b}, {c} or {d}"));
            }
        }
        offloads
    }

    fn addresses(&mut self, given: &[Spanned<String>]) -> Vec<Cidr> {
        let mut addresses: Vec<Cidr> = Vec::new();
        for a in given {
            let Some(cidr) = self.word(a, value::cidr) else {
                self.addresses_known = false;
                continue;
            };
            addresses.push(cidr);
            // The check includes the addresses before it, so a failure belongs to this address.
            if let Err(e) = Addressing::new(addresses.clone(), Vec::new()) {
                self.wrong(a, e);
                addresses.pop();
            }
        }
        addresses
    }

    /// Collects the routes; a gateway is the default route.
    fn routes(
        &mut self,
        (gateway, given): (&Key<String>, &[Spanned<file::Route>]),
        addresses: &[Cidr],
    ) -> Vec<Route> {
        let mut routes = Vec::new();
        if let Some(g) = gateway
            && let Some(via) = self.word(g, value::ip)
        {
            self.route(g, Route::default_via(via), addresses, &mut routes);
        }
        for r in given {
            let (Some(to), Some(via)) = (&r.get_ref().to, &r.get_ref().via) else {
                self.lacks(r, &["port.routes.to", "port.routes.via"], "a route needs to and via");
                continue;
            };
            let dest = self.word(to, Cidr::from_str);
            let via = self.word(via, value::ip);
            if let (Some(dest), Some(via)) = (dest, via) {
                self.route(r, Route { dest, via }, addresses, &mut routes);
            }
        }
        routes
    }

    /// Adds a route if it fits with those before it.
    fn route<T>(&mut self, at: &Spanned<T>, r: Route, addresses: &[Cidr], all: &mut Vec<Route>) {
        all.push(r);
        if let Err(e) = Addressing::new(addresses.to_vec(), all.clone()) {
            self.wrong(at, e);
            all.pop();
        }
    }

    fn workers(&mut self, f: &file::Workers, workers: usize) -> Workers {
        let mut lcores = Vec::new();
        for given in &f.lcores {
            let lcore = usize::try_from(*given.get_ref()).ok().filter(|n| *n < 4096);
            match lcore {
                Some(n) if lcores.contains(&n) => {
                    self.wrong(given, format!("processor {n} is given twice"));
                }
                // Without ports there are no workers to count, and that problem has been reported
                // already.
                Some(n) if workers > 0 && lcores.len() == workers => {
                    let are = match workers {
                        1 => "there is 1 worker".to_owned(),
                        more => format!("there are {more} workers"),
                    };
                    let what = "leave it out, or raise workers of a [[port]]";
                    self.wrong(given, format!("{are}, so none is left for processor {n}: {what}"));
                }
                Some(n) => lcores.push(n),
                None => self.wrong(given, "processors are numbers between 0 and 4095"),
            }
        }
        let usual = Naps::default();
        let after = self.time(&f.nap_after, usual.after);
        let longest = self.time(&f.nap_longest, usual.longest);
        if let Some(given) = &f.nap_longest
            && !(Duration::from_micros(1)..=Duration::from_millis(10)).contains(&longest)
        {
            self.wrong(given, "naps are between 1us and 10ms long");
        }
        let naps = Naps { after, first: usual.first.min(longest), longest };
        let policies = [
            ("spin", IdlePolicy::Spin),
            ("backoff", IdlePolicy::Backoff(naps)),
            ("interrupt", IdlePolicy::Interrupt(naps)),
        ];
        Workers { lcores, idle: self.choice(&f.idle, &policies, IdlePolicy::Spin) }
    }

    fn memory(&mut self, f: &file::Memory) -> Memory {
        use PageSize::{Auto, Huge1G, Huge2M, Small};
        let pages = [("auto", Auto), ("4K", Small), ("2M", Huge2M), ("1G", Huge1G)];
        Memory {
            pages: self.choice(&f.pages, &pages, Auto),
            registered: self.number(&f.registered, 1..=i64::from(MAX_MEMORY), 256),
            queues: self.number(&f.queues, 1..=i64::from(MAX_MEMORY), 64),
        }
    }

    fn limits(&mut self, f: &file::Limits) -> Limits {
        let default = Limits::default();
        let patience = default.first_message.unwrap_or_default();
        Limits {
            connections: self.number(&f.connections, 1..=1 << 20, default.connections),
            registrations: self.number(&f.registrations, 1..=1 << 20, default.registrations),
            frames: self.number(&f.frames, 1024..=1 << 22, default.frames),
            peer_share: self.number(&f.peer_share, 1..=1 << 20, default.peer_share),
            peer_connections: Some(self.number(&f.peer_connections, 0..=1 << 20, 0))
                .filter(|n| *n > 0),
            fpdu_memory: self.number(&f.fpdu_memory, 1..=1 << 14, default.fpdu_memory),
            rnr_wait: self.rnr_wait(&f.rnr_wait, default.rnr_wait),
            first_message: Some(self.time(&f.first_message, patience)).filter(|t| !t.is_zero()),
        }
    }

    fn sharing(&mut self, f: &file::Tcp) -> Sharing {
        let default = Sharing::default();
        let window = self.number(&f.receive_window, 64..=65_536, 0_u32) << 10;
        let budget = default.window_budget >> 20;
        let sharing = Sharing {
            congestion: self.choice(&f.congestion, &Congestion::NAMES, default.congestion),
            ecn: self.choice(&f.ecn, &Ecn::NAMES, default.ecn),
            pacing: self.choice(&f.pacing, &Pacing::NAMES, default.pacing),
            path_mtu: self.choice(&f.path_mtu_probing, &PathMtu::NAMES, default.path_mtu),
            user_timeout_option: self.choice(
                &f.user_timeout_option,
                &UserTimeoutOption::NAMES,
                default.user_timeout_option,
            ),
            user_timeout_limit: self.user_timeout_limit(f, default.user_timeout_limit),
            window_budget: self.number(&f.receive_window_budget, 0..=1 << 20, budget) << 20,
            ..default
        };
        sharing.with_window((window > 0).then_some(window))
    }

    /// Checks the time limits for peers. None of them may be infinite, because a peer could hold
    /// resources for as long.
    fn patience(&mut self, f: &file::Tcp, mpa: &file::Mpa) -> Patience {
        let Patience { tcp, close_limit, fpdu_stall } = Patience::default();
        Patience {
            tcp: heddle_tcp::Patience {
                user_timeout: self.span(&f.user_timeout, tcp.user_timeout),
                zero_window: self.span(&f.zero_window, tcp.zero_window),
                close_stall: self.span(&f.close_stall, tcp.close_stall),
            },
            close_limit: self.span(&f.close_limit, close_limit),
            fpdu_stall: self.span(&mpa.fpdu_stall, fpdu_stall),
        }
    }

    /// Checks the longest timeout that a peer may ask for. A peer never shortens our own.
    fn user_timeout_limit(&mut self, f: &file::Tcp, default: Duration) -> Duration {
        let own = f.user_timeout.as_ref().and_then(|own| own.get_ref().0.parse().ok());
        let least = own.map_or(LEAST_ADVICE, |Span(own)| own.max(LEAST_ADVICE));
        let default = default.max(least);
        let limit = self.span(&f.user_timeout_limit, default);
        match &f.user_timeout_limit {
            Some(given) if limit < least => {
                self.wrong(given, "the time is less than 100s, or less than user-timeout");
                default
            }
            _ => limit,
        }
    }

    /// Checks the time that a message may wait for a receive. The peer's data are held for as long,
    /// so the time has a limit.
    fn rnr_wait(&mut self, key: &Key<Time>, default: Duration) -> Duration {
        let time = self.time(key, default);
        match key {
            Some(given) if time > LONGEST_RNR_WAIT => {
                self.wrong(given, "the time is longer than 60s");
                default
            }
            _ => time,
        }
    }

    /// Returns a time between a second and a day.
    fn span(&mut self, key: &Key<Time>, default: Duration) -> Duration {
        let time = self.time(key, default);
        match key {
            Some(given) if !SPAN.contains(&time) => {
                self.wrong(given, "the time is not between 1s and 86400s");
                default
            }
            _ => time,
        }
    }

    fn mpa(&mut self, f: &file::Mpa) -> MpaOptions {
        let crc = if self.is(&f.crc, true) { CrcPolicy::Required } else { CrcPolicy::Off };
        let revision: i64 = self.number(&f.revision, 1..=2, 2);
        let revision = if revision == 1 { Revision::V1 } else { Revision::V2 };
        let mut rtr = RtrSet::NONE;
        if let Some(list) = &f.rtr {
            for word in list.get_ref() {
                rtr = rtr.with(self.word(word, rtr_of).unwrap_or(RtrSet::NONE));
            }
            if list.get_ref().is_empty() && revision == Revision::V2 {
                let what = "a server of revision 2 takes one of send, write, read at least \
                            (RFC 6581 section 9.2)";
                self.wrong(list, what);
            }
        }
        let options = MpaOptions::new().revision(revision).crc(crc).peer_to_peer(rtr);
        options.markers(self.is(&f.markers, false))
    }

    /// Checks the rules for clients. The file gives MiB, and a policy has bytes.
    fn clients(&mut self, all: &[Spanned<file::Client>], limits: &Limits) -> Vec<ClientRule> {
        let usual = super::usual_policy(limits);
        let mut rules = Vec::new();
        for given in all {
            let f = given.get_ref();
            let accounts = self.accounts;
            let Some(who) = &f.who else {
                self.lacks(given, &["client.who"], "a client rule needs who");
                continue;
            };
            let who = self.word(who, |s| accounts.principal(s));
            let mib = |c: &mut Self, key: &Key<i64>, usual: u64| {
                c.number(key, 0..=i64::from(MAX_MEMORY), usual >> 20) << 20
            };
            let most = 1 << 20;
            let limits = DeviceLimits {
                max_qps: self.number(
                    &f.queue_pairs,
                    0..=i64::from(DeviceLimits::MOST.max_qps),
                    usual.limits.max_qps,
                ),
                max_cqs: self.number(
                    &f.completion_queues,
                    0..=i64::from(DeviceLimits::MOST.max_cqs),
                    usual.limits.max_cqs,
                ),
                max_srqs: self.number(
                    &f.shared_receive_queues,
                    0..=i64::from(DeviceLimits::MOST.max_srqs),
                    usual.limits.max_srqs,
                ),
                max_mrs: self.number(&f.registrations, 0..=most, usual.limits.max_mrs),
                ..usual.limits
            };
            let share = ShareTerms {
                weight: self.number(&f.weight, WEIGHTS, usual.share.weight),
                rate: self.rate(&f.rate),
                connection_rate: self.rate(&f.connection_rate),
            };
            let regions = self.number(&f.regions, 0..=most, usual.regions);
            let policy = Policy {
                sessions: self.number(&f.sessions, 0..=4096, usual.sessions),
                descriptors: self.number(&f.descriptors, 0..=most, usual.descriptors),
                memory: mib(self, &f.memory, usual.memory),
                mapped: Policy::mapped_for(regions),
                queues: mib(self, &f.queues, usual.queues),
                regions,
                connections: self.number(&f.connections, 0..=most, usual.connections),
                listeners: self.number(&f.listeners, 0..=most, usual.listeners),
                backlog: self.number(&f.backlog, 1..=4096, usual.backlog),
                limits,
                share,
                tcp: self.tcp_terms([&f.congestion, &f.ecn, &f.pacing]),
                // Without a list the application may listen nowhere, because other hosts know our
                // addresses.
                listen: self.where_to(Some(f.listen.as_deref().unwrap_or_default())),
                connect: self.where_to(f.connect.as_deref()),
                reserved: Vec::new(),
            };
            rules.extend(who.map(|who| ClientRule { who, policy }));
        }
        rules
    }

    /// Returns a rate; `None` for no limit.
    fn rate(&mut self, key: &Key<String>) -> Option<u64> {
        self.word(key.as_ref()?, value::rate)?
    }

    /// Returns the addresses of a list: any address when there is no list, and none when the list
    /// is empty.
    fn where_to(&mut self, given: Option<&[Spanned<String>]>) -> Vec<Addresses> {
        let Some(given) = given else { return Addresses::any() };
        given.iter().filter_map(|g| self.word(g, value::addresses)).flatten().collect()
    }
}

/// Log levels by name, from the fewest lines to the most.
pub(crate) const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

fn rtr_of(word: &str) -> Result<RtrSet, String> {
    Ok(RtrSet::of(match word {
        "send" => Rtr::Send,
        "write" => Rtr::Write,
        "read" => Rtr::Read,
        _ => return Err(format!("'{word}' is none of send, write, read")),
    }))
}
