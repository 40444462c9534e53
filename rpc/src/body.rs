//! Arguments and results: bytes in XDR, and items in separate registered memory.
//!
//! An item is opaque data whose bytes are in a [`Buffer`]. The item's length is among the bytes of
//! the body; its data and padding are not. The transport chooses whether the item travels by RDMA
//! Read or Write or within the message, depending on the program's
//! [`Binding`](heddle_rpcrdma::binding::Binding) and on the item's length. The peer sees the same
//! arguments either way.
//!
//! ```text
//!   bytes      ── 7 ── n ┃ 1 ──            items: n bytes, position 8
//!   unreduced  ── 7 ── n ┃ item │ padding ┃ 1 ──
//! ```

#[cfg(test)]
mod tests;

use heddle_rpcrdma::xdr::{self, Reader, padded};

use crate::memory::{Buffer, Memory, NoMemory};

/// Opaque data in memory of its own.
#[derive(Clone, Debug)]
pub struct Item {
    /// Offset of the item's first byte in the unreduced arguments or results: a multiple of four.
    pub position: u32,
    /// The buffer that holds the item's bytes.
    pub data: Buffer,
}

/// Arguments or results of a procedure.
#[derive(Clone, Debug, Default)]
pub struct Body {
    bytes: Vec<u8>,
    items: Vec<Item>,
    /// Length of the unreduced body in bytes.
    len: u32,
}

/// The error that arguments or results are longer than RPC-over-RDMA can express: 2^32 - 1 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("arguments or results longer than 2^32 - 1 bytes")]
pub struct TooLong;

impl Body {
    /// Creates an empty body.
    pub const fn new() -> Body {
        Body { bytes: Vec::new(), items: Vec::new(), len: 0 }
    }

    /// Creates a body from bytes that are XDR already.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn of(bytes: Vec<u8>) -> Result<Body, TooLong> {
        let len = u32::try_from(bytes.len()).map_err(|_| TooLong)?;
        Ok(Body { bytes, items: Vec::new(), len })
    }

    /// Creates a received body from its bytes without those of `items`, which are in order of their
    /// positions.
    pub(crate) fn received(bytes: Vec<u8>, items: Vec<Item>) -> Result<Body, TooLong> {
        let apart: usize = items.iter().map(|i| padded(i.data.len())).sum();
        let len = bytes.len().checked_add(apart).and_then(|l| u32::try_from(l).ok());
        Ok(Body { bytes, items, len: len.ok_or(TooLong)? })
    }

    /// Returns the length of the unreduced body in bytes, with items and their padding.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of the body without those of items.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the items in order of their positions.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Adds `len` bytes to the length and makes room for `here` bytes, which belong to no item.
    fn grow(&mut self, len: usize, here: usize) -> Result<(), TooLong> {
        // Large enough that a few integers do not make the vector grow repeatedly.
        const FIRST: usize = 64;
        let more = u32::try_from(len).map_err(|_| TooLong)?;
        self.len = self.len.checked_add(more).ok_or(TooLong)?;
        if self.bytes.capacity() == 0 {
            self.bytes = Vec::with_capacity(here.max(FIRST));
        } else {
            self.bytes.reserve(here);
        }
        Ok(())
    }

    /// Appends bytes that are XDR already.
    ///
    /// # Errors
    /// [`TooLong`]; the body is then unchanged. The same holds for the other methods that append.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<&mut Body, TooLong> {
        self.grow(bytes.len(), bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(self)
    }

    /// Appends an unsigned integer.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn u32(&mut self, value: u32) -> Result<&mut Body, TooLong> {
        self.raw(&value.to_be_bytes())
    }

    /// Appends an unsigned hyper integer.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn u64(&mut self, value: u64) -> Result<&mut Body, TooLong> {
        self.raw(&value.to_be_bytes())
    }

    /// Appends opaque data or a string: its length, its bytes and padding.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn opaque(&mut self, data: &[u8]) -> Result<&mut Body, TooLong> {
        let len = u32::try_from(data.len()).map_err(|_| TooLong)?;
        let more = padded(data.len()).checked_add(4).ok_or(TooLong)?;
        self.grow(more, more)?;
        self.bytes.extend_from_slice(&len.to_be_bytes());
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        Ok(self)
    }

    /// Appends opaque data whose bytes are in `data`: the body gets only the length, the rest stays
    /// in `data`.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn item(&mut self, data: Buffer) -> Result<&mut Body, TooLong> {
        let len = u32::try_from(data.len()).map_err(|_| TooLong)?;
        let position = self.len.checked_add(4).ok_or(TooLong)?;
        self.grow(padded(data.len()).checked_add(4).ok_or(TooLong)?, 4)?;
        self.bytes.extend_from_slice(&len.to_be_bytes());
        if len > 0 {
            self.items.push(Item { position, data });
        }
        Ok(self)
    }

    /// Returns the same body without separate items.
    pub(crate) fn flat(&self) -> Body {
        Body { len: self.len, bytes: self.to_vec(), items: Vec::new() }
    }

    /// Returns a copy of all bytes, with those of items in their places.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len as usize);
        let (mut rest, mut passed) = (&self.bytes[..], 0);
        for item in &self.items {
            // The number of bytes that precede the item and are not copied yet.
            let before = (item.position as usize).saturating_sub(passed).min(rest.len());
            let (front, behind) = rest.split_at(before);
            bytes.extend_from_slice(front);
            let start = bytes.len();
            bytes.resize(start + padded(item.data.len()), 0);
            if let Some(room) = bytes.get_mut(start..start + item.data.len()) {
                // The room has the length of the item, so the read fits.
                let inside = item.data.read(0, room);
                debug_assert!(inside.is_ok());
            }
            (rest, passed) = (behind, bytes.len());
        }
        bytes.extend_from_slice(rest);
        bytes
    }

    /// Returns a reader that starts at the beginning of the body.
    pub fn reader(&self) -> BodyReader<'_> {
        BodyReader { r: Reader::new(&self.bytes), items: &self.items, apart: 0 }
    }
}

/// Opaque data, either within the message or in separate memory.
#[derive(Clone, Copy, Debug)]
pub enum Opaque<'a> {
    /// The data came within the message.
    Bytes(&'a [u8]),
    /// The data is in a buffer of its own.
    Apart(&'a Buffer),
}

impl Opaque<'_> {
    /// Returns the length of the data in bytes.
    pub fn len(&self) -> usize {
        match self {
            Opaque::Bytes(bytes) => bytes.len(),
            Opaque::Apart(buffer) => buffer.len(),
        }
    }

    /// Returns true if the data is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the data in registered memory: its own buffer if it has one, otherwise a copy in
    /// `memory`.
    ///
    /// # Errors
    /// [`NoMemory`], when there is none for a copy.
    pub fn to_buffer(&self, memory: &Memory) -> Result<Buffer, NoMemory> {
        match self {
            Opaque::Bytes(bytes) => memory.take_copy(bytes),
            Opaque::Apart(buffer) => Ok((*buffer).clone()),
        }
    }

    /// Returns a copy of the data.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Opaque::Bytes(bytes) => bytes.to_vec(),
            Opaque::Apart(buffer) => buffer.to_vec(),
        }
    }
}

/// Reads arguments or results from the front. The peer chooses which data comes in separate items,
/// so the caller reads all data that may be an item with [`opaque`](BodyReader::opaque).
#[derive(Clone, Copy, Debug)]
pub struct BodyReader<'a> {
    r: Reader<'a>,
    items: &'a [Item],
    /// Length of the items passed so far, with their padding.
    apart: usize,
}

impl<'a> BodyReader<'a> {
    /// Reads an unsigned integer.
    ///
    /// # Errors
    /// Returns the fault in the bytes; a server refuses such arguments as GARBAGE_ARGS. The same
    /// holds for the other methods that read.
    pub fn u32(&mut self) -> Result<u32, xdr::Error> {
        self.r.u32()
    }

    /// Reads an unsigned hyper integer.
    ///
    /// # Errors
    /// Returns the fault in the bytes.
    pub fn u64(&mut self) -> Result<u64, xdr::Error> {
        self.r.u64()
    }

    /// Reads a boolean, or the flag in front of optional data.
    ///
    /// # Errors
    /// Returns the fault in the bytes.
    pub fn flag(&mut self) -> Result<bool, xdr::Error> {
        self.r.flag()
    }

    /// Reads opaque data or a string of at most `max` bytes, within the message or in an item.
    ///
    /// # Errors
    /// Returns the fault in the bytes, or an error when the item's length differs from the stated
    /// length.
    pub fn opaque(&mut self, max: u32) -> Result<Opaque<'a>, xdr::Error> {
        let at = self.r.at();
        let mut ahead = self.r;
        let len = ahead.u32()?;
        let position = ahead.at() + self.apart;
        let next = self.items.split_first().filter(|(i, _)| i.position as usize == position);
        let Some((item, rest)) = next else { return self.r.opaque(max).map(Opaque::Bytes) };
        if len > max {
            return Err(xdr::Error { at, fault: xdr::Fault::Length { len, max } });
        }
        let have = item.data.len();
        if have != len as usize {
            return Err(xdr::Error { at, fault: xdr::Fault::End { need: len as usize, have } });
        }
        (self.r, self.items) = (ahead, rest);
        self.apart += padded(have);
        Ok(Opaque::Apart(&item.data))
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    /// Returns an error when bytes or items are left.
    pub fn finish(&self) -> Result<(), xdr::Error> {
        self.r.finish()?;
        let left: usize = self.items.iter().map(|i| i.data.len()).sum();
        if self.items.is_empty() {
            return Ok(());
        }
        Err(xdr::Error { at: self.r.at(), fault: xdr::Fault::Trailing { left } })
    }
}
