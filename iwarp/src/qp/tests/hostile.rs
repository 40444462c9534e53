//! Everything a peer can do wrong, one test each: the Terminate to the byte, not one byte of
//! memory changed, the counter, and all that was posted flushed. Boundaries have a twin that is
//! still right.

use super::*;
use crate::ddp::{DdpHeader, Qn};
use crate::mpa::fpdu;
use crate::rdmap::{Opcode, ReadRequest, TermCode};

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
    qp: Qp,
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
        let mut qp = Qp::new(&QpConfig { qpn: QPN, pd: PD, ..config.clone() });
        for wr_id in [100, 101] {
            let sges = SgList::one(Sge { stag: all, to: TO, len: BUFFER });
            qp.post_recv(&RecvWr { wr_id, sges }).unwrap();
        }
        Target { mem, mrs, qp, crc: config.crc, all }
    }

    fn region(&self, access: Access) -> Stag {
        self.mrs.register(PD, ADDR, TO, LEN.into(), access).unwrap().stag
    }

    fn post(&mut self, wr_id: u64, op: SendOp) {
        let sges = SgList::one(Sge { stag: self.all, to: TO, len: 200 });
        self.qp.post_send(&SendWr { wr_id, op, sges, signaled: true, fence: false }).unwrap();
    }

    /// With a Read of 200 bytes outstanding.
    fn with_read() -> Target {
        let mut t = Target::new();
        t.post(1, SendOp::Read { stag: Stag(77), to: 0 });
        assert_eq!(t.transmit().len(), 1);
        t
    }

    fn transmit(&mut self) -> Vec<Vec<u8>> {
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, want_sum: false };
        std::iter::from_fn(|| self.qp.poll_transmit(&env, 1442))
            .map(|f| {
                let mut v = vec![0; f.len() as usize];
                f.copy_to(&self.mem, 0, &mut v);
                v
            })
            .collect()
    }

    fn feed_raw(&mut self, bytes: &[u8]) -> usize {
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, want_sum: false };
        self.qp.handle_stream(&env, bytes)
    }

    fn feed(&mut self, segment: &[u8]) {
        let bytes = framed(segment, self.crc);
        assert_eq!(self.feed_raw(&bytes), bytes.len());
    }

    /// `segment` is fine.
    fn accepts(&mut self, segment: &[u8]) {
        let before = self.qp.counters().rx_fpdus;
        self.feed(segment);
        assert_eq!(self.qp.state(), QpState::Rts);
        assert_eq!(self.qp.counters().rx_fpdus, before + 1);
    }

    /// `segment` ends the stream with `code`, a Terminate that repeats `copied` bytes of it, and
    /// one count of `counter`.
    fn refuses(&mut self, segment: &[u8], code: TermCode, copied: usize, counter: &str) {
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

    fn refuses_raw(
        &mut self,
        bytes: &[u8],
        code: TermCode,
        bits: u8,
        copied: &[u8],
        counter: &str,
    ) {
        self.refuses_raw_but(bytes, code, bits, copied, counter, &[]);
    }

    /// `special` requests are not simply flushed.
    fn refuses_raw_but(
        &mut self,
        bytes: &[u8],
        code: TermCode,
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
        // Whatever comes now is dropped unseen, a good Write too.
        let good = framed(&cat(&tagged(Opcode::WRITE, true, self.all, TO), b"abc"), self.crc);
        assert_eq!(self.feed_raw(&good), good.len());
        assert_eq!(self.mem.snapshot(), memory);
        assert_eq!(self.qp.counters().rx_dropped_bytes, good.len() as u64);
        // Work posted now fails at once.
        self.post(60, SendOp::Write { stag: Stag(9), to: 0 });
        assert_eq!(completions(&mut self.qp)[0].status, CqeStatus::Flushed);
        assert!(events(&mut self.qp).is_empty());
    }

    fn posted(&self) -> Vec<u64> {
        let (sq, rq) = (&self.qp.sq, &self.qp.rq);
        let sends = (sq.head..sq.tail).map(|i| sq.ring.at(i).wr.wr_id);
        let recvs = (rq.head..rq.tail).map(|i| rq.ring.at(i).wr_id);
        sends.chain(recvs).collect()
    }

    fn check_ended(
        &mut self,
        code: TermCode,
        bits: u8,
        copied: &[u8],
        counter: &str,
        posted: &[u64],
        special: &[(u64, CqeStatus)],
    ) {
        assert_eq!(self.qp.state(), QpState::Terminate);
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
        let local = QpEvent::Terminated { by: Side::Local, code };
        assert_eq!(events(&mut self.qp).last(), Some(&local));
        // DDP: last, version 1. RDMAP: version 1, Terminate. Queue 2, MSN 1, offset 0.
        let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
        ulpdu.extend([code.layer << 4 | code.etype, code.code, bits, 0]);
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

// ---- MPA

#[test]
fn test_rts_wrong_crc_in_every_byte() {
    let good = framed(&send(1, 0, true, 9), true);
    for at in 2..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        Target::new().refuses_raw(&bad, TermCode::MPA_CRC, 0, &[], "err_crc");
    }
    let mut t = Target::new();
    t.feed_raw(&good);
    assert_eq!(t.qp.state(), QpState::Rts);
}

#[test]
fn test_rts_crc_field_is_not_looked_at_when_off() {
    let mut t = Target::with(QpConfig { crc: false, ..QpConfig::default() });
    let mut bytes = framed(&send(1, 0, true, 9), false);
    let n = bytes.len();
    bytes[n - 4..].copy_from_slice(b"\x01\x02\x03\x04");
    t.feed_raw(&bytes);
    assert_eq!(t.qp.counters().rx_sends, 1);
}

#[test]
fn test_rts_pad_and_reserved_bits_are_not_looked_at() {
    let mut t = Target::new();
    let mut segment = send(1, 0, true, 9);
    segment[0] |= 0x3c;
    segment[1] |= 0x30;
    segment[2..6].copy_from_slice(&[1, 2, 3, 4]);
    let mut bytes = framed(&segment, true);
    let n = bytes.len();
    bytes[n - 5] = 0xff;
    let crc = crc32c::crc32c(&bytes[..n - 4]);
    bytes[n - 4..].copy_from_slice(&crc.to_le_bytes());
    t.feed_raw(&bytes);
    assert_eq!(t.qp.counters().rx_sends, 1);
    assert_eq!(t.qp.state(), QpState::Rts);
}

#[test]
fn test_rts_incomplete_fpdu_is_left_and_places_nothing() {
    for crc in [true, false] {
        let whole = framed(&send(1, 0, true, 40), crc);
        let mut t = Target::with(QpConfig { crc, ..QpConfig::default() });
        let memory = t.mem.snapshot();
        for n in 0..whole.len() {
            assert_eq!(t.feed_raw(&whole[..n]), 0);
            assert_eq!(t.mem.snapshot(), memory);
        }
        assert_eq!(t.feed_raw(&whole), whole.len());
        assert_eq!(t.mem.read(1000, 40), [0x5a; 40]);
    }
}

#[test]
fn test_rts_several_fpdus_at_once_and_a_rest() {
    let mut t = Target::new();
    let one = framed(&write(t.all, TO + 500, 3), true);
    let mut bytes = one.repeat(3);
    bytes.extend(&one[..7]);
    assert_eq!(t.feed_raw(&bytes), 3 * one.len());
    assert_eq!(t.qp.counters().rx_fpdus, 3);
    assert_eq!(t.qp.rx_next(), StreamPos(3 * one.len() as u64));
}

#[test]
fn test_rts_ulpdu_shorter_than_its_header() {
    for crc in [true, false] {
        for full in [write(Stag(1), 0, 0), send(1, 0, true, 0)] {
            let last = full.len() - 1;
            for n in [0, 1, 13, last] {
                let n = n.min(last);
                let mut t = Target::with(QpConfig { crc, ..QpConfig::default() });
                let code = TermCode::RDMAP_STREAM_CATASTROPHIC;
                t.refuses(&full[..n], code, 0, "err_short");
            }
        }
    }
}

// ---- DDP and RDMAP versions, opcodes, queues

#[test]
fn test_rts_ddp_version_other_than_one() {
    for version in [0, 2, 3] {
        let mut t = Target::new();
        let mut s = write(t.all, TO, 8);
        s[0] = s[0] & !3 | version;
        t.refuses(&s, TermCode::DDP_TAGGED_VERSION, 14, "err_ddp_version");
        let mut s = send(1, 0, true, 8);
        s[0] = s[0] & !3 | version;
        Target::new().refuses(&s, TermCode::DDP_UNTAGGED_VERSION, 18, "err_ddp_version");
    }
}

#[test]
fn test_rts_rdmap_version() {
    for version in [2u8, 3] {
        let mut t = Target::new();
        let mut s = write(t.all, TO, 8);
        s[1] = version << 6 | s[1] & 0x3f;
        t.refuses(&s, TermCode::RDMAP_VERSION, 14, "err_rdmap_version");
    }
    // That of the RDMA Consortium is valid too.
    let mut t = Target::new();
    let mut s = write(t.all, TO, 8);
    s[1] &= 0x3f;
    t.accepts(&s);
}

#[test]
fn test_rts_every_opcode_that_may_not_be_tagged() {
    for opcode in (0..16).map(Opcode).filter(|o| *o != Opcode::WRITE) {
        // A Read Response without a Read is one of them.
        let mut t = Target::new();
        let s = cat(&tagged(opcode, true, t.all, TO), &[0; 8]);
        t.refuses(&s, TermCode::RDMAP_OPCODE, 14, "err_opcode");
    }
}

#[test]
fn test_rts_every_opcode_on_a_queue_that_is_not_its_own() {
    for opcode in (0..16).map(Opcode) {
        for qn in 0..3u32 {
            if opcode.queue() == Some(Qn(qn)) && opcode.0 < 8 {
                continue;
            }
            let s = cat(&untagged(opcode, true, qn, 1, 0), &[0; 28]);
            Target::new().refuses(&s, TermCode::RDMAP_OPCODE, 18, "err_opcode");
        }
    }
}

#[test]
fn test_rts_unknown_queue() {
    for qn in [3, 4, 0x8000_0000, u32::MAX] {
        let s = cat(&untagged(Opcode::SEND, true, qn, 1, 0), &[0; 8]);
        Target::new().refuses(&s, TermCode::DDP_INVALID_QN, 18, "err_queue");
    }
}

// ---- Sends

#[test]
fn test_rts_send_msn_out_of_range() {
    for msn in [0, 2, 3, u32::MAX] {
        let s = send(msn, 0, true, 8);
        Target::new().refuses(&s, TermCode::DDP_MSN_RANGE, 18, "err_msn");
    }
    Target::new().accepts(&send(1, 0, true, 8));
}

#[test]
fn test_rts_send_msn_goes_up_by_one_and_wraps_to_zero() {
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, 8));
    t.accepts(&send(2, 0, true, 8));
    let mut t = Target::new();
    t.qp.rq.msn = Msn(u32::MAX);
    t.accepts(&send(u32::MAX, 0, true, 8));
    t.accepts(&send(0, 0, true, 8));
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, 8));
    t.refuses(&send(1, 0, true, 8), TermCode::DDP_MSN_RANGE, 18, "err_msn");
}

#[test]
fn test_rts_send_without_a_buffer() {
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, 8));
    t.accepts(&send(2, 0, true, 8));
    t.refuses(&send(3, 0, true, 8), TermCode::DDP_NO_BUFFER, 18, "err_no_buffer");
    // One without bytes needs one too.
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, 0));
    t.accepts(&send(2, 0, true, 0));
    t.refuses(&send(3, 0, true, 0), TermCode::DDP_NO_BUFFER, 18, "err_no_buffer");
}

#[test]
fn test_rts_send_offset_with_a_gap_or_an_overlap() {
    for mo in [1, 8, 63, 64, 65, u32::MAX] {
        let s = send(1, mo, true, 1);
        Target::new().refuses(&s, TermCode::DDP_INVALID_MO, 18, "err_offset");
    }
    for mo in [0, 7, 9, u32::MAX] {
        let mut t = Target::new();
        t.accepts(&send(1, 0, false, 8));
        t.refuses(&send(1, mo, true, 8), TermCode::DDP_INVALID_MO, 18, "err_offset");
    }
    let mut t = Target::new();
    t.accepts(&send(1, 0, false, 8));
    t.accepts(&send(1, 8, true, 8));
}

#[test]
fn test_rts_send_longer_than_its_buffer() {
    let long = [(100, CqeStatus::LocalLength)];
    let check = |t: &mut Target, s: &[u8]| {
        let copied = cat(&u16::try_from(s.len()).unwrap().to_be_bytes(), &s[..18]);
        let bytes = framed(s, true);
        let code = TermCode::DDP_TOO_LONG;
        t.refuses_raw_but(&bytes, code, 0xc0, &copied, "err_too_long", &long);
    };
    check(&mut Target::new(), &send(1, 0, true, BUFFER as usize + 1));
    let mut t = Target::new();
    t.accepts(&send(1, 0, false, BUFFER as usize));
    check(&mut t, &send(1, BUFFER, true, 1));
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, BUFFER as usize));
    assert_eq!(completions(&mut t.qp)[0].len, BUFFER);
    // All of it, and the end of the message in a segment of its own.
    let mut t = Target::new();
    t.accepts(&send(1, 0, false, BUFFER as usize));
    t.accepts(&send(1, BUFFER, true, 0));
    assert_eq!(completions(&mut t.qp)[0].len, BUFFER);
}

#[test]
fn test_rts_receive_buffer_in_memory_that_is_gone() {
    let mut t = Target::new();
    let stag = t.all;
    t.mrs.deregister(stag).unwrap();
    let bytes = framed(&send(1, 0, true, 8), true);
    let code = TermCode::RDMAP_LOCAL_CATASTROPHIC;
    let special = [(100, CqeStatus::LocalProtection)];
    t.refuses_raw_but(&bytes, code, 0, &[], "err_local", &special);
}

#[test]
fn test_rts_receive_buffer_without_the_right_to_write() {
    let mut t = Target::new();
    t.feed(&send(1, 0, true, 1));
    t.feed(&send(2, 0, true, 1));
    completions(&mut t.qp);
    let stag = t.region(Access::REMOTE_READ.with(Access::REMOTE_WRITE));
    let good = Sge { stag: t.all, to: TO, len: 8 };
    let bad = Sge { stag, to: TO, len: 8 };
    let sges = SgList::new(&[good, bad]).unwrap();
    t.qp.post_recv(&RecvWr { wr_id: 7, sges }).unwrap();
    // The first SGE would do; the second is wrong, so neither is touched.
    let bytes = framed(&send(3, 0, true, 9), true);
    let code = TermCode::RDMAP_LOCAL_CATASTROPHIC;
    let special = [(7, CqeStatus::LocalProtection)];
    t.refuses_raw_but(&bytes, code, 0, &[], "err_local", &special);
}

// ---- Send with Invalidate

fn send_inv(stag: Stag) -> Vec<u8> {
    let mut s = send(1, 0, true, 8);
    s[1] = 0x40 | Opcode::SEND_INV.0;
    s[2..6].copy_from_slice(&stag.0.to_be_bytes());
    s
}

#[test]
fn test_rts_invalidate_of_an_unknown_stag() {
    let s = send_inv(Stag(0x1234_5678));
    Target::new().refuses(&s, TermCode::RDMAP_INVALID_STAG, 18, "err_invalidate");
}

#[test]
fn test_rts_invalidate_of_a_region_of_another_pd_or_qp() {
    let access = Access::REMOTE_INVALIDATE;
    for (pd, qpn) in [(Pd(4), QPN), (PD, Qpn(6))] {
        let mut t = Target::new();
        let stag = t.mrs.register_for_qp(pd, qpn, 0, 0, 8, access).unwrap().stag;
        let code = TermCode::RDMAP_STAG_NOT_ASSOCIATED;
        t.refuses(&send_inv(stag), code, 18, "err_invalidate");
        t.mrs.check(pd, qpn, stag, 0, 8, Access::NONE).expect("is still valid");
    }
}

#[test]
fn test_rts_invalidate_of_a_shared_region() {
    let mut t = Target::new();
    let stag = t.all;
    t.refuses(&send_inv(stag), TermCode::RDMAP_CANNOT_INVALIDATE, 18, "err_invalidate");
    t.mrs.check(PD, QPN, stag, TO, 8, Access::NONE).expect("is still valid");
}

#[test]
fn test_rts_invalidate_of_the_qps_own_region() {
    let mut t = Target::new();
    let access = Access::REMOTE_INVALIDATE;
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 8, access).unwrap().stag;
    t.accepts(&send_inv(stag));
    assert_eq!(completions(&mut t.qp)[0].invalidated, Some(stag));
    assert!(t.mrs.check(PD, QPN, stag, 0, 8, Access::NONE).is_err());
}

/// Only the end of the message invalidates.
#[test]
fn test_rts_invalidate_before_the_last_segment() {
    let mut t = Target::new();
    let access = Access::REMOTE_INVALIDATE;
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 8, access).unwrap().stag;
    let mut s = send_inv(stag);
    s[0] &= !0x40;
    t.accepts(&s);
    assert!(t.mrs.check(PD, QPN, stag, 0, 8, Access::NONE).is_ok());
}

// ---- RDMA Write

#[test]
fn test_rts_write_to_an_unknown_stag() {
    let mut t = Target::new();
    for bit in 0..32 {
        let s = write(Stag(t.all.0 ^ 1 << bit), TO, 8);
        Target::new().refuses(&s, TermCode::DDP_INVALID_STAG, 14, "err_stag");
    }
    let stag = t.all;
    t.accepts(&write(stag, TO, 8));
    t.mrs.deregister(stag).unwrap();
    t.refuses(&write(stag, TO, 8), TermCode::DDP_INVALID_STAG, 14, "err_stag");
}

#[test]
fn test_rts_write_to_a_region_of_another_pd_or_qp() {
    for (pd, qpn) in [(Pd(4), QPN), (PD, Qpn(6))] {
        let mut t = Target::new();
        let stag = t.mrs.register_for_qp(pd, qpn, 0, 0, 100, rights()).unwrap().stag;
        let code = TermCode::DDP_STAG_NOT_ASSOCIATED;
        t.refuses(&write(stag, 0, 8), code, 14, "err_association");
    }
    let mut t = Target::new();
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 100, rights()).unwrap().stag;
    t.accepts(&write(stag, 0, 8));
}

#[test]
fn test_rts_write_without_the_right() {
    for access in [Access::NONE, Access::LOCAL_WRITE.with(Access::REMOTE_READ)] {
        let mut t = Target::new();
        let stag = t.region(access);
        t.refuses(&write(stag, TO, 8), TermCode::DDP_INVALID_STAG, 14, "err_access");
    }
    let mut t = Target::new();
    let stag = t.region(Access::REMOTE_WRITE);
    t.accepts(&write(stag, TO, 8));
}

#[test]
fn test_rts_write_at_the_bounds_and_past_them() {
    let end = TO + u64::from(LEN);
    for (to, n) in [(TO - 1, 1), (TO - 1, 8), (end - 7, 8), (end, 1), (0, 1), (TO, 1001)] {
        let mut t = Target::new();
        let s = write(t.all, to, n);
        t.refuses(&s, TermCode::DDP_BOUNDS, 14, "err_bounds");
    }
    for (to, n) in [(TO, 1), (end - 8, 8), (end - 1, 1), (TO, 1000)] {
        let mut t = Target::new();
        let s = write(t.all, to, n);
        t.accepts(&s);
        let at = usize::try_from(ADDR + (to - TO)).unwrap();
        assert_eq!(t.mem.read(at, n), vec![0x5a; n]);
        assert_eq!(t.mem.snapshot().iter().filter(|b| **b == FILL).count(), 4096 - n);
    }
}

#[test]
fn test_rts_write_whose_offset_wraps() {
    for (to, n) in [(u64::MAX, 1), (u64::MAX - 6, 8), (u64::MAX, 1000)] {
        let mut t = Target::new();
        let s = write(t.all, to, n);
        t.refuses(&s, TermCode::DDP_TO_WRAP, 14, "err_wrap");
    }
    let mut t = Target::new();
    let s = write(t.all, u64::MAX - 8, 8);
    t.refuses(&s, TermCode::DDP_BOUNDS, 14, "err_bounds");
}

#[test]
fn test_rts_write_of_no_bytes_is_not_checked() {
    Target::new().accepts(&write(Stag(1), 0, 0));
    Target::new().accepts(&write(Stag(0), u64::MAX, 0));
}

// ---- Read Requests

fn refused_read(t: &mut Target, s: &[u8], code: TermCode, counter: &str) {
    t.refuses(s, code, 46, counter);
}

#[test]
fn test_rts_read_request_for_an_unknown_stag() {
    let s = read_request(1, Stag(0x55), TO, 8);
    refused_read(&mut Target::new(), &s, TermCode::RDMAP_INVALID_STAG, "err_stag");
}

#[test]
fn test_rts_read_request_for_a_region_of_another_pd_or_qp() {
    for (pd, qpn) in [(Pd(4), QPN), (PD, Qpn(6))] {
        let mut t = Target::new();
        let stag = t.mrs.register_for_qp(pd, qpn, 0, 0, 100, rights()).unwrap().stag;
        let s = read_request(1, stag, 0, 8);
        refused_read(&mut t, &s, TermCode::RDMAP_STAG_NOT_ASSOCIATED, "err_association");
    }
}

#[test]
fn test_rts_read_request_without_the_right() {
    let mut t = Target::new();
    let stag = t.region(Access::LOCAL_WRITE.with(Access::REMOTE_WRITE));
    let s = read_request(1, stag, TO, 8);
    refused_read(&mut t, &s, TermCode::RDMAP_ACCESS, "err_access");
    let mut t = Target::new();
    let stag = t.region(Access::REMOTE_READ);
    t.accepts(&read_request(1, stag, TO, 8));
}

#[test]
fn test_rts_read_request_at_the_bounds_and_past_them() {
    let end = TO + u64::from(LEN);
    for (to, n) in [(TO - 1, 1), (end - 7, 8), (end, 1), (TO, 1001), (TO, u32::MAX)] {
        let mut t = Target::new();
        let s = read_request(1, t.all, to, n);
        refused_read(&mut t, &s, TermCode::RDMAP_BOUNDS, "err_bounds");
    }
    for (to, n) in [(TO, 1), (end - 8, 8), (TO, 1000)] {
        let mut t = Target::new();
        let s = read_request(1, t.all, to, n);
        t.accepts(&s);
    }
}

#[test]
fn test_rts_read_request_whose_offset_wraps() {
    let mut t = Target::new();
    let s = read_request(1, t.all, u64::MAX - 6, 8);
    refused_read(&mut t, &s, TermCode::RDMAP_TO_WRAP, "err_wrap");
    let mut t = Target::new();
    let s = read_request(1, t.all, u64::MAX - 8, 8);
    refused_read(&mut t, &s, TermCode::RDMAP_BOUNDS, "err_bounds");
}

#[test]
fn test_rts_read_request_of_no_bytes_is_not_checked_and_answered() {
    let mut t = Target::new();
    t.accepts(&read_request(1, Stag(1), u64::MAX, 0));
    assert_eq!(t.transmit(), [framed(&tagged(Opcode::READ_RESPONSE, true, Stag(6), 99), true)]);
}

#[test]
fn test_rts_read_request_is_answered_with_what_memory_holds() {
    let mut t = Target::new();
    t.mem.write(1000, b"heddle");
    let s = read_request(1, t.all, TO, 6);
    t.accepts(&s);
    let want = cat(&tagged(Opcode::READ_RESPONSE, true, Stag(6), 99), b"heddle");
    assert_eq!(t.transmit(), [framed(&want, true)]);
}

#[test]
fn test_rts_read_request_beyond_the_ird() {
    let mut t = Target::new();
    for msn in 1..=2 {
        let s = read_request(msn, t.all, TO, 8);
        t.accepts(&s);
    }
    let s = read_request(3, t.all, TO, 8);
    t.refuses(&s, TermCode::DDP_NO_BUFFER, 18, "err_no_buffer");
    // Answered Reads make room.
    let mut t = Target::new();
    for msn in 1..=20 {
        let s = read_request(msn, t.all, TO, 8);
        t.accepts(&s);
        assert_eq!(t.transmit().len(), 1);
    }
}

#[test]
fn test_rts_read_request_with_an_ird_of_zero() {
    let config = QpConfig { ird: 0, ..QpConfig::default() };
    let mut t = Target::with(config.clone());
    let s = read_request(1, t.all, TO, 8);
    t.refuses(&s, TermCode::DDP_NO_BUFFER, 18, "err_no_buffer");
    // The ready-to-receive message, as siw sends it.
    let mut t = Target::with(config.clone());
    t.accepts(&read_request(1, Stag(1), 0, 0));
    t.refuses(&read_request(2, Stag(1), 0, 0), TermCode::DDP_NO_BUFFER, 18, "err_no_buffer");
    let mut t = Target::with(config);
    t.accepts(&read_request(1, Stag(1), 0, 0));
    assert_eq!(t.transmit().len(), 1);
    t.accepts(&read_request(2, Stag(1), 0, 0));
}

#[test]
fn test_rts_read_request_msn_out_of_range() {
    for msn in [0, 2, u32::MAX] {
        let mut t = Target::new();
        let s = read_request(msn, t.all, TO, 8);
        t.refuses(&s, TermCode::DDP_MSN_RANGE, 18, "err_msn");
    }
}

#[test]
fn test_rts_read_request_of_another_shape() {
    let full = |t: &Target| read_request(1, t.all, TO, 8);
    let mut t = Target::new();
    let s = full(&t);
    t.refuses(&s[..45], TermCode::RDMAP_STREAM_CATASTROPHIC, 18, "err_malformed");
    let mut t = Target::new();
    let s = cat(&full(&t), &[0]);
    t.refuses(&s, TermCode::DDP_TOO_LONG, 18, "err_too_long");
    let mut t = Target::new();
    let mut s = full(&t);
    s[0] &= !0x40;
    t.refuses(&s, TermCode::RDMAP_STREAM_CATASTROPHIC, 18, "err_malformed");
    let mut t = Target::new();
    let mut s = full(&t);
    s[17] = 4;
    t.refuses(&s, TermCode::DDP_INVALID_MO, 18, "err_offset");
}

/// The region goes away after the request was accepted: nothing more is read, and the Terminate
/// says how far it had got.
#[test]
fn test_rts_read_source_deregistered_while_answering() {
    for sent in [0u32, 1, 2] {
        let mut t = Target::new();
        let stag = t.mrs.register(PD, ADDR, TO, LEN.into(), Access::REMOTE_READ).unwrap().stag;
        t.accepts(&read_request(1, stag, TO, 900));
        let env = QpEnv { mem: &t.mem, mrs: &t.mrs, want_sum: false };
        for _ in 0..sent {
            t.qp.poll_transmit(&env, 314).unwrap();
        }
        t.mrs.deregister(stag).unwrap();
        let posted = t.posted();
        let fpdu = {
            let env = QpEnv { mem: &t.mem, mrs: &t.mrs, want_sum: false };
            t.qp.poll_transmit(&env, 314).unwrap()
        };
        let mut bytes = vec![0; fpdu.len() as usize];
        fpdu.copy_to(&t.mem, 0, &mut bytes);
        let done = 300 * sent;
        let mut want = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
        want.extend([0x01, 0, 0xe0, 0, 0, 46]);
        want.extend(untagged(Opcode::READ_REQUEST, true, 1, 1, 0));
        let moved = ReadRequest {
            sink_stag: Stag(6),
            sink_to: 99 + u64::from(done),
            size: 900 - done,
            src_stag: stag,
            src_to: TO + u64::from(done),
        };
        want.extend(moved.emit());
        assert_eq!(bytes, framed(&want, true));
        assert_eq!(completions(&mut t.qp).len(), posted.len());
        assert_eq!(t.qp.state(), QpState::Terminate);
        assert!(t.transmit().is_empty());
    }
}

// ---- Read Responses

#[test]
fn test_reading_response_is_placed_and_completes() {
    let mut t = Target::with_read();
    let stag = t.all;
    t.accepts(&response(stag, TO, false, 150));
    assert!(completions(&mut t.qp).is_empty());
    t.accepts(&response(stag, TO + 150, true, 50));
    let done = completions(&mut t.qp);
    assert_eq!((done[0].wr_id, done[0].status, done[0].len), (1, CqeStatus::Success, 200));
    assert_eq!(t.mem.read(1000, 200), [0x5a; 200]);
}

#[test]
fn test_reading_response_to_another_place() {
    let mut t = Target::with_read();
    let s = response(Stag(t.all.0 ^ 0x100), TO, true, 200);
    t.refuses(&s, TermCode::DDP_INVALID_STAG, 14, "err_response");
    for to in [TO + 1, TO - 1, 0] {
        let mut t = Target::with_read();
        let s = response(t.all, to, true, 200);
        t.refuses(&s, TermCode::DDP_BOUNDS, 14, "err_response");
    }
    let mut t = Target::with_read();
    let stag = t.all;
    t.accepts(&response(stag, TO, false, 100));
    t.refuses(&response(stag, TO, true, 100), TermCode::DDP_BOUNDS, 14, "err_response");
}

#[test]
fn test_reading_response_of_another_length() {
    let mut t = Target::with_read();
    let s = response(t.all, TO, true, 201);
    t.refuses(&s, TermCode::DDP_BOUNDS, 14, "err_response");
    for n in [0, 199] {
        let mut t = Target::with_read();
        let s = response(t.all, TO, true, n);
        t.refuses(&s, TermCode::RDMAP_STREAM_CATASTROPHIC, 14, "err_response");
    }
    let mut t = Target::with_read();
    let stag = t.all;
    t.accepts(&response(stag, TO, false, 200));
    assert!(completions(&mut t.qp).is_empty(), "the message has not ended");
    t.accepts(&response(stag, TO + 200, true, 0));
    assert_eq!(completions(&mut t.qp).len(), 1);
}

#[test]
fn test_reading_response_twice() {
    let mut t = Target::with_read();
    let s = response(t.all, TO, true, 200);
    t.accepts(&s);
    t.refuses(&s, TermCode::RDMAP_OPCODE, 14, "err_opcode");
}

#[test]
fn test_reading_sink_deregistered_meanwhile() {
    let mut t = Target::with_read();
    let stag = t.all;
    t.mrs.deregister(stag).unwrap();
    let s = response(stag, TO, true, 200);
    let copied = cat(&214u16.to_be_bytes(), &s[..14]);
    let special = [(1, CqeStatus::LocalProtection)];
    let code = TermCode::DDP_INVALID_STAG;
    t.refuses_raw_but(&framed(&s, true), code, 0xc0, &copied, "err_stag", &special);
}

/// The sink is open to the response alone.
#[test]
fn test_reading_write_to_a_sink_without_remote_write() {
    let mut t = Target::new();
    let stag = t.region(Access::LOCAL_WRITE);
    let sges = SgList::one(Sge { stag, to: TO, len: 8 });
    let op = SendOp::Read { stag: Stag(77), to: 0 };
    let wr = SendWr { wr_id: 1, op, sges, signaled: true, fence: false };
    t.qp.post_send(&wr).unwrap();
    assert_eq!(t.transmit().len(), 1);
    t.refuses(&write(stag, TO, 8), TermCode::DDP_INVALID_STAG, 14, "err_access");
}

// ---- Local errors

#[test]
fn test_rts_send_from_memory_that_is_not_ours() {
    for op in [
        SendOp::Send { solicited: false, invalidate: None },
        SendOp::Write { stag: Stag(9), to: 0 },
        SendOp::Read { stag: Stag(9), to: 0 },
    ] {
        let mut t = Target::new();
        let other = t.mrs.register(Pd(4), 0, 0, 100, rights()).unwrap().stag;
        let sges = SgList::one(Sge { stag: other, to: 0, len: 8 });
        t.qp.post_send(&SendWr { wr_id: 3, op, sges, signaled: false, fence: false }).unwrap();
        t.post(4, SendOp::Write { stag: Stag(9), to: 0 });
        let posted = t.posted();
        // The Terminate is sent instead of the request.
        let sent = t.transmit();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0][2..24][18..], [0, 0, 0, 0]);
        let done = completions(&mut t.qp);
        assert_eq!(done.len(), posted.len());
        assert_eq!((done[0].wr_id, done[0].status), (3, CqeStatus::LocalProtection));
        assert!(done[1..].iter().all(|c| c.status == CqeStatus::Flushed));
        assert_eq!(t.qp.counters().err_local, 1);
        assert_eq!(t.qp.state(), QpState::Terminate);
    }
}

/// Of several errors the Terminate tells the first.
#[test]
fn test_rts_two_errors_at_once_report_the_first() {
    let mut t = Target::new();
    let mut bytes = framed(&send(9, 0, true, 8), true);
    bytes.extend(framed(&write(Stag(1), 0, 8), true));
    assert_eq!(t.feed_raw(&bytes), bytes.len());
    assert_eq!((t.qp.counters().err_msn, t.qp.counters().err_stag), (1, 0));
    let code = TermCode::DDP_MSN_RANGE;
    let local = QpEvent::Terminated { by: Side::Local, code };
    assert_eq!(events(&mut t.qp), [local]);
}

// ---- Terminates of the peer

fn peers_terminate(body: &[u8]) -> Vec<u8> {
    cat(&untagged(Opcode::TERMINATE, true, 2, 1, 0), body)
}

#[test]
fn test_rts_terminate_from_the_peer_flushes_and_is_not_answered() {
    let mut t = Target::new();
    t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    t.post(2, SendOp::Send { solicited: false, invalidate: None });
    assert_eq!(t.transmit().len(), 2);
    // It is about the Send: queue 0, MSN 1.
    let mut body = vec![0x12, 2, 0xc0, 0, 0, 218];
    body.extend(untagged(Opcode::SEND, true, 0, 1, 0));
    t.feed(&peers_terminate(&body));
    assert_eq!(t.qp.state(), QpState::Error);
    let code = TermCode::DDP_NO_BUFFER;
    assert_eq!(events(&mut t.qp), [QpEvent::Terminated { by: Side::Remote, code }]);
    let done: Vec<_> = completions(&mut t.qp).iter().map(|c| (c.wr_id, c.status)).collect();
    let flushed = CqeStatus::Flushed;
    let hit = CqeStatus::RemoteTerminated(code);
    assert_eq!(done, [(1, flushed), (2, hit), (100, flushed), (101, flushed)]);
    assert!(t.transmit().is_empty());
    assert!(!t.qp.has_transmit());
    assert_eq!(t.qp.counters().rx_terminates, 1);
}

#[test]
fn test_rts_terminate_names_the_write_or_the_read_it_is_about() {
    for (header, want) in [
        (tagged(Opcode::WRITE, true, Stag(9), 100), Some(1)),
        (tagged(Opcode::WRITE, true, Stag(9), 5000), Some(2)),
        (untagged(Opcode::READ_REQUEST, true, 1, 1, 0), Some(3)),
        // As siw has it, with the size in place of the MSN: the oldest Read.
        (untagged(Opcode::READ_REQUEST, true, 1, 200, 0), Some(3)),
        // Of one that is over, and of no one in particular.
        (tagged(Opcode::WRITE, true, Stag(8), 0), None),
        (Vec::new(), Some(1)),
    ] {
        let mut t = Target::new();
        t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
        t.post(2, SendOp::Write { stag: Stag(9), to: 5000 });
        t.post(3, SendOp::Read { stag: Stag(9), to: 0 });
        t.post(4, SendOp::Write { stag: Stag(9), to: 0 });
        assert_eq!(t.transmit().len(), 4);
        let bits = if header.is_empty() { 0 } else { 0xc0 };
        let mut body = vec![0x11, 1, bits, 0, 0, 0];
        body.extend(header);
        t.feed(&peers_terminate(&body));
        let hits: Vec<_> = completions(&mut t.qp)
            .iter()
            .filter(|c| c.status == CqeStatus::RemoteTerminated(TermCode::DDP_BOUNDS))
            .map(|c| c.wr_id)
            .collect();
        assert_eq!(hits, want.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn test_rts_terminate_as_siw_writes_it() {
    let mut t = Target::new();
    let mut body = vec![0x21, 2, 3, 0, 0, 20];
    body.extend(untagged(Opcode::SEND, true, 0, 1, 0));
    t.feed(&peers_terminate(&body));
    let code = TermCode::DDP_NO_BUFFER;
    assert_eq!(events(&mut t.qp)[0], QpEvent::Terminated { by: Side::Remote, code });
}

#[test]
fn test_rts_terminate_cut_short_or_too_long_still_ends_the_stream() {
    for body in [vec![], vec![0x12], vec![0x12, 2, 0xc0, 0], vec![0x12, 2, 0xe0, 0, 0, 9, 1, 2]] {
        let mut t = Target::new();
        t.feed(&peers_terminate(&body));
        assert_eq!(t.qp.state(), QpState::Error);
        assert_eq!(completions(&mut t.qp).len(), 2);
        assert!(t.transmit().is_empty());
    }
    let mut t = Target::new();
    t.feed(&peers_terminate(&[0x12; 1000]));
    assert_eq!(t.qp.state(), QpState::Error);
}

#[test]
fn test_terminating_terminate_from_the_peer_changes_nothing() {
    let mut t = Target::new();
    t.feed(&send(9, 0, true, 8));
    assert_eq!(t.qp.state(), QpState::Terminate);
    events(&mut t.qp);
    t.feed(&peers_terminate(&[0x12, 2, 0, 0]));
    assert_eq!(t.qp.state(), QpState::Terminate);
    assert!(events(&mut t.qp).is_empty());
    assert_eq!(t.transmit().len(), 1);
}

#[test]
fn test_terminating_abort_forgets_the_terminate() {
    let mut t = Target::new();
    t.feed(&send(9, 0, true, 8));
    t.qp.abort();
    assert_eq!(t.qp.state(), QpState::Error);
    assert!(t.transmit().is_empty());
}
