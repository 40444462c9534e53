//! Two RNICs in virtual time, and a wire between them that keeps a copy of each frame.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use heddle::connection::{CmEvent, EventQueue, ListenParams};
use heddle::dpdk::{Clock, ManualClock, Mempool, MempoolConfig, Port, PortConfig};
use heddle::tcp::Cidr;
use heddle::{Eal, Endpoint, EndpointConfig, Seed};
use heddle_base::Chunks;
use heddle_dataplane::{BURST, Mbuf, RxQueue, TxQueue};
use heddle_testkit::frames::checksum;
use pcap_file::pcap::{PcapPacket, PcapWriter};

/// In each pair the first is the initiator, the second the responder.
pub(crate) const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
pub(crate) const PORT: u16 = 7174;
const MTU: u16 = 1500;

/// The far end of an RNIC's rings.
struct Tap {
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
    _port: Port,
}

/// The two RNICs, and the frames that have passed between them.
pub(crate) struct Wire {
    pub(crate) ends: [Endpoint; 2],
    taps: [Tap; 2],
    hand: ManualClock,
    frames: Vec<(Duration, Vec<u8>)>,
    /// Bytes of payload in a segment, if the wire cuts segments: a box between two hosts may do so
    /// (RFC 5044 section 4.3), and then FPDUs and segments begin at different places.
    cut: Option<usize>,
}

impl Wire {
    pub(crate) fn new(eal: &Eal, cut: Option<usize>) -> Wire {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (clock, hand) = Clock::manual();
        let mut taps = Vec::new();
        let ends = IPS.map(|ip| {
            let pool = || Mempool::new(eal, &MempoolConfig::for_mtu(2047, MTU)).expect("a pool");
            let pools = [pool(), pool()];
            let [near, far] = pools.map(PortConfig::new);
            let name = format!("wire{}", NUMBER.fetch_add(1, Ordering::Relaxed));
            let (port, mut far) = Port::ring_pair(eal, &name, 1024, &near, &far).expect("rings");
            let (rx, tx) = far.take_queues().pop().expect("a queue");
            taps.push(Tap { rx, tx, pool: pools[1], _port: far });
            let addr = Cidr::new(ip.into(), 24).expect("a prefix");
            let config = EndpointConfig {
                memory: 4 << 20,
                frames: 2047,
                max_conns: 64,
                mtu: MTU,
                clock: Some(clock.clone()),
                ..EndpointConfig::with_seed(vec![addr], Seed::from_u64(ip.octets()[3].into()))
            };
            Endpoint::on_port(eal, port, pools[0], &config).expect("an RNIC")
        });
        let taps = taps.try_into().unwrap_or_else(|_| panic!("one for each"));
        Wire { ends, taps, hand, frames: Vec::new(), cut }
    }

    fn carry(&mut self) -> bool {
        let mut busy = false;
        for from in [0, 1] {
            let mut frames: arrayvec::ArrayVec<Mbuf, BURST> = arrayvec::ArrayVec::new();
            self.taps[from].rx.burst(&mut frames);
            for f in frames.drain(..) {
                busy = true;
                let mut bytes = vec![0; f.len()];
                f.copy_at(0, &mut bytes);
                let pieces = match self.cut {
                    Some(most) => cut(&bytes, most),
                    None => vec![bytes],
                };
                for bytes in pieces {
                    self.put(1 - from, bytes);
                }
            }
        }
        busy
    }

    fn put(&mut self, to: usize, bytes: Vec<u8>) {
        let tap = &mut self.taps[to];
        let mut m = tap.pool.alloc().expect("room for a frame");
        m.append(bytes.len()).expect("room in it").copy_from_slice(&bytes);
        let mut one = arrayvec::ArrayVec::<Mbuf, 1>::new();
        one.push(m);
        assert_eq!(tap.tx.burst(&mut one), 1, "the ring has room");
        self.frames.push((Duration::from_nanos(self.hand.now().as_nanos()), bytes));
    }

    /// Runs the RNICs until `found` returns something, for at most a minute of virtual time.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Wire) -> Option<T>,
    ) -> T {
        for _ in 0..60_000 {
            let mut quiet = 0;
            while quiet < 2 {
                // The control plane of an idle endpoint gets a turn only now and then, so poll
                // several times.
                let mut busy = false;
                for _ in 0..33 {
                    self.ends.iter_mut().for_each(|end| busy |= end.poll());
                }
                quiet = if self.carry() || busy { 0 } else { quiet + 1 };
                if let Some(t) = found(self) {
                    return t;
                }
            }
            self.hand.advance(Duration::from_millis(1));
        }
        panic!("{what} did not come");
    }

    /// Lets virtual time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.hand.now() + time;
        self.until("the time", |w| (w.hand.now() >= end).then_some(()));
    }

    pub(crate) fn event(&mut self, events: &EventQueue) -> CmEvent {
        self.until("an event", |_| events.poll())
    }

    /// Has the responder listen.
    pub(crate) fn listen(&mut self, port: u16, params: ListenParams) -> EventQueue {
        let events = EventQueue::new(None);
        let at = (IPS[1], port).into();
        self.ends[1].device().listen(at, params, &events).expect("a listener");
        assert!(matches!(self.event(&events), CmEvent::Listening { .. }));
        events
    }

    /// Writes the frames that have passed so far to a file.
    pub(crate) fn save(&self, file: &Path) {
        write(file, self.frames.iter().map(|(at, bytes)| (*at, &bytes[..])));
    }
}

/// Writes a capture file.
pub(crate) fn write<'a>(file: &Path, frames: impl Iterator<Item = (Duration, &'a [u8])>) {
    let mut w = PcapWriter::new(File::create(file).expect("a new file")).expect("a header");
    for (at, bytes) in frames {
        let len = u32::try_from(bytes.len()).expect("a frame");
        w.write_packet(&PcapPacket::new(at, len, bytes)).expect("room for it");
    }
}

const ETHERNET: usize = 14;

/// Returns the offsets of TCP's header and of its payload.
fn tcp(frame: &[u8]) -> (usize, usize) {
    let tcp = ETHERNET + usize::from(frame[ETHERNET] & 15) * 4;
    (tcp, tcp + usize::from(frame[tcp + 12] >> 4) * 4)
}

/// Changes the payload of a TCP segment, and corrects its checksum.
pub(crate) fn change(frame: &mut [u8], change: impl FnOnce(&mut [u8])) {
    let (_, data) = tcp(frame);
    change(&mut frame[data..]);
    sum_up(frame);
}

/// Sets the checksums of IP and TCP, and IP's length.
fn sum_up(f: &mut [u8]) {
    let ((tcp, _), len) = (tcp(f), f.len());
    let short = |n: usize| u16::try_from(n).expect("a frame").to_be_bytes();
    f[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&short(len - ETHERNET));
    f[ETHERNET + 10..ETHERNET + 12].fill(0);
    let sum = checksum(&[&f[ETHERNET..tcp]]);
    f[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    f[tcp + 16..tcp + 18].fill(0);
    let pseudo = [&f[ETHERNET + 12..ETHERNET + 20], &[0, 6], &short(len - tcp)].concat();
    let sum = checksum(&[&pseudo, &f[tcp..]]);
    f[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Cuts a frame whose TCP segment has more than `most` bytes into several frames.
fn cut(frame: &[u8], most: usize) -> Vec<Vec<u8>> {
    if frame[12..14] != [8, 0] || frame[ETHERNET + 9] != 6 {
        return vec![frame.to_vec()];
    }
    let (tcp, data) = tcp(frame);
    let len = u16::from_be_bytes([frame[ETHERNET + 2], frame[ETHERNET + 3]]);
    let payload = &frame[data..ETHERNET + usize::from(len)];
    if payload.len() <= most {
        return vec![frame.to_vec()];
    }
    let seq = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().expect("4 bytes"));
    let pieces = payload.chunks(most).enumerate().map(|(i, piece)| {
        let mut f = [&frame[..data], piece].concat();
        let seq = seq.wrapping_add(u32::try_from(i * most).expect("a segment"));
        f[tcp + 4..tcp + 8].copy_from_slice(&seq.to_be_bytes());
        if (i + 1) * most < payload.len() {
            // Clear FIN and PSH, which belong on the last piece.
            f[tcp + 13] &= !9;
        }
        sum_up(&mut f);
        f
    });
    pieces.collect()
}
