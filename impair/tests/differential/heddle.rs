//! Heddle's TCP: the stack in this process, in virtual time.

use core::time::Duration;
use std::io;

use heddle_base::{Instant, Seed, StreamPos};
use heddle_tcp::{Cidr, ConnEvent, PeerLimit, StackConfig, StackEvent};
use heddle_types::ConnId;

use crate::flow::{Ends, PORT, byte_at};
use crate::host::Host;
use crate::host_under_test::{App, HostUnderTest};
use crate::{MAC, PEER_MAC, address};

/// The time that a call takes.
const TICK: Duration = Duration::from_micros(4);

/// Heddle's host.
pub struct Heddle {
    host: Option<Host>,
    conn: Option<ConnId>,
    app: App,
    written: u64,
}

impl Heddle {
    pub fn new() -> Heddle {
        Heddle { host: None, conn: None, app: App::default(), written: 0 }
    }

    fn host(&mut self) -> io::Result<&mut Host> {
        self.host.as_mut().ok_or_else(|| io::Error::other("no seed has begun"))
    }

    /// Returns the frames of a turn. No timer runs: Linux has no time for its own either. But the
    /// clock of initial sequence numbers ticks.
    fn frames(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let host = self.host()?;
        host.now = host.now + TICK;
        host.turn().map_err(io::Error::other)?;
        let frames = host.sent.drain(..).map(|(_, frame)| frame).collect();
        let events: Vec<_> = host.events.drain(..).collect();
        for (_, id, event) in events {
            match event {
                StackEvent::Accepted { .. } => {
                    self.conn = Some(id);
                    self.app.open = true;
                }
                StackEvent::Conn(ConnEvent::Connected) => self.app.open = true,
                StackEvent::Conn(ConnEvent::PeerClosed) => self.app.ended = true,
                StackEvent::Conn(
                    ConnEvent::Reset
                    | ConnEvent::Refused
                    | ConnEvent::TimedOut
                    | ConnEvent::Aborted,
                ) => self.app.failed = true,
                _ => {}
            }
        }
        Ok(frames)
    }
}

impl HostUnderTest for Heddle {
    fn begin(&mut self, ipv6: bool, accepted: bool, peer_port: u16) -> io::Result<Vec<Vec<u8>>> {
        let (ours, peer) = (address(ipv6, 1), address(ipv6, 2));
        let cidr = Cidr::new(ours, if ipv6 { 64 } else { 24 });
        let cidr = cidr.ok_or_else(|| io::Error::other("no address"))?;
        let mut cfg = StackConfig::new(MAC, cidr, Seed::from_u64(peer_port.into()));
        // Neither a timer nor a limit makes an answer depend on other answers.
        cfg.conn.delayed_ack = Duration::ZERO;
        cfg.conn.challenge_acks = 60_000;
        cfg.peer_conns = PeerLimit::Unlimited;
        cfg.peer_half_open = PeerLimit::Unlimited;
        let mut host = Host::new(cfg, Instant::from_millis(1000));
        let ends = Ends { ours: (MAC, ours), peer: (PEER_MAC, peer) };
        host.receive(&[ends.question()]).map_err(io::Error::other)?;
        host.sent.clear();
        (self.conn, self.app, self.written) = (None, App::default(), 0);
        if accepted {
            host.stack.listen(None, PORT, 8).map_err(io::Error::other)?;
        } else {
            let now = host.now;
            let id = host.stack.connect(now, (peer, peer_port).into(), Some(PORT));
            self.conn = Some(id.map_err(io::Error::other)?);
        }
        self.host = Some(host);
        self.frames()
    }

    fn receive(&mut self, frame: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let host = self.host()?;
        host.receive(&[frame.to_vec()]).map_err(io::Error::other)?;
        self.frames()
    }

    fn write(&mut self, len: u32) -> io::Result<Vec<Vec<u8>>> {
        let (conn, written) = (self.conn, self.written);
        let end = written + u64::from(len);
        let host = self.host()?;
        if let Some(id) = conn
            && let Some(queue) = host.stack.user_mut(id)
        {
            queue.push(&(written..end).map(|at| byte_at(true, at)).collect::<Vec<_>>());
            host.stack.notify_send(id);
            self.written = end;
        }
        self.frames()
    }

    fn close(&mut self) -> io::Result<Vec<Vec<u8>>> {
        if let Some(id) = self.conn {
            self.host()?.stack.close(id);
        }
        self.frames()
    }

    fn abort(&mut self) -> io::Result<Vec<Vec<u8>>> {
        if let Some(id) = self.conn {
            self.host()?.stack.abort(id);
            self.app.failed = true;
        }
        self.frames()
    }

    fn app(&mut self) -> io::Result<App> {
        let conn = self.conn;
        let host = self.host()?;
        let conn = conn.and_then(|id| host.stack.conn(id));
        let delivered = conn.map(|c| c.rcv_nxt().since(StreamPos::START));
        let state = match conn.map(|c| format!("{:?}", c.state())).as_deref() {
            Some("SynSent") => "SynSent",
            Some("SynReceived") => "SynReceived",
            Some("Established") => "Established",
            Some("FinWait1") => "FinWait1",
            Some("FinWait2") => "FinWait2",
            Some("CloseWait") => "CloseWait",
            Some("LastAck") => "LastAck",
            Some("Closing") => "Closing",
            _ => "Over",
        };
        if let Some(delivered) = delivered {
            self.app.delivered = delivered;
        }
        Ok(App { state: if self.app.open { state } else { "" }, ..self.app })
    }

    fn end(&mut self) -> io::Result<()> {
        self.host = None;
        Ok(())
    }
}
