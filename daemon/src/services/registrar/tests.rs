use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use heddle_nfs::record;
use heddle_rpc::Body;

use super::*;

/// An rpcbind that keeps a list, as far as clients use its local socket.
#[derive(Clone, Default)]
struct Peer(Arc<Mutex<Vec<Entry>>>);

impl Peer {
    /// Begins to answer at a socket, until the test ends.
    fn answer(&self, socket: &Path) {
        let _ = std::fs::remove_file(socket);
        let (listener, peer) = (UnixListener::bind(socket).expect("a socket"), self.clone());
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut call = Vec::new();
                while record::read(&mut stream, &mut call, 4096).unwrap_or(false) {
                    let reply = peer.carry_out(&call);
                    record::write(&mut stream, &reply).expect("it is taken");
                }
            }
        });
    }

    /// Carries out a call, whose arguments come after ten words of a call without credential.
    fn carry_out(&self, call: &[u8]) -> Vec<u8> {
        let arguments = Body::of(call[40..].to_vec()).expect("arguments");
        let entry = Entry::decode(&mut arguments.reader()).expect("an entry");
        let mut list = self.0.lock().expect("nobody panics");
        let same = |e: &Entry| {
            (e.program, e.version, &e.netid) == (entry.program, entry.version, &entry.netid)
        };
        let there = list.iter().find(|e| same(e)).cloned();
        let done = match (call[23], there) {
            (1, None) => {
                list.push(entry);
                true
            }
            (1, Some(there)) => there.address == entry.address,
            (2, there) => {
                list.retain(|e| !same(e));
                there.is_some()
            }
            (other, _) => panic!("procedure {other}"),
        };
        let mut reply = call[..4].to_vec();
        reply.extend([0, 0, 0, 1].into_iter().chain([0; 16]).chain([0, 0, 0, done.into()]));
        reply
    }

    /// Asserts that the list becomes these entries, in any order, each as `program netid address`.
    fn lists(&self, wanted: &[&str]) {
        let until = Instant::now() + Duration::from_secs(30);
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        loop {
            let list = self.0.lock().expect("nobody panics").clone();
            let one = |e: &Entry| format!("{} {} {}", e.program, e.netid, e.address);
            let mut list: Vec<_> = list.iter().map(one).collect();
            list.sort_unstable();
            if list == wanted {
                return;
            }
            assert!(Instant::now() < until, "{list:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn export(s: &str) -> (SocketAddr, Nfs) {
    let spec: crate::service::ServiceSpec = s.parse().expect("a service");
    (spec.addr, spec.kind.nfs().expect("an export").clone())
}

fn list(registrar: &mut Registrar, exports: &[&str]) {
    let exports: Vec<_> = exports.iter().map(|s| export(s)).collect();
    registrar.list(exports.iter().map(|(addr, nfs)| (*addr, nfs)));
}

const BOTH: [&str; 4] = [
    "100003 rdma 10.0.0.1.78.81",
    "100005 rdma 10.0.0.1.78.81",
    "100003 tcp 192.0.2.1.78.80",
    "100005 tcp 192.0.2.1.78.80",
];

#[test]
fn test_rpcbind_lists_exports_that_ask_for_it_while_they_are_there() {
    let (dir, peer) = (tempfile::tempdir().expect("a directory"), Peer::default());
    let socket = dir.path().join("rpcbind.sock");
    peer.answer(&socket);
    let mut registrar = Registrar::of(&socket, Duration::from_secs(3600));
    let quiet = "10.0.0.2:20049=nfs:/b";
    list(&mut registrar, &["10.0.0.1:20049=nfs:/a,tcp=192.0.2.1:20048,rpcbind", quiet]);
    peer.lists(&BOTH);
    // The same place with other options, and another place.
    list(&mut registrar, &[quiet, "10.0.0.1:20049=nfs:/a,ro,rpcbind"]);
    peer.lists(&BOTH[..2]);
    list(&mut registrar, &["10.0.0.2:20049=nfs:/a,tcp=[::1]:1,rpcbind"]);
    let (rdma, tcp) = ("rdma 10.0.0.2.78.81", "tcp6 ::1.0.1");
    let both = [rdma, tcp].map(|at| [100_003, 100_005].map(|program| format!("{program} {at}")));
    peer.lists(&both.as_flattened().iter().map(String::as_str).collect::<Vec<_>>());
    drop(registrar);
    peer.lists(&[]);
}

#[test]
fn test_registrar_keeps_foreign_entries_and_repeats_forgotten_ones() {
    let (dir, peer) = (tempfile::tempdir().expect("a directory"), Peer::default());
    let socket = dir.path().join("rpcbind.sock");
    let mut registrar = Registrar::of(&socket, Duration::from_millis(5));
    // There is no rpcbind yet.
    list(&mut registrar, &["10.0.0.1:20049=nfs:/a,rpcbind"]);
    let other = Entry::rdma(100_005, 3, "10.0.0.9:1".parse().expect("an address"));
    peer.0.lock().expect("nobody panics").push(other.clone());
    peer.answer(&socket);
    peer.lists(&["100005 rdma 10.0.0.9.0.1", BOTH[0]]);
    // The restarted rpcbind knows no entry.
    peer.0.lock().expect("nobody panics").clear();
    peer.lists(&BOTH[..2]);
    *peer.0.lock().expect("nobody panics") = vec![other];
    peer.lists(&["100005 rdma 10.0.0.9.0.1", BOTH[0]]);
    drop(registrar);
    peer.lists(&["100005 rdma 10.0.0.9.0.1"]);
}
