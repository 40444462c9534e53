//! XDR (RFC 4506), as far as transport headers and RPC headers need it, over bytes in memory.
//!
//! [`Reader`] is total: any bytes give a value or a [`Fault`] with its offset. The reader is
//! strict: a boolean, or the flag of optional data, is 0 or 1 (section 4.4), and padding is zero
//! (section 4.10). So each value has exactly one encoding: a value that was read encodes to the
//! same bytes, a middlebox that checks messages sees the same values as the receiver, and padding
//! carries no information.
//!
//! No crate suits: `xdr-codec`, `onc-xdr` and the decoders of NFS implementations read into owned
//! values, through `io::Read`, with an allocation for each opaque or array. Headers are decoded for
//! every message, and this decoder allocates nothing: values borrow from the received bytes.

/// Length of an XDR unit in bytes; the length of every item is a multiple.
pub const UNIT: usize = 4;

/// Rounds `len` up to a whole number of units; returns `len` unchanged when that would overflow.
#[inline]
pub const fn padded(len: usize) -> usize {
    match len.checked_next_multiple_of(UNIT) {
        Some(len) => len,
        None => len,
    }
}

/// The reason why the bytes are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes end before the item does.
    #[error("{need} bytes needed, {have} left")]
    End {
        /// Length of the item in bytes.
        need: usize,
        /// Number of bytes left.
        have: usize,
    },
    /// A boolean or the flag of optional data is neither 0 nor 1.
    #[error("{value:#x} is not a boolean")]
    Bool {
        /// The invalid value.
        value: u32,
    },
    /// A discriminant or an enumeration has a value that its type does not define.
    #[error("{value:#x} is not one of the type's values")]
    Enum {
        /// The invalid value.
        value: u32,
    },
    /// A count is above the limit of its type, or of the receiver.
    #[error("length {len} is above {max}")]
    Length {
        /// The count in the message.
        len: u32,
        /// The limit of the type or the receiver.
        max: u32,
    },
    /// Padding is not zero.
    #[error("padding is not zero")]
    Padding,
    /// Bytes follow the last item.
    #[error("{left} bytes behind the end")]
    Trailing {
        /// Number of bytes that follow.
        left: usize,
    },
}

/// A [`Fault`] and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {fault}")]
pub struct Error {
    /// Offset of the item, from the beginning of the decoded bytes.
    pub at: usize,
    /// The fault in that item.
    pub fault: Fault,
}

/// Reads items from the front of a byte slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the beginning of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Returns the offset of the next item.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes left.
    pub const fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the bytes left, without reading them.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    /// Returns the bytes from `start`, an earlier [`at`](Reader::at), to the current offset.
    pub fn since(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..self.at).unwrap_or(&[])
    }

    /// Reads the next `len` bytes, whatever their content.
    ///
    /// # Errors
    /// [`Fault::End`].
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        match self.rest().get(..len) {
            Some(bytes) => {
                self.at += len;
                Ok(bytes)
            }
            None => Err(self.fault(Fault::End { need: len, have: self.left() })),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        match self.rest().first_chunk() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.fault(Fault::End { need: N, have: self.left() })),
        }
    }

    /// Reads an unsigned integer (section 4.2).
    ///
    /// # Errors
    /// [`Fault::End`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads an unsigned hyper integer (section 4.5).
    ///
    /// # Errors
    /// [`Fault::End`].
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a boolean (section 4.4), or the flag in front of optional data (section 4.19).
    ///
    /// # Errors
    /// [`Fault::End`], [`Fault::Bool`].
    #[inline]
    pub fn flag(&mut self) -> Result<bool, Error> {
        let at = self.at;
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Error { at, fault: Fault::Bool { value } }),
        }
    }

    /// Reads the count in front of a variable-length array (section 4.13), at most `max`.
    ///
    /// # Errors
    /// [`Fault::End`], [`Fault::Length`].
    #[inline]
    pub fn count(&mut self, max: u32) -> Result<u32, Error> {
        let at = self.at;
        match self.u32()? {
            len if len > max => Err(Error { at, fault: Fault::Length { len, max } }),
            len => Ok(len),
        }
    }

    /// Reads variable-length opaque data or a string (sections 4.10 and 4.11) of at most `max`
    /// bytes. Returns the data without its length and padding.
    ///
    /// # Errors
    /// [`Fault::End`], [`Fault::Length`], [`Fault::Padding`].
    pub fn opaque(&mut self, max: u32) -> Result<&'a [u8], Error> {
        let len = self.count(max)? as usize;
        let data = self.take(len)?;
        let at = self.at;
        if self.take(padded(len) - len)?.iter().any(|&b| b != 0) {
            return Err(Error { at, fault: Fault::Padding });
        }
        Ok(data)
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// [`Fault::Trailing`].
    pub fn finish(&self) -> Result<(), Error> {
        match self.left() {
            0 => Ok(()),
            left => Err(self.fault(Fault::Trailing { left })),
        }
    }

    /// Returns `fault` as an error of the next item.
    pub const fn fault(&self, fault: Fault) -> Error {
        Error { at: self.at, fault }
    }
}

/// The error that a buffer is shorter than the encoding. The buffer holds the beginning of the
/// encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{need} bytes to write, room for {room}")]
pub struct NoRoom {
    /// Length of the encoding in bytes.
    pub need: usize,
    /// Length of the buffer in bytes.
    pub room: usize,
}

/// Writes items one after another into a buffer. The writer counts an item that does not fit and
/// does not write it, so a pass over an empty buffer measures an encoding.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// Starts at the beginning of `out`.
    pub const fn new(out: &'a mut [u8]) -> Writer<'a> {
        Writer { out, at: 0 }
    }

    /// Returns the number of bytes written, or counted, so far.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Writes `bytes` unchanged.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        let end = self.at.saturating_add(bytes.len());
        if let Some(to) = self.out.get_mut(self.at..end) {
            to.copy_from_slice(bytes);
        }
        self.at = end;
    }

    /// Writes an unsigned integer.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_be_bytes());
    }

    /// Writes an unsigned hyper integer.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_be_bytes());
    }

    /// Writes a boolean, or the flag in front of optional data.
    #[inline]
    pub fn flag(&mut self, value: bool) {
        self.u32(value.into());
    }

    /// Writes variable-length opaque data with its length and padding. Data longer than a length
    /// field can express is cut; types that hold bytes of any length have lower limits of their
    /// own.
    pub fn opaque(&mut self, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let data = data.get(..len as usize).unwrap_or(data);
        self.u32(len);
        if data.is_empty() {
            return;
        }
        self.raw(data);
        self.raw(&[0; UNIT][..padded(data.len()) - data.len()]);
    }

    /// Returns the number of bytes written.
    ///
    /// # Errors
    /// Returns an error when the encoding is longer than the buffer.
    pub const fn finish(self) -> Result<usize, NoRoom> {
        if self.at > self.out.len() {
            return Err(NoRoom { need: self.at, room: self.out.len() });
        }
        Ok(self.at)
    }
}

/// Returns the number of bytes that `write` writes.
pub(crate) fn measure(write: impl FnOnce(&mut Writer<'_>)) -> usize {
    let mut w = Writer::new(&mut []);
    write(&mut w);
    w.at()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn test_opaque_is_length_data_and_zeros_up_to_a_unit() {
        let mut out = [0xff; 12];
        let mut w = Writer::new(&mut out);
        w.opaque(b"abcde");
        assert_eq!(w.finish(), Ok(12));
        assert_eq!(out, *b"\0\0\0\x05abcde\0\0\0");
        let mut r = Reader::new(&out);
        assert_eq!(r.opaque(5), Ok(&b"abcde"[..]));
        assert_eq!(r.finish(), Ok(()));
    }

    #[test]
    fn test_opaque_refuses_length_above_its_limit_and_padding_that_is_not_zero() {
        let mut bytes = *b"\0\0\0\x05abcde\0\0\0";
        let long = Error { at: 0, fault: Fault::Length { len: 5, max: 4 } };
        assert_eq!(Reader::new(&bytes).opaque(4), Err(long));
        bytes[10] = 1;
        let padding = Error { at: 9, fault: Fault::Padding };
        assert_eq!(Reader::new(&bytes).opaque(5), Err(padding));
        let end = Error { at: 9, fault: Fault::End { need: 3, have: 2 } };
        assert_eq!(Reader::new(&bytes[..11]).opaque(5), Err(end));
    }

    #[test]
    fn test_opaque_length_beyond_the_buffer_is_an_end_error() {
        let bytes = u32::MAX.to_be_bytes();
        let end = Fault::End { need: u32::MAX as usize, have: 0 };
        assert_eq!(Reader::new(&bytes).opaque(u32::MAX), Err(Error { at: 4, fault: end }));
    }

    #[test]
    fn test_flag_is_zero_or_one() {
        let mut r = Reader::new(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!((r.flag(), r.flag()), (Ok(true), Ok(false)));
        assert_eq!(r.flag(), Err(Error { at: 8, fault: Fault::Bool { value: 2 } }));
    }

    #[test]
    fn test_reader_finish_reports_bytes_left() {
        let mut r = Reader::new(&[0, 0, 0, 1, 9]);
        assert_eq!(r.u32(), Ok(1));
        assert_eq!(r.rest(), [9]);
        assert_eq!(r.finish(), Err(Error { at: 4, fault: Fault::Trailing { left: 1 } }));
        assert_eq!(r.u32(), Err(Error { at: 4, fault: Fault::End { need: 4, have: 1 } }));
        assert_eq!(r.at(), 4, "what cannot be read is not passed over");
    }

    #[test]
    fn test_writer_counts_beyond_its_buffer_and_writes_nothing_there() {
        let mut out = [0xff; 6];
        let mut w = Writer::new(&mut out);
        w.u32(1);
        w.u64(2);
        assert_eq!(w.at(), 12);
        assert_eq!(w.finish(), Err(NoRoom { need: 12, room: 6 }));
        assert_eq!(out, [0, 0, 0, 1, 0xff, 0xff]);
        assert_eq!(measure(|w| w.opaque(b"abc")), 8);
    }

    proptest! {
        #[test]
        fn prop_what_is_written_is_read(
            a: u32, b: u64, c: bool, data in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut out = [0; 100];
            let mut w = Writer::new(&mut out);
            w.u32(a);
            w.opaque(&data);
            w.u64(b);
            w.flag(c);
            let len = w.finish().unwrap();
            prop_assert_eq!(len, 20 + padded(data.len()));
            let mut r = Reader::new(&out[..len]);
            prop_assert_eq!(r.u32(), Ok(a));
            prop_assert_eq!(r.opaque(40), Ok(&data[..]));
            prop_assert_eq!((r.u64(), r.flag(), r.finish()), (Ok(b), Ok(c), Ok(())));
        }
    }
}
