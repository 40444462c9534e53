//! Damage on the way. With CRC the QP finds every change before it touches memory. Without CRC the
//! QP touches no memory to which the peer has no right, and does not panic.

use super::pair::{BASE, FILL, GUARD};
use super::*;
use heddle_types::{SendOp, TermCode};
use proptest::prelude::*;

/// Returns a stream of Sends, Writes, a Read Request and a Read Response, as side 0 sends it to
/// side 1, and the pair ready to take it.
fn stream(crc: bool) -> (Pair, Vec<u8>) {
    let mut c = PairConfig { mulpdu: 300, size: 1 << 13, ..PairConfig::default() };
    c.qp.crc = crc;
    let mut p = Pair::open(c);
    let (a, b) = (p.nodes[0].stag, p.nodes[1].stag);
    p.a().write(0, &random_bytes(1000, 5));
    for i in 0..3 {
        p.recv(1, i, [p.nodes[1].sge(4096, 512)]);
    }
    // A Read of side 1, so that a Read Response is under way too.
    let sink = [p.nodes[1].sge(6000, 400)];
    p.send(1, 1, SendOp::Read { stag: a, to: BASE + 100 }, sink);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    let send = SendOp::Send { solicited: true, invalidate: None };
    p.send(0, 1, send, [p.nodes[0].sge(0, 500)]);
    p.send(0, 2, SendOp::Write { stag: b, to: BASE }, [p.nodes[0].sge(3, 20)]);
    p.send(0, 3, SendOp::Write { stag: b, to: BASE + 64 }, [p.nodes[0].sge(9, 700)]);
    p.send(0, 4, SendOp::Read { stag: b, to: BASE }, [p.nodes[0].sge(2000, 600)]);
    p.send(0, 5, send, []);
    p.transmit(0, 100);
    let bytes = std::mem::take(&mut p.b().inbox);
    (p, bytes)
}

/// Returns the starts of the FPDUs in `bytes`.
fn starts(bytes: &[u8]) -> Vec<usize> {
    let mut at = 0;
    let mut v = Vec::new();
    while at < bytes.len() {
        v.push(at);
        let len = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        at += crate::mpa::fpdu::fpdu_len(len);
    }
    assert_eq!(at, bytes.len());
    v
}

fn feed(p: &mut Pair, bytes: &[u8]) -> usize {
    let b = &mut p.nodes[1];
    let env = QpEnv { mem: &b.mem, mrs: &b.mrs, snapshots_full: false, posted: None };
    b.qp.handle_stream(&env, bytes)
}

fn guards_are_whole(p: &Pair) {
    let all = p.nodes[1].mem.snapshot();
    assert!(all[..GUARD].iter().chain(&all[all.len() - GUARD..]).all(|b| *b == FILL));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Flips up to three bits within one FPDU: CRC-32C finds them all at these lengths.
    #[test]
    fn test_damaged_fpdu_is_detected_by_crc_and_leaves_no_trace(
        which in any::<prop::sample::Index>(),
        flips in proptest::collection::btree_set(any::<u16>(), 1..=3),
    ) {
        let (mut p, bytes) = stream(true);
        let starts = starts(&bytes);
        let n = which.index(starts.len());
        let start = starts[n];
        let end = starts.get(n + 1).copied().unwrap_or(bytes.len());
        // The FPDUs before it are good, and the QP places them.
        prop_assert_eq!(feed(&mut p, &bytes[..start]), start);
        let memory = p.nodes[1].mem.snapshot();
        let mut bad = bytes[start..].to_vec();
        let bits = (end - start) * 8;
        let mut changed = std::collections::BTreeSet::new();
        for f in flips {
            let bit = usize::from(f) % bits;
            if changed.insert(bit) {
                bad[bit / 8] ^= 1 << (bit % 8);
            }
        }
        feed(&mut p, &bad);
        prop_assert_eq!(p.nodes[1].mem.snapshot(), memory);
        // Either the QP found the damage, or a length that grew makes the QP wait for more.
        let q = &mut p.nodes[1].qp;
        let code = TermCode::MPA_CRC;
        let ended = events(q).contains(&QpEvent::Terminated { by: Side::Local, code });
        prop_assert!(ended || q.state() == ConnectedState::Rts);
        prop_assert!(ended || changed.iter().any(|b| *b < 16), "only a length can hide it");
    }

    #[test]
    fn test_damaged_stream_without_crc_writes_only_granted_memory(
        flips in proptest::collection::vec((any::<u16>(), 0u8..8), 1..20),
        heads in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..20, any::<u8>()), 0..6),
        cut in any::<u16>(),
    ) {
        let (mut p, mut bytes) = stream(false);
        let starts = starts(&bytes);
        let n = bytes.len();
        for (at, bit) in flips {
            bytes[usize::from(at) % n] ^= 1 << bit;
        }
        // Headers are a small part of the stream: aim at them too.
        for (which, off, b) in heads {
            bytes[starts[which.index(starts.len())] + off] = b;
        }
        let cut = usize::from(cut) % n;
        let taken = feed(&mut p, &bytes[..cut]);
        prop_assert!(taken <= cut);
        let rest = bytes[taken..].to_vec();
        feed(&mut p, &rest);
        guards_are_whole(&p);
        // The owner can still end the QP in an orderly way.
        p.transmit(1, 100);
        p.nodes[1].qp.abort();
        completions(&mut p.nodes[1].qp);
        prop_assert_eq!(p.nodes[1].qp.poll_completion(), None);
    }

    /// Well-formed headers with arbitrary fields.
    #[test]
    fn test_arbitrary_segments_without_crc_never_reach_foreign_memory(
        segments in proptest::collection::vec(
            (any::<bool>(), any::<bool>(), 0u8..12, any::<u8>(), any::<u64>(), -40i64..9000,
             0u32..4, 0u32..4, 0usize..700), 1..20),
    ) {
        let (mut p, _) = stream(false);
        let other = {
            // An adjacent region inside the guards, of another protection domain.
            let b = &p.nodes[1];
            b.mrs.register(Pd(99), 0, BASE, GUARD as u64, rights()).unwrap().stag
        };
        for (tagged, last, opcode, ctl, wild, near, qn, msn, len) in segments {
            let stag = match wild % 3 { 0 => other, 1 => p.nodes[1].stag, _ => Stag(7) };
            let to = if ctl & 8 == 0 { BASE.wrapping_add_signed(near) } else { wild };
            let mut u = vec![u8::from(tagged) << 7 | u8::from(last) << 6 | 1, 0x40 | opcode];
            if tagged {
                u.extend(stag.0.to_be_bytes());
                u.extend(to.to_be_bytes());
            } else {
                u.extend(stag.0.to_be_bytes());
                u.extend(qn.to_be_bytes());
                u.extend(msn.to_be_bytes());
                let mo = if ctl & 1 == 0 { 0 } else { u32::from(ctl) };
                u.extend(mo.to_be_bytes());
            }
            u.extend(vec![0x11; len]);
            let mut bytes = Vec::new();
            crate::mpa::fpdu::append(&u, false, &mut bytes).unwrap();
            feed(&mut p, &bytes);
        }
        guards_are_whole(&p);
    }

    #[test]
    fn test_receiver_never_panics_on_random_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000), crc in any::<bool>(),
    ) {
        let (mut p, _) = stream(crc);
        let memory = p.nodes[1].mem.snapshot();
        feed(&mut p, &bytes);
        guards_are_whole(&p);
        if crc {
            prop_assert_eq!(p.nodes[1].mem.snapshot(), memory);
        }
    }
}
