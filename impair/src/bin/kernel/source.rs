//! The end that sends RDMA Writes.

use std::error::Error;
use std::io::{self, ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use heddle_iwarp::Msn;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::mpa::frame::Kind;
use heddle_iwarp::rdmap::{Control, Opcode, ReadRequest};
use heddle_services::bench::pattern;
use heddle_types::Stag;
use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};

use crate::fpdus::{Incoming, Region, append, startup, tagged, wrong};
use crate::info;

/// The longest time for a connection, its start-up, or the answer to a Read.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a source whose peer takes nothing looks at its time.
const LOOK: Duration = Duration::from_millis(100);
/// The STag that a Read Response goes to.
const ANSWER: Stag = Stag(0x0200_0000);
/// The longest Write: the source sends the same FPDUs again and again.
const MOST: usize = 256 << 10;

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// The sink
    #[arg(value_name = "ADDR:PORT")]
    to: SocketAddr,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// How long to send
    #[arg(long, value_name = "T", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// The kernel's algorithm of congestion control, such as cubic [default: that of the system]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Read the memory back at the end, and compare it
    #[arg(long)]
    verify: bool,
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(t) if (0.01..=3600.0).contains(&t) => Ok(t),
        _ => Err("expected 0.01 to 3600".into()),
    }
}

/// Sends as planned, and returns the report.
pub(crate) fn run(plan: &Plan) -> Result<Value, Box<dyn Error>> {
    let reports = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..plan.connections).map(|n| scope.spawn(move || one(plan, n.into()))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| json!({ "error": "a thread panicked" })))
            .collect::<Vec<_>>()
    });
    Ok(json!({ "connections": reports }))
}

fn one(plan: &Plan, number: u64) -> Value {
    let (mut local, mut tcp) = (None, None);
    let done = send(plan, number, &mut local, &mut tcp);
    let local = local.map(|a| a.to_string());
    json!({ "local": local, "error": done.err().map(|e| e.to_string()), "tcp": tcp })
}

fn send(
    plan: &Plan,
    number: u64,
    local: &mut Option<SocketAddr>,
    tcp: &mut Option<Value>,
) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(plan.to), Type::STREAM, None)?;
    if let Some(name) = &plan.congestion {
        let set = socket.set_tcp_congestion(name.as_bytes());
        set.map_err(|e| io::Error::new(e.kind(), format!("congestion control {name}: {e}")))?;
    }
    socket.connect_timeout(&plan.to.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    *local = Some(stream.local_addr()?);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&startup(Kind::Request, b"")?)?;
    let mut incoming = Incoming::default();
    let region = granted(&incoming.startup(Kind::Reply, &mut stream)?)?;

    let mut payload = vec![0; region.len.min(MOST)];
    pattern::fill(&mut payload, number, 0);
    let mut message = Vec::new();
    tagged(Opcode::WRITE, region.stag, region.to, &payload, &mut message)?;
    stream.set_write_timeout(Some(LOOK))?;
    let end = Instant::now() + Duration::from_secs_f64(plan.seconds);
    while Instant::now() < end {
        write(&mut stream, &message, (!plan.verify).then_some(end))?;
    }
    if plan.verify {
        stream.set_write_timeout(Some(PATIENCE))?;
        verify(&mut stream, &mut incoming, region, &payload)?;
    }
    *tcp = Some(info::of(&stream)?);
    // A close in order would go on sending what the socket still holds, into the next run.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

/// Writes a message, or as much of it as the socket takes until `end`.
fn write(stream: &mut TcpStream, message: &[u8], end: Option<Instant>) -> io::Result<()> {
    let (mut at, start) = (0, Instant::now());
    while at < message.len() {
        match stream.write(&message[at..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => at += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                let now = Instant::now();
                if end.is_some_and(|end| now >= end) {
                    return Ok(());
                }
                if now - start > PATIENCE {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads the region that a sink grants by its private data.
fn granted(data: &[u8]) -> io::Result<Region> {
    let fields = data.strip_prefix(b"HSNK").and_then(|b| b.first_chunk::<20>());
    let fields = fields.ok_or_else(|| wrong("the peer is no sink"))?;
    let number = |b: &[u8]| b.iter().fold(0u64, |v, &x| v << 8 | u64::from(x));
    Ok(Region {
        stag: Stag(u32::try_from(number(&fields[..4])).map_err(wrong)?),
        to: number(&fields[4..12]),
        len: usize::try_from(number(&fields[12..])).map_err(wrong)?,
    })
}

/// Reads the region back and compares it.
fn verify(
    stream: &mut TcpStream,
    incoming: &mut Incoming,
    region: Region,
    payload: &[u8],
) -> io::Result<()> {
    let request = ReadRequest {
        sink_stag: ANSWER,
        sink_to: 0,
        size: u32::try_from(payload.len()).map_err(wrong)?,
        src_stag: region.stag,
        src_to: region.to,
    };
    let header = DdpHeader::Untagged {
        last: true,
        rsvd_ulp: Control::new(Opcode::READ_REQUEST).to_byte(),
        rsvd_ulp32: 0,
        qn: Qn::READ_REQUEST,
        msn: Msn(1),
        mo: 0,
    };
    let mut out = Vec::new();
    append(&header, &request.emit(), &mut out)?;
    stream.write_all(&out)?;
    let here = Region { stag: ANSWER, to: 0, len: payload.len() };
    let mut got = vec![0; payload.len()];
    loop {
        while let Some((header, bytes)) = incoming.next()? {
            let DdpHeader::Tagged { last, stag, to, .. } = header else {
                return Err(wrong("a message where the answer to a Read was due"));
            };
            got[here.place(stag, to, bytes.len())?].copy_from_slice(bytes);
            if last {
                let same = got == payload;
                return if same { Ok(()) } else { Err(wrong("the sink's memory has other bytes")) };
            }
        }
        if incoming.more(stream)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}
