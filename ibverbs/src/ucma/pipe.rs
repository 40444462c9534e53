//! The descriptor of an event channel.
//!
//! The program gets the reading end of a pipe, which holds one byte for each waiting event:
//!
//! - The kernel implements everything that a program may do with a descriptor. `poll` and `epoll`
//!   report the end readable while events wait, edge by edge; a read of one byte waits for an
//!   event, or returns at once if the program has set `O_NONBLOCK`, and a signal interrupts it like
//!   the real device's system call. Each byte lets one waiting thread go on.
//! - Duplicates, inherited descriptors and descriptors sent through sockets refer to the same pipe,
//!   which its inode identifies. The writing end reports an error when the last of them is closed,
//!   and only then.
//! - A program that bypasses the hook and writes to the descriptor gets `EBADF`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use heddle_socket::descriptor::aside;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, open};
use rustix::io::{FdFlags, fcntl_setfd, read};
use rustix::pipe::{PipeFlags, pipe_with};

use super::errno::Errno;

/// Identifies a pipe among all pipes that this process ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    dev: u64,
    ino: u64,
}

/// Returns the key of a descriptor's pipe; `None` for another file, or for a closed number.
pub(super) fn key_of(fd: BorrowedFd<'_>) -> Option<Key> {
    let stat = fstat(fd).ok()?;
    let is_pipe = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
    is_pipe.then_some(Key { dev: stat.st_dev, ino: stat.st_ino })
}

/// The writing end of a pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    write: OwnedFd,
    key: Key,
    /// Bytes in the pipe, plus bytes that threads have read for an event that they have not taken
    /// yet.
    bytes: usize,
}

impl Pipe {
    /// Makes a pipe. The reading end has the flags with which the program opens the device.
    ///
    /// # Errors
    /// Returns an error if the system has no descriptors left.
    pub(super) fn new(nonblocking: bool, cloexec: bool) -> Result<(Pipe, OwnedFd), Errno> {
        let (given, write) = pipe_with(PipeFlags::CLOEXEC).map_err(errno)?;
        let write = aside(write);
        set_nonblocking(write.as_fd(), true)?;
        set_nonblocking(given.as_fd(), nonblocking)?;
        if !cloexec {
            fcntl_setfd(&given, FdFlags::empty()).map_err(errno)?;
        }
        let key = key_of(given.as_fd()).ok_or(Errno(libc::EIO))?;
        Ok((Pipe { write, key, bytes: 0 }, given))
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Returns the writing end, on which to wait for the error that reports the last close of the
    /// reading end.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.write.as_fd()
    }

    /// Records that a thread has read a byte.
    pub(super) fn byte_read(&mut self) {
        self.bytes = self.bytes.saturating_sub(1);
    }

    /// Adds or removes bytes until the pipe holds one for each of `events`.
    pub(super) fn set(&mut self, events: usize) {
        if self.bytes > events {
            self.take_back(self.bytes - events);
        }
        while self.bytes < events && self.put() {
            self.bytes += 1;
        }
    }

    /// Returns true if no descriptor of the reading end is open any more.
    pub(super) fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(&self.write, PollFlags::empty())];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&none)).is_ok_and(|n| n == 1)
            && fds[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL)
    }

    /// Writes one byte. A full pipe is readable anyway, so the byte can follow after threads have
    /// read others.
    fn put(&self) -> bool {
        // A program that closes descriptors by number may have closed this one, and opened another
        // file with its number.
        key_of(self.write.as_fd()) == Some(self.key) && write_quietly(self.write.as_fd())
    }

    /// Reads up to `most` bytes of events that the program will never take; other threads may have
    /// left fewer.
    fn take_back(&mut self, most: usize) {
        // The reading end belongs to the program and may wait. Open another end, which does not
        // wait, only for this read.
        let path = format!("/proc/self/fd/{}", self.write.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(end) = open(path, flags, Mode::empty()) else { return };
        if key_of(end.as_fd()) != Some(self.key) {
            return;
        }
        let mut bytes = vec![0u8; most];
        if let Ok(n) = read(&end, &mut bytes[..]) {
            self.bytes -= n;
        }
    }
}

fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    let mut flags = fcntl_getfl(fd).map_err(errno)?;
    flags.set(OFlags::NONBLOCK, on);
    fcntl_setfl(fd, flags).map_err(errno)
}

/// Writes a byte, and protects the program from the signal that the write raises if no reading end
/// is open.
fn write_quietly(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the calls fill in signal sets of this frame, and write a live byte. The kernel raises
    // SIGPIPE for the calling thread, which takes the signal back before it restores its mask. A
    // SIGPIPE that was blocked and pending before stays pending.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let was_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let byte = [1u8];
        let written = libc::write(fd.as_raw_fd(), byte.as_ptr().cast(), 1);
        if written < 0 && Errno::last().0 == libc::EPIPE && !was_pending {
            let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const none);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        written == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&none)).unwrap() == 1
    }

    #[test]
    fn test_descriptor_is_readable_while_events_wait() {
        let (mut pipe, given) = Pipe::new(true, true).unwrap();
        assert!(!readable(&given));
        pipe.set(3);
        for left in (0..3).rev() {
            assert!(readable(&given));
            assert_eq!(read(&given, &mut [0; 1]), Ok(1));
            pipe.byte_read();
            pipe.set(left);
        }
        assert!(!readable(&given));
        pipe.set(5);
        pipe.set(1);
        assert_eq!(read(&given, &mut [0; 9]), Ok(1), "events went without being taken");
    }

    #[test]
    fn test_byte_that_a_thread_has_read_is_not_taken_from_another() {
        let (mut pipe, given) = Pipe::new(true, true).unwrap();
        pipe.set(2);
        assert_eq!(read(&given, &mut [0; 1]), Ok(1));
        // Both events are removed while that thread has not yet asked for one.
        pipe.set(0);
        assert!(!readable(&given));
        pipe.byte_read();
        pipe.set(1);
        assert_eq!(read(&given, &mut [0; 9]), Ok(1));
    }

    #[test]
    fn test_events_beyond_pipe_capacity_are_all_signaled_in_the_end() {
        let (mut pipe, given) = Pipe::new(true, true).unwrap();
        let mut left = 70_000;
        pipe.set(left);
        assert!(pipe.bytes < left, "the pipe is full");
        while left > 0 {
            assert_eq!(read(&given, &mut [0; 1]), Ok(1), "{left} left");
            pipe.byte_read();
            left -= 1;
            pipe.set(left);
        }
        assert!(!readable(&given));
    }

    #[test]
    fn test_last_close_is_seen_and_raises_no_signal() {
        let (mut pipe, given) = Pipe::new(false, true).unwrap();
        let copy = given.try_clone().unwrap();
        assert_eq!(key_of(copy.as_fd()), Some(pipe.key()));
        drop(given);
        assert!(!pipe.is_closed());
        drop(copy);
        assert!(pipe.is_closed());
        // SAFETY: the call restores the default action, which would end this test if the signal
        // came.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        pipe.set(1);
        assert_eq!(pipe.bytes, 0);
    }

    #[test]
    fn test_pipe_has_the_flags_that_program_asks_for() {
        for (nonblocking, cloexec) in [(false, false), (true, true)] {
            let (_pipe, given) = Pipe::new(nonblocking, cloexec).unwrap();
            let flags = fcntl_getfl(&given).unwrap();
            assert_eq!(flags.contains(OFlags::NONBLOCK), nonblocking);
            let flags = rustix::io::fcntl_getfd(&given).unwrap();
            assert_eq!(flags.contains(FdFlags::CLOEXEC), cloexec);
        }
    }
}
