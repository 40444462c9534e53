//! The numbers of a connection on the wire, as the peer knows them: segments of scripts become
//! frames of the peer, and frames of the stack become segments of scripts.

use core::fmt::{self, Write as _};
use core::net::IpAddr;
use core::time::Duration;

use heddle_testkit::frames::{ACK, Mac, SYN, Segment, arp_reply, arp_request};
use heddle_testkit::ip::{self, Ip, neighbor_message, solicited_node};

use crate::parse::{CODEPOINTS, FLAGS, Mss, Seg, Stamps, URG};

/// The port of ours that scripts use, and the peer's first.
pub const PORT: u16 = 4420;
pub const PEER_PORT: u16 = 5000;
/// The peer's clock of timestamps at the beginning of a script.
const PEER_CLOCK: u32 = 5000;

/// The hosts of a script.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub ours: (Mac, IpAddr),
    pub peer: (Mac, IpAddr),
}

impl Ends {
    /// Returns the frame in which the peer asks for our station address, and so tells its own.
    pub fn question(&self) -> Vec<u8> {
        match (self.ours.1, self.peer.1) {
            (IpAddr::V4(ours), IpAddr::V4(peer)) => arp_request((self.peer.0, peer), ours),
            (IpAddr::V6(ours), _) => {
                let (mac, group) = solicited_node(ours);
                let ip = Ip { hops: 255, ..Ip::new(self.peer, (mac, group.into())) };
                ip.icmp_message(neighbor_message(None, ours, self.peer.0))
            }
            _ => unreachable!("both ends have one family"),
        }
    }

    /// Returns the frame in which the peer tells its station address because we have asked.
    pub fn answer(&self) -> Vec<u8> {
        match (self.ours.1, self.peer.1) {
            (IpAddr::V4(ours), IpAddr::V4(peer)) => {
                arp_reply((self.peer.0, peer), (self.ours.0, ours))
            }
            (_, IpAddr::V6(peer)) => {
                let ip = Ip { hops: 255, ..Ip::new(self.peer, self.ours) };
                // Solicited, and the station counts.
                ip.icmp_message(neighbor_message(Some(0x60), peer, self.peer.0))
            }
            _ => unreachable!("both ends have one family"),
        }
    }
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Flow {
    pub peer_port: u16,
    /// The initial sequence numbers. Ours is known from our SYN on; without a connection it is 0.
    pub ours: Option<u32>,
    pub peers: u32,
    /// The window shifts that the SYNs offered.
    our_shift: Option<u8>,
    peer_shift: Option<u8>,
    /// Whether each SYN offered timestamps.
    our_stamps: bool,
    peer_stamps: bool,
    /// TSval of our first segment and of our last.
    first_val: Option<u32>,
    last_val: u32,
    /// The window that the peer offered last, in bytes.
    win: u32,
    /// The flow label of all segments.
    label: Option<u32>,
}

/// Returns the byte at a position of the peer's stream, or of ours.
pub fn byte_at(ours: bool, pos: u64) -> u8 {
    let n = pos.wrapping_mul(if ours { 31 } else { 7 }).wrapping_add(pos >> 8);
    n.to_le_bytes()[0]
}

/// Returns the low 32 bits of a relative number added to a base.
fn absolute(base: u32, relative: i64) -> u32 {
    let [a, b, c, d, ..] = relative.to_le_bytes();
    base.wrapping_add(u32::from_le_bytes([a, b, c, d]))
}

/// Returns `n` as a number relative to `base`, near it on either side.
fn relative(base: u32, n: u32) -> i64 {
    i64::from(n.wrapping_sub(base).cast_signed())
}

impl Flow {
    pub fn new(peer_port: u16, peers: u32) -> Flow {
        Flow {
            peer_port,
            ours: None,
            peers,
            our_shift: None,
            peer_shift: None,
            our_stamps: false,
            peer_stamps: false,
            first_val: None,
            last_val: 0,
            win: 60_000,
            label: None,
        }
    }

    /// Forgets our numbers: the next SYN of ours begins another connection.
    pub fn begin_anew(&mut self) {
        self.ours = None;
        (self.our_shift, self.our_stamps) = (None, false);
    }

    fn scales(&self) -> bool {
        self.our_shift.is_some() && self.peer_shift.is_some()
    }

    fn has_stamps(&self) -> bool {
        self.our_stamps && self.peer_stamps
    }

    /// Builds the frame of a segment of the peer, `since` the beginning of the script.
    ///
    /// # Errors
    /// Fails when the header cannot express the segment.
    pub fn build(&mut self, seg: &Seg, ends: &Ends, since: Duration) -> Result<Vec<u8>, String> {
        let syn = seg.flags & SYN != 0;
        if let Some(more) = seg.new {
            self.peers = self.peers.wrapping_add(more);
            self.begin_anew();
        }
        if syn {
            self.peer_shift = seg.wscale;
            self.peer_stamps = matches!(seg.stamps, Stamps::With(..));
        }
        let shift = self.peer_shift.filter(|_| !syn && self.scales()).unwrap_or(0);
        let win = seg.win.unwrap_or(self.win >> shift << shift);
        self.win = win;
        if win >> shift << shift != win {
            return Err(format!("a window of {win} bytes is no multiple of {}", 1 << shift));
        }
        let window = u16::try_from(win >> shift).map_err(|_| "the window is too large")?;
        let dest = PORT;
        let source = seg.port.unwrap_or(self.peer_port);
        let bytes = Segment {
            source,
            dest,
            seq: absolute(self.peers, seg.seq),
            ack: seg.ack.map_or(0, |ack| absolute(self.ours.unwrap_or(0), ack)),
            flags: seg.flags,
            window,
            options: seg.faults.options.clone().unwrap_or_else(|| self.options(seg, since)),
            payload: self.payload(seg),
        }
        .bytes();
        self.wrap(seg, ends, bytes)
    }

    /// Wraps the bytes of a segment, with the faults that it is to have.
    fn wrap(&self, seg: &Seg, ends: &Ends, mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        let faults = &seg.faults;
        if let Some(urgent) = seg.urgent {
            bytes[18..20].copy_from_slice(&urgent.to_be_bytes());
        }
        if seg.ae {
            bytes[12] |= 1;
        }
        if let Some(words) = faults.offset {
            bytes[12] = words << 4;
        }
        let mut ip = Ip::new(ends.peer, ends.ours);
        ip.class = seg.ecn;
        ip.hops = faults.hops.unwrap_or(64);
        if faults.from_group {
            ip.from.1 = if ip.is_ipv6() { "ff02::1:3" } else { "224.0.0.9" }
                .parse()
                .map_err(|_| "an address of a group")?;
        }
        let mut bytes = ip.with_checksum(ip::TCP, 16, bytes);
        if faults.bad_checksum {
            bytes[17] ^= 1;
        }
        let mut frame = match (faults.fragment, ip.is_ipv6()) {
            (true, true) => {
                let header = [ip::TCP, 0, 0, 1, 0, 0, 0, 9];
                ip.frame(44, &[&header[..], &bytes].concat())
            }
            _ => ip.frame(ip::TCP, &bytes),
        };
        if faults.fragment && !ip.is_ipv6() {
            // More Fragments, and the checksum that follows from it.
            frame[20] = 0x20;
            frame[24..26].fill(0);
            let sum = heddle_testkit::frames::checksum(&[&frame[14..34]]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        if faults.bad_ip_checksum {
            frame[24] ^= 1;
        }
        if faults.broadcast {
            frame[..6].fill(0xff);
        }
        frame.truncate(frame.len().saturating_sub(faults.cut));
        Ok(frame)
    }

    fn options(&self, seg: &Seg, since: Duration) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(Mss::Is(mss)) = seg.mss {
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
        }
        if let Some(shift) = seg.wscale {
            options.extend([1, 3, 3, shift]);
        }
        if seg.sack_permitted {
            options.extend([1, 1, 4, 2]);
        }
        let clock = PEER_CLOCK + u32::try_from(since.as_millis()).unwrap_or(0);
        let stamps = match seg.stamps {
            Stamps::Agreed => self.has_stamps().then_some((clock, self.last_val)),
            Stamps::Without => None,
            Stamps::With(val, ecr) => {
                let base = self.first_val.unwrap_or(0);
                let ecr = ecr.map_or(self.last_val, |ecr| base.wrapping_add(ecr));
                Some((val.unwrap_or(clock), if self.ours.is_some() { ecr } else { 0 }))
            }
        };
        if let Some((val, ecr)) = stamps {
            options.extend([1, 1, 8, 10]);
            options.extend(val.to_be_bytes());
            options.extend(ecr.to_be_bytes());
        }
        if let Some((order, fields)) = &seg.counts {
            let len = u8::try_from(2 + 3 * fields.len()).unwrap_or(u8::MAX);
            options.extend([172 + 2 * order, len]);
            options.extend(fields.iter().flat_map(|f| f.to_be_bytes()[1..].to_vec()));
            options.resize(options.len().next_multiple_of(4), 1);
        }
        if let Some(bits) = seg.user_timeout {
            options.extend([28, 4]);
            options.extend(bits.to_be_bytes());
        }
        if !seg.sack.is_empty() {
            let len = u8::try_from(2 + 8 * seg.sack.len()).unwrap_or(u8::MAX);
            options.extend([1, 1, 5, len]);
            for (from, to) in &seg.sack {
                let base = self.ours.unwrap_or(0);
                options.extend(absolute(base, *from).to_be_bytes());
                options.extend(absolute(base, *to).to_be_bytes());
            }
        }
        options
    }

    fn payload(&self, seg: &Seg) -> Vec<u8> {
        // The first byte comes after the SYN.
        let first = if seg.flags & SYN != 0 { 0 } else { seg.seq - 1 };
        (first..).take(seg.len as usize).map(|at| byte_at(false, at.cast_unsigned())).collect()
    }

    /// Builds an ICMP error about a segment of ours. `host` has reported it.
    pub fn quote(&self, ends: &Ends, seq: i64, len: u32, port: Option<u16>) -> Vec<u8> {
        let quoted = Segment {
            source: PORT,
            dest: port.unwrap_or(self.peer_port),
            seq: absolute(self.ours.unwrap_or(0), seq),
            flags: ACK,
            options: vec![1; if self.has_stamps() { 12 } else { 0 }],
            payload: vec![0; len as usize],
            ..Segment::default()
        };
        let packet = Ip::new(ends.ours, ends.peer).packet(ip::TCP, &quoted.bytes());
        // A router quotes the header and some more, here eight bytes of TCP as RFC 792 has it.
        let head = if ends.ours.1.is_ipv6() { 40 } else { 20 };
        packet[..head + 8].to_vec()
    }

    /// Checks that all packets of the connection have one flow label.
    ///
    /// # Errors
    /// Fails if this packet has another.
    pub fn check_label(&mut self, header: &Ip) -> Result<(), String> {
        let label = *self.label.get_or_insert(header.label);
        if header.label != label || header.is_ipv6() && label == 0 {
            return Err(format!("the flow label {} after {label}", header.label));
        }
        Ok(())
    }

    /// Reads a segment of ours, whose header and checksums are right.
    ///
    /// # Errors
    /// Fails if the segment is not what every segment of the stack is.
    pub fn read(&mut self, header: &Ip, tcp: &Segment) -> Result<Seg, String> {
        let syn = tcp.flags & SYN != 0;
        if syn && self.ours.is_none() {
            self.ours = Some(tcp.seq);
        }
        let (ours, peers) = (self.ours.unwrap_or(0), self.peers);
        let known = |kind: &u8| [0, 1, 2, 3, 4, 5, 8, 28, 172, 174].contains(kind);
        if let Some(kind) = kinds(&tcp.options).iter().find(|kind| !known(kind)) {
            return Err(format!("an option of kind {kind}"));
        }
        let short = |o: &[u8]| Some(u16::from_be_bytes(o.try_into().ok()?));
        let long = |o: &[u8]| Some(u32::from_be_bytes(o.try_into().ok()?));
        let stamps = tcp.option(8).and_then(|o| Some((long(&o[..4])?, long(&o[4..])?)));
        if syn {
            self.our_shift = tcp.option(3).map(|o| o[0]);
            self.our_stamps = stamps.is_some();
        }
        if let Some((val, _)) = stamps
            && tcp.flags != heddle_testkit::frames::RST
        {
            self.first_val.get_or_insert(val);
            if self.last_val != 0 && relative(self.last_val, val) < 0 {
                return Err("the clock of timestamps runs back".to_owned());
            }
            self.last_val = val;
        }
        let sack = tcp.option(5).unwrap_or_default().chunks_exact(8).map(|block| {
            let at = |o: &[u8]| relative(peers, long(o).unwrap_or(0));
            (at(&block[..4]), at(&block[4..]))
        });
        let shift = self.our_shift.filter(|_| !syn && self.scales()).unwrap_or(0);
        let seq = relative(ours, tcp.seq);
        let first = seq - 1 + i64::from(syn);
        let right = |(at, byte): (i64, &u8)| byte_at(true, at.cast_unsigned()) == *byte;
        if !(first..).zip(&tcp.payload).all(right) {
            return Err("bytes that the owner did not queue there".to_owned());
        }
        if tcp.flags & ACK == 0 && tcp.ack != 0 {
            return Err("a number to acknowledge without ACK".to_owned());
        }
        Ok(Seg {
            flags: tcp.flags,
            seq,
            len: u32::try_from(tcp.payload.len()).unwrap_or(u32::MAX),
            ack: (tcp.flags & ACK != 0).then(|| relative(peers, tcp.ack)),
            win: Some(u32::from(tcp.window) << shift),
            mss: tcp.option(2).and_then(short).map(Mss::Is),
            wscale: tcp.option(3).map(|o| o[0]),
            sack_permitted: tcp.option(4).is_some(),
            stamps: match stamps {
                Some((val, ecr)) => {
                    let first = self.first_val.unwrap_or(0);
                    Stamps::With(Some(val.wrapping_sub(first)), Some(ecr))
                }
                None => Stamps::Without,
            },
            sack: sack.collect(),
            counts: (0..2).find_map(|n| Some((n, fields(tcp.option(172 + 2 * n)?)))),
            user_timeout: tcp.option(28).and_then(short),
            ecn: header.class & 3,
            port: Some(tcp.dest),
            ..Seg::default()
        })
    }

    /// Returns the names of the fields in which a segment of ours differs from the expected one.
    pub fn differences(&self, want: &Seg, got: &Seg, own_mss: u16) -> Vec<&'static str> {
        let syn = want.flags & SYN != 0;
        let mss = want.mss.map(|mss| if mss == Mss::Own { Mss::Is(own_mss) } else { mss });
        let port = want.port.unwrap_or(self.peer_port);
        let stamps = match (want.stamps, got.stamps) {
            (Stamps::Agreed, got) => {
                let due =
                    !syn && want.flags & heddle_testkit::frames::RST == 0 && self.has_stamps();
                // A reset may go without; a script that cares says so.
                let free = want.flags & heddle_testkit::frames::RST != 0;
                free || due == matches!(got, Stamps::With(..))
            }
            (Stamps::Without, got) => got == Stamps::Without,
            (Stamps::With(val, ecr), Stamps::With(v, e)) => {
                (val.is_none() || val == v) && (ecr.is_none() || ecr == e)
            }
            (Stamps::With(..), _) => false,
        };
        let same = [
            ("control bits", want.flags == got.flags),
            ("seq", want.seq == got.seq),
            ("length", want.len == got.len),
            ("ack", want.ack == got.ack),
            ("win", want.win.is_none() || want.win == got.win),
            ("mss", mss == got.mss),
            ("wscale", want.wscale == got.wscale),
            ("sack permitted", want.sack_permitted == got.sack_permitted),
            ("timestamps", stamps),
            ("sack", want.sack == got.sack),
            ("codepoint", want.ecn == got.ecn),
            ("AE", want.ae == got.ae),
            ("AccECN option", want.counts == got.counts),
            ("user timeout", want.user_timeout == got.user_timeout),
            ("port", got.port == Some(port)),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
    }
}

/// Returns the fields of an AccECN option.
fn fields(option: &[u8]) -> Vec<u32> {
    let field = |f: &[u8]| u32::from_be_bytes([0, f[0], f[1], f[2]]);
    option.chunks_exact(3).map(field).collect()
}

/// Returns the kinds of the options.
fn kinds(mut options: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [kind, rest @ ..] = options {
        kinds.push(*kind);
        let len = if *kind < 2 { 1 } else { usize::from(*rest.first().unwrap_or(&2)).max(2) };
        options = options.get(len..).unwrap_or_default();
    }
    kinds
}

impl fmt::Display for Seg {
    /// Writes the segment as a script would.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = String::new();
        if self.ae {
            words.push_str("AE ");
        }
        for (name, bit) in FLAGS {
            if self.flags & bit != 0 {
                words.push_str(name);
                words.push(' ');
            }
        }
        write!(words, "seq {}", self.seq)?;
        if self.len > 0 {
            write!(words, ":{}", self.seq + i64::from(self.len))?;
        }
        if let Some(ack) = self.ack {
            write!(words, " ack {ack}")?;
        }
        if let Some(win) = self.win {
            write!(words, " win {win}")?;
        }
        match self.mss {
            Some(Mss::Is(mss)) => write!(words, " mss {mss}")?,
            Some(Mss::Own) => words.push_str(" mss own"),
            None => {}
        }
        if let Some(shift) = self.wscale {
            write!(words, " wscale {shift}")?;
        }
        if self.sack_permitted {
            words.push_str(" sack");
        }
        if let Stamps::With(val, ecr) = self.stamps {
            let word = |n: Option<u32>| n.map_or("*".to_owned(), |n| n.to_string());
            write!(words, " ts {}:{}", word(val), word(ecr))?;
        }
        for (i, (from, to)) in self.sack.iter().enumerate() {
            write!(words, "{}{from}:{to}", if i == 0 { " sack " } else { "," })?;
        }
        if let Some((order, fields)) = &self.counts {
            let fields: Vec<_> = fields.iter().map(u32::to_string).collect();
            write!(words, " accecn{order} {}", fields.join(","))?;
        }
        if let Some(bits) = self.user_timeout {
            write!(words, " uto {}{}", bits & 0x7fff, if bits >> 15 == 0 { 's' } else { 'm' })?;
        }
        if self.flags & URG != 0 {
            words.push_str(" urg");
        }
        if self.ecn > 0 {
            write!(words, " {}", CODEPOINTS[usize::from(self.ecn)])?;
        }
        if let Some(port) = self.port.filter(|p| *p != PEER_PORT) {
            write!(words, " port {port}")?;
        }
        f.write_str(&words)
    }
}
