//! Arguments and results: octets in XDR, and items that lie apart in registered memory.
//!
//! An item is opaque data whose octets lie in a [`Buffer`]. Its length stands among the octets, its
//! data and padding do not. Whether it goes by RDMA Read or Write, or within the message, is the
//! transport's to choose, by what the program's [`Binding`](heddle_rpcrdma::binding::Binding) allows
//! and how long it is; the peer sees the same arguments either way.
//!
//! ```text
//!   octets     ── 7 ── n ┃ 1 ──            items: n octets, position 8
//!   unreduced  ── 7 ── n ┃ item │ padding ┃ 1 ──
//! ```

#[cfg(test)]
mod tests;

use heddle_rpcrdma::xdr::{self, Reader, padded};

use crate::memory::{Buffer, Memory, NoMemory};

/// Opaque data that lies apart.
#[derive(Clone, Debug)]
pub struct Item {
    /// Offset of its first octet in the unreduced arguments or results: a multiple of four.
    pub position: u32,
    /// Its octets.
    pub data: Buffer,
}

/// Arguments or results.
#[derive(Clone, Debug, Default)]
pub struct Body {
    octets: Vec<u8>,
    items: Vec<Item>,
    /// Octets of the unreduced whole.
    len: u32,
}

/// Arguments or results longer than RPC-over-RDMA can tell: 2^32 - 1 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("arguments or results longer than 2^32 - 1 octets")]
pub struct TooLong;

impl Body {
    /// One of no octets.
    pub const fn new() -> Body {
        Body { octets: Vec::new(), items: Vec::new(), len: 0 }
    }

    /// One of these octets, which are XDR already.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn of(octets: Vec<u8>) -> Result<Body, TooLong> {
        let len = u32::try_from(octets.len()).map_err(|_| TooLong)?;
        Ok(Body { octets, items: Vec::new(), len })
    }

    /// What has come: octets without those of `items`, which are in order of their positions.
    pub(crate) fn received(octets: Vec<u8>, items: Vec<Item>) -> Result<Body, TooLong> {
        let apart: usize = items.iter().map(|i| padded(i.data.len())).sum();
        let len = octets.len().checked_add(apart).and_then(|l| u32::try_from(l).ok());
        Ok(Body { octets, items, len: len.ok_or(TooLong)? })
    }

    /// Octets of the unreduced whole: with items and their padding.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The octets without those of items.
    pub fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// The items, in order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// By `len` octets, `here` of which are no item's.
    fn grow(&mut self, len: usize, here: usize) -> Result<(), TooLong> {
        // So that a few integers do not make it grow again and again.
        const FIRST: usize = 64;
        let more = u32::try_from(len).map_err(|_| TooLong)?;
        self.len = self.len.checked_add(more).ok_or(TooLong)?;
        if self.octets.capacity() == 0 {
            self.octets = Vec::with_capacity(here.max(FIRST));
        } else {
            self.octets.reserve(here);
        }
        Ok(())
    }

    /// Puts octets at the end, which are XDR already.
    ///
    /// # Errors
    /// [`TooLong`]; nothing has changed then. Likewise of the others.
    pub fn raw(&mut self, octets: &[u8]) -> Result<&mut Body, TooLong> {
        self.grow(octets.len(), octets.len())?;
        self.octets.extend_from_slice(octets);
        Ok(self)
    }

    /// Puts an unsigned integer at the end.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn u32(&mut self, value: u32) -> Result<&mut Body, TooLong> {
        self.raw(&value.to_be_bytes())
    }

    /// Puts an unsigned hyper integer at the end.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn u64(&mut self, value: u64) -> Result<&mut Body, TooLong> {
        self.raw(&value.to_be_bytes())
    }

    /// Puts opaque data or a string at the end: length, octets, padding.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn opaque(&mut self, data: &[u8]) -> Result<&mut Body, TooLong> {
        let len = u32::try_from(data.len()).map_err(|_| TooLong)?;
        let more = padded(data.len()).checked_add(4).ok_or(TooLong)?;
        self.grow(more, more)?;
        self.octets.extend_from_slice(&len.to_be_bytes());
        self.octets.extend_from_slice(data);
        self.octets.resize(self.octets.len().next_multiple_of(4), 0);
        Ok(self)
    }

    /// Puts opaque data at the end whose octets are in `data`: its length here, the rest apart.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn item(&mut self, data: Buffer) -> Result<&mut Body, TooLong> {
        let len = u32::try_from(data.len()).map_err(|_| TooLong)?;
        let position = self.len.checked_add(4).ok_or(TooLong)?;
        self.grow(padded(data.len()).checked_add(4).ok_or(TooLong)?, 4)?;
        self.octets.extend_from_slice(&len.to_be_bytes());
        if len > 0 {
            self.items.push(Item { position, data });
        }
        Ok(self)
    }

    /// The same with no item apart.
    pub(crate) fn flat(&self) -> Body {
        Body { len: self.len, octets: self.to_vec(), items: Vec::new() }
    }

    /// A copy of all its octets, those of items in their places.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(self.len as usize);
        let (mut rest, mut passed) = (&self.octets[..], 0);
        for item in &self.items {
            // Of the octets, those in front of the item.
            let before = (item.position as usize).saturating_sub(passed).min(rest.len());
            let (front, behind) = rest.split_at(before);
            octets.extend_from_slice(front);
            let start = octets.len();
            octets.resize(start + padded(item.data.len()), 0);
            if let Some(room) = octets.get_mut(start..start + item.data.len()) {
                // As long as the item.
                let inside = item.data.read(0, room);
                debug_assert!(inside.is_ok());
            }
            (rest, passed) = (behind, octets.len());
        }
        octets.extend_from_slice(rest);
        octets
    }

    /// Reads it from the beginning.
    pub fn reader(&self) -> BodyReader<'_> {
        BodyReader { r: Reader::new(&self.octets), items: &self.items, apart: 0 }
    }
}

/// Opaque data, wherever it is.
#[derive(Clone, Copy, Debug)]
pub enum Opaque<'a> {
    /// It came within the message.
    Octets(&'a [u8]),
    /// It lies apart.
    Apart(&'a Buffer),
}

impl Opaque<'_> {
    /// Its octets.
    pub fn len(&self) -> usize {
        match self {
            Opaque::Octets(octets) => octets.len(),
            Opaque::Apart(buffer) => buffer.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its octets in registered memory: where they are if they lie apart, else a copy in `memory`.
    ///
    /// # Errors
    /// [`NoMemory`], of a copy.
    pub fn to_buffer(&self, memory: &Memory) -> Result<Buffer, NoMemory> {
        match self {
            Opaque::Octets(octets) => memory.take_copy(octets),
            Opaque::Apart(buffer) => Ok((*buffer).clone()),
        }
    }

    /// A copy of its octets.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Opaque::Octets(octets) => octets.to_vec(),
            Opaque::Apart(buffer) => buffer.to_vec(),
        }
    }
}

/// Reads arguments or results from the front. Which octets came apart is the peer's choice, so whatever
/// may be an item is read by [`opaque`](BodyReader::opaque).
#[derive(Clone, Copy, Debug)]
pub struct BodyReader<'a> {
    r: Reader<'a>,
    items: &'a [Item],
    /// Octets of items that were passed, with their padding.
    apart: usize,
}

impl<'a> BodyReader<'a> {
    /// An unsigned integer.
    ///
    /// # Errors
    /// What is wrong with the octets; a server refuses arguments as GARBAGE_ARGS. Likewise of the
    /// others.
    pub fn u32(&mut self) -> Result<u32, xdr::Error> {
        self.r.u32()
    }

    /// An unsigned hyper integer.
    ///
    /// # Errors
    /// What is wrong with the octets.
    pub fn u64(&mut self) -> Result<u64, xdr::Error> {
        self.r.u64()
    }

    /// A boolean, or the flag in front of optional data.
    ///
    /// # Errors
    /// What is wrong with the octets.
    pub fn flag(&mut self) -> Result<bool, xdr::Error> {
        self.r.flag()
    }

    /// Opaque data or a string of at most `max` octets, here or apart.
    ///
    /// # Errors
    /// What is wrong with the octets; also an item of another length than they say.
    pub fn opaque(&mut self, max: u32) -> Result<Opaque<'a>, xdr::Error> {
        let at = self.r.at();
        let mut ahead = self.r;
        let len = ahead.u32()?;
        let position = ahead.at() + self.apart;
        let next = self.items.split_first().filter(|(i, _)| i.position as usize == position);
        let Some((item, rest)) = next else { return self.r.opaque(max).map(Opaque::Octets) };
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

    /// Whether all was read.
    ///
    /// # Errors
    /// When octets or items are left.
    pub fn finish(&self) -> Result<(), xdr::Error> {
        self.r.finish()?;
        let left: usize = self.items.iter().map(|i| i.data.len()).sum();
        if self.items.is_empty() {
            return Ok(());
        }
        Err(xdr::Error { at: self.r.at(), fault: xdr::Fault::Trailing { left } })
    }
}
