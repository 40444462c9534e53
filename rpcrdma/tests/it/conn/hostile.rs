//! A peer that sends any bytes: this end does not panic, its memory is bounded, and each of its
//! calls ends exactly once.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use heddle_base::{Instant, Random, Seed};
use heddle_rpcrdma::conn::{Call, CallRefused, Config, Event, ReplyRoom, Side, Speaks};
use heddle_rpcrdma::reduce::Item;
use heddle_rpcrdma::{Xid, v2};

use crate::conn::allowed::Allowed;
use crate::conn::exchange::{message, scatter};
use crate::conn::model::{End, execute, read};

const MESSAGE_MAX: u32 = 40_000;

fn config(side: Side, speaks: Speaks) -> Config {
    Config { speaks, calls: 6, served: 4, message_max: MESSAGE_MAX, ..Config::new(side) }
}

/// Makes a call with chunks of all kinds.
fn call(end: &mut End, xid: u32, random: &mut Random) -> bool {
    let items = [9000, 5].map(|n| u32::try_from(random.below(n)).unwrap());
    let of = message(Xid(xid), 0, &items, usize::try_from(random.below(900)).unwrap(), random);
    let stream = scatter(&of.bytes, &mut end.mem, random);
    let room = scatter(&[0; 8000], &mut end.mem, random);
    let rooms: &[&[_]] = &[&room];
    let reply = if random.chance(0.5) {
        ReplyRoom { stream_max: Some(9000), items: rooms, whole: &room }
    } else {
        ReplyRoom { stream_max: Some(500), ..ReplyRoom::default() }
    };
    let call = Call {
        xid: Xid(xid),
        stream: &stream,
        items: &of.items,
        reply: Some(reply),
        deadline: None,
    };
    match end.conn.call(&call) {
        Ok(_) => true,
        Err(CallRefused::Busy | CallRefused::Closed | CallRefused::Xid) => false,
        Err(e) => panic!("{e}"),
    }
}

/// Replies to received calls. Returns the number of this end's calls that ended.
fn events(end: &mut End, random: &mut Random) -> u32 {
    let mut ended = 0;
    end.take_events();
    for event in std::mem::take(&mut end.events) {
        match event {
            Event::Call(call) => {
                end.mem.taken(call.buffer, call.length);
                let most = if random.chance(0.5) { 3000 } else { 200 };
                let items = [u32::try_from(random.below(most)).unwrap()];
                let of = message(call.xid, 1, &items, 20, random);
                let stream = scatter(&of.bytes, &mut end.mem, random);
                let answer = match random.below(4) {
                    0 => end.conn.refuse(call.id, v2::Refusal::BadXdr),
                    1 => end.conn.reply(call.id, &stream, &[] as &[Item]),
                    _ => end.conn.reply(call.id, &stream, &of.items),
                };
                // An error is fine: the connection may have been lost in the meantime.
                let _ = answer;
            }
            Event::Reply { reply, .. } => {
                if let heddle_rpcrdma::conn::ReplyStream::Buffer { buffer, length } = reply.stream {
                    end.mem.taken(buffer, length);
                }
                ended += 1;
            }
            Event::Sent { .. } | Event::Failed { .. } => ended += 1,
            _ => {}
        }
    }
    ended
}

/// Returns the messages of both ends of an honest connection.
fn captured(speaks: Speaks) -> [Vec<Vec<u8>>; 2] {
    let mut random = Random::new(&Seed::from_u64(1));
    let mut ends = [Side::Client, Side::Server].map(|side| End::new(config(side, speaks)));
    let mut seen = [Vec::new(), Vec::new()];
    for round in 0..400u32 {
        if round % 10 == 0 {
            call(&mut ends[0], round + 1, &mut random);
        }
        let [a, b] = &mut ends;
        a.pump(64);
        b.pump(64);
        let _ = (execute(a, b), execute(b, a), read(a, b), read(b, a), a.complete(), b.complete());
        for (end, seen) in ends.iter_mut().zip(&mut seen) {
            seen.extend(end.inbox.front().map(|(bytes, _)| bytes.clone()));
            end.receive(Instant::ZERO);
            events(end, &mut random);
        }
    }
    assert!(seen.iter().all(|seen| seen.len() > 30));
    seen
}

/// Changes a message a little, or not at all.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = |bytes: &Vec<u8>, random: &mut Random| {
        usize::try_from(random.below(bytes.len().max(1) as u64)).unwrap()
    };
    for _ in 0..random.below(4) {
        match random.below(6) {
            0 => bytes.truncate(at(bytes, random)),
            1 => bytes.extend(random.next_u64().to_be_bytes()),
            2..=3 => {
                let word = at(bytes, random) / 4 * 4;
                let values = [0, 1, 4, 40, 0x7fff_ffff, u32::MAX, random.next_u32()];
                let value = values[usize::try_from(random.below(7)).unwrap()];
                if let Some(to) = bytes.get_mut(word..word + 4) {
                    to.copy_from_slice(&value.to_be_bytes());
                }
            }
            _ => {
                let n = at(bytes, random);
                if let Some(byte) = bytes.get_mut(n) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

/// Gives a message another XID, in its header and its payload.
fn rename(bytes: &mut [u8], xid: u32) {
    let Some(old) = bytes.first_chunk::<4>().copied() else { return };
    for word in bytes.chunks_exact_mut(4).filter(|word| *word == old) {
        word.copy_from_slice(&xid.to_be_bytes());
    }
}

/// Runs a connection against a peer that sends captured messages, changed, in any order.
fn attack(side: Side, speaks: Speaks, seen: &[Vec<u8>], seed: u64) -> [u64; 3] {
    let mut random = Random::new(&Seed::from_u64(seed));
    let mut end = End::new(config(side, speaks));
    // For half of the seeds, memory is limited, so that calls wait.
    end.mem.room = (seed % 2 == 1).then_some(MESSAGE_MAX + 4000);
    let mut allowed = Allowed::default();
    let (mut made, mut ended, mut now) = (0, 0, Instant::ZERO);
    let mut nth = 0;
    // Most changes end the connection, so some peers change little and get further.
    let rate = [0.01, 0.1, 0.4][usize::try_from(random.below(3)).unwrap()];
    let mut latest = 1;
    for round in 0..300u32 {
        if random.chance(0.1) {
            let xid = round % 40 + 1;
            if call(&mut end, xid, &mut random) {
                (made, latest) = (made + 1, xid);
            }
        }
        now = now + Duration::from_millis(1);
        let mut bytes = match random.below(12) {
            0 if random.chance(rate) => {
                (0..random.below(100)).map(|_| random.next_u32().to_be_bytes()[0]).collect()
            }
            1 => seen[usize::try_from(random.below(seen.len() as u64)).unwrap()].clone(),
            // Messages of an honest peer in order let the attack get beyond the beginning.
            _ => {
                nth += 1;
                seen[(nth - 1) % seen.len()].clone()
            }
        };
        if round > 3 && random.chance(0.5) {
            rename(&mut bytes, latest);
        }
        if random.chance(rate) {
            mutate(&mut bytes, &mut random);
        }
        // The queue pair reports only the invalidation of a handle that it had.
        let invalidated = random.chance(rate / 20.0).then(|| end.any_handle()).flatten();
        invalidated.into_iter().for_each(|handle| end.invalidate(handle));
        allowed.receive(&bytes);
        end.conn.handle_receive(now, &bytes, invalidated, &mut end.mem);
        end.pump(64);
        allowed.check(&end);
        end.absorb();
        ended += events(&mut end, &mut random);
        end.conn.memory_returned(&mut end.mem);
        let most = usize::from(end.conn.config().served_slots()) + 2;
        assert!(end.conn.waiting() <= most, "{}", end.conn.waiting());
        assert!(end.mem.lent.len() <= most, "{}", end.mem.lent.len());
        let longest = end.mem.lent.keys().map(|buffer| end.mem.buffers[buffer].len()).max();
        assert!(longest.is_none_or(|bytes| bytes <= MESSAGE_MAX as usize));
    }
    end.disconnect();
    ended += events(&mut end, &mut random);
    assert_eq!(ended, made, "each call ends once");
    assert!(end.mem.lent.is_empty());
    let counters = end.conn.counters();
    [counters.calls_received, counters.replies_received, counters.bad_messages]
}

#[test]
fn test_connection_survives_mutated_messages_in_every_state() {
    let captures = [Speaks::V1, Speaks::V2].map(captured);
    let mut all = [0; 3];
    for seed in 0..120 {
        for (to, side) in [Side::Client, Side::Server].into_iter().enumerate() {
            for seen in &captures {
                for speaks in [Speaks::V1, Speaks::V2, Speaks::BOTH] {
                    let run = || attack(side, speaks, &seen[to], seed);
                    match catch_unwind(AssertUnwindSafe(run)) {
                        Ok(counts) => {
                            all.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                        }
                        Err(panic) => {
                            eprintln!("seed {seed}, {side:?}, {speaks:?}");
                            resume_unwind(panic);
                        }
                    }
                }
            }
        }
    }
    // The attacks get beyond the first message: calls come up, and replies end calls.
    assert!(all.iter().all(|&sum| sum > 200), "{all:?}");
}
