//! An application in a process of its own: the parent runs the RNIC, makes a device whose memory
//! and queues can be shared, connects it, and hands the descriptors to a child. From then on the
//! child posts and polls by itself; no byte and no request passes through the parent.
//!
//! ```text
//!   child                                   parent
//!     Area    ◀── memfd: queues, doorbells ── Device::area
//!     Region  ◀── memfd: registered memory ── Device::memory
//!     Sleeper ◀── socket: completions ────── Connection::completion_fd
//! ```
//!
//! Both RNICs live in the parent, and rings connect them: the example needs no NIC and no
//! privileges. `cargo run --example two_processes`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::env;
use std::error::Error;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use heddle::connection::{AcceptParams, ConnectParams, Ends};
use heddle::device::Sleeper;
use heddle::hub::{Area, Bells, DeviceConfig};
use heddle::memory::{MrInfo, Region};
use heddle::queue::CqeOp;
use heddle::{
    Access, Cq, Device, Eal, EalConfig, EndpointConfig, Listener, Mr, Node, Qp, RecvWr, SendWr,
    Stag,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SERVER: &str = "10.0.0.2:7174";
const PATIENCE: Duration = Duration::from_secs(10);
const TEXT: &[u8] = b"written by another process";

/// The numbers that the child needs besides its three descriptors.
struct Handover {
    fds: [RawFd; 3],
    area_len: usize,
    memory_len: usize,
    bells: (usize, usize),
    cq: (usize, usize),
    qp: (usize, usize),
    source: MrInfo,
    target: (Stag, u64),
}

impl Handover {
    fn to_args(&self) -> Vec<String> {
        let (s, t) = (&self.source, &self.target);
        let mut out: Vec<String> = self.fds.iter().map(RawFd::to_string).collect();
        let sizes = [
            self.area_len,
            self.memory_len,
            self.bells.0,
            self.bells.1,
            self.cq.0,
            self.cq.1,
            self.qp.0,
            self.qp.1,
            s.off,
            s.len,
        ];
        out.extend(sizes.iter().map(usize::to_string));
        out.extend([s.stag.0.to_string(), s.to.to_string(), t.0.0.to_string(), t.1.to_string()]);
        out
    }

    fn from_args(args: &[String]) -> Result<Handover> {
        let number = |i: usize| -> Result<u64> { Ok(args.get(i).ok_or("too few")?.parse()?) };
        let size = |i: usize| -> Result<usize> { Ok(usize::try_from(number(i)?)?) };
        let fd = |i: usize| -> Result<RawFd> { Ok(RawFd::try_from(number(i)?)?) };
        let stag = |i: usize| -> Result<Stag> { Ok(Stag(u32::try_from(number(i)?)?)) };
        Ok(Handover {
            fds: [fd(0)?, fd(1)?, fd(2)?],
            area_len: size(3)?,
            memory_len: size(4)?,
            bells: (size(5)?, size(6)?),
            cq: (size(7)?, size(8)?),
            qp: (size(9)?, size(10)?),
            source: MrInfo { off: size(11)?, len: size(12)?, stag: stag(13)?, to: number(14)? },
            target: (stag(15)?, number(16)?),
        })
    }
}

fn child(h: &Handover) -> Result<()> {
    // SAFETY: the parent has left these descriptors open for this process, and the code takes each
    // of them once.
    let [area, memory, event] = h.fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let area = Area::attach(area, h.area_len)?;
    let memory = Arc::new(Region::from_fd(memory, h.memory_len)?);
    let bells = Bells::attach(&area, h.bells.0, h.bells.1).ok_or("no doorbells there")?;
    let cq = Cq::attach(&area, h.cq).ok_or("no completion queue there")?;
    let qp = Qp::attach(&area, h.qp, bells, cq.clone(), cq.clone()).ok_or("no queue pair there")?;
    let source = Mr::attach(&memory, h.source).ok_or("no region there")?;
    let sleeper = Sleeper::from_fd(event);

    source.write(0, TEXT);
    let sges = [source.sge(0, TEXT.len())];
    qp.post_send(&SendWr::write(1, &sges, h.target.0, h.target.1).unsignaled())?;
    qp.post_send(&SendWr::send_inline(2, &[]))?;
    let done = cq.wait(&sleeper, PATIENCE)?;
    assert!(done.wr_id == 2 && done.status.is_success(), "{done:?}");
    println!("child {}: acknowledged", std::process::id());
    Ok(())
}

/// Returns a copy of a descriptor that a child inherits.
fn inheritable(fd: Option<BorrowedFd<'_>>) -> Result<OwnedFd> {
    let copy = fd.ok_or("no descriptor")?.try_clone_to_owned()?;
    // SAFETY: the call only changes a flag of a descriptor that this function owns.
    match unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_SETFD, 0) } {
        0 => Ok(copy),
        _ => Err(io::Error::last_os_error().into()),
    }
}

fn server(device: &Device, listener: &Listener) -> Result<()> {
    let incoming = listener.request(PATIENCE)?;
    let pd = device.alloc_pd()?;
    let ends = Ends::new(device, pd)?;
    let target = device.alloc_mr(pd, 4096, Access::REMOTE_WRITE)?;
    ends.qp.post_recv(&RecvWr::new(1, &[]))?;
    let mut private_data = target.stag().0.to_be_bytes().to_vec();
    private_data.extend(target.to().to_be_bytes());
    let params = AcceptParams { private_data, ..AcceptParams::new(ends.qp.clone()) };
    let connection = incoming.accept_with(params, ends)?;
    let arrived = connection.wait(PATIENCE)?;
    assert!(arrived.op == CqeOp::Recv && arrived.status.is_success(), "{arrived:?}");
    let mut got = vec![0; TEXT.len()];
    target.read(0, &mut got);
    assert_eq!(got, TEXT);
    println!("server: {}", String::from_utf8_lossy(&got));
    Ok(())
}

fn parent() -> Result<()> {
    let eal = Eal::init(&EalConfig::default())?;
    let a = EndpointConfig::new(vec!["10.0.0.1/24".parse()?]);
    let b = EndpointConfig::new(vec!["10.0.0.2/24".parse()?]);
    let (a, b) = Node::ring_pair(&eal, "two_processes", &a, &b)?;
    let (device, listener) = (b.device().clone(), b.device().bind(SERVER)?);
    let server = thread::spawn(move || server(&device, &listener));

    // A separate application on the RNIC: no other application sees its protection domains, memory,
    // queues and doorbells.
    let config =
        DeviceConfig { memory: 1 << 20, queues: 1 << 20, shared: true, ..DeviceConfig::default() };
    let device = a.hub().open(&config)?;
    let ends = Ends::new(&device, device.alloc_pd()?)?;
    let params = ConnectParams::new(ends.qp.clone());
    let connection = device.dial_with(SERVER, params, ends)?.wait()?;
    let told = connection.private_data();
    let (Some(stag), Some(to)) = (told.first_chunk(), told.last_chunk()) else {
        return Err("the server has not said where to write".into());
    };
    let source = connection.alloc_mr(4096, Access::NONE)?;

    let (area, memory) = (device.area(), device.memory().ok_or("no memory")?);
    let fds = [
        inheritable(area.fd())?,
        inheritable(memory.fd())?,
        inheritable(connection.completion_fd())?,
    ];
    let handover = Handover {
        fds: [fds[0].as_raw_fd(), fds[1].as_raw_fd(), fds[2].as_raw_fd()],
        area_len: area.len(),
        memory_len: memory.len(),
        bells: (device.bells().offset(), device.bells().workers()),
        cq: connection.cq().share(),
        qp: connection.qp().share(),
        source: source.info(),
        target: (Stag(u32::from_be_bytes(*stag)), u64::from_be_bytes(*to)),
    };
    // From here on the queues belong to the child: the parent neither posts nor polls.
    let mut child = Command::new(env::current_exe()?).args(handover.to_args()).spawn()?;
    let status = child.wait()?;
    // However the child ended, this call takes back all its resources.
    device.close()?;
    if !status.success() {
        return Err(format!("the child has failed: {status}").into());
    }
    server.join().unwrap_or_else(|_| Err("the server has failed".into()))
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.is_empty() { parent() } else { child(&Handover::from_args(&args)?) }
}
