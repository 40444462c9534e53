//! The peer: frames in, frames out, and `heddle-tcp` between.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use heddle_base::{Instant, Seed, StreamPos, Sum};
use heddle_tcp::{
    ByteQueue, Cidr, ConnEvent, FrameOutcome, Stack, StackConfig, StackEvent, TxBody,
};
use heddle_types::ConnId;

use super::{Far, PEER};

/// A station whose frames are on a port, with a TCP of its own.
pub struct Peer {
    pub stack: Stack<ByteQueue>,
    pub events: Vec<(ConnId, StackEvent)>,
    /// Whether the peer ignores the frames that come.
    pub deaf: bool,
    /// The time that a frame takes to the peer.
    pub delay: Duration,
    late: VecDeque<(Instant, Vec<u8>)>,
    got: HashMap<ConnId, Vec<u8>>,
    far: Far,
}

impl Peer {
    pub fn new(far: Far) -> Peer {
        let addr = Cidr::new(PEER.into(), 24).unwrap();
        let stack = StackConfig {
            max_conns: 8192,
            ..StackConfig::new(far.mac(), addr, Seed::from_u64(99))
        };
        Peer {
            stack: Stack::new(stack),
            events: Vec::new(),
            deaf: false,
            delay: Duration::ZERO,
            late: VecDeque::new(),
            got: HashMap::new(),
            far,
        }
    }

    pub fn poll(&mut self, now: Instant) -> bool {
        let frames = self.far.burst();
        let mut busy = !frames.is_empty();
        if !self.deaf {
            self.late.extend(frames.into_iter().map(|bytes| (now + self.delay, bytes)));
        }
        while let Some((_, bytes)) = self.late.pop_front_if(|(at, _)| *at <= now) {
            self.take(now, &bytes);
        }
        self.stack.handle_timeouts(now);
        while let Some(mut frame) = self.stack.poll_transmit(now) {
            busy = true;
            let mut body = Vec::new();
            match &frame.body {
                TxBody::None => {}
                TxBody::Owned(b) => body.extend(b),
                TxBody::Stream { conn, pos, len, .. } => {
                    self.stack.user(*conn).unwrap().copy(*pos, *len, &mut body);
                }
            }
            frame.finish_tcp_checksum(Sum::of(&body));
            self.put(&[&frame.header[..], &body].concat());
        }
        while let Some(e) = self.stack.poll_event() {
            self.events.push(e);
        }
        busy
    }

    fn take(&mut self, now: Instant, frame: &[u8]) {
        let FrameOutcome::Conn { conn, acked, payload } = self.stack.handle_frame(now, frame)
        else {
            return;
        };
        if let Some(upto) = acked {
            self.stack.user_mut(conn).unwrap().release(upto);
            self.stack.notify_send(conn);
        }
        if let Some(p) = payload {
            assert_eq!(p.pos.since(StreamPos::START), self.got(conn).len() as u64, "in order");
            let bytes = &frame[p.frame_off..p.frame_off + p.len as usize];
            self.got.entry(conn).or_default().extend(bytes);
            self.stack.accept_payload(now, conn, p.pos, p.len);
        }
    }

    /// Puts a frame on the wire.
    pub fn put(&mut self, frame: &[u8]) {
        self.far.put(frame);
    }

    pub fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        self.stack.user_mut(conn).unwrap().push(bytes);
        self.stack.notify_send(conn);
    }

    /// Returns every byte that came on a connection.
    pub fn got(&self, conn: ConnId) -> &[u8] {
        self.got.get(&conn).map_or(&[], |v| v)
    }

    pub fn says(&self, conn: ConnId, event: ConnEvent) -> bool {
        self.events.contains(&(conn, StackEvent::Conn(event)))
    }

    /// Returns the peer's event of a connection's end, if the connection has ended.
    pub fn end_of(&self, conn: ConnId) -> Option<ConnEvent> {
        [ConnEvent::Reset, ConnEvent::PeerClosed, ConnEvent::Refused, ConnEvent::TimedOut]
            .into_iter()
            .find(|e| self.says(conn, *e))
    }

    /// Returns the connections that came to the peer.
    pub fn accepted(&self) -> Vec<ConnId> {
        let accepted = |e: &&(ConnId, StackEvent)| matches!(e.1, StackEvent::Accepted { .. });
        self.events.iter().filter(accepted).map(|e| e.0).collect()
    }
}
