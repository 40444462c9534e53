use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::*;

/// A limit that only a hang reaches; it does not measure speed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk that signals when a round begins, and ends it with the result that the test sends.
#[derive(Debug)]
struct Gate {
    begun: Mutex<Sender<Extent>>,
    ends: Mutex<Receiver<io::Result<()>>>,
}

struct Lab {
    flusher: Flusher,
    begun: Receiver<Extent>,
    end: Sender<io::Result<()>>,
    done: Sender<(u32, Result<(), Status>)>,
    told: Receiver<(u32, Result<(), Status>)>,
}

impl Disk for Gate {
    fn sync(&self, _: BorrowedFd<'_>, extent: Extent) -> io::Result<()> {
        locked(&self.begun).send(extent).unwrap();
        locked(&self.ends).recv_timeout(PATIENCE).unwrap()
    }
}

impl Lab {
    fn new(threads: usize) -> Lab {
        let (begin, begun) = channel();
        let (end, ends) = channel();
        let (done, told) = channel();
        let gate = Gate { begun: Mutex::new(begin), ends: Mutex::new(ends) };
        Lab { flusher: Flusher::new(Arc::new(gate), threads), begun, end, done, told }
    }

    fn ticket(&self, ino: u64) -> Ticket {
        let open = || std::fs::File::open("/dev/null").map(|f| Arc::new(OwnedFd::from(f)));
        self.flusher.ticket(ino, open).unwrap()
    }

    fn submit(&self, number: u32, tickets: Vec<Ticket>, extent: Extent, host: u8) {
        let done = self.done.clone();
        let peer = (IpAddr::from([10, 0, 0, host]), 1).into();
        let due = Due(tickets.into_iter().map(|ticket| (ticket, extent)).collect());
        self.flusher.submit(due, peer, move |result| done.send((number, result)).unwrap());
    }

    fn begun(&self) -> Extent {
        self.begun.recv_timeout(PATIENCE).unwrap()
    }

    fn told(&self) -> (u32, Result<(), Status>) {
        self.told.recv_timeout(PATIENCE).unwrap()
    }
}

#[test]
fn test_flush_round_answers_all_calls_that_wait_when_it_begins() {
    let lab = Lab::new(4);
    lab.submit(0, vec![lab.ticket(1)], Extent::Data, 1);
    assert_eq!(lab.begun(), Extent::Data);
    for number in 1..=10 {
        let extent = if number == 5 { Extent::All } else { Extent::Data };
        lab.submit(number, vec![lab.ticket(1)], extent, 1);
    }
    lab.end.send(Ok(())).unwrap();
    assert_eq!(lab.told(), (0, Ok(())));
    assert_eq!(lab.begun(), Extent::All, "the most that any of them asks for");
    assert!(lab.told.try_recv().is_err(), "the first round began before their changes");
    lab.end.send(Ok(())).unwrap();
    let all: Vec<_> = (1..=10).map(|_| lab.told()).collect();
    assert_eq!(all, (1..=10).map(|n| (n, Ok(()))).collect::<Vec<_>>());
    assert!(lab.begun.try_recv().is_err(), "there is no third round");
}

#[test]
fn test_call_finishes_when_all_its_changes_are_flushed() {
    let lab = Lab::new(4);
    lab.submit(1, vec![lab.ticket(1), lab.ticket(2)], Extent::All, 1);
    lab.begun();
    lab.begun();
    lab.end.send(Ok(())).unwrap();
    lab.end.send(Err(Errno::NOSPC.into())).unwrap();
    assert_eq!(lab.told(), (1, Err(Status::NOSPC)));
    assert_eq!(lab.flusher.losses(), 1);
}

/// The system reports lost data to only one caller of fsync.
#[test]
fn test_lost_data_fails_every_call_that_changed_the_object_before() {
    let lab = Lab::new(4);
    let (before, other) = (lab.ticket(1), lab.ticket(1));
    lab.submit(1, vec![other], Extent::All, 1);
    lab.begun();
    lab.end.send(Err(Errno::IO.into())).unwrap();
    assert_eq!(lab.told(), (1, Err(Status::IO)));
    let after = lab.ticket(1);
    for (number, ticket, done) in [(2, before, Err(Status::IO)), (3, after, Ok(()))] {
        lab.submit(number, vec![ticket], Extent::All, 1);
        lab.begun();
        lab.end.send(Ok(())).unwrap();
        assert_eq!(lab.told(), (number, done));
    }
    assert!(locked(&lab.flusher.shared.state).objects.is_empty(), "nothing is kept of it");
}

#[test]
fn test_address_with_many_objects_leaves_a_thread_to_another() {
    let lab = Lab::new(2);
    for ino in 1..=5 {
        lab.submit(1, vec![lab.ticket(ino)], Extent::Data, 1);
    }
    assert_eq!(lab.begun(), Extent::Data);
    lab.submit(2, vec![lab.ticket(9)], Extent::All, 2);
    assert_eq!(lab.begun(), Extent::All, "the next round is the other address's");
    (0..6).for_each(|_| lab.end.send(Ok(())).unwrap());
    assert_eq!((0..6).map(|_| lab.told().0).filter(|n| *n == 1).count(), 5);
}

#[test]
fn test_flusher_threads_end_after_writing_what_was_due() {
    let lab = Lab::new(2);
    lab.submit(1, vec![lab.ticket(1)], Extent::All, 1);
    lab.begun();
    let shared = Arc::clone(&lab.flusher.shared);
    let Lab { flusher, end, told, .. } = lab;
    // No thread waits for the disk.
    drop(flusher);
    end.send(Ok(())).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (1, Ok(())));
    let begun = std::time::Instant::now();
    while locked(&shared.state).threads > 0 {
        assert!(begun.elapsed() < PATIENCE);
        thread::yield_now();
    }
}
