//! Helpers that the tests share: one EAL for the process, without hugepages and without root.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::process::Command;
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use heddle_base::Chunks;
use heddle_dataplane::{
    Eal, EalConfig, ExternalError, ExternalMemory, Hugepages, Mbuf, Mempool, MempoolConfig, Port,
    PortConfig, PortError, PortSource, RxQueue, TxQueue,
};
use heddle_shm::Region;

/// Room for one burst.
pub type Burst = ArrayVec<Mbuf, 32>;

/// Returns the EAL of this test process: the one that runs already, or one without hugepages.
pub fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    *EAL.get_or_init(|| {
        if let Some(eal) = Eal::get() {
            return eal;
        }
        let config =
            EalConfig { hugepages: Hugepages::Never, memory_mb: 2048, ..EalConfig::default() };
        Eal::init(&config).unwrap()
    })
}

/// Returns a pool of its own for a test, so that the test detects its own leaks.
pub fn pool(count: u32) -> Mempool {
    Mempool::new(&eal(), &MempoolConfig::for_mtu(count, 1500)).unwrap()
}

/// Opens a virtual device with one pair of queues.
pub fn open(vdev: &str, pool: Mempool) -> Result<(Port, RxQueue, TxQueue), PortError> {
    let source = PortSource::Vdev(vdev.parse()?);
    let mut port = Port::open(&eal(), &source, &PortConfig::new(pool))?;
    let (rx, tx) = port.take_queues().pop().unwrap();
    Ok((port, rx, tx))
}

/// Returns `len` bytes that depend on `seed`.
pub fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

/// Returns a one-segment frame.
pub fn frame(pool: Mempool, content: &[u8]) -> Mbuf {
    let mut m = pool.alloc().unwrap();
    m.append(content.len()).unwrap().copy_from_slice(content);
    m
}

/// Returns a TCP frame to the station `to` with a source port.
pub fn tcp(pool: Mempool, to: [u8; 6], source: u16) -> Mbuf {
    let mut h = to.to_vec();
    h.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 60]);
    h.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 98, 0, 1, 10, 98, 0, 2]);
    h.extend(source.to_be_bytes());
    h.extend([0x1b, 0x58, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    h.resize(74, 9);
    frame(pool, &h)
}

/// Returns all bytes of a frame.
pub fn content(m: &Mbuf) -> Vec<u8> {
    let mut v = vec![0; m.len()];
    assert_eq!(m.copy_at(0, &mut v), v.len());
    v
}

/// Registered memory, and the counters of the mbufs that refer to it. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Memory {
    pub region: Arc<Region>,
    pub external: ExternalMemory,
}

impl Memory {
    /// The slot of the STag table that the memory uses; the tests use no other.
    pub const SLOT: u32 = 2;

    pub fn new(len: usize) -> Memory {
        eal();
        let region = Arc::new(Region::anonymous(len).unwrap());
        Memory { region, external: ExternalMemory::new(4) }
    }

    /// Returns a segment that refers to `len` bytes at `off`.
    pub fn external(&self, pool: Mempool, off: usize, len: u16) -> Result<Mbuf, ExternalError> {
        Mbuf::external(&pool, &self.external, Memory::SLOT, &self.region, off, len)
    }

    pub fn place(&self, off: usize, bytes: &[u8]) {
        self.region.place(off, bytes).unwrap();
    }

    pub fn gather(&self, off: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.gather(off, &mut bytes).unwrap();
        bytes
    }

    /// Returns the number of mbufs that refer to the memory.
    pub fn references(&self) -> usize {
        for other in [0, 1, 3] {
            assert_eq!(self.external.references(other), 0, "counted at another slot");
        }
        self.external.references(Memory::SLOT)
    }
}

/// Runs `ip`.
pub fn ip(args: &str) {
    let out = Command::new("ip").args(args.split_whitespace()).output().unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Brings an interface up, without frames of the kernel's own.
pub fn up_and_quiet(interface: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1");
    ip(&format!("link set {interface} up"));
}

/// Two joined interfaces, removed at the end.
#[derive(Debug)]
pub struct Veth(pub String, pub String);

impl Veth {
    pub fn new(name: &str, mtu: u16) -> Veth {
        let (a, b) = (format!("{name}a{mtu}"), format!("{name}b{mtu}"));
        ip(&format!("link add {a} mtu {mtu} type veth peer name {b} mtu {mtu}"));
        for i in [&a, &b] {
            up_and_quiet(i);
        }
        Veth(a, b)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.0));
    }
}
