//! READ, WRITE and COMMIT.

use std::os::fd::AsFd;

use rustix::fs::{fdatasync, fsync};
use rustix::io::Errno;

use super::object::item;
use super::{Handled, Outcome, Service, unknown};
use crate::counters::count;
use crate::export::Object;
use crate::wire::{
    Commit, CommitOk, Fattr, IO_MAX, Read, Stable, Status, WccData, Write, WriteOk, Xdr,
    put_padding,
};

/// Octets of the longest file.
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

impl Service {
    /// Reads into the reply itself.
    pub(super) fn read(&self, call: &Read, out: &mut Vec<u8>) -> Handled {
        let start = out.len();
        match self.read_into(call, out) {
            Ok((offset, length)) => {
                count(&self.counters.read_bytes, length as u64);
                Handled { item: item(offset - start, length) }
            }
            Err((status, attributes)) => {
                out.truncate(start);
                status.put(out);
                attributes.put(out);
                Handled::default()
            }
        }
    }

    /// Where the data is in `out`, and how much.
    fn read_into(&self, call: &Read, out: &mut Vec<u8>) -> Outcome<(usize, usize), Option<Fattr>> {
        let object = self.export.object(&call.file).map_err(|e| (e, None))?;
        let failed = |e| (e, Some(object.attributes));
        let file = self.export.open_read(&object).map_err(failed)?;
        Status::OK.put(out);
        let head = out.len();
        // Attributes, count, end of file and length are known when the data is there.
        let room = Some(object.attributes).octets().len() + 12;
        let data = head + room;
        let wanted = usize::try_from(call.count.min(IO_MAX)).unwrap_or(0);
        // Of a file that grows meanwhile more is read in the next call.
        let left = object.attributes.size.saturating_sub(call.offset);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(wanted);
        out.resize(data + wanted, 0);
        let read = read_all(&file, out.get_mut(data..).unwrap_or(&mut []), call.offset)
            .map_err(|e| failed(e.into()))?;
        out.truncate(data + read);
        put_padding(out, read);
        let after = self.export.attributes(&object).unwrap_or(object.attributes);
        let length = u32::try_from(read).unwrap_or(0);
        let eof = call.offset.saturating_add(length.into()) >= after.size;
        let mut fields = Some(after).octets();
        length.put(&mut fields);
        eof.put(&mut fields);
        length.put(&mut fields);
        if let Some(to) = out.get_mut(head..data) {
            to.copy_from_slice(&fields);
        }
        Ok((data, read))
    }

    pub(super) fn write(&self, call: &Write<'_>) -> Outcome<WriteOk, WccData> {
        let failed = |e| (e, unknown());
        self.writable().map_err(failed)?;
        if call.count as usize != call.data.0.len() {
            return Err(failed(Status::INVAL));
        }
        let object = self.export.object(&call.file).map_err(failed)?;
        let turn = self.export.turn(&object);
        let before = self.export.attributes(&object);
        let done = self.write_to(&object, call);
        let after = self.export.attributes(&object);
        drop(turn);
        let wcc = WccData { before: before.map(|a| a.wcc()), after };
        let written = done.map_err(|e| (e, wcc))?;
        count(&self.counters.written_bytes, written as u64);
        Ok(WriteOk {
            wcc,
            count: u32::try_from(written).unwrap_or(0),
            committed: call.stable,
            verifier: self.verifier,
        })
    }

    /// Octets written: at least one, when there are any.
    fn write_to(&self, object: &Object, call: &Write<'_>) -> Result<usize, Status> {
        let file = self.export.open_write(object)?;
        // More than the longest is written by a second call.
        let data = call.data.0.get(..IO_MAX as usize).unwrap_or(call.data.0);
        if call.offset.saturating_add(data.len() as u64) > SIZE_MAX {
            return Err(Status::FBIG);
        }
        let written = write_all(&file, data, call.offset)?;
        match call.stable {
            Stable::Unstable => {}
            Stable::DataSync => fdatasync(&file)?,
            Stable::FileSync => fsync(&file)?,
        }
        Ok(written)
    }

    /// All of the file is committed, which is more than may be asked for.
    pub(super) fn commit(&self, call: &Commit) -> Outcome<CommitOk, WccData> {
        let failed = |e| (e, unknown());
        self.writable().map_err(failed)?;
        let object = self.export.object(&call.file).map_err(failed)?;
        let turn = self.export.turn(&object);
        let before = self.export.attributes(&object);
        // A file that may not be opened to be written may have been when it was made.
        let file = self.export.open_write(&object).or_else(|_| self.export.open_read(&object));
        let done = file.and_then(|file| Ok(fsync(&file)?));
        let after = self.export.attributes(&object);
        drop(turn);
        let wcc = WccData { before: before.map(|a| a.wcc()), after };
        done.map_err(|e| (e, wcc))?;
        Ok(CommitOk { wcc, verifier: self.verifier })
    }
}

/// Reads until the buffer is full or the file is at its end.
fn read_all(file: impl AsFd, to: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut read = 0;
    while let Some(room) = to.get_mut(read..).filter(|room| !room.is_empty()) {
        match rustix::io::pread(&file, room, offset.saturating_add(read as u64)) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read)
}

/// Writes all, or as much as there is room for; an error when that is nothing.
fn write_all(file: impl AsFd, data: &[u8], offset: u64) -> Result<usize, Status> {
    let mut written = 0;
    while let Some(rest) = data.get(written..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(&file, rest, offset.saturating_add(written as u64)) {
            Ok(0) => break,
            Ok(n) => written += n,
            Err(Errno::INTR) => {}
            Err(e) if written == 0 => return Err(e.into()),
            Err(_) => break,
        }
    }
    if written == 0 && !data.is_empty() { Err(Status::IO) } else { Ok(written) }
}
