//! Trees of more objects than the service remembers: every handle stays valid, and no call takes
//! long.
#![allow(clippy::unwrap_used, clippy::result_large_err, clippy::print_stdout, reason = "tests")]

use std::fs::{self, File};
use std::time::{Duration, Instant};

use crate::common::{Direct, Lab};
use heddle_nfs::Options;
use heddle_nfs::client::{Client, Outgoing, Pipeline, Returned, Token, Transport, TransportError};
use heddle_nfs::wire::{FileType, Handle};

/// Carries calls to the service, and records the time of the longest.
struct Timed {
    direct: Direct,
    calls: u64,
    longest: Duration,
}

impl Transport for &mut Timed {
    fn submit(&mut self, call: &Outgoing<'_>) -> Result<Token, TransportError> {
        let start = Instant::now();
        let done = self.direct.submit(call);
        self.longest = self.longest.max(start.elapsed());
        self.calls += 1;
        done
    }

    fn wait(&mut self) -> Result<Returned, TransportError> {
        self.direct.wait()
    }
}

impl Timed {
    fn new(lab: &Lab) -> Timed {
        Timed { direct: Direct::new(&lab.service), calls: 0, longest: Duration::ZERO }
    }

    /// Lists all of a tree, as `find` does, and returns the handles of its objects.
    fn find(&mut self, root: Handle) -> Vec<Handle> {
        let mut client = Client::new(self, Pipeline::default());
        let (mut all, mut dirs) = (Vec::new(), vec![root]);
        while let Some(dir) = dirs.pop() {
            let list = client.list(dir, |entry| {
                let handle = entry.handle.unwrap();
                if entry.attributes.unwrap().kind == FileType::Directory {
                    dirs.push(handle);
                }
                all.push(handle);
            });
            list.unwrap();
        }
        all
    }

    /// Asks for the attributes of each object, as a client does that has listed them and wants to
    /// know whether they changed.
    fn check<'a>(&mut self, handles: impl Iterator<Item = &'a Handle>) {
        let mut client = Client::new(self, Pipeline::default());
        // Each call succeeds at once: the server puts off no handle (`JUKEBOX`).
        handles.for_each(|&handle| _ = client.getattr(handle).unwrap());
    }

    fn report(&mut self, what: &str, took: Duration) {
        let Timed { calls, longest, .. } = *self;
        let each = took.as_secs_f64() * 1e6 / calls as f64;
        println!("{what}: {calls} calls, {each:.1} us each, the longest {longest:?}");
        (self.calls, self.longest) = (0, Duration::ZERO);
    }
}

/// Makes `dirs` directories, ten in each parent, with `files` files each.
fn plant(lab: &Lab, dirs: usize, files: usize) {
    for i in 0..dirs {
        let dir = lab.path(&format!("t{}/d{i}", i / 10));
        fs::create_dir_all(&dir).unwrap();
        (0..files).for_each(|file| _ = File::create(dir.join(format!("f{file}"))).unwrap());
    }
}

#[test]
fn test_handles_work_without_delay_after_most_places_were_evicted() {
    let lab = Lab::with(Options { sync: false, places: 64, descriptors: 4, ..Options::default() });
    plant(&lab, 20, 50);
    let mut timed = Timed::new(&lab);
    let handles = timed.find(lab.root());
    assert_eq!(handles.len(), 20 * 50 + 20 + 2);
    assert_eq!(timed.find(lab.root()), handles, "they are the same each time");
    timed.check(handles.iter());
    timed.check(handles.iter().rev());
    // Handles from all over the tree: the server remembers hardly any of them.
    timed.check((0..handles.len()).map(|i| &handles[i * 619 % handles.len()]));
}

#[test]
fn test_file_without_a_place_is_found_after_it_was_renamed_in_its_directory() {
    let lab = Lab::with(Options { sync: false, places: 8, ..Options::default() });
    plant(&lab, 2, 30);
    let mut timed = Timed::new(&lab);
    let file = lab.handle("t0/d1/f7");
    timed.find(lab.root());
    fs::rename(lab.path("t0/d1/f7"), lab.path("t0/d1/other")).unwrap();
    timed.check([file].iter());
    // The file's directory, whose handle is known, moves elsewhere.
    let dir = lab.handle("t0/d1");
    fs::rename(lab.path("t0/d1"), lab.path("moved")).unwrap();
    assert_eq!(lab.handle("moved"), dir);
    timed.check([file].iter());
}

/// Walks 1.2 million files, more than the service remembers, on a file system in memory:
///
/// ```sh
/// TMPDIR=/dev/shm cargo test --release -p heddle-nfs -- --ignored --nocapture million
/// ```
#[test]
#[ignore = "takes 1.2 million inodes, and a minute"]
fn test_find_through_a_million_files_twice_has_no_call_above_a_second() {
    let lab = Lab::with(Options { sync: false, ..Options::default() });
    plant(&lab, 1200, 1000);
    let mut timed = Timed::new(&lab);
    let mut handles = Vec::new();
    for round in ["find, first", "find, second"] {
        let start = Instant::now();
        handles = timed.find(lab.root());
        let longest = timed.longest;
        timed.report(round, start.elapsed());
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    }
    let start = Instant::now();
    timed.check(handles.iter());
    let longest = timed.longest;
    timed.report("GETATTR of each", start.elapsed());
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    let start = Instant::now();
    timed.check((0..100_000).map(|i| &handles[i * 1_000_003 % handles.len()]));
    let longest = timed.longest;
    timed.report("GETATTR here and there", start.elapsed());
    assert!(longest < Duration::from_secs(1), "{longest:?}");
}
