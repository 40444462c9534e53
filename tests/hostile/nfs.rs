//! Clients of NFS over RDMA that break the rules of RPC-over-RDMA, of RPC or of NFS, or do not
//! fetch their data: each harms only itself. An honest client of the same exports gets correct
//! results, and waits no longer.

mod peers;

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use heddle_nfs::wire::{
    Commit, Create, DirEntryName, Handle, How, Link, Mkdir, OfHandle, Opaque, Read, Readdir,
    Readdirplus, Rename, Sattr, Setattr, Stable, Symlink, Verifier, Write, Xdr, mount, procedure,
};
use heddle_rpcrdma::rpc::Procedure;
use heddle_rpcrdma::{v1, v2};
use heddle_testkit::mpa::{self, Message};

use crate::linux::{PATIENCE, measure};
use crate::lists::{bad_lists, lists, read};
use crate::memory::{TURN, TURNS, assert_not_slower};
use crate::net::LINUX;
use peers::{Exports, MIB, Peer, bytes_of};

/// Offset of the data of a WRITE of a file: after the header of the call, the handle, and five
/// words.
const ITEM: u32 = 40 + 40 + 20;

fn write_of(file: Handle, length: usize, data: &[u8]) -> Vec<u8> {
    let count = u32::try_from(length).expect("a length");
    let mut words = OfHandle { object: file }.bytes();
    words.extend(bytes_of(&[0, 0, count, 0, count]));
    words.extend(data);
    words
}

/// Returns messages that are no calls, or whose headers break a rule.
fn bad_messages(version: u32) -> Vec<(&'static str, Vec<u32>)> {
    let head = |kind: u32, rest: &[u32]| [&[900, version, 500, kind][..], rest].concat();
    let reply = [900, 1, 0, 0, 0, 0];
    vec![
        ("nothing", vec![]),
        ("an XID alone", vec![900]),
        ("no type", vec![900, version, 500]),
        ("a type that there is not", head(77, &[0, 0, 0])),
        ("a version that there is not", vec![900, 77, 500, 0, 0, 0, 0]),
        ("no lists", head(0, &[])),
        ("no message", head(if version == 1 { 0 } else { v2::htype::CALL_INLINE }, &[0, 0, 0, 0])),
        ("all credits", vec![900, version, u32::MAX, 0, 0, 0, 0]),
        ("no credits", vec![900, version, 0, 0, 0, 0, 0]),
        ("the end of a transfer", head(3, &[])),
        ("a message with padding", head(2, &[4, 4, 0, 0, 0])),
        ("an error of a version", head(4, &[1, 1, 2])),
        ("an error of a chunk", head(4, &[2])),
        ("an error that there is not", head(4, &[4_000_000_000])),
        ("a reply to no call", head(0, &[&[0, 0, 0][..], &reply].concat())),
        ("a reply in version 2", head(v2::htype::REPLY_INLINE, &[&[0][..], &reply].concat())),
        ("a part of a call that is never whole", head(v2::htype::CALL_MIDDLE, &[u32::MAX])),
        ("properties that end early", head(v2::htype::CONNPROP_FINAL, &[9, 1, 64])),
    ]
}

#[test]
fn test_headers_that_break_a_rule_harm_their_own_connection_at_most() {
    let mut e = Exports::new();
    let mut honest = e.honest();
    for version in [v1::VERSION, v2::VERSION] {
        let mut peer = e.peer(LINUX[0], version).expect("a connection");
        assert!(peer.is_served());
        // A server that answered errors with errors would go on for ever.
        let write = write_of(honest.file, 100, &[]);
        for (what, message) in bad_messages(version) {
            if peer.send(&bytes_of(&message)).is_err() || !peer.is_served() {
                peer = e.peer(LINUX[0], version).expect("a connection");
            }
            honest.ping().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let nothing = read(ITEM, [9, 0, 0, 0]);
        let empty = [
            ("a segment of nothing", lists(std::slice::from_ref(&nothing), &[], &[0])),
            ("nothing twice", lists(&[nothing.clone(), nothing], &[], &[0])),
            ("a Write chunk of nothing", lists(&[], &[1, 0], &[0])),
            ("a Reply chunk of nothing", lists(&[], &[], &[1, 0])),
            ("results at the end of all addresses", {
                lists(&[], &[1, 1, 9, 400, u32::MAX, u32::MAX - 10], &[0])
            }),
        ];
        let lists = bad_lists(ITEM).into_iter().map(|(what, lists, _)| (what, lists));
        for (what, lists) in lists.chain(empty) {
            if peer.call(&lists, procedure::WRITE, &write).is_err() || !peer.is_served() {
                peer = e.peer(LINUX[0], version).expect("a connection");
            }
            honest.ping().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert!(e.peer(LINUX[0], version).expect("a connection").is_served());
    }
    e.assert_untouched();
}

#[test]
fn test_calls_beyond_credits_and_repeated_xids_harm_no_other_client() {
    let mut e = Exports::new();
    let mut honest = e.honest();
    for version in [v1::VERSION, v2::VERSION] {
        let mut flood = e.peer(LINUX[0], version).expect("a connection");
        let getattr = OfHandle { object: honest.file }.bytes();
        let sent = (0..1000).try_for_each(|_| flood.call(&[0, 0, 0], procedure::GETATTR, &getattr));
        // The connection is over, or soon will be: the server ends each peer that breaks flow
        // control.
        assert!(sent.is_err() || flood.client.is_ended(PATIENCE), "version {version}");
        honest.ping().expect("the honest client is served");
        // The second call has the XID of the first, and other contents.
        let mut peer = e.peer(LINUX[0], version).expect("a connection");
        let (dir, how) = (honest.root, How::Guarded(Sattr::default()));
        let at = |name: &'static [u8]| DirEntryName { dir, name: Opaque(name) };
        let create = |name| Create { at: at(name), how }.bytes();
        let xid = 7000;
        let mut statuses = Vec::new();
        for (p, arguments) in [
            (procedure::CREATE, create(b"once")),
            (procedure::CREATE, create(b"once")),
            (procedure::REMOVE, at(b"once").bytes()),
        ] {
            peer.call_as(xid, &[0, 0, 0], p, &arguments).expect("it is sent");
            let results = peer.results().expect("an answer").expect("results");
            statuses.push(u32::from_be_bytes([results[0], results[1], results[2], results[3]]));
        }
        assert_eq!(statuses[..2], [0, 0], "the reply to the first is kept");
        assert!(peer.is_served());
        let _ = fs::remove_file(e.base.path().join("export/once"));
        honest.ping().expect("the honest client is served");
    }
    e.assert_untouched();
}

#[test]
fn test_replies_grant_configured_credits_of_the_listener() {
    let mut e = Exports::with(",credits=5");
    let path = e.base.path().join("export").display().to_string();
    let path = Opaque::<4095>(path.as_bytes()).bytes();
    // Version 2 counts credits from the beginning of the connection: the server has received one
    // message.
    for (version, credits) in [(v1::VERSION, 5), (v2::VERSION, 6_u32)] {
        let mut peer = e.peer(LINUX[0], version).expect("a connection");
        peer.call(&[0, 0, 0], mount::MNT, &path).expect("it is sent");
        let reply = peer.answer().expect("a reply");
        assert_eq!(reply[8..12], credits.to_be_bytes(), "the third word of version {version}");
    }
    e.assert_untouched();
}

/// The test uses invented handles and names in every procedure.
#[test]
fn test_forged_handles_and_names_reach_nothing() {
    let mut e = Exports::new();
    let mut honest = e.honest();
    let mut peer = e.peer(LINUX[0], v1::VERSION).expect("a connection");
    let own = honest.root;
    let root = own.as_slice().to_vec();
    let mut handles = vec![vec![], vec![0; 28], vec![0xff; 64], root[..27].to_vec()];
    // Flip bits of the magic, of the export's number, and of the object's number.
    handles.extend((0..root.len() * 8).step_by(5).map(|bit| {
        let mut flipped = root.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    }));
    // Returns the handle that an object has, or would have, in the form of the export's handles.
    let of = |object: &str| {
        use std::os::unix::fs::MetadataExt;
        let about = fs::metadata(e.base.path().join(object)).expect("it is there");
        let born = about.created().expect("a time").duration_since(std::time::UNIX_EPOCH);
        let born = u64::try_from(born.expect("since 1970").as_nanos()).expect("it fits");
        let mut handle = root.clone();
        handle.splice(12..20, about.ino().to_be_bytes());
        handle.splice(20..28, born.to_be_bytes());
        handle
    };
    // Objects made in the same tick of the file system's clock have the same time, so a flipped bit may
    // lead to one of the export's own.
    let genuine = ["export/dir", "export/file", "export/big"].map(of);
    handles.retain(|handle| !genuine.contains(handle));
    // Forge the handles of objects outside the export.
    handles.extend(["outside/secret", "other/file", "outside"].map(of));
    let bad = handles.iter().map(|bytes| Handle::new(bytes).expect("at most 64 bytes"));
    let attributes = Sattr { mode: Some(0o666), ..Sattr::default() };
    let status =
        |results: Option<Vec<u8>>| results.map(|r| u32::from_be_bytes([r[0], r[1], r[2], r[3]]));
    for object in bad {
        let at = DirEntryName { dir: object, name: Opaque(b"file") };
        let how = How::Unchecked(attributes);
        let write = Write {
            file: object,
            offset: 0,
            count: 4,
            stable: Stable::FileSync,
            data: Opaque(b"evil"),
        };
        let verifier = Verifier::default();
        for (p, arguments) in [
            (procedure::GETATTR, OfHandle { object }.bytes()),
            (procedure::SETATTR, Setattr { object, attributes, guard: None }.bytes()),
            (procedure::LOOKUP, at.bytes()),
            (procedure::READ, Read { file: object, offset: 0, count: 99 }.bytes()),
            (procedure::WRITE, write.bytes()),
            (procedure::CREATE, Create { at, how }.bytes()),
            (procedure::REMOVE, at.bytes()),
            (procedure::RENAME, Rename { from: at, to: at }.bytes()),
            (procedure::LINK, Link { file: object, at }.bytes()),
            (
                procedure::READDIR,
                Readdir { dir: object, cookie: u64::MAX, verifier, count: u32::MAX }.bytes(),
            ),
            (procedure::COMMIT, Commit { file: object, offset: 0, count: 0 }.bytes()),
        ] {
            let said = status(peer.ask(p, &arguments).expect("an answer"));
            assert_ne!(said, Some(0), "{p:?} of {object:?}");
        }
    }
    // The second export allows no client here.
    let other = e.base.path().join("other");
    let path = other.display().to_string();
    let denied = peer.ask(mount::MNT, &Opaque::<4095>(path.as_bytes()).bytes());
    assert_eq!(denied.expect("an answer"), None);
    // These names lead elsewhere, or are invalid.
    let long = vec![b'x'; 4096];
    let names: [&[u8]; 9] = [
        b"",
        b"a/b",
        b"/etc",
        b"../outside/secret",
        b"nul\0",
        b"..",
        b".",
        &long[..256],
        &long[..1500],
    ];
    for name in names {
        let at = DirEntryName { dir: own, name: Opaque(name) };
        let how = How::Guarded(attributes);
        let to = DirEntryName { dir: own, name: Opaque(b"dir") };
        let target = Opaque(&b"../outside/secret"[..]);
        for (p, arguments) in [
            (procedure::CREATE, Create { at, how }.bytes()),
            (procedure::MKDIR, Mkdir { at, attributes }.bytes()),
            (procedure::SYMLINK, Symlink { at, attributes, path: target }.bytes()),
            (procedure::REMOVE, at.bytes()),
            (procedure::RMDIR, at.bytes()),
            (procedure::RENAME, Rename { from: at, to }.bytes()),
            (procedure::LINK, Link { file: honest.file, at }.bytes()),
        ] {
            let said = status(peer.ask(p, &arguments).expect("an answer"));
            assert_ne!(said, Some(0), "{p:?} of a name of {} bytes", name.len());
        }
        honest.ping().expect("the honest client is served");
    }
    // `..` of the export's directory is the directory itself.
    assert_eq!(peer.lookup(own, b"..").expect("it is there"), own);
    // The server makes the link, but never follows it; the client may follow it on its own side.
    let at = DirEntryName { dir: own, name: Opaque(b"link") };
    let link = Symlink { at, attributes, path: Opaque(b"../outside/secret") }.bytes();
    assert_eq!(status(peer.ask(procedure::SYMLINK, &link).expect("an answer")), Some(0));
    let link = peer.lookup(own, b"link").expect("a link");
    let write =
        Write { file: link, offset: 0, count: 1, stable: Stable::Unstable, data: Opaque(b"x") };
    for (p, arguments) in [
        (procedure::READ, Read { file: link, offset: 0, count: 99 }.bytes()),
        (procedure::WRITE, write.bytes()),
    ] {
        assert_ne!(status(peer.ask(p, &arguments).expect("an answer")), Some(0), "{p:?}");
    }
    // Send false lengths, cookies and counts of all sizes, and arguments that end early.
    let of = OfHandle { object: own }.bytes();
    let lies = [
        [of.clone(), bytes_of(&[u32::MAX])].concat(),
        bytes_of(&[u32::MAX, 1]),
        vec![],
        of[..9].to_vec(),
    ];
    for procedure_ in 1..22 {
        let p = Procedure { procedure: procedure_, ..procedure::NULL };
        for arguments in &lies {
            peer.ask(p, arguments).expect("an answer");
        }
    }
    for cookie in [1, 3, u64::MAX, 1 << 63, 0xdead_beef_0000] {
        for size in [0, 1, 100, 900] {
            let verifier = Verifier([cookie.to_le_bytes()[0]; 8]);
            let plus = Readdirplus { dir: own, cookie, verifier, dircount: size, maxcount: size };
            peer.ask(procedure::READDIRPLUS, &plus.bytes()).expect("an answer");
        }
    }
    assert!(peer.is_served());
    honest.ping().expect("the honest client is served");
    e.assert_untouched();
}

/// The fate of the data of a WRITE that the server reads.
#[derive(Clone, Copy)]
enum Data {
    /// The data never comes.
    Never,
    /// Half of the data comes, and then a Terminate, as if the STag had been invalidated meanwhile.
    InvalidatedMidway,
    /// The data comes to an STag that the server did not name.
    Elsewhere,
    /// More data comes than the server asked for.
    TooMuch,
}

/// Sends calls with the data of several WRITEs. Returns the first Read Request of the server.
fn writes(peer: &mut Peer, file: Handle, count: usize) -> io::Result<Message> {
    let room = u32::try_from(MIB).expect("a length");
    for _ in 0..count {
        let chunk = read(ITEM, [0xbeef, room, 0, 0]);
        peer.call(&lists(&[chunk], &[], &[0]), procedure::WRITE, &write_of(file, MIB, &[]))?;
    }
    loop {
        // The address may have used up its share of the memory by now, and then the server asks for
        // no data.
        let m = peer.client.recv(Duration::from_millis(100))?;
        if m.opcode == mpa::READ_REQUEST {
            return Ok(m);
        }
    }
}

fn stall(peer: &mut Peer, file: Handle, data: Data) -> io::Result<()> {
    let asked = writes(peer, file, 4)?;
    let ((stag, to), len, _) = mpa::parse_read_request(&asked.payload);
    match data {
        Data::Never => Ok(()),
        Data::InvalidatedMidway => {
            let half = mpa::read_response(stag, to, &vec![1; len / 2], 1400);
            // Leave out the last segment of the half, because it would mark the end of the whole
            // response.
            let cut = half.len() - half.len() % 1400;
            peer.client.say(&half[..cut])?;
            peer.client.say(&mpa::terminate([0x01, 0x00, 0, 0], &[], 0))
        }
        Data::Elsewhere => peer.client.say(&mpa::read_response(stag ^ 1, to, &vec![1; len], 1400)),
        Data::TooMuch => peer.client.say(&mpa::read_response(stag, to, &vec![1; len + 1400], 1400)),
    }
}

/// Sends READs of much data, which the peer does not receive.
fn reads_not_taken(peer: &mut Peer, big: Handle) -> io::Result<()> {
    let room = u32::try_from(MIB).expect("a length");
    let read = Read { file: big, offset: 0, count: room }.bytes();
    let chunk = [1, 1, 0xbeef, room, 0, 0];
    (0..16).try_for_each(|_| peer.call(&lists(&[], &chunk, &[0]), procedure::READ, &read))
}

#[test]
fn test_stalled_transfers_make_no_other_client_wait() {
    let mut e = Exports::new();
    let mut honest = e.honest();
    let big = honest.big;
    let (attack, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let stalled: [AtomicUsize; 4] = std::array::from_fn(|_| AtomicUsize::new(0));
    let e_ref = &e;
    let round = || {
        let kinds = [Data::Never, Data::InvalidatedMidway, Data::Elsewhere, Data::TooMuch];
        let mut held = Vec::new();
        for (nth, data) in kinds.into_iter().enumerate() {
            let version = if nth % 2 == 0 { v1::VERSION } else { v2::VERSION };
            // Attempts may be refused or ended; each peer just tries.
            if let Ok(mut peer) = e_ref.peer(LINUX[2 + nth], version) {
                let is_stalled = stall(&mut peer, big, data).is_ok();
                stalled[nth].fetch_add(usize::from(is_stalled), Ordering::Relaxed);
                held.push(peer);
            }
        }
        if let Ok(mut peer) = e_ref.peer(LINUX[0], v1::VERSION) {
            let _ = reads_not_taken(&mut peer, big);
            held.push(peer);
        }
        held
    };
    assert_not_slower(|| {
        stop.store(false, Ordering::Relaxed);
        thread::scope(|s| {
            s.spawn(|| {
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    if attack.load(Ordering::Relaxed) {
                        // The peers of the last round keep their places until this round has its
                        // own.
                        let before = std::mem::replace(&mut held, round());
                        thread::sleep(Duration::from_millis(50));
                        drop(before);
                    } else {
                        held.clear();
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let mut pings = [Vec::new(), Vec::new()];
            // On a busy machine, a kind of attack may need more turns until it stalls the server
            // once.
            let all_stalled = || stalled.iter().all(|times| times.load(Ordering::Relaxed) > 0);
            for turn in 0..10 * TURNS {
                if turn >= TURNS && turn % 2 == 0 && all_stalled() {
                    break;
                }
                attack.store(turn % 2 == 1, Ordering::Relaxed);
                pings[turn % 2].extend(measure(TURN, || honest.ping()));
            }
            stop.store(true, Ordering::Relaxed);
            pings
        })
    });
    let stalled = stalled.map(AtomicUsize::into_inner);
    assert!(stalled.iter().all(|&times| times > 0), "the server has asked for data: {stalled:?}");
    // The server has recovered the memory that the attackers had.
    honest.read_big(12);
    assert!(fs::read(e.base.path().join("export/big")).expect("it is there").len() >= MIB);
    e.assert_untouched();
}
