//! READ, WRITE and COMMIT.

use std::os::fd::AsFd;

use super::Handled;
use super::apart::{Room, Sink, Source, all, read_into};
use super::object::item;
use super::{Carried, Outcome, Share, unknown};
use crate::counters::count;
use crate::export::Object;
use crate::export::flush::{Due, Extent};
use crate::wire::{
    Commit, CommitOk, Fattr, IO_MAX, Read, Stable, Status, WccData, Write, WriteApart, WriteOk,
    Xdr, put_padding,
};

/// A READ that was carried out: where its data begins (or would begin, if it did not lie apart),
/// and how much was read.
struct Done {
    data: usize,
    length: usize,
    apart: bool,
}

/// Length in bytes of the longest file.
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

impl Share {
    /// Reads into `sink`, or into the reply itself.
    pub(super) fn read(&self, call: &Read, out: &mut Vec<u8>, sink: &mut dyn Sink) -> Carried {
        let start = out.len();
        match self.read_into(call, out, sink) {
            Ok(Ok(Done { data, length, apart })) => {
                count(&self.counters.read_bytes, length as u64);
                Carried::Done(Handled { item: item(data - start, length), apart })
            }
            Ok(Err(wanted)) => Carried::NoRoom(wanted),
            Err((status, attributes)) => {
                out.truncate(start);
                status.put(out);
                attributes.put(out);
                Carried::Done(Handled::default())
            }
        }
    }

    fn read_into(
        &self,
        call: &Read,
        out: &mut Vec<u8>,
        sink: &mut dyn Sink,
    ) -> Outcome<Result<Done, usize>, Option<Fattr>> {
        let object = self.export.object(&call.file).map_err(|e| (e, None))?;
        let failed = |e| (e, Some(object.attributes));
        let file = self.export.open_read(&object).map_err(failed)?;
        Status::OK.put(out);
        let head = out.len();
        // Attributes, count, end of file and length are known only after the read, so their room
        // stays free until then.
        let room = Some(object.attributes).bytes().len() + 12;
        let data = head + room;
        let wanted = usize::try_from(call.count.min(IO_MAX)).unwrap_or(0);
        // If the file grows meanwhile, the client reads the rest in its next call.
        let left = object.attributes.size.saturating_sub(call.offset);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(wanted).min(sink.most());
        let at = |done: usize| call.offset.saturating_add(done as u64);
        out.resize(data, 0);
        let (read, apart) = match sink.take(wanted) {
            Room::None => return Err(failed(Status::JUKEBOX)),
            Room::Later => return Ok(Err(wanted)),
            Room::Direct => {
                let step = |done, left| sink.read_from(done, left, file.as_fd(), at(done));
                (all(wanted, step).map_err(|e| failed(e.into()))?, true)
            }
            Room::Inline => {
                out.resize(data + wanted, 0);
                let step = |done, _| {
                    let room = out.get_mut(data + done..).unwrap_or(&mut []);
                    read_into(room, file.as_fd(), at(done))
                };
                let read = all(wanted, step).map_err(|e| failed(e.into()))?;
                out.truncate(data + read);
                put_padding(out, read);
                (read, false)
            }
        };
        let after = self.export.attributes(&object).unwrap_or(object.attributes);
        let length = u32::try_from(read).unwrap_or(0);
        let eof = call.offset.saturating_add(length.into()) >= after.size;
        let mut fields = Some(after).bytes();
        length.put(&mut fields);
        eof.put(&mut fields);
        length.put(&mut fields);
        if let Some(to) = out.get_mut(head..data) {
            to.copy_from_slice(&fields);
        }
        Ok(Ok(Done { data, length: read, apart }))
    }

    /// Writes data that arrived with the other arguments.
    pub(super) fn write(&self, call: &Write<'_>, due: &mut Due) -> Outcome<WriteOk, WccData> {
        let &Write { file, offset, count, stable, ref data } = call;
        let length = u32::try_from(data.0.len()).unwrap_or(u32::MAX);
        self.write_from(&WriteApart { file, offset, count, stable, length }, &data.0, due)
    }

    /// Writes `data`, whose length in bytes has to match the call's count.
    pub(super) fn write_from(
        &self,
        call: &WriteApart,
        data: &dyn Source,
        due: &mut Due,
    ) -> Outcome<WriteOk, WccData> {
        let failed = |e| (e, unknown());
        let object = self.export.object(&call.file).map_err(failed)?;
        self.writable().map_err(failed)?;
        if call.count != call.length {
            return Err(failed(Status::INVAL));
        }
        let turn = self.export.turn(&object);
        let before = self.export.attributes(&object);
        // Taken before the write: a loss that is counted from here on may affect this data.
        let verifier = self.verifier();
        let done = self.write_to(&object, call, data, due);
        let after = self.export.attributes(&object);
        drop(turn);
        let wcc = WccData { before: before.map(|a| a.wcc()), after };
        let written = done.map_err(|e| (e, wcc))?;
        count(&self.counters.written_bytes, written as u64);
        Ok(WriteOk {
            wcc,
            count: u32::try_from(written).unwrap_or(0),
            committed: call.stable,
            verifier,
        })
    }

    /// Writes the data, and returns the number of bytes written: at least one, unless the data is
    /// empty.
    fn write_to(
        &self,
        object: &Object,
        call: &WriteApart,
        data: &dyn Source,
        due: &mut Due,
    ) -> Result<usize, Status> {
        let file = self.export.open_write(object)?;
        // A client writes more than the longest WRITE in a second call.
        let len = data.len().min(IO_MAX as usize);
        if call.offset.saturating_add(len as u64) > SIZE_MAX {
            return Err(Status::FBIG);
        }
        if len > 0 {
            self.export.strip_set_id(object)?;
        }
        let extent = match call.stable {
            Stable::Unstable => None,
            Stable::DataSync => Some(Extent::Data),
            Stable::FileSync => Some(Extent::All),
        };
        let ticket = |_| self.export.change_data(object, file.clone());
        let ticket = extent.map(ticket).transpose()?;
        let at = |done: usize| call.offset.saturating_add(done as u64);
        let written = all(len, |done, left| data.write_to(done, left, file.as_fd(), at(done)))?;
        if written == 0 && len > 0 {
            return Err(Status::IO);
        }
        ticket.zip(extent).into_iter().for_each(|(ticket, extent)| due.push(ticket, extent));
        Ok(written)
    }

    /// Commits all of the file, even if the client asks for a part. A read-only export commits as
    /// well: data that was written before the export became read-only has to be safe.
    pub(super) fn commit(&self, call: &Commit, due: &mut Due) -> Outcome<CommitOk, WccData> {
        let failed = |e| (e, unknown());
        let object = self.export.object(&call.file).map_err(failed)?;
        let before = self.export.attributes(&object);
        // A file that may not be opened for writing may have been opened and written when it was
        // made.
        let file = self.export.open_write(&object).or_else(|_| self.export.open_read(&object));
        let ticket = file.and_then(|file| self.export.change_data(&object, file));
        // A COMMIT changes no attribute of the file.
        let wcc = WccData { before: before.map(|a| a.wcc()), after: before };
        due.push(ticket.map_err(|e| (e, wcc))?, Extent::All);
        // The verifier in the reply is the current one when the disk has the data.
        Ok(CommitOk { wcc, verifier: self.verifier() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use super::super::durable::durable;
    use super::*;
    use crate::Options;
    use crate::wire::{Opaque, procedure};

    /// The system reports data that it could not write once for each descriptor, and clients share
    /// descriptors.
    #[test]
    fn test_verifier_changes_when_data_cannot_be_put_on_the_disk() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("f"), b"").unwrap();
        let share = Share::new(base.path(), "/", Options::default()).unwrap();
        let root = share.export.object(&share.export.root()).unwrap();
        let object = share.export.lookup(&root, b"f").unwrap();
        let file = share.export.handle(&object);
        let settled = |carried| {
            let mut out = Vec::new();
            share.settle(carried, super::super::NOWHERE, &mut out);
            out
        };
        let written = |stable| {
            let call = Write { file, offset: 0, count: 1, stable, data: Opaque(b"x") };
            let (mut due, mut out) = (Due::default(), Vec::new());
            let outcome = share.write(&call, &mut due);
            let carried = durable(&share, procedure::WRITE, outcome, due, &mut out);
            out.extend(settled(carried));
            let done = Outcome::<WriteOk, WccData>::whole(&out).unwrap();
            done.map(|w| w.verifier).map_err(|(status, _)| status)
        };
        let commit = || {
            let call = Commit { file, offset: 0, count: 0 };
            let (mut due, mut out) = (Due::default(), Vec::new());
            let outcome = share.commit(&call, &mut due);
            let carried = durable(&share, procedure::COMMIT, outcome, due, &mut out);
            out.extend(settled(carried));
            let done = Outcome::<CommitOk, WccData>::whole(&out).unwrap();
            done.map(|c| c.verifier).map_err(|(status, _)| status)
        };
        let first = written(Stable::Unstable).unwrap();
        assert_eq!((written(Stable::FileSync), commit()), (Ok(first), Ok(first)));
        // A pipe cannot be put on a disk, so its fsync fails.
        let good = share.export.open_write(&object).unwrap();
        let (_other, pipe) = std::io::pipe().unwrap();
        share.export.keep_write(&object, &Arc::new(OwnedFd::from(pipe)), false);
        assert_eq!(commit(), Err(Status::INVAL));
        share.export.keep_write(&object, &good, true);
        let second = commit().unwrap();
        assert_ne!(second, first, "others find out that they have to write again");
        assert_eq!(written(Stable::Unstable), Ok(second));
    }
}
