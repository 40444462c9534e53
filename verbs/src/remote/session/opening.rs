//! What maps memory, and so takes longer than a request may: done a piece at a time.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use heddle_socket::document::{Answer, Fault};
use heddle_socket::wire::{ForeignFd, MAX_FDS};

use super::{Open, Outcome, Session, State, invalid, quota};
use crate::device::DeviceConfig;
use crate::error::DeviceError;
use crate::memory::{Region, RegionError};
use crate::remote::protocol::{self, Id, Opened};
use crate::ring::Area;
use crate::wakeup::{Lent, MAX_LENT};

/// Octets that are populated at a time: a millisecond or so.
const PIECE: usize = 4 << 20;

// The area, the memory, who sleeps, and what wakes them.
const _: () = assert!(2 + 1 + MAX_LENT <= MAX_FDS);

/// Letters of a name that are kept.
const MAX_NAME: usize = 64;

/// Regions that are populated, until they are and the request is answered.
#[derive(Debug)]
pub(super) struct Job {
    /// The request's number.
    id: u64,
    /// The area and the memory of a new device, or memory of the application's own.
    regions: Vec<Region>,
    /// What it is for.
    opens: bool,
    /// Octets that are populated of the first region that is not done.
    done: usize,
    /// Regions that are.
    ready: usize,
}

impl Job {
    /// One piece; true when all is done.
    fn step(&mut self) -> bool {
        let Some(region) = self.regions.get(self.ready) else { return true };
        let piece = PIECE.min(region.len() - self.done);
        // What a kernel cannot populate comes with the first use.
        let _ = region.populate(self.done, piece);
        self.done += piece;
        if self.done == region.len() {
            (self.done, self.ready) = (0, self.ready + 1);
        }
        self.ready == self.regions.len()
    }
}

impl Session {
    pub(super) fn open(&mut self, id: u64, args: protocol::Open) -> Result<Outcome, Fault> {
        if !matches!(self.state, State::New) {
            return Err(invalid("the device is open already, or was"));
        }
        if args.memory > self.policy.memory {
            return Err(quota("octets of memory", self.policy.memory));
        }
        if args.queues > self.policy.queues {
            return Err(quota("octets of queues", self.policy.queues));
        }
        let size = |n: u64| usize::try_from(n).map_err(|_| invalid("no such size"));
        let (memory, queues) = (size(args.memory)?, size(args.queues)?);
        let lazily = |len| Region::for_client(len).map_err(DeviceError::from);
        let mut regions = vec![lazily(self.hub.area_octets(queues)).map_err(|e| self.fault(e))?];
        if memory > 0 {
            regions.push(lazily(memory).map_err(|e| self.fault(e))?);
        }
        self.name = args.name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
        self.state = State::Opening;
        self.jobs.push_back(Job { id, regions, opens: true, done: 0, ready: 0 });
        Ok(Outcome::Later)
    }

    pub(super) fn add_region(
        &mut self,
        id: u64,
        len: usize,
        fd: Option<ForeignFd>,
    ) -> Result<Outcome, Fault> {
        let fd = fd.as_ref().and_then(ForeignFd::fd);
        let fd = fd.ok_or_else(|| invalid("no descriptor came with it"))?;
        let waiting = self.jobs.len();
        if self.objects.region_count() + waiting >= self.policy.regions as usize {
            return Err(quota("regions of memory of its own", self.policy.regions));
        }
        let device = match &self.state {
            State::Open(o) => o.device.memory().map_or(0, |m| m.len()),
            _ => 0,
        };
        let in_jobs = self.jobs.iter().flat_map(|j| &j.regions).map(Region::len);
        let there = in_jobs.fold(self.objects.brought() as u64, |sum, n| sum + n as u64);
        let all = there.saturating_add(device as u64).saturating_add(len as u64);
        if all > self.policy.memory {
            return Err(quota("octets of memory", self.policy.memory));
        }
        let region = Region::of_client(fd, len);
        let region = region.map_err(|e: RegionError| invalid(e.to_string()))?;
        self.jobs.push_back(Job { id, regions: vec![region], opens: false, done: 0, ready: 0 });
        Ok(Outcome::Later)
    }

    /// A piece of the first job.
    pub(super) fn step(&mut self) {
        let Some(job) = self.jobs.front_mut() else { return };
        if !job.step() {
            return;
        }
        let Some(Job { id, regions, opens, .. }) = self.jobs.pop_front() else { return };
        let mut regions = regions.into_iter();
        let Some(first) = regions.next() else { return };
        if !opens {
            let name = self.objects.add_region(first);
            return self.send(id, Answer::ok(id, &Id { id: name }), Vec::new());
        }
        match self.opened(first, regions.next()) {
            Ok((open, answer, fds)) => {
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
        for region in [Some(&area), memory.as_ref()].into_iter().flatten() {
            let fd = region.fd().ok_or(RegionError::NotShared)?;
            let copy = fd.try_clone_to_owned();
            fds.push(copy.map_err(|e| DeviceError::Socket(e.to_string()))?);
        }
        let lent = self.lend(&mut fds).map_err(|e| DeviceError::Socket(e.to_string()))?;
        let octets = (area.len(), memory.as_ref().map_or(0, Region::len));
        let config = DeviceConfig {
            memory: octets.1,
            queues: octets.0,
            shared: true,
            limits: self.policy.limits,
            patient: false,
            ..DeviceConfig::default()
        };
        let (device, local) = self.hub.open_on(Area::over(area), memory, &config)?;
        let answer = Opened {
            app: device.app().0,
            workers: device.bells().workers(),
            area: octets.0,
            bells: device.bells().offset(),
            memory: octets.1,
            wakers: lent.as_ref().map_or(Vec::new(), |l| l.by_worker().to_vec()),
            limits: device.limits().into(),
        };
        Ok((Open { device, local, _lent: lent.map(Arc::new) }, answer, fds))
    }

    /// What the application wakes workers with; the descriptors go to the end of `fds`.
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
