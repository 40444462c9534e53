//! A peer with its own TCP: it sends anything in any order, and sees every segment.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use heddle_testkit::frames::{self, ACK, FIN, Mac, PSH, Packet, Path, RST, SYN, Segment};
use heddle_testkit::mpa::{self, Message, Reply};

use crate::net::{Lab, Packets, SERVER};

const MAC: Mac = [0x02, 0x77, 0, 0, 0, 0x01];
/// The longest time for any step of the server that a test does not measure.
const PATIENCE: Duration = Duration::from_secs(15);

/// Hosts with addresses that the kernel does not own: this code answers ARP requests for them.
pub struct Host {
    packets: Packets,
    owned: HashSet<Ipv4Addr>,
    server: Mac,
    inbox: HashMap<(Ipv4Addr, u16), Vec<(Instant, Segment)>>,
    buf: Vec<u8>,
    /// Number of ARP replies received.
    pub arp_replies: usize,
    /// Number of echo replies received.
    pub echo_replies: usize,
    /// UDP datagrams received, each from its IP header on.
    pub datagrams: Vec<Vec<u8>>,
}

/// Returns the address of the `n`th host.
pub fn address(n: u16) -> Ipv4Addr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(10, 77, 1 + high, low)
}

impl Host {
    /// Makes a host that owns the addresses `owned`, and resolves the server's.
    pub fn new(lab: &Lab, owned: impl IntoIterator<Item = Ipv4Addr>) -> Host {
        let mut host = Host {
            packets: Packets::open(lab),
            owned: owned.into_iter().collect(),
            server: [0xff; 6],
            inbox: HashMap::new(),
            buf: vec![0; 1 << 16],
            arp_replies: 0,
            echo_replies: 0,
            datagrams: Vec::new(),
        };
        let start = Instant::now();
        while host.arp_replies == 0 {
            assert!(start.elapsed() < PATIENCE, "the server does not answer ARP");
            host.ask();
            host.poll(Duration::from_millis(200));
        }
        host
    }

    /// Returns the path from one of its addresses to the server.
    pub fn path(&self, from: Ipv4Addr) -> Path {
        Path { from: (MAC, from), to: (self.server, SERVER) }
    }

    /// Sends a whole Ethernet frame.
    pub fn send(&self, frame: &[u8]) {
        self.packets.send(frame);
    }

    /// Sends an ARP request for the server.
    pub fn ask(&self) {
        let from = *self.owned.iter().next().expect("an address");
        self.send(&frames::arp_request((MAC, from), SERVER));
    }

    /// Waits until the server has handled everything sent to it. The server answers in order, so
    /// one answer shows that. It answers a host only so many times a second, so the host asks again.
    pub fn sync(&mut self) {
        let (before, start) = (self.arp_replies, Instant::now());
        while self.arp_replies == before {
            assert!(start.elapsed() < Duration::from_secs(30), "no answer to an ARP request");
            self.ask();
            let again = Instant::now() + Duration::from_millis(20);
            while self.arp_replies == before && Instant::now() < again {
                self.poll(Duration::from_millis(10));
            }
        }
    }

    /// Waits for a frame, and then takes all waiting frames.
    pub fn poll(&mut self, wait: Duration) {
        let mut wait = wait;
        // Limit the number, so that a flood does not hold the thread here.
        for _ in 0..1024 {
            let Some(frame) = self.packets.recv(&mut self.buf, wait) else { return };
            wait = Duration::ZERO;
            match Packet::parse(frame) {
                Some(Packet::ArpRequest { sender, wanted }) if self.owned.contains(&wanted) => {
                    self.packets.send(&frames::arp_reply((MAC, wanted), sender));
                }
                Some(Packet::ArpReply { sender, to })
                    if sender.1 == SERVER && self.owned.contains(&to) =>
                {
                    self.server = sender.0;
                    self.arp_replies += 1;
                }
                Some(Packet::EchoReply) => self.echo_replies += 1,
                Some(Packet::Udp { bytes }) => self.datagrams.push(bytes),
                Some(Packet::Tcp { to, segment }) => {
                    if let Some(inbox) = self.inbox.get_mut(&(to, segment.dest)) {
                        inbox.push((Instant::now(), segment));
                    }
                }
                _ => {}
            }
        }
    }
}

/// The options that a connection offers in its SYN.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The window of all segments, in bytes; it is not scaled.
    pub window: u16,
    /// Largest segment that the peer accepts, in bytes.
    pub mss: u16,
    /// True if the SYN permits SACK.
    pub sack: bool,
    /// True if the SYN offers timestamps.
    pub timestamps: bool,
}

impl Default for Offer {
    fn default() -> Offer {
        Offer { window: 65_535, mss: 1460, sack: true, timestamps: false }
    }
}

/// A connection to the server.
pub struct Conn {
    ip: Ipv4Addr,
    port: u16,
    dest: u16,
    /// Our next sequence number.
    pub snd_nxt: u32,
    /// The server's next sequence number.
    pub rcv_nxt: u32,
    /// The highest sequence number that the server has acknowledged.
    pub acked: u32,
    /// The window to announce.
    pub window: u16,
    /// The start of our timestamp clock, and the server's last timestamp.
    clock: Option<(Instant, u32)>,
    /// True if the connection acknowledges data as it comes.
    pub acks: bool,
    /// Received data in order, not taken yet.
    pub received: Vec<u8>,
    /// All received segments, in the order of arrival.
    pub seen: Vec<(Instant, Segment)>,
    /// A FIN came, in order.
    pub finished: bool,
    /// A RST came.
    pub was_reset: bool,
}

impl Conn {
    /// Makes the state of a connection, without sending anything.
    pub fn new(host: &mut Host, ip: Ipv4Addr, port: u16, dest: u16, offer: Offer) -> Conn {
        host.inbox.insert((ip, port), Vec::new());
        // Let sequence numbers wrap soon, because that must work.
        let snd_nxt = 0xffff_f000_u32.wrapping_add(u32::from(port) * 7);
        Conn {
            ip,
            port,
            dest,
            snd_nxt,
            rcv_nxt: 0,
            acked: snd_nxt,
            window: offer.window,
            clock: offer.timestamps.then(|| (Instant::now(), 0)),
            acks: true,
            received: Vec::new(),
            seen: Vec::new(),
            finished: false,
            was_reset: false,
        }
    }

    /// Builds the SYN.
    pub fn syn(&self, offer: Offer) -> Segment {
        let mut options = vec![2, 4];
        options.extend(offer.mss.to_be_bytes());
        options.extend([3, 3, 0]);
        if offer.sack {
            options.extend([4, 2]);
        }
        options.extend(self.timestamps());
        Segment { options, ack: 0, ..self.segment(SYN, self.snd_nxt, &[]) }
    }

    /// If a SYN-ACK has come, takes it and acknowledges it. Returns true then.
    pub fn establish(&mut self, host: &mut Host) -> bool {
        let inbox = host.inbox.get_mut(&(self.ip, self.port)).expect("it was made with it");
        let Some(at) = inbox.iter().position(|(_, s)| s.flags & (SYN | ACK) == SYN | ACK) else {
            return false;
        };
        let (_, s) = inbox.remove(at);
        self.snd_nxt = self.snd_nxt.wrapping_add(1);
        assert_eq!(s.ack, self.snd_nxt, "the SYN-ACK acknowledges our SYN");
        (self.rcv_nxt, self.acked) = (s.seq.wrapping_add(1), s.ack);
        self.take_timestamp(&s);
        self.ack(host);
        true
    }

    /// Connects from `ip`.
    pub fn connect(host: &mut Host, ip: Ipv4Addr, port: u16, dest: u16, offer: Offer) -> Conn {
        let mut conn = Conn::new(host, ip, port, dest, offer);
        let start = Instant::now();
        loop {
            host.send(&conn.syn(offer).frame(&host.path(ip)));
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_secs(1) {
                host.poll(Duration::from_millis(50));
                if conn.establish(host) {
                    return conn;
                }
            }
            assert!(start.elapsed() < PATIENCE, "no SYN-ACK");
        }
    }

    fn timestamps(&self) -> Vec<u8> {
        let Some((start, theirs)) = self.clock else { return Vec::new() };
        let ours = u32::try_from(start.elapsed().as_millis() + 1).unwrap_or(0);
        [&[1, 1, 8, 10][..], &ours.to_be_bytes(), &theirs.to_be_bytes()].concat()
    }

    fn take_timestamp(&mut self, s: &Segment) {
        if let (Some((_, theirs)), Some(body)) = (&mut self.clock, s.option(8)) {
            *theirs = u32::from_be_bytes(body[..4].try_into().expect("eight bytes"));
        }
    }

    /// Builds a segment of this connection.
    pub fn segment(&self, flags: u8, seq: u32, payload: &[u8]) -> Segment {
        Segment {
            source: self.port,
            dest: self.dest,
            seq,
            ack: self.rcv_nxt,
            flags,
            window: self.window,
            options: self.timestamps(),
            payload: payload.to_vec(),
        }
    }

    /// Sends a segment made by hand.
    pub fn put(&self, host: &Host, segment: &Segment) {
        host.send(&segment.frame(&host.path(self.ip)));
    }

    /// Sends `payload` as the next bytes of the stream, in segments of up to 1,400 bytes.
    pub fn send(&mut self, host: &Host, payload: &[u8]) {
        for part in payload.chunks(1400) {
            self.put(host, &self.segment(PSH | ACK, self.snd_nxt, part));
            self.snd_nxt = self.snd_nxt.wrapping_add(u32::try_from(part.len()).unwrap_or(0));
        }
    }

    /// Sends `payload` `ahead` bytes after the next byte of the stream, which itself does not move.
    pub fn send_ahead(&self, host: &Host, ahead: u32, payload: &[u8]) {
        self.put(host, &self.segment(ACK, self.snd_nxt.wrapping_add(ahead), payload));
    }

    /// Acknowledges everything received in order.
    pub fn ack(&self, host: &Host) {
        self.put(host, &self.segment(ACK, self.snd_nxt, &[]));
    }

    /// Acknowledges everything received in order, and reports `blocks` as received out of order.
    pub fn sack(&self, host: &Host, blocks: &[(u32, u32)]) {
        let mut s = self.segment(ACK, self.snd_nxt, &[]);
        s.options.extend([1, 1, 5, u8::try_from(2 + 8 * blocks.len()).unwrap_or(2)]);
        for (left, right) in blocks {
            s.options.extend(left.to_be_bytes());
            s.options.extend(right.to_be_bytes());
        }
        self.put(host, &s);
    }

    /// Ends the connection with a RST.
    pub fn reset(self, host: &mut Host) {
        self.put(host, &self.segment(RST | ACK, self.snd_nxt, &[]));
        self.forget(host);
    }

    /// Discards everything that still arrives for the connection.
    pub fn forget(self, host: &mut Host) {
        host.inbox.remove(&(self.ip, self.port));
    }

    /// Handles the segments that have arrived.
    pub fn absorb(&mut self, host: &mut Host) {
        let inbox = host.inbox.get_mut(&(self.ip, self.port)).expect("it was made with it");
        for (at, s) in std::mem::take(inbox) {
            self.was_reset |= s.flags & RST != 0;
            if s.flags & ACK != 0 && s.ack.wrapping_sub(self.acked) < 1 << 31 {
                self.acked = s.ack;
            }
            let old = self.rcv_nxt.wrapping_sub(s.seq) as usize;
            let news = old <= s.payload.len() && !self.finished;
            if news {
                self.received.extend(&s.payload[old..]);
                let n = u32::try_from(s.payload.len() - old).unwrap_or(0);
                self.rcv_nxt = self.rcv_nxt.wrapping_add(n);
                if s.flags & FIN != 0 {
                    self.finished = true;
                    self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
                }
                self.take_timestamp(&s);
            }
            let asks = !s.payload.is_empty() || s.flags & FIN != 0;
            self.seen.push((at, s));
            if asks && self.acks {
                self.ack(host);
            }
        }
    }

    /// Handles segments until `done` returns something, for `within` at most.
    pub fn wait<T>(
        &mut self,
        host: &mut Host,
        within: Duration,
        mut done: impl FnMut(&mut Conn) -> Option<T>,
    ) -> Option<T> {
        let start = Instant::now();
        loop {
            self.absorb(host);
            let found = done(self);
            if found.is_some() || start.elapsed() >= within {
                return found;
            }
            host.poll(Duration::from_millis(5));
        }
    }

    /// Handles segments for a time.
    pub fn idle(&mut self, host: &mut Host, time: Duration) {
        self.wait(host, time, |_| None::<()>);
    }

    /// Runs the MPA start-up with this Request, and returns the Reply.
    pub fn start(&mut self, host: &mut Host, request: &[u8]) -> Reply {
        self.send(host, request);
        let reply = self.wait(host, PATIENCE, |c| mpa::take_reply(&mut c.received));
        reply.expect("an MPA Reply")
    }

    /// Receives the next FPDU.
    pub fn recv(&mut self, host: &mut Host) -> Message {
        let message = self.wait(host, PATIENCE, |c| mpa::take_fpdu(&mut c.received));
        message.expect("an FPDU")
    }

    /// Plays a client of rping up to the announcement of its sink. When this returns, the server's
    /// next messages are a Write of `len` bytes and a Send.
    pub fn ask_for_a_write(&mut self, host: &mut Host, len: u32, window: u16) {
        assert!(!self.start(host, &mpa::request(b"")).rejected);
        self.send(host, &mpa::send(1, &mpa::rping_info(0, 1, len)));
        let (sink, n, _) = mpa::parse_read_request(&self.recv(host).payload);
        self.send(host, &mpa::read_response(sink.0, sink.1, &vec![7; n], 1380));
        self.recv(host);
        self.window = window;
        self.send(host, &mpa::send(2, &mpa::rping_info(0, 2, len)));
    }
}
