//! Sessions that were valid until the test changed something in them, each on its own TCP
//! connection, beside an unchanged stream.
//!
//! A session follows from a seed: start-up, FPDUs of every opcode (RFC 5040, RFC 7306), with or
//! without markers. The test changes mostly ULPDUs, under a CRC that it recomputes; or the bytes of
//! the stream; or the way in which TCP cuts the stream. A changed session may still be valid. The
//! tests only require that no other peer's memory, stream or place is affected.
//!
//! Unchanged sessions alternate with them: these must end in order, and the stream beside them sets
//! the measure for the stream beside the changed ones.

use std::net::Shutdown;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heddle::Seed;
use heddle::connection::DisconnectReason;
use heddle_base::Random;
use heddle_testkit::mpa;

use crate::linux::{Client, PATIENCE};
use crate::net::{LINUX, Lab};
use crate::segments::{Stream, a, a_response, nothing, r, t, u};
use crate::target::{MARKED, PLACES, PLAIN, READ_LEN, RECV, Stags, TO, Target, WINDOW, plan};
use crate::traffic::{Company, Traffic};

/// Number of sessions at a time.
const PEERS: usize = 4;
/// Number of changed sessions in one turn, and of unchanged ones in the next.
const TURN: u64 = 100;
const UNCHANGED: u64 = 25;

fn below(r: &mut Random, n: usize) -> usize {
    usize::try_from(r.below(n as u64)).unwrap_or(0)
}

fn random_bytes(r: &mut Random, n: usize) -> Vec<u8> {
    (0..n).map(|_| r.next_u64().to_le_bytes()[0]).collect()
}

/// A ULPDU to send, and the length that its header states if that is not its own.
#[derive(Clone, Debug)]
struct Ulpdu {
    bytes: Vec<u8>,
    said: Option<u16>,
}

/// Returns the ULPDUs that a valid peer sends after its first FPDU. `id` names the atomic operation
/// that they answer.
fn valid(r: &mut Random, stags: &Stags, plan: u8, id: u32) -> Vec<Ulpdu> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let (mut sends, mut reads) = (0, 0);
    for _ in 0..1 + below(r, 6) {
        let at = below(r, WINDOW / 2);
        match below(r, 8) {
            0..=2 => {
                let len = [0, 1, 7, 100, 1400, 3000][below(r, 6)];
                let data = random_bytes(r, len);
                let pieces = data.chunks(1400).count().max(1);
                for n in 0..pieces {
                    let piece = data.chunks(1400).nth(n).unwrap_or(&[]);
                    let control = if n + 1 == pieces { 0xc1 } else { 0x81 };
                    all.push(t(control, 0x40, stags.all, TO + (at + 1400 * n) as u64, piece));
                }
            }
            3 | 4 if sends < 2 => {
                sends += 1;
                let opcode = [0x43, 0x45, 0x48, 0x49][below(r, 4)];
                let len = if opcode >= 0x48 { 8 } else { below(r, RECV + 1) };
                all.push(u(0x41, opcode, 0, [0, sends, 0], &random_bytes(r, len)));
            }
            5 if reads < 2 => {
                reads += 1;
                all.push(self::r(reads, [0, 1, 200, 3000][below(r, 4)], stags.all, TO + at as u64));
            }
            _ if reads < 2 => {
                reads += 1;
                let to = TO + at as u64 / 8 * 8;
                all.push(a(reads, [0, 2][below(r, 2)], stags.all, to, r.next_u64()));
            }
            _ => {}
        }
    }
    // The answers come in the order of the requests.
    if plan & plan::READ != 0 {
        let cut = 1 + below(r, READ_LEN - 1);
        let data = random_bytes(r, READ_LEN);
        all.push(t(0x81, 0x42, stags.sink, TO, &data[..cut]));
        all.push(t(0xc1, 0x42, stags.sink, TO + cut as u64, &data[cut..]));
    }
    if plan & plan::ATOMIC != 0 {
        all.push(a_response(1, id, r.next_u64()));
    }
    all.into_iter().map(|bytes| Ulpdu { bytes, said: None }).collect()
}

/// Changes one thing in the ULPDUs.
fn change(r: &mut Random, all: &mut Vec<Ulpdu>, stags: &Stags) {
    if all.is_empty() {
        return;
    }
    let (i, j) = (below(r, all.len()), below(r, all.len()));
    let len = all[i].bytes.len();
    // Change headers in most cases.
    let reach = if r.chance(0.7) { len.min(46) } else { len };
    match below(r, 11) {
        0 | 1 if reach > 0 => {
            let at = below(r, reach);
            all[i].bytes[at] ^= 1 << below(r, 8);
        }
        2 => all[i].bytes.truncate(below(r, len + 1)),
        3 => {
            let copy = all[i].clone();
            all.insert(j, copy);
        }
        4 => all.swap(i, j),
        5 => {
            let from = below(r, all[j].bytes.len() + 1);
            let tail = all[j].bytes[from..].to_vec();
            all[i].bytes.truncate(below(r, len + 1));
            all[i].bytes.extend(&tail);
        }
        6 => {
            let said = [len + 1, len.wrapping_sub(1), len + 4, 0, 0xffff, below(r, 0x1_0000)];
            all[i].said = Some(u16::try_from(said[below(r, 6)] & 0xffff).unwrap_or(0));
        }
        // Change the fields that address memory: of a tagged segment, a Read Request, an Atomic
        // Request.
        7 | 8 if len >= 14 => {
            let (stag, to) = match all[i].bytes[1] & 0x0f {
                1 if len >= 46 => (34, 38),
                10 if len >= 38 => (26, 30),
                _ => (2, 6),
            };
            if r.chance(0.4) {
                let s = stags;
                let others =
                    [s.gone, s.other_pd, s.other_stream, s.read_only, s.write_only, s.sink];
                let other = [&others[..], &[0, u32::MAX]].concat()[below(r, 8)];
                all[i].bytes[stag..stag + 4].copy_from_slice(&other.to_be_bytes());
            } else {
                let end = TO + WINDOW as u64;
                let other = [TO - 1, end - 1, end, end + 1, TO + 4, 0, u64::MAX, u64::MAX - 6];
                all[i].bytes[to..to + 8].copy_from_slice(&other[below(r, 8)].to_be_bytes());
            }
        }
        9 => {
            let more = below(r, 100);
            let more = random_bytes(r, more);
            all[i].bytes.extend(more);
        }
        _ => drop(all.remove(i)),
    }
}

fn part(r: &mut Random, len: usize) -> Range<usize> {
    let (a, b) = (below(r, len + 1), below(r, len + 1));
    a.min(b)..a.max(b)
}

/// Changes bytes of a stream, without regard to their CRC.
fn spoil(r: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match below(r, 5) {
        0 | 1 => bytes[below(r, len)] ^= 1 << below(r, 8),
        2 => bytes.truncate(below(r, len)),
        3 => drop(bytes.drain(part(r, len))),
        _ => {
            let copy = bytes[part(r, len)].to_vec();
            let at = below(r, len);
            bytes.splice(at..at, copy);
        }
    }
}

/// Sends the bytes in pieces. A peer that the target no longer listens to may stop or go on.
fn send_in_pieces(r: &mut Random, client: &mut Client, bytes: &[u8]) {
    let most = [usize::MAX, 1400, 200, 24][below(r, 4)];
    let mut rest = bytes;
    for _ in 0..48 {
        let n = if most == usize::MAX { rest.len() } else { rest.len().min(1 + below(r, most)) };
        let (piece, left) = rest.split_at(n);
        if piece.is_empty() || client.say(piece).is_err() {
            return;
        }
        rest = left;
    }
    let _ = client.say(rest);
}

/// Prints which session it was when a session fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the session of seed {}: HEDDLE_SESSION={} repeats it", self.0, self.0);
        }
    }
}

/// Runs the session of a seed, changed or not.
fn session(lab: &Lab, target: &Target, seed: u64, changed: bool) {
    let _name = Named(seed);
    let mut random = Random::new(&Seed::from_u64(seed));
    let r = &mut random;
    let markers = r.chance(0.5);
    let plan = [plan::READ, plan::ATOMIC, plan::SEND].iter().filter(|_| r.chance(0.4)).sum::<u8>();
    let mut request =
        if r.chance(0.5) { mpa::request(&[plan]) } else { mpa::enhanced_request(2, 2, &[plan]) };
    let startup = changed && r.chance(0.15);
    if startup {
        spoil(r, &mut request);
    }
    let port = if markers { MARKED } else { PLAIN };
    let mut client = Client::connect(lab, LINUX[0], port).expect("a TCP connection");
    send_in_pieces(r, &mut client, &request);
    // The last byte may be missing, so do not wait long then.
    let patience = if startup { Duration::from_millis(50) } else { PATIENCE };
    let reply = client.reply(patience);
    let said = reply.as_ref().ok().and_then(|r| r.private_data.last_chunk::<28>());
    let Some(stags) = said.map(|b| Stags::parse(b)) else {
        assert!(startup, "a valid Request is answered: {reply:?}");
        let _ = client.stream.shutdown(Shutdown::Write);
        let (_, end) = client.rest();
        assert_ne!(end, Some(std::io::ErrorKind::TimedOut), "the server does not end it");
        return;
    };

    // Send a first FPDU, so that the application's requests go out and the peer can answer them.
    let mut stream = Stream::new(markers);
    let first = if r.chance(0.5) { nothing() } else { t(0xc1, 0x40, stags.all, TO, &[1; 9]) };
    stream.push(&first);
    let begin = stream.bytes.len();
    let mut id = 0;
    if !startup {
        client.say(&stream.bytes).expect("it is sent");
        for _ in 0..plan.count_ones() {
            let m = client.recv(PATIENCE).expect("what the application has posted");
            if m.opcode == 10 {
                id = m.payload[4..8].iter().fold(0, |v, b| v << 8 | u32::from(*b));
            }
        }
    }
    let mut all = valid(r, &stags, plan, id);
    let raw = changed && r.chance(0.25);
    if changed && r.chance(0.2) {
        // Add a message that would end a valid session: a Terminate, or a Send that invalidates.
        let bytes = if r.chance(0.5) {
            u(0x41, 0x47, 0, [2, 1, 0], &[0x12, 0x02, 0, 0])
        } else {
            u(0x41, [0x44, 0x46][below(r, 2)], stags.all, [0, 1, 0], &[])
        };
        all.insert(below(r, all.len() + 1), Ulpdu { bytes, said: None });
    }
    for _ in 0..if changed && !raw { 1 + below(r, 3) } else { 0 } {
        change(r, &mut all, &stags);
    }
    for ulpdu in &all {
        let own = u16::try_from(ulpdu.bytes.len()).expect("a length");
        stream.push_saying(&ulpdu.bytes, ulpdu.said.unwrap_or(own));
    }
    if changed && r.chance(0.1) && stream.marked.len() > 1 {
        // Make a marker wrong, under a correct CRC.
        let marker = stream.marked[below(r, stream.marked.len())];
        let at = marker + below(r, 4);
        stream.bytes[at] ^= 1 << below(r, 8);
        stream.seal_around(marker);
    }
    let mut bytes = stream.bytes.split_off(if startup { 0 } else { begin });
    for _ in 0..if raw { 1 + below(r, 3) } else { 0 } {
        spoil(r, &mut bytes);
    }
    send_in_pieces(r, &mut client, &bytes);
    let local = client.local;
    if changed && r.chance(0.3) {
        drop(client.reset());
    } else {
        let _ = client.stream.shutdown(Shutdown::Write);
        let (_, end) = client.rest();
        assert_ne!(end, Some(std::io::ErrorKind::TimedOut), "the server does not end it");
    }
    let ended = target.ended(local);
    if !changed {
        assert_eq!(ended.reason, Ok(DisconnectReason::Orderly), "a valid session");
    }
}

/// Runs the sessions of these seeds, several at a time.
fn sessions(lab: &Lab, target: &Target, seeds: Range<u64>, changed: bool) {
    let next = AtomicU64::new(seeds.start);
    thread::scope(|s| {
        for _ in 0..PEERS {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    session(lab, target, seed, changed);
                }
            });
        }
    });
}

/// Returns how many connections each address of the peers gets at a time. The first address
/// connects until the target refuses the next connection, then the next address connects beside it,
/// and so on. An address may have as many places as are left free, so each takes half of what the
/// addresses before it left.
fn places(lab: &Lab, target: &Target) -> Vec<usize> {
    let mut all = Vec::new();
    let mut taken = Vec::new();
    for from in LINUX {
        let before = all.len();
        while all.len() <= PLACES
            && let Ok(mut client) = Client::connect(lab, from, PLAIN)
        {
            let Ok(reply) = client.start(&mpa::request(&[plan::NOTHING])) else { break };
            assert!(!reply.rejected);
            all.push(client);
        }
        taken.push(all.len() - before);
    }
    for client in all {
        let local = client.local;
        client.reset().expect("a RST");
        let _ = target.ended(local);
    }
    target.assert_all_is_back();
    taken
}

fn run(count: u64) {
    let seeds = match std::env::var("HEDDLE_SESSION").map(|s| s.parse::<u64>()) {
        Ok(Ok(seed)) => seed..seed + 1,
        Ok(Err(e)) => panic!("HEDDLE_SESSION: {e}"),
        Err(_) => 0..count,
    };
    let lab = Lab::new(1500);
    let target = Target::start(&lab);
    // Together the addresses take every place, so the count shows even a single place that is still
    // held.
    let shares = [24, 12, 6, 3, 2, 1];
    assert_eq!(shares.iter().sum::<usize>(), PLACES);
    assert_eq!(places(&lab, &target), shares, "places for connections, by address");
    let mut traffic = Traffic::start(&lab);
    let start = Instant::now();
    let mut next = seeds.start;
    while next < seeds.end {
        let end = seeds.end.min(next + TURN);
        let unchanged = next..end.min(next + UNCHANGED);
        traffic.beside(Company::Honest, || sessions(&lab, &target, unchanged, false));
        traffic.beside(Company::Hostile, || sessions(&lab, &target, next..end, true));
        target.assert_guards();
        next = end;
    }
    eprintln!("{} changed sessions in {:.1?}", seeds.end - seeds.start, start.elapsed());
    let counters = target.snapshot().worker.engine.qps;
    eprintln!("{counters:?}");
    traffic.finish();
    target.assert_all_is_back();
    // TIME-WAIT lasts 10 ms here, so wait longer.
    thread::sleep(Duration::from_millis(100));
    assert_eq!(places(&lab, &target), shares, "places for connections, by address");
    target.assert_guards();
}

#[test]
fn test_mutated_sessions_harm_no_memory_stream_or_place_of_others() {
    run(1000);
}

/// The long run, for `scripts/test --full`.
#[test]
#[ignore = "ten times as many: 20 s"]
fn test_ten_thousand_mutated_sessions_harm_no_others() {
    run(10_000);
}
