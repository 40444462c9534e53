//! Everything that a peer can do wrong, one test each. Each test checks the bytes of the Terminate,
//! that no byte of memory changed, the counter, and that the QP flushed every posted request. Each
//! test of a limit has a twin that is just within the limit.

mod culprits;
mod early;
mod ends;
mod framing;
mod limits;
mod markers;
mod numbers;
mod reads;
mod rfc7306;
mod sends;
mod shared;
mod single;
mod sinks;
mod terminates;
mod writes;

use super::*;
use crate::ddp::{DdpHeader, Qn};
use crate::mpa::fpdu;
use crate::rdmap::{Opcode, ReadRequest};
use heddle_types::{CqeStatus, SendOp, Sge, TermCode};

const QPN: Qpn = Qpn(5);
const PD: Pd = Pd(3);
const ADDR: u64 = 1000;
const TO: u64 = 0x10_0000;
const LEN: u32 = 1000;
/// Bytes of the posted receive buffers.
const BUFFER: u32 = 64;
const FILL: u8 = 0xaa;

/// A QP with work posted on both queues, and STags of all kinds.
struct Target {
    mem: TestMemory,
    mrs: MrTable,
    qp: QpContext,
    crc: bool,
    all: Stag,
}

impl Target {
    fn new() -> Target {
        Target::with(QpConfig { ird: 2, ord: 2, ..QpConfig::default() })
    }

    fn with(config: QpConfig) -> Target {
        let mem = TestMemory::new(4096, FILL);
        let mrs = MrTable::new(&Seed::from_u64(4), 16);
        let all = mrs.register(PD, ADDR, TO, LEN.into(), rights()).unwrap().stag;
        let mut qp = QpContext::new(&QpConfig { qpn: QPN, pd: PD, ..config.clone() });
        for wr_id in [100, 101] {
            let sges = [Sge { stag: all, to: TO, len: BUFFER }];
            qp.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
        }
        Target { mem, mrs, qp, crc: config.crc, all }
    }

    fn region(&self, access: Access) -> Stag {
        self.mrs.register(PD, ADDR, TO, LEN.into(), access).unwrap().stag
    }

    fn post(&mut self, wr_id: u64, op: SendOp) {
        let sges = [Sge { stag: self.all, to: TO, len: 200 }];
        self.qp.post_send(&SendWr { op, ..SendWr::send(wr_id, &sges) }).unwrap();
    }

    /// Returns a target with a Read of 200 bytes outstanding.
    fn with_read() -> Target {
        let mut t = Target::new();
        t.post(1, SendOp::Read { stag: Stag(77), to: 0 });
        assert_eq!(t.transmit().len(), 1);
        t
    }

    fn transmit(&mut self) -> Vec<Vec<u8>> {
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None };
        std::iter::from_fn(|| self.qp.poll_transmit(&env, 1442))
            .map(|f| {
                let mut v = vec![0; f.len() as usize];
                f.copy_to(&self.mem, 0, &mut v);
                v
            })
            .collect()
    }

    fn feed_raw(&mut self, bytes: &[u8]) -> usize {
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None };
        self.qp.handle_stream(&env, bytes)
    }

    fn feed(&mut self, segment: &[u8]) {
        let bytes = framed(segment, self.crc);
        assert_eq!(self.feed_raw(&bytes), bytes.len());
    }

    /// Checks that the QP accepts `segment`.
    fn accepts(&mut self, segment: &[u8]) {
        let before = self.qp.counters().rx_fpdus;
        self.feed(segment);
        assert_eq!(self.qp.state(), ConnectedState::Rts);
        assert_eq!(self.qp.counters().rx_fpdus, before + 1);
    }

    /// Checks that `segment` ends the stream, with one count of `counter`, and with a Terminate
    /// whose first two bytes (layer and type, code) are `code` and that repeats `copied` bytes of
    /// the segment.
    fn refuses(&mut self, segment: &[u8], code: u16, copied: usize, counter: &str) {
        let bytes = framed(segment, self.crc);
        let mut body = Vec::new();
        if copied > 0 {
            body.extend(u16::try_from(segment.len()).unwrap().to_be_bytes());
            body.extend(&segment[..copied]);
        }
        let bits = match copied {
            0 => 0,
            14 | 18 => 0xc0,
            _ => 0xe0,
        };
        self.refuses_raw(&bytes, code, bits, &body, counter);
    }

    fn refuses_raw(&mut self, bytes: &[u8], code: u16, bits: u8, copied: &[u8], counter: &str) {
        self.refuses_raw_but(bytes, code, bits, copied, counter, &[]);
    }

    /// Checks the same of raw bytes, and that the `special` requests complete with statuses of
    /// their own.
    fn refuses_raw_but(
        &mut self,
        bytes: &[u8],
        code: u16,
        bits: u8,
        copied: &[u8],
        counter: &str,
        special: &[(u64, CqeStatus)],
    ) {
        self.post(50, SendOp::Write { stag: Stag(9), to: 0 });
        completions(&mut self.qp);
        let memory = self.mem.snapshot();
        let posted: Vec<u64> = self.posted();
        assert_eq!(self.feed_raw(bytes), bytes.len());
        self.check_ended(code, bits, copied, counter, &posted, special);
        assert_eq!(self.mem.snapshot(), memory, "no byte of memory changed");
        // The QP drops everything that comes now unseen, also a good Write.
        let good = framed(&cat(&tagged(Opcode::WRITE, true, self.all, TO), b"abc"), self.crc);
        assert_eq!(self.feed_raw(&good), good.len());
        assert_eq!(self.mem.snapshot(), memory);
        assert_eq!(self.qp.counters().rx_dropped_bytes, good.len() as u64);
        // Requests posted now fail at once.
        self.post(60, SendOp::Write { stag: Stag(9), to: 0 });
        assert_eq!(completions(&mut self.qp)[0].status, CqeStatus::Flushed);
        assert!(events(&mut self.qp).is_empty());
    }

    fn posted(&self) -> Vec<u64> {
        let (sq, rq) = (&self.qp.sq, &self.qp.rq);
        let sends = (sq.wqes.head()..sq.wqes.tail()).map(|i| sq.wqes.at(i).wr_id);
        let recvs = (rq.rqes.head()..rq.rqes.tail()).map(|i| rq.rqes.at(i).wr_id);
        sends.chain(recvs).collect()
    }

    fn check_ended(
        &mut self,
        code: u16,
        bits: u8,
        copied: &[u8],
        counter: &str,
        posted: &[u64],
        special: &[(u64, CqeStatus)],
    ) {
        assert_eq!(self.qp.state(), ConnectedState::Terminate);
        let mut errors = Vec::new();
        self.qp.counters().for_each(|name, _, v| {
            if name.starts_with("err_") && v > 0 {
                errors.push((name, v));
            }
        });
        assert_eq!(errors, [(counter, 1)]);
        let done = completions(&mut self.qp);
        let want: Vec<_> = posted
            .iter()
            .map(|id| {
                let hit = special.iter().find(|(i, _)| i == id);
                (*id, hit.map_or(CqeStatus::Flushed, |(_, s)| *s))
            })
            .collect();
        assert_eq!(done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), want);
        assert!(done.iter().all(|c| c.len == 0 && c.invalidated.is_none()));
        let [layer_type, error] = code.to_be_bytes();
        let term = TermCode::new(layer_type >> 4, layer_type & 0xf, error);
        let local = QpEvent::Terminated { by: Side::Local, code: term };
        assert_eq!(events(&mut self.qp).last(), Some(&local));
        // DDP: last, version 1. RDMAP: version 1, Terminate. Queue 2, MSN 1, offset 0.
        let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
        ulpdu.extend([layer_type, error, bits, 0]);
        ulpdu.extend(copied);
        assert!(self.qp.has_transmit());
        assert_eq!(self.transmit(), [framed(&ulpdu, self.crc)], "the Terminate and nothing else");
        assert!(!self.qp.has_transmit());
        assert_eq!(self.qp.counters().tx_terminates, 1);
    }
}

fn framed(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut v = Vec::new();
    fpdu::append(ulpdu, crc, &mut v).unwrap();
    v
}

fn cat(a: &[u8], b: &[u8]) -> Vec<u8> {
    [a, b].concat()
}

fn emitted(h: DdpHeader) -> Vec<u8> {
    let mut v = vec![0; h.len()];
    h.emit(&mut v);
    v
}

fn tagged(opcode: Opcode, last: bool, stag: Stag, to: u64) -> Vec<u8> {
    emitted(DdpHeader::Tagged { last, rsvd_ulp: 0x40 | opcode.0, stag, to })
}

fn untagged(opcode: Opcode, last: bool, qn: u32, msn: u32, mo: u32) -> Vec<u8> {
    let rsvd_ulp = 0x40 | opcode.0;
    let qn = Qn(qn);
    emitted(DdpHeader::Untagged { last, rsvd_ulp, rsvd_ulp32: 0, qn, msn: Msn(msn), mo })
}

fn send(msn: u32, mo: u32, last: bool, len: usize) -> Vec<u8> {
    cat(&untagged(Opcode::SEND, last, 0, msn, mo), &vec![0x5a; len])
}

fn write(stag: Stag, to: u64, len: usize) -> Vec<u8> {
    cat(&tagged(Opcode::WRITE, true, stag, to), &vec![0x5a; len])
}

fn response(stag: Stag, to: u64, last: bool, len: usize) -> Vec<u8> {
    cat(&tagged(Opcode::READ_RESPONSE, last, stag, to), &vec![0x5a; len])
}

fn read_request(msn: u32, src: Stag, src_to: u64, size: u32) -> Vec<u8> {
    let r = ReadRequest { sink_stag: Stag(6), sink_to: 99, size, src_stag: src, src_to };
    cat(&untagged(Opcode::READ_REQUEST, true, 1, msn, 0), &r.emit())
}
