//! Linux's TCP: a host in a network namespace of its own, behind a tap device.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::Duration;

use heddle_testkit::ip::Ip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CpuSet;
use socket2::{Domain, Protocol, Socket, Type};

use crate::flow::{PEER_PORT, PORT, byte_at};
use crate::host_under_test::{App, HostUnderTest};
use crate::tap::Tap;
use crate::{MAC, PEER_MAC, address};

const IFACE: &str = "tap0";
/// The longest time that Linux takes for the frames of a step.
const PATIENCE: Duration = Duration::from_secs(2);

/// Settings of the kernel: those that make its answers independent of time and of other answers.
/// A kernel may lack those that are optional.
const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/tcp_invalid_ratelimit", "0"),
    ("ipv4/tcp_challenge_ack_limit", "2147483647"),
    ("ipv4/tcp_early_retrans", "0"),
    ("ipv4/tcp_autocorking", "0"),
    ("ipv4/tcp_no_metrics_save", "1"),
    ("ipv4/tcp_syncookies", "0"),
    ("ipv4/tcp_max_syn_backlog", "8192"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/conf/all/accept_ra", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
];

/// The kernel's host.
pub struct Linux {
    tap: Tap,
    listener: Option<Socket>,
    echo: u16,
    /// The connection of the current seed.
    socket: Option<Socket>,
    accepted: bool,
    written: u64,
    app: App,
    ipv6: bool,
    peer_port: u16,
}

fn run(line: &str) -> io::Result<()> {
    let mut words = line.split_whitespace();
    let out = Command::new(words.next().unwrap_or_default()).args(words).output()?;
    if out.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    Err(io::Error::other(format!("{line}: {why}")))
}

impl Linux {
    /// Moves this thread to a namespace of its own, and makes the host there.
    ///
    /// # Errors
    /// Fails without root, or without tap devices.
    pub fn new() -> io::Result<Linux> {
        // SAFETY: the call takes only flags, and changes only this thread.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The kernel handles frames in order if all come from one processor.
        let here = rustix::thread::sched_getcpu();
        let mut cpus = CpuSet::new();
        cpus.set(here);
        rustix::thread::sched_setaffinity(None, &cpus)?;
        for (name, value) in SETTINGS {
            fs::write(format!("/proc/sys/net/{name}"), value)
                .map_err(|e| io::Error::other(format!("{name}: {e}")))?;
        }
        let tap = Tap::new(IFACE)?;
        let mac = |mac: [u8; 6]| mac.map(|b| format!("{b:02x}")).join(":");
        let (ours, peer) = (mac(MAC), mac(PEER_MAC));
        run(&format!("ip link set {IFACE} address {ours} mtu 1500 up"))?;
        for (ipv6, net) in [(false, "10.0.0.0/24"), (true, "fd00::/64")] {
            let bits = if ipv6 { "64 nodad" } else { "24" };
            let bits = format!("{bits} noprefixroute");
            run(&format!("ip addr add {}/{bits} dev {IFACE}", address(ipv6, 1)))?;
            let there = address(ipv6, 2);
            run(&format!("ip neigh replace {there} lladdr {peer} dev {IFACE} nud permanent"))?;
            // Every segment is acknowledged at once.
            run(&format!("ip route add {net} dev {IFACE} quickack 1"))?;
        }
        let app = App::default();
        let mut linux = Linux {
            tap,
            listener: None,
            echo: 0,
            socket: None,
            accepted: false,
            written: 0,
            app,
            ipv6: false,
            peer_port: PEER_PORT,
        };
        linux.collect()?;
        Ok(linux)
    }

    /// Returns the frames that the kernel has sent, all that earlier frames caused among them: an
    /// echo request is the last frame that the kernel handles.
    fn collect(&mut self) -> io::Result<Vec<Vec<u8>>> {
        self.echo = self.echo.wrapping_add(1);
        let mut request = vec![8, 0, 0, 0, 0x44, 0x44];
        request.extend(self.echo.to_be_bytes());
        let from = (PEER_MAC, address(false, 2));
        let request = Ip::new(from, (MAC, address(false, 1))).icmp_message(request);
        if !self.tap.write(&request) {
            return Err(io::Error::other("the tap device takes no frame"));
        }
        let mut frames = Vec::new();
        let mut buf = vec![0; 2048];
        loop {
            let Some(frame) = self.tap.read(&mut buf)? else {
                self.wait()?;
                continue;
            };
            let reply = frame.len() >= 42 && frame[12..14] == [8, 0] && frame[23] == 1;
            if reply && frame[34] == 0 && frame[40..42] == self.echo.to_be_bytes() {
                return Ok(frames);
            }
            frames.push(frame.to_vec());
        }
    }

    fn wait(&self) -> io::Result<()> {
        let time = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.tap, PollFlags::IN)];
        match poll(&mut fds, Some(&time)) {
            Ok(0) => Err(io::Error::other("the kernel answers no echo request")),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Lets the application look at its connection, as after a wake-up.
    fn look(&mut self) -> io::Result<()> {
        if self.socket.is_none()
            && let Some(listener) = &self.listener
        {
            match listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(true)?;
                    socket.set_tcp_nodelay(true)?;
                    socket.set_out_of_band_inline(true)?;
                    self.socket = Some(socket);
                    self.app.open = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The connection was reset before it was taken.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => return Err(e),
            }
        }
        let Some(socket) = &self.socket else { return Ok(()) };
        let state = state(socket)?;
        if !self.accepted && state != "SynSent" && state != "Over" && state != "SynReceived" {
            self.app.open = true;
        }
        if socket.take_error()?.is_some() {
            self.app.failed = true;
        }
        let mut buf = [0; 4096];
        loop {
            match (&*socket).read(&mut buf) {
                Ok(0) => {
                    self.app.ended |= self.app.open && !self.app.failed;
                    break;
                }
                Ok(n) => {
                    let right = (self.app.delivered..)
                        .zip(&buf[..n])
                        .all(|(at, byte)| byte_at(false, at) == *byte);
                    if !right {
                        return Err(io::Error::other("the kernel delivers wrong bytes"));
                    }
                    self.app.delivered += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.app.failed = true;
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Returns the state of a connection by Heddle's names; "Over" once both directions are done.
fn state(socket: &Socket) -> io::Result<&'static str> {
    let mut info = [0u8; 8];
    let mut len: libc::socklen_t = 8;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has as many, and the number
    // to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(match info[0] {
        1 => "Established",
        2 => "SynSent",
        3 => "SynReceived",
        4 => "FinWait1",
        5 => "FinWait2",
        8 => "CloseWait",
        9 => "LastAck",
        11 => "Closing",
        _ => "Over",
    })
}

impl HostUnderTest for Linux {
    fn begin(&mut self, ipv6: bool, accepted: bool, peer_port: u16) -> io::Result<Vec<Vec<u8>>> {
        self.socket = None;
        (self.ipv6, self.accepted, self.peer_port) = (ipv6, accepted, peer_port);
        (self.written, self.app) = (0, App::default());
        let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_out_of_band_inline(true)?;
        socket.bind(&SocketAddr::new(address(ipv6, 1), PORT).into())?;
        if accepted {
            socket.listen(64)?;
            self.listener = Some(socket);
        } else {
            let to: IpAddr = address(ipv6, 2);
            match socket.connect(&SocketAddr::new(to, peer_port).into()) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
                Err(e) => return Err(e),
            }
            self.socket = Some(socket);
        }
        self.collect()
    }

    fn receive(&mut self, frame: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        if !self.tap.write(frame) {
            return Err(io::Error::other("the tap device takes no frame"));
        }
        let mut frames = self.collect()?;
        self.look()?;
        frames.extend(self.collect()?);
        Ok(frames)
    }

    fn write(&mut self, len: u32) -> io::Result<Vec<Vec<u8>>> {
        if let Some(socket) = &self.socket {
            let end = self.written + u64::from(len);
            let bytes: Vec<u8> = (self.written..end).map(|at| byte_at(true, at)).collect();
            match (&*socket).write(&bytes) {
                Ok(n) => self.written += n as u64,
                Err(_) => self.app.failed = true,
            }
        }
        self.collect()
    }

    fn close(&mut self) -> io::Result<Vec<Vec<u8>>> {
        if let Some(socket) = &self.socket {
            // The connection may be over.
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
        self.collect()
    }

    fn abort(&mut self) -> io::Result<Vec<Vec<u8>>> {
        if let Some(socket) = self.socket.take() {
            socket.set_linger(Some(Duration::ZERO))?;
            drop(socket);
            self.app.failed = true;
        }
        self.collect()
    }

    fn app(&mut self) -> io::Result<App> {
        self.look()?;
        let state = match &self.socket {
            Some(socket) => state(socket)?,
            None => "Over",
        };
        Ok(App { state: if self.app.open { state } else { "" }, ..self.app })
    }

    fn end(&mut self) -> io::Result<()> {
        if let Some(socket) = self.socket.take() {
            socket.set_linger(Some(Duration::ZERO))?;
        }
        self.listener = None;
        self.collect()?;
        Ok(())
    }
}
