//! Forged captures for tests and seeds: two ends and the frames between them.
//!
//! A test that asks for a frame that cannot be made is wrong, and panics.
#![allow(clippy::unwrap_used, reason = "for tests")]

use core::net::{Ipv4Addr, SocketAddr};

use heddle_iwarp::Msn;
use heddle_iwarp::ddp::{DdpHeader, MAX_LEN, Qn};
use heddle_iwarp::mpa::frame::{Enhanced, Frame, Kind};
use heddle_iwarp::mpa::{fpdu, markers};
use heddle_iwarp::rdmap::{Control, Opcode, ReadRequest};
use heddle_rpcrdma::rpc::{Auth, Call, Procedure, Reply, Status};
use heddle_rpcrdma::{Xid, v1, v2};
use heddle_tcp::Flags;
use heddle_tcp::wire::{EtherType, EthernetHeader, Ipv4Header, MacAddr, ethernet, ipv4};
use heddle_types::{
    Stag,
    mpa::{Depth, Revision, RtrSet},
};

use crate::{Decoder, Item, NFS_RDMA_PORT, Summary};

/// Bytes of payload in an FPDU.
const PART: usize = 1024;

/// The client's TCP port.
pub const CLIENT_PORT: u16 = 40_000;

/// A forged connection and its frames.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Frames in the order of their capture.
    pub frames: Vec<Vec<u8>>,
    port: u16,
    crc: bool,
    markers: bool,
    seq: [u32; 2],
    /// Bytes sent in FPDUs, for each side.
    sent: [u64; 2],
    /// Next MSN, for each side: of Sends, and of Read Requests.
    msn: [[u32; 2]; 2],
}

impl Wire {
    /// Makes a connection to the port of NFS over RDMA, without private data.
    pub fn new(crc: bool, markers: bool) -> Wire {
        Wire::to(NFS_RDMA_PORT, crc, markers, [&[], &[]])
    }

    /// Makes a connection to `port`, whose ends send private data.
    pub fn to(port: u16, crc: bool, markers: bool, private_data: [&[u8]; 2]) -> Wire {
        let mut wire = Wire { crc, markers, ..Wire::without_mpa(port) };
        for (side, kind) in [(0, Kind::Request), (1, Kind::Reply)] {
            let depth = Depth::new(16).unwrap();
            let rtr = RtrSet::NONE;
            let frame = Frame {
                kind,
                markers,
                crc,
                reject: false,
                revision: Revision::V2,
                enhanced: Some(Enhanced { ird: depth, ord: depth, peer_to_peer: false, rtr }),
                private_data: private_data[side],
            };
            wire.segment(side, Flags::ACK, &frame.emit().unwrap());
        }
        wire
    }

    /// Makes a connection to `port` with only TCP's handshake.
    pub fn without_mpa(port: u16) -> Wire {
        let seq = [0xffff_ff00, 7];
        let (frames, sent, msn) = (Vec::new(), [0; 2], [[1; 2]; 2]);
        let mut wire = Wire { frames, port, crc: false, markers: false, seq, sent, msn };
        wire.segment(0, Flags::SYN, &[]);
        wire.segment(1, Flags::SYN.with(Flags::ACK), &[]);
        wire
    }

    /// Adds a TCP segment; FIN is a flag like any other.
    pub fn segment(&mut self, side: usize, flags: Flags, payload: &[u8]) {
        let ips = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        let ports = [CLIENT_PORT, self.port];
        let total_len = ipv4::HEADER_LEN + 20 + payload.len();
        let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
        let (link, ip) = frame.split_at_mut(ethernet::HEADER_LEN);
        let mac = |side: usize| MacAddr([2, 0, 0, 0, 0, u8::try_from(side).unwrap()]);
        let link_header =
            EthernetHeader { dst: mac(1 - side), src: mac(side), ethertype: EtherType::IPV4 };
        link_header.emit(link.first_chunk_mut().unwrap());
        let ip_header = Ipv4Header {
            src: ips[side],
            dst: ips[1 - side],
            protocol: ipv4::PROTO_TCP,
            ttl: 64,
            traffic_class: 0,
            header_len: ipv4::HEADER_LEN,
            total_len,
            fragment: false,
        };
        ip_header.emit(ip.first_chunk_mut().unwrap());
        frame.extend(ports[side].to_be_bytes());
        frame.extend(ports[1 - side].to_be_bytes());
        frame.extend(self.seq[side].to_be_bytes());
        let ack = if flags.has(Flags::ACK) { self.seq[1 - side] } else { 0 };
        frame.extend(ack.to_be_bytes());
        // Header of five words, a window, and no checksum, as a NIC is to fill it in.
        frame.extend([0x50, flags.0.to_le_bytes()[0], 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend(payload);
        self.frames.push(frame);
        let len = u32::try_from(payload.len()).unwrap();
        let control = u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN));
        self.seq[side] = self.seq[side].wrapping_add(len + control);
    }

    fn ulpdu(&mut self, side: usize, header: &DdpHeader, payload: &[u8]) {
        let mut ulpdu = vec![0; MAX_LEN];
        let len = header.emit(&mut ulpdu);
        ulpdu.truncate(len);
        ulpdu.extend(payload);
        let mut bytes = Vec::new();
        fpdu::append(&ulpdu, self.crc, &mut bytes).unwrap();
        if self.markers {
            let plain = std::mem::take(&mut bytes);
            markers::insert(&plain, self.sent[side], self.crc, &mut bytes);
        }
        self.sent[side] += bytes.len() as u64;
        self.segment(side, Flags::ACK, &bytes);
    }

    /// Adds a Send; with Invalidate if `invalidate` is some STag.
    pub fn send(&mut self, side: usize, invalidate: Option<u32>, payload: &[u8]) {
        let opcode = if invalidate.is_some() { Opcode::SEND_INV } else { Opcode::SEND };
        let invalidate = invalidate.unwrap_or(0);
        self.untagged(side, opcode, Qn::SEND, invalidate, payload);
    }

    fn untagged(&mut self, side: usize, opcode: Opcode, qn: Qn, rsvd_ulp32: u32, payload: &[u8]) {
        let msn = &mut self.msn[side][usize::from(qn != Qn::SEND)];
        let number = Msn(*msn);
        *msn += 1;
        let rsvd_ulp = Control::new(opcode).to_byte();
        let parts = payload.chunks(PART).count().max(1);
        for i in 0..parts {
            let part = payload.chunks(PART).nth(i).unwrap_or(&[]);
            let mo = u32::try_from(i * PART).unwrap();
            let last = i + 1 == parts;
            let header = DdpHeader::Untagged { last, rsvd_ulp, rsvd_ulp32, qn, msn: number, mo };
            self.ulpdu(side, &header, part);
        }
    }

    fn tagged(&mut self, side: usize, opcode: Opcode, stag: u32, to: u64, payload: &[u8]) {
        let rsvd_ulp = Control::new(opcode).to_byte();
        let parts = payload.chunks(PART).count().max(1);
        for i in 0..parts {
            let part = payload.chunks(PART).nth(i).unwrap_or(&[]);
            let (last, to) = (i + 1 == parts, to + (i * PART) as u64);
            let header = DdpHeader::Tagged { last, rsvd_ulp, stag: Stag(stag), to };
            self.ulpdu(side, &header, part);
        }
    }

    /// Adds an RDMA Write.
    pub fn write(&mut self, side: usize, stag: u32, to: u64, payload: &[u8]) {
        self.tagged(side, Opcode::WRITE, stag, to, payload);
    }

    /// Adds a Read Request, into the memory of STag 0x7777.
    pub fn read(&mut self, side: usize, stag: u32, to: u64, size: u32) {
        let request = ReadRequest {
            sink_stag: Stag(0x7777),
            sink_to: 0,
            size,
            src_stag: Stag(stag),
            src_to: to,
        };
        self.untagged(side, Opcode::READ_REQUEST, Qn::READ_REQUEST, 0, &request.emit());
    }

    /// Adds the response to that Read Request.
    pub fn respond(&mut self, side: usize, payload: &[u8]) {
        self.tagged(side, Opcode::READ_RESPONSE, 0x7777, 0, payload);
    }

    /// Adds a message of version 1.
    pub fn v1(&mut self, side: usize, xid: u32, credit: u32, body: v1::Body<'_>, payload: &[u8]) {
        let header = v1::Header { xid: Xid(xid), credit, body };
        let mut bytes = vec![0; header.encoded_len()];
        header.encode(&mut bytes).unwrap();
        bytes.extend(payload);
        self.send(side, None, &bytes);
    }

    /// Adds a message of version 2; in a Send with Invalidate if `invalidate` is some STag.
    pub fn v2(
        &mut self,
        side: usize,
        invalidate: Option<u32>,
        (xid, credit): (u32, u32),
        body: v2::Body<'_>,
        payload: &[u8],
    ) {
        let header = v2::Header { xid: Xid(xid), credit, body };
        let mut bytes = vec![0; header.encoded_len()];
        header.encode(&mut bytes).unwrap();
        bytes.extend(payload);
        self.send(side, invalidate, &bytes);
    }

    /// Returns the items of the frames, which are a microsecond apart.
    pub fn decode(&self) -> (Vec<Item>, Summary) {
        decode(&self.frames)
    }

    /// Returns the addresses of the two ends.
    pub fn ends(&self) -> [SocketAddr; 2] {
        [([10, 0, 0, 1], CLIENT_PORT).into(), ([10, 0, 0, 2], self.port).into()]
    }
}

/// Returns the items of `frames`, which are a microsecond apart.
pub fn decode(frames: &[Vec<u8>]) -> (Vec<Item>, Summary) {
    let (mut decoder, mut items) = (Decoder::new(None), Vec::new());
    for (i, frame) in frames.iter().enumerate() {
        decoder.frame(1000 * i as u64, frame, &mut items);
    }
    decoder.finish(&mut items);
    (items, decoder.summary())
}

/// Returns a call of NFS version 3 without arguments.
pub fn call(xid: u32, procedure: u32) -> Vec<u8> {
    let procedure = Procedure { program: 100_003, version: 3, procedure };
    let call = Call { xid: Xid(xid), procedure, cred: Auth::NONE, verf: Auth::NONE };
    let mut bytes = vec![0; call.encoded_len()];
    call.encode(&mut bytes).unwrap();
    bytes
}

/// Returns a reply whose results consist only of a status.
pub fn reply(xid: u32, nfs_status: u32) -> Vec<u8> {
    let reply = Reply::accepted(Xid(xid), Status::Success);
    let mut bytes = vec![0; reply.encoded_len()];
    reply.encode(&mut bytes).unwrap();
    bytes.extend(nfs_status.to_be_bytes());
    bytes
}
