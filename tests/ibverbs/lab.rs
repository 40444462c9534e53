//! Two RNICs in processes of their own, joined by shared memory: the library's, and its peers'.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest time that any step may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The address of the peers' RNIC.
pub(crate) const PEER: &str = "10.77.0.2";

/// The two RNICs and their sockets.
pub(crate) struct Lab {
    dir: tempfile::TempDir,
    /// The RNICs' processes, which run as long as this process.
    _rnics: Vec<Child>,
}

/// Returns the lab of this process. The RNICs end with the process, however it ends.
pub(crate) fn lab() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(|| {
        let mut lab = Lab { dir: tempfile::tempdir().unwrap(), _rnics: Vec::new() };
        lab.start("server", "10.77.0.1");
        lab.start("client", PEER);
        // SAFETY: tests of this process read the variable only after this, through the library.
        unsafe { std::env::set_var(heddle_ibverbs::rnic::SOCKET, lab.socket()) };
        lab
    })
}

/// Returns the path of the program; `HEDDLE` may name another one, so that a person can see what
/// the tests do with it.
pub(crate) fn heddle() -> PathBuf {
    std::env::var_os("HEDDLE").unwrap_or_else(|| env!("CARGO_BIN_EXE_heddle").into()).into()
}

impl Lab {
    /// Returns the socket of the library's RNIC.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("server")
    }

    /// Returns the socket of the peers' RNIC.
    pub(crate) fn peers(&self) -> PathBuf {
        self.dir.path().join("client")
    }

    fn start(&mut self, role: &str, address: &str) {
        let at = |name: &str| self.dir.path().join(name);
        let memif = at("memif");
        let vdev = format!("net_memif0,role={role},socket={},socket-abstract=no", memif.display());
        let mut c = Command::new(heddle());
        c.args(["serve", "--vdev", &vdev, "--ip", &format!("{address}/24")]);
        // The tests share a small machine with others, so let idle workers sleep.
        c.args(["--idle", "backoff"]);
        c.args(["--listen", &format!("{address}:9=sink")]);
        c.arg("--socket").arg(at(role));
        c.stdin(Stdio::null()).stdout(Stdio::null());
        c.stderr(std::fs::File::create(at(&format!("{role}.log"))).unwrap());
        // SAFETY: the call only asks the kernel to signal this process when the thread that starts
        // it ends.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut c, || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        // The signal comes when the starting thread ends, so use a thread that lasts as long as
        // this process; a test's thread does not.
        let (started, rnic) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            started.send(c.spawn().unwrap()).unwrap();
            loop {
                std::thread::park();
            }
        });
        let mut rnic = rnic.recv().unwrap();
        let until = Instant::now() + PATIENCE;
        // Connect only once: the RNIC counts the connections that a user leaves open until it has
        // looked at them.
        while !memif.exists() || UnixStream::connect(at(role)).is_err() {
            let ended = rnic.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "an RNIC has ended ({ended:?}): {}",
                log(&at(&format!("{role}.log")))
            );
            assert!(Instant::now() < until, "an RNIC does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        self._rnics.push(rnic);
    }
}

fn log(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
