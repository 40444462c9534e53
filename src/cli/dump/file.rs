//! Reads the frames of capture files, pcap and pcapng.

use std::borrow::Cow;
use std::io::{self, Cursor, ErrorKind, Read};

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

/// The reason why a file cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("unknown file format: it is no pcap or pcapng file")]
    Format,
    #[error("its frames are not Ethernet (link type {0}, expected 1)")]
    LinkType(u32),
    #[error("it is cut off behind frame {0}")]
    CutOff(u64),
    #[error("behind frame {frame}: {error}")]
    Malformed { frame: u64, error: PcapError },
    #[error("frame {0} is of an interface that is not described")]
    Interface(u64),
    #[error("more than {INTERFACES_MAX} interfaces")]
    Interfaces,
}

/// Most interfaces in a file. The reader keeps the description of each, so this limits its memory.
const INTERFACES_MAX: usize = 1024;

/// A frame, and its time in nanoseconds since 1970.
type Frame<'a> = (u64, Cow<'a, [u8]>);

type Bytes = io::Chain<Cursor<Vec<u8>>, Box<dyn Read>>;

enum Format {
    Pcap(PcapReader<Bytes>),
    PcapNg(PcapNgReader<Bytes>),
}

/// A capture file that is read from its beginning.
pub(super) struct Capture {
    format: Format,
    frames: u64,
}

impl Capture {
    /// Detects the format from the first bytes of the file.
    pub(super) fn new(mut bytes: Box<dyn Read>) -> Result<Capture, Error> {
        let mut magic = Vec::new();
        bytes.by_ref().take(4).read_to_end(&mut magic)?;
        let pcapng = magic == [0x0a, 0x0d, 0x0d, 0x0a];
        let all = Cursor::new(magic).chain(bytes);
        let format = if pcapng {
            Format::PcapNg(PcapNgReader::new(all).map_err(|e| at(0, e))?)
        } else {
            let reader = PcapReader::new(all).map_err(|e| match at(0, e) {
                Error::Malformed { .. } => Error::Format,
                other => other,
            })?;
            // The upper bits of the link type say whether frames include their FCS.
            ethernet(reader.header().datalink)?;
            Format::Pcap(reader)
        };
        Ok(Capture { format, frames: 0 })
    }

    /// Returns the next frame, or `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Frame<'_>>, Error> {
        let frames = self.frames;
        self.frames += 1;
        match &mut self.format {
            Format::Pcap(reader) => {
                let unit = match reader.header().ts_resolution {
                    TsResolution::MicroSecond => 1000,
                    TsResolution::NanoSecond => 1,
                };
                // Read raw records: a frame that the capture truncated is a frame nevertheless.
                let Some(packet) = reader.next_raw_packet() else { return Ok(None) };
                let packet = packet.map_err(|e| at(frames, e))?;
                let time =
                    u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * unit;
                Ok(Some((time, packet.data)))
            }
            Format::PcapNg(reader) => next_of_pcapng(reader, frames),
        }
    }
}

fn next_of_pcapng(
    reader: &mut PcapNgReader<Bytes>,
    frames: u64,
) -> Result<Option<Frame<'_>>, Error> {
    loop {
        let Some(block) = reader.next_block() else { return Ok(None) };
        let (interface, units, data) = match block.map_err(|e| at(frames, e))? {
            Block::EnhancedPacket(p) => {
                // The library takes every timestamp for nanoseconds, so this number is in the
                // interface's units.
                let units = u64::try_from(p.timestamp.as_nanos()).unwrap_or(u64::MAX);
                (p.interface_id as usize, units, p.data.into_owned())
            }
            Block::SimplePacket(p) => {
                let mut data = p.data.into_owned();
                data.truncate(p.original_len as usize);
                (0, 0, data)
            }
            // Other blocks hold nothing that the dump needs.
            _ => {
                if reader.interfaces().len() > INTERFACES_MAX {
                    return Err(Error::Interfaces);
                }
                continue;
            }
        };
        let described = reader.interfaces().get(interface).ok_or(Error::Interface(frames + 1))?;
        ethernet(described.linktype)?;
        return Ok(Some((nanoseconds(units, described), Cow::Owned(data))));
    }
}

/// Converts a time in the units of an interface to nanoseconds. The units are microseconds unless
/// the interface's resolution says a negative power of ten, or of two when its highest bit is set.
fn nanoseconds(units: u64, interface: &InterfaceDescriptionBlock<'_>) -> u64 {
    let resolution = interface.options.iter().find_map(|o| match o {
        InterfaceDescriptionOption::IfTsResol(r) => Some(*r),
        _ => None,
    });
    let resolution = resolution.unwrap_or(6);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    // A unit too fine for a 128-bit divisor leaves no usable time.
    let Some(second) = base.checked_pow(u32::from(resolution & 0x7f)) else { return 0 };
    u64::try_from(u128::from(units) * 1_000_000_000 / second).unwrap_or(u64::MAX)
}

fn ethernet(link: DataLink) -> Result<(), Error> {
    match u32::from(link) & 0x03ff_ffff {
        1 => Ok(()),
        other => Err(Error::LinkType(other)),
    }
}

fn at(frame: u64, error: PcapError) -> Error {
    match error {
        PcapError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => Error::CutOff(frame),
        PcapError::IoError(e) => Error::Io(e),
        error => Error::Malformed { frame, error },
    }
}

#[cfg(test)]
mod tests;
