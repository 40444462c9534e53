//! The wire between the program and its peers: a veth pair, each end in a network namespace of its
//! own.
//!
//! ```text
//!   namespace of the server                       namespace of the peers
//!   heddle serve --(net_af_packet)-- srv =veth= peer --+-- the kernel: 10.77.0.2, 10.77.0.3
//!   10.77.0.1/16                                       +-- AF_PACKET: any other 10.77.x.y
//! ```
//!
//! The namespaces have no names, and live as long as this process holds their files, so
//! nothing is left over however a test ends.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// The address of the server.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The addresses of the peers' kernel. Tests of one or two hosts take the first two.
pub const LINUX: [Ipv4Addr; 6] = [
    Ipv4Addr::new(10, 77, 0, 2),
    Ipv4Addr::new(10, 77, 0, 3),
    Ipv4Addr::new(10, 77, 0, 4),
    Ipv4Addr::new(10, 77, 0, 5),
    Ipv4Addr::new(10, 77, 0, 6),
    Ipv4Addr::new(10, 77, 0, 7),
];
/// The interface of the server, in its namespace.
pub const SERVER_IFACE: &str = "srv";
/// The interface of the peers, in their namespace.
pub const PEER_IFACE: &str = "peer";

/// A network namespace without a name.
pub struct Namespace(File);

impl Namespace {
    fn new() -> io::Result<Namespace> {
        let make = || {
            // SAFETY: the call takes only flags, and changes only this thread, which ends right
            // after it.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net").map(Namespace)
        };
        thread::spawn(make).join().expect("it does not panic")
    }

    /// Runs `f` in the namespace, on a thread of its own. Sockets and processes made there stay
    /// there.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            // SAFETY: the file is open, and `new` made it as that of a network namespace.
            let entered = unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "setns: {}", io::Error::last_os_error());
            f()
        };
        let done = thread::scope(|s| s.spawn(inside).join());
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs a program to its end, which must be a success.
    fn command(&self, line: &str) {
        let mut words = line.split_whitespace();
        let mut c = Command::new(words.next().expect("a program"));
        let out = self.run(|| c.args(words).output());
        let out =
            out.unwrap_or_else(|e| panic!("{line}: {e} (Debian: apt install iproute2 ethtool)"));
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// Returns a path under which other programs find the namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Both namespaces with the wire between them, and the right to use the processors.
pub struct Lab {
    /// The namespace of the server.
    pub server: Namespace,
    /// The namespace of the peers.
    pub peers: Namespace,
    /// Bytes of an IP packet.
    pub mtu: u16,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    /// Makes a wire whose packets have up to `mtu` bytes.
    ///
    /// # Panics
    /// Panics if this process may not make a wire: such tests must fail by name rather than pass
    /// unseen.
    pub fn new(mtu: u16) -> Lab {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = || {
            Namespace::new().unwrap_or_else(|e| {
                panic!(
                    "no network namespace: {e} (these tests need root: CAP_NET_ADMIN, CAP_NET_RAW)"
                )
            })
        };
        let lab = Lab { server: namespace(), peers: namespace(), mtu, _turn: turn };
        for ns in [&lab.server, &lab.peers] {
            let quiet = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
            // A kernel without IPv6 has no such file, and nothing to silence.
            let _ = ns.run(|| std::fs::write(quiet, "1"));
        }
        let there = lab.peers.path();
        lab.server.command(&format!(
            "ip link add {SERVER_IFACE} mtu {mtu} type veth peer name {PEER_IFACE} mtu {mtu} netns {there}"
        ));
        for (ns, dev) in [(&lab.server, SERVER_IFACE), (&lab.peers, PEER_IFACE)] {
            // Turn off offloads, so that the other end receives exactly the frames that were sent,
            // with their checksums.
            ns.command(&format!(
                "ethtool -K {dev} tx off tso off gso off gro off rxvlan off txvlan off"
            ));
            ns.command(&format!("ip link set {dev} up"));
        }
        for ip in LINUX {
            lab.peers.command(&format!("ip addr add {ip}/16 dev {PEER_IFACE}"));
        }
        lab
    }

    /// Gives the server its loopback interface, by which its own host queries it.
    pub fn loopback(&self) {
        self.server.command("ip link set lo up");
    }

    /// Deletes the wire.
    pub fn delete(&self) {
        self.server.command(&format!("ip link del {SERVER_IFACE}"));
    }
}

/// A socket for whole Ethernet frames of an interface.
pub struct Packets(Socket);

impl Packets {
    /// Opens a socket that sees frames arriving at the peers' interface, but not frames sent from
    /// it.
    pub fn open(lab: &Lab) -> Packets {
        Packets::at(&lab.peers, PEER_IFACE)
    }

    /// As [`open`](Self::open), at any interface.
    pub fn at(namespace: &Namespace, interface: &str) -> Packets {
        namespace.run(|| {
            let all = u16::try_from(libc::ETH_P_ALL).expect("a protocol").to_be();
            let socket =
                Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(all))))
                    .expect("a packet socket (needs root: CAP_NET_RAW)");
            let name = std::ffi::CString::new(interface).expect("no zero in it");
            // SAFETY: the name ends in a zero byte.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            let fill = |addr: *mut SockAddrStorage, len: *mut libc::socklen_t| {
                let ll = addr.cast::<libc::sockaddr_ll>();
                // SAFETY: the storage is zeroed, larger than a sockaddr_ll, and aligned for any
                // address.
                unsafe {
                    (*ll).sll_family = u16::try_from(libc::AF_PACKET).expect("a family");
                    (*ll).sll_protocol = all;
                    (*ll).sll_ifindex = i32::try_from(index).expect("an index");
                    *len = length_of::<libc::sockaddr_ll>();
                }
                Ok(())
            };
            // SAFETY: `fill` sets the family, and the length is that of such an address.
            let ((), addr) = unsafe { SockAddr::try_init(fill) }.expect("it does not fail");
            socket.bind(&addr).expect("the interface is there");
            for (level, option, value) in [
                (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1),
                (libc::SOL_PACKET, libc::PACKET_AUXDATA, 1),
                (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20),
                (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 16 << 20),
            ] {
                set_option(&socket, level, option, value);
            }
            Packets(socket)
        })
    }

    /// Sends a frame, and waits while the queue is full.
    pub fn send(&self, frame: &[u8]) {
        let start = Instant::now();
        while let Err(e) = self.0.send(frame) {
            let full =
                e.raw_os_error() == Some(libc::ENOBUFS) || e.kind() == io::ErrorKind::WouldBlock;
            assert!(full && start.elapsed() < Duration::from_secs(10), "cannot send: {e}");
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Receives the next frame, if one comes within `wait`. The kernel has taken out its tag.
    pub fn recv<'b>(&self, buf: &'b mut [u8], wait: Duration) -> Option<&'b [u8]> {
        self.recv_tagged(buf, wait).map(|(_, frame)| frame)
    }

    /// Receives the next frame with the tag that it had, if one comes within `wait`.
    pub fn recv_tagged<'b>(
        &self,
        buf: &'b mut [u8],
        wait: Duration,
    ) -> Option<(Option<u16>, &'b [u8])> {
        let ms = i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: there is one live pollfd, and its descriptor is open.
        if unsafe { libc::poll(&raw mut poll, 1, ms) } <= 0 {
            return None;
        }
        let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        let mut control = [0u64; 8];
        // SAFETY: all zeros are a value of this structure.
        let mut m: libc::msghdr = unsafe { std::mem::zeroed() };
        (m.msg_iov, m.msg_iovlen) = (&raw mut part, 1);
        (m.msg_control, m.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        // SAFETY: the buffers are ours, and the lengths are their own.
        let n = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut m, libc::MSG_DONTWAIT) };
        let n = usize::try_from(n).ok()?;
        // SAFETY: the kernel has filled the header, and its messages lie in `control`, which is aligned
        // for them.
        let tag = unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const m);
            let has = !head.is_null()
                && ((*head).cmsg_level, (*head).cmsg_type)
                    == (libc::SOL_PACKET, libc::PACKET_AUXDATA);
            has.then(|| libc::CMSG_DATA(head).cast::<libc::tpacket_auxdata>().read_unaligned())
        };
        let tag = tag.filter(|aux| aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0);
        Some((tag.map(|aux| aux.tp_vlan_tci), &buf[..n]))
    }
}

type SockAddrStorage = socket2::SockAddrStorage;

fn length_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("the length of an address")
}

fn set_option(socket: &Socket, level: i32, option: i32, value: i32) {
    // SAFETY: the value is a live int, and the length is that of an int.
    let set = unsafe {
        let len = length_of::<i32>();
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    assert_eq!(set, 0, "option {option}: {}", io::Error::last_os_error());
}

/// Returns the bytes that a kernel socket has not sent yet, or has sent without an acknowledgement.
pub fn unacknowledged(socket: &impl AsRawFd) -> i32 {
    let mut bytes = 0;
    // SAFETY: the descriptor is open, and the request writes one int.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(done, 0, "TIOCOUTQ: {}", io::Error::last_os_error());
    bytes
}
