//! Processors, the sockets they are at, and where workers belong.
//!
//! A worker that polls a port from another socket, or keeps its frames there, pays for every line of
//! memory. [`Topology::place`] chooses processors by the port's socket and says when they are
//! elsewhere.

use std::fmt;
use std::path::Path;

use crate::lcore::CoreList;

/// Which processors are at which socket (NUMA node).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<(u32, Vec<usize>)>,
}

/// A processor for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub cpu: usize,
    /// Where it is, if the system says.
    pub socket: Option<u32>,
    /// Where the worker's port is, if that is elsewhere.
    pub wanted: Option<u32>,
}

impl Topology {
    /// Of this machine; empty where the kernel does not say, as without NUMA.
    pub fn read() -> Topology {
        Topology::read_from(Path::new("/sys/devices/system/node"))
    }

    fn read_from(dir: &Path) -> Topology {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut nodes: Vec<(u32, Vec<usize>)> = entries
            .filter_map(|e| {
                let number = e.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
                let list = std::fs::read_to_string(e.path().join("cpulist")).ok()?;
                // A node of memory alone has an empty list.
                let cpus = list.trim().parse::<CoreList>().ok()?;
                Some((number, cpus.cores().to_vec()))
            })
            .collect();
        nodes.sort();
        Topology { nodes }
    }

    /// The socket of a processor.
    pub fn socket_of(&self, cpu: usize) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|&(n, _)| n)
    }

    /// Where a worker on `cpu` is, for a port at `socket`.
    pub fn place_on(&self, cpu: usize, socket: Option<u32>) -> Place {
        let at = self.socket_of(cpu);
        // What is not known is not wrong.
        let elsewhere = at.is_some() && at != socket;
        Place { cpu, socket: at, wanted: socket.filter(|_| elsewhere) }
    }

    /// The processor for one thread that polls ports at these sockets, out of those that are `free`: the
    /// first that is at [`home`], or the first there is.
    pub fn first(&self, free: &[usize], ports: &[Option<u32>]) -> Option<usize> {
        let home = home(ports);
        let at_home = |cpu: &&usize| home.is_some() && self.socket_of(**cpu) == home;
        free.iter().find(at_home).or(free.first()).copied()
    }

    /// Runs `body` on a thread at a socket, so that memory it maps and touches lies there: the kernel
    /// gives a thread memory of its own node as long as there is some. On the calling thread when the
    /// socket, or a processor at it that this process may use, is not known.
    ///
    /// # Panics
    /// As `body` does.
    pub fn run_at<T: Send>(&self, socket: Option<u32>, body: impl FnOnce() -> T + Send) -> T {
        let home = |id: &core_affinity::CoreId| socket.is_some() && self.socket_of(id.id) == socket;
        let Some(id) = core_affinity::get_core_ids().unwrap_or_default().into_iter().find(home)
        else {
            return body();
        };
        std::thread::scope(|s| {
            let thread = s.spawn(move || {
                // Where it fails, memory lies where the thread happens to run.
                core_affinity::set_for_current(id);
                body()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A processor for each worker, by the sockets of their ports, out of those that are `free`, none
    /// twice as long as there are others: at the port's socket if there is one left, else elsewhere. The
    /// first free one is left to the threads that sleep (control plane, application) where there are
    /// enough. Empty when none is free.
    pub fn place(&self, free: &[usize], ports: &[Option<u32>]) -> Vec<Place> {
        if free.is_empty() {
            return Vec::new();
        }
        let mut left: Vec<usize> = free.to_vec();
        if left.len() > ports.len() {
            // The last to be chosen.
            left.rotate_left(1);
        }
        // Those who can be at home first, or another would take their place.
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

/// Where most of these are, of workers or of their ports; at a tie the one with the lowest number. `None`
/// when none of them is known.
pub fn home(sockets: &[Option<u32>]) -> Option<u32> {
    let count = |s: u32| sockets.iter().filter(|o| **o == Some(s)).count();
    let known = sockets.iter().flatten().copied();
    known.min_by_key(|&s| (core::cmp::Reverse(count(s)), s))
}

impl fmt::Display for Place {
    /// What there is to warn of, or where it is.
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
    fn test_workers_are_put_where_their_ports_are() {
        let all: Vec<usize> = (0..8).collect();
        let places = two().place(&all, &[Some(1), Some(1), Some(0), None]);
        assert_eq!(cpus(&places), [4, 5, 1, 2]);
        assert!(places.iter().all(|p| p.wanted.is_none()));
        // A worker that may be anywhere leaves room to one that may not.
        let places = two().place(&[3, 4, 5], &[None, Some(1), Some(1)]);
        assert_eq!(cpus(&places), [3, 4, 5]);
    }

    #[test]
    fn test_elsewhere_is_said() {
        let places = two().place(&[0, 1], &[Some(1)]);
        assert_eq!(places, [Place { cpu: 1, socket: Some(0), wanted: Some(1) }]);
        assert!(places[0].to_string().contains("socket 0, and its port at socket 1"));
        assert_eq!(two().place_on(5, Some(1)).wanted, None);
        // What is not known is no reason to warn.
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
    fn test_one_thread_and_memory_are_where_most_workers_are() {
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
        let (thread, bound) = t.run_at(Some(3), || {
            let bound = core_affinity::get_core_ids().unwrap();
            (std::thread::current().id(), bound.iter().map(|c| c.id).collect::<Vec<_>>())
        });
        assert_ne!(thread, here);
        assert_eq!(bound, [last]);
        assert_eq!(crate::eal::allowed_cpus(), cpus, "the caller stays where it was");
        for nowhere in [None, Some(0)] {
            assert_eq!(t.run_at(nowhere, || std::thread::current().id()), here);
        }
    }

    #[test]
    fn test_what_the_kernel_says_is_read() {
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
