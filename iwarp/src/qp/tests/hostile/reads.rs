//! Read Requests and Read Responses.

use super::*;
use heddle_types::{CqeStatus, Sge};

fn refused_read(t: &mut Target, s: &[u8], code: u16, counter: &str) {
    t.refuses(s, code, 46, counter);
}

#[test]
fn test_responder_refuses_read_request_for_unknown_stag() {
    let s = read_request(1, Stag(0x55), TO, 8);
    refused_read(&mut Target::new(), &s, 0x0100, "err_stag");
}

#[test]
fn test_responder_refuses_read_request_for_region_of_another_pd_or_qp() {
    for (pd, qpn) in [(Pd(4), QPN), (PD, Qpn(6))] {
        let mut t = Target::new();
        let stag = t.mrs.register_for_qp(pd, qpn, 0, 0, 100, rights()).unwrap().stag;
        let s = read_request(1, stag, 0, 8);
        refused_read(&mut t, &s, 0x0103, "err_association");
    }
}

#[test]
fn test_responder_refuses_read_request_without_the_right() {
    let mut t = Target::new();
    let stag = t.region(Access::LOCAL_WRITE.with(Access::REMOTE_WRITE));
    let s = read_request(1, stag, TO, 8);
    refused_read(&mut t, &s, 0x0102, "err_access");
    let mut t = Target::new();
    let stag = t.region(Access::REMOTE_READ);
    t.accepts(&read_request(1, stag, TO, 8));
}

#[test]
fn test_responder_refuses_read_request_past_the_bounds() {
    let end = TO + u64::from(LEN);
    for (to, n) in [(TO - 1, 1), (end - 7, 8), (end, 1), (TO, 1001), (TO, u32::MAX)] {
        let mut t = Target::new();
        let s = read_request(1, t.all, to, n);
        refused_read(&mut t, &s, 0x0101, "err_bounds");
    }
    for (to, n) in [(TO, 1), (end - 8, 8), (TO, 1000)] {
        let mut t = Target::new();
        let s = read_request(1, t.all, to, n);
        t.accepts(&s);
    }
}

#[test]
fn test_responder_refuses_read_request_whose_offset_wraps() {
    let mut t = Target::new();
    let s = read_request(1, t.all, u64::MAX - 6, 8);
    refused_read(&mut t, &s, 0x0104, "err_wrap");
    let mut t = Target::new();
    let s = read_request(1, t.all, u64::MAX - 8, 8);
    refused_read(&mut t, &s, 0x0101, "err_bounds");
}

#[test]
fn test_responder_answers_empty_read_without_checking_its_stag() {
    let mut t = Target::new();
    t.accepts(&read_request(1, Stag(1), u64::MAX, 0));
    assert_eq!(t.transmit(), [framed(&tagged(Opcode::READ_RESPONSE, true, Stag(6), 99), true)]);
}

#[test]
fn test_responder_answers_read_with_the_contents_of_memory() {
    let mut t = Target::new();
    t.mem.write(1000, b"heddle");
    let s = read_request(1, t.all, TO, 6);
    t.accepts(&s);
    let want = cat(&tagged(Opcode::READ_RESPONSE, true, Stag(6), 99), b"heddle");
    assert_eq!(t.transmit(), [framed(&want, true)]);
}

#[test]
fn test_responder_refuses_read_request_beyond_the_ird() {
    let mut t = Target::new();
    for msn in 1..=2 {
        let s = read_request(msn, t.all, TO, 8);
        t.accepts(&s);
    }
    let s = read_request(3, t.all, TO, 8);
    t.refuses(&s, 0x1202, 18, "err_no_buffer");
    // The QP has room again after it has answered a Read.
    let mut t = Target::new();
    for msn in 1..=20 {
        let s = read_request(msn, t.all, TO, 8);
        t.accepts(&s);
        assert_eq!(t.transmit().len(), 1);
    }
}

#[test]
fn test_responder_refuses_every_read_request_with_an_ird_of_zero() {
    let config = QpConfig { ird: 0, ..QpConfig::default() };
    for size in [0, 8] {
        let mut t = Target::with(config.clone());
        let s = read_request(1, t.all, TO, size);
        t.refuses(&s, 0x1202, 18, "err_no_buffer");
    }
}

#[test]
fn test_responder_refuses_read_request_with_msn_out_of_range() {
    for msn in [0, 2, u32::MAX] {
        let mut t = Target::new();
        let s = read_request(msn, t.all, TO, 8);
        t.refuses(&s, 0x1203, 18, "err_msn");
    }
}

#[test]
fn test_responder_refuses_malformed_read_request() {
    let full = |t: &Target| read_request(1, t.all, TO, 8);
    let mut t = Target::new();
    let s = full(&t);
    t.refuses(&s[..45], 0x0207, 18, "err_malformed");
    let mut t = Target::new();
    let s = cat(&full(&t), &[0]);
    t.refuses(&s, 0x1205, 18, "err_too_long");
    let mut t = Target::new();
    let mut s = full(&t);
    s[0] &= !0x40;
    t.refuses(&s, 0x0207, 18, "err_malformed");
    let mut t = Target::new();
    let mut s = full(&t);
    s[17] = 4;
    t.refuses(&s, 0x1204, 18, "err_offset");
}

/// The owner unregisters the region after the QP accepted the request: the QP reads nothing more,
/// and the Terminate says how far the answer had got.
#[test]
fn test_responder_terminates_if_read_source_is_unregistered_midway() {
    for sent in [0u32, 1, 2] {
        let mut t = Target::new();
        let stag = t.mrs.register(PD, ADDR, TO, LEN.into(), Access::REMOTE_READ).unwrap().stag;
        t.accepts(&read_request(1, stag, TO, 900));
        let env = QpEnv { mem: &t.mem, mrs: &t.mrs, snapshots_full: false, posted: None };
        for _ in 0..sent {
            t.qp.poll_transmit(&env, 314).unwrap();
        }
        t.mrs.deregister(stag).unwrap();
        let posted = t.posted();
        let fpdu = {
            let env = QpEnv { mem: &t.mem, mrs: &t.mrs, snapshots_full: false, posted: None };
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
        assert_eq!(t.qp.state(), ConnectedState::Terminate);
        assert!(t.transmit().is_empty());
    }
}

#[test]
fn test_read_response_is_placed_and_completes_its_read() {
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
fn test_reader_refuses_response_to_another_place() {
    let mut t = Target::with_read();
    let s = response(Stag(t.all.0 ^ 0x100), TO, true, 200);
    t.refuses(&s, 0x1100, 14, "err_response");
    for to in [TO + 1, TO - 1, 0] {
        let mut t = Target::with_read();
        let s = response(t.all, to, true, 200);
        t.refuses(&s, 0x1101, 14, "err_response");
    }
    let mut t = Target::with_read();
    let stag = t.all;
    t.accepts(&response(stag, TO, false, 100));
    t.refuses(&response(stag, TO, true, 100), 0x1101, 14, "err_response");
}

#[test]
fn test_reader_refuses_response_of_another_length() {
    let mut t = Target::with_read();
    let s = response(t.all, TO, true, 201);
    t.refuses(&s, 0x1101, 14, "err_response");
    for n in [0, 199] {
        let mut t = Target::with_read();
        let s = response(t.all, TO, true, n);
        t.refuses(&s, 0x0207, 14, "err_response");
    }
    let mut t = Target::with_read();
    let stag = t.all;
    t.accepts(&response(stag, TO, false, 200));
    assert!(completions(&mut t.qp).is_empty(), "the message has not ended");
    t.accepts(&response(stag, TO + 200, true, 0));
    assert_eq!(completions(&mut t.qp).len(), 1);
}

#[test]
fn test_reader_refuses_second_response_to_one_read() {
    let mut t = Target::with_read();
    let s = response(t.all, TO, true, 200);
    t.accepts(&s);
    t.refuses(&s, 0x0206, 14, "err_opcode");
}

#[test]
fn test_reader_refuses_response_if_its_sink_was_unregistered() {
    let mut t = Target::with_read();
    let stag = t.all;
    t.mrs.deregister(stag).unwrap();
    let s = response(stag, TO, true, 200);
    let copied = cat(&214u16.to_be_bytes(), &s[..14]);
    let special = [(1, CqeStatus::LocalProtection)];
    let code = 0x1100;
    t.refuses_raw_but(&framed(&s, true), code, 0xc0, &copied, "err_stag", &special);
}

/// Only the response may write to the sink.
#[test]
fn test_reader_refuses_write_to_sink_without_remote_write() {
    let mut t = Target::new();
    let stag = t.region(Access::LOCAL_WRITE);
    let sges = [Sge { stag, to: TO, len: 8 }];
    t.qp.post_send(&SendWr::read(1, &sges, Stag(77), 0)).unwrap();
    assert_eq!(t.transmit().len(), 1);
    t.refuses(&write(stag, TO, 8), 0x1100, 14, "err_access");
}
