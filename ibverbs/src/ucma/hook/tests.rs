//! Makes the calls as librdmacm makes them, in a process without an RNIC.

use std::time::{Duration, Instant};
use std::{ptr, thread};

use super::super::number::{EventKind, command as number};
use super::*;

/// An event channel, opened as librdmacm opens it.
struct Channel(c_int);

impl Channel {
    fn open(flags: c_int) -> Channel {
        // SAFETY: the string lives as long as the program.
        let fd = unsafe { open(c"/dev/infiniband/rdma_cm".as_ptr(), libc::O_RDWR | flags, 0o666) };
        assert!(fd >= 0, "{:?}", Errno::last());
        Channel(fd)
    }

    /// Writes a command with words at the given byte offsets; the service writes its answer to
    /// `response`.
    fn write(&self, number: u32, len: u16, fields: &[(usize, u32)]) -> Result<(), Errno> {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend(len.to_ne_bytes());
        bytes.extend(336u16.to_ne_bytes());
        bytes.resize(8 + usize::from(len), 0);
        for &(at, value) in fields {
            bytes[8 + at..12 + at].copy_from_slice(&value.to_ne_bytes());
        }
        // SAFETY: the bytes are live; the hook checks addresses in them.
        match unsafe { write(self.0, bytes.as_ptr().cast(), bytes.len()) } {
            n if n == bytes.len().cast_signed() => Ok(()),
            -1 => Err(Errno::last()),
            n => panic!("{n} bytes written"),
        }
    }

    /// Writes a command that has the address of its answer at `at`, and returns the answer.
    fn ask<const N: usize>(
        &self,
        number: u32,
        len: u16,
        at: usize,
        fields: &[(usize, u32)],
    ) -> Result<[u8; N], Errno> {
        let mut answer = [0u8; N];
        let address = answer.as_mut_ptr().expose_provenance() as u64;
        let mut all = fields.to_vec();
        #[expect(clippy::cast_possible_truncation, reason = "two halves of an address")]
        all.extend([(at, address as u32), (at + 4, (address >> 32) as u32)]);
        self.write(number, len, &all)?;
        // SAFETY: `answer` lives in this frame. The read is volatile because the call has written
        // to it without the compiler's knowledge.
        Ok(unsafe { ptr::from_ref(&answer).read_volatile() })
    }

    fn create(&self) -> u32 {
        let answer = self.ask::<4>(number::CREATE_ID, 24, 8, &[(0, 5), (16, 0x106)]);
        u32::from_ne_bytes(answer.unwrap())
    }

    fn bind(&self, id: u32, port: u16) -> Result<(), Errno> {
        let [high, low] = port.to_be_bytes();
        let family = u32::from_ne_bytes([2, 0, high, low]);
        self.write(number::BIND_IP, 40, &[(8, family), (36, id)])
    }

    /// Asks for an address. Without an RNIC this ends in an event.
    fn resolve(&self, id: u32) {
        let family = u32::from_ne_bytes([2, 0, 0, 9]);
        let host = u32::from_ne_bytes([10, 0, 0, 2]);
        self.write(number::RESOLVE_IP, 64, &[(28, family), (32, host), (56, id)]).unwrap();
    }

    /// Takes the next event and returns its id, kind and status.
    fn event(&self) -> Result<(u32, u32, i32), Errno> {
        let event = self.ask::<336>(number::GET_EVENT, 8, 0, &[])?;
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| event[at + i]));
        Ok((word(8), word(12), word(16).cast_signed()))
    }

    fn readable(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.0, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: `fd` is one live entry, and the call does not wait.
        unsafe { libc::poll(&raw mut fd, 1, 0) };
        assert_eq!(fd.revents & !libc::POLLIN, 0, "the device is never writable");
        fd.revents != 0
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel owns the descriptor.
        unsafe { close(self.0) };
    }
}

const FAILED: (u32, i32) = (EventKind::AddrError as u32, -libc::ENODEV);

/// Ports that only these tests use.
fn port(n: u16) -> u16 {
    7000 + n
}

#[test]
fn test_channel_descriptor_looks_like_the_rdma_cm_device() {
    let channel = Channel::open(libc::O_CLOEXEC);
    // SAFETY: the structure lives in this frame.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(fstat(channel.0, &raw mut stat), 0);
        stat
    };
    assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFCHR);
    // SAFETY: the calls get another file, a descriptor that is none, and live structures.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(fxstat(1, libc::STDIN_FILENO, &raw mut stat), 0);
        assert_eq!(fstat(-1, &raw mut stat), -1);
        assert_eq!(open(c"/nowhere".as_ptr(), libc::O_RDONLY, 0), -1);
        assert_eq!(Errno::last(), Errno::NOENT);
        let null = openat(libc::AT_FDCWD, c"/dev/null".as_ptr(), libc::O_WRONLY, 0);
        assert_eq!(write(null, c"x".as_ptr().cast(), 1), 1, "other files are written to");
        assert_eq!(close(null), 0);
        // Only the hook accepts writes: the descriptor itself is the reading end of a pipe.
        assert_eq!(libc::write(channel.0, c"x".as_ptr().cast(), 1), -1);
        assert_eq!(Errno::last(), Errno(libc::EBADF));
    }
}

#[test]
fn test_event_makes_the_descriptor_readable_until_it_is_taken() {
    let channel = Channel::open(libc::O_NONBLOCK);
    let id = channel.create();
    assert_eq!(channel.event(), Err(Errno::AGAIN));
    channel.resolve(id);
    channel.resolve(id);
    for _ in 0..2 {
        assert!(channel.readable());
        assert_eq!(channel.event(), Ok((id, FAILED.0, FAILED.1)));
    }
    assert!(!channel.readable());
    channel.resolve(id);
    let taken = channel.ask::<4>(number::DESTROY_ID, 16, 0, &[(8, id)]).unwrap();
    assert_eq!(u32::from_ne_bytes(taken), 2);
    assert!(!channel.readable(), "the event has gone with its id");
    assert_eq!(channel.event(), Err(Errno::AGAIN));
}

#[test]
fn test_each_of_several_threads_that_wait_gets_an_event() {
    let channel = Channel::open(0);
    let ids = [0; 8].map(|_| channel.create());
    let got = thread::scope(|scope| {
        let waiting = ids.map(|_| scope.spawn(|| channel.event()));
        ids.iter().for_each(|&id| channel.resolve(id));
        waiting.map(|thread| thread.join().unwrap().unwrap().0)
    });
    let mut got = got.to_vec();
    got.sort_unstable();
    assert_eq!(got, ids);
}

#[test]
fn test_command_is_undone_if_its_answer_cannot_reach_the_program() {
    let channel = Channel::open(libc::O_NONBLOCK);
    let id = channel.create();
    let again = || channel.write(number::CREATE_ID, 24, &[(0, 5), (8, 8), (16, 0x106)]);
    for _ in 0..3 {
        assert_eq!(again(), Err(Errno::FAULT));
    }
    channel.resolve(id);
    assert_eq!(channel.write(number::GET_EVENT, 8, &[(0, 8)]), Err(Errno::FAULT));
    assert!(channel.readable(), "the event waits as before");
    assert_eq!(channel.event(), Ok((id, FAILED.0, FAILED.1)));
    // SAFETY: the test passes an unreadable address on purpose, and the hook checks it.
    let got = unsafe { write(channel.0, ptr::without_provenance(8), 16) };
    assert_eq!((got, Errno::last()), (-1, Errno::FAULT));
}

#[test]
fn test_closed_channel_leaves_its_port_at_once() {
    let (a, b) = (Channel::open(0), Channel::open(0));
    let (first, second) = (a.create(), b.create());
    a.bind(first, port(1)).unwrap();
    assert_eq!(b.bind(second, port(1)), Err(Errno::ADDRINUSE));
    assert_eq!(b.write(number::DISCONNECT, 4, &[(0, first)]), Err(Errno::INVAL), "not its id");
    drop(a);
    assert_eq!(b.bind(second, port(1)), Ok(()));
}

#[test]
fn test_channel_lives_as_long_as_a_descriptor_of_it() {
    let (a, b) = (Channel::open(0), Channel::open(0));
    let (first, second) = (a.create(), b.create());
    a.bind(first, port(2)).unwrap();
    // SAFETY: the test owns the descriptors. The test closes the copy below without the hook.
    let copy = Channel(unsafe { libc::dup(a.0) });
    drop(a);
    assert_eq!(b.bind(second, port(2)), Err(Errno::ADDRINUSE));
    copy.resolve(first);
    assert_eq!(copy.event().unwrap().0, first);
    // SAFETY: as above; `copy` is forgotten, so the descriptor is closed only once.
    unsafe { libc::close(copy.0) };
    std::mem::forget(copy);
    let until = Instant::now() + Duration::from_secs(60);
    while b.bind(second, port(2)) == Err(Errno::ADDRINUSE) {
        assert!(Instant::now() < until, "the last close is not noticed");
        thread::yield_now();
    }
}

#[test]
fn test_id_moves_to_the_channel_that_asks_for_it() {
    let (a, b) = (Channel::open(libc::O_NONBLOCK), Channel::open(libc::O_NONBLOCK));
    let id = a.create();
    a.resolve(id);
    let from = a.0.cast_unsigned();
    b.ask::<4>(number::MIGRATE_ID, 16, 0, &[(8, id), (12, from)]).unwrap();
    assert!(!a.readable() && b.readable());
    assert_eq!((a.event(), b.event().unwrap().0), (Err(Errno::AGAIN), id));
    for (fd, want) in [(u32::MAX, Errno::NOENT), (100_000, Errno::NOENT), (0, Errno::INVAL)] {
        let got = b.ask::<4>(number::MIGRATE_ID, 16, 0, &[(8, id), (12, fd)]);
        assert_eq!(got, Err(want), "{fd}");
    }
}

#[test]
fn test_child_of_a_fork_uses_the_channel_that_its_parent_leaves_alone() {
    let channel = Channel::open(0);
    let id = channel.create();
    // SAFETY: the child runs only the code of this function, and ends without unwinding.
    match unsafe { libc::fork() } {
        0 => {
            let done = catch_unwind(AssertUnwindSafe(|| {
                channel.resolve(id);
                assert_eq!(channel.event(), Ok((id, FAILED.0, FAILED.1)));
                let new = Channel::open(0);
                new.resolve(new.create());
                assert!(new.event().is_ok());
            }));
            // SAFETY: the call ends the child.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        child => {
            let mut status = 0;
            // SAFETY: the call waits for the child above, and `status` is live.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
            channel.resolve(id);
            assert_eq!(channel.event(), Ok((id, FAILED.0, FAILED.1)), "the parent goes on");
        }
    }
}
