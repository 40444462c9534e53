//! What maps memory, and so takes longer than a request may.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use heddle_socket::document::{Answer, Fault, FaultKind};
use heddle_socket::wire::{ForeignFd, MAX_FDS};

use super::preparing::Preparing;
use super::{Open, Outcome, Session, State, invalid, over};
use crate::account::{Kind, Reserved};
use crate::device::DeviceConfig;
use crate::error::DeviceError;
use crate::memory::{Region, RegionError};
use crate::remote::protocol::{self, Id, Opened};
use crate::ring::Area;
use crate::wakeup::{Lent, MAX_LENT};

// Who sleeps, and what wakes them.
const _: () = assert!(MAX_LENT < MAX_FDS);

/// Descriptors that this process holds for a device: the socket, a pair of wakers with a copy, the
/// client's process, the area and the memory until they are mapped, and what workers are woken with.
const SESSION: u64 = 7 + MAX_LENT as u64;

/// Letters of a name that are kept.
const MAX_NAME: usize = 64;

/// Memory that is being prepared, until it is and the request is answered.
#[derive(Debug)]
pub(super) struct Job {
    /// The request's number.
    id: u64,
    /// The area and the memory of a new device, or memory of the application's own.
    memory: Preparing,
    /// What it is for.
    opens: bool,
}

impl Job {
    pub(super) fn is_done(&self) -> bool {
        self.memory.is_done()
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
        // What the RNIC itself needs there is had by everybody.
        let least = self.hub.area_octets(0);
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
        self.prepare(id, fds.into_iter().zip(sizes).collect(), held, true);
        Ok(Outcome::Later)
    }

    pub(super) fn add_region(
        &mut self,
        id: u64,
        len: usize,
        fds: Vec<ForeignFd>,
    ) -> Result<Outcome, Fault> {
        // What is on its way back counts until it is.
        self.objects.forget_gone();
        let take = |kind, n| self.account.take(kind, n).map_err(over);
        // The file is closed once it is mapped, and its place is counted as long as the region's.
        let held = vec![
            take(Kind::Regions, 1)?,
            take(Kind::Memory, len as u64)?,
            take(Kind::Descriptors, 1)?,
        ];
        self.prepare(id, fds.into_iter().zip([len]).collect(), held, false);
        Ok(Outcome::Later)
    }

    fn prepare(
        &mut self,
        id: u64,
        files: Vec<(ForeignFd, usize)>,
        held: Vec<Reserved>,
        opens: bool,
    ) {
        let memory = Preparing::start(files, held, self.lane, self.waker.clone());
        self.jobs.push_back(Job { id, memory, opens });
    }

    /// Goes on with the first job, if that is done.
    pub(super) fn step(&mut self) {
        if !self.has_work() {
            return;
        }
        let Some(Job { id, memory, opens }) = self.jobs.pop_front() else { return };
        let (regions, held) = match memory.take() {
            Ok(prepared) => prepared,
            Err(e) => {
                if opens {
                    self.state = State::New;
                }
                let kind = match e {
                    RegionError::NoMemory { .. } => FaultKind::Quota,
                    _ => FaultKind::Invalid,
                };
                return self.refuse(id, Fault::new(kind, e.to_string()));
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
        let octets = (area.len(), memory.as_ref().map_or(0, Region::len));
        let config = DeviceConfig {
            memory: octets.1,
            queues: octets.0,
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
