//! The end that takes RDMA Writes.

use std::error::Error;
use std::io::{self, ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heddle_iwarp::ddp::DdpHeader;
use heddle_iwarp::mpa::frame::Kind;
use heddle_iwarp::rdmap::{Control, Opcode, ReadRequest};
use heddle_services::bench::hello::{self, Hello, Welcome};
use heddle_services::bench::pattern;
use heddle_types::Stag;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::fpdus::{Incoming, Region, startup, tagged, wrong};
use crate::info;

/// The time between two samples of a connection.
const EVERY: Duration = Duration::from_millis(50);
/// The region of a client that is no `heddle bench`, as Heddle's `sink` service grants it.
const REGION: usize = 256 << 10;
/// The most memory that a client of `heddle bench` may ask for.
const MOST: u64 = 256 << 20;
/// The first STag; each connection has the next.
const FIRST_STAG: u32 = 0x0100_0000;

/// A connection, as the thread that takes samples sees it.
struct Conn {
    peer: SocketAddr,
    bytes: AtomicU64,
    error: Mutex<Option<String>>,
    /// The kernel's report at the end of the connection.
    info: Mutex<Option<Value>>,
    /// Seconds since 1970, and the bytes of payload placed until then.
    samples: Mutex<Vec<(f64, u64)>>,
}

impl Conn {
    fn sample(&self, now: f64) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.bytes.load(Ordering::Relaxed);
        // A connection at rest keeps the sample at which its rest began, and the latest.
        if let [.., (_, a), (last, b)] = &mut samples[..]
            && *a == bytes
            && *b == bytes
        {
            *last = now;
            return;
        }
        samples.push((now, bytes));
    }

    fn to_json(&self) -> Value {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tcp = self.info.lock().unwrap_or_else(PoisonError::into_inner).clone();
        json!({ "peer": self.peer.to_string(), "error": error, "tcp": tcp, "samples": samples })
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64())
}

/// Serves until SIGTERM or SIGINT, and returns the report.
pub(crate) fn run(at: SocketAddr) -> Result<Value, Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let listener = TcpListener::bind(at).map_err(|e| format!("cannot listen on {at}: {e}"))?;
    listener.set_nonblocking(true)?;
    writeln!(io::stderr(), "kernel-peer: listening on {at}")?;
    let mut conns: Vec<Arc<Conn>> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, peer)) => {
                let conn = Arc::new(Conn {
                    peer,
                    bytes: AtomicU64::new(0),
                    error: Mutex::default(),
                    info: Mutex::default(),
                    samples: Mutex::default(),
                });
                let stag = Stag(FIRST_STAG + u32::try_from(conns.len()).unwrap_or(0));
                conns.push(conn.clone());
                thread::Builder::new().spawn(move || {
                    let failed = serve(&stream, stag, &conn.bytes).err().map(|e| e.to_string());
                    let info = info::of(&stream).ok();
                    *conn.info.lock().unwrap_or_else(PoisonError::into_inner) = info;
                    *conn.error.lock().unwrap_or_else(PoisonError::into_inner) = failed;
                    let _ = writeln!(io::stderr(), "kernel-peer: {peer} has ended");
                })?;
                continue;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
        conns.iter().for_each(|c| c.sample(now()));
        thread::sleep(EVERY);
    }
    conns.iter().for_each(|c| c.sample(now()));
    Ok(json!({ "connections": conns.iter().map(|c| c.to_json()).collect::<Vec<_>>() }))
}

/// Serves a connection until its end. A reset is an end like any other: the source makes it.
fn serve(mut stream: &TcpStream, stag: Stag, bytes: &AtomicU64) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let mut incoming = Incoming::default();
    let request = incoming.startup(Kind::Request, &mut stream)?;
    let (region, data, mut memory) = grant(&request, stag)?;
    stream.write_all(&startup(Kind::Reply, &data)?)?;
    let mut answers = Vec::new();
    loop {
        match incoming.more(&mut stream) {
            Ok(0) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(()),
            other => other?,
        };
        while let Some((header, payload)) = incoming.next()? {
            let opcode = Control::from_byte(header.rsvd_ulp()).opcode;
            match (header, opcode) {
                (DdpHeader::Tagged { stag, to, .. }, Opcode::WRITE) => {
                    memory[region.place(stag, to, payload.len())?].copy_from_slice(payload);
                    bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
                }
                (DdpHeader::Untagged { .. }, Opcode::READ_REQUEST) => {
                    let r = ReadRequest::parse(payload).map_err(wrong)?;
                    let len = usize::try_from(r.size).map_err(wrong)?;
                    let read = &memory[region.place(r.src_stag, r.src_to, len)?];
                    let response = Opcode::READ_RESPONSE;
                    tagged(response, r.sink_stag, r.sink_to, read, &mut answers)?;
                }
                _ => return Err(wrong(format!("message with opcode {}", opcode.0))),
            }
        }
        if !answers.is_empty() {
            stream.write_all(&answers)?;
            answers.clear();
        }
    }
}

/// Returns the region of a client, the private data that grants it, and its memory: by the protocol of
/// `heddle bench` to a client that speaks it, which may read what it expects, and otherwise as the
/// `sink` service does.
fn grant(request: &[u8], stag: Stag) -> io::Result<(Region, Vec<u8>, Vec<u8>)> {
    let granted = |len| Region { stag, to: 0, len };
    let hello = match Hello::decode(request) {
        Ok(hello) => hello,
        Err(hello::HelloError::NotOurs) => {
            let region = granted(REGION);
            let data =
                [&b"HSNK"[..], &stag.0.to_be_bytes(), &[0; 8], &(REGION as u64).to_be_bytes()];
            return Ok((region, data.concat(), vec![0; REGION]));
        }
        Err(e) => return Err(wrong(e)),
    };
    let len = u64::from(hello.size) * u64::from(hello.depth);
    if len > MOST {
        return Err(wrong(format!("a client wants {len} bytes, more than {MOST}")));
    }
    let mut memory = vec![0; usize::try_from(len).map_err(wrong)?];
    let slot = usize::try_from(hello.size).map_err(wrong)?.max(1);
    for (number, slot) in (0..).zip(memory.chunks_mut(slot)) {
        pattern::fill(slot, hello.seed, number);
    }
    let region = granted(memory.len());
    let welcome = Welcome { window: 0, region: hello::Region { stag, to: 0, len } };
    Ok((region, welcome.encode(), memory))
}
