//! A TCP connection, from its MPA start-up to its transport messages.

mod rdma;

use core::net::SocketAddr;
use std::collections::VecDeque;

use heddle_iwarp::mpa::decode::{Decoded, Framing, decode_from};
use heddle_iwarp::mpa::frame::{Frame, Kind};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_tcp::{Flags, SeqNumber};
use heddle_types::mpa::{Revision, Rtr};

use crate::exchange::{Exchange, Side};
use crate::frame::Segment;
use crate::item::{Item, Mpa, Rule, Tcp, Verdict, What};
use crate::messages::Messages;
use crate::stream::{Seen, Stream};

/// Most bytes of a direction that wait for the end of the start-up: no end sends so many before.
const EARLY_MAX: usize = 1 << 20;

/// The time and the frame in which the decoder finds an item.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Now {
    pub(crate) time: u64,
    pub(crate) frame: u64,
}

/// The meaning of a direction's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The bytes of the start-up frame.
    Startup,
    /// FPDUs, the first of which begins at this position of the stream.
    Fpdus(u64),
    /// Bytes that the decoder cannot read.
    Dead,
}

/// A direction of the connection.
#[derive(Debug)]
struct Half {
    stream: Stream,
    phase: Phase,
    /// Bytes that are not a whole frame or FPDU yet.
    bytes: Vec<u8>,
    /// After a gap, until the decoder finds FPDUs again: the number of bytes that it could not
    /// read.
    lost: Option<u64>,
    messages: Messages,
    fin: bool,
}

/// The settings that a side has stated in its start-up frame.
#[derive(Clone, Copy, Debug)]
struct Said {
    markers: bool,
    crc: bool,
    private_data: Option<PrivateData>,
}

/// The protocol whose messages the Sends carry.
#[derive(Debug)]
enum Upper {
    /// No Send has come.
    Unknown,
    /// RPC-over-RDMA.
    Rpc(Box<Exchange>),
    /// Another protocol.
    Other,
}

/// Everything that the decoder keeps of one TCP connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The address of the initiator, and of the responder.
    ends: [SocketAddr; 2],
    halves: [Half; 2],
    said: [Option<Said>; 2],
    upper: Upper,
    /// For each end: its Read Requests without a response.
    asked: [VecDeque<rdma::Asked>; 2],
    /// No frame is missing so far.
    certain: bool,
    /// The decoder reads the Sends as RPC-over-RDMA, whatever they look like.
    forced: bool,
    /// A side has reset the connection.
    over: bool,
    /// Number of the last frame of the connection.
    pub(crate) last: u64,
}

impl Half {
    fn new(first: SeqNumber) -> Half {
        Half {
            stream: Stream::new(first),
            phase: Phase::Startup,
            bytes: Vec::new(),
            lost: None,
            messages: Messages::new(),
            fin: false,
        }
    }
}

/// The items found in a frame.
pub(crate) struct Out<'a> {
    pub(crate) now: Now,
    pub(crate) items: &'a mut Vec<Item>,
}

impl Connection {
    /// Makes a connection. The number of the initiator's first byte is `first`, of the responder's
    /// `second`.
    pub(crate) fn new(
        ends: [SocketAddr; 2],
        first: SeqNumber,
        second: SeqNumber,
        forced: bool,
    ) -> Connection {
        Connection {
            ends,
            halves: [Half::new(first), Half::new(second)],
            said: [None; 2],
            upper: Upper::Unknown,
            asked: [VecDeque::new(), VecDeque::new()],
            certain: true,
            forced,
            over: false,
            last: 0,
        }
    }

    /// Returns true if the initiator's MPA frame has come.
    pub(crate) fn is_mpa(&self) -> bool {
        self.said[0].is_some()
    }

    /// Returns true if no further items can come of the connection.
    pub(crate) fn is_dead(&self) -> bool {
        self.over || self.halves.iter().all(|h| h.phase == Phase::Dead)
    }

    /// Returns the side that has the address.
    pub(crate) fn side(&self, from: SocketAddr) -> Side {
        usize::from(from != self.ends[0])
    }

    /// Returns true if a SYN from `side` with this number is the SYN that began the connection.
    pub(crate) fn began_with(&self, side: Side, seq: SeqNumber) -> bool {
        self.halves[side].stream.first() == seq.advance(1)
    }

    /// Handles the responder's SYN, after which its numbers begin.
    pub(crate) fn answered(&mut self, seq: SeqNumber) {
        let half = &mut self.halves[1];
        if half.stream.pos() == 0 && half.bytes.is_empty() {
            half.stream = Stream::new(seq.advance(1));
        }
    }

    fn put(&self, side: Side, what: What, out: &mut Out<'_>) {
        let Now { time, frame } = out.now;
        let (from, to) = (self.ends[side], self.ends[1 - side]);
        out.items.push(Item { time, frame, from, to, what });
    }

    fn wrong(&self, side: Side, rule: Rule, text: impl ToString, out: &mut Out<'_>) {
        self.put(side, What::Verdict(Verdict { rule, text: text.to_string() }), out);
    }

    /// Handles a segment that `side` has sent.
    pub(crate) fn segment(&mut self, side: Side, segment: &Segment<'_>, out: &mut Out<'_>) {
        self.last = out.now.frame;
        let other = &mut self.halves[1 - side].stream;
        let acks = segment.flags.has(Flags::ACK);
        let after = if acks { other.acknowledged(segment.ack) } else { 0 };
        let stream = &mut self.halves[side].stream;
        let seen = stream.segment(segment.seq, after, segment.payload);
        if segment.flags.has(Flags::FIN) {
            let bytes = u32::try_from(segment.payload.len()).unwrap_or(0);
            stream.finished(segment.seq.advance(bytes));
        }
        // Make no items for connections of other protocols.
        if self.is_mpa() {
            let note = match seen {
                Seen::InOrder => None,
                Seen::Again(bytes) => Some(Tcp::Retransmission { bytes }),
                Seen::Ahead(missing) => Some(Tcp::OutOfOrder { missing }),
                Seen::Far => {
                    self.wrong(side, Rule::Frame, "sequence number out of any window", out);
                    None
                }
            };
            if let Some(note) = note {
                self.put(side, What::Tcp(note), out);
            }
        }
        self.halves.iter_mut().for_each(|h| h.stream.tick());
        self.advance(false, out);
        if segment.flags.has(Flags::RST) {
            self.put_if_mpa(side, Tcp::Reset, out);
            // A RST resets the connection only if it follows the bytes sent so far (RFC 5961
            // section 3).
            self.over |= self.halves[side].stream.is_next(segment.seq);
        }
        if segment.flags.has(Flags::FIN) && !std::mem::replace(&mut self.halves[side].fin, true) {
            self.put_if_mpa(side, Tcp::Fin, out);
        }
    }

    fn put_if_mpa(&self, side: Side, note: Tcp, out: &mut Out<'_>) {
        if self.is_mpa() {
            self.put(side, What::Tcp(note), out);
        }
    }

    /// Handles the end of the capture.
    pub(crate) fn finish(&mut self, out: &mut Out<'_>) {
        self.advance(true, out);
        for side in [0, 1] {
            let half = &self.halves[side];
            if half.fin && matches!(half.phase, Phase::Fpdus(_)) && !half.bytes.is_empty() {
                let text = format!("ends {} bytes into an FPDU", half.bytes.len());
                self.wrong(side, Rule::Fpdu, text, out);
            }
        }
    }

    /// Takes the bytes that have come in order, and skips gaps that will not be filled.
    fn advance(&mut self, finally: bool, out: &mut Out<'_>) {
        loop {
            let mut still = true;
            for side in [0, 1] {
                let other = self.halves[1 - side].stream.pos();
                // Even at the end of the capture, take first what can be taken in its order.
                if let Some(piece) = self.halves[side].stream.take(other, false) {
                    still = false;
                    self.take(side, piece, out);
                }
            }
            if still && !self.go_over(finally, out) {
                return;
            }
        }
    }

    /// Skips one gap, or takes a piece that waits for bytes of the other direction that will not
    /// come.
    fn go_over(&mut self, finally: bool, out: &mut Out<'_>) -> bool {
        for side in [0, 1] {
            if let Some(gap) = self.halves[side].stream.skip(finally) {
                self.gap(side, gap, out);
                return true;
            }
        }
        for side in [0, 1] {
            if let Some(piece) = self.halves[side].stream.take(0, finally) {
                self.take(side, piece, out);
                return true;
            }
        }
        false
    }

    fn gap(&mut self, side: Side, bytes: u64, out: &mut Out<'_>) {
        self.put_if_mpa(side, Tcp::Gap { bytes }, out);
        let half = &mut self.halves[side];
        let unread = half.bytes.len() as u64;
        half.bytes.clear();
        match half.phase {
            Phase::Fpdus(_) => {
                half.lost = Some(half.lost.unwrap_or(0) + unread + bytes);
                half.messages.interrupt();
            }
            // Without the start-up frame the decoder can read nothing after it.
            Phase::Startup | Phase::Dead => half.phase = Phase::Dead,
        }
        self.missing();
    }

    /// Records that bytes were not read: the decoder stops judging what depends on all earlier
    /// messages.
    fn missing(&mut self) {
        self.certain = false;
        if let Upper::Rpc(exchange) = &mut self.upper {
            exchange.interrupt();
        }
    }

    fn take(&mut self, side: Side, piece: Vec<u8>, out: &mut Out<'_>) {
        let half = &mut self.halves[side];
        if half.phase == Phase::Dead {
            return;
        }
        if let Some(lost) = half.lost
            && let Phase::Fpdus(start) = half.phase
        {
            let at = half.stream.pos() - piece.len() as u64;
            let Some(framing) = self.framing(side) else { return };
            if !begins_fpdu(&piece, at - start, framing) {
                self.halves[side].lost = Some(lost + piece.len() as u64);
                return;
            }
            self.halves[side].lost = None;
            self.put(side, What::Tcp(Tcp::Resumed { bytes: lost }), out);
        }
        let half = &mut self.halves[side];
        half.bytes.extend_from_slice(&piece);
        if half.phase == Phase::Startup {
            self.startup(side, out);
        }
        // The last frame of the start-up enables both directions.
        for side in [side, 1 - side] {
            self.fpdus(side, out);
        }
        let half = &mut self.halves[side];
        if half.bytes.len() > EARLY_MAX {
            half.bytes = Vec::new();
            half.phase = Phase::Dead;
            if self.is_mpa() {
                self.wrong(side, Rule::Startup, "no answer to the start-up in the capture", out);
            }
        }
    }

    /// Returns the framing of FPDUs of `side`, once both sides have sent their start-up frames.
    fn framing(&self, side: Side) -> Option<Framing> {
        let (own, other) = (self.said[side]?, self.said[1 - side]?);
        // The stream has markers if the receiver needs them, and CRCs if either side wants them.
        Some(Framing { crc: own.crc || other.crc, markers: other.markers })
    }

    fn startup(&mut self, side: Side, out: &mut Out<'_>) {
        let kind = if side == 0 { Kind::Request } else { Kind::Reply };
        let bytes = std::mem::take(&mut self.halves[side].bytes);
        match Frame::parse(kind, Revision::V2, &bytes) {
            Ok(None) => self.halves[side].bytes = bytes,
            Ok(Some((frame, len))) => {
                let at = self.halves[side].stream.pos() - bytes.len() as u64;
                let said = shown(&frame);
                self.said[side] = Some(Said {
                    markers: frame.markers,
                    crc: frame.crc,
                    private_data: PrivateData::find(frame.private_data),
                });
                self.put(side, What::Mpa(said), out);
                self.halves[side].bytes = bytes.get(len..).unwrap_or(&[]).to_vec();
                self.halves[side].phase = Phase::Fpdus(at + len as u64);
                if frame.reject {
                    self.halves.iter_mut().for_each(|h| h.phase = Phase::Dead);
                }
            }
            Err(e) => {
                self.halves.iter_mut().for_each(|h| h.phase = Phase::Dead);
                if self.forced || self.is_mpa() {
                    self.wrong(side, Rule::Startup, e, out);
                }
            }
        }
    }

    fn fpdus(&mut self, side: Side, out: &mut Out<'_>) {
        let (Phase::Fpdus(start), Some(framing)) = (self.halves[side].phase, self.framing(side))
        else {
            return;
        };
        let bytes = std::mem::take(&mut self.halves[side].bytes);
        let at = self.halves[side].stream.pos() - bytes.len() as u64;
        let mut fpdus = decode_from(&bytes, at - start, framing);
        for fpdu in fpdus.by_ref() {
            self.fpdu(side, &fpdu, out);
        }
        self.halves[side].bytes = fpdus.rest().to_vec();
    }

    fn fpdu(&mut self, side: Side, fpdu: &Decoded<'_>, out: &mut Out<'_>) {
        let (header, control) = match fpdu.headers() {
            Ok(read) => read,
            Err(e) => {
                // The contents of a bad FPDU count as missing.
                self.halves[side].messages.interrupt();
                self.missing();
                return self.wrong(side, Rule::Fpdu, e, out);
            }
        };
        let messages = &mut self.halves[side].messages;
        let (message, wrong) = messages.segment(&header, control, fpdu.payload());
        if let Some(verdict) = wrong {
            self.put(side, What::Verdict(verdict), out);
        }
        if let Some(message) = message {
            self.message(side, &message, out);
        }
    }
}

/// Returns true if a segment after a gap begins with an FPDU. Senders make segments of whole FPDUs
/// where they can; without CRC only headers prove an FPDU, so all headers in the segment must be
/// good.
fn begins_fpdu(piece: &[u8], offset: u64, framing: Framing) -> bool {
    let mut fpdus = decode_from(piece, offset, framing);
    let good = fpdus.by_ref().all(|d| d.headers().is_ok());
    good && fpdus.rest().len() < piece.len()
}

fn shown(frame: &Frame<'_>) -> Mpa {
    let names = |rtr| match rtr {
        Rtr::Write => "write",
        Rtr::Read => "read",
        Rtr::Send => "send",
    };
    let peer_to_peer = frame.enhanced.filter(|e| e.peer_to_peer);
    Mpa {
        reply: frame.kind == Kind::Reply,
        revision: frame.revision.0,
        markers: frame.markers,
        crc: frame.crc,
        reject: frame.reject,
        ird: frame.enhanced.and_then(|e| e.ird.get()),
        ord: frame.enhanced.and_then(|e| e.ord.get()),
        ready_to_receive: peer_to_peer.map(|e| e.rtr.iter().map(names).collect()),
        private_data: frame.private_data.len(),
        rpcrdma: PrivateData::find(frame.private_data).map(|p| crate::item::PrivateData {
            send_size: p.send_size(),
            receive_size: p.receive_size(),
            invalidate: p.invalidate,
        }),
    }
}
