//! An honest peer beside hostile ones: it reads back what it has written and compares. Its
//! throughput beside hostile peers is compared with its throughput beside other honest peers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use heddle_testkit::mpa;

use crate::linux::{Client, PATIENCE};
use crate::net::{LINUX, Lab};
use crate::target::{PLAIN, Stags, TO, WINDOW, plan};

/// Bytes of each Write and of each Read.
const BLOCK: usize = 8 << 10;
/// Factor for the number of rounds that may be needed to tell an attack from another program's
/// load.
const MORE: u32 = 8;
/// Bytes of a segment.
const SEGMENT: usize = 1400;

/// A stream that goes on until it is dropped.
pub struct Traffic {
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    failed: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
    /// For each kind of company: the bytes written and read back, and the time that took.
    beside: [(u64, Duration); 2],
}

/// The kind of peers beside the stream.
#[derive(Clone, Copy, Debug)]
pub enum Company {
    /// Peers that do nothing wrong, as many and as fast as the hostile ones.
    Honest = 0,
    /// The peers whose effect the test measures.
    Hostile = 1,
}

impl Traffic {
    /// Starts the stream, from an address that the hostile peers do not use.
    pub fn start(lab: &Lab) -> Traffic {
        let mut client = Client::connect(lab, LINUX[1], PLAIN).expect("a connection");
        let reply = client.start(&mpa::request(&[plan::NOTHING])).expect("a Reply");
        let stag = Stags::parse(&reply.private_data).all;
        let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let failed = Arc::new(Mutex::new(None));
        let (done, stopped, said) = (bytes.clone(), stop.clone(), failed.clone());
        let thread = thread::spawn(move || {
            let mut round = 0;
            while !stopped.load(Ordering::Relaxed) {
                round += 1;
                if let Err(e) = exchange(&mut client, stag, round) {
                    *said.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    return;
                }
                done.fetch_add(2 * BLOCK as u64, Ordering::Relaxed);
            }
        });
        let t = Traffic { bytes, stop, failed, thread: Some(thread), beside: Default::default() };
        t.go_on();
        t
    }

    fn assert_well(&self) {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(failed.is_none(), "the honest stream: {failed:?}");
    }

    /// Waits until the stream has made more progress.
    pub fn go_on(&self) {
        let (before, start) = (self.bytes.load(Ordering::Relaxed), Instant::now());
        while self.bytes.load(Ordering::Relaxed) < before + 4 * BLOCK as u64 {
            self.assert_well();
            assert!(start.elapsed() < PATIENCE, "the honest stream stands still");
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Counts the stream's progress while `f` runs.
    pub fn beside<T>(&mut self, company: Company, f: impl FnOnce() -> T) -> T {
        let (before, start) = (self.bytes.load(Ordering::Relaxed), Instant::now());
        let result = f();
        let (bytes, time) = &mut self.beside[company as usize];
        *bytes += self.bytes.load(Ordering::Relaxed) - before;
        *time += start.elapsed();
        self.assert_well();
        result
    }

    /// Runs at least `least` rounds, each of which measures beside peers of both kinds, and more
    /// rounds while the result so far is unfair: another program of the machine slows a part of a
    /// short run, and an attack slows every part of a long one.
    pub fn rounds(&mut self, least: u32, mut round: impl FnMut(&mut Traffic, u32)) {
        for n in 0..least * MORE {
            if n >= least && self.is_fair() {
                break;
            }
            round(self, n);
        }
    }

    /// Returns the MiB per second beside each kind of company.
    fn rates(&self) -> [f64; 2] {
        self.beside.map(|(bytes, time)| {
            f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) / 1024.0 / time.as_secs_f64()
        })
    }

    /// Returns true if the stream was at least half as fast beside hostile peers as beside honest
    /// ones: both took turns, on the same machine beside the same programs.
    fn is_fair(&self) -> bool {
        let [honest, hostile] = self.rates();
        hostile > honest / 2.0
    }

    /// Ends the stream, after checking that its speed beside hostile peers was fair.
    pub fn finish(mut self) {
        self.go_on();
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))), "the honest stream has panicked");
        self.assert_well();
        let [honest, hostile] = self.rates();
        let times = self.beside.map(|b| b.1);
        eprintln!(
            "honest stream: {honest:.1} MiB/s beside honest peers, {hostile:.1} beside hostile ones \
             ({times:?})"
        );
        assert!(self.is_fair(), "{hostile:.1} MiB/s, {honest:.1} beside honest peers");
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends one Write, reads the bytes back, and checks that they are the same.
fn exchange(client: &mut Client, stag: u32, round: u32) -> Result<(), String> {
    let at = TO + u64::from(round % 2) * (WINDOW - BLOCK) as u64;
    let data: Vec<u8> =
        (0..).map(|i: u32| (i.wrapping_mul(31) ^ round).to_le_bytes()[0]).take(BLOCK).collect();
    let mut out = Vec::new();
    for (n, piece) in data.chunks(SEGMENT).enumerate() {
        let to = at + (n * SEGMENT) as u64;
        out.extend(mpa::write((n + 1) * SEGMENT >= BLOCK, stag, to, piece));
    }
    let len = u32::try_from(BLOCK).unwrap_or(0);
    out.extend(mpa::read_request(round, (1, 0), len, (stag, at)));
    client.say(&out).map_err(|e| format!("round {round}: {e}"))?;
    let mut back = Vec::new();
    while back.len() < BLOCK {
        let m = client.recv(PATIENCE).map_err(|e| format!("round {round}: {e}"))?;
        if (m.opcode, m.tagged) != (mpa::READ_RESPONSE, Some((1, back.len() as u64))) {
            return Err(format!("round {round}: {m:?}"));
        }
        back.extend(m.payload);
    }
    if back == data { Ok(()) } else { Err(format!("round {round}: other bytes came back")) }
}
