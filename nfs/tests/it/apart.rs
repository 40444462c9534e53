//! Data that lies apart from the other bytes of a call or reply, in memory that moves the data in
//! steps of any length.
#![allow(clippy::unwrap_used, clippy::result_large_err, reason = "tests")]

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

use crate::common::{Lab, mode};
use heddle_nfs::wire::{
    Commit, DirEntryName, Fattr, Handle, How, Opaque, Read, ReadOk, Stable, Status, WccData, Write,
    WriteApart, WriteOk, Xdr, mount, procedure,
};
use heddle_nfs::{Arguments, Handled, Options, Room, Sink, Source};
use heddle_rpcrdma::rpc::{Auth, Procedure, Status as RpcStatus};
use heddle_rpcrdma::xdr::padded;

/// Memory that moves at most `step` bytes at a time, is interrupted before each step, and fails
/// after `fails` bytes.
struct Slow {
    bytes: RefCell<Vec<u8>>,
    step: usize,
    fails: usize,
    interrupted: RefCell<bool>,
    room: Room,
}

impl Slow {
    fn new(bytes: &[u8], step: usize) -> Slow {
        let (bytes, interrupted) = (RefCell::new(bytes.to_vec()), RefCell::new(false));
        Slow { bytes, step, fails: usize::MAX, interrupted, room: Room::Direct }
    }

    fn step(&self, at: usize, len: usize) -> io::Result<usize> {
        let again = self.interrupted.replace_with(|i| !*i);
        if !again {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if at >= self.fails {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(len.min(self.step).min(self.fails - at))
    }
}

impl Source for Slow {
    fn len(&self) -> usize {
        self.bytes.borrow().len()
    }

    fn write_to(
        &self,
        from: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize> {
        let len = self.step(from, len)?;
        Ok(rustix::io::pwrite(file, &self.bytes.borrow()[from..from + len], at)?)
    }
}

impl Sink for Slow {
    fn take(&mut self, len: usize) -> Room {
        self.bytes.borrow_mut().resize(len, 0);
        self.room
    }

    fn read_from(
        &mut self,
        to: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize> {
        let len = self.step(to, len)?;
        Ok(rustix::io::pread(file, &mut self.bytes.borrow_mut()[to..to + len], at)?)
    }
}

type Results = (Vec<u8>, Handled);

fn dispatch(
    lab: &Lab,
    p: Procedure,
    arguments: Arguments<'_>,
    sink: &mut Slow,
) -> Result<Results, RpcStatus> {
    let mut out = b"before".to_vec();
    let handled = lab.service.dispatch(p, &Auth::NONE, arguments, &mut out, sink)?;
    Ok((out.strip_prefix(b"before").unwrap().to_vec(), handled))
}

fn read(lab: &Lab, file: Handle, offset: u64, count: u32, sink: &mut Slow) -> Results {
    let arguments = Read { file, offset, count }.bytes();
    dispatch(lab, procedure::READ, Arguments::of(&arguments), sink).unwrap()
}

/// Returns results in one piece, with the data of `sink` in its place.
fn whole(mut results: Vec<u8>, handled: Handled, sink: &Slow) -> Vec<u8> {
    let item = handled.item.unwrap();
    assert!(handled.apart);
    assert_eq!(item.offset as usize, results.len());
    let length = item.length as usize;
    results.extend_from_slice(&sink.bytes.borrow()[..length]);
    results.resize(results.len() - length + padded(length), 0);
    results
}

#[test]
fn test_read_data_goes_to_the_sink_and_results_are_the_same() {
    let lab = Lab::new();
    let contents: Vec<u8> = (0..100_001u32).map(|i| (i % 251) as u8).collect();
    fs::write(lab.path("f"), &contents).unwrap();
    let f = lab.handle("f");
    for (offset, count, got) in [(0, 100_001, 100_001), (7, 50_000, 50_000), (100_000, 9, 1)] {
        let mut sink = Slow::new(b"", 4093);
        let (results, handled) = read(&lab, f, offset, count, &mut sink);
        let results = whole(results, handled, &sink);
        let done = Result::<ReadOk<'_>, (Status, Option<Fattr>)>::whole(&results).unwrap().unwrap();
        let start = usize::try_from(offset).unwrap();
        assert_eq!(done.data.0, &contents[start..start + got]);
        assert_eq!(done.eof, start + got == contents.len());
        assert_eq!(done.count as usize, got);
    }
    assert_eq!(lab.service.counts().read_bytes, 150_002);
}

#[test]
fn test_read_goes_inline_without_wish_and_is_put_off_without_room() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"0123456789").unwrap();
    let f = lab.handle("f");
    let mut sink = Slow { room: Room::Inline, ..Slow::new(b"", 1) };
    let (results, handled) = read(&lab, f, 2, 5, &mut sink);
    assert!(!handled.apart && handled.item.unwrap().length == 5);
    let done = Result::<ReadOk<'_>, (Status, Option<Fattr>)>::whole(&results).unwrap().unwrap();
    assert_eq!(done.data.0, b"23456");
    sink.room = Room::None;
    let (results, handled) = read(&lab, f, 2, 5, &mut sink);
    let failed = Result::<ReadOk<'_>, (Status, Option<Fattr>)>::whole(&results).unwrap();
    let (status, attributes) = failed.err().unwrap();
    assert_eq!((status, handled), (Status::JUKEBOX, Handled::default()));
    assert_eq!(attributes.unwrap().size, 10);
}

/// A call reports the bytes read before the failure, and the next call reports the error.
#[test]
fn test_read_reports_bytes_before_a_sink_failure() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"0123456789").unwrap();
    let f = lab.handle("f");
    let mut sink = Slow { fails: 4, ..Slow::new(b"", 3) };
    let (results, handled) = read(&lab, f, 0, 10, &mut sink);
    let results = whole(results, handled, &sink);
    let done = Result::<ReadOk<'_>, (Status, Option<Fattr>)>::whole(&results).unwrap().unwrap();
    assert_eq!((done.data.0, done.eof), (&b"0123"[..], false));
    sink.fails = 0;
    let (results, handled) = read(&lab, f, 4, 6, &mut sink);
    let failed = Result::<ReadOk<'_>, (Status, Option<Fattr>)>::whole(&results).unwrap();
    assert!(failed.is_err() && handled == Handled::default());
}

fn write(lab: &Lab, call: WriteApart, data: &Slow) -> Result<Result<WriteOk, Status>, RpcStatus> {
    let arguments = call.bytes();
    let arguments = Arguments { bytes: &arguments, data: Some(data) };
    let (results, _) = dispatch(lab, procedure::WRITE, arguments, &mut Slow::new(b"", 1))?;
    let done = Result::<WriteOk, (Status, WccData)>::whole(&results).unwrap();
    Ok(done.map_err(|(status, _)| status))
}

#[test]
fn test_write_takes_data_directly_from_its_source() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"__________").unwrap();
    let file = lab.handle("f");
    let call = WriteApart { file, offset: 2, count: 7, stable: Stable::FileSync, length: 7 };
    let done = write(&lab, call, &Slow::new(b"abcdefg", 3)).unwrap().unwrap();
    assert_eq!((done.count, done.committed), (7, Stable::FileSync));
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"__abcdefg_");
    // The call writes as many bytes as the source gives.
    let data = Slow { fails: 4, ..Slow::new(b"ABCDEFG", 3) };
    assert_eq!(write(&lab, call, &data).unwrap().unwrap().count, 4);
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"__ABCDefg_");
    let data = Slow { fails: 0, ..Slow::new(b"ABCDEFG", 3) };
    assert!(write(&lab, call, &data).unwrap().is_err());
    // Lengths that do not match the data.
    let data = Slow::new(b"abcdefg", 3);
    let short = WriteApart { count: 6, ..call };
    assert_eq!(write(&lab, short, &data).unwrap().unwrap_err(), Status::INVAL);
    for length in [0, 6, 8, u32::MAX] {
        let lies = WriteApart { length, count: length, ..call };
        assert_eq!(write(&lab, lies, &data).err(), Some(RpcStatus::GarbageArgs), "{length}");
    }
    let far = WriteApart { offset: i64::MAX as u64, ..call };
    assert_eq!(write(&lab, far, &data).unwrap().unwrap_err(), Status::FBIG);
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"__ABCDefg_");
}

#[test]
fn test_only_write_accepts_separate_data() {
    let lab = Lab::new();
    fs::write(lab.path("f"), b"as it is").unwrap();
    let file = lab.handle("f");
    let data = Slow::new(b"abcd", 4);
    let at = DirEntryName { dir: lab.root(), name: Opaque(b"f") };
    let all = Write { file, offset: 0, count: 4, stable: Stable::Unstable, data: Opaque(b"wxyz") };
    let how = How::Unchecked(mode(0o600));
    for (p, bytes) in [
        (procedure::NULL, vec![]),
        (procedure::REMOVE, at.bytes()),
        (procedure::COMMIT, Commit { file, offset: 0, count: 0 }.bytes()),
        (procedure::CREATE, heddle_nfs::wire::Create { at, how }.bytes()),
        // All arguments of a WRITE, and the data once more.
        (procedure::WRITE, all.bytes()),
        (mount::EXPORT, vec![]),
    ] {
        let arguments = Arguments { bytes: &bytes, data: Some(&data) };
        let done = dispatch(&lab, p, arguments, &mut Slow::new(b"", 1));
        assert_eq!(done.err(), Some(RpcStatus::GarbageArgs), "{p:?}");
    }
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"as it is");
}

#[test]
fn test_read_only_export_refuses_writes_of_separate_data() {
    let lab = Lab::with(Options { read_only: true, ..Options::default() });
    fs::write(lab.path("f"), b"as it is").unwrap();
    let file = lab.handle("f");
    let call = WriteApart { file, offset: 0, count: 4, stable: Stable::Unstable, length: 4 };
    assert_eq!(write(&lab, call, &Slow::new(b"abcd", 4)).unwrap().unwrap_err(), Status::ROFS);
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"as it is");
}
