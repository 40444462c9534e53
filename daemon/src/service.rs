//! Services of an appliance: those of [`heddle_services`], and directories by NFS.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use std::path::{Path, PathBuf};

use heddle_nfs::{ANONYMOUS, Access, Network, Squash};
use heddle_services as services;
use heddle_types::TcpTerms;

/// The kind of a service: a service of `heddle-services`, or NFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// A service that needs nothing of the host.
    Program(services::ServiceKind),
    /// Directories by NFS.
    Nfs(Nfs),
}

/// Directories that are served by NFS version 3 over RDMA:
/// `nfs:DIRECTORY[,OPTION]…[,DIRECTORY[,OPTION]…]…`. Each option that begins with a slash is a
/// further directory, and the options after it belong to that directory ([`NfsExport`]).
/// `tcp=ADDR:PORT`, `rpcbind` and numbers ([`NfsLimits`]) belong to the listener, wherever they
/// stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nfs {
    /// The directories: at least one, and none twice.
    pub exports: Vec<NfsExport>,
    /// Address at which the host's TCP serves MOUNT and NFS too; none when absent.
    pub tcp: Option<SocketAddr>,
    /// Whether the host's rpcbind lists the service.
    pub rpcbind: bool,
    /// Limits of the listener.
    pub limits: NfsLimits,
}

/// A directory with its options: `[,ro][,async]`, and the options of access ([`Access`]):
/// `[,client=ADDRESS[/PREFIX]]…[,all_squash|root_squash|no_root_squash][,anonuid=N][,anongid=N]`.
/// Clients mount the directory by its path; a single directory also as `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsExport {
    /// Absolute path of the directory, without a comma.
    pub directory: PathBuf,
    /// Whether clients can change nothing through the export.
    pub read_only: bool,
    /// Whether changes of directories and attributes are on the disk before the reply.
    pub sync: bool,
    /// The clients that may call, and the users as which calls are carried out.
    pub access: Access,
}

/// Limits of a listener: `workers=N`, `flushers=N`, `credits=N`, `descriptors=N`, `memory=MIB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfsLimits {
    /// Number of threads that carry calls out.
    pub workers: u32,
    /// Number of threads that put changes of an export on the disk.
    pub flushers: u32,
    /// Number of calls of a connection that are served at a time.
    pub credits: u32,
    /// Number of objects of an export whose descriptors are kept open.
    pub descriptors: u32,
    /// MiB of registered memory; when absent, Heddle chooses.
    pub memory: Option<u32>,
}

impl Default for NfsLimits {
    fn default() -> NfsLimits {
        NfsLimits { workers: 8, flushers: 16, credits: 16, descriptors: 200, memory: None }
    }
}

impl NfsLimits {
    /// Takes an option; returns true if it is one of these, with a valid number.
    fn set(&mut self, option: &str) -> bool {
        let Some((name, number)) = option.split_once('=') else { return false };
        let Ok(number) = number.parse::<u32>() else { return false };
        let (of, range) = match name {
            "workers" => (&mut self.workers, 1..=256),
            "flushers" => (&mut self.flushers, 1..=256),
            "credits" => (&mut self.credits, 1..=1024),
            "descriptors" => (&mut self.descriptors, 16..=1 << 20),
            // With less memory, a READ of the greatest length may find no room beside calls.
            "memory" => (self.memory.insert(number), 6..=4096),
            _ => return false,
        };
        *of = number;
        range.contains(&number)
    }
}

/// Writes the limits that differ from the defaults.
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

/// A service and its address: `ADDR:PORT=SERVICE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Address and port of the listener.
    pub addr: SocketAddr,
    /// The service to run.
    pub kind: ServiceKind,
    /// Whether the listener also answers InfiniBand's requests. Such connections carry no data, so
    /// this is only for services that [need none](ServiceKind::needs_data).
    pub infiniband: bool,
    /// Settings of TCP for the listener's connections, where they differ from the RNIC's.
    pub tcp: TcpTerms,
}

/// Returns the names of the services, for messages and help.
pub fn services() -> String {
    format!("{}, nfs:DIRECTORY", services::SERVICES)
}

/// The text is not a [`ServiceSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// An error in the address or the text that `heddle-services` describes.
    #[error(transparent)]
    Program(#[from] services::ServiceError),
    /// The service is not known.
    #[error("unknown service '{0}' (known: {list})", list = services())]
    Unknown(String),
    /// The directory is not an absolute path, so it would depend on the process's place.
    #[error("'{0}': nfs needs the absolute path of a directory, as nfs:/srv/data")]
    Directory(String),
    /// The exports are in tables of their own, and the text has more than the listener's options.
    #[error(
        "'{0}': with [[listen.export]] the service is nfs, with tcp=ADDR:PORT, rpcbind, workers=, flushers=, \
             credits=, descriptors= and memory="
    )]
    Apart(String),
    /// Two exports have the same path.
    #[error("'{0}' is given twice")]
    Twice(String),
    /// An option after the directory is not valid.
    #[error(
        "'{0}': nfs takes ro, async, tcp=ADDR:PORT, rpcbind; workers=, flushers=, credits=, descriptors= or \
             memory= with a number that may be; client=ADDRESS[/PREFIX], all_squash, root_squash, \
             no_root_squash, anonuid=N and anongid=N; and further directories, which begin with a slash"
    )]
    Option(String),
}

impl FromStr for ServiceSpec {
    type Err = ServiceError;

    fn from_str(s: &str) -> Result<ServiceSpec, ServiceError> {
        let none = || services::ServiceError::NoService(s.into());
        let (addr, kind) = s.split_once('=').ok_or_else(none)?;
        let (addr, kind) = (ServiceSpec::address(addr)?, kind.parse()?);
        Ok(ServiceSpec { addr, kind, infiniband: false, tcp: TcpTerms::default() })
    }
}

impl ServiceSpec {
    /// Returns true if a listener of NFS can become `other` while it runs: both have the same
    /// places and limits, and at least one of the directories stays.
    pub(crate) fn becomes(&self, other: &ServiceSpec) -> bool {
        let (ServiceKind::Nfs(old), ServiceKind::Nfs(new)) = (&self.kind, &other.kind) else {
            return false;
        };
        let stays = |e: &NfsExport| new.export(&e.directory).is_some();
        let then = Nfs { exports: new.exports.clone(), ..old.clone() };
        let same = (self.addr, self.tcp) == (other.addr, other.tcp);
        old != new && then == *new && same && old.exports.iter().any(stays)
    }

    /// Parses an address and port to listen at.
    ///
    /// # Errors
    /// When the text is not an address, or its family is not served.
    pub fn address(s: &str) -> Result<SocketAddr, ServiceError> {
        Ok(services::ServiceSpec::address(s)?)
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
        s.parse().map(ServiceKind::Program).map_err(|e| match e {
            services::ServiceError::Unknown(name) => ServiceError::Unknown(name),
            other => other.into(),
        })
    }
}

impl Nfs {
    /// Parses the directories and options after `nfs:`.
    fn of(s: &str) -> Result<Nfs, ServiceError> {
        if !s.starts_with('/') {
            let directory = s.split(',').next().unwrap_or(s);
            return Err(ServiceError::Directory(directory.into()));
        }
        let mut nfs = Nfs::without_exports();
        s.split(',').try_for_each(|option| nfs.take(option))?;
        Ok(nfs)
    }

    /// Parses `nfs` and the options of the listener, when the exports are in tables of their own.
    ///
    /// # Errors
    /// An option that is not one of the listener's.
    pub(crate) fn of_listener(s: &str, exports: Vec<NfsExport>) -> Result<Nfs, ServiceError> {
        let options = s.strip_prefix("nfs").filter(|o| o.is_empty() || o.starts_with(','));
        let options = options.ok_or_else(|| ServiceError::Apart(s.into()))?;
        let mut nfs = Nfs::without_exports();
        for option in options.split(',').skip(1) {
            if !nfs.take_of_listener(option) {
                return Err(ServiceError::Apart(option.into()));
            }
        }
        exports.into_iter().try_for_each(|export| nfs.add(export))?;
        Ok(nfs)
    }

    fn without_exports() -> Nfs {
        Nfs { exports: Vec::new(), tcp: None, rpcbind: false, limits: NfsLimits::default() }
    }

    /// Takes a directory or an option.
    fn take(&mut self, option: &str) -> Result<(), ServiceError> {
        if option.starts_with('/') {
            return self.add(NfsExport::new(option));
        }
        let is_taken = self.take_of_listener(option)
            || self.exports.last_mut().is_some_and(|export| export.take(option));
        if is_taken { Ok(()) } else { Err(ServiceError::Option(option.into())) }
    }

    /// Takes an option of the listener. Returns true if it is one.
    fn take_of_listener(&mut self, option: &str) -> bool {
        if let Some(tcp) = option.strip_prefix("tcp=") {
            self.tcp = tcp.parse().ok().filter(|a: &SocketAddr| a.port() > 0);
            return self.tcp.is_some();
        }
        self.rpcbind |= option == "rpcbind";
        option == "rpcbind" || self.limits.set(option)
    }

    fn add(&mut self, export: NfsExport) -> Result<(), ServiceError> {
        if self.export(&export.directory).is_some() {
            return Err(ServiceError::Twice(export.directory.display().to_string()));
        }
        self.exports.push(export);
        Ok(())
    }

    /// Returns the export of a directory.
    pub(crate) fn export(&self, directory: &Path) -> Option<&NfsExport> {
        self.exports.iter().find(|export| export.directory == directory)
    }
}

impl NfsExport {
    /// Makes an export of `directory` without options.
    pub(crate) fn new(directory: &str) -> NfsExport {
        let access = Access::default();
        NfsExport { directory: directory.into(), read_only: false, sync: true, access }
    }

    /// Takes an option. Returns true if it is one.
    fn take(&mut self, option: &str) -> bool {
        match option {
            "ro" => self.read_only = true,
            "async" => self.sync = false,
            option => return set_access(&mut self.access, option),
        }
        true
    }
}

impl ServiceKind {
    /// Returns true if the service is of no use over connections that carry no data, as over
    /// InfiniBand.
    pub const fn needs_data(&self) -> bool {
        match self {
            ServiceKind::Program(kind) => kind.needs_data(),
            ServiceKind::Nfs(_) => true,
        }
    }

    /// Returns the directories of an NFS service.
    pub const fn nfs(&self) -> Option<&Nfs> {
        match self {
            ServiceKind::Program(_) => None,
            ServiceKind::Nfs(nfs) => Some(nfs),
        }
    }
}

impl fmt::Display for ServiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceKind::Program(kind) => kind.fmt(f),
            ServiceKind::Nfs(nfs) => nfs.fmt(f),
        }
    }
}

/// Writes the form that [`ServiceSpec`] parses. The options of the listener stand with those of the
/// first directory.
impl fmt::Display for Nfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nfs:")?;
        for (at, export) in self.exports.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "," })?;
            export.put_flags(f)?;
            if at == 0 {
                self.tcp.map_or(Ok(()), |tcp| write!(f, ",tcp={tcp}"))?;
                f.write_str(if self.rpcbind { ",rpcbind" } else { "" })?;
                self.limits.fmt(f)?;
            }
            export.put_access(f)?;
        }
        Ok(())
    }
}

/// Writes the directory and its options.
impl fmt::Display for NfsExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.put_flags(f)?;
        self.put_access(f)
    }
}

impl NfsExport {
    fn put_flags(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ro, of_host) =
            (if self.read_only { ",ro" } else { "" }, if self.sync { "" } else { ",async" });
        write!(f, "{}{ro}{of_host}", self.directory.display())
    }

    fn put_access(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// Takes an option of access. Returns true if it is one.
fn set_access(access: &mut Access, option: &str) -> bool {
    let id = |to: &mut u32, s: &str| {
        // The last number belongs to no user.
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
    fn test_export_options_survive_parsing_and_display() {
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
        assert!(nfs.exports[0].sync && !nfs.exports[0].read_only && spec.kind.needs_data());
    }

    #[test]
    fn test_directory_options_apply_to_it_and_listener_options_stand_anywhere() {
        let nfs = |s: &str| match s.parse().unwrap() {
            ServiceKind::Nfs(nfs) => nfs,
            other => panic!("{other}"),
        };
        let several = "nfs:/srv/a,ro,tcp=10.0.0.1:20048,workers=4,client=10.0.0.0/8,/srv/b,async,all_squash,/c";
        let of = nfs(several);
        assert_eq!(of.to_string(), several);
        let each: Vec<_> = of.exports.iter().map(ToString::to_string).collect();
        assert_eq!(each, ["/srv/a,ro,client=10.0.0.0/8", "/srv/b,async,all_squash", "/c"]);
        assert_eq!(
            nfs("nfs:/srv/a,/srv/b,ro,tcp=10.0.0.1:1,rpcbind").to_string(),
            "nfs:/srv/a,tcp=10.0.0.1:1,rpcbind,/srv/b,ro"
        );
        for twice in ["nfs:/srv/a,ro,/srv/a", "nfs:/srv/a,/srv/b,/srv//a/"] {
            assert!(matches!(twice.parse::<ServiceKind>(), Err(ServiceError::Twice(_))), "{twice}");
        }
    }

    #[test]
    fn test_nfs_listener_changes_in_place_if_a_directory_and_limits_stay() {
        let spec = |s: &str| format!("10.0.0.1:1=nfs:{s}").parse::<ServiceSpec>().unwrap();
        let old = spec("/a,/b,workers=4");
        for new in
            ["/a,workers=4", "/b,ro,/c,workers=4", "/b,/a,workers=4", "/a,async,/b,workers=4"]
        {
            assert!(old.becomes(&spec(new)), "{new}");
        }
        for new in ["/a,/b,workers=4", "/a,/b", "/c,workers=4", "/a,/b,workers=4,rpcbind"] {
            assert!(!old.becomes(&spec(new)), "{new}");
        }
    }

    #[test]
    fn test_invalid_export_is_refused_with_expected_form() {
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
        assert!(matches!(refused("rping,size=1"), ServiceError::Program(_)));
    }
}
