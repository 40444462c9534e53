//! Records the frames of an rping client, tick by tick, for a `heddle pcap` that is to receive
//! them.
//!
//! Client and server run in this process in virtual time, each on a `net_pcap` device of its own;
//! this program hands each side's frames to the other through a pipe, one frame per poll. When
//! there is none, the program hands over a filler, which both sides ignore: so the n-th frame of
//! the recording is the frame of the n-th poll, and a server with the same seed and address sees
//! the same frames at the same times.
//!
//! `scripts/record-pcap` calls this program with the name of the file to write.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io::{PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use heddle::connection::{ListenParams, MpaOptions};
use heddle::dpdk::{Clock, PortSource};
use heddle::{Eal, EalConfig, Endpoint, EndpointConfig, Seed};
use heddle_services::rping::{RpingClient, RpingConfig};
use heddle_services::{Services, Step};
use pcap_file::pcap::{PcapPacket, PcapWriter};

/// The duration of a poll, as in `heddle pcap`.
const TICK: Duration = Duration::from_micros(10);

/// Ticks after the client is done, for the last acknowledgements.
const LINGER: u32 = 200;

/// More ticks than any run takes.
const MAX_TICKS: u32 = 100_000;

const SERVER: &str = "10.0.0.1";
const CLIENT: &str = "10.0.0.2";
const PORT: u16 = 7174;
const COUNT: u64 = 4;
const SIZE: u32 = 4000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Returns a frame of a kind that no program reads, to no receiver: EtherType 88B5 is for
/// experiments.
fn filler() -> Vec<u8> {
    let mut f = vec![0; 60];
    f[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0xff, 2, 0, 0, 0, 0, 0xfe, 0x88, 0xb5]);
    f
}

/// An endpoint, the frames on their way to it, and the bytes that it has written so far.
struct Side {
    endpoint: Endpoint,
    to: PcapWriter<PipeWriter>,
    queue: VecDeque<Vec<u8>>,
    from: File,
    unread: Vec<u8>,
    header: bool,
}

impl Side {
    fn new(eal: &Eal, config: &EndpointConfig, n: u32, dir: &Path) -> Result<Side> {
        let (reader, writer) = std::io::pipe()?;
        let to = PcapWriter::new(writer)?;
        let tx = dir.join(format!("tx{n}.pcap"));
        let rx = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let arg = format!("net_pcap{n},rx_pcap={rx},tx_pcap={}", tx.display());
        let endpoint = Endpoint::open(eal, &PortSource::Vdev(arg.parse()?), config)?;
        let from = File::open(tx)?;
        let (queue, unread) = (VecDeque::new(), Vec::new());
        Ok(Side { endpoint, to, queue, from, unread, header: false })
    }

    /// Polls once with one frame, and returns the frame if it is not a filler.
    fn poll(&mut self, now: Duration) -> Result<Option<Vec<u8>>> {
        let frame = self.queue.pop_front();
        let data = frame.clone().unwrap_or_else(filler);
        let len = u32::try_from(data.len())?;
        self.to.write_packet(&PcapPacket::new_owned(now, len, data))?;
        self.endpoint.poll();
        Ok(frame)
    }

    /// Returns the frames that the endpoint has sent since the last call.
    fn sent(&mut self) -> Result<Vec<Vec<u8>>> {
        self.from.read_to_end(&mut self.unread)?;
        if !self.header {
            if self.unread.len() < 24 {
                return Ok(Vec::new());
            }
            self.unread.drain(..24);
            self.header = true;
        }
        let mut frames = Vec::new();
        while let Some(len) = self.unread.get(8..12) {
            let end = 16 + usize::try_from(u32::from_ne_bytes(len.try_into()?))?;
            if self.unread.len() < end {
                break;
            }
            frames.push(self.unread.drain(..end).skip(16).collect());
        }
        Ok(frames)
    }
}

fn main() -> Result<()> {
    let out = std::env::args_os().nth(1).ok_or("the name of the file to write is missing")?;
    let dir = tempfile::tempdir()?;
    let (clock, hand) = Clock::manual();
    let config = |ip: &str, seed| -> Result<EndpointConfig> {
        let addr = heddle::tcp::Cidr::new(ip.parse()?, 24).ok_or("not an address")?;
        let clock = Some(clock.clone());
        let base = EndpointConfig::with_seed(vec![addr], Seed::from_u64(seed));
        Ok(EndpointConfig { clock, rx_burst: 1, ..base })
    };
    let eal = Eal::init(&EalConfig { memory_mb: 256, ..EalConfig::default() })?;
    // The server's device comes first, since the number of a net_pcap device determines its
    // address.
    let mut server = Side::new(&eal, &config(SERVER, 1)?, 0, dir.path())?;
    let mut client = Side::new(&eal, &config(CLIENT, 2)?, 1, dir.path())?;
    let listen = [format!("{SERVER}:{PORT}=rping").parse()?];
    let device = server.endpoint.device();
    let mut services = Services::start(device, &listen, &ListenParams::default(), None)?;
    let ping = RpingConfig {
        remote: (SERVER.parse::<std::net::IpAddr>()?, PORT).into(),
        count: COUNT,
        size: SIZE,
        validate: true,
        mpa: MpaOptions::new(),
    };
    let mut rping = RpingClient::new(client.endpoint.device(), ping, false)?;
    let mut record = Vec::new();
    let (mut done, mut linger) = (false, LINGER);
    for _ in 0..MAX_TICKS {
        if linger == 0 {
            break;
        }
        let now = Duration::from_nanos(hand.now().as_nanos());
        record.push((now, server.poll(now)?));
        services.step();
        client.queue.extend(server.sent()?);
        client.poll(now)?;
        if done {
            linger -= 1;
        } else {
            done = rping.step()? == Step::Done;
        }
        server.queue.extend(client.sent()?);
        hand.advance(TICK);
    }
    if rping.done() != COUNT || linger > 0 {
        return Err(format!("{} of {COUNT} messages came back", rping.done()).into());
    }
    let used = record.iter().rposition(|(_, f)| f.is_some()).map_or(0, |last| last + 1);
    let mut file = PcapWriter::new(File::create(out)?)?;
    for (now, frame) in record.drain(..used) {
        let data = frame.unwrap_or_else(filler);
        let len = u32::try_from(data.len())?;
        file.write_packet(&PcapPacket::new_owned(now, len, data))?;
    }
    Ok(())
}
