//! Exports of the program, and clients of them over RDMA: honest clients, and clients that send
//! whatever a test tells them to.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use heddle_nfs::wire::{
    Fattr, Handle, Lookup, LookupOk, Opaque, Read, ReadOk, Stable, Status, Write, Xdr, mount,
    procedure,
};
use heddle_rpcrdma::chunk::Limits;
use heddle_rpcrdma::header::{self, Header};
use heddle_rpcrdma::rpc::{Auth, Call, Procedure, Reply};
use heddle_rpcrdma::{Xid, v1, v2};
use heddle_testkit::mpa;
use tempfile::TempDir;

use crate::linux::{Client, PATIENCE};
use crate::lists::lists;
use crate::net::{LINUX, Lab, SERVER};
use crate::server::Server;

pub const MIB: usize = 1 << 20;
const NFS: u16 = 20_049;
/// The address that may use the second export: no peer has it.
const NOBODY: &str = "10.99.0.1";

/// Three directories: one exported, one exported to an address that no peer has, and one not
/// exported.
pub struct Exports {
    pub lab: Lab,
    pub server: Server,
    pub base: TempDir,
    /// The files outside the export at first, with their contents.
    pub outside: BTreeMap<PathBuf, String>,
}

pub fn contents(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a directory").map_while(Result::ok) {
        let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
        if kind.is_dir() {
            all.append(&mut contents(&path));
        }
        let text =
            if kind.is_file() { fs::read_to_string(&path).expect("text") } else { String::new() };
        all.insert(path, text);
    }
    all
}

impl Exports {
    pub fn new() -> Exports {
        Exports::with("")
    }

    /// Starts a server with further options of the listener.
    pub fn with(options: &str) -> Exports {
        let (lab, base) = (Lab::new(1500), tempfile::tempdir().expect("a directory"));
        for dir in ["export/dir", "other", "outside"] {
            fs::create_dir_all(base.path().join(dir)).expect("a directory");
        }
        for file in ["export/file", "other/file", "outside/secret"] {
            fs::write(base.path().join(file), format!("of {file}")).expect("a file");
        }
        fs::write(base.path().join("export/big"), vec![7; MIB]).expect("a file");
        let at = |dir: &str| base.path().join(dir).display().to_string();
        // The memory has room for the data of a few calls of each address.
        let listen = format!(
            "{SERVER}:{NFS}=nfs:{},workers=4,memory=24{options},{},client={NOBODY}",
            at("export"),
            at("other")
        );
        let server = Server::start_placed(&lab, &["--listen", &listen]);
        let mut exports = Exports { lab, server, base, outside: BTreeMap::new() };
        exports.outside = exports.beside();
        exports
    }

    pub fn beside(&self) -> BTreeMap<PathBuf, String> {
        let mut all = contents(&self.base.path().join("other"));
        all.append(&mut contents(&self.base.path().join("outside")));
        all
    }

    pub fn peer(&self, from: Ipv4Addr, version: u32) -> io::Result<Peer> {
        Peer::connect(&self.lab, from, version)
    }

    pub fn honest(&self) -> Honest {
        let mut peer = self.peer(LINUX[1], v1::VERSION).expect("a connection");
        let root = peer.mount(&self.base.path().join("export")).expect("the root");
        let file = peer.lookup(root, b"file").expect("a file");
        let big = peer.lookup(root, b"big").expect("a file");
        Honest { peer, root, file, big, round: 0 }
    }

    /// Checks that the server lives, and that nothing outside the export has changed.
    pub fn assert_untouched(&mut self) {
        self.server.assert_alive();
        assert_eq!(self.beside(), self.outside);
    }
}

/// A client that sends what a test tells it to.
pub struct Peer {
    pub client: Client,
    pub version: u32,
    pub msn: u32,
    pub xid: u32,
}

impl Peer {
    pub fn connect(lab: &Lab, from: Ipv4Addr, version: u32) -> io::Result<Peer> {
        let mut client = Client::connect(lab, from, NFS)?;
        if client.start(&mpa::request(b""))?.rejected {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(Peer { client, version, msn: 0, xid: 0 })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.msn += 1;
        self.client.say(&mpa::send(self.msn, bytes))
    }

    /// Sends a call with these chunk lists before the message.
    pub fn call(&mut self, lists: &[u32], p: Procedure, arguments: &[u8]) -> io::Result<()> {
        self.xid += 1;
        self.call_as(self.xid, lists, p, arguments)
    }

    pub fn call_as(
        &mut self,
        xid: u32,
        lists: &[u32],
        p: Procedure,
        arguments: &[u8],
    ) -> io::Result<()> {
        let mut words = vec![xid, self.version, 500];
        // In version 2 the handle to be invalidated follows: 0 for none.
        words.extend(if self.version == v1::VERSION {
            &[0][..]
        } else {
            &[v2::htype::CALL_INLINE, 0]
        });
        words.extend(lists);
        let call = Call { xid: Xid(xid), procedure: p, cred: Auth::NONE, verf: Auth::NONE };
        let mut message = vec![0; call.encoded_len()];
        call.encode(&mut message).expect("it has room");
        self.send(&[bytes_of(&words), message, arguments.to_vec()].concat())
    }

    /// Receives the server's next whole message, skipping Read Requests, Writes, and control
    /// messages of version 2.
    pub fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut message = Vec::new();
        loop {
            let m = self.client.recv(PATIENCE)?;
            if m.opcode == TERMINATE {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if m.tagged.is_some() || m.opcode == mpa::READ_REQUEST {
                continue;
            }
            message.extend(m.payload);
            if !m.last {
                continue;
            }
            let kind = message.get(12..16).map(|k| u32::from_be_bytes([k[0], k[1], k[2], k[3]]));
            let control = [v2::htype::GRANT, v2::htype::CONNPROP_MIDDLE, v2::htype::CONNPROP_FINAL];
            if self.version == v1::VERSION || !control.contains(&kind.unwrap_or(0)) {
                return Ok(message);
            }
            message.clear();
        }
    }

    /// Returns the results of the next reply; `None` for a reply without results.
    pub fn results(&mut self) -> io::Result<Option<Vec<u8>>> {
        let answer = self.answer()?;
        let versions =
            if self.version == v1::VERSION { header::Versions::V1 } else { header::Versions::V2 };
        let message = header::decode(&answer, versions, &Limits::DEFAULT);
        let message = message.map_err(|e| io::Error::other(format!("{e:?}")))?;
        let is_error = match &message.header {
            Header::V1(h) => matches!(h.body, v1::Body::Error(_)),
            Header::V2(h) => matches!(h.body, v2::Body::Error(_)),
        };
        if is_error {
            return Ok(None);
        }
        let (reply, results) = Reply::decode(message.payload).expect("a reply");
        Ok(reply.has_results().then(|| results.to_vec()))
    }

    pub fn ask(&mut self, p: Procedure, arguments: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.call(&[0, 0, 0], p, arguments)?;
        self.results()
    }

    pub fn mount(&mut self, path: &Path) -> io::Result<Handle> {
        let path = path.display().to_string();
        let results = self.ask(mount::MNT, &Opaque::<4095>(path.as_bytes()).bytes())?;
        let results = results.expect("results of MNT");
        let mounted = Result::<mount::Mounted, (Status, ())>::whole(&results).expect("results");
        mounted.map(|m| m.handle).map_err(|e| io::Error::other(format!("{e:?}")))
    }

    pub fn lookup(&mut self, dir: Handle, name: &[u8]) -> io::Result<Handle> {
        let results = self.ask(procedure::LOOKUP, &Lookup { dir, name: Opaque(name) }.bytes())?;
        let results = results.expect("results of LOOKUP");
        let found = Result::<LookupOk, (Status, Option<Fattr>)>::whole(&results).expect("results");
        found.map(|found| found.object).map_err(|e| io::Error::other(format!("{e:?}")))
    }

    /// Returns true if the connection still serves calls, and false if it was ended.
    pub fn is_served(&mut self) -> bool {
        (0..200).any(|_| match self.ask(procedure::NULL, &[]) {
            Ok(results) => results.is_some_and(|results| results.is_empty()),
            Err(_) => false,
        })
    }
}

pub const TERMINATE: u8 = 7;

pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A client that obeys the rules: it writes, and reads back what it wrote.
pub struct Honest {
    pub peer: Peer,
    pub root: Handle,
    pub file: Handle,
    pub big: Handle,
    pub round: u32,
}

impl Honest {
    pub fn ping(&mut self) -> io::Result<Duration> {
        let begun = Instant::now();
        self.round += 1;
        let data: Vec<u8> = (0..400u32).map(|i| (i ^ self.round).to_le_bytes()[0]).collect();
        let (file, offset) = (self.file, u64::from(self.round % 8) * 400);
        let stable = Stable::Unstable;
        let write = Write { file, offset, count: 400, stable, data: Opaque(&data) };
        let wrong = |what: &str| io::Error::other(format!("{what} of round {}", self.round));
        let written = self.peer.ask(procedure::WRITE, &write.bytes())?;
        if written.is_none_or(|results| results[..4] != [0; 4]) {
            return Err(wrong("a WRITE"));
        }
        let read = Read { file, offset, count: 400 }.bytes();
        let results = self.peer.ask(procedure::READ, &read)?.ok_or_else(|| wrong("a READ"))?;
        let read = Result::<ReadOk<'_>, (Status, Option<Fattr>)>::whole(&results);
        match read {
            Ok(Ok(read)) if read.data.0 == data => Ok(begun.elapsed()),
            read => Err(wrong(&format!("{read:?} is what was read"))),
        }
    }

    /// Reads all of the longest file, `times` times at once, each into its own memory.
    pub fn read_big(&mut self, times: usize) {
        let room = u32::try_from(MIB).expect("a length");
        for nth in 0..times {
            let segment = [9, room, 0, u32::try_from(nth * MIB).expect("an offset")];
            let write = [&[1, 1][..], &segment].concat();
            let read = Read { file: self.big, offset: 0, count: room }.bytes();
            self.peer.call(&lists(&[], &write, &[0]), procedure::READ, &read).expect("it is sent");
        }
        let (mut bytes, mut replies, mut message) = (0, 0, Vec::new());
        while replies < times {
            let m = self.peer.client.recv(PATIENCE).expect("a Write or a reply");
            match m.tagged {
                Some((9, _)) => {
                    assert!(m.payload.iter().all(|&byte| byte == 7));
                    bytes += m.payload.len();
                }
                Some(other) => panic!("a Write to {other:x?}"),
                None => {
                    message.extend(m.payload);
                    replies += usize::from(m.last);
                }
            }
        }
        assert_eq!(bytes, times * MIB, "{message:?}");
    }
}
