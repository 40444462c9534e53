//! Sends, with and without Invalidate.

use super::*;
use heddle_types::{CqeStatus, Sge, mpa::RtrSet};

#[test]
fn test_receiver_refuses_send_with_msn_out_of_range() {
    for msn in [0, 2, 3, u32::MAX] {
        let s = send(msn, 0, true, 8);
        Target::new().refuses(&s, 0x1203, 18, "err_msn");
    }
    Target::new().accepts(&send(1, 0, true, 8));
}

#[test]
fn test_receiver_expects_send_msn_to_rise_by_one_and_wrap_to_zero() {
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, 8));
    t.accepts(&send(2, 0, true, 8));
    let mut t = Target::new();
    t.qp.rq.msn = Msn(u32::MAX);
    t.accepts(&send(u32::MAX, 0, true, 8));
    t.accepts(&send(0, 0, true, 8));
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, 8));
    t.refuses(&send(1, 0, true, 8), 0x1203, 18, "err_msn");
}

#[test]
fn test_receiver_refuses_send_without_a_buffer() {
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, 8));
    t.accepts(&send(2, 0, true, 8));
    t.refuses(&send(3, 0, true, 8), 0x1202, 18, "err_no_buffer");
    // A Send without bytes needs a receive too.
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, 0));
    t.accepts(&send(2, 0, true, 0));
    t.refuses(&send(3, 0, true, 0), 0x1202, 18, "err_no_buffer");
}

#[test]
fn test_receiver_refuses_send_offset_with_a_gap_or_overlap() {
    for mo in [1, 8, 63, 64, 65, u32::MAX] {
        let s = send(1, mo, true, 1);
        Target::new().refuses(&s, 0x1204, 18, "err_offset");
    }
    for mo in [0, 7, 9, u32::MAX] {
        let mut t = Target::new();
        t.accepts(&send(1, 0, false, 8));
        t.refuses(&send(1, mo, true, 8), 0x1204, 18, "err_offset");
    }
    let mut t = Target::new();
    t.accepts(&send(1, 0, false, 8));
    t.accepts(&send(1, 8, true, 8));
}

#[test]
fn test_receiver_refuses_send_longer_than_its_buffer() {
    let long = [(100, CqeStatus::LocalLength)];
    let check = |t: &mut Target, s: &[u8]| {
        let copied = cat(&u16::try_from(s.len()).unwrap().to_be_bytes(), &s[..18]);
        let bytes = framed(s, true);
        let code = 0x1205;
        t.refuses_raw_but(&bytes, code, 0xc0, &copied, "err_too_long", &long);
    };
    check(&mut Target::new(), &send(1, 0, true, BUFFER as usize + 1));
    let mut t = Target::new();
    t.accepts(&send(1, 0, false, BUFFER as usize));
    check(&mut t, &send(1, BUFFER, true, 1));
    let mut t = Target::new();
    t.accepts(&send(1, 0, true, BUFFER as usize));
    assert_eq!(completions(&mut t.qp)[0].len, BUFFER);
    // All bytes, and the end of the message in a segment of its own.
    let mut t = Target::new();
    t.accepts(&send(1, 0, false, BUFFER as usize));
    t.accepts(&send(1, BUFFER, true, 0));
    assert_eq!(completions(&mut t.qp)[0].len, BUFFER);
}

#[test]
fn test_receiver_ends_stream_if_receive_buffer_was_unregistered() {
    let mut t = Target::new();
    let stag = t.all;
    t.mrs.deregister(stag).unwrap();
    let bytes = framed(&send(1, 0, true, 8), true);
    let code = 0x0000;
    let special = [(100, CqeStatus::LocalProtection)];
    t.refuses_raw_but(&bytes, code, 0, &[], "err_local", &special);
}

#[test]
fn test_receiver_ends_stream_if_receive_buffer_is_not_writable() {
    let mut t = Target::new();
    t.feed(&send(1, 0, true, 1));
    t.feed(&send(2, 0, true, 1));
    completions(&mut t.qp);
    let stag = t.region(Access::REMOTE_READ.with(Access::REMOTE_WRITE));
    let good = Sge { stag: t.all, to: TO, len: 8 };
    let bad = Sge { stag, to: TO, len: 8 };
    let sges = [good, bad];
    t.qp.post_recv(&RecvWr::new(7, &sges)).unwrap();
    // The first SGE is good; the second is wrong, so the QP writes to neither.
    let bytes = framed(&send(3, 0, true, 9), true);
    let code = 0x0000;
    let special = [(7, CqeStatus::LocalProtection)];
    t.refuses_raw_but(&bytes, code, 0, &[], "err_local", &special);
}

fn send_inv(stag: Stag) -> Vec<u8> {
    let mut s = send(1, 0, true, 8);
    s[1] = 0x40 | Opcode::SEND_INV.0;
    s[2..6].copy_from_slice(&stag.0.to_be_bytes());
    s
}

#[test]
fn test_receiver_refuses_invalidation_of_unknown_stag() {
    let s = send_inv(Stag(0x1234_5678));
    Target::new().refuses(&s, 0x0109, 18, "err_invalidate");
}

#[test]
fn test_receiver_refuses_invalidation_of_region_of_another_pd_or_qp() {
    let access = Access::REMOTE_INVALIDATE;
    for (pd, qpn) in [(Pd(4), QPN), (PD, Qpn(6))] {
        let mut t = Target::new();
        let stag = t.mrs.register_for_qp(pd, qpn, 0, 0, 8, access).unwrap().stag;
        t.refuses(&send_inv(stag), 0x0109, 18, "err_invalidate");
        t.mrs.check(pd, qpn, stag, 0, 8, Access::NONE).expect("is still valid");
    }
}

#[test]
fn test_receiver_refuses_invalidation_of_shared_region() {
    let mut t = Target::new();
    let stag = t.all;
    t.refuses(&send_inv(stag), 0x0109, 18, "err_invalidate");
    t.mrs.check(PD, QPN, stag, TO, 8, Access::NONE).expect("is still valid");
}

#[test]
fn test_receiver_refuses_invalidation_of_region_without_the_right() {
    let mut t = Target::new();
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 8, rights()).unwrap().stag;
    t.refuses(&send_inv(stag), 0x0109, 18, "err_invalidate");
    t.mrs.check(PD, QPN, stag, 0, 8, Access::NONE).expect("is still valid");
}

#[test]
fn test_receiver_refuses_invalidation_of_stag_that_is_no_longer_valid() {
    let access = Access::REMOTE_INVALIDATE;
    let mut t = Target::new();
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 8, access).unwrap().stag;
    t.mrs.deregister(stag).unwrap();
    t.refuses(&send_inv(stag), 0x0109, 18, "err_invalidate");
    // An invalidated STag is as invalid as an unregistered one.
    let mut t = Target::new();
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 8, access).unwrap().stag;
    t.accepts(&send_inv(stag));
    completions(&mut t.qp);
    let mut again = send_inv(stag);
    again[13] = 2;
    t.refuses(&again, 0x0109, 18, "err_invalidate");
}

#[test]
fn test_receiver_invalidates_region_of_its_own_queue_pair() {
    let mut t = Target::new();
    let access = Access::REMOTE_INVALIDATE;
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 8, access).unwrap().stag;
    t.accepts(&send_inv(stag));
    assert_eq!(completions(&mut t.qp)[0].invalidated, Some(stag));
    assert!(t.mrs.check(PD, QPN, stag, 0, 8, Access::NONE).is_err());
}

/// Only the end of the message invalidates.
#[test]
fn test_receiver_does_not_invalidate_before_the_last_segment() {
    let mut t = Target::new();
    let access = Access::REMOTE_INVALIDATE;
    let stag = t.mrs.register_for_qp(PD, QPN, 0, 0, 8, access).unwrap().stag;
    let mut s = send_inv(stag);
    s[0] &= !0x40;
    t.accepts(&s);
    assert!(t.mrs.check(PD, QPN, stag, 0, 8, Access::NONE).is_ok());
}

/// Returns a responder that would take a Send as "ready to receive".
fn expecting() -> Target {
    let rtr = RtrConfig::Expect(RtrSet::ALL);
    Target::with(QpConfig { role: Role::Responder, rtr, ..QpConfig::default() })
}

/// A single Send without bytes says "ready"; a Send that has bytes, asks for an event, or goes on
/// does not.
#[test]
fn test_first_send_is_a_message_unless_it_is_a_bare_indication() {
    let bare = |opcode| untagged(opcode, true, 0, 1, 0);
    let mut t = expecting();
    t.accepts(&bare(Opcode::SEND));
    assert_eq!((completions(&mut t.qp).len(), t.qp.counters().rtr), (0, 1));
    for (segments, len, solicited) in [
        (vec![send(1, 0, true, 8)], 8, false),
        (vec![bare(Opcode::SEND_SE)], 0, true),
        (vec![send(1, 0, false, 0), send(1, 0, true, 4)], 4, false),
    ] {
        let mut t = expecting();
        for s in &segments {
            t.accepts(s);
        }
        let got = completions(&mut t.qp);
        let got: Vec<_> = got.iter().map(|c| (c.wr_id, c.len, c.solicited)).collect();
        assert_eq!(got, [(100, len, solicited)]);
    }
    // The QP counts no other first message as "ready" either.
    let unfinished = tagged(Opcode::WRITE, false, expecting().all, TO);
    for s in [send(1, 0, true, 8), bare(Opcode::SEND_SE), send(1, 0, false, 0), unfinished] {
        let mut t = expecting();
        t.accepts(&s);
        assert_eq!(t.qp.counters().rtr, 0);
    }
    for (len, rtr) in [(0, 1), (8, 0)] {
        let mut t = expecting();
        t.accepts(&write(t.all, TO, len));
        assert_eq!(t.qp.counters().rtr, rtr);
    }
    // With another number or offset, such a Send is as wrong as any other message.
    expecting().refuses(&untagged(Opcode::SEND, true, 0, 2, 0), 0x1203, 18, "err_msn");
    expecting().refuses(&untagged(Opcode::SEND, true, 0, 1, 4), 0x1204, 18, "err_offset");
}
