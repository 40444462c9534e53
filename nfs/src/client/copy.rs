//! Reading and writing files, pipelined.

use std::collections::VecDeque;
use std::io::{self, Read as _, Seek, SeekFrom};

use heddle_rpcrdma::reduce::Item;
use heddle_rpcrdma::xdr::padded;

use super::jukebox::Pauses;
use super::{Client, ClientError, Token, Transport, parse};
use crate::wire::{
    Commit, CommitOk, Fattr, Handle, Opaque, Read, ReadOk, Stable, Verifier, WccData, Write,
    WriteOk, Xdr, procedure,
};

/// How many times the client writes data again because the server restarted.
const RESTARTS_MAX: u32 = 5;

/// A READ in flight.
struct Reading {
    token: Token,
    offset: u64,
    count: u32,
    pauses: Pauses,
}

/// A WRITE in flight, with its data: the client writes again what the server does not take.
struct Writing {
    token: Token,
    offset: u64,
    data: Vec<u8>,
    pauses: Pauses,
}

/// Data that was written and is not yet known to be safe.
enum Pass {
    /// The server took all bytes and did not restart in between.
    Whole(u64, Option<Verifier>),
    /// The server restarted, and may have lost data.
    Lost,
}

impl<T: Transport> Client<T> {
    /// Reads a file to its end, and returns the number of bytes read. The client gives each piece
    /// to `sink`, in order; an error of `sink` ends the read. `size` is the file's size by its
    /// attributes, and the client reads ahead up to there. If the file ends before `size`, the
    /// client checks with the server that the file has become that short.
    ///
    /// # Errors
    /// [`ClientError`], also for an error of `sink`.
    pub fn read(
        &mut self,
        file: Handle,
        size: u64,
        mut sink: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u64, ClientError> {
        let mut under_way = VecDeque::new();
        let done = self.read_through(file, size, &mut under_way, &mut sink);
        self.abandon(under_way.into_iter().map(|r: Reading| r.token));
        done
    }

    fn read_through(
        &mut self,
        file: Handle,
        size: u64,
        under_way: &mut VecDeque<Reading>,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u64, ClientError> {
        let (mut next, mut total) = (0u64, 0u64);
        loop {
            while under_way.len() < self.read.depth && (next < size || under_way.is_empty()) {
                let count = self.read.size;
                under_way.push_back(self.send_read(file, next, count)?);
                next = next.saturating_add(count.into());
            }
            let Some(reading) = under_way.pop_front() else { return Ok(total) };
            let results = self.results(reading.token)?;
            let mut pauses = reading.pauses;
            if self.is_to_be_made_again(procedure::READ, &results, &mut pauses)? {
                let again = self.send_read(file, reading.offset, reading.count)?;
                under_way.push_front(Reading { pauses, ..again });
                continue;
            }
            let read: ReadOk<'_> = parse::<_, Option<Fattr>>(&results, "READ", &"")?;
            let got = u32::try_from(read.data.0.len()).unwrap_or(u32::MAX);
            if got > reading.count || got != read.count {
                return Err(ClientError::Nonsense("other data than was asked for"));
            }
            sink(read.data.0).map_err(ClientError::Local)?;
            total += u64::from(got);
            if read.eof {
                self.check_end(file, total, size, read.attributes)?;
                return Ok(total);
            }
            if got == 0 {
                return Err(ClientError::Nonsense("neither data nor the end of the file"));
            }
            if got < reading.count {
                let rest = reading.offset.saturating_add(got.into());
                under_way.push_front(self.send_read(file, rest, reading.count - got)?);
            }
        }
    }

    /// Checks that a file ends after `total` bytes, where a READ reported the end. Its attributes
    /// said `size` before: the file may have become shorter, but then the server's attributes say
    /// so now.
    fn check_end(
        &mut self,
        file: Handle,
        total: u64,
        size: u64,
        attributes: Option<Fattr>,
    ) -> Result<(), ClientError> {
        if total >= size {
            return Ok(());
        }
        let now = match attributes {
            Some(attributes) => attributes,
            None => self.getattr(file)?,
        };
        if total < now.size {
            return Err(ClientError::Nonsense("the end of a file before its last byte"));
        }
        Ok(())
    }

    fn send_read(&mut self, file: Handle, offset: u64, count: u32) -> Result<Reading, ClientError> {
        let token = self.submit(procedure::READ, &Read { file, offset, count })?;
        Ok(Reading { token, offset, count, pauses: self.pauses() })
    }

    /// Writes all of `source` to a file, from its beginning, commits it, and returns the number of
    /// bytes written. The client passes each piece with its offset to `observe` in order, when it
    /// sends the piece; when the server restarted meanwhile, the client begins anew with offset 0.
    ///
    /// # Errors
    /// [`ClientError`], also for an error of `source`.
    pub fn write(
        &mut self,
        file: Handle,
        source: &mut (impl io::Read + Seek),
        mut observe: impl FnMut(u64, &[u8]),
    ) -> Result<u64, ClientError> {
        for _ in 0..=RESTARTS_MAX {
            source.seek(SeekFrom::Start(0)).map_err(ClientError::Local)?;
            let mut under_way = VecDeque::new();
            let pass = self.write_through(file, source, &mut under_way, &mut observe);
            self.abandon(under_way.into_iter().map(|w: Writing| w.token));
            if let Pass::Whole(total, verifier) = pass?
                && self.commit(file, verifier)?
            {
                return Ok(total);
            }
        }
        Err(ClientError::Restarts(RESTARTS_MAX + 1))
    }

    fn write_through(
        &mut self,
        file: Handle,
        source: &mut dyn io::Read,
        under_way: &mut VecDeque<Writing>,
        observe: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Pass, ClientError> {
        let (mut offset, mut ended) = (0u64, false);
        let mut known: Option<Verifier> = None;
        loop {
            while !ended && under_way.len() < self.write.depth {
                let mut data = Vec::new();
                let limit = u64::from(self.write.size);
                (&mut *source).take(limit).read_to_end(&mut data).map_err(ClientError::Local)?;
                if data.is_empty() {
                    ended = true;
                    break;
                }
                observe(offset, &data);
                let at = offset;
                offset = offset.saturating_add(data.len() as u64);
                under_way.push_back(self.send_write(file, at, data)?);
            }
            let Some(writing) = under_way.pop_front() else {
                return Ok(Pass::Whole(offset, known));
            };
            let results = self.results(writing.token)?;
            let mut pauses = writing.pauses;
            if self.is_to_be_made_again(procedure::WRITE, &results, &mut pauses)? {
                let again = self.send_write(file, writing.offset, writing.data)?;
                under_way.push_front(Writing { pauses, ..again });
                continue;
            }
            let written: WriteOk = parse::<_, WccData>(&results, "WRITE", &"")?;
            if *known.get_or_insert(written.verifier) != written.verifier {
                return Ok(Pass::Lost);
            }
            match writing.data.get(written.count as usize..) {
                Some([]) => {}
                Some(rest) if written.count > 0 => {
                    let (at, rest) = (writing.offset + u64::from(written.count), rest.to_vec());
                    under_way.push_front(self.send_write(file, at, rest)?);
                }
                _ => return Err(ClientError::Nonsense("a WRITE of no bytes or too many")),
            }
        }
    }

    fn send_write(
        &mut self,
        file: Handle,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<Writing, ClientError> {
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let stable = Stable::Unstable;
        let arguments = Write { file, offset, count, stable, data: Opaque(&data) }.bytes();
        // The data stands last in the arguments, so the arguments' length gives the data's offset.
        let at = u32::try_from(arguments.len() - padded(data.len())).ok();
        let item = at.map(|offset| Item { offset, length: count });
        let token = self.submit_bytes(procedure::WRITE, &arguments, item)?;
        Ok(Writing { token, offset, data, pauses: self.pauses() })
    }

    /// Returns true if the written data is safe: the server that commits is the instance that took
    /// the data.
    fn commit(&mut self, file: Handle, verifier: Option<Verifier>) -> Result<bool, ClientError> {
        let results = self.call(procedure::COMMIT, &Commit { file, offset: 0, count: 0 })?;
        let committed: CommitOk = parse::<_, WccData>(&results, "COMMIT", &"")?;
        Ok(verifier.is_none_or(|verifier| verifier == committed.verifier))
    }
}
