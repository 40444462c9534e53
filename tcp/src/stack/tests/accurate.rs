//! Accurate ECN (RFC 9768) through the stack: trains, runs of frames, half-open connections.

use super::*;
use crate::Timestamps;

/// The bits of ECN that say `n`.
fn ace(n: u16) -> Flags {
    Flags((n & 7) << 6)
}

/// Completes a handshake with accurate ECN and timestamps. Returns the connection, our next number and
/// our clock.
fn agreed(b: &mut Stack<ByteQueue>) -> (ConnId, u32, u32) {
    let timestamps = Some(Timestamps { val: 1, ecr: 0 });
    let open = TxSegment { timestamps, flags: Flags::SYN.with(Flags::ACE), ..syn(100) };
    b.handle_frame(ms(1), &tcp_frame((A, 1000), (B, PORT), &open, b"")[..]);
    let answer = frames(b, ms(1));
    let (_, seg) = read_tcp(&answer[0]);
    assert_eq!(seg.flags, Flags::SYN.with(Flags::ACK).with(ace(0b010)));
    assert_eq!(crate::wire::tcp::rare_options(&answer[0][34..]).counts.unwrap().fields, [1, 0, 1]);
    let (next, clock) = (seg.seq.0.wrapping_add(1), seg.timestamps.unwrap().val);
    b.handle_frame(ms(1), &from_a(101, next, 2, clock, b"")[..]);
    let [(id, StackEvent::Accepted { .. })] = events(b)[..] else { panic!("accepted") };
    (id, next, clock)
}

/// Returns a frame of A whose field ACE is `n`.
fn from_a(seq: u32, ack: u32, n: u16, ecr: u32, data: &[u8]) -> Vec<u8> {
    let timestamps = Some(Timestamps { val: 2, ecr });
    let seg = TxSegment { timestamps, ..segment(seq, ack, Flags::ACK.with(ace(n))) };
    tcp_frame((A, 1000), (B, PORT), &seg, data)
}

/// Each segment of a train has the same count. A port that cuts trains may clear CWR, one of the bits.
#[test]
fn test_trains_have_the_count_and_none_cut_by_the_port_has_cwr() {
    // The field is 5 without marks: AE and ECE. Then 6: AE and CWR.
    for (marks, bits) in [(0, 5), (1, 6)] {
        for by_port in [false, true] {
            let mut b = listening_b(4);
            let (id, next, clock) = agreed(&mut b);
            for n in 0..marks {
                let mut f = from_a(101 + 10 * n, next, 5, clock, &[1; 10]);
                mark(&mut f);
                let FrameOutcome::Conn { payload: Some(p), .. } = b.handle_frame(ms(2), &f[..])
                else {
                    panic!("data")
                };
                b.accept_payload(ms(2), id, p.pos, p.len);
            }
            let acks = frames(&mut b, ms(2));
            assert_eq!(acks.len(), usize::try_from(marks).unwrap());
            b.user_mut(id).unwrap().push(&[7; 14_000]);
            b.notify_send(id);
            let mut frame = TxFrame::default();
            let train = Train { segments: 8, by_port };
            let sent = b.poll_transmit_into(ms(2), train, &mut frame);
            assert_eq!(sent > 1, !(by_port && bits == 6), "{by_port} {bits}: {sent}");
            let flags = Flags(u16::from_be_bytes([frame.header[46], frame.header[47]]) & 0x1ff);
            assert_eq!(flags, Flags::ACK.with(ace(bits)));
        }
    }
}

/// Sets CE in a frame whose checksum of IPv4 must stay right.
fn mark(frame: &mut [u8]) {
    let sum = u16::from_be_bytes([frame[24], frame[25]]);
    frame[15] |= 3;
    let sum = Sum::from_folded(!sum).add_u16(3).complement();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Frames make a run if their counts and codepoints are the same, and the connection expects the count.
#[test]
fn test_frames_with_different_counts_make_no_run() {
    for (counts, marked, runs) in [
        ([5, 5, 5], None, vec![3]),
        ([5, 6, 6], None, vec![1, 1, 1]),
        ([6, 6, 6], None, vec![1, 2]),
        ([5, 5, 5], Some(1), vec![1, 1, 1]),
        ([5, 5, 5], Some(2), vec![2, 1]),
    ] {
        let mut b = listening_b(4);
        let (id, next, clock) = agreed(&mut b);
        b.user_mut(id).unwrap().push(&[7; 500]);
        b.notify_send(id);
        frames(&mut b, ms(2));
        let burst: Vec<_> = (0..3)
            .map(|n: usize| {
                let seq = 101 + 100 * u32::try_from(n).unwrap();
                let mut f = from_a(seq, next + 500, counts[n], clock, &[1; 100]);
                if marked == Some(n) {
                    mark(&mut f);
                }
                f
            })
            .collect();
        let mut left = burst.iter().map(|f| Some(&f[..])).collect::<Vec<_>>();
        let mut found = Vec::new();
        while !left.is_empty() {
            let run = b.handle_frames(ms(3), &mut left);
            let FrameOutcome::Conn { payload: Some(p), .. } = run.outcome else {
                panic!("{run:?}")
            };
            b.accept_payload(ms(3), id, p.pos, p.len * (run.frames - 1) + run.last);
            found.push(run.frames);
            left.drain(..run.frames as usize);
        }
        assert_eq!(found, runs, "{counts:?} {marked:?}");
        let c = b.conn(id).unwrap().counters();
        assert_eq!(c.ce_reported, u64::from(counts[2] - 5), "{counts:?}");
        assert_eq!(c.ce_segments, u64::from(marked.is_some()));
    }
}

/// An answer to a stranger's segment for a half-open connection has the first count: 0 would look like
/// a path that clears the field.
#[test]
fn test_challenge_of_a_half_open_connection_has_the_first_count() {
    let mut b = listening_b(4);
    let open = TxSegment { flags: Flags::SYN.with(Flags::ACE), ..syn(100) };
    b.handle_frame(ms(1), &tcp_frame((A, 1000), (B, PORT), &open, b"")[..]);
    frames(&mut b, ms(1));
    let stray = segment(102, 0, Flags::RST);
    b.handle_frame(ms(1), &tcp_frame((A, 1000), (B, PORT), &stray, b"")[..]);
    assert_eq!(read_tcp(&frames(&mut b, ms(1))[0]).1.flags, Flags::ACK.with(ace(5)));
}
