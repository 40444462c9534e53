//! The path from the program's memory to the workers of an RNIC and back: an RNIC of another
//! process (a session over a socket, whose other end is a thread here) and an RNIC of this process.

use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_base::Seed;
use heddle_hub::memory::{RegionMemory, RegionTable, Registry};
use heddle_hub::{ControlPlane, ControlRequest, DeviceConfig, Hub, Policy, serve};
use heddle_ibverbs::memory::{Shared, renew, share};
use heddle_mr::{Memory, MrTable};
use heddle_types::{Access, Pd, Qpn, Stag};
use heddle_verbs::remote::OpenParams;
use heddle_verbs::{Device, DeviceError, Mr, PageSize};

const PAGE: usize = 4096;

/// Memory of a test, at a place where the kernel maps nothing by itself, so that a hole in it stays
/// one.
struct Area {
    at: usize,
    len: usize,
}

impl Area {
    fn new(pages: usize) -> Area {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let area = Area { at: NEXT.fetch_add(1 << 30, Relaxed), len: pages * PAGE };
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the call makes a new mapping where there is none.
        let at = unsafe { libc::mmap(area.byte(0).cast(), area.len, rights, how, -1, 0) };
        assert_eq!(at.addr(), area.at);
        area
    }

    fn byte(&self, off: usize) -> *mut u8 {
        assert!(off < self.len);
        ptr::with_exposed_provenance_mut(self.at + off)
    }

    fn get(&self, off: usize) -> u8 {
        // SAFETY: tests pass only offsets that are mapped.
        unsafe { self.byte(off).read_volatile() }
    }

    fn set(&self, off: usize, value: u8) {
        // SAFETY: as above; no reference to the bytes exists.
        unsafe { self.byte(off).write_volatile(value) }
    }

    /// Writes a different byte to the start of each page.
    fn fill(&self) {
        for (n, off) in (0..self.len).step_by(PAGE).enumerate() {
            self.set(off, u8::try_from(n % 251).unwrap() + 1);
        }
    }

    fn unmap(&self, off: usize, len: usize) {
        // SAFETY: the call changes only mappings of this test.
        assert_eq!(unsafe { libc::munmap(self.byte(off).cast(), len) }, 0);
    }

    /// Returns true if the page of a byte is shared with another mapping.
    fn is_shared(&self, off: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let address = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let mut shared = maps.lines().filter(|line| line.split(' ').nth(1).unwrap().ends_with('s'));
        shared.any(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            (address(start)..address(end)).contains(&(self.at + off))
        })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the call unmaps the rest of the test's own mapping.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.at), self.len) };
    }
}

/// A control plane to which no test connects.
#[derive(Debug)]
struct Plane;

impl ControlPlane for Plane {
    fn request(&self, _: ControlRequest) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// An RNIC without workers, but with the workers' view of memory.
struct Rnic {
    hub: Arc<Hub>,
    /// The table through which a worker reaches memory.
    memory: RegionMemory,
    /// A lock, because a process has one device at a time.
    _one: MutexGuard<'static, ()>,
}

impl Rnic {
    fn new() -> Rnic {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        renew();
        let regions = Arc::new(RegionTable::new(16, None));
        let mrs = Arc::new(MrTable::new(&Seed::from_u64(1), 1 << 15));
        let registry = Arc::new(Registry::new(mrs, regions.clone()));
        let hub = Hub::new(registry, Box::new(Plane), 1, &Seed::from_u64(2));
        Rnic { hub, memory: RegionMemory::new(regions), _one: one }
    }

    /// Serves a device to another process, played by a thread.
    fn serve(&self, policy: Policy) -> (Device, std::thread::JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let hub = self.hub.clone();
        let thread = std::thread::spawn(move || drop(serve(&hub, policy, &theirs)));
        let params =
            OpenParams { memory: 0, queues: 1 << 20, pages: PageSize::Small, name: "t".into() };
        (Device::open_on(ours, &params).unwrap(), thread)
    }

    fn place(&self, pd: Pd, stag: Stag, to: u64, bytes: &[u8]) -> Option<()> {
        let len = u32::try_from(bytes.len()).unwrap();
        let mrs = self.hub.registry().mrs();
        let range = mrs.check(pd, Qpn(1), stag, to, len, Access::REMOTE_WRITE).ok()?;
        self.memory.place(range, bytes);
        Some(())
    }

    fn gather(&self, pd: Pd, stag: Stag, to: u64, len: u32) -> Option<Vec<u8>> {
        let mrs = self.hub.registry().mrs();
        let range = mrs.check(pd, Qpn(1), stag, to, len, Access::REMOTE_READ).ok()?;
        let mut bytes = vec![0; len as usize];
        self.memory.gather(range, &mut bytes);
        Some(bytes)
    }

    /// Waits until no memory is on its way back.
    fn settle(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            self.memory.quiescent();
            if self.hub.registry().reclaim() == 0 {
                return;
            }
            assert!(Instant::now() < end, "memory does not come back");
            std::thread::yield_now();
        }
    }
}

const BOTH: Access = Access::REMOTE_WRITE.with(Access::REMOTE_READ);

fn register(device: &Device, pd: Pd, at: usize, len: usize) -> (Mr, Shared) {
    let shared = share(at, len, false).unwrap();
    let range = (shared.offset(), len);
    let mr = device.register_mr(pd, shared.region(), range, at as u64, BOTH).unwrap();
    (mr, shared)
}

fn works_with(rnic: &Rnic, device: &Device) {
    let pd = device.alloc_pd().unwrap();
    let area = Area::new(300);
    area.fill();
    let on_stack = [7u8; 100];
    let (first, shared) = register(device, pd, area.at + 10, 5 * PAGE);
    let (stack, shared_stack) = register(device, pd, on_stack.as_ptr().expose_provenance(), 100);
    // This happens after the file was sealed against new writable mappings: beside the first
    // region, and over it.
    let (second, also) = register(device, pd, area.at + 3 * PAGE, 200 * PAGE);
    let at = |off: usize| (area.at + off) as u64;
    assert_eq!(rnic.gather(pd, stack.stag(), stack.to(), 100).unwrap(), [7; 100]);
    assert_eq!(rnic.gather(pd, second.stag(), at(100 * PAGE), 2).unwrap(), [101, 0]);
    rnic.place(pd, first.stag(), at(4 * PAGE), b"from a peer").unwrap();
    assert_eq!((area.get(4 * PAGE), area.get(4 * PAGE + 10)), (b'f', b'r'));
    area.set(4 * PAGE + 1, b'!');
    assert_eq!(rnic.gather(pd, second.stag(), at(4 * PAGE), 3).unwrap(), b"f!o");
    assert_eq!(rnic.gather(pd, first.stag(), at(0), 10), None, "not registered");
    assert_eq!(rnic.gather(pd, first.stag(), at(5 * PAGE + 10), 1), None, "not registered");
    first.deregister().unwrap();
    drop(shared);
    rnic.settle();
    assert!(!area.is_shared(2 * PAGE) && area.is_shared(4 * PAGE));
    assert_eq!(rnic.gather(pd, second.stag(), at(4 * PAGE), 3).unwrap(), b"f!o");
    // The program frees its memory before it unregisters it, which is a defect; the RNIC goes on
    // with the old pages.
    area.unmap(50 * PAGE, 100 * PAGE);
    rnic.place(pd, second.stag(), at(60 * PAGE), b"nobody reads this").unwrap();
    second.deregister().unwrap();
    drop(also);
    assert_eq!((area.get(4 * PAGE + 1), area.get(160 * PAGE)), (b'!', 161));
    stack.deregister().unwrap();
    drop(shared_stack);
    rnic.settle();
    std::hint::black_box(&on_stack);
}

#[test]
fn test_workers_of_another_process_reach_memory_of_the_program() {
    let rnic = Rnic::new();
    let (device, thread) = rnic.serve(Policy::default());
    works_with(&rnic, &device);
    drop(device);
    thread.join().unwrap();
}

#[test]
fn test_workers_of_this_process_reach_memory_of_the_program() {
    let rnic = Rnic::new();
    let config = DeviceConfig { queues: 1 << 20, ..DeviceConfig::default() };
    let device = rnic.hub.open(&config).unwrap();
    works_with(&rnic, &device);
}

/// An RNIC ends and the program uses another: the files of the first stay sealed for good.
#[test]
fn test_memory_is_registered_with_another_device_when_the_first_has_gone() {
    let rnic = Rnic::new();
    let area = Area::new(4);
    area.fill();
    let (device, thread) = rnic.serve(Policy::default());
    let pd = device.alloc_pd().unwrap();
    let (mr, shared) = register(&device, pd, area.at, PAGE);
    drop(device);
    renew();
    let (device, other) = rnic.serve(Policy::default());
    let pd = device.alloc_pd().unwrap();
    let (next, also) = register(&device, pd, area.at + PAGE, 2 * PAGE);
    assert_eq!(rnic.gather(pd, next.stag(), next.to(), 1).unwrap(), [2]);
    assert_eq!(share(area.at, 2 * PAGE, false).err(), Some(libc::EBUSY));
    drop((mr, shared));
    let (both, all) = register(&device, pd, area.at, 2 * PAGE);
    assert_eq!(rnic.gather(pd, both.stag(), both.to(), 1).unwrap(), [1]);
    drop((next, also, both, all, device));
    thread.join().unwrap();
    other.join().unwrap();
}

/// The test registers as many regions at a time as a program may have.
#[test]
fn test_thousands_of_small_registrations_exist_at_the_same_time() {
    const MANY: usize = 3000;
    let rnic = Rnic::new();
    let (device, thread) = rnic.serve(Policy::default());
    let pd = device.alloc_pd().unwrap();
    let area = Area::new(2 * MANY);
    area.fill();
    let all: Vec<_> =
        (0..MANY).map(|n| register(&device, pd, area.at + 2 * n * PAGE + 64, 64)).collect();
    for (n, (mr, _)) in all.iter().enumerate() {
        area.set(2 * n * PAGE + 64, 200);
        assert_eq!(rnic.gather(pd, mr.stag(), mr.to(), 1).unwrap(), [200]);
    }
    for (mr, shared) in all {
        mr.deregister().unwrap();
        drop(shared);
    }
    assert!(![0, MANY, 2 * MANY - 2].iter().any(|page| area.is_shared(page * PAGE)));
    drop(device);
    thread.join().unwrap();
}

/// Prints the cost of registration: `cargo test --release -- --ignored --nocapture figures`.
#[test]
#[ignore = "measures"]
fn figures_of_registration() {
    let rnic = Rnic::new();
    let (device, thread) = rnic.serve(Policy { memory: 4 << 30, ..Policy::default() });
    let pd = device.alloc_pd().unwrap();
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    for (len, rounds, fresh) in [
        (PAGE, 2000, true),
        (PAGE, 2000, false),
        (64 << 10, 500, true),
        (1 << 20, 200, true),
        (1 << 20, 200, false),
    ] {
        let mut took: [Vec<Duration>; 4] = Default::default();
        let area = Area::new(if fresh { rounds * len / PAGE } else { len / PAGE });
        area.fill();
        let start = Instant::now();
        for n in 0..rounds {
            let at = area.at + if fresh { n * len } else { 0 };
            let mut last = Instant::now();
            let mut lap = |step: usize| {
                took[step].push(last.elapsed());
                last = Instant::now();
            };
            let shared = share(at, len, false).unwrap();
            lap(0);
            let range = (shared.offset(), len);
            let mr = device.register_mr(pd, shared.region(), range, at as u64, BOTH).unwrap();
            lap(1);
            mr.deregister().unwrap();
            lap(2);
            drop(shared);
            lap(3);
            rnic.memory.quiescent();
        }
        let a_second = f64::from(u32::try_from(rounds).unwrap()) / start.elapsed().as_secs_f64();
        let [share, register, deregister, back] = took.each_mut().map(median);
        println!(
            "{} KiB, {}: share {share:?}, register {register:?}, deregister {deregister:?}, give back \
             {back:?}; {a_second:.0} rounds a second",
            len >> 10,
            if fresh { "new memory" } else { "the same memory" },
        );
    }
    drop(device);
    thread.join().unwrap();
}
