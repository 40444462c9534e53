//! Requests that map memory, and so take longer than a request may.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use heddle_rings::Area;
use heddle_rings::wakeup::{Lent, MAX_LENT};
use heddle_shm::account::{Kind, Reserved};
use heddle_shm::region::{Hold, HoldError};
use heddle_shm::{Region, RegionError};
use heddle_socket::document::{Answer, Fault, FaultKind};
use heddle_socket::wire::{ForeignFd, MAX_FDS};
use heddle_verbs::remote::protocol;
use heddle_verbs::remote::protocol::{Id, NewMr, Opened};
use heddle_verbs::{DeviceError, RegisterError};

use super::holding::Populating;
use super::preparing::{File, FileKind, Preparing};
use super::{Open, Outcome, Session, State, invalid, over};
use crate::DeviceConfig;

// An answer also carries the descriptor of the words that say which workers sleep.
const _: () = assert!(MAX_LENT < MAX_FDS);

/// Descriptors that this process holds for a device: the socket, a pair of wakers with a copy, the
/// client's process, the area and the memory until they are mapped, and the eventfds that wake
/// workers.
pub(super) const SESSION: u64 = 7 + MAX_LENT as u64;

/// Letters of a name that the session keeps.
const MAX_NAME: usize = 64;

/// Bytes of a registration that a session of the RNIC's own user populates itself: a third of a
/// millisecond or so.
const POPULATED: usize = 2 << 20;

/// Most jobs of a session that wait at a time. A client that registers with one call at a time has
/// one.
const MAX_JOBS: usize = 256;

/// A request whose memory is being prepared; the answer follows after that.
#[derive(Debug)]
pub(super) struct Job {
    /// Number of the request.
    id: u64,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// The area and the memory of a new device.
    Open(Preparing),
    /// Memory of the application's own.
    Add(Preparing),
    /// A part of a sparse region. The session populates it when all earlier jobs are done: only
    /// then do pages that another registration holds count as populated.
    Register { args: protocol::RegisterMr, region: Arc<Region>, populating: Option<Populating> },
}

impl Job {
    /// Returns true if the session has something to do for this job.
    pub(super) fn is_ready(&self) -> bool {
        match &self.work {
            Work::Open(memory) | Work::Add(memory) => memory.is_done(),
            Work::Register { populating, .. } => {
                populating.as_ref().is_none_or(Populating::is_done)
            }
        }
    }
}

impl Session {
    pub(super) fn open(
        &mut self,
        id: u64,
        args: protocol::Open,
        fds: Vec<ForeignFd>,
    ) -> Result<Outcome, Fault> {
        if !matches!(self.state, State::New) {
            return Err(invalid("the device is open already, or was"));
        }
        let take = |kind, n| self.account.take(kind, n).map_err(over);
        // The account does not pay for the room in the area that the RNIC itself needs.
        let least = self.hub.area_bytes(0);
        let queues = if args.queues > least as u64 { args.queues } else { 0 };
        let held = vec![
            take(Kind::Memory, args.memory)?,
            take(Kind::Queues, queues)?,
            take(Kind::Sessions, 1)?,
            take(Kind::Descriptors, SESSION)?,
        ];
        let size = |n: u64| usize::try_from(n).map_err(|_| invalid("no such size"));
        let (memory, queues) = (size(args.memory)?, size(args.queues)?);
        if queues < least {
            return Err(invalid(format!(
                "the queues of a device need {least} bytes here at least"
            )));
        }
        let sizes = [queues, memory];
        self.name = args.name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
        self.state = State::Opening;
        let kind = FileKind::Whole;
        let files = fds.into_iter().zip(sizes).map(|(fd, len)| File { fd, len, kind });
        let memory = self.prepare(files.collect(), held);
        self.jobs.push_back(Job { id, work: Work::Open(memory) });
        Ok(Outcome::Later)
    }

    pub(super) fn add_region(
        &mut self,
        id: u64,
        protocol::AddRegion { len, sparse, unsealed }: protocol::AddRegion,
        fds: Vec<ForeignFd>,
    ) -> Result<Outcome, Fault> {
        if unsealed && !self.is_own_users {
            return Err(invalid("this RNIC has other users too: the file has to be sealed"));
        }
        let kind = match (sparse, unsealed) {
            (_, true) => FileKind::Unsealed,
            (true, false) => FileKind::Sparse,
            (false, false) => FileKind::Whole,
        };
        // Amounts of memory that is on its way back count until the memory is free.
        self.objects.forget_gone();
        let take = |kind, n| self.account.take(kind, n).map_err(over);
        // The session closes the file once it is mapped, but counts its descriptor as long as the
        // region exists: a sparse region keeps another descriptor of the file.
        let held = vec![
            take(Kind::Regions, 1)?,
            take(if kind == FileKind::Whole { Kind::Memory } else { Kind::Mapped }, len as u64)?,
            take(Kind::Descriptors, 1)?,
        ];
        let files = fds.into_iter().map(|fd| File { fd, len, kind });
        let memory = self.prepare(files.collect(), held);
        self.jobs.push_back(Job { id, work: Work::Add(memory) });
        Ok(Outcome::Later)
    }

    fn prepare(&self, files: Vec<File>, held: Vec<Reserved>) -> Preparing {
        Preparing::start(files, held, self.lane, self.waker.clone())
    }

    /// Registers a part of a sparse region once its pages exist.
    pub(super) fn register_sparse(
        &mut self,
        id: u64,
        args: protocol::RegisterMr,
        region: Arc<Region>,
    ) -> Result<Outcome, Fault> {
        if region.ptr(args.off, args.len).is_none() {
            return Err(self.fault(RegisterError::OutOfRange.into()));
        }
        if self.jobs.len() >= MAX_JOBS {
            let text = format!("{MAX_JOBS} registrations of it wait for their pages");
            return Err(Fault::new(FaultKind::Busy, text));
        }
        self.jobs.push_back(Job { id, work: Work::Register { args, region, populating: None } });
        self.start_next();
        Ok(Outcome::Later)
    }

    /// Starts the first job, if it waits for its turn.
    fn start_next(&mut self) {
        let Some(Job { work: Work::Register { args, region, populating }, .. }) =
            self.jobs.front_mut()
        else {
            return;
        };
        if populating.is_none() {
            let range = (args.off, args.len);
            let (region, account) = (region.clone(), self.account.clone());
            *populating = Some(if self.is_own_users && args.len <= POPULATED {
                Populating::at_once(region, range, &account, self.lane)
            } else {
                Populating::start(region, range, account, self.lane, self.waker.clone())
            });
        }
    }

    /// Goes on with the first job, if its preparation is done, and starts the next.
    pub(super) fn step(&mut self) {
        if self.has_work() {
            match self.jobs.pop_front() {
                Some(Job { id, work: Work::Open(memory) }) => self.prepared(id, memory, true),
                Some(Job { id, work: Work::Add(memory) }) => self.prepared(id, memory, false),
                Some(Job { id, work: Work::Register { args, region, populating } }) => {
                    let populated = populating.and_then(Populating::take);
                    match self.populated(&args, &region, populated) {
                        Ok(value) => self.send(id, Answer::ok(id, &value), Vec::new()),
                        Err(fault) => self.refuse(id, fault),
                    }
                }
                None => {}
            }
        }
        self.start_next();
    }

    fn populated(
        &mut self,
        args: &protocol::RegisterMr,
        region: &Arc<Region>,
        populated: Option<Result<Hold, HoldError>>,
    ) -> Result<NewMr, Fault> {
        let State::Open(open) = &self.state else { return Err(invalid("the device is closed")) };
        let hold = match populated {
            Some(Ok(hold)) => hold,
            Some(Err(HoldError::Over(e))) => return Err(over(e)),
            Some(Err(HoldError::Region(e))) => return Err(no_pages(&e)),
            None => return Err(invalid("its pages were not asked for")),
        };
        let registered = self.objects.register_held(&open.clone(), args, region, hold);
        registered.map_err(|refused| refused.into_fault(|e| self.fault(e)))
    }

    fn prepared(&mut self, id: u64, memory: Preparing, opens: bool) {
        let (regions, held) = match memory.take() {
            Ok(prepared) => prepared,
            Err(e) => {
                if opens {
                    self.state = State::New;
                }
                return self.refuse(id, no_pages(&e));
            }
        };
        let mut regions = regions.into_iter();
        let Some(first) = regions.next() else { return };
        if !opens {
            let name = self.objects.add_region(first, held);
            return self.send(id, Answer::ok(id, &Id { id: name }), Vec::new());
        }
        match self.opened(first, regions.next()) {
            Ok((open, answer, fds)) => {
                self.held = held;
                self.memory = open.device.memory().map(Arc::downgrade).unwrap_or_default();
                self.state = State::Open(open);
                self.send(id, Answer::ok(id, &answer), fds);
            }
            Err(e) => {
                self.state = State::New;
                let fault = self.fault(e);
                self.refuse(id, fault);
            }
        }
    }

    fn opened(
        &self,
        area: Region,
        memory: Option<Region>,
    ) -> Result<(Open, Opened, Vec<OwnedFd>), DeviceError> {
        let mut fds = Vec::new();
        let lent = self.lend(&mut fds).map_err(|e| DeviceError::Socket(e.to_string()))?;
        let bytes = (area.len(), memory.as_ref().map_or(0, Region::len));
        let config = DeviceConfig {
            memory: bytes.1,
            queues: bytes.0,
            shared: true,
            limits: self.policy.limits,
            patient: false,
            ..DeviceConfig::default()
        };
        let (device, local) =
            self.hub.open_on(Area::over(area), memory, &config, Some(self.account.clone()))?;
        let answer = Opened {
            app: device.app().0,
            workers: device.bells().workers(),
            bells: device.bells().offset(),
            wakers: lent.as_ref().map_or(Vec::new(), |l| l.by_worker().to_vec()),
            limits: device.limits().into(),
            takes_files: self.is_own_users,
        };
        Ok((Open { device, local, _lent: lent.map(Arc::new) }, answer, fds))
    }

    /// Returns the eventfds with which the application wakes workers; adds the descriptors at the
    /// end of `fds`.
    fn lend(&self, fds: &mut Vec<OwnedFd>) -> std::io::Result<Option<Lent>> {
        let Some(wakers) = self.hub.wakers() else { return Ok(None) };
        let Some(lent) = wakers.lend()? else { return Ok(None) };
        fds.push(wakers.page_fd().try_clone_to_owned()?);
        for fd in lent.fds() {
            fds.push(fd.try_clone_to_owned()?);
        }
        Ok(Some(lent))
    }
}

fn no_pages(e: &RegionError) -> Fault {
    let kind = match e {
        RegionError::NoMemory { .. } => FaultKind::Quota,
        _ => FaultKind::Invalid,
    };
    Fault::new(kind, e.to_string())
}
