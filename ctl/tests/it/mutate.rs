//! Start-ups and FPDUs, damaged at random and cut into segments at random. Nothing panics, no byte
//! is written where the peer has no right, nothing is left behind, and a connection that keeps to
//! the rules goes on. A failure repeats from the seed that it prints.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use crate::common::*;
use heddle_base::{Random, Seed};
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::rdmap::{Control, Opcode, ReadRequest};
use heddle_types::ConnId;
use heddle_verbs::{AcceptParams, Access, CmEvent, EventQueue};

fn below(r: &mut Random, n: usize) -> usize {
    r.below(n as u64) as usize
}

/// Changes, removes or inserts a few bytes, or none.
fn spoil(r: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..below(r, 4) {
        if bytes.is_empty() {
            return;
        }
        let at = below(r, bytes.len());
        match below(r, 4) {
            0 => bytes[at] = r.next_u64() as u8,
            1 => bytes[at] ^= 1 << below(r, 8),
            2 => bytes.truncate(at),
            _ => bytes.insert(at, r.next_u64() as u8),
        }
    }
}

/// Sends `bytes` in pieces, and then perhaps a FIN or a reset.
fn put(net: &mut Net, r: &mut Random, conn: ConnId, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = 1 + below(r, rest.len());
        net.peer.send(conn, &rest[..n]);
        if r.chance(0.5) {
            net.settle();
        }
        rest = &rest[n..];
    }
    net.settle();
    match below(r, 3) {
        0 => net.peer.stack.close(conn),
        1 => net.peer.stack.abort(conn),
        _ => {}
    }
    net.settle();
}

/// Makes the peer forget a connection. We have fewer places than the tests make connections, so a
/// connection that we do not forget shows.
fn clean_up(net: &mut Net, conn: ConnId) {
    net.peer.stack.abort(conn);
    net.peer.stack.release(conn);
    net.peer.events.clear();
    net.settle();
}

/// Accepts or rejects every request.
fn answer(net: &Net, events: &EventQueue, accept: impl Fn() -> Option<AcceptParams>) {
    while let Some(e) = events.poll() {
        if let CmEvent::ConnectRequest { id, .. } = e {
            match accept() {
                Some(params) => net.us.device().accept(id, params).unwrap(),
                None => net.us.device().reject(id, b"no".to_vec()).unwrap(),
            }
        }
    }
}

#[test]
fn test_corrupted_requests_harm_no_other_connection() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let good = listen(&mut net, 80, |_| {});
    let mut honest = Honest::new(&mut net, 80, &good);
    for seed in 0..300 {
        let mut r = Random::new(&Seed::from_u64(seed));
        let conn = net.tcp(PORT);
        let mut bytes = request(&vec![7; below(&mut r, 40)]);
        spoil(&mut r, &mut bytes);
        put(&mut net, &mut r, conn, &bytes);
        let end = End::new(&net.us);
        end.post_recv(1, 0, 64);
        let params = AcceptParams::new(end.qp.clone());
        answer(&net, &events, || r.clone().chance(0.5).then(|| params.clone()));
        net.settle();
        put(&mut net, &mut r, conn, &bytes);
        end.assert_untouched(&format!("seed {seed}"));
        clean_up(&mut net, conn);
        if seed % 10 == 0 {
            honest.exchange(&mut net);
        }
    }
    // A peer that sent too little has run into its time-out by now.
    net.pass(6000 * MS);
    answer(&net, &events, || None);
    net.pass(25_000 * MS);
    honest.exchange(&mut net);
    let c = net.ctl().cm;
    assert!(c.startup_errors > 20 && c.established > 20, "{c:?}");
}

#[test]
fn test_corrupted_fpdus_harm_no_other_connection() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let good = listen(&mut net, 80, |_| {});
    let mut honest = Honest::new(&mut net, 80, &good);
    for seed in 0..300 {
        let mut r = Random::new(&Seed::from_u64(seed));
        let bad = Honest::new(&mut net, PORT, &events);
        let guard = [
            region(&net.us, bad.end.pd, Access::REMOTE_READ),
            region(&net.us, bad.end.pd, Access::NONE),
            region(
                &net.us,
                net.us.device().alloc_pd().unwrap(),
                Access::REMOTE_WRITE.with(Access::REMOTE_READ),
            ),
        ];
        bad.end.post_recv(1, 0, 64);
        bad.end.post_recv(2, 64, 64);
        let mut stream = Vec::new();
        let (mut sends, mut reads) = (0, 0);
        for _ in 0..1 + below(&mut r, 5) {
            let mr = [&bad.end.mr, &guard[0], &guard[1], &guard[2]][below(&mut r, 4)];
            let to = mr.to() + r.below(REGION as u64 + 8);
            let mut ulpdu = vec![0; 18];
            match below(&mut r, 3) {
                0 => {
                    sends += 1;
                    send_header(sends).emit(&mut ulpdu);
                    ulpdu.resize(18 + below(&mut r, 70), 0x55);
                }
                1 => {
                    let rsvd_ulp = Control::new(Opcode::WRITE).to_byte();
                    ulpdu.truncate(14);
                    DdpHeader::Tagged { last: true, rsvd_ulp, stag: mr.stag(), to }
                        .emit(&mut ulpdu);
                    ulpdu.resize(14 + below(&mut r, 70), 0x55);
                }
                _ => {
                    reads += 1;
                    untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, reads, 0).emit(&mut ulpdu);
                    let (sink_stag, sink_to) = (mr.stag(), to);
                    let (size, src_stag, src_to) = (r.below(5000) as u32, mr.stag(), to);
                    let read = ReadRequest { sink_stag, sink_to, size, src_stag, src_to };
                    ulpdu.extend(read.emit());
                }
            }
            // With a right CRC the damage gets through to DDP and RDMAP.
            if r.chance(0.5) {
                spoil(&mut r, &mut ulpdu);
            }
            let mut fpdu = Vec::new();
            heddle_iwarp::mpa::fpdu::append(&ulpdu, true, &mut fpdu).unwrap();
            if r.chance(0.2) {
                spoil(&mut r, &mut fpdu);
            }
            stream.extend(fpdu);
        }
        put(&mut net, &mut r, bad.conn, &stream);
        for mr in &guard {
            assert_untouched(mr, &format!("seed {seed}"));
        }
        clean_up(&mut net, bad.conn);
        net.until("the end", |_| {
            let event = events.poll()?;
            assert!(matches!(event, CmEvent::Disconnected { .. }), "seed {seed}: {event:?}");
            Some(())
        });
        net.settle();
        let done = bad.end.completions();
        let mut ids: Vec<_> = done.iter().map(|c| c.wr_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2], "seed {seed}: {done:?}");
        if seed % 10 == 0 {
            honest.exchange(&mut net);
        }
    }
    let q = net.worker().engine.qps;
    assert!(q.err_crc > 5 && q.err_bounds > 5 && q.err_access > 5 && q.rx_sends > 50, "{q:?}");
    honest.exchange(&mut net);
}
