//! The client's side: a device whose RNIC belongs to another process.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use heddle_rings::wakeup::WorkerWakers;
use heddle_rings::{Area, Bells};
use heddle_shm::{PageSize, Region, RegionError};
use heddle_socket::descriptor::aside;
use heddle_socket::document::FaultKind;
use heddle_types::{AppId, Pd, Stag};

use super::protocol::{self, Id, NewMr, NewStag, Opened, Request};
use crate::device::{Device, Parts};
use crate::error::DeviceError;
use crate::limits::DeviceLimits;
use crate::mr::RegisterError;
use crate::mr::{Mr, MrInfo};
use crate::qp::Owner;
use crate::window::HeldStag;

mod backend;
mod handles;
mod link;
mod routes;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests;

use handles::{RemoteMr, RemoteStag, SharedRegion};
use link::Link;

/// Parameters of a new device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenParams {
    /// Bytes of memory that the device can register without bringing its own; 0 for none.
    pub memory: usize,
    /// Bytes for the device's queues.
    pub queues: usize,
    /// Page size of both.
    pub pages: PageSize,
    /// Name of the device's owner, which the server shows to people.
    pub name: String,
}

impl Default for OpenParams {
    /// Returns 64 MiB of memory and 16 MiB of queues, on ordinary pages, with the name of the
    /// program.
    fn default() -> OpenParams {
        let program = std::env::args_os().next().map(std::path::PathBuf::from);
        let name = program.as_deref().and_then(Path::file_name);
        OpenParams {
            memory: 64 << 20,
            queues: 16 << 20,
            pages: PageSize::Small,
            name: name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
        }
    }
}

/// Time for which a registration tries again while memory is about to become free.
const RECLAIM_WAIT: Duration = Duration::from_secs(1);

/// Bytes for queues below which no server has room for its doorbells.
const LEAST_QUEUES: usize = 64 << 10;

/// Least number of bytes that one step clears.
const SOME: usize = 1 << 20;

impl Device {
    /// Opens a device of the RNIC that `heddle serve` runs, which answers on the control socket at
    /// `path` (usually `/run/heddle.sock`). The device is like any other: its objects are in memory
    /// that this process shares with the workers of the other process.
    ///
    /// The device has a thread of its own that waits for messages of the server. When the server
    /// has ended, every listener and connection gets its last event, completion queues report that
    /// completions were lost, queue pairs refuse posts, and requests fail with
    /// [`DeviceError::Ended`]; [`ended`](Device::ended) has the reason.
    ///
    /// # Errors
    /// [`DeviceError::Socket`] when no server is there, [`DeviceError::Refused`] when the server
    /// refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Device, DeviceError> {
        Device::open_with(path, &OpenParams::default())
    }

    /// As [`open`](Device::open), with parameters.
    ///
    /// # Errors
    /// As [`open`](Device::open).
    pub fn open_with(path: impl AsRef<Path>, params: &OpenParams) -> Result<Device, DeviceError> {
        let path = path.as_ref();
        let socket = UnixStream::connect(path).map_err(|e| {
            DeviceError::Socket(format!("cannot connect to {}: {e}", path.display()))
        })?;
        Device::open_on(aside(socket.into()).into(), params)
    }

    /// Does the same on an existing connection.
    ///
    /// # Errors
    /// As [`open`](Device::open).
    pub fn open_on(socket: UnixStream, params: &OpenParams) -> Result<Device, DeviceError> {
        let link = Link::start(socket).map_err(|e| DeviceError::Socket(e.to_string()))?;
        match open(&link, params) {
            Ok(device) => Ok(device),
            Err(e) => {
                link.shut();
                Err(e)
            }
        }
    }
}

fn open(link: &Arc<Link>, params: &OpenParams) -> Result<Device, DeviceError> {
    // Map the files here before the server seals them.
    let area = Region::shared_on(params.queues.max(LEAST_QUEUES), params.pages)?;
    let memory = match params.memory {
        0 => None,
        len => Some(Region::shared_on(len, params.pages)?),
    };
    let request = Request::DeviceOpen(protocol::Open {
        memory: params.memory as u64,
        queues: area.len() as u64,
        name: params.name.clone(),
    });
    let files: Vec<_> =
        [Some(&area), memory.as_ref()].into_iter().flatten().filter_map(Region::fd).collect();
    let (opened, fds): (Opened, Vec<OwnedFd>) = link.call_with(&request, &files, None)?;
    let mut fds = fds.into_iter();
    let confused = || DeviceError::Socket("the server answers nonsense".to_owned());
    let (area, memory) = (Area::lent(area), memory.map(Arc::new));
    let bells = Bells::attach(&area, opened.bells, opened.workers).ok_or_else(confused)?;
    let wakers = match opened.wakers.len() {
        0 => None,
        n if n == opened.workers => {
            let page = fds.next().ok_or_else(confused)?;
            let wakers = WorkerWakers::attach(page, fds.collect(), &opened.wakers);
            Some(wakers.map_err(|e| DeviceError::Socket(e.to_string()))?)
        }
        _ => return Err(confused()),
    };
    let bells = bells.waking(wakers);
    let (id, limits) = (AppId(opened.app), DeviceLimits::from(&opened.limits));
    let backend = Arc::new(Remote {
        link: link.clone(),
        id,
        area: area.clone(),
        bells: bells.clone(),
        memory: memory.clone(),
        pds: Mutex::default(),
        regions: Mutex::default(),
        takes_files: opened.takes_files,
    });
    link.set_opened();
    Ok(Device::new(Parts { id, area, bells, memory, limits, backend }))
}

/// The client's state of a device at a server.
#[derive(Debug)]
struct Remote {
    link: Arc<Link>,
    id: AppId,
    area: Arc<Area>,
    bells: Bells,
    memory: Option<Arc<Region>>,
    pds: Mutex<HashSet<Pd>>,
    /// Regions of the application's own that the server has mapped, by their address in this
    /// process. A client can bring a file only once, so the server keeps it for as long as the
    /// region exists.
    regions: Mutex<HashMap<usize, MappedRegion>>,
    takes_files: bool,
}

/// A region of the application's own, and the server's mapping of it.
type MappedRegion = (Weak<Region>, Arc<SharedRegion>);

impl Drop for Remote {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// Turns `None` into an error: the server has given an impossible answer.
fn confused<T>(found: Option<T>) -> Result<T, DeviceError> {
    found.ok_or_else(|| DeviceError::Socket("the server answers nonsense".to_owned()))
}

impl Remote {
    /// Returns an owner that sends `told` to the server when it is dropped.
    fn owner(&self, told: Request) -> Owner {
        let link = Arc::downgrade(&self.link);
        Owner::new(move || {
            if let Some(link) = link.upgrade() {
                link.tell(&told);
            }
        })
    }

    /// Asks again for a while when memory is about to become free.
    fn patiently<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let end = Instant::now() + RECLAIM_WAIT;
        let mut nap = Duration::from_micros(100);
        loop {
            let result = ask();
            let busy = matches!(&result, Err(DeviceError::Refused(f)) if f.kind == FaultKind::Busy);
            if !busy || Instant::now() >= end {
                return result;
            }
            std::thread::sleep(nap);
            nap = (2 * nap).min(Duration::from_millis(5));
        }
    }

    fn mr(
        &self,
        region: &Arc<Region>,
        len: usize,
        new: &NewMr,
        own: Option<Arc<SharedRegion>>,
    ) -> Result<Mr, DeviceError> {
        let owner = Box::new(RemoteMr::new(&self.link, new.id, own));
        confused(region.ptr(new.off, len))?;
        let info = MrInfo { stag: Stag(new.stag), to: new.to, off: new.off, len };
        Ok(Mr::new(region.clone(), info, owner))
    }

    /// Returns the memory from which the device registers.
    fn memory(&self, wanted: usize) -> Result<&Arc<Region>, DeviceError> {
        let none = RegisterError::NoMemory { wanted, free: 0, size: 0 };
        self.memory.as_ref().ok_or(none.into())
    }

    /// Returns a region of the application's own, which the server maps once, no matter how often
    /// it is registered.
    fn shared(&self, region: &Arc<Region>) -> Result<Arc<SharedRegion>, DeviceError> {
        let mut regions = lock(&self.regions);
        let at = Arc::as_ptr(region).addr();
        // Do this first: another region may have the address of a dropped one by now.
        regions.retain(|_, (region, _)| region.strong_count() > 0);
        if let Some((_, there)) = regions.get(&at) {
            return Ok(there.clone());
        }
        let fd = region.fd().ok_or(RegionError::NotShared)?;
        let (len, sparse, unsealed) = (region.len(), region.is_sparse(), region.is_unsealed());
        let request = Request::AddRegion(protocol::AddRegion { len, sparse, unsealed });
        let (answer, _): (Id, _) = self.link.call_with(&request, &[fd], None)?;
        let shared = Arc::new(SharedRegion::new(&self.link, answer.id));
        regions.insert(at, (Arc::downgrade(region), shared.clone()));
        Ok(shared)
    }

    fn stag(&self, request: &Request) -> Result<Box<dyn HeldStag>, DeviceError> {
        let new: NewStag = self.patiently(|| self.link.call(request))?;
        Ok(Box::new(RemoteStag::new(&self.link, new.id, Stag(new.stag))))
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
