//! Processors, the sockets where they are, and the places of workers.
//!
//! A worker that polls a port from another socket, or keeps its frames there, pays for every line
//! of memory. [`Topology::place`] chooses processors by the port's socket and says when they are
//! elsewhere.

use std::fmt;
use std::path::Path;

use crate::lcore::{self, CoreList};

/// The processors at each socket (NUMA node).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<(u32, Vec<usize>)>,
}

/// A processor for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The processor's number.
    pub cpu: usize,
    /// The processor's socket, if the system reports it.
    pub socket: Option<u32>,
    /// The socket of the worker's port, if it differs.
    pub wanted: Option<u32>,
}

impl Topology {
    /// Reads the topology of this machine; empty if the kernel does not report it, as without NUMA.
    pub fn read() -> Topology {
        Topology::read_from(Path::new("/sys/devices/system/node"))
    }

    fn read_from(dir: &Path) -> Topology {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut nodes: Vec<(u32, Vec<usize>)> = entries
            .filter_map(|e| {
                let number = e.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
                let list = std::fs::read_to_string(e.path().join("cpulist")).ok()?;
                // A node that has only memory has an empty list.
                let cpus = list.trim().parse::<CoreList>().ok()?;
                Some((number, cpus.cores().to_vec()))
            })
            .collect();
        nodes.sort();
        Topology { nodes }
    }

    /// Returns the number of sockets; 0 if the kernel does not report them.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the socket of a processor.
    pub fn socket_of(&self, cpu: usize) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|&(n, _)| n)
    }

    /// Returns the place of a worker on `cpu`, for a port at `socket`.
    pub fn place_on(&self, cpu: usize, socket: Option<u32>) -> Place {
        let at = self.socket_of(cpu);
        // An unknown socket is not wrong.
        let elsewhere = at.is_some() && at != socket;
        Place { cpu, socket: at, wanted: socket.filter(|_| elsewhere) }
    }

    /// Returns the processor for one thread that polls ports at these sockets, out of the `free`
    /// processors: the first that is at [`home`], or else the first of all.
    pub fn first(&self, free: &[usize], ports: &[Option<u32>]) -> Option<usize> {
        let home = home(ports);
        let at_home = |cpu: &&usize| home.is_some() && self.socket_of(**cpu) == home;
        free.iter().find(at_home).or(free.first()).copied()
    }

    /// Runs `body` on a thread at a socket, so that memory that `body` maps and touches lies there:
    /// the kernel gives a thread memory of its own node as long as there is some. Runs `body` on
    /// the calling thread if the socket, or a processor at it that this process may use, is not
    /// known.
    ///
    /// # Panics
    /// Panics if `body` does.
    pub fn run_at<T: Send>(&self, socket: Option<u32>, body: impl FnOnce() -> T + Send) -> T {
        let home = |cpu: &usize| socket.is_some() && self.socket_of(*cpu) == socket;
        let Some(cpu) = lcore::available().into_iter().find(home) else {
            return body();
        };
        std::thread::scope(|s| {
            let thread = s.spawn(move || {
                // If this fails, memory lies at the socket where the thread happens to run.
                lcore::bind_to(&[cpu]);
                body()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns a processor for each worker, by the sockets of their ports, out of the `free`
    /// processors: at the port's socket if one is left there, else elsewhere. No processor is
    /// chosen twice as long as there are others. If there are enough, the first free processor is
    /// left to the threads that sleep (control plane, application). Returns nothing if none is
    /// free.
    pub fn place(&self, free: &[usize], ports: &[Option<u32>]) -> Vec<Place> {
        if free.is_empty() {
            return Vec::new();
        }
        let mut left: Vec<usize> = free.to_vec();
        if left.len() > ports.len() {
            // The first free processor is the last to be chosen.
            left.rotate_left(1);
        }
        // Place the workers that can be at their port's socket first, or others would take their
        // places.
        let mut places = vec![None; ports.len()];
        for at_home in [true, false] {
            for (place, &socket) in places.iter_mut().zip(ports) {
                if place.is_some() {
                    continue;
                }
                if left.is_empty() {
                    left = free.to_vec();
                }
                let fits = |&cpu: &usize| match socket {
                    Some(_) => self.socket_of(cpu) == socket,
                    None => !at_home,
                };
                let found = left.iter().position(fits).or((!at_home).then_some(0));
                if let Some(i) = found {
                    *place = Some(self.place_on(left.remove(i), socket));
                }
            }
        }
        places.into_iter().flatten().collect()
    }
}

/// Returns the socket where most of these workers or ports are; in a tie, the socket with the
/// lowest number. Returns `None` if none is known.
pub fn home(sockets: &[Option<u32>]) -> Option<u32> {
    let count = |s: u32| sockets.iter().filter(|o| **o == Some(s)).count();
    let known = sockets.iter().flatten().copied();
    known.min_by_key(|&s| (core::cmp::Reverse(count(s)), s))
}

impl fmt::Display for Place {
    /// Writes a warning if the processor is at the wrong socket, or else the socket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "processor {}", self.cpu)?;
        match (self.socket, self.wanted) {
            (Some(at), Some(port)) => {
                write!(f, " is at socket {at}, and its port at socket {port}: every frame crosses")
            }
            (Some(at), None) => write!(f, " at socket {at}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Topology {
        Topology { nodes: vec![(0, vec![0, 1, 2, 3]), (1, vec![4, 5, 6, 7])] }
    }

    fn cpus(places: &[Place]) -> Vec<usize> {
        places.iter().map(|p| p.cpu).collect()
    }

    #[test]
    fn test_workers_are_placed_at_the_socket_of_their_port() {
        let all: Vec<usize> = (0..8).collect();
        let places = two().place(&all, &[Some(1), Some(1), Some(0), None]);
        assert_eq!(cpus(&places), [4, 5, 1, 2]);
        assert!(places.iter().all(|p| p.wanted.is_none()));
        // A worker that may be anywhere leaves room for a worker that may not.
        let places = two().place(&[3, 4, 5], &[None, Some(1), Some(1)]);
        assert_eq!(cpus(&places), [3, 4, 5]);
    }

    #[test]
    fn test_placement_reports_worker_at_another_socket_than_its_port() {
        let places = two().place(&[0, 1], &[Some(1)]);
        assert_eq!(places, [Place { cpu: 1, socket: Some(0), wanted: Some(1) }]);
        assert!(places[0].to_string().contains("socket 0, and its port at socket 1"));
        assert_eq!(two().place_on(5, Some(1)).wanted, None);
        // An unknown socket is no reason to warn.
        assert_eq!(two().place_on(5, None).wanted, None);
        assert_eq!(Topology::default().place_on(5, Some(1)).wanted, None);
    }

    #[test]
    fn test_first_processor_is_taken_last() {
        assert_eq!(cpus(&two().place(&[0, 1], &[Some(0)])), [1]);
        assert_eq!(cpus(&two().place(&[0, 1], &[Some(0); 2])), [0, 1]);
        assert_eq!(cpus(&two().place(&[0, 1], &[Some(0); 3])), [0, 1, 0], "they take turns");
        assert!(cpus(&two().place(&[], &[Some(0)])).is_empty());
        assert_eq!(cpus(&Topology::default().place(&[0, 1, 2], &[None, Some(3)])), [1, 2]);
    }

    #[test]
    fn test_home_socket_is_that_of_most_workers() {
        assert_eq!(home(&[Some(0), Some(1), Some(1), None]), Some(1));
        assert_eq!(
            home(&[Some(1), Some(0), None, None]),
            Some(0),
            "a tie, and two that do not care"
        );
        assert_eq!((home(&[None]), home(&[])), (None, None));
        assert_eq!(two().first(&[0, 3, 4, 5], &[Some(1), Some(1), Some(0)]), Some(4));
        assert_eq!(two().first(&[0, 3], &[Some(1)]), Some(0), "none is free there");
        assert_eq!(two().first(&[3, 4], &[None]), Some(3));
        assert_eq!(Topology::default().first(&[3, 4], &[Some(1)]), Some(3));
        assert_eq!(two().first(&[], &[Some(1)]), None);
    }

    #[test]
    fn test_memory_is_mapped_by_a_thread_at_the_socket() {
        let cpus = crate::eal::allowed_cpus();
        let last = *cpus.last().unwrap();
        let t = Topology { nodes: vec![(3, vec![last])] };
        let here = std::thread::current().id();
        let (thread, bound) =
            t.run_at(Some(3), || (std::thread::current().id(), lcore::available()));
        assert_ne!(thread, here);
        assert_eq!(bound, [last]);
        assert_eq!(crate::eal::allowed_cpus(), cpus, "the caller stays where it was");
        for nowhere in [None, Some(0)] {
            assert_eq!(t.run_at(nowhere, || std::thread::current().id()), here);
        }
    }

    #[test]
    fn test_topology_is_read_from_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        for (node, list) in
            [("node0", "0-1,4\n"), ("node1", "2-3\n"), ("node2", "\n"), ("has_cpu", "0\n")]
        {
            let at = dir.path().join(node);
            std::fs::create_dir(&at).unwrap();
            std::fs::write(at.join("cpulist"), list).unwrap();
        }
        let t = Topology::read_from(dir.path());
        assert_eq!(t.nodes, [(0, vec![0, 1, 4]), (1, vec![2, 3])]);
        assert_eq!((t.socket_of(4), t.socket_of(9)), (Some(0), None));
        assert_eq!(Topology::read_from(Path::new("/nonexistent")), Topology::default());
    }
}
