//! Calls in both directions over a connection, compared with the contents that were sent.

use std::collections::HashMap;
use std::time::Duration;

use heddle_base::Instant;
use heddle_rpcrdma::conn::{
    Call, CallError, CallId, CallRefused, Event, ReplyRoom, ServeError, ServedId, Side, Speaks,
};
use heddle_rpcrdma::header::Refusal;
use heddle_rpcrdma::{Xid, v2};

use super::choices::{Choices, config, index, up_to};
use super::exchange::{Lent, Message, assert_reply, message, scatter};
use super::model::{End, execute, read};

/// The caller's record of its call.
struct Ours {
    xid: Xid,
    lent: Lent,
    has_reply: bool,
    given_up: bool,
}

/// The record of a call on the other side.
struct Told {
    call: Message,
    has_reply: bool,
    /// Largest lengths of the results in bytes.
    rooms: Vec<u32>,
    stream_max: u32,
    served: u32,
    answer: Option<Result<Message, ()>>,
}

struct Theirs {
    xid: Xid,
    lent: Option<Lent>,
}

#[derive(Default)]
struct Application {
    ours: HashMap<CallId, Ours>,
    theirs: HashMap<ServedId, Theirs>,
    waiting: Vec<ServedId>,
    told: HashMap<Xid, Told>,
    next_xid: u32,
    made: u32,
    ended: u32,
}

/// Two ends, and the records of their applications.
pub(crate) struct World<C> {
    choices: C,
    /// Length of the longest item in bytes.
    largest: u32,
    now: Instant,
    ends: [End; 2],
    apps: [Application; 2],
    version: u32,
    /// True if calls may be refused, run out of memory or be cancelled.
    wild: bool,
    /// True for each end whose queue pair has ended.
    lost: [bool; 2],
}

impl<C: Choices> World<C> {
    /// Creates two ends with random configurations from `choices`, and items of up to `largest`
    /// bytes.
    pub(crate) fn new(mut choices: C, largest: u32) -> World<C> {
        let version = 1 + up_to(&mut choices, 1);
        let speaks = if version == 1 {
            [(Speaks::V1, Speaks::BOTH), (Speaks::BOTH, Speaks::V1)]
        } else {
            [(Speaks::BOTH, Speaks::BOTH), (Speaks::V2, Speaks::BOTH)]
        };
        let speaks = speaks[usize::from(choices.chance(0.5))];
        let mut client = config(Side::Client, speaks.0, largest, &mut choices);
        let mut server = config(Side::Server, speaks.1, largest, &mut choices);
        let known = choices.chance(0.7).then_some(());
        client.peers_private_data = known.map(|()| server.private_data);
        server.peers_private_data = known.map(|()| client.private_data);
        let wild = choices.chance(0.5);
        let ends = [End::new(client), End::new(server)];
        let (now, apps) = (Instant::ZERO, Default::default());
        World { choices, largest, now, ends, apps, version, wild, lost: [false; 2] }
    }

    /// Returns a random length in bytes for an item: mostly a small one.
    fn size(&mut self, is_small: bool) -> u32 {
        let most = match self.choices.below(100) {
            _ if is_small => 60,
            0 => self.largest,
            1..=10 => self.largest / 16,
            11..=40 => 9000,
            _ => 300,
        };
        up_to(&mut self.choices, most)
    }

    fn call(&mut self, end: usize) {
        // Reverse-direction calls of version 1 carry only short messages.
        let is_small = self.version == 1 && end == 1;
        let count = |choices: &mut C| if is_small { 0 } else { choices.below(4) };
        let items: Vec<_> = (0..count(&mut self.choices)).map(|_| self.size(is_small)).collect();
        let rest = self.size(is_small) as usize / 4;
        let rooms: Vec<_> = (0..count(&mut self.choices)).map(|_| self.size(is_small)).collect();
        let stream_max = 40 + 4 * 3 + self.size(is_small);
        let app = &mut self.apps[end];
        app.next_xid += 1;
        let xid = Xid(app.next_xid * 2 + u32::try_from(end).unwrap());
        let has_reply = self.version == 1 || !self.choices.chance(0.1);
        let call = message(xid, 0, &items, rest, self.choices.contents());
        let mem = &mut self.ends[end].mem;
        let mut lend = |bytes: u32, choices: &mut C| {
            scatter(&vec![0; bytes as usize], mem, choices.contents())
        };
        let rooms_lent = rooms.iter().map(|&n| lend(n, &mut self.choices)).collect();
        let has_whole = !is_small && (self.version == 1 || self.choices.chance(0.6));
        let whole = if has_whole { lend(stream_max, &mut self.choices) } else { Vec::new() };
        let stream = scatter(&call.bytes, mem, self.choices.contents());
        let lent = Lent { stream, rooms: rooms_lent, whole };
        let room_lists: Vec<&[_]> = lent.rooms.iter().map(|r| &r[..]).collect();
        let known = self.choices.chance(0.8);
        let room = ReplyRoom {
            stream_max: known.then_some(stream_max),
            items: &room_lists,
            whole: &lent.whole,
        };
        let waits = Duration::from_millis(1 + self.choices.below(50));
        let deadline = (self.wild && self.choices.chance(0.2)).then(|| self.now + waits);
        let made = self.ends[end].conn.call(&Call {
            xid,
            stream: &lent.stream,
            items: &call.items,
            reply: has_reply.then_some(room),
            deadline,
        });
        match made {
            Ok(id) => {
                let app = &mut self.apps[end];
                let ours = Ours { xid, lent, has_reply, given_up: deadline.is_some() };
                assert!(app.ours.insert(id, ours).is_none());
                app.made += 1;
                let told = Told { call, has_reply, rooms, stream_max, served: 0, answer: None };
                self.apps[1 - end].told.insert(xid, told);
            }
            Err(CallRefused::Busy) => lent.free(mem),
            Err(CallRefused::Closed) if self.lost[end] => lent.free(mem),
            Err(e) => panic!("{e}"),
        }
    }

    /// Answers one of the calls that wait.
    fn answer(&mut self, end: usize) {
        let app = &mut self.apps[end];
        if app.waiting.is_empty() {
            return;
        }
        let nth = index(&mut self.choices, app.waiting.len());
        let id = app.waiting.swap_remove(nth);
        let xid = app.theirs[&id].xid;
        let told = app.told.get_mut(&xid).unwrap();
        let end = &mut self.ends[end];
        if !told.has_reply {
            end.conn.dismiss(id).unwrap();
            return;
        }
        if self.wild && self.choices.chance(0.1) {
            told.answer = Some(Err(()));
            end.conn.refuse(id, v2::Refusal::System).unwrap();
            return;
        }
        let too_long = self.wild && self.choices.chance(0.1);
        let less = |most: u32, choices: &mut C| up_to(choices, most) + u32::from(too_long) * 9000;
        let items: Vec<_> = told.rooms.iter().map(|&n| less(n, &mut self.choices)).collect();
        let rest = less(told.stream_max - 40 - 12, &mut self.choices) as usize / 4;
        let reply = message(xid, 1, &items, rest, self.choices.contents());
        let stream = scatter(&reply.bytes, &mut end.mem, self.choices.contents());
        end.conn.reply(id, &stream, &reply.items).unwrap();
        told.answer = Some(Ok(reply));
        app.theirs.get_mut(&id).unwrap().lent = Some(Lent { stream, ..Lent::default() });
    }

    fn event(&mut self, end: usize, event: Event) {
        let (app, other) = match &mut self.apps {
            [a, b] if end == 0 => (a, b),
            [a, b] => (b, a),
        };
        let End { mem, conn, .. } = &mut self.ends[end];
        match event {
            Event::Established { version } => assert_eq!(version, self.version),
            Event::Properties(_) => assert_eq!(self.version, 2),
            Event::Close(reason) => panic!("{reason}"),
            Event::Call(call) => {
                let got = mem.taken(call.buffer, call.length);
                let told = app.told.get_mut(&call.xid).unwrap();
                assert!(got == told.call.bytes, "{:?}", call.xid);
                for item in call.reads.as_slice() {
                    assert!(told.call.items.contains(item), "{item:?}");
                }
                told.served += 1;
                let theirs = Theirs { xid: call.xid, lent: None };
                assert!(app.theirs.insert(call.id, theirs).is_none());
                app.waiting.push(call.id);
                assert!(call.id.index() < conn.config().served_slots().into());
            }
            Event::Served { id, result } => {
                let theirs = app.theirs.remove(&id).expect("it was being served");
                app.waiting.retain(|of| *of != id);
                let told = app.told.get_mut(&theirs.xid).unwrap();
                match result {
                    Ok(()) => {}
                    Err(ServeError::Refused(_)) => {
                        assert!(self.wild, "{:?}", told.answer.is_some());
                        told.answer = Some(Err(()));
                    }
                    Err(ServeError::Lost) => assert!(self.lost[end]),
                }
                if let Some(lent) = theirs.lent {
                    self.ends[end].assert_safe(&lent.buffers());
                    lent.free(&mut self.ends[end].mem);
                }
            }
            Event::Reply { call, reply } => {
                let ours = app.ours.remove(&call).expect("it was under way");
                let answer = other.told[&ours.xid].answer.as_ref().expect("it was answered");
                assert_reply(answer.as_ref().expect("by a reply"), &reply, &ours.lent, mem);
                self.end_call(end, ours);
            }
            Event::Sent { call } => {
                let ours = app.ours.remove(&call).expect("it was under way");
                assert!(!ours.has_reply);
                self.end_call(end, ours);
            }
            Event::Failed { call, error } => {
                let ours = app.ours.remove(&call).expect("it was under way");
                let told = &other.told[&ours.xid];
                match error {
                    CallError::Lost => assert!(self.lost[end]),
                    CallError::Cancelled | CallError::TimedOut => assert!(ours.given_up),
                    CallError::Refused(Refusal::V1(_) | Refusal::V2(_)) => {
                        assert!(self.wild, "{error}");
                        assert!(!matches!(told.answer, Some(Ok(_))), "it was answered");
                    }
                    CallError::NoMemory | CallError::Registration => assert!(self.wild, "{error}"),
                    _ => panic!("{error}"),
                }
                self.end_call(end, ours);
            }
        }
    }

    fn end_call(&mut self, end: usize, ours: Ours) {
        self.apps[end].ended += 1;
        self.ends[end].assert_safe(&ours.lent.buffers());
        ours.lent.free(&mut self.ends[end].mem);
    }

    fn events(&mut self) {
        for end in 0..2 {
            self.ends[end].take_events();
            while let Some(event) = self.ends[end].events.pop_front() {
                self.event(end, event);
            }
        }
    }

    fn step(&mut self, end: usize) {
        let [a, b] = &mut self.ends;
        let (x, y) = if end == 0 { (a, b) } else { (b, a) };
        match self.choices.below(24) {
            0..=3 => x.pump(1 + index(&mut self.choices, 16)),
            4..=8 => drop(execute(x, y)),
            9..=10 => drop(read(x, y)),
            11..=14 => drop(x.complete()),
            15..=18 => drop(x.receive(self.now)),
            19 => {
                self.now = self.now + Duration::from_millis(1);
                x.conn.handle_timeout(self.now);
            }
            20..=21 => self.answer(end),
            22 if self.wild && self.choices.chance(0.3) => {
                if let Some((id, ours)) = self.apps[end].ours.iter_mut().min_by_key(|(_, o)| o.xid)
                {
                    ours.given_up = true;
                    x.conn.cancel(*id);
                }
            }
            23 if self.wild => match self.choices.below(6) {
                0 => x.mem.refuse = 1,
                1 => x.fail = 1,
                2 => x.pool = 60 + index(&mut self.choices, 40),
                3 => drop(x.conn.memory_returned(&mut x.mem)),
                _ => x.conn.memory_available(),
            },
            _ => {}
        }
        self.events();
    }

    /// Performs a step of an end without a peer: nothing receives what the end posts.
    fn step_alone(&mut self, end: usize) {
        let x = &mut self.ends[end];
        match self.choices.below(5) {
            0 => x.pump(1 + index(&mut self.choices, 16)),
            1 => drop(x.complete()),
            2 => drop(x.receive(self.now)),
            3 => self.answer(end),
            _ => self.call(end),
        }
        self.events();
    }

    /// Makes at most `calls` calls, and lets them end: by their replies, or with the connection.
    pub(crate) fn run(&mut self, calls: u32) {
        let mut budget = 4_000_000u32;
        let loses = self.choices.chance(0.2);
        let calls = if loses { up_to(&mut self.choices, calls) } else { calls };
        while self.apps.iter().map(|app| app.made).sum::<u32>() < calls {
            let end = index(&mut self.choices, 2);
            if self.choices.chance(0.1) {
                self.call(end);
            }
            self.step(end);
            budget -= 1;
            assert!(budget > 0, "they do not get on");
        }
        if loses {
            return self.lose();
        }
        let ended =
            |w: &World<C>| w.apps.iter().all(|app| app.ours.is_empty() && app.theirs.is_empty());
        while !ended(self) || self.ends.iter().any(|end| !end.is_idle()) {
            for end in &mut self.ends {
                end.conn.memory_available();
                end.conn.memory_returned(&mut end.mem);
            }
            let end = index(&mut self.choices, 2);
            self.step(end);
            budget -= 1;
            assert!(budget > 0, "they do not get on");
        }
        self.assert_over();
        assert!(self.ends.iter().all(End::has_no_registrations), "something is still in reach");
    }

    /// Loses the connection: one end learns of the loss first.
    fn lose(&mut self) {
        let first = index(&mut self.choices, 2);
        self.disconnect(first);
        for _ in 0..self.choices.below(40) {
            self.step_alone(1 - first);
        }
        self.disconnect(1 - first);
        self.assert_over();
        let made = [0, 1].map(|end| self.apps[end].made);
        (0..2).for_each(|end| self.call(end));
        assert_eq!([0, 1].map(|end| self.apps[end].made), made, "there is no connection");
    }

    fn disconnect(&mut self, end: usize) {
        self.lost[end] = true;
        self.ends[end].disconnect();
        self.events();
    }

    fn assert_over(&self) {
        for (app, end) in self.apps.iter().zip(&self.ends) {
            assert!(app.ours.is_empty() && app.theirs.is_empty());
            assert_eq!(app.ended, app.made, "each call ends once");
            assert!(app.told.values().all(|told| told.served <= 1));
            assert!(end.mem.lent.is_empty(), "buffers were not given back");
            assert!(end.mem.buffers.is_empty(), "memory is left");
        }
    }
}
