//! Damage below RDMAP: FPDU framing, CRC, versions, opcodes and queues.

use super::*;
use crate::fault::Fault;
use crate::mpa::decode::{Framing, decode};

#[test]
fn test_receiver_detects_a_flipped_bit_in_every_byte_by_crc() {
    let good = framed(&send(1, 0, true, 9), true);
    for at in 2..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        Target::new().refuses_raw(&bad, 0x2002, 0, &[], "err_crc");
    }
    let mut t = Target::new();
    t.feed_raw(&good);
    assert_eq!(t.qp.state(), ConnectedState::Rts);
}

#[test]
fn test_receiver_ignores_crc_field_when_crc_is_off() {
    let mut t = Target::with(QpConfig { crc: false, ..QpConfig::default() });
    let mut bytes = framed(&send(1, 0, true, 9), false);
    let n = bytes.len();
    bytes[n - 4..].copy_from_slice(b"\x01\x02\x03\x04");
    t.feed_raw(&bytes);
    assert_eq!(t.qp.counters().rx_sends, 1);
}

#[test]
fn test_receiver_ignores_pad_and_reserved_bits() {
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
    assert_eq!(t.qp.state(), ConnectedState::Rts);
}

#[test]
fn test_receiver_places_nothing_of_an_incomplete_fpdu() {
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
fn test_receiver_takes_several_fpdus_at_once_and_leaves_the_rest() {
    let mut t = Target::new();
    let one = framed(&write(t.all, TO + 500, 3), true);
    let mut bytes = one.repeat(3);
    bytes.extend(&one[..7]);
    assert_eq!(t.feed_raw(&bytes), 3 * one.len());
    assert_eq!(t.qp.counters().rx_fpdus, 3);
    assert_eq!(t.qp.rx_next(), StreamPos(3 * one.len() as u64));
}

#[test]
fn test_receiver_refuses_ulpdu_shorter_than_its_header() {
    for crc in [true, false] {
        for full in [write(Stag(1), 0, 0), send(1, 0, true, 0)] {
            let last = full.len() - 1;
            for n in [0, 1, 13, last] {
                let n = n.min(last);
                let mut t = Target::with(QpConfig { crc, ..QpConfig::default() });
                let code = 0x0207;
                t.refuses(&full[..n], code, 0, "err_short");
            }
        }
    }
}

#[test]
fn test_receiver_refuses_ddp_version_other_than_one() {
    for version in [0, 2, 3] {
        let mut t = Target::new();
        let mut s = write(t.all, TO, 8);
        s[0] = s[0] & !3 | version;
        t.refuses(&s, 0x1104, 14, "err_ddp_version");
        let mut s = send(1, 0, true, 8);
        s[0] = s[0] & !3 | version;
        Target::new().refuses(&s, 0x1206, 18, "err_ddp_version");
    }
}

#[test]
fn test_receiver_refuses_rdmap_version_other_than_one() {
    // Version 0 is the RDMA Consortium's. No stream that MPA revision 1 or 2 began may carry it
    // beside the version 1 that this end sends.
    for version in [0u8, 2, 3] {
        let mut t = Target::new();
        let mut s = write(t.all, TO, 8);
        s[1] = version << 6 | s[1] & 0x3f;
        t.refuses(&s, 0x0205, 14, "err_rdmap_version");
    }
}

#[test]
fn test_receiver_refuses_opcode_that_may_not_be_tagged() {
    for opcode in (0..16).map(Opcode).filter(|o| *o != Opcode::WRITE) {
        // A Read Response without a Read is one of them.
        let mut t = Target::new();
        let s = cat(&tagged(opcode, true, t.all, TO), &[0; 8]);
        t.refuses(&s, 0x0206, 14, "err_opcode");
    }
}

#[test]
fn test_receiver_refuses_opcode_on_a_queue_not_its_own() {
    for opcode in (0..16).map(Opcode) {
        for qn in 0..4u32 {
            if opcode.queue() == Some(Qn(qn)) {
                continue;
            }
            let s = cat(&untagged(opcode, true, qn, 1, 0), &[0; 28]);
            Target::new().refuses(&s, 0x0206, 18, "err_opcode");
        }
    }
}

#[test]
fn test_receiver_refuses_unknown_queue_number() {
    for qn in [4, 5, 0x8000_0000, u32::MAX] {
        let s = cat(&untagged(Opcode::SEND, true, qn, 1, 0), &[0; 8]);
        Target::new().refuses(&s, 0x1201, 18, "err_queue");
    }
}

/// The reader of captures and the receiving queue pair find the same fault in a header, so that
/// knowledge about one holds for the other.
#[test]
fn test_reader_of_captures_and_queue_pair_find_the_same_header_faults() {
    let all = Target::new().all;
    let mut segments = vec![write(all, TO, 0), send(1, 0, true, 0), vec![]];
    for base in [write(all, TO, 8), send(1, 0, true, 8), read_request(1, all, TO, 8)] {
        segments.extend((0..18).map(|n| base[..n].to_vec()));
        for at in [0, 1, 6, 7, 8, 9] {
            for byte in 0..=255 {
                let mut s = base.clone();
                s[at] = byte;
                segments.push(s);
            }
        }
    }
    let faults = [Fault::Short, Fault::TaggedVersion, Fault::UntaggedVersion, Fault::RdmapVersion];
    let mut seen = std::collections::HashSet::new();
    for s in segments {
        let bytes = framed(&s, true);
        let read = decode(&bytes, Framing { crc: true, markers: false }).next().unwrap().headers();
        let mut t = Target::new();
        t.feed_raw(&bytes);
        let told = events(&mut t.qp).into_iter().find_map(|e| match e {
            QpEvent::Terminated { by: Side::Local, code } | QpEvent::Failed { code } => Some(code),
            _ => None,
        });
        match read {
            Err(e) => {
                assert_eq!(told, Some(e.fault().code()), "{e}: {s:02x?}");
                seen.insert(e.fault());
            }
            // Other faults are not in the header itself.
            Ok(_) => {
                let c = t.qp.counters();
                let found = c.err_short + c.err_ddp_version + c.err_rdmap_version + c.err_queue;
                assert_eq!((c.err_crc, found), (0, 0), "{s:02x?}");
            }
        }
    }
    assert!(faults.iter().chain(&[Fault::Queue, Fault::Opcode]).all(|f| seen.contains(f)));
}

impl Target {
    fn feed_digested(&mut self, bytes: &[u8], crc: Option<u32>) -> usize {
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None };
        self.qp.handle_digested(&env, bytes, crc)
    }
}

/// Returns the CRC of all but the last four bytes, as a caller computes it beforehand.
fn digest(bytes: &[u8]) -> u32 {
    fpdu::crc(0, &bytes[..bytes.len() - 4])
}

/// The QP compares the FPDU's field with a CRC that the caller computed beforehand, and does not
/// read the bytes for it: so a wrong one makes the QP refuse a good FPDU.
#[test]
fn test_receiver_compares_single_fpdu_with_precomputed_crc() {
    let mut t = Target::new();
    let bytes = framed(&send(1, 0, true, 40), true);
    assert!(!t.qp.wants_crc(), "nothing has come");
    assert_eq!(t.feed_digested(&bytes, Some(digest(&bytes))), bytes.len());
    assert_eq!((t.qp.counters().rx_fpdus, t.qp.state()), (1, ConnectedState::Rts));
    assert!(t.qp.wants_crc());
    let bytes = framed(&send(2, 0, true, 40), true);
    t.feed_digested(&bytes, Some(!digest(&bytes)));
    assert_eq!((t.qp.counters().err_crc, t.qp.counters().rx_fpdus), (1, 1));
    // The caller's CRC of a damaged FPDU is as wrong as the one that the QP would compute.
    let mut t = Target::new();
    let mut bytes = framed(&send(1, 0, true, 40), true);
    bytes[30] ^= 1;
    t.feed_digested(&bytes, Some(digest(&bytes)));
    assert_eq!(t.qp.counters().err_crc, 1);
}

/// For two FPDUs, a part of one, or one with more after it, the caller's CRC covers something else:
/// the QP does not compare it, and does not ask for it.
#[test]
fn test_receiver_ignores_precomputed_crc_unless_for_one_whole_fpdu() {
    let two = [framed(&send(1, 0, true, 40), true), framed(&send(2, 0, true, 40), true)];
    for end in [two[0].len() + 1, two[0].len() + two[1].len()] {
        let mut t = Target::new();
        let stream = &two.concat()[..end];
        assert_eq!(t.feed_digested(&two[0][..30], Some(0)), 0);
        assert!(!t.qp.wants_crc());
        let whole = if end > two[0].len() + 1 { 2 } else { 1 };
        assert_eq!(t.feed_digested(stream, Some(0)), if whole == 2 { end } else { two[0].len() });
        let c = t.qp.counters();
        assert_eq!((c.rx_fpdus, c.err_crc, t.qp.wants_crc()), (whole, 0, false));
    }
    // Without CRCs the QP asks for none even if one FPDU fills the stream.
    let mut t = Target::with(QpConfig { crc: false, ..QpConfig::default() });
    let bytes = framed(&send(1, 0, true, 40), false);
    assert_eq!(t.feed_digested(&bytes, Some(0)), bytes.len());
    assert_eq!((t.qp.counters().rx_fpdus, t.qp.wants_crc()), (1, false));
}
