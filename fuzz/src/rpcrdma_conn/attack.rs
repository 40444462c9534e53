//! Two ends, and a wire that changes their messages.

use std::time::Duration;

use heddle_base::Instant;
use heddle_rpcrdma::conn::{
    Call, CallId, CallRefused, Config, Event, ReplyRoom, ReplyStream, Side, Speaks,
};
use heddle_rpcrdma::property::{Properties, ReverseSupport};
use heddle_rpcrdma::{Xid, v2};

use super::Bytes;
use super::allowed::Allowed;
use super::choices::Choices;
use super::exchange::{message, scatter};
use super::model::{End, Refused, try_execute, try_read};

const MESSAGE_MAX: u32 = 40_000;

/// The number of steps of one input, of which most use its bytes.
const STEPS: u32 = 600;

/// The highest number of bytes of an invented message.
const MADE_UP: u64 = 256;

struct Application {
    calls: Vec<CallId>,
    made: u32,
    ended: u32,
    allowed: Allowed,
}

pub(super) struct Attack<'a> {
    choices: Bytes<'a>,
    ends: [End; 2],
    apps: [Application; 2],
    now: Instant,
    next_xid: u32,
}

fn config(side: Side, choices: &mut Bytes<'_>) -> Config {
    let speaks = [Speaks::V1, Speaks::V2, Speaks::BOTH][choices.below(3) as usize];
    let reverse = [
        ReverseSupport::None,
        ReverseSupport::Simple,
        ReverseSupport::Continued,
        ReverseSupport::General,
    ][choices.below(4) as usize];
    Config {
        speaks,
        calls: 6,
        served: 4,
        credits: 2 + choices.below(8) as u32,
        message_max: MESSAGE_MAX,
        parts_max: 1 + choices.below(4) as u32,
        properties: Properties { reverse, ..Properties::DEFAULT },
        ..Config::new(side)
    }
}

impl<'a> Attack<'a> {
    pub(super) fn new(mut choices: Bytes<'a>) -> Attack<'a> {
        let ends = [Side::Client, Side::Server].map(|side| End::new(config(side, &mut choices)));
        let app =
            || Application { calls: Vec::new(), made: 0, ended: 0, allowed: Allowed::default() };
        Attack { choices, ends, apps: [app(), app()], now: Instant::ZERO, next_xid: 1 }
    }

    /// Runs the input. Returns true if a call was made.
    pub(super) fn run(mut self) -> bool {
        for _ in 0..STEPS {
            // The queue pairs end the connection on a forbidden access.
            if self.step().is_err() {
                break;
            }
            (0..2).for_each(|end| self.events(end));
            self.ends.iter().for_each(assert_bounded);
        }
        for end in 0..2 {
            self.ends[end].disconnect();
            self.events(end);
            let (end, app) = (&self.ends[end], &self.apps[end]);
            assert_eq!(app.ended, app.made, "each call ends once");
            assert!(end.mem.lent.is_empty() && end.has_no_registrations());
        }
        self.apps.iter().any(|app| app.made > 0)
    }

    fn step(&mut self) -> Result<(), Refused> {
        let to = self.choices.below(2) as usize;
        let [a, b] = &mut self.ends;
        let (x, y) = if to == 0 { (a, b) } else { (b, a) };
        match self.choices.below(32) {
            0..=4 => {
                x.pump(1 + self.choices.below(64) as usize);
                self.apps[to].allowed.check(x);
            }
            5..=10 => {
                try_execute(x, y)?;
            }
            11..=12 => {
                try_read(x, y)?;
            }
            13..=17 => {
                x.complete();
            }
            18..=22 => {
                self.tamper(to);
                self.receive(to)?;
            }
            23..=25 => self.call(to),
            26 => self.make_up(to),
            27 => {
                self.now = self.now + Duration::from_millis(20);
                x.conn.handle_timeout(self.now);
            }
            28 => {
                if let Some(&call) = self.apps[to].calls.last() {
                    x.conn.cancel(call);
                }
            }
            29 => x.mem.refuse = self.choices.below(3) as u32,
            30 => x.fail = self.choices.below(2) as u32,
            _ => {
                x.conn.memory_available();
                x.conn.memory_returned(&mut x.mem);
            }
        }
        Ok(())
    }

    fn receive(&mut self, to: usize) -> Result<(), Refused> {
        let end = &mut self.ends[to];
        if let Some((bytes, _)) = end.inbox.front() {
            self.apps[to].allowed.receive(bytes);
        }
        end.try_receive(self.now).map(drop)
    }

    /// Changes the next message, repeats it, or puts another before it.
    fn tamper(&mut self, to: usize) {
        let choice = self.choices.below(24);
        // The queue pair can only have invalidated a handle that it had.
        let handle = if choice == 6 { self.ends[to].any_handle() } else { None };
        let inbox = &mut self.ends[to].inbox;
        let Some((bytes, invalidated)) = inbox.front_mut() else { return };
        let at = self.choices.below(bytes.len().max(1) as u64) as usize;
        match choice {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_slice(self.choices.take(8)),
            2 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = self.choices.below(256) as u8;
                }
            }
            3 => {
                let word = [0, 1, 4, 0x7fff_ffff, u32::MAX][self.choices.below(5) as usize];
                if let Some(to) = bytes.get_mut(at / 4 * 4..at / 4 * 4 + 4) {
                    to.copy_from_slice(&word.to_be_bytes());
                }
            }
            4 => {
                let again = (bytes.clone(), None);
                inbox.push_back(again);
            }
            5 => drop(inbox.pop_front()),
            6 => *invalidated = invalidated.or(handle),
            7 => inbox.rotate_left(1),
            _ => {}
        }
    }

    /// Delivers a message that the other end has not sent.
    fn make_up(&mut self, to: usize) {
        let length = self.choices.below(MADE_UP) as usize;
        let bytes = self.choices.take(length).to_vec();
        self.ends[to].inbox.push_front((bytes, None));
    }

    /// Makes a call with chunks of any kinds.
    fn call(&mut self, of: usize) {
        let choices = &mut self.choices;
        let items = [choices.below(9000) as u32, choices.below(6) as u32];
        let rest = choices.below(900) as usize;
        let xid = Xid(self.next_xid);
        let call = message(xid, 0, &items, rest, choices.contents());
        let End { conn, mem, .. } = &mut self.ends[of];
        let stream = scatter(&call.bytes, mem, choices.contents());
        let room = scatter(&[0; 8000], mem, choices.contents());
        let rooms: &[&[_]] = &[&room];
        let reply = match choices.below(8) {
            0 => None,
            1..=3 => Some(ReplyRoom { stream_max: Some(9000), items: rooms, whole: &room }),
            4 => Some(ReplyRoom { items: rooms, ..ReplyRoom::default() }),
            _ => Some(ReplyRoom { stream_max: Some(500), ..ReplyRoom::default() }),
        };
        let deadline = choices.chance(0.1).then(|| self.now + Duration::from_millis(30));
        let made = conn.call(&Call { xid, stream: &stream, items: &call.items, reply, deadline });
        match made {
            Ok(id) => {
                self.next_xid += 1;
                self.apps[of].made += 1;
                self.apps[of].calls.push(id);
            }
            Err(CallRefused::Busy | CallRefused::Closed) => {}
            Err(e) => panic!("{e}"),
        }
    }

    fn events(&mut self, of: usize) {
        let (end, app) = (&mut self.ends[of], &mut self.apps[of]);
        end.take_events();
        while let Some(event) = end.events.pop_front() {
            match event {
                Event::Call(call) => {
                    end.mem.taken(call.buffer, call.length);
                    let items = [self.choices.below(3000) as u32];
                    let of = message(call.xid, 1, &items, 20, self.choices.contents());
                    let stream = scatter(&of.bytes, &mut end.mem, self.choices.contents());
                    // The call may be lost in the meantime, or may not allow this answer, so an
                    // error is ignored.
                    let _ = match self.choices.below(5) {
                        0 => end.conn.refuse(call.id, v2::Refusal::BadXdr),
                        1 => end.conn.dismiss(call.id),
                        2 => end.conn.reply(call.id, &stream, &[]),
                        _ => end.conn.reply(call.id, &stream, &of.items),
                    };
                }
                Event::Reply { call, reply } => {
                    if let ReplyStream::Buffer { buffer, length } = reply.stream {
                        end.mem.taken(buffer, length);
                    }
                    app.end(call);
                }
                Event::Sent { call } | Event::Failed { call, .. } => app.end(call),
                _ => {}
            }
        }
    }
}

impl Application {
    fn end(&mut self, call: CallId) {
        let at = self.calls.iter().position(|of| *of == call).expect("it was under way");
        self.calls.remove(at);
        self.ended += 1;
    }
}

/// Checks that a connection has no more memory than its configuration allows.
fn assert_bounded(end: &End) {
    let config = end.conn.config();
    // Calls in service and calls that arrive, and replies that arrive.
    let most = usize::from(config.served_slots() + config.calls) + 2;
    assert!(end.mem.lent.len() <= most, "{} buffers", end.mem.lent.len());
    for buffer in end.mem.lent.keys() {
        assert!(end.mem.buffers[buffer].len() <= MESSAGE_MAX as usize);
    }
}
