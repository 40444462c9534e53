//! What an appliance serves: the services of [`heddle_perf`], and directories by NFS.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use std::path::PathBuf;

use heddle_nfs::{ANONYMOUS, Access, Network, Squash};
use heddle_perf::service as perf;

use crate::nfs::Opened;

/// What a service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// One that needs nothing of the host.
    Perf(perf::ServiceKind),
    /// A directory.
    Nfs(Nfs),
}

/// A directory that is served by NFS version 3 over RDMA:
/// `nfs:DIRECTORY[,ro][,async][,tcp=ADDR:PORT][,rpcbind]`, numbers ([`NfsLimits`]), and who may call and as
/// whom ([`Access`]):
/// `[,client=ADDRESS[/PREFIX]]…[,all_squash|root_squash|no_root_squash][,anonuid=N][,anongid=N]`. Clients
/// mount it by its path, or as `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nfs {
    /// Its absolute path, without a comma.
    pub directory: PathBuf,
    /// Whether nothing can be changed through it.
    pub read_only: bool,
    /// Whether changes of directories and attributes are on the disk before the reply.
    pub sync: bool,
    /// Where the host's TCP answers MOUNT, and NFS too; nowhere when absent.
    pub tcp: Option<SocketAddr>,
    /// Whether the host's rpcbind is told of it.
    pub rpcbind: bool,
    /// How much it may take.
    pub limits: NfsLimits,
    /// Who may call, and as whom calls are carried out.
    pub access: Access,
}

/// How much an export may take: `workers=N`, `flushers=N`, `credits=N`, `descriptors=N`, `memory=MIB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfsLimits {
    /// Threads that carry calls out.
    pub workers: u32,
    /// Threads that put changes on the disk.
    pub flushers: u32,
    /// Calls of a connection that are served at a time.
    pub credits: u32,
    /// Objects of which descriptors are kept open.
    pub descriptors: u32,
    /// MiB of registered memory, where it is not for Heddle to choose.
    pub memory: Option<u32>,
}

impl Default for NfsLimits {
    fn default() -> NfsLimits {
        NfsLimits { workers: 8, flushers: 16, credits: 16, descriptors: 200, memory: None }
    }
}

impl NfsLimits {
    /// Takes an option; whether it is one, with a number that may be.
    fn set(&mut self, option: &str) -> bool {
        let Some((name, number)) = option.split_once('=') else { return false };
        let Ok(number) = number.parse::<u32>() else { return false };
        let (of, range) = match name {
            "workers" => (&mut self.workers, 1..=256),
            "flushers" => (&mut self.flushers, 1..=256),
            "credits" => (&mut self.credits, 1..=1024),
            "descriptors" => (&mut self.descriptors, 16..=1 << 20),
            // With less a READ of the longest may find no room beside calls.
            "memory" => (self.memory.insert(number), 6..=4096),
            _ => return false,
        };
        *of = number;
        range.contains(&number)
    }
}

/// Those that are not what they are without being said.
impl fmt::Display for NfsLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = NfsLimits::default();
        for (name, number, usual) in [
            ("workers", self.workers, usual.workers),
            ("flushers", self.flushers, usual.flushers),
            ("credits", self.credits, usual.credits),
            ("descriptors", self.descriptors, usual.descriptors),
        ] {
            if number != usual {
                write!(f, ",{name}={number}")?;
            }
        }
        self.memory.map_or(Ok(()), |memory| write!(f, ",memory={memory}"))
    }
}

/// A service and where it listens: `ADDR:PORT=SERVICE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Where.
    pub addr: SocketAddr,
    /// What.
    pub kind: ServiceKind,
    /// Whether InfiniBand's requests are answered there too. Their connections carry no data, so it is
    /// for services that [need none](ServiceKind::needs_data).
    pub infiniband: bool,
}

/// What services are called, for messages and help.
pub fn services() -> String {
    format!("{}, nfs:DIRECTORY", perf::SERVICES)
}

/// Not a [`ServiceSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No address, or nothing of those that have their words from `heddle-perf`.
    #[error(transparent)]
    Perf(#[from] perf::ServiceError),
    /// Not a service.
    #[error("unknown service '{0}' (known: {list})", list = services())]
    Unknown(String),
    /// No directory that is the same wherever the process is.
    #[error("'{0}': nfs needs the absolute path of a directory, as nfs:/srv/data")]
    Directory(String),
    /// Something behind the directory.
    #[error(
        "'{0}': nfs takes ro, async, tcp=ADDR:PORT, rpcbind; workers=, flushers=, credits=, descriptors= or \
             memory= with a number that may be; client=ADDRESS[/PREFIX], all_squash, root_squash, \
             no_root_squash, anonuid=N and anongid=N"
    )]
    Option(String),
}

impl FromStr for ServiceSpec {
    type Err = ServiceError;

    fn from_str(s: &str) -> Result<ServiceSpec, ServiceError> {
        let none = || perf::ServiceError::NoService(s.into());
        let (addr, kind) = s.split_once('=').ok_or_else(none)?;
        let (addr, kind) = (ServiceSpec::address(addr)?, kind.parse()?);
        Ok(ServiceSpec { addr, kind, infiniband: false })
    }
}

impl ServiceSpec {
    /// Whether it is an export that becomes `other` while it runs: the same directory in the same places,
    /// with which another is done.
    pub(crate) fn becomes(&self, other: &ServiceSpec) -> bool {
        let (ServiceKind::Nfs(old), ServiceKind::Nfs(new)) = (&self.kind, &other.kind) else {
            return false;
        };
        let access = new.access.clone();
        let then = Nfs { read_only: new.read_only, sync: new.sync, access, ..old.clone() };
        old != new && then == *new && self.addr == other.addr
    }

    /// An address and port that can be listened on.
    ///
    /// # Errors
    /// That it is none, or of a family that is not served.
    pub fn address(s: &str) -> Result<SocketAddr, ServiceError> {
        Ok(perf::ServiceSpec::address(s)?)
    }
}

impl FromStr for ServiceKind {
    type Err = ServiceError;

    fn from_str(s: &str) -> Result<ServiceKind, ServiceError> {
        let nfs =
            s.strip_prefix("nfs").filter(|rest| rest.is_empty() || rest.starts_with([':', ',']));
        if let Some(rest) = nfs {
            let rest = rest.strip_prefix(':').ok_or_else(|| ServiceError::Directory(s.into()))?;
            return Nfs::of(rest).map(ServiceKind::Nfs);
        }
        s.parse().map(ServiceKind::Perf).map_err(|e| match e {
            perf::ServiceError::Unknown(name) => ServiceError::Unknown(name),
            other => other.into(),
        })
    }
}

impl Nfs {
    /// From what is behind `nfs:`.
    fn of(s: &str) -> Result<Nfs, ServiceError> {
        let (directory, options) = s.split_once(',').map_or((s, None), |(d, o)| (d, Some(o)));
        if !directory.starts_with('/') {
            return Err(ServiceError::Directory(directory.into()));
        }
        let directory = directory.into();
        let (limits, access) = (NfsLimits::default(), Access::default());
        let (read_only, sync, tcp, rpcbind) = (false, true, None, false);
        let mut nfs = Nfs { directory, read_only, sync, tcp, rpcbind, limits, access };
        for option in options.into_iter().flat_map(|o| o.split(',')) {
            let tcp =
                || option.strip_prefix("tcp=")?.parse().ok().filter(|a: &SocketAddr| a.port() > 0);
            match option {
                "ro" => nfs.read_only = true,
                "async" => nfs.sync = false,
                "rpcbind" => nfs.rpcbind = true,
                option if nfs.limits.set(option) => {}
                option if set_access(&mut nfs.access, option) => {}
                _ => nfs.tcp = Some(tcp().ok_or_else(|| ServiceError::Option(option.into()))?),
            }
        }
        Ok(nfs)
    }
}

impl ServiceKind {
    /// Whether it is of no use where connections carry no data, as over InfiniBand.
    pub const fn needs_data(&self) -> bool {
        match self {
            ServiceKind::Perf(kind) => kind.needs_data(),
            ServiceKind::Nfs(_) => true,
        }
    }

    /// The directory that it serves.
    pub const fn nfs(&self) -> Option<&Nfs> {
        match self {
            ServiceKind::Perf(_) => None,
            ServiceKind::Nfs(nfs) => Some(nfs),
        }
    }
}

impl fmt::Display for ServiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceKind::Perf(kind) => kind.fmt(f),
            ServiceKind::Nfs(nfs) => nfs.fmt(f),
        }
    }
}

/// Looks whether all directories that are to be served can be.
///
/// # Errors
/// The first that cannot, in one line.
pub fn look_at_directories(services: &[ServiceSpec]) -> Result<(), String> {
    let each = services.iter().filter_map(|s| Some((s, s.kind.nfs()?)));
    for (spec, nfs) in each {
        Opened::new(nfs).map_err(|e| format!("{} on {}: {e}", spec.kind, spec.addr))?;
    }
    Ok(())
}

/// As it is asked for.
impl fmt::Display for Nfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nfs:{}", self.directory.display())?;
        if self.read_only {
            f.write_str(",ro")?;
        }
        if !self.sync {
            f.write_str(",async")?;
        }
        if let Some(tcp) = self.tcp {
            write!(f, ",tcp={tcp}")?;
        }
        f.write_str(if self.rpcbind { ",rpcbind" } else { "" })?;
        self.limits.fmt(f)?;
        for client in &self.access.clients {
            write!(f, ",client={client}")?;
        }
        f.write_str(match self.access.squash {
            Squash::Server => "",
            Squash::All => ",all_squash",
            Squash::Root => ",root_squash",
            Squash::None => ",no_root_squash",
        })?;
        for (name, id) in [("anonuid", self.access.anonuid), ("anongid", self.access.anongid)] {
            if id != ANONYMOUS {
                write!(f, ",{name}={id}")?;
            }
        }
        Ok(())
    }
}

/// Takes an option of who may call and as whom. Returns true if it is one.
fn set_access(access: &mut Access, option: &str) -> bool {
    let id = |to: &mut u32, s: &str| {
        // The last number is that of no user.
        let id = s.parse().ok().filter(|&id| id != u32::MAX);
        id.inspect(|&id| *to = id).is_some()
    };
    match option.split_once('=') {
        Some(("client", network)) => {
            let network: Option<Network> = network.parse().ok();
            access.clients.extend(network);
            network.is_some()
        }
        Some(("anonuid", s)) => id(&mut access.anonuid, s),
        Some(("anongid", s)) => id(&mut access.anongid, s),
        Some(_) => false,
        None => {
            access.squash = match option {
                "all_squash" => Squash::All,
                "root_squash" => Squash::Root,
                "no_root_squash" => Squash::None,
                _ => return false,
            };
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_directory_with_its_options_goes_round() {
        for s in [
            "nfs:/srv/data",
            "nfs:/srv/data,ro",
            "nfs:/,async,tcp=0.0.0.0:20048",
            "nfs:/a=b:c,ro,async,tcp=[::1]:2049",
            "nfs:/srv/data,rpcbind",
            "nfs:/srv/data,ro,async,tcp=10.0.0.1:20048,rpcbind",
            "nfs:/srv/data,workers=4,flushers=32,credits=64,descriptors=1000,memory=6",
            "nfs:/srv/data,client=10.0.0.0/8,client=2001:db8::1,root_squash",
            "nfs:/srv/data,ro,all_squash,anonuid=1000,anongid=100",
            "nfs:/srv/data,no_root_squash",
            "nfs:/srv/data,rpcbind,workers=4,memory=6,client=10.0.0.0/8,root_squash,anonuid=1000",
        ] {
            assert_eq!(s.parse::<ServiceKind>().unwrap().to_string(), s);
        }
        let spec: ServiceSpec = "10.0.0.1:20049=nfs:/d,tcp=127.0.0.1:20048".parse().unwrap();
        let nfs = spec.kind.nfs().unwrap();
        assert_eq!((spec.addr.port(), nfs.tcp.unwrap().port()), (20049, 20048));
        assert!(nfs.sync && !nfs.read_only && spec.kind.needs_data());
    }

    #[test]
    fn test_what_is_no_export_is_refused_with_what_is_expected() {
        let refused = |s: &str| s.parse::<ServiceKind>().unwrap_err();
        for s in ["nfs", "nfs:", "nfs:srv", "nfs,ro", "nfs:,ro"] {
            assert!(matches!(refused(s), ServiceError::Directory(_)), "{s}");
        }
        for s in [
            "rw",
            "",
            "tcp",
            "tcp=",
            "tcp=10.0.0.1",
            "tcp=10.0.0.1:0",
            "ro=1",
            "rpcbind=/x",
            "workers=0",
            "workers",
            "workers=many",
            "memory=5",
            "credits=1025",
            "flushers=-1",
            "client",
            "client=host",
            "client=10.0.0.0/33",
            "squash",
            "anonuid=4294967295",
            "anongid=-1",
            "root_squash=1",
        ] {
            let e = refused(&format!("nfs:/srv,{s}"));
            assert_eq!(e, ServiceError::Option(s.into()));
        }
        let unknown = refused("nfsd").to_string();
        assert!(unknown.starts_with("unknown service 'nfsd'"), "{unknown}");
        assert!(unknown.contains("rping") && unknown.contains("nfs:DIRECTORY"), "{unknown}");
        assert!(matches!(refused("rping,size=1"), ServiceError::Perf(_)));
    }
}
