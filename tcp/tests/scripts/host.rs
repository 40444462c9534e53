//! The stack under test and its owner, in virtual time.

use core::time::Duration;
use std::collections::VecDeque;

use heddle_base::{Instant, StreamPos, Sum};
use heddle_tcp::{ByteQueue, FrameOutcome, Stack, StackConfig, StackEvent, TcpChecksum, TxBody};
use heddle_testkit::ip;
use heddle_types::ConnId;

use crate::flow::byte_at;

/// More frames than any script draws in a turn.
const ENDLESS: usize = 20_000;

/// The owner's way with bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    All,
    /// No byte: the owner is out of buffers.
    Nothing,
    /// At most so many bytes of each segment.
    AtMost(u32),
}

/// A host: the stack, and an owner that keeps the order of calls of the crate's documentation.
pub struct Host {
    pub stack: Stack<ByteQueue>,
    pub now: Instant,
    /// Frames that the script has not looked at, and when each was sent.
    pub sent: VecDeque<(Instant, Vec<u8>)>,
    pub events: VecDeque<(Instant, ConnId, StackEvent)>,
    pub taking: Taking,
    /// The frame that answers the stack's questions for the peer's station, if the peer does so by
    /// itself.
    pub answer: Option<Vec<u8>>,
}

impl Host {
    pub fn new(cfg: StackConfig, now: Instant) -> Host {
        Host {
            stack: Stack::new(cfg),
            now,
            sent: VecDeque::new(),
            events: VecDeque::new(),
            taking: Taking::All,
            answer: None,
        }
    }

    /// Returns true if the script has looked at everything.
    pub fn is_quiet(&self) -> bool {
        self.sent.is_empty() && self.events.is_empty()
    }

    /// Takes frames that arrive in one burst, as a worker does.
    ///
    /// # Errors
    /// Fails if the stack offers bytes that the peer did not send there.
    pub fn receive(&mut self, frames: &[Vec<u8>]) -> Result<(), String> {
        let mut burst: Vec<Option<&[u8]>> = frames.iter().map(|f| Some(&f[..])).collect();
        let mut at = 0;
        while at < burst.len() {
            let run = self.stack.handle_frames(self.now, &mut burst[at..]);
            let count = run.frames as usize;
            if let FrameOutcome::Conn { conn, acked, payload } = run.outcome {
                if let Some(upto) = acked
                    && let Some(queue) = self.stack.user_mut(conn)
                {
                    queue.release(upto);
                    self.stack.notify_send(conn);
                }
                if let Some(first) = payload {
                    let mut pos = first.pos;
                    for (i, frame) in frames[at..at + count].iter().enumerate() {
                        let len = if i + 1 == count { run.last } else { first.len };
                        let bytes = &frame[first.frame_off..first.frame_off + len as usize];
                        check(pos, bytes)?;
                        pos += u64::from(len);
                    }
                    self.take(conn, first.pos, pos.since(first.pos), first.len);
                }
            }
            at += count.max(1);
        }
        self.turn()
    }

    fn take(&mut self, conn: ConnId, pos: StreamPos, len: u64, segment: u32) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let len = match self.taking {
            Taking::All => len,
            Taking::Nothing => return,
            Taking::AtMost(most) => len.min(most),
        };
        if let Some((c, _)) = self.stack.get_mut(conn) {
            c.accept_segments(self.now, pos, len, segment);
            self.stack.notify_send(conn);
        }
    }

    /// Takes events and frames, until there are none.
    ///
    /// # Errors
    /// Fails if there is no end of them.
    pub fn turn(&mut self) -> Result<(), String> {
        self.take_events();
        for _ in 0..ENDLESS {
            let Some(mut frame) = self.stack.poll_transmit(self.now) else {
                self.take_events();
                return Ok(());
            };
            let mut body = Vec::new();
            match &frame.body {
                TxBody::None => {}
                TxBody::Stream { conn, pos, len, .. } => {
                    let queue = self.stack.user(*conn).ok_or("data of no connection")?;
                    queue.copy(*pos, *len, &mut body);
                }
                TxBody::Owned(bytes) => body.extend(bytes),
            }
            if frame.tcp_checksum == TcpChecksum::NeedsPayloadSum {
                frame.finish_tcp_checksum(Sum::of(&body));
            }
            let frame = [&frame.header[..], &body].concat();
            match &self.answer {
                Some(answer) if is_question(&frame) => {
                    self.stack.handle_frame(self.now, &answer[..]);
                }
                _ => self.sent.push_back((self.now, frame)),
            }
        }
        Err("the stack sends without end".to_owned())
    }

    fn take_events(&mut self) {
        while let Some((conn, event)) = self.stack.poll_event() {
            self.events.push_back((self.now, conn, event));
        }
    }

    /// Lets time pass until `end`, or until the stack sends or reports something.
    ///
    /// # Errors
    /// Fails if the stack has a timer that is always due.
    pub fn pass(&mut self, end: Instant) -> Result<(), String> {
        let mut turns = 0;
        while turns < ENDLESS {
            let next = self.stack.poll_timeout().filter(|at| *at <= end);
            let Some(next) = next else {
                self.now = self.now.max(end);
                return Ok(());
            };
            turns = if next > self.now { 0 } else { turns + 1 };
            self.now = self.now.max(next);
            self.stack.handle_timeouts(self.now);
            self.turn()?;
            if !self.is_quiet() {
                return Ok(());
            }
        }
        Err("a timer is always due".to_owned())
    }

    /// Returns the time since `start`.
    pub fn since(&self, start: Instant) -> Duration {
        self.now - start
    }
}

/// Returns true if a frame asks for the station of an address: by ARP, or by neighbor discovery.
fn is_question(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x06] => frame[21] == 1,
        [0x86, 0xdd] => frame[20] == ip::ICMPV6 && frame[54] == 135,
        _ => false,
    }
}

/// Checks that `bytes` are those of the peer's stream at `pos`.
fn check(pos: StreamPos, bytes: &[u8]) -> Result<(), String> {
    let start = pos.since(StreamPos::START);
    let right = (start..).zip(bytes).all(|(at, byte)| byte_at(false, at) == *byte);
    if right { Ok(()) } else { Err(format!("the stack delivers wrong bytes at {start}")) }
}
