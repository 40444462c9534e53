//! Reads scripts. `README.md` describes the language.

use core::time::Duration;

use heddle_testkit::frames::{ACK, FIN, PSH, RST, SYN};

/// Control bits that `testkit` does not name.
pub const URG: u8 = 0x20;
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

/// The words for control bits, in the order in which they are printed.
pub const FLAGS: [(&str, u8); 8] = [
    ("SYN", SYN),
    ("FIN", FIN),
    ("RST", RST),
    ("PSH", PSH),
    ("ACK", ACK),
    ("URG", URG),
    ("ECE", ECE),
    ("CWR", CWR),
];

/// The words for the ECN codepoints of IP, by value.
pub const CODEPOINTS: [&str; 4] = ["not-ect", "ect1", "ect0", "ce"];

/// The settings that `set` changes, in order.
pub type Settings = Vec<(usize, Vec<String>)>;

/// A script, read but not run.
#[derive(Debug, Default)]
pub struct Script {
    /// The rule that the first line names.
    pub rule: String,
    /// Runs over IPv6 alone, or over IPv4 alone.
    pub only_ipv6: Option<bool>,
    pub settings: Settings,
    pub lines: Vec<Line>,
}

/// A line that does something.
#[derive(Clone, Debug)]
pub struct Line {
    pub number: usize,
    pub text: String,
    /// Time since the line before.
    pub after: Duration,
    /// How much earlier or later an expectation may be met.
    pub slack: Duration,
    pub step: Step,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Time passes, and nothing happens.
    Quiet,
    /// The handshake, in one line: who opens, and the peer's words.
    Begin { accepted: bool, peer: Peer },
    /// The peer sends this.
    In(Packet),
    /// The stack sends this.
    Out(Packet),
    /// The stack reports this event.
    Event(String),
    /// The owner of the connection calls a function.
    Call(Vec<String>),
    /// A number of the connection or of the stack has a value.
    Check { what: String, name: String, value: String },
}

/// The peer of `begin`.
#[derive(Clone, Debug)]
pub struct Peer {
    pub mss: u16,
    pub win: u32,
    pub wscale: Option<u8>,
    pub sack: bool,
    pub ts: bool,
    pub ecn: bool,
    /// Asks for accurate ECN, or agrees to it.
    pub accurate: bool,
    pub rtt: Duration,
}

/// A packet of either side.
#[derive(Clone, Debug)]
pub enum Packet {
    Tcp(Box<Seg>),
    /// An ICMP error about a segment of the stack.
    Icmp(Icmp),
    /// An echo request (from the peer) or reply (of the stack) with so many bytes.
    Echo(usize),
    /// A question for the other's station address.
    Ask,
    /// The answer to such a question.
    Answer,
}

#[derive(Clone, Debug, Default)]
pub struct Icmp {
    pub kind: String,
    pub mtu: u32,
    /// The quoted segment: its number and its bytes.
    pub quote: (i64, u32),
    pub port: Option<u16>,
    pub bad_checksum: bool,
}

/// The maximum segment size of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mss {
    /// The stack's own: its MTU less the headers of the version of IP.
    Own,
    Is(u16),
}

/// The timestamps option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamps {
    /// As the handshake has agreed.
    #[default]
    Agreed,
    /// None, although agreed.
    Without,
    /// With these values; `None` for any, or for what the peer would say by itself.
    With(Option<u32>, Option<u32>),
}

/// A segment, or several that differ in their numbers. Numbers are relative to the initial sequence
/// number of their side.
#[derive(Clone, Debug, Default)]
pub struct Seg {
    pub flags: u8,
    pub seq: i64,
    pub len: u32,
    pub ack: Option<i64>,
    /// The last acknowledgment number of several.
    pub ack_to: Option<i64>,
    /// Bytes of each segment, or from one acknowledgment to the next.
    pub by: Option<u32>,
    /// In bytes, scaled.
    pub win: Option<u32>,
    pub mss: Option<Mss>,
    pub wscale: Option<u8>,
    pub sack_permitted: bool,
    pub stamps: Stamps,
    pub sack: Vec<(i64, i64)>,
    pub urgent: Option<u16>,
    /// The ECN codepoint of IP.
    pub ecn: u8,
    /// The control bit AE, which lies in another byte than the others.
    pub ae: bool,
    /// An AccECN option: its order, and its fields.
    pub counts: Option<(u8, Vec<u32>)>,
    /// The 16 bits of a user timeout option.
    pub user_timeout: Option<u16>,
    /// The peer's port, if not that of the current connection.
    pub port: Option<u16>,
    /// The connection begins anew, so far beyond the old initial sequence number.
    pub new: Option<u32>,
    pub faults: Faults,
}

/// The faults of a segment of the peer.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub bad_checksum: bool,
    pub bad_ip_checksum: bool,
    /// The data offset, in words.
    pub offset: Option<u8>,
    /// Bytes that the frame lacks at its end.
    pub cut: usize,
    /// Options as they are.
    pub options: Option<Vec<u8>>,
    pub hops: Option<u8>,
    pub fragment: bool,
    /// The frame goes to all stations.
    pub broadcast: bool,
    /// The packet comes from a group of hosts.
    pub from_group: bool,
}

type Words<'a> = core::iter::Peekable<std::str::SplitWhitespace<'a>>;

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// Fails with the number of the line and what is wrong with it.
    pub fn parse(text: &str) -> Result<Script, String> {
        let mut script = Script::default();
        let rule = text.lines().next().and_then(|l| l.strip_prefix("# "));
        let rule = rule.filter(|r| r.starts_with("RFC ") && r.contains(": "));
        script.rule = rule.ok_or("1: the first line is no `# RFC N section S: rule`")?.to_owned();
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                script.take(i + 1, line).map_err(|e| format!("{}: {e}: `{line}`", i + 1))?;
            }
        }
        if script.lines.is_empty() {
            return Err("1: the script does nothing".to_owned());
        }
        Ok(script)
    }

    fn take(&mut self, number: usize, text: &str) -> Result<(), String> {
        let mut words = text.split_whitespace().peekable();
        let (mut after, mut slack) = (Duration::ZERO, Duration::ZERO);
        if let Some(time) = words.next_if(|w| w.starts_with('+')) {
            let (a, s) = time[1..].split_once('~').unwrap_or((&time[1..], "0s"));
            (after, slack) = (duration(a)?, duration(s)?);
        }
        let step = match words.next() {
            None => Step::Quiet,
            Some(head @ ("set" | "only")) => {
                if !self.lines.is_empty() || after != Duration::ZERO {
                    return Err("settings come first".to_owned());
                }
                let rest: Vec<String> = words.map(str::to_owned).collect();
                match (head, &rest[..]) {
                    ("only", [v]) if v == "ipv4" || v == "ipv6" => {
                        self.only_ipv6 = Some(v == "ipv6");
                    }
                    ("set", [_, _, ..]) => self.settings.push((number, rest)),
                    _ => return Err("unknown setting".to_owned()),
                }
                return Ok(());
            }
            Some("begin") => begin(&mut words)?,
            Some("<") => Step::In(packet(&mut words)?),
            Some(">") => Step::Out(packet(&mut words)?),
            Some("event") => Step::Event(one(&mut words)?),
            Some(what @ ("stat" | "counter")) => {
                let (name, value) = (next(&mut words)?, one(&mut words)?);
                Step::Check { what: what.to_owned(), name: name.to_owned(), value }
            }
            Some(what @ ("state" | "received")) => {
                let value = one(&mut words)?;
                Step::Check { what: what.to_owned(), name: String::new(), value }
            }
            Some(call) => Step::Call([call].into_iter().chain(words).map(str::to_owned).collect()),
        };
        if slack != Duration::ZERO && !matches!(step, Step::Out(_) | Step::Event(_)) {
            return Err("only an expectation has a tolerance".to_owned());
        }
        self.lines.push(Line { number, text: text.to_owned(), after, slack, step });
        Ok(())
    }
}

fn next<'a>(words: &mut Words<'a>) -> Result<&'a str, String> {
    words.next().ok_or_else(|| "a word is missing".to_owned())
}

/// Returns the last word.
fn one(words: &mut Words<'_>) -> Result<String, String> {
    let word = next(words)?.to_owned();
    words.next().map_or(Ok(word), |more| Err(format!("unexpected `{more}`")))
}

fn begin(words: &mut Words<'_>) -> Result<Step, String> {
    let accepted = match next(words)? {
        "accepted" => true,
        "connected" => false,
        other => return Err(format!("`begin {other}`: accepted or connected")),
    };
    let mut peer = Peer {
        mss: 1000,
        win: 60_000,
        wscale: None,
        sack: true,
        ts: false,
        ecn: false,
        accurate: false,
        rtt: Duration::from_millis(1),
    };
    while let Some(word) = words.next() {
        match word {
            "mss" => peer.mss = number(next(words)?)?,
            "win" => peer.win = number(next(words)?)?,
            "wscale" => peer.wscale = Some(number(next(words)?)?),
            "rtt" => peer.rtt = duration(next(words)?)?,
            "nosack" => peer.sack = false,
            "ts" => peer.ts = true,
            "ecn" => peer.ecn = true,
            "accurate" => peer.accurate = true,
            other => return Err(format!("unexpected `{other}`")),
        }
    }
    Ok(Step::Begin { accepted, peer })
}

fn packet(words: &mut Words<'_>) -> Result<Packet, String> {
    match words.peek().copied() {
        Some("echo") => {
            words.next();
            Ok(Packet::Echo(number(&one(words)?)?))
        }
        Some("ask") => {
            words.next();
            Ok(Packet::Ask)
        }
        Some("answer") => {
            words.next();
            Ok(Packet::Answer)
        }
        Some("icmp") => {
            words.next();
            icmp(words).map(Packet::Icmp)
        }
        _ => segment(words).map(|s| Packet::Tcp(Box::new(s))),
    }
}

fn icmp(words: &mut Words<'_>) -> Result<Icmp, String> {
    let mut icmp = Icmp { kind: next(words)?.to_owned(), ..Icmp::default() };
    let mut quotes = false;
    while let Some(word) = words.next() {
        match word {
            "mtu" => icmp.mtu = number(next(words)?)?,
            "quote" => {
                icmp.quote = range(next(words)?)?;
                quotes = true;
            }
            "port" => icmp.port = Some(number(next(words)?)?),
            "bad-checksum" => icmp.bad_checksum = true,
            other => return Err(format!("unexpected `{other}`")),
        }
    }
    if quotes { Ok(icmp) } else { Err("an ICMP error quotes a segment".to_owned()) }
}

fn segment(words: &mut Words<'_>) -> Result<Seg, String> {
    let mut seg = Seg::default();
    let mut named = words.next_if_eq(&"-").is_some();
    seg.ae = words.next_if_eq(&"AE").is_some();
    named |= seg.ae;
    while let Some(bit) =
        words.peek().and_then(|w| FLAGS.iter().find(|(name, _)| name == w)).map(|(_, bit)| *bit)
    {
        words.next();
        seg.flags |= bit;
        named = true;
    }
    if !named {
        return Err("a segment begins with its control bits".to_owned());
    }
    let mut has_seq = false;
    while let Some(word) = words.next() {
        match word {
            "seq" => {
                (seg.seq, seg.len) = range(next(words)?)?;
                has_seq = true;
            }
            "ack" => {
                let word = next(words)?;
                let (from, to) = word.split_once("..").unwrap_or((word, ""));
                seg.ack = Some(number(from)?);
                if !to.is_empty() {
                    seg.ack_to = Some(number(to)?);
                }
            }
            "by" => seg.by = Some(number(next(words)?)?),
            "win" => seg.win = Some(number(next(words)?)?),
            "mss" => {
                seg.mss = Some(match next(words)? {
                    "own" => Mss::Own,
                    n => Mss::Is(number(n)?),
                });
            }
            "wscale" => seg.wscale = Some(number(next(words)?)?),
            "sack" if seg.flags & SYN != 0 => seg.sack_permitted = true,
            "sack" => {
                for block in next(words)?.split(',') {
                    let (from, to) = block.split_once(':').ok_or("a block is `A:B`")?;
                    seg.sack.push((number(from)?, number(to)?));
                }
            }
            "ts" => {
                let value = |s: &str| if s == "*" { Ok(None) } else { number(s).map(Some) };
                seg.stamps = match words.next_if(|w| w.contains(':')) {
                    None => Stamps::With(None, None),
                    Some(w) => {
                        let (val, ecr) = w.split_once(':').unwrap_or_default();
                        Stamps::With(value(val)?, value(ecr)?)
                    }
                };
            }
            "nots" => seg.stamps = Stamps::Without,
            "accecn0" | "accecn1" => {
                let fields = next(words)?;
                let fields = fields.split(',').filter(|f| *f != "-").map(number);
                let order = u8::from(word == "accecn1");
                seg.counts = Some((order, fields.collect::<Result<_, _>>()?));
            }
            "uto" => {
                let value = next(words)?;
                let (n, minutes) = match (value.strip_suffix('s'), value.strip_suffix('m')) {
                    (Some(n), _) => (n, 0),
                    (_, Some(n)) => (n, 1 << 15),
                    _ => return Err("a user timeout is `120s` or `600m`".to_owned()),
                };
                seg.user_timeout = Some(number::<u16>(n)? | minutes);
            }
            "urg" => seg.urgent = Some(number(next(words)?)?),
            "port" => seg.port = Some(number(next(words)?)?),
            "new" => seg.new = Some(number(next(words)?)?),
            "bad-checksum" => seg.faults.bad_checksum = true,
            "bad-ip-checksum" => seg.faults.bad_ip_checksum = true,
            "offset" => seg.faults.offset = Some(number(next(words)?)?),
            "cut" => seg.faults.cut = number(next(words)?)?,
            "options" => seg.faults.options = Some(hex(next(words)?)?),
            "hops" => seg.faults.hops = Some(number(next(words)?)?),
            "fragment" => seg.faults.fragment = true,
            "broadcast" => seg.faults.broadcast = true,
            "from-group" => seg.faults.from_group = true,
            other => match CODEPOINTS.iter().position(|c| *c == other) {
                Some(code) => seg.ecn = u8::try_from(code).unwrap_or(0),
                None => return Err(format!("unexpected `{other}`")),
            },
        }
    }
    match (has_seq, seg.ack.is_some() == (seg.flags & ACK != 0)) {
        (false, _) => Err("`seq` is missing".to_owned()),
        (_, false) => Err("`ack` goes with ACK, and ACK with `ack`".to_owned()),
        _ => Ok(seg),
    }
}

impl Seg {
    /// Returns the segments that this one stands for.
    pub fn all(&self) -> Vec<Seg> {
        let Some(by) = self.by.filter(|by| *by > 0) else { return vec![self.clone()] };
        let one = Seg { by: None, ack_to: None, ..self.clone() };
        if let (Some(from), Some(to)) = (self.ack, self.ack_to) {
            let acks = (from..).step_by(by as usize).take_while(|a| *a < to).chain([to]);
            return acks.map(|ack| Seg { ack: Some(ack), ..one.clone() }).collect();
        }
        let mut all = Vec::new();
        let end = self.seq + i64::from(self.len);
        let mut seq = self.seq;
        while seq < end {
            let len = u32::try_from(end - seq).unwrap_or(by).min(by);
            let last = seq + i64::from(len) == end;
            // The last segment of a burst has the bits that end something.
            let flags = if last { self.flags } else { self.flags & !(PSH | FIN) };
            all.push(Seg { seq, len, flags, ..one.clone() });
            seq += i64::from(len);
        }
        all
    }
}

/// Reads `A` or `A:B`, where B is the number after the last byte.
fn range(word: &str) -> Result<(i64, u32), String> {
    let (from, to) = word.split_once(':').unwrap_or((word, word));
    let (from, to): (i64, i64) = (number(from)?, number(to)?);
    let len = u32::try_from(to - from).map_err(|_| format!("`{word}` ends before it begins"))?;
    Ok((from, len))
}

/// Reads a number.
pub fn number<T: TryFrom<i64>>(word: &str) -> Result<T, String> {
    let n = word.parse::<i64>().ok().and_then(|n| T::try_from(n).ok());
    n.ok_or_else(|| format!("`{word}` is no number that fits"))
}

/// Reads a time, such as `1.5ms`.
pub fn duration(word: &str) -> Result<Duration, String> {
    let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (n, unit) = word.split_at(digits);
    let scale: u64 = match unit {
        "ns" => 1,
        "us" => 1000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(format!("`{word}` is no time")),
    };
    let wrong = || format!("`{word}` is no time");
    let (whole, part) = n.split_once('.').unwrap_or((n, ""));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let mut ns = whole * scale;
    let mut unit = scale;
    for digit in part.bytes() {
        unit /= 10;
        ns += u64::from(digit - b'0') * unit;
    }
    Ok(Duration::from_nanos(ns))
}

fn hex(word: &str) -> Result<Vec<u8>, String> {
    let pair = |i| word.get(i..i + 2).and_then(|p| u8::from_str_radix(p, 16).ok());
    let bytes: Option<Vec<u8>> = (0..word.len()).step_by(2).map(pair).collect();
    bytes.ok_or_else(|| format!("`{word}` is no hexadecimal number of whole bytes"))
}
