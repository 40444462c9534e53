//! An application in a process of its own: the application opens a device through a socket, and
//! needs nothing else from the process that runs the RNIC.
//!
//! ```text
//!   RNICs' process                             application's process
//!     Node a ── remote::serve ◀── socket ──▶ Device::open ── dial, alloc_mr, post, wait
//!     Node b: a server that sends back each message
//! ```
//!
//! With `heddle serve` the program has no part in the first process. Here this program is both:
//! started without arguments it runs the RNICs, listens on a socket, and starts itself with the
//! socket's path. `cargo run --example own_process`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use heddle::hub::{Policy, serve};
use heddle::queue::CqeOp;
use heddle::{Access, Device, Eal, EalConfig, EndpointConfig, Listener, Node, RecvWr, SendWr};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SERVER: &str = "10.0.0.2:7174";
const PATIENCE: Duration = Duration::from_secs(10);

/// The application. Only the first line depends on the RNIC being elsewhere.
fn application(socket: &str) -> Result<()> {
    let device = Device::open(socket)?;
    let connection = device.dial(SERVER)?.wait()?;
    let mr = connection.alloc_mr(4096, Access::LOCAL_WRITE)?;
    mr.write(0, b"hello from another process");
    connection.post_recv(&RecvWr::new(1, &[mr.sge(2048, 2048)]))?;
    connection.post_send(&SendWr::send(2, &[mr.sge(0, 26)]))?;
    let mut answer = vec![0; 26];
    for _ in 0..2 {
        let done = connection.wait(PATIENCE)?;
        assert!(done.status.is_success(), "{done:?}");
    }
    mr.read(2048, &mut answer);
    println!("application: {}", String::from_utf8_lossy(&answer));
    connection.disconnect()?;
    Ok(())
}

/// The peer, which sends back each message in upper case.
fn peer(device: &Device, listener: &Listener) -> Result<()> {
    let incoming = listener.request(PATIENCE)?;
    let pd = device.alloc_pd()?;
    let ends = heddle::connection::Ends::new(device, pd)?;
    let mr = device.alloc_mr(pd, 64, Access::LOCAL_WRITE)?;
    ends.qp.post_recv(&RecvWr::new(1, &[mr.sge(0, 64)]))?;
    let params = heddle::connection::AcceptParams::new(ends.qp.clone());
    let connection = incoming.accept_with(params, ends)?;
    let came = connection.wait(PATIENCE)?;
    assert!(came.op == CqeOp::Recv && came.status.is_success(), "{came:?}");
    let mut text = vec![0; came.len as usize];
    mr.read(0, &mut text);
    text.make_ascii_uppercase();
    connection.post_send(&SendWr::send_inline(2, &text))?;
    assert!(connection.wait(PATIENCE)?.status.is_success());
    // Wait until the application has its answer: the end of this connection would end the
    // application's, too.
    let mut connection = connection;
    while connection.end().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn main() -> Result<()> {
    if let Some(socket) = std::env::args().nth(1) {
        return application(&socket);
    }
    let eal = Eal::init(&EalConfig::default())?;
    let a = EndpointConfig::new(vec!["10.0.0.1/24".parse()?]);
    let b = EndpointConfig::new(vec!["10.0.0.2/24".parse()?]);
    let (a, b) = Node::ring_pair(&eal, "own", &a, &b)?;
    let (device, listener) = (b.device().clone(), b.device().bind(SERVER)?);
    let peer = thread::spawn(move || peer(&device, &listener));

    let path = std::env::temp_dir().join(format!("heddle-own-process-{}", std::process::id()));
    let socket = UnixListener::bind(&path)?;
    let mut child = Command::new(std::env::current_exe()?).arg(&path).spawn()?;
    // The process serves a single application, with the default policy.
    let (client, _) = socket.accept()?;
    serve(a.hub(), Policy::default(), &client)?;
    let status = child.wait()?;
    std::fs::remove_file(&path)?;
    assert!(status.success(), "the application says what was wrong");
    peer.join().unwrap_or_else(|_| Err("the peer has failed".into()))
}
