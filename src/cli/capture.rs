//! Checks capture files before a DPDK device reads them.
//!
//! The device would take a truncated file for a shorter one, and frames of any link type for
//! Ethernet.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// The reason why a file is unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum CaptureError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is a pcapng file; this reads pcap (editcap -F pcap makes one of it)")]
    Pcapng,
    #[error("unknown file format: it is no pcap file")]
    Format,
    #[error("its frames are not Ethernet (link type {0}, expected 1)")]
    LinkType(u32),
    #[error("it is cut off: {0} is not whole")]
    CutOff(String),
    #[error("record {record} has an impossible length of {len} bytes")]
    Length { record: u64, len: u32 },
}

/// Bytes of the file's header, and of a record's.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// Longest record that libpcap accepts.
const MAX_RECORD: u32 = 262_144;

const ETHERNET: u32 = 1;

/// Checks that a device can read `path` to its end.
pub(super) fn check(path: &Path) -> Result<(), CaptureError> {
    check_bytes(BufReader::new(File::open(path)?))
}

fn check_bytes(mut file: impl Read) -> Result<(), CaptureError> {
    let cut = |what: &str| CaptureError::CutOff(what.into());
    let mut head = [0; FILE_HEADER];
    let n = fill(&mut file, &mut head)?;
    let magic = [head[0], head[1], head[2], head[3]];
    if magic == [0x0a, 0x0d, 0x0d, 0x0a] && n >= 4 {
        return Err(CaptureError::Pcapng);
    }
    // The magic number tells microseconds from nanoseconds, and the byte order.
    let word: fn([u8; 4]) -> u32 = match u32::from_le_bytes(magic) {
        0xa1b2_c3d4 | 0xa1b2_3c4d => u32::from_le_bytes,
        0xd4c3_b2a1 | 0x4d3c_b2a1 => u32::from_be_bytes,
        _ => return Err(CaptureError::Format),
    };
    if n < FILE_HEADER {
        return Err(cut("its header"));
    }
    // The upper bits only say whether frames include their FCS, so mask them out.
    let link = word([head[20], head[21], head[22], head[23]]) & 0x03ff_ffff;
    if link != ETHERNET {
        return Err(CaptureError::LinkType(link));
    }
    for record in 1.. {
        let mut head = [0; RECORD_HEADER];
        match fill(&mut file, &mut head)? {
            0 => break,
            RECORD_HEADER => {}
            _ => return Err(cut(&format!("the header of record {record}"))),
        }
        let len = word([head[8], head[9], head[10], head[11]]);
        if len > MAX_RECORD {
            return Err(CaptureError::Length { record, len });
        }
        let copied = io::copy(&mut file.by_ref().take(len.into()), &mut io::sink())?;
        if copied < len.into() {
            return Err(cut(&format!("record {record}")));
        }
    }
    Ok(())
}

/// Reads until `buf` is full or the file ends. Returns the number of bytes read.
fn fill(file: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match file.read(&mut buf[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(big: bool, link: u32, records: &[(u32, usize)]) -> Vec<u8> {
        let word = |w: u32| if big { w.to_be_bytes() } else { w.to_le_bytes() };
        let words = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, link];
        let mut b: Vec<_> = words.into_iter().flat_map(word).collect();
        for &(said, there) in records {
            b.extend([0, 0, said, said].into_iter().flat_map(word));
            b.extend(vec![0; there]);
        }
        b
    }

    #[test]
    fn test_whole_captures_of_both_byte_orders_are_accepted() {
        for big in [false, true] {
            for records in [&[][..], &[(60, 60)], &[(60, 60), (0, 0), (262_144, 262_144)]] {
                check_bytes(&file(big, 1, records)[..]).unwrap();
            }
        }
    }

    #[test]
    fn test_truncated_capture_is_detected_at_every_byte() {
        let whole = file(false, 1, &[(60, 60), (4, 4)]);
        for n in 0..whole.len() {
            let done = check_bytes(&whole[..n]);
            // The file may end after its header and between records, and nowhere else.
            assert_eq!(done.is_ok(), [24, 24 + 76].contains(&n), "{n} bytes: {done:?}");
        }
    }

    #[test]
    fn test_impossible_records_and_other_link_types_are_refused() {
        let e = |b: &[u8]| check_bytes(b).unwrap_err().to_string();
        assert!(e(&file(false, 1, &[(262_145, 262_145)])).contains("record 1"));
        assert!(e(&file(true, 1, &[(4, 4), (u32::MAX, 10)])).contains("record 2"));
        assert!(e(&file(false, 101, &[])).contains("link type 101"));
        assert!(e(b"\x0a\x0d\x0d\x0a").contains("pcapng"));
        assert!(e(b"not a capture file").contains("unknown file format"));
    }
}
