//! Record marking: RPC messages over a byte stream (RFC 5531 section 11).
//!
//! ```text
//!   bit 31: last fragment │ 31 bits: length of the fragment in bytes │ the fragment
//! ```

use std::io::{self, Read, Write};

const LAST: u32 = 1 << 31;

/// The highest number of fragments in a message. Only a hostile peer sends more.
const FRAGMENTS_MAX: u32 = 1024;

/// The number of bytes for which the reader allocates memory before any of them has arrived.
const STEP: usize = 64 << 10;

/// Why a stream has no valid message.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The stream failed, or ended within a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The message is longer than it may be.
    #[error("message longer than {max} bytes")]
    TooLong {
        /// The longest permitted message in bytes.
        max: u32,
    },
    /// The message has more fragments than permitted.
    #[error("message of more than {FRAGMENTS_MAX} fragments")]
    Fragments,
}

/// Reads a message of at most `max` bytes into `message`, in place of its old contents. Returns
/// false when the stream ends before the message.
///
/// # Errors
/// [`RecordError`]. After an error the start of the next message is unknown.
pub fn read(stream: &mut impl Read, message: &mut Vec<u8>, max: u32) -> Result<bool, RecordError> {
    message.clear();
    for fragment in 0..FRAGMENTS_MAX {
        let Some(mark) = read_mark(stream, fragment == 0)? else { return Ok(false) };
        let len = (mark & !LAST) as usize;
        if message.len() + len > max as usize {
            return Err(RecordError::TooLong { max });
        }
        read_fragment(stream, message, len)?;
        if mark & LAST != 0 {
            return Ok(true);
        }
    }
    Err(RecordError::Fragments)
}

/// Reads the mark in front of a fragment; returns `None` at the end of the stream, if the stream
/// may end here.
fn read_mark(stream: &mut impl Read, may_end: bool) -> io::Result<Option<u32>> {
    let mut mark = [0; 4];
    let mut have = 0;
    while let Some(room) = mark.get_mut(have..).filter(|room| !room.is_empty()) {
        match stream.read(room) {
            Ok(0) if have == 0 && may_end => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Some(u32::from_be_bytes(mark)))
}

/// Reads a fragment. The function allocates memory as bytes arrive, not by the length that the peer
/// claims.
fn read_fragment(stream: &mut impl Read, message: &mut Vec<u8>, len: usize) -> io::Result<()> {
    let end = message.len() + len;
    while message.len() < end {
        let at = message.len();
        message.resize(end.min(at + STEP), 0);
        stream.read_exact(message.get_mut(at..).unwrap_or(&mut []))?;
    }
    Ok(())
}

/// Writes a message as one fragment.
///
/// # Errors
/// The errors of the stream; `InvalidInput` for a message that is too long for a mark.
pub fn write(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let len = u32::try_from(message.len()).ok().filter(|&len| len < LAST);
    let len = len.ok_or(io::ErrorKind::InvalidInput)?;
    stream.write_all(&(LAST | len).to_be_bytes())?;
    stream.write_all(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut bytes: &[u8], max: u32) -> Result<Vec<Vec<u8>>, RecordError> {
        let (mut messages, mut message) = (Vec::new(), Vec::new());
        while read(&mut bytes, &mut message, max)? {
            messages.push(message.clone());
        }
        Ok(messages)
    }

    #[test]
    fn test_messages_come_as_they_were_written() {
        let mut stream = Vec::new();
        let long = vec![7; 3 * STEP + 1];
        for message in [&b"one"[..], b"", &long] {
            write(&mut stream, message).unwrap();
        }
        assert_eq!(stream[..7], *b"\x80\0\0\x03one");
        assert_eq!(all(&stream, 1 << 20).unwrap(), [b"one".to_vec(), vec![], long]);
    }

    #[test]
    fn test_fragments_are_joined() {
        let stream = b"\0\0\0\x02ab\0\0\0\0\x80\0\0\x01c";
        assert_eq!(all(stream, 3).unwrap(), [b"abc"]);
        assert!(matches!(all(stream, 2), Err(RecordError::TooLong { max: 2 })));
    }

    #[test]
    fn test_claimed_length_takes_no_memory_and_endless_fragments_end() {
        let mut message = Vec::new();
        let claim = read(&mut &b"\xff\xff\xff\xff"[..], &mut message, u32::MAX);
        assert!(matches!(claim, Err(RecordError::Io(_))));
        assert!(message.capacity() <= 2 * STEP, "{}", message.capacity());
        let endless = read(&mut io::repeat(0), &mut message, 10);
        assert!(matches!(endless, Err(RecordError::Fragments)));
    }

    #[test]
    fn test_stream_may_end_between_messages_only() {
        assert!(all(b"", 9).unwrap().is_empty());
        for cut in 1..7 {
            let error = all(&b"\x80\0\0\x03one"[..cut], 9).unwrap_err();
            assert!(
                matches!(error, RecordError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof)
            );
        }
    }
}
