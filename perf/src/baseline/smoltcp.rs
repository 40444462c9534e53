//! smoltcp's TCP, for throughput and round trips.
//!
//! A single thread runs two of smoltcp's interfaces, and a queue of frames in memory is the link
//! between them, as `heddle bench --inline` does with Heddle's own stack. Frames have at most 1,514
//! bytes, both sides compute and verify checksums, and there is no other integrity check (Heddle
//! adds a CRC-32C to that). Nagle's algorithm and delayed acknowledgements have the fastest
//! settings.
//!
//! Sending copies once, from the program's buffer into the socket's buffer, as smoltcp's interface
//! requires. Receiving copies out of the socket's buffer ([`Receive::Copy`]) as most programs do,
//! or reads the bytes in place ([`Receive::InPlace`]).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant as WallClock};

use crate::latency::{Latency, Recorder};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

/// How the receiving program reads the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// The program copies the bytes into its own buffer.
    Copy,
    /// The program reads the bytes in place, in the socket's buffer.
    InPlace,
}

/// A bulk transfer to measure.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// The size in bytes of each of the four socket buffers.
    pub buffer: usize,
    /// The number of frames that the link holds in one direction.
    pub link: usize,
    /// The delay of acknowledgements; `None` sends them at once.
    pub ack_delay: Option<Duration>,
    /// How the program reads received bytes.
    pub receive: Receive,
    /// The most bytes that the sending program writes at a time.
    pub message: usize,
    /// The duration of the measurement, after a tenth of it to warm up.
    pub duration: Duration,
}

impl Bulk {
    /// A transfer with MTU 1500 and the given buffers, for `duration`.
    pub fn new(buffer: usize, receive: Receive, duration: Duration) -> Bulk {
        let (mtu, link, message) = (1500, 256, PATTERN);
        Bulk { mtu, buffer, link, ack_delay: None, receive, message, duration }
    }

    /// Finds the fastest settings for packets of `mtu` bytes and writes of `message` bytes, by trials
    /// of that duration.
    pub fn fastest(mtu: usize, message: usize, trial: Duration) -> Result<Bulk, SmoltcpError> {
        let mut best: Option<(f64, Bulk)> = None;
        for buffer in [64, 128, 256, 512, 1024, 4096] {
            for link in [16, 64, 256] {
                for receive in [Receive::Copy, Receive::InPlace] {
                    let bulk =
                        Bulk { mtu, link, message, ..Bulk::new(buffer << 10, receive, trial) };
                    let speed = bulk.run()?.gbit_per_s();
                    if best.is_none_or(|(b, _)| speed > b) {
                        best = Some((speed, bulk));
                    }
                }
            }
        }
        best.map(|(_, bulk)| bulk).ok_or(SmoltcpError::NotConnected)
    }
}

/// The result of a bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BulkResult {
    /// Bytes that the receiving program read.
    pub bytes: u64,
    /// The time of the transfer in seconds.
    pub seconds: f64,
}

impl BulkResult {
    /// Returns the bandwidth in units of 10^9 bits of payload per second.
    pub fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.seconds
    }
}

/// Why there is no figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SmoltcpError {
    /// The connection was not established.
    #[error("smoltcp: no connection")]
    NotConnected,
    /// No byte arrived for a second.
    #[error("smoltcp: the transfer stopped after {0} bytes")]
    Stopped(u64),
    /// A received byte differs from the byte that was sent.
    #[error("smoltcp: wrong byte at {0}")]
    Changed(u64),
}

/// The length of the pattern that the sender repeats. The length is no multiple of the segment or
/// buffer sizes, so that a misplaced segment shows; the first byte of the pattern differs from the
/// last.
const PATTERN: usize = 65_521;

/// The number of rounds between looks at the wall clock for the end of the run.
const ROUNDS: u32 = 64;

impl Bulk {
    /// Runs the transfer.
    pub fn run(&self) -> Result<BulkResult, SmoltcpError> {
        let mut pair = Pair::new(self);
        pair.connect()?;
        let mut flow = Flow::new(self.receive, self.message);
        flow.run(&mut pair, self.duration / 10)?;
        flow.run(&mut pair, self.duration)
    }
}

/// A ping-pong to measure, on one thread.
#[derive(Clone, Copy, Debug)]
pub struct PingPong {
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// Bytes of a message, at least 1.
    pub size: usize,
    /// The duration of the measurement, after a tenth of it to warm up.
    pub duration: Duration,
}

impl PingPong {
    /// Runs the ping-pong; the latency is that of the full round trip.
    pub fn run(&self) -> Result<Latency, SmoltcpError> {
        let size = self.size.max(1);
        let buffer = (2 * size).max(4096);
        let bulk = Bulk { mtu: self.mtu, ..Bulk::new(buffer, Receive::Copy, self.duration) };
        let mut pair = Pair::new(&bulk);
        pair.connect()?;
        let mut recorder = Recorder::default();
        let mut message = vec![0; size];
        let mut got = vec![0; size];
        let start = WallClock::now();
        let (warm, end) = (start + self.duration / 10, start + self.duration * 11 / 10);
        for n in 0u64.. {
            for (b, v) in message.iter_mut().zip(n.to_le_bytes()) {
                *b = v;
            }
            let before = WallClock::now();
            for from in [0, 1] {
                pair.pass(from, &message, &mut got)?;
                if got != message {
                    return Err(SmoltcpError::Changed(n));
                }
            }
            let now = WallClock::now();
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

/// Two hosts and the link between them.
struct Pair {
    hosts: [Host; 2],
    link: Link,
    start: WallClock,
}

struct Host {
    iface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl Pair {
    fn new(bulk: &Bulk) -> Pair {
        let mut link = Link::new(bulk.mtu + 14, bulk.link);
        let hosts = [0, 1].map(|side| Host::new(bulk, &mut link.end(side), side));
        Pair { hosts, link, start: WallClock::now() }
    }

    fn connect(&mut self) -> Result<(), SmoltcpError> {
        let [client, server] = &mut self.hosts;
        let listening = server.socket().listen(PORT);
        let socket = client.sockets.get_mut::<tcp::Socket<'_>>(client.handle);
        let connecting = socket.connect(client.iface.context(), (address(1), PORT), 49_152);
        if listening.is_err() || connecting.is_err() {
            return Err(SmoltcpError::NotConnected);
        }
        let until = WallClock::now() + Duration::from_secs(5);
        while WallClock::now() < until {
            self.poll();
            if self.hosts.iter_mut().all(|h| h.socket().may_send()) {
                return Ok(());
            }
        }
        Err(SmoltcpError::NotConnected)
    }

    /// Brings a message from one side to the other.
    fn pass(&mut self, from: usize, message: &[u8], got: &mut [u8]) -> Result<(), SmoltcpError> {
        let start = WallClock::now();
        let (mut sent, mut received) = (0, 0);
        for turn in 1u32.. {
            if sent < message.len() {
                sent += self.hosts[from].socket().send_slice(&message[sent..]).unwrap_or(0);
            }
            self.poll();
            let socket = self.hosts[1 - from].socket();
            if socket.can_recv() {
                received += socket.recv_slice(&mut got[received..]).unwrap_or(0);
            }
            if received == got.len() {
                break;
            }
            if turn % ROUNDS == 0 && start.elapsed() > Duration::from_secs(1) {
                return Err(SmoltcpError::Stopped(received as u64));
            }
        }
        Ok(())
    }

    fn poll(&mut self) {
        let now = Instant::from_micros(
            i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX),
        );
        for (side, host) in self.hosts.iter_mut().enumerate() {
            host.iface.poll(now, &mut self.link.end(side), &mut host.sockets);
        }
    }
}

const PORT: u16 = 7471;

fn address(side: usize) -> IpAddress {
    IpAddress::v4(10, 0, 0, if side == 0 { 1 } else { 2 })
}

impl Host {
    fn new(bulk: &Bulk, end: &mut LinkEnd<'_>, side: usize) -> Host {
        let mac = EthernetAddress([2, 0, 0, 0, 0, if side == 0 { 1 } else { 2 }]);
        let config = Config::new(HardwareAddress::Ethernet(mac));
        let mut iface = Interface::new(config, end, Instant::ZERO);
        iface.update_ip_addrs(|a| {
            // The list has room for at least one address.
            let _ = a.push(IpCidr::new(address(side), 24));
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; bulk.buffer]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(bulk.ack_delay.map(Into::into));
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Host { iface, sockets, handle }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }
}

/// The two programs: the sender and the receiver.
struct Flow {
    receive: Receive,
    message: usize,
    /// [`PATTERN`] twice, so that a run of that many bytes can start at every offset.
    pattern: Vec<u8>,
    sent: u64,
    received: u64,
    into: Vec<u8>,
}

impl Flow {
    fn new(receive: Receive, message: usize) -> Flow {
        let mut x = 0x2545_f491u32;
        let once: Vec<u8> = core::iter::repeat_with(|| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            x.to_be_bytes()[0]
        })
        .take(PATTERN)
        .collect();
        let into = vec![0; PATTERN];
        let message = message.clamp(1, PATTERN);
        Flow { receive, message, pattern: once.repeat(2), sent: 0, received: 0, into }
    }

    fn run(&mut self, pair: &mut Pair, duration: Duration) -> Result<BulkResult, SmoltcpError> {
        let start = WallClock::now();
        let first = self.received;
        let mut last = (start, first);
        loop {
            for _ in 0..ROUNDS {
                self.send(pair.hosts[0].socket());
                pair.poll();
                self.receive(pair.hosts[1].socket())?;
            }
            let now = WallClock::now();
            if now - start >= duration {
                let (bytes, seconds) = (self.received - first, (now - start).as_secs_f64());
                return Ok(BulkResult { bytes, seconds });
            }
            if self.received > last.1 {
                last = (now, self.received);
            } else if now - last.0 > Duration::from_secs(1) {
                return Err(SmoltcpError::Stopped(self.received));
            }
        }
    }

    fn send(&mut self, socket: &mut tcp::Socket<'_>) {
        while socket.can_send() {
            let at = place(self.sent);
            match socket.send_slice(&self.pattern[at..at + self.message]) {
                Ok(n) if n > 0 => self.sent += n as u64,
                _ => break,
            }
        }
    }

    fn receive(&mut self, socket: &mut tcp::Socket<'_>) -> Result<(), SmoltcpError> {
        while socket.can_recv() {
            let at = self.received;
            let pattern = &self.pattern[place(at)..];
            let got = match self.receive {
                Receive::Copy => match socket.recv_slice(&mut self.into) {
                    Ok(n) => Some((n, is_right(&self.into[..n], pattern))),
                    Err(_) => None,
                },
                Receive::InPlace => socket
                    .recv(|b| {
                        let n = b.len().min(PATTERN);
                        (n, (n, is_right(&b[..n], pattern)))
                    })
                    .ok(),
            };
            match got {
                Some((n, true)) if n > 0 => self.received += n as u64,
                Some((n, false)) if n > 0 => return Err(SmoltcpError::Changed(at)),
                _ => break,
            }
        }
        Ok(())
    }
}

fn place(at: u64) -> usize {
    usize::try_from(at % PATTERN as u64).unwrap_or(0)
}

/// Compares a few bytes at both ends: enough to see a lost, repeated or misplaced segment, and
/// too little to cost time.
fn is_right(got: &[u8], pattern: &[u8]) -> bool {
    let n = got.len();
    let k = n.min(8);
    got[..k] == pattern[..k] && got[n - k..] == pattern[n - k..n]
}

/// A link: for each side the frames on their way to that side, and empty frames for reuse.
struct Link {
    to: [VecDeque<Vec<u8>>; 2],
    spare: RefCell<Vec<Vec<u8>>>,
    frame: usize,
    limit: usize,
}

impl Link {
    fn new(frame: usize, limit: usize) -> Link {
        let limit = limit.max(1);
        let to = [VecDeque::with_capacity(limit), VecDeque::with_capacity(limit)];
        Link { to, spare: RefCell::default(), frame, limit }
    }

    fn end(&mut self, side: usize) -> LinkEnd<'_> {
        LinkEnd { link: self, side }
    }
}

/// A link as one side sees it.
struct LinkEnd<'a> {
    link: &'a mut Link,
    side: usize,
}

impl Device for LinkEnd<'_> {
    type RxToken<'t>
        = Received<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Transmit<'t>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Transmit<'_>)> {
        let Link { to: [a, b], spare, limit, .. } = &mut *self.link;
        let (from, to) = if self.side == 0 { (a, b) } else { (b, a) };
        if to.len() >= *limit {
            return None;
        }
        let bytes = from.pop_front()?;
        Some((Received { bytes, spare }, Transmit { to, spare }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Transmit<'_>> {
        let Link { to, spare, limit, .. } = &mut *self.link;
        let to = &mut to[1 - self.side];
        (to.len() < *limit).then_some(Transmit { to, spare })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        // Checksums keep smoltcp's default: the stacks compute and verify them.
        let mut c = DeviceCapabilities::default();
        c.medium = Medium::Ethernet;
        c.max_transmission_unit = self.link.frame;
        c
    }
}

struct Received<'a> {
    bytes: Vec<u8>,
    spare: &'a RefCell<Vec<Vec<u8>>>,
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let r = f(&self.bytes);
        self.spare.borrow_mut().push(self.bytes);
        r
    }
}

struct Transmit<'a> {
    to: &'a mut VecDeque<Vec<u8>>,
    spare: &'a RefCell<Vec<Vec<u8>>>,
}

impl TxToken for Transmit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = self.spare.borrow_mut().pop().unwrap_or_default();
        bytes.resize(len, 0);
        let r = f(&mut bytes);
        self.to.push_back(bytes);
        r
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_bulk_moves_bytes_both_ways_of_receiving() {
        for receive in [Receive::Copy, Receive::InPlace] {
            let r = Bulk::new(1 << 16, receive, Duration::from_millis(30)).run().unwrap();
            assert!(r.bytes > 1 << 20 && r.gbit_per_s() > 0.0, "{receive:?}: {r:?}");
        }
    }

    #[test]
    fn test_settings_are_tried_for_short_writes_too() {
        let best = Bulk::fastest(1500, 8, Duration::from_millis(1)).unwrap();
        assert_eq!((best.mtu, best.message), (1500, 8));
        assert!(Bulk { duration: Duration::from_millis(20), ..best }.run().unwrap().bytes > 0);
    }

    #[test]
    fn test_ping_pong_measures_messages_of_one_and_of_several_segments() {
        for size in [0, 8, 1460, 1461, 10_000] {
            let l =
                PingPong { mtu: 1500, size, duration: Duration::from_millis(50) }.run().unwrap();
            assert!(l.count > 0 && l.min > 0 && l.min <= l.p50, "{size}: {l:?}");
        }
    }

    #[test]
    fn test_checksums_are_verified_and_frames_are_full_sized() {
        let mut pair = Pair::new(&Bulk::new(1 << 16, Receive::Copy, Duration::ZERO));
        pair.connect().unwrap();
        let mut flow = Flow::new(Receive::Copy, PATTERN);
        flow.send(pair.hosts[0].socket());
        let now = Instant::from_secs(1);
        let client = &mut pair.hosts[0];
        client.iface.poll(now, &mut pair.link.end(0), &mut client.sockets);
        assert_eq!(pair.link.to[1].iter().map(Vec::len).max(), Some(1514));
        for frame in &mut pair.link.to[1] {
            let at = frame.len().min(1001) - 1;
            frame[at] ^= 1;
        }
        let server = &mut pair.hosts[1];
        server.iface.poll(now, &mut pair.link.end(1), &mut server.sockets);
        assert!(pair.link.to[1].is_empty() && !server.socket().can_recv(), "all were dropped");
    }

    #[test]
    fn test_wrong_byte_at_either_end_of_segment_is_detected() {
        let f = Flow::new(Receive::Copy, PATTERN);
        let good = f.pattern[7..1467].to_vec();
        assert!(is_right(&good, &f.pattern[7..]));
        for at in [0, 7, 1452, 1459] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(!is_right(&bad, &f.pattern[7..]), "{at}");
        }
        assert!(!is_right(&good, &f.pattern[8..]), "a place off by one");
    }
}
