//! A peer on a TCP socket of the kernel: it obeys TCP, whatever it sends above it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use heddle_testkit::mpa::{self, Message, Reply};
use socket2::{Domain, Socket, Type};

use crate::net::Lab;
use crate::server::{RPING, service};

/// The longest time for any step of a server that a test does not measure.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A connection of the kernel to the server.
pub struct Client {
    pub stream: TcpStream,
    /// The address and port of our end.
    pub local: SocketAddr,
    received: Vec<u8>,
}

impl Client {
    /// Makes a TCP connection from the address `from`, without sending anything on it.
    pub fn connect(lab: &Lab, from: Ipv4Addr, port: u16) -> io::Result<Client> {
        Client::connect_with(lab, from, port, |_| Ok(()))
    }

    /// Makes a TCP connection whose socket `prepare` has changed before.
    pub fn connect_with(
        lab: &Lab,
        from: Ipv4Addr,
        port: u16,
        prepare: impl FnOnce(&Socket) -> io::Result<()> + Send,
    ) -> io::Result<Client> {
        let socket = lab.peers.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            prepare(&socket)?;
            socket.bind(&SocketAddr::from((from, 0)).into())?;
            io::Result::Ok(socket)
        })?;
        socket.connect_timeout(&service(port).into(), PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let local = stream.local_addr()?;
        Ok(Client { stream, local, received: Vec::new() })
    }

    /// Wraps a connection that the server has made, to a listening socket of the peers' kernel.
    pub fn accepted(stream: TcpStream) -> io::Result<Client> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let local = stream.local_addr()?;
        Ok(Client { stream, local, received: Vec::new() })
    }

    /// Sends bytes on the stream.
    pub fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives until `take` finds something in the received bytes.
    fn wait<T>(
        &mut self,
        within: Duration,
        mut take: impl FnMut(&mut Vec<u8>) -> Option<T>,
    ) -> io::Result<T> {
        let start = Instant::now();
        let mut buf = vec![0; 64 << 10];
        loop {
            if let Some(found) = take(&mut self.received) {
                return Ok(found);
            }
            let left = within.checked_sub(start.elapsed()).filter(|d| !d.is_zero());
            let left = left.ok_or_else(|| io::Error::from(ErrorKind::TimedOut))?;
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buf) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.received.extend(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Runs the MPA start-up with this Request, and returns the Reply.
    pub fn start(&mut self, request: &[u8]) -> io::Result<Reply> {
        self.say(request)?;
        self.reply(PATIENCE)
    }

    /// Receives the Reply to a Request that was sent already.
    pub fn reply(&mut self, within: Duration) -> io::Result<Reply> {
        self.wait(within, mpa::take_reply)
    }

    /// Receives the next FPDU.
    pub fn recv(&mut self, within: Duration) -> io::Result<Message> {
        self.wait(within, mpa::take_fpdu)
    }

    /// Receives the next `n` bytes.
    pub fn take(&mut self, n: usize) -> io::Result<Vec<u8>> {
        self.wait(PATIENCE, |bytes| (bytes.len() >= n).then(|| bytes.drain(..n).collect()))
    }

    /// Receives everything until the server ends the connection. Also returns the error of that
    /// end: `None` for a FIN.
    pub fn rest(&mut self) -> (Vec<u8>, Option<ErrorKind>) {
        let mut all = Vec::new();
        let ended = self.wait(PATIENCE, |bytes| {
            all.append(bytes);
            None::<()>
        });
        let kind = ended.err().map(|e| e.kind()).filter(|k| *k != ErrorKind::UnexpectedEof);
        (all, kind)
    }

    /// Ends the connection with a RST.
    pub fn reset(self) -> io::Result<()> {
        Socket::from(self.stream).set_linger(Some(Duration::ZERO))
    }

    /// Returns true if the server ends the connection, in whatever way, within this time. Bytes
    /// received before that do not matter.
    pub fn is_ended(&mut self, within: Duration) -> bool {
        match self.wait(within, |bytes| {
            bytes.clear();
            None::<()>
        }) {
            Ok(()) => false,
            Err(e) => e.kind() != ErrorKind::TimedOut,
        }
    }
}

/// The client of an honest rping.
pub struct Rping {
    pub client: Client,
    msn: u32,
    text: Vec<u8>,
}

const SOURCE: u32 = 0x1000_0001;
const SINK: u32 = 0x2000_0002;

impl Rping {
    /// Connects, for messages of `size` bytes.
    pub fn connect(lab: &Lab, from: Ipv4Addr, size: usize) -> io::Result<Rping> {
        let mut client = Client::connect(lab, from, RPING)?;
        if client.start(&mpa::request(b""))?.rejected {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let text = (0..size).map(|n| u8::try_from(n % 251).unwrap_or(0)).collect();
        Ok(Rping { client, msn: 0, text })
    }

    /// Sends one message, receives it back and compares it. Returns the time that this took.
    pub fn ping(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        let wrong = |what: &str, m: &Message| io::Error::other(format!("{what}: {m:?}"));
        self.tell(SOURCE)?;
        let m = self.client.recv(PATIENCE)?;
        if m.opcode != mpa::READ_REQUEST {
            return Err(wrong("not a Read Request", &m));
        }
        let (sink, len, source) = mpa::parse_read_request(&m.payload);
        if (len, source) != (self.text.len(), (SOURCE, 0)) {
            return Err(wrong("not our source", &m));
        }
        self.client.say(&mpa::read_response(sink.0, sink.1, &self.text, 1400))?;
        self.client.recv(PATIENCE)?;
        self.tell(SINK)?;
        let mut back = Vec::new();
        while back.len() < self.text.len() {
            let m = self.client.recv(PATIENCE)?;
            if m.tagged != Some((SINK, back.len() as u64)) {
                return Err(wrong("not the next of a Write", &m));
            }
            back.extend(m.payload);
        }
        if back != self.text {
            return Err(io::Error::other("what came back is not what went out"));
        }
        self.client.recv(PATIENCE)?;
        Ok(start.elapsed())
    }

    fn tell(&mut self, stag: u32) -> io::Result<()> {
        self.msn += 1;
        let len = u32::try_from(self.text.len()).unwrap_or(0);
        self.client.say(&mpa::send(self.msn, &mpa::rping_info(0, stag, len)))
    }

    /// Pings repeatedly for this time. Returns the durations, sorted.
    pub fn measure(&mut self, time: Duration) -> Vec<Duration> {
        measure(time, || self.ping())
    }
}

/// Calls `ping` repeatedly for this time. Returns the durations, sorted.
pub fn measure(time: Duration, mut ping: impl FnMut() -> io::Result<Duration>) -> Vec<Duration> {
    let start = Instant::now();
    let mut all = Vec::new();
    while start.elapsed() < time {
        all.push(ping().expect("an honest client is served"));
    }
    all.sort();
    all
}

/// Returns the time until a new client from `from` is served: the client tries again when the
/// server refuses it.
///
/// # Panics
/// Panics if the server does not serve the client within `limit`.
pub fn time_to_be_served(lab: &Lab, from: Ipv4Addr, limit: Duration) -> Duration {
    let start = Instant::now();
    loop {
        let why = match Rping::connect(lab, from, 64).and_then(|mut r| r.ping()) {
            Ok(_) => return start.elapsed(),
            Err(e) => e,
        };
        assert!(start.elapsed() < limit, "a new client is not served within {limit:?}: {why}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
