//! Kernel TCP over loopback, for latency.
//!
//! Two threads, each bound to a processor, exchange a small message with `TCP_NODELAY` set. There
//! are two ways of waiting: [`Wait::Blocking`], as in most programs, where the kernel has to wake a
//! sleeping thread; and [`Wait::Spinning`] on a non-blocking socket, which occupies a processor as
//! Heddle's polling does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::latency::{Latency, Recorder};
use crate::pin::{self, PinError};

/// How a thread waits for the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The thread sleeps in `read`.
    Blocking,
    /// The thread loops around a `read` that does not wait.
    Spinning,
}

/// A ping-pong to measure.
#[derive(Clone, Copy, Debug)]
pub struct PingPong {
    /// How both sides wait.
    pub wait: Wait,
    /// Bytes of a message, at least 1.
    pub size: usize,
    /// The duration of the measurement, after a tenth of it to warm up.
    pub duration: Duration,
    /// The processors of client and server.
    pub cores: [usize; 2],
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A socket call failed.
    #[error("kernel TCP over loopback: {0}")]
    Io(#[from] io::Error),
    /// A thread cannot be bound to its processor.
    #[error("kernel TCP over loopback: {0}")]
    Pin(#[from] PinError),
    /// A message came back other than it was sent.
    #[error("kernel TCP over loopback: message {0} came back changed")]
    Changed(u64),
    /// A thread panicked.
    #[error("kernel TCP over loopback: a thread panicked")]
    Panicked,
}

impl PingPong {
    /// Runs the ping-pong; the latency is that of the full round trip.
    pub fn run(&self) -> Result<Latency, KernelError> {
        let PingPong { wait, size, cores: [client, server], .. } = *self;
        let size = size.max(1);
        // The sockets are connected before the threads start, so that no thread waits for a peer
        // that failed to start.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let theirs = TcpStream::connect(listener.local_addr()?)?;
        let (ours, _) = listener.accept()?;
        std::thread::scope(|s| {
            let server = s.spawn(move || {
                pin::pin_to(server)?;
                serve(ours, wait, size)
            });
            // The client gets a thread of its own, so that the caller's thread keeps its
            // processors.
            let client = s.spawn(move || {
                pin::pin_to(client)?;
                self.ping(theirs, size)
            });
            // Each thread ends when the other has closed its socket.
            let client = client.join().map_err(|_| KernelError::Panicked)?;
            let server = server.join().map_err(|_| KernelError::Panicked)?;
            server.and(client)
        })
    }

    fn ping(&self, mut s: TcpStream, size: usize) -> Result<Latency, KernelError> {
        prepare(&s, self.wait)?;
        let mut recorder = Recorder::default();
        let mut sent = vec![0; size];
        let mut got = vec![0; size];
        let start = Instant::now();
        let (warm, end) = (start + self.duration / 10, start + self.duration * 11 / 10);
        for n in 0u64.. {
            for (b, v) in sent.iter_mut().zip(n.to_le_bytes()) {
                *b = v;
            }
            let before = Instant::now();
            write_all(&mut s, &sent)?;
            read_exact(&mut s, &mut got)?;
            let now = Instant::now();
            if got != sent {
                return Err(KernelError::Changed(n));
            }
            if before >= warm {
                recorder.record(now - before);
            }
            if now >= end {
                break;
            }
        }
        Ok(recorder.latency())
    }
}

fn serve(mut s: TcpStream, wait: Wait, size: usize) -> Result<(), KernelError> {
    prepare(&s, wait)?;
    let mut message = vec![0; size];
    loop {
        match read_exact(&mut s, &mut message) {
            Ok(()) => write_all(&mut s, &message)?,
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        }
    }
}

fn prepare(s: &TcpStream, wait: Wait) -> io::Result<()> {
    s.set_nodelay(true)?;
    s.set_nonblocking(wait == Wait::Spinning)
}

fn read_exact(s: &mut TcpStream, out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        match s.read(&mut out[done..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) if is_not_yet(&e) => std::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn write_all(s: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match s.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if is_not_yet(&e) => std::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn is_not_yet(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_both_ways_of_waiting_measure_round_trips() {
        let cores = pin::first::<2>().unwrap_or_else(|_| {
            let [only] = pin::first().unwrap();
            [only, only]
        });
        for wait in [Wait::Blocking, Wait::Spinning] {
            // On a busy machine the scheduler may not run both threads within 50 ms.
            let l = (0..8)
                .map(|n| Duration::from_millis(50 << n))
                .map(|duration| PingPong { wait, size: 8, duration, cores }.run().unwrap())
                .find(|l| l.count > 0)
                .unwrap_or_else(|| panic!("no round trip in six seconds: {wait:?}"));
            assert!(l.min > 0 && l.min <= l.p50 && l.p50 <= l.max, "{wait:?}: {l:?}");
        }
    }

    #[test]
    fn test_missing_processor_is_an_error() {
        for cores in [[9999, 0], [0, 9999]] {
            let p = PingPong { wait: Wait::Blocking, size: 8, duration: Duration::ZERO, cores };
            assert!(p.run().unwrap_err().to_string().contains("9999"));
        }
    }
}
