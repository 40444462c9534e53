//! Results that no honest server sends: the client refuses them, and ends.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;

use heddle_nfs::client::{
    Client, ClientError, Outgoing, Pipeline, Returned, Token, Transport, TransportError,
};
use heddle_nfs::wire::{
    Attributes, Device, DirPlus, DirPlusEntry, Fattr, FileType, Handle, IO_MAX, Opaque, Read,
    ReadOk, Readdirplus, Stable, Status, Time, Verifier, WccData, WriteOk, Xdr,
};

/// A server whose results the function computes from each call's arguments.
struct Server<F> {
    says: F,
    back: VecDeque<Returned>,
    calls: u64,
}

impl<F: FnMut(&[u8]) -> Vec<u8>> Transport for Server<F> {
    fn submit(&mut self, call: &Outgoing<'_>) -> Result<Token, TransportError> {
        self.calls += 1;
        assert!(self.calls < 100_000, "it goes on for ever");
        let token = Token(self.calls);
        let results = Ok((self.says)(call.arguments));
        self.back.push_back(Returned { token, results });
        Ok(token)
    }

    fn wait(&mut self) -> Result<Returned, TransportError> {
        self.back.pop_front().ok_or_else(|| TransportError::Other("nothing under way".into()))
    }
}

fn client<F: FnMut(&[u8]) -> Vec<u8>>(says: F) -> Client<Server<F>> {
    Client::new(Server { says, back: VecDeque::new(), calls: 0 }, Pipeline::default())
}

fn handle() -> Handle {
    Handle::new(b"a handle").unwrap()
}

fn entry(name: &[u8], cookie: u64) -> DirPlusEntry<'_> {
    DirPlusEntry { fileid: 1, name: Opaque(name), cookie, attributes: None, handle: None }
}

/// Returns results of READDIRPLUS.
fn part(entries: Vec<DirPlusEntry<'_>>, eof: bool) -> Vec<u8> {
    let part = DirPlus { dir: None, verifier: Verifier::default(), entries, eof };
    Ok::<_, (Status, Option<Fattr>)>(part).bytes()
}

/// Returns the names of a listing, or the reason why there is none.
fn list(says: impl FnMut(&[u8]) -> Vec<u8>) -> Result<Vec<Vec<u8>>, String> {
    let mut names = Vec::new();
    let listed = client(says).list(handle(), |entry| names.push(entry.name.0.to_vec()));
    listed.map(|()| names).map_err(|e| e.to_string())
}

#[test]
fn test_listing_refuses_names_that_lead_elsewhere() {
    let long = [b'x'; 256];
    let bad = [&b"../x"[..], b"/etc/passwd", b"a/b", b"/", b"", b"a\0b", &long];
    for name in bad {
        let why = list(|_| part(vec![entry(b"good", 1), entry(name, 2)], true)).unwrap_err();
        assert!(why.contains("a name that none can be"), "{name:?}: {why}");
    }
    let entries = || vec![entry(b".", 1), entry(b"..", 2), entry(b"...", 3)];
    assert_eq!(list(|_| part(entries(), true)), Ok(vec![b"...".to_vec()]));
}

#[test]
fn test_endless_listings_are_given_up() {
    let circles: &[&[u64]] = &[&[0], &[7], &[7, 0], &[7, 8, 9, 8], &[1, 2, 3, 4, 5, 1]];
    for cookies in circles {
        let mut next = cookies.iter().cycle();
        let why = list(|_| part(vec![entry(b"x", *next.next().unwrap())], false)).unwrap_err();
        assert!(why.contains("does not get on"), "{cookies:?}: {why}");
    }
    let why = list(|_| part(vec![], false)).unwrap_err();
    assert!(why.contains("does not get on"), "{why}");

    // Ever new cookies, and names of one byte.
    let why = list(|arguments| {
        let after = Readdirplus::whole(arguments).unwrap().cookie;
        part((after + 1..after + 2001).map(|cookie| entry(b"x", cookie)).collect(), false)
    });
    assert!(why.unwrap_err().contains("too many names"));
}

/// Returns results of READ.
fn read_of(count: u32, data: &[u8], eof: bool) -> Vec<u8> {
    read_with(None, count, data, eof)
}

fn read_with(attributes: Option<Fattr>, count: u32, data: &[u8], eof: bool) -> Vec<u8> {
    let read = ReadOk { attributes, count, eof, data: Opaque(data) };
    Ok::<_, (Status, Option<Fattr>)>(read).bytes()
}

#[test]
fn test_client_refuses_data_that_it_did_not_request() {
    let all = vec![1; IO_MAX as usize + 4];
    for (count, data) in
        [(0, &all[..]), (IO_MAX + 4, &all), (u32::MAX, &all[..8]), (9, &all[..8]), (0, &all[..0])]
    {
        for size in [0, 100, u64::MAX] {
            let mut taken = 0;
            let read = client(|_| read_of(count, data, false)).read(handle(), size, |piece| {
                taken += piece.len();
                Ok(())
            });
            assert!(matches!(read, Err(ClientError::Nonsense(_) | ClientError::Results { .. })));
            assert_eq!(taken, 0, "{count} {}", data.len());
        }
    }
}

/// Returns attributes of a file of `size` bytes.
fn attributes(size: u64) -> Fattr {
    Fattr {
        kind: FileType::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size,
        used: size,
        rdev: Device::default(),
        fsid: 1,
        fileid: 1,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
    }
}

/// Reads a file that had `before` bytes by its attributes. The server has ten bytes, and reports
/// with each READ, or on GETATTR, that the file has `now`.
fn read_of_ten(before: u64, now: u64, with_each: bool) -> Result<(u64, Vec<u8>), ClientError> {
    let data = [7; 10];
    let says = |arguments: &[u8]| {
        let Ok(read) = Read::whole(arguments) else {
            return Ok::<_, (Status, ())>(Attributes { attributes: attributes(now) }).bytes();
        };
        let from = usize::try_from(read.offset).unwrap_or(usize::MAX).min(data.len());
        let rest = data.get(from..).unwrap();
        let said = with_each.then(|| attributes(now));
        read_with(said, u32::try_from(rest.len()).unwrap(), rest, true)
    };
    let mut got = Vec::new();
    let read = client(says).read(handle(), before, |piece| {
        got.extend_from_slice(piece);
        Ok(())
    });
    read.map(|total| (total, got))
}

#[test]
fn test_file_ends_where_the_server_says_when_it_became_shorter_or_longer() {
    for with_each in [false, true] {
        for before in [0, 5, 10, 11, u64::MAX] {
            let read = read_of_ten(before, 10, with_each);
            assert_eq!(read.unwrap(), (10, vec![7; 10]), "{before} {with_each}");
        }
    }
}

#[test]
fn test_read_that_ends_before_the_last_byte_fails() {
    for with_each in [false, true] {
        for size in [11, 1 << 20, u64::MAX] {
            let read = read_of_ten(size, size, with_each);
            assert!(matches!(read, Err(ClientError::Nonsense(_))), "{size} {with_each}: {read:?}");
        }
    }
}

#[test]
fn test_write_that_took_nothing_or_too_much_is_refused() {
    for count in [0, 11, u32::MAX] {
        let wcc = WccData { before: None, after: None };
        let (committed, verifier) = (Stable::FileSync, Verifier::default());
        let said = WriteOk { wcc, count, committed, verifier };
        let said = Ok::<_, (Status, WccData)>(said).bytes();
        let mut source = std::io::Cursor::new(vec![1; 10]);
        let written = client(|_| said.clone()).write(handle(), &mut source, |_, _| ());
        assert!(matches!(written, Err(ClientError::Nonsense(_))), "{count}: {written:?}");
    }
}
