//! Starts DPDK's environment layer.
//!
//! The EAL lives once per process, from [`Eal::init`] until the process ends: DPDK cannot start it
//! a second time, and memory pools and registered memory may outlive every handle, so this module
//! never tears the EAL down. [`Eal`] is therefore a plain token that proves that the EAL runs.
//!
//! This module starts the EAL so that several processes run side by side and leave nothing behind:
//! memory is anonymous (`--in-memory`, or `--no-shconf` without hugepages), there is no telemetry
//! socket, and no PCI scan unless the configuration names PCI devices. Ports plug devices in
//! afterwards ([`crate::Port::open`]), where a bad argument is an error that names the device; the
//! same argument at the start would leave a half-started EAL.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use heddle_dpdk_sys as sys;
use thiserror::Error;

mod hugepages;
mod iova;
pub(crate) mod pci;

pub use iova::IovaMode;

use crate::numa::Topology;
use crate::port::{VdevArg, control};
use hugepages::HugePool;
use iova::Machine;
use pci::{PciFacts, pci_name};

/// Whether the EAL uses hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// The EAL uses hugepages if enough of them are free.
    #[default]
    Auto,
    /// The EAL uses ordinary pages.
    Never,
    /// The start fails if too few hugepages are free.
    Require,
}

/// The part of DPDK's own log that appears on stderr. DPDK's log never goes to stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Nothing; this module keeps errors for our own messages.
    #[default]
    Quiet,
    /// Everything at level "info" and above.
    Info,
    /// Everything, including debug output.
    Debug,
}

/// How to start the EAL.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// MiB for packet buffers and DPDK's own structures, without registered memory. With hugepages,
    /// so many MiB must be free; the EAL takes them as needed.
    pub memory_mb: u32,
    /// Whether to use hugepages.
    pub hugepages: Hugepages,
    /// Whether devices share DPDK's memory with a program that maps its files
    /// ([`Port::vhost_pair`](crate::Port::vhost_pair)). The EAL then takes `memory_mb` at its start
    /// and never more: such a device has to announce new memory, and the pair's other half waits
    /// for the same lock until it does. Ordinary pages are one file, and all there from the start.
    pub shares_memory: bool,
    /// PCI devices that the process may use (`[domain:]bus:device.function[,arg=value]`). If empty,
    /// the EAL does not scan PCI.
    pub pci: Vec<String>,
    /// The addresses that devices use; `None` chooses the ones that the devices need.
    pub iova: Option<IovaMode>,
    /// The part of DPDK's log that appears on stderr.
    pub log: LogLevel,
}

impl Default for EalConfig {
    fn default() -> EalConfig {
        EalConfig {
            memory_mb: 256,
            hugepages: Hugepages::Auto,
            shares_memory: false,
            pci: Vec::new(),
            iova: None,
            log: LogLevel::Quiet,
        }
    }
}

impl EalConfig {
    /// Returns the kind of memory that [`Eal::init`] would choose now.
    ///
    /// # Errors
    /// [`EalError::TooFewHugepages`].
    pub fn memory_mode(&self) -> Result<MemoryMode, EalError> {
        choose_memory(self)
    }
}

/// Returns the reason why DPDK can have no port for a PCI device, as far as the kernel knows: it
/// has a wrong form, the machine does not have it, or a driver of the kernel has it.
pub fn pci_problem(device: &str) -> Option<String> {
    let Some(name) = pci_name(device) else {
        return Some(EalError::BadPci(device.into()).to_string());
    };
    let facts = PciFacts::read(&name);
    if facts.present { facts.taken() } else { Some(format!("this machine has no device {name}")) }
}

/// Returns the free hugepages, by their size in bytes.
pub fn free_hugepages() -> Vec<(usize, u64)> {
    HugePool::all().into_iter().map(|p| (p.page, p.free)).collect()
}

/// The memory that holds packet buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryMode {
    /// Hugepages of any size that the kernel has set aside.
    Hugepages,
    /// Ordinary pages (`--no-huge`).
    NoHuge,
}

/// Why the EAL did not start.
#[derive(Debug, Error)]
pub enum EalError {
    /// A process can start the EAL only once.
    #[error("DPDK is already started in this process, and it can be started only once")]
    AlreadyStarted,
    /// A string is not a PCI address.
    #[error("not a PCI address: {0:?} (expected [domain:]bus:device.function, as 0000:3b:00.0)")]
    BadPci(String),
    /// The configuration requires hugepages, and too few are free.
    #[error("{needed_mb} MiB of hugepages are required, {free_mb} MiB are free")]
    TooFewHugepages {
        /// MiB that the configuration asks for.
        needed_mb: u64,
        /// MiB that are free now.
        free_mb: u64,
    },
    /// A device cannot use the addresses that the configuration asks for.
    #[error("{0}")]
    Iova(String),
    /// DPDK refused to start, with this reason.
    #[error("DPDK did not start: {0}")]
    Dpdk(String),
}

#[derive(Debug)]
struct State {
    memory: MemoryMode,
    iova: IovaMode,
    /// The memory is all there, in files that few descriptors name.
    shareable: bool,
    /// Number of PCI devices that the configuration names.
    pci: usize,
    version: String,
    /// DPDK's log of its start.
    log: String,
}

static STARTED: AtomicBool = AtomicBool::new(false);
static STATE: OnceLock<State> = OnceLock::new();

/// Proof that the EAL runs; a copy costs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Eal(&'static State);

impl Eal {
    /// Starts the EAL. The affinity of the calling thread stays as it is; workers are threads of
    /// our own ([`crate::LcoreWorker`]).
    ///
    /// # Errors
    /// Fails if the process has tried to start the EAL before (even in vain), if required hugepages
    /// are missing, if a PCI address is malformed, and if DPDK refuses.
    pub fn init(config: &EalConfig) -> Result<Eal, EalError> {
        let bad = |p: &String| EalError::BadPci(p.clone());
        let names: Result<Vec<String>, EalError> =
            config.pci.iter().map(|p| pci_name(p).ok_or_else(|| bad(p))).collect();
        let devices: Vec<PciFacts> = names?.iter().map(|n| PciFacts::read(n)).collect();
        let memory = choose_memory(config)?;
        let machine = Machine {
            hugepages: memory == MemoryMode::Hugepages,
            sees_physical: iova::sees_physical(),
        };
        let iova = iova::choose(config.iova, &devices, machine).map_err(EalError::Iova)?;
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err(EalError::AlreadyStarted);
        }
        capture_log(config.log);
        let cpus = allowed_cpus();
        let args = arguments(config, memory, iova, &cpus);
        start(args)?;
        let log = take_log();
        restore_affinity(&cpus);
        // Without the watch, the RNIC notices the removal of a device only after the kernel has
        // taken the device, and the kernel waits for us before it does so.
        // SAFETY: the EAL runs.
        let _ = unsafe { sys::heddle_removal_watch() };
        let version = version();
        let pci = config.pci.len();
        let shareable = config.shares_memory || memory == MemoryMode::NoHuge;
        Ok(Eal(STATE.get_or_init(|| State { memory, iova, shareable, pci, version, log })))
    }

    /// Returns the EAL of this process, after [`Eal::init`] has succeeded.
    pub fn get() -> Option<Eal> {
        STATE.get().map(Eal)
    }

    /// Returns the kind of memory that [`Eal::init`] chose.
    pub fn memory_mode(&self) -> MemoryMode {
        self.0.memory
    }

    /// Returns true if devices can share DPDK's memory ([`EalConfig::shares_memory`]).
    pub(crate) fn is_shareable(&self) -> bool {
        self.0.shareable
    }

    /// Returns the kind of addresses that devices use.
    pub fn iova_mode(&self) -> IovaMode {
        self.0.iova
    }

    /// Returns true if the configuration names PCI devices.
    pub fn has_pci(&self) -> bool {
        self.0.pci > 0
    }

    /// Returns the reason why DPDK has no port for a PCI device; `None` if the machine has no such
    /// device.
    pub(crate) fn unusable(&self, name: &str) -> Option<String> {
        PciFacts::read(name).unusable(&self.0.log, self.0.pci)
    }

    /// Returns true if a driver of this DPDK makes virtual devices of that name: the first letters
    /// of a device's name are the driver's.
    pub fn has_driver(&self, vdev: &VdevArg) -> bool {
        let Ok(name) = CString::new(format!("vdev:{}", vdev.name())) else { return false };
        let _control = control();
        // SAFETY: the EAL runs, so all drivers have registered; `name` is NUL-terminated and copied.
        let known = unsafe { sys::heddle_vdev_known(name.as_ptr()) };
        // DPDK logs an unknown name, which is no error of any later call.
        clear_log();
        known == 1
    }

    /// Returns DPDK's version, as "DPDK 22.11.11".
    pub fn version(&self) -> &str {
        &self.0.version
    }
}

/// Returns true if devices use the addresses of this process: only then can they read registered
/// memory in place.
pub(crate) fn by_process_addresses() -> bool {
    Eal::get().is_some_and(|eal| eal.iova_mode() == IovaMode::Va)
}

/// Returns the version of the linked DPDK, as "DPDK 22.11.11", also before the EAL starts.
pub fn version() -> String {
    // SAFETY: rte_version returns a static NUL-terminated string.
    unsafe { CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned()
}

/// Returns DPDK's text for an error number of either sign.
pub(crate) fn error_text(code: c_int) -> String {
    // SAFETY: rte_strerror takes any number and returns a NUL-terminated string that is static or
    // belongs to this thread until its next call; this function copies the string at once.
    unsafe { CStr::from_ptr(sys::rte_strerror(code.abs())) }.to_string_lossy().into_owned()
}

/// Returns the last error number of this thread.
pub(crate) fn last_errno() -> c_int {
    // SAFETY: reads a thread-local.
    unsafe { sys::heddle_errno() }
}

/// Discards DPDK's log up to now.
pub(crate) fn clear_log() {
    let _ = take_log();
}

/// Returns the reason why a call failed, in one line: DPDK's log since [`clear_log`], or else the
/// text of `code`.
pub(crate) fn reason(code: c_int) -> String {
    // Drivers return -1 for all sorts of failures: "not permitted" would mislead.
    log_line().unwrap_or_else(|| match code.abs() {
        1 => "DPDK gives no reason".into(),
        _ => error_text(code),
    })
}

/// Returns the reason that DPDK has logged since [`clear_log`], in one line.
pub(crate) fn logged() -> Option<String> {
    log_line()
}

/// Returns the first line of the log, which says the cause; later lines only say that DPDK gave up.
fn log_line() -> Option<String> {
    let log = take_log();
    let mut lines = log.lines().map(str::trim).filter(|l| !l.is_empty());
    clean(lines.next()?)
}

/// Strips a line of the log for users: "EAL: Cannot ..." and "eth_pcap_open(): Couldn't ..." lose
/// the part before the colon.
fn clean(line: &str) -> Option<String> {
    let text = line.split_once(": ").map_or(line, |(_, t)| t);
    let text = text.trim().trim_end_matches('.');
    (!text.is_empty()).then(|| text.to_owned())
}

fn take_log() -> String {
    let mut buf = vec![0u8; 4096];
    // SAFETY: `buf` is writable for its length, which is passed.
    let n = unsafe { sys::heddle_log_take(buf.as_mut_ptr().cast(), buf.len()) };
    String::from_utf8_lossy(&buf[..n.min(buf.len())]).into_owned()
}

fn capture_log(level: LogLevel) {
    const ERROR: u32 = 4;
    const INFO: u32 = 7;
    const DEBUG: u32 = 8;
    let (global, echo) = match level {
        LogLevel::Quiet => (ERROR, 0),
        LogLevel::Info => (INFO, 1),
        LogLevel::Debug => (DEBUG, 1),
    };
    // SAFETY: these may be called before rte_eal_init, from one thread (STARTED guards).
    unsafe {
        sys::rte_log_set_global_level(global);
        sys::heddle_log_echo(echo);
        // If this fails, DPDK logs to its default, stderr, which is no reason to give up.
        let _ = sys::heddle_log_capture();
    }
}

fn arguments(
    config: &EalConfig,
    memory: MemoryMode,
    iova: IovaMode,
    cpus: &[usize],
) -> Vec<String> {
    let mut args: Vec<String> = ["heddle", "--no-telemetry"].map(str::to_owned).into();
    args.push(match iova {
        IovaMode::Va => "--iova-mode=va".into(),
        IovaMode::Pa => "--iova-mode=pa".into(),
    });
    match memory {
        MemoryMode::Hugepages if config.shares_memory => {
            // A front end of vhost-user names at most eight files: each page would be one. The
            // limit is for each socket, and zero means none.
            let mb = config.memory_mb.max(32);
            let limits = vec![mb.to_string(); Topology::read().nodes().max(1)].join(",");
            args.extend(["--in-memory", "--single-file-segments"].map(str::to_owned));
            args.extend([format!("--socket-limit={limits}"), "-m".into(), mb.to_string()]);
        }
        MemoryMode::Hugepages => args.push("--in-memory".into()),
        // --no-huge implies the legacy memory layout, which --in-memory refuses; --no-shconf is the
        // part of --in-memory that matters: the process shares nothing and makes no lock file.
        MemoryMode::NoHuge => {
            args.extend(["--no-huge", "--no-shconf", "-m"].map(str::to_owned));
            args.push(config.memory_mb.max(32).to_string());
        }
    }
    if config.pci.is_empty() {
        args.push("--no-pci".into());
    }
    for p in &config.pci {
        args.extend(["-a".into(), p.clone()]);
    }
    // Give DPDK a single lcore, number 0, on every processor that this process may use: the control
    // thread floats, and all other lcore numbers are free for workers.
    let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
    if !list.is_empty() {
        args.push(format!("--lcores=0@({})", list.join(",")));
    }
    args
}

fn start(args: Vec<String>) -> Result<(), EalError> {
    // The EAL keeps pointers into its arguments, so they must live as long as the process.
    let mut argv = Vec::with_capacity(args.len() + 1);
    for a in args {
        let a = CString::new(a).map_err(|_| EalError::Dpdk("an argument has a NUL".into()))?;
        argv.push(a.into_raw());
    }
    let argc = c_int::try_from(argv.len()).unwrap_or(c_int::MAX);
    argv.push(std::ptr::null_mut());
    let argv: &'static mut [*mut c_char] = Vec::leak(argv);
    // SAFETY: `argv` has `argc` NUL-terminated strings and a final null, all leaked, so they stay
    // valid and writable; STARTED makes this the first and only call.
    let rc = unsafe { sys::rte_eal_init(argc, argv.as_mut_ptr()) };
    if rc < 0 {
        return Err(EalError::Dpdk(reason(last_errno())));
    }
    Ok(())
}

fn choose_memory(config: &EalConfig) -> Result<MemoryMode, EalError> {
    let needed_mb = u64::from(config.memory_mb.max(32));
    let pools = match config.hugepages {
        Hugepages::Never => return Ok(MemoryMode::NoHuge),
        _ => HugePool::all(),
    };
    let free_mb = hugepages::free_mb(&pools, may_map_hugepage);
    if free_mb >= needed_mb {
        Ok(MemoryMode::Hugepages)
    } else if config.hugepages == Hugepages::Require {
        Err(EalError::TooFewHugepages { needed_mb, free_mb })
    } else {
        Ok(MemoryMode::NoHuge)
    }
}

/// Returns true if this process may map a hugepage of a size (a cgroup can forbid free hugepages).
fn may_map_hugepage(bytes: usize) -> bool {
    let Ok(log) = i32::try_from(bytes.trailing_zeros()) else { return false };
    let size = log << libc::MAP_HUGE_SHIFT;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory
    // of ours; it is unmapped with the same length and never accessed.
    unsafe {
        let p = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size,
            -1,
            0,
        );
        p != libc::MAP_FAILED && libc::munmap(p, bytes) == 0
    }
}

/// Makes the C library's allocator give each thread memory in advance, and keep freed memory: to
/// grow or shrink its heap, a worker would wait for any thread that maps memory of an application
/// at that moment. A program whose workers serve applications calls this function before the
/// workers' threads start.
pub fn steady_heap() {
    /// Bytes that a thread's heap begins with.
    #[cfg(target_env = "gnu")]
    const ROOM: libc::c_int = 16 << 20;
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls only set options of the allocator, which takes its own lock to set them;
    // the allocator refuses an option that it does not know.
    unsafe {
        libc::mallopt(libc::M_TOP_PAD, ROOM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// Returns the numbers of the processors that this process may use.
pub fn allowed_cpus() -> Vec<usize> {
    crate::lcore::available()
}

/// Restores the affinity of the thread that started the EAL, which the EAL has bound.
fn restore_affinity(cpus: &[usize]) {
    if !cpus.is_empty() {
        // If this fails, the thread stays where the EAL has bound it: on one of these processors.
        let _ = crate::lcore::bind_to(cpus);
    }
}
