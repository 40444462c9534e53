//! DDP segments and FPDUs as in the RFCs' figures; the caller chooses every byte.

use heddle_testkit::mpa;

/// Builds a tagged segment: control bytes of DDP and RDMAP, STag, tagged offset (RFC 5041 figure
/// 3).
pub fn t(ddp: u8, rdmap: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    [&[ddp, rdmap][..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

/// Builds an untagged segment: control bytes, STag to invalidate, queue, MSN, offset (RFC 5041
/// figure 5).
pub fn u(ddp: u8, rdmap: u8, inv: u32, [qn, msn, mo]: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let [inv, qn, msn, mo] = [inv, qn, msn, mo].map(u32::to_be_bytes);
    [&[ddp, rdmap][..], &inv, &qn, &msn, &mo, payload].concat()
}

/// Builds a Read Request (RFC 5040 figure 6): `size` bytes to STag 6, offset 99.
pub fn r(msn: u32, size: u32, source: u32, to: u64) -> Vec<u8> {
    let mut payload = [0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 99].to_vec();
    payload.extend(size.to_be_bytes());
    payload.extend(source.to_be_bytes());
    payload.extend(to.to_be_bytes());
    u(0x41, 0x41, 0, [1, msn, 0], &payload)
}

/// Builds an Atomic Request (RFC 7306 figure 4) with id 5: operation, data, no mask, no compare
/// value.
pub fn a(msn: u32, op: u8, stag: u32, to: u64, data: u64) -> Vec<u8> {
    let mut payload = vec![0, 0, 0, op, 0, 0, 0, 5];
    payload.extend(stag.to_be_bytes());
    payload.extend(to.to_be_bytes());
    payload.extend(data.to_be_bytes());
    payload.extend([0; 16]);
    payload.extend([0xff; 8]);
    u(0x41, 0x4a, 0, [1, msn, 0], &payload)
}

/// Builds an Atomic Response (RFC 7306 figure 5).
pub fn a_response(msn: u32, id: u32, original: u64) -> Vec<u8> {
    let payload = [&id.to_be_bytes()[..], &original.to_be_bytes()].concat();
    u(0x41, 0x4b, 0, [3, msn, 0], &payload)
}

/// Builds a Write of no bytes to STag 0, the shortest message. The receiver looks for no buffer.
pub fn nothing() -> Vec<u8> {
    t(0xc1, 0x40, 0, 0, &[])
}

/// Builds the stream of these ULPDUs, without markers.
pub fn plain<S: AsRef<[u8]>>(ulpdus: &[S]) -> Vec<u8> {
    ulpdus.iter().flat_map(|s| mpa::fpdu(s.as_ref())).collect()
}

/// Distance between markers in bytes, from the first byte of the first FPDU on.
const SPACING: usize = 512;

/// A stream of FPDUs, built from its beginning on.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// The bytes of the stream so far.
    pub bytes: Vec<u8>,
    /// True if the stream has markers (RFC 5044 section 4.3).
    pub markers: bool,
    /// The offset of each marker.
    pub marked: Vec<usize>,
    /// The beginning of each FPDU, including the marker before it if one is due there.
    begun: Vec<usize>,
}

impl Stream {
    /// Makes an empty stream.
    pub fn new(markers: bool) -> Stream {
        Stream { markers, ..Stream::default() }
    }

    /// Appends the FPDU of `ulpdu` with the length `len` in its header and a CRC that is correct
    /// for all the rest: the CRC covers the markers before and inside the FPDU (RFC 5044 section
    /// 4.4).
    pub fn push_saying(&mut self, ulpdu: &[u8], len: u16) {
        let begin = self.bytes.len();
        self.begun.push(begin);
        let mut body = len.to_be_bytes().to_vec();
        body.extend(ulpdu);
        body.resize(body.len().next_multiple_of(4), 0);
        let mut start = None;
        for word in body.chunks(4) {
            self.mark(start);
            start.get_or_insert(self.bytes.len());
            self.bytes.extend(word);
        }
        self.mark(start);
        let crc = crc32c::crc32c(&self.bytes[begin..]);
        self.bytes.extend(crc.to_le_bytes());
    }

    /// Appends the FPDU of `ulpdu`.
    pub fn push(&mut self, ulpdu: &[u8]) {
        self.push_saying(ulpdu, u16::try_from(ulpdu.len()).expect("a ULPDU's length"));
    }

    /// Inserts a marker if one is due. The FPDU began at `start`, if a part of it is already in the
    /// stream.
    fn mark(&mut self, start: Option<usize>) {
        let at = self.bytes.len();
        if self.markers && at.is_multiple_of(SPACING) {
            let back = u16::try_from(start.map_or(0, |s| at - s)).unwrap_or(u16::MAX);
            self.marked.push(at);
            self.bytes.extend([0, 0]);
            self.bytes.extend(back.to_be_bytes());
        }
    }

    /// Computes anew the CRC of the FPDU that covers the byte `at`.
    pub fn seal_around(&mut self, at: usize) {
        let Some(&begin) = self.begun.iter().rev().find(|b| **b <= at) else { return };
        let next = self.begun.iter().copied().find(|b| *b > at);
        let field = next.unwrap_or(self.bytes.len()) - 4;
        let crc = crc32c::crc32c(&self.bytes[begin..field]);
        self.bytes[field..field + 4].copy_from_slice(&crc.to_le_bytes());
    }
}
