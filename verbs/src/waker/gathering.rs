//! One descriptor to sleep on for wake-ups of this process and of servers.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::drain;

/// Wake-ups taken note of at a time. Any that are left end the next wait.
const EVENTS: usize = 32;

/// The bell's place among what is waited for; the sockets' are from 1 on.
const BELL: u64 = 0;

/// An `epoll` descriptor over an eventfd, which no other process has, and sockets that servers made.
#[derive(Debug)]
pub(super) struct Gathering {
    number: u64,
    epoll: OwnedFd,
    bell: OwnedFd,
    /// The sleeping ends of servers' pairs.
    far: Mutex<Vec<Option<OwnedFd>>>,
}

impl Gathering {
    pub(super) fn new(number: u64) -> io::Result<Gathering> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Gathering { number, epoll, bell, far: Mutex::default() })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Waits for `fd` too, until the process at its other end closes that.
    pub(super) fn add(&self, fd: OwnedFd) -> io::Result<()> {
        let mut far = self.far();
        let at = far.iter().position(Option::is_none).unwrap_or(far.len());
        let data = epoll::EventData::new_u64(BELL + 1 + at as u64);
        epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN)?;
        if at == far.len() {
            far.push(None);
        }
        far[at] = Some(fd);
        Ok(())
    }

    pub(super) fn ring(&self) {
        // A full counter has woken the thread long before.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Waits for a wake-up, for `timeout` at most, and forgets those so far.
    pub(super) fn wait(&self, timeout: Duration) {
        let most = Duration::from_secs(1 << 20);
        // The system refuses times that it cannot count; such a long wait may end early.
        let Ok(timeout) = Timespec::try_from(timeout.min(most)) else { return };
        let mut events = [MaybeUninit::uninit(); EVENTS];
        // A signal ends the wait early, as a spurious wake-up would.
        let Ok((found, _)) = epoll::wait(&self.epoll, &mut events, Some(&timeout)) else { return };
        for event in found {
            match event.data.u64() {
                BELL => {
                    let _ = rustix::io::read(&self.bell, &mut [0; 8]);
                }
                place => self.take(place - BELL - 1),
            }
        }
    }

    /// Takes the wake-ups of one server; one that is gone is not waited for any more.
    fn take(&self, place: u64) {
        let mut far = self.far();
        let slot = usize::try_from(place).ok().and_then(|at| far.get_mut(at));
        // A server that is gone would end every wait from here on; the close takes it out.
        if let Some(slot) = slot
            && slot.as_ref().is_some_and(|fd| !drain(fd.as_raw_fd()))
            && let Some(fd) = slot.take()
        {
            let _ = epoll::delete(&self.epoll, &fd);
        }
    }

    fn far(&self) -> MutexGuard<'_, Vec<Option<OwnedFd>>> {
        self.far.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
