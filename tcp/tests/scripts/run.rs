//! Runs a script against the stack, and compares what the stack does with what the script expects.

use core::fmt::Write as _;
use core::net::IpAddr;
use core::time::Duration;

use heddle_base::{Instant, Seed};
use heddle_tcp::{
    Cidr, Congestion, ConnEvent, Ecn, IcmpError, Keepalive, Pacing, PathMtu, Patience, Stack,
    StackConfig, StackEvent, SynCookies, UserTimeoutOption,
};
use heddle_testkit::frames::{ACK, SYN, Segment};
use heddle_testkit::ip::{self, Ip};
use heddle_types::ConnId;

use crate::flow::{Ends, Flow, PEER_PORT, PORT, byte_at};
use crate::host::{Host, Taking};
use crate::parse::{
    CWR, ECE, Icmp, Line, Mss, Packet, Peer, Script, Seg, Stamps, Step, duration, number,
};

/// The time at which scripts begin.
const START: Instant = Instant::from_millis(1000);
/// Frames of the stack that a failure shows.
const SHOWN: usize = 12;

/// Runs `script` over IPv4 or IPv6.
///
/// # Errors
/// Fails with the line, the expectation and what the stack did instead.
pub fn run(script: &Script, ipv6: bool) -> Result<(), String> {
    let mut run = Run::new(script, ipv6)?;
    let family = if ipv6 { "IPv6" } else { "IPv4" };
    for line in &script.lines {
        run.execute(line).map_err(|e| {
            format!("line {}, over {family}: `{}`\n{e}\n{}", line.number, line.text, run.story())
        })?;
    }
    run.nothing_left().map_err(|e| format!("at the end, over {family}: {e}\n{}", run.story()))
}

struct Run {
    host: Host,
    ends: Ends,
    flows: Vec<(Flow, Option<ConnId>)>,
    /// The index of the current connection.
    current: usize,
    own_mss: u16,
    peer_isn: u32,
    /// When the last line was executed.
    last: Instant,
    /// Frames of both sides, for the report of a failure.
    log: Vec<String>,
}

/// A frame of the stack as scripts see it.
enum Seen {
    Tcp(Box<Seg>),
    Echo(usize),
    Ask,
    Answer,
}

impl Run {
    fn new(script: &Script, ipv6: bool) -> Result<Run, String> {
        let addr = |n: u8| -> IpAddr {
            if ipv6 {
                [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)].into()
            } else {
                [10, 0, 0, n].into()
            }
        };
        let ends =
            Ends { ours: ([2, 0, 0, 0, 0, 1], addr(1)), peer: ([2, 0, 0, 0, 0, 2], addr(2)) };
        let prefix = if ipv6 { 64 } else { 24 };
        let cidr = Cidr::new(ends.ours.1, prefix).ok_or("an address of ours")?;
        let mut cfg = StackConfig::new(ends.ours.0, cidr, Seed::from_u64(1));
        // Growing windows and probes would stand in scripts about other rules.
        (cfg.conn.recv_window_max, cfg.conn.path_mtu) = (0, PathMtu::Off);
        let (mut known, mut peer_isn) = (true, 0x1000_0000);
        for (number, words) in &script.settings {
            set(&mut cfg, &mut known, &mut peer_isn, words)
                .map_err(|e| format!("line {number}: {e}"))?;
        }
        let own_mss = cfg.conn.mss.min(cfg.mtu - if ipv6 { 60 } else { 40 });
        let mut run = Run {
            host: Host::new(cfg, START),
            ends,
            flows: vec![(Flow::new(PEER_PORT, peer_isn), None)],
            current: 0,
            own_mss,
            peer_isn,
            last: START,
            log: Vec::new(),
        };
        if known {
            // The peer introduces itself, as hosts of a link do.
            run.inject(&[run.ends.question()])?;
            run.host.sent.clear();
            run.host.answer = Some(run.ends.answer());
        }
        Ok(run)
    }

    fn stack(&mut self) -> &mut Stack<heddle_tcp::ByteQueue> {
        &mut self.host.stack
    }

    fn conn(&self) -> Result<ConnId, String> {
        self.flows[self.current].1.ok_or_else(|| "there is no connection".to_owned())
    }

    fn execute(&mut self, line: &Line) -> Result<(), String> {
        let due = self.last + line.after;
        match &line.step {
            Step::Out(_) | Step::Event(_) => self.wait(due, line)?,
            // A number may be looked at before the frames.
            Step::Check { .. } if line.after == Duration::ZERO => {}
            _ => {
                self.nothing_left()?;
                self.host.pass(due)?;
                self.nothing_left()?;
            }
        }
        match &line.step {
            Step::Quiet => {}
            Step::Begin { accepted, peer } => self.begin(*accepted, peer)?,
            Step::In(packet) => self.input(packet)?,
            Step::Out(packet) => self.output(packet)?,
            Step::Event(name) => self.event(name)?,
            Step::Call(words) => self.call(words)?,
            Step::Check { what, name, value } => self.check(what, name, value)?,
        }
        self.last = self.host.now;
        Ok(())
    }

    /// Waits for the frame or the event that `line` expects at `due`.
    fn wait(&mut self, due: Instant, line: &Line) -> Result<(), String> {
        let event = matches!(line.step, Step::Event(_));
        let waiting = |host: &Host| {
            if event { host.events.front().map(|e| e.0) } else { host.sent.front().map(|f| f.0) }
        };
        if waiting(&self.host).is_none() {
            if line.after > Duration::ZERO {
                self.nothing_left()?;
            }
            self.host.pass(due + line.slack)?;
        }
        let Some(at) = waiting(&self.host) else {
            let kind = if event { "reported" } else { "sent" };
            let now = self.time(self.host.now);
            return Err(match self.host.is_quiet() {
                true => format!("the stack has {kind} nothing until {now}"),
                false => format!("instead: {}", self.describe_next()),
            });
        };
        let (least, most) = (due.as_nanos() - nanos(line.slack), (due + line.slack).as_nanos());
        if (least..=most).contains(&at.as_nanos()) {
            return Ok(());
        }
        let (at, due) = (self.time(at), self.time(due));
        Err(format!("at {at} instead of {due}: {}", self.describe_next()))
    }

    /// Checks that the script has looked at all frames and events.
    fn nothing_left(&mut self) -> Result<(), String> {
        if self.host.is_quiet() {
            return Ok(());
        }
        Err(format!("the script does not expect: {}", self.describe_next()))
    }

    fn describe_next(&mut self) -> String {
        if let Some((at, frame)) = self.host.sent.front().cloned() {
            let at = self.time(at);
            return match self.see(&frame) {
                Ok(seen) => format!("> {} (at {at})", self.name(&seen)),
                Err(e) => format!("> a frame with {e} (at {at})"),
            };
        }
        match self.host.events.front() {
            Some((at, _, event)) => format!("event {} (at {})", word(event), self.time(*at)),
            None => "nothing".to_owned(),
        }
    }

    fn name(&self, seen: &Seen) -> String {
        match seen {
            Seen::Tcp(seg) => seg.to_string(),
            Seen::Echo(len) => format!("echo {len}"),
            Seen::Ask => "ask".to_owned(),
            Seen::Answer => "answer".to_owned(),
        }
    }

    fn time(&self, at: Instant) -> String {
        let ns = (at - START).as_nanos();
        format!("{}.{:06} ms", ns / 1_000_000, ns % 1_000_000)
    }

    /// Returns what was sent, for the report of a failure.
    fn story(&self) -> String {
        let skip = self.log.len().saturating_sub(SHOWN);
        let mut out = "the frames before:".to_owned();
        for line in &self.log[skip..] {
            let _ = write!(out, "\n    {line}");
        }
        out
    }

    fn note(&mut self, way: char, what: &str) {
        let at = self.time(self.host.now);
        self.log.push(format!("{at:>14} {way} {what}"));
    }

    fn inject(&mut self, frames: &[Vec<u8>]) -> Result<(), String> {
        self.host.receive(frames)?;
        self.adopt();
        Ok(())
    }

    /// Learns which connection an accepted connection is.
    fn adopt(&mut self) {
        let found = self.host.events.iter().filter_map(|(_, id, event)| match event {
            StackEvent::Accepted { remote, .. } => Some((*id, remote.port())),
            _ => None,
        });
        for (id, port) in found.collect::<Vec<_>>() {
            let flow = self.flow(port);
            self.flows[flow].1 = Some(id);
        }
    }

    /// Returns the index of the connection to `port` of the peer.
    fn flow(&mut self, port: u16) -> usize {
        if let Some(i) = self.flows.iter().position(|(f, _)| f.peer_port == port) {
            return i;
        }
        self.flows.push((Flow::new(port, self.peer_isn), None));
        self.flows.len() - 1
    }

    fn input(&mut self, packet: &Packet) -> Result<(), String> {
        let since = self.host.since(START);
        let frames = match packet {
            Packet::Ask => vec![self.ends.question()],
            Packet::Answer => vec![self.ends.answer()],
            Packet::Echo(len) => {
                let mut m =
                    vec![if self.ends.ours.1.is_ipv6() { 128 } else { 8 }, 0, 0, 0, 7, 7, 0, 1];
                m.extend((0..*len).map(|at| byte_at(false, at as u64)));
                vec![Ip::new(self.ends.peer, self.ends.ours).icmp_message(m)]
            }
            Packet::Icmp(icmp) => vec![self.icmp(icmp)?],
            Packet::Tcp(seg) => {
                let flow = seg.port.map_or(self.current, |port| self.flow(port));
                let ends = self.ends;
                let flow = &mut self.flows[flow].0;
                let built: Result<Vec<_>, _> =
                    seg.all().iter().map(|s| flow.build(s, &ends, since)).collect();
                for one in seg.all() {
                    self.note('<', &one.to_string());
                }
                built?
            }
        };
        self.inject(&frames)
    }

    fn icmp(&self, icmp: &Icmp) -> Result<Vec<u8>, String> {
        let v6 = self.ends.ours.1.is_ipv6();
        let (kind, code) = match (&icmp.kind[..], v6) {
            ("host-unreachable", false) => (3, 1),
            ("host-unreachable", true) => (1, 3),
            ("protocol-unreachable", false) => (3, 2),
            ("port-unreachable", false) => (3, 3),
            ("port-unreachable", true) => (1, 4),
            ("prohibited", false) => (3, 13),
            ("prohibited", true) => (1, 1),
            ("too-big", false) => (3, 4),
            ("too-big", true) => (2, 0),
            ("time-exceeded", false) => (11, 0),
            ("time-exceeded", true) => (3, 0),
            ("source-quench", false) => (4, 0),
            ("parameter-problem", false) => (12, 0),
            ("parameter-problem", true) => (4, 0),
            ("unknown-message", false) => (44, 0),
            ("unknown-message", true) => (204, 0),
            ("unknown-error", true) => (100, 0),
            (other, _) => return Err(format!("`{other}` is no ICMP error of this family")),
        };
        let mut message = vec![kind, code, 0, 0];
        message.extend(icmp.mtu.to_be_bytes());
        let (seq, len) = icmp.quote;
        message.extend(self.flows[self.current].0.quote(&self.ends, seq, len, icmp.port));
        let mut frame = Ip::new(self.ends.peer, self.ends.ours).icmp_message(message);
        if icmp.bad_checksum {
            let at = if v6 { 14 + 40 } else { 14 + 20 };
            frame[at + 2] ^= 1;
        }
        Ok(frame)
    }

    /// Reads a frame of the stack, and checks the part that all frames have in common.
    fn see(&mut self, frame: &[u8]) -> Result<Seen, String> {
        let Ends { ours, peer } = self.ends;
        let about_us = |target: &[u8]| match ours.1 {
            IpAddr::V4(ip) => target == ip.octets(),
            IpAddr::V6(ip) => target == ip.octets(),
        };
        if frame[12..14] == [8, 6] {
            let seen = match (frame[21], about_us(&frame[28..32])) {
                (1, true) => Seen::Ask,
                (2, true) => Seen::Answer,
                _ => return Err("another ARP packet".to_owned()),
            };
            return Ok(seen);
        }
        let parsed = std::panic::catch_unwind(|| Ip::parse(frame))
            .map_err(|_| "a wrong checksum or header".to_owned())?;
        let Some((ip, protocol, body)) = parsed else { return Err("no IP packet".to_owned()) };
        if ip.from != ours {
            return Err(format!("the sender {:?}", ip.from));
        }
        if protocol == ip::ICMPV6 && (body[0] == 135 || body[0] == 136) {
            return Ok(if body[0] == 135 { Seen::Ask } else { Seen::Answer });
        }
        if ip.to != peer || ip.hops != 64 {
            return Err(format!("the receiver {:?} and {} hops", ip.to, ip.hops));
        }
        if !ip.is_ipv6() && frame[20] & 0x40 == 0 {
            return Err("leave to be fragmented".to_owned());
        }
        match (protocol, body[0]) {
            (ip::TCP, _) => {}
            (ip::ICMP, 0) | (ip::ICMPV6, 129) => {
                let right = |(at, byte): (usize, &u8)| byte_at(false, at as u64) == *byte;
                let same = body[8..].iter().enumerate().all(|(at, b)| right((at, b)));
                return if same {
                    Ok(Seen::Echo(body.len() - 8))
                } else {
                    Err("other data".into())
                };
            }
            _ => return Err(format!("protocol {protocol}, type {}", body[0])),
        }
        let tcp = Segment::parse(body).ok_or("a malformed TCP header")?;
        if tcp.source != PORT {
            return Err(format!("port {}", tcp.source));
        }
        let flow = self.flow(tcp.dest);
        self.flows[flow].0.check_label(&ip)?;
        let seg = self.flows[flow].0.read(&ip, &tcp)?;
        Ok(Seen::Tcp(Box::new(Seg { ae: body[12] & 1 == 1, ..seg })))
    }

    fn output(&mut self, packet: &Packet) -> Result<(), String> {
        match packet {
            Packet::Tcp(seg) => seg.all().iter().try_for_each(|s| self.output_one(s)),
            other => {
                let (_, frame) = self.host.sent.pop_front().ok_or("nothing was sent")?;
                let seen = self.see(&frame)?;
                let same = match (other, &seen) {
                    (Packet::Echo(a), Seen::Echo(b)) => a == b,
                    (Packet::Ask, Seen::Ask) | (Packet::Answer, Seen::Answer) => true,
                    _ => false,
                };
                let name = self.name(&seen);
                self.note('>', &name);
                if same { Ok(()) } else { Err(format!("got: > {name}")) }
            }
        }
    }

    fn output_one(&mut self, want: &Seg) -> Result<(), String> {
        let Some((_, frame)) = self.host.sent.pop_front() else {
            return Err(format!("the stack has not sent: > {want}"));
        };
        let seen = self.see(&frame)?;
        let name = self.name(&seen);
        self.note('>', &name);
        let Seen::Tcp(seg) = seen else {
            return Err(format!("expected: > {want}\n     got: > {name}"));
        };
        let port = want.port.unwrap_or(self.flows[self.current].0.peer_port);
        let flow = self.flow(port);
        let differences = self.flows[flow].0.differences(
            &Seg { port: Some(port), ..want.clone() },
            &seg,
            self.own_mss,
        );
        if differences.is_empty() {
            return Ok(());
        }
        let what = differences.join(", ");
        Err(format!("expected: > {want}\n     got: > {name}\ndiffers in: {what}"))
    }

    fn event(&mut self, want: &str) -> Result<(), String> {
        let Some((_, _, event)) = self.host.events.pop_front() else {
            return Err(format!("the stack has not reported: {want}"));
        };
        let got = word(&event);
        if got == want { Ok(()) } else { Err(format!("got: event {got}")) }
    }

    /// Makes the handshake that most scripts begin with.
    fn begin(&mut self, accepted: bool, peer: &Peer) -> Result<(), String> {
        let offer = |flags: u8, ack: Option<i64>| Seg {
            flags,
            ack,
            win: Some(peer.win.min(65_535)),
            mss: Some(Mss::Is(peer.mss)),
            wscale: peer.wscale,
            sack_permitted: peer.sack,
            stamps: if peer.ts { Stamps::With(None, None) } else { Stamps::Without },
            ..Seg::default()
        };
        let bits = if peer.ecn || peer.accurate { ECE | CWR } else { 0 };
        // With accurate ECN the bits say that SYN and SYN-ACK came without ECT, and nothing is marked.
        let came = if peer.accurate { CWR } else { 0 };
        let last =
            Seg { flags: ACK | came, seq: 1, ack: Some(1), win: Some(peer.win), ..Seg::default() };
        let tcp = |seg: Seg| Packet::Tcp(Box::new(seg));
        let event = if accepted {
            self.listen()?;
            self.input(&tcp(Seg { ae: peer.accurate, ..offer(SYN | bits, None) }))?;
            self.skip_syn()?;
            self.host.pass(self.host.now + peer.rtt)?;
            self.input(&tcp(last))?;
            "accepted"
        } else {
            self.connect()?;
            self.skip_syn()?;
            self.host.pass(self.host.now + peer.rtt)?;
            let ecn = if peer.ecn { ECE } else { came };
            self.input(&tcp(offer(SYN | ACK | ecn, Some(1))))?;
            let counts = peer.accurate.then(|| (0, vec![1, 0, 1]));
            let ack = Seg { flags: ACK | came, seq: 1, ack: Some(1), counts, ..Seg::default() };
            self.output_one(&ack)?;
            if peer.win > 65_535 {
                return Err("a SYN has no window above 65,535 bytes".to_owned());
            }
            "connected"
        };
        self.event(event)?;
        self.nothing_left()
    }

    /// Takes the SYN or SYN-ACK of a handshake, whose options scripts of handshakes look at.
    fn skip_syn(&mut self) -> Result<(), String> {
        let (_, frame) = self.host.sent.pop_front().ok_or("the stack has sent no SYN")?;
        let seen = self.see(&frame)?;
        let name = self.name(&seen);
        self.note('>', &name);
        match seen {
            Seen::Tcp(seg) if seg.flags & SYN != 0 => Ok(()),
            _ => Err(format!("a SYN was due, got: > {name}")),
        }
    }

    fn listen(&mut self) -> Result<(), String> {
        self.stack().listen(None, PORT, 8).map_err(|e| e.to_string())
    }

    fn connect(&mut self) -> Result<(), String> {
        let (now, peer) = (self.host.now, self.ends.peer.1);
        let (flow, conn) = &mut self.flows[self.current];
        flow.begin_anew();
        let to = (peer, flow.peer_port).into();
        *conn = Some(self.host.stack.connect(now, to, Some(PORT)).map_err(|e| e.to_string())?);
        self.host.turn()
    }

    fn call(&mut self, words: &[String]) -> Result<(), String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let now = self.host.now;
        match words[..] {
            ["listen"] => self.listen()?,
            ["unlisten"] => self.stack().unlisten(now, None, PORT),
            ["connect"] => self.connect()?,
            ["send", n] => {
                let (id, n) = (self.conn()?, number::<u32>(n)?);
                let queue = self.stack().user_mut(id).ok_or("the connection is gone")?;
                let end = heddle_tcp::SendQueue::end(queue).since(heddle_base::StreamPos::START);
                let bytes: Vec<u8> =
                    (end..end + u64::from(n)).map(|at| byte_at(true, at)).collect();
                queue.push(&bytes);
                self.stack().notify_send(id);
            }
            ["close"] => {
                let id = self.conn()?;
                self.stack().close(id);
            }
            ["bound-close"] => {
                let id = self.conn()?;
                self.stack().bound_close(now, id);
            }
            ["abort"] => {
                let id = self.conn()?;
                self.stack().abort(id);
            }
            ["release"] => {
                let id = self.conn()?;
                self.stack().release(id);
            }
            ["window", n] => {
                let (id, n) = (self.conn()?, number(n)?);
                let (conn, _) = self.stack().get_mut(id).ok_or("the connection is gone")?;
                conn.set_recv_window(n);
                self.stack().notify_send(id);
            }
            ["take", "all"] => self.host.taking = Taking::All,
            ["take", "nothing"] => self.host.taking = Taking::Nothing,
            ["take", n] => self.host.taking = Taking::AtMost(number(n)?),
            ["keepalive", "off"] => self.keepalive(None)?,
            ["keepalive", idle, interval, count] => self.keepalive(Some(Keepalive {
                idle: duration(idle)?,
                interval: duration(interval)?,
                count: number(count)?,
            }))?,
            ["patience", user_timeout, zero_window, close_stall] => {
                let id = self.conn()?;
                let (conn, _) = self.host.stack.get_mut(id).ok_or("the connection is gone")?;
                conn.set_patience(Patience {
                    user_timeout: duration(user_timeout)?,
                    zero_window: duration(zero_window)?,
                    close_stall: duration(close_stall)?,
                });
                self.stack().notify_send(id);
            }
            ["dscp", n] => {
                let (id, n) = (self.conn()?, number(n)?);
                self.stack().set_dscp(id, n);
            }
            ["on", port] => {
                self.current = self.flow(number(port)?);
                return Ok(());
            }
            _ => return Err("unknown command".to_owned()),
        }
        self.host.turn()?;
        self.adopt();
        Ok(())
    }

    fn keepalive(&mut self, keepalive: Option<Keepalive>) -> Result<(), String> {
        let (id, now) = (self.conn()?, self.host.now);
        let (conn, _) = self.stack().get_mut(id).ok_or("the connection is gone")?;
        conn.set_keepalive(now, keepalive);
        self.stack().notify_send(id);
        Ok(())
    }

    fn check(&mut self, what: &str, name: &str, value: &str) -> Result<(), String> {
        let id = self.conn();
        let conn = id.ok().and_then(|id| self.host.stack.conn(id));
        let got = match (what, conn) {
            ("state", None) => "none".to_owned(),
            ("state", Some(c)) => format!("{:?}", c.state()),
            ("received", Some(c)) => c.rcv_nxt().since(heddle_base::StreamPos::START).to_string(),
            ("stat", Some(c)) => {
                let stats = c.stats();
                match name {
                    "cwnd" => stats.cwnd.to_string(),
                    "ssthresh" => stats.ssthresh.to_string(),
                    "in-flight" => stats.in_flight.to_string(),
                    _ => return Err("unknown name".to_owned()),
                }
            }
            ("counter", conn) => {
                let mut got = None;
                let mut look = |n: &str, v: u64| {
                    if n == name {
                        got = Some(v);
                    }
                };
                self.host.stack.counters().for_each(|n, _, v| look(n, v));
                if let Some(c) = conn {
                    c.counters().for_each(|n, _, v| look(n, v));
                }
                got.ok_or("no such counter")?.to_string()
            }
            _ => return Err("the connection is gone".to_owned()),
        };
        if got == value { Ok(()) } else { Err(format!("got: {got}")) }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the word for an event.
fn word(event: &StackEvent) -> String {
    match event {
        StackEvent::Accepted { .. } => "accepted".to_owned(),
        StackEvent::Unreachable => "unreachable".to_owned(),
        StackEvent::Withdrawn => "withdrawn".to_owned(),
        StackEvent::SoftError(IcmpError::Unreachable(code)) => format!("icmp-unreachable-{code}"),
        StackEvent::SoftError(IcmpError::TimeExceeded) => "icmp-time-exceeded".to_owned(),
        StackEvent::Conn(event) => match event {
            ConnEvent::Connected => "connected",
            ConnEvent::Unresponsive => "unresponsive",
            ConnEvent::Stalled => "stalled",
            ConnEvent::PeerClosed => "peer-closed",
            ConnEvent::Closed => "closed",
            ConnEvent::Reset => "reset",
            ConnEvent::TimedOut => "timed-out",
            ConnEvent::WindowShut => "window-shut",
            ConnEvent::Refused => "refused",
            ConnEvent::Aborted => "aborted",
        }
        .to_owned(),
        _ => "other".to_owned(),
    }
}

/// Changes a setting of the stack or of the peer.
fn set(
    cfg: &mut StackConfig,
    known: &mut bool,
    peer_isn: &mut u32,
    words: &[String],
) -> Result<(), String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [key, value, ..] = words[..] else { return Err("a value is missing".to_owned()) };
    let switch = || match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off".to_owned()),
    };
    let conn = &mut cfg.conn;
    match key {
        "delayed-ack" => conn.delayed_ack = duration(value)?,
        "peer-ack-delay" => conn.peer_ack_delay = duration(value)?,
        "rto-min" => conn.rto_min = duration(value)?,
        "rto-max" => conn.rto_max = duration(value)?,
        "rto-initial" => conn.rto_initial = duration(value)?,
        "idle-restart" => conn.idle_restart = duration(value)?,
        "user-timeout" => conn.user_timeout = duration(value)?,
        "user-timeout-option" => {
            conn.user_timeout_option = by_name(&UserTimeoutOption::NAMES, value)?
        }
        "user-timeout-limit" => conn.user_timeout_limit = duration(value)?,
        "zero-window" => conn.zero_window = duration(value)?,
        "close-stall" => conn.close_stall = duration(value)?,
        "fin-wait-2" => conn.fin_wait_2 = duration(value)?,
        "time-wait" => conn.time_wait = duration(value)?,
        "syn-retries" => conn.syn_retries = number(value)?,
        "syn-ack-retries" => conn.syn_ack_retries = number(value)?,
        "challenge-acks" => conn.challenge_acks = number(value)?,
        "recv-window" => conn.recv_window = number(value)?,
        "recv-window-max" => conn.recv_window_max = number(value)?,
        "path-mtu-probing" => conn.path_mtu = by_name(&PathMtu::NAMES, value)?,
        "mss" => conn.mss = number(value)?,
        "timestamps" => conn.timestamps = switch()?,
        "window-scaling" => conn.window_scaling = switch()?,
        "sack" => conn.sack = switch()?,
        "congestion" => conn.congestion = by_name(&Congestion::NAMES, value)?,
        "ecn" => conn.ecn = by_name(&Ecn::NAMES, value)?,
        "pacing" => conn.pacing = by_name(&Pacing::NAMES, value)?,
        "keepalive" => {
            let [_, idle, interval, count] = words[..] else { return Err("three values".into()) };
            let (idle, interval) = (duration(idle)?, duration(interval)?);
            conn.keepalive = Some(Keepalive { idle, interval, count: number(count)? });
        }
        "mtu" => cfg.mtu = number(value)?,
        "max-conns" => cfg.max_conns = number(value)?,
        "relisten" => cfg.relisten = duration(value)?,
        "syn-cookies" => cfg.syn_cookies = by_name(&SynCookies::NAMES, value)?,
        "peer-conns" => cfg.peer_conns = heddle_tcp::PeerLimit::AtMost(number(value)?),
        "peer-half-open" => cfg.peer_half_open = heddle_tcp::PeerLimit::AtMost(number(value)?),
        "neighbor" if value == "unknown" => *known = false,
        "peer-isn" => *peer_isn = number(value)?,
        _ => return Err(format!("unknown setting `{key}`")),
    }
    Ok(())
}

fn by_name<T: Copy>(names: &[(&str, T)], value: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == value);
    found.map(|(_, v)| *v).ok_or_else(|| format!("unknown value `{value}`"))
}
