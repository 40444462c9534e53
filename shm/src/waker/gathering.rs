//! A descriptor to sleep on for wake-ups of this process and of servers.
//!
//! A sleeper forgets all wake-ups at once. A channel of completion events takes them singly,
//! so its bell is a semaphore, and it reads the socket of a server byte by byte.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use heddle_socket::descriptor::aside;

use super::drain;

/// Most wake-ups that one wait notes. Any that are left end the next wait.
const EVENTS: usize = 32;

/// The bell's place among the descriptors waited for; the sockets' places start at 1.
const BELL: u64 = 0;

/// The source of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This process.
    Bell,
    /// A server, which knows its waker by this number.
    Server(u64),
}

/// The sleeping end of a server's pair, and the number by which the server knows it.
#[derive(Debug)]
struct Far {
    fd: OwnedFd,
    number: u64,
}

/// An `epoll` descriptor over an eventfd, which no other process has, and sockets that servers
/// made.
#[derive(Debug)]
pub struct Gathering {
    epoll: OwnedFd,
    bell: OwnedFd,
    /// The sleeping ends of servers' pairs.
    far: Mutex<Vec<Option<Far>>>,
}

impl Gathering {
    /// Returns a gathering whose owner forgets all wake-ups together.
    pub(super) fn new() -> io::Result<Gathering> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Gathering::over(aside(epoll), EventfdFlags::empty())
    }

    /// Returns a gathering whose owner [takes](Gathering::take_one) wake-ups singly; the owner is a
    /// program that knows the descriptor.
    pub fn counting() -> io::Result<Gathering> {
        Gathering::over(epoll::create(epoll::CreateFlags::CLOEXEC)?, EventfdFlags::SEMAPHORE)
    }

    fn over(epoll: OwnedFd, how: EventfdFlags) -> io::Result<Gathering> {
        let bell = aside(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | how)?);
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Gathering { epoll, bell, far: Mutex::default() })
    }

    /// Returns the descriptor that is readable while a wake-up waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Waits for `fd` too, until the process at its other end closes that end; the server knows the
    /// sleeper as `number`.
    pub(super) fn add(&self, fd: OwnedFd, number: u64) -> io::Result<()> {
        let mut far = self.far();
        let at = far.iter().position(Option::is_none).unwrap_or(far.len());
        let data = epoll::EventData::new_u64(BELL + 1 + at as u64);
        epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN)?;
        if at == far.len() {
            far.push(None);
        }
        far[at] = Some(Far { fd, number });
        Ok(())
    }

    /// Stops waiting for the sockets with this number. Returns the number of wake-ups left in them.
    pub fn forget(&self, number: u64) -> u64 {
        let mut left = 0;
        for slot in self.far().iter_mut() {
            if let Some(far) = slot.take_if(|far| far.number == number) {
                let _ = epoll::delete(&self.epoll, &far.fd);
                left += receive_all(&far.fd);
            }
        }
        left
    }

    /// Takes the wake-ups in the sockets with this number. Returns how many there were.
    pub fn take_all_of(&self, number: u64) -> u64 {
        let far = self.far();
        let fds = far.iter().flatten().filter(|far| far.number == number);
        fds.map(|far| receive_all(&far.fd)).sum()
    }

    /// Adds one wake-up without a number.
    pub fn ring(&self) {
        self.ring_times(1);
    }

    /// Wakes the thread `count` times.
    pub fn ring_times(&self, count: u64) {
        // Ignore the error: a full counter has woken the thread long ago, and a count of 0 is no
        // ring.
        let _ = rustix::io::write(&self.bell, &count.to_ne_bytes());
    }

    /// Waits until there is a wake-up, for `timeout` or without bound.
    ///
    /// # Errors
    /// [`Interrupted`](io::ErrorKind::Interrupted) by a signal.
    pub fn wait_readable(&self, timeout: Option<Duration>) -> io::Result<()> {
        // A time that the system cannot count is as good as for ever.
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let fd = self.epoll.as_fd();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref())?;
        Ok(())
    }

    /// Returns true if a wake-up waits.
    pub fn is_readable(&self) -> bool {
        let fd = self.epoll.as_fd();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())) != Ok(0)
    }

    /// Takes one wake-up of a [counting](Gathering::counting) gathering, if there is any. Only one
    /// thread may call this at a time.
    ///
    /// # Errors
    /// The system's error.
    pub fn take_one(&self) -> io::Result<Option<Source>> {
        loop {
            let mut events = [MaybeUninit::uninit(); EVENTS];
            let found = match epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())) {
                Ok((found, _)) => found,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            if found.is_empty() {
                return Ok(None);
            }
            for event in found {
                let source = match event.data.u64() {
                    BELL => self.take_bell(),
                    place => self.take_far(place - BELL - 1),
                };
                if source.is_some() {
                    return Ok(source);
                }
            }
        }
    }

    fn take_bell(&self) -> Option<Source> {
        rustix::io::read(&self.bell, &mut [0; 8]).is_ok().then_some(Source::Bell)
    }

    fn take_far(&self, place: u64) -> Option<Source> {
        let mut far = self.far();
        let slot = far.get_mut(usize::try_from(place).ok()?)?;
        let there = slot.as_ref()?;
        let number = there.number;
        match receive_one(&there.fd) {
            Received::Byte => Some(Source::Server(number)),
            Received::Nothing => None,
            Received::End => {
                let gone = slot.take()?;
                let _ = epoll::delete(&self.epoll, &gone.fd);
                None
            }
        }
    }

    /// Waits for a wake-up, for `timeout` at most, and forgets all wake-ups so far.
    pub(super) fn wait(&self, timeout: Duration) {
        let most = Duration::from_secs(1 << 20);
        // The system refuses times that it cannot count; so long a wait may end early.
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

    /// Takes the wake-ups of one server, and stops waiting for a server that has ended.
    fn take(&self, place: u64) {
        let mut far = self.far();
        let slot = usize::try_from(place).ok().and_then(|at| far.get_mut(at));
        // A server that has ended would end every wait from here on, so take its socket out.
        if let Some(slot) = slot
            && slot.as_ref().is_some_and(|far| !drain(far.fd.as_raw_fd()))
            && let Some(far) = slot.take()
        {
            let _ = epoll::delete(&self.epoll, &far.fd);
        }
    }

    fn far(&self) -> MutexGuard<'_, Vec<Option<Far>>> {
        self.far.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of receiving one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    Byte,
    Nothing,
    /// The process at the other end has closed it.
    End,
}

fn receive_all(fd: &OwnedFd) -> u64 {
    let mut count = 0;
    while receive_one(fd) == Received::Byte {
        count += 1;
    }
    count
}

fn receive_one(fd: &OwnedFd) -> Received {
    loop {
        return match recv(fd, &mut [0u8; 1], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Received::End,
            Ok(_) => Received::Byte,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::End,
        };
    }
}
