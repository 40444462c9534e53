#![allow(clippy::cast_possible_truncation, reason = "bytes that count up and wrap")]
use super::pool::{COPY_BUF, SPARE_BUFS};
use super::*;

struct Frame(Vec<u8>);

impl Chunks for Frame {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        self.0.chunk_at(off)
    }
}

fn frame(first: u8, len: usize) -> Frame {
    Frame((0..len).map(|i| first.wrapping_add(i as u8)).collect())
}

fn ready(h: &HeldBytes<Frame>) -> Vec<u8> {
    let mut v = Vec::new();
    h.ready().for_each_chunk(0, usize::MAX, |c| v.extend_from_slice(c));
    v
}

fn pool() -> HoldPool<Frame> {
    HoldPool::new(4096, 0)
}

/// Returns the number of buffers that a connection keeps, charged or not: its real cost.
fn buffers(h: &HeldBytes<Frame>, p: &mut HoldPool<Frame>) -> usize {
    let mut n = h.lists().ready.len();
    for mut run in h.lists().ahead.clone() {
        // The only way to look at a piece is to take it out and put it back.
        let mut again: Option<Run> = None;
        while let Some(held) = p.pop(&mut run) {
            n += 1;
            let one = p.run(held);
            match &mut again {
                None => again = Some(one),
                Some(all) => assert!(!p.concat(all, one), "two copies could have been one"),
            }
        }
    }
    n
}

#[test]
fn test_ready_joins_frames_and_copies_small_ones() {
    let (mut h, mut p) = (HeldBytes::default(), pool());
    h.push_ready(&mut p, StreamPos(0), frame(0, 600), 10, 590);
    h.push_ready(&mut p, StreamPos(590), frame(1, 3), 0, 3);
    h.push_ready(&mut p, StreamPos(593), frame(9, 2), 0, 2);
    assert_eq!((h.charged(), p.used(), h.ready().len()), (1, 1, 595));
    h.consume(&mut p, 588);
    assert_eq!(ready(&h), [86, 87, 1, 2, 3, 9, 10]);
    h.consume(&mut p, 4);
    assert_eq!((ready(&h), p.used()), (vec![3, 9, 10], 0));
    h.consume(&mut p, 3);
    assert!(h.is_empty());
}

#[test]
fn test_bytes_of_overlapping_segments_are_kept_once() {
    let (mut h, mut p) = (HeldBytes::default(), pool());
    let kept = |len, copied| Ok(HeldPart { len, copied });
    let push = |h: &mut HeldBytes<Frame>, p: &mut HoldPool<Frame>, pos, first, len| {
        h.push_ahead(p, StreamPos(pos), frame(first, len), 0, len).map_err(|_| ())
    };
    assert_eq!(push(&mut h, &mut p, 1000, 0, 700), kept(700, 0));
    // Up to the run that is held; then nothing new; then after the run.
    assert_eq!(push(&mut h, &mut p, 900, 156, 600), kept(100, 100));
    assert_eq!(push(&mut h, &mut p, 950, 206, 20), kept(20, 0));
    assert_eq!(push(&mut h, &mut p, 1690, 178, 20), kept(20, 10));
    assert_eq!(h.close_gap(&mut p, StreamPos(899)), 0);
    assert_eq!(h.close_gap(&mut p, StreamPos(905)), 805);
    let want: Vec<u8> = (905..1710).map(|p: usize| (p + 24) as u8).collect();
    assert_eq!(ready(&h), want);
    assert!(!h.has_ahead());
    h.clear(&mut p);
    assert_eq!((p.used(), p.spare()), (0, SPARE_BUFS));
}

/// For a window of frames beyond one gap, the connection keeps all frames and finds every byte.
#[test]
fn test_held_window_becomes_ready_when_its_one_gap_closes() {
    const LEN: usize = 1448;
    let (mut h, mut p) = (HeldBytes::default(), pool());
    for i in (1..700).rev() {
        let first = (i * LEN) as u8;
        assert!(
            h.push_ahead(&mut p, StreamPos((i * LEN) as u64), frame(first, LEN), 0, LEN).is_ok()
        );
    }
    assert_eq!((h.charged(), h.ready_len()), (699, 0));
    h.push_ready(&mut p, StreamPos(0), frame(0, LEN), 0, LEN);
    assert_eq!(p.used(), 700, "nothing was copied");
    assert_eq!(h.close_gap(&mut p, StreamPos(LEN as u64)), 699 * LEN);
    h.consume(&mut p, 1000);
    for off in (0..700 * LEN - 1000).step_by(97) {
        assert_eq!(h.ready().chunk_at(off)[0], (1000 + off) as u8);
    }
    assert!(h.ready().chunk_at(700 * LEN - 1000).is_empty());
    h.consume(&mut p, 700 * LEN);
    assert!(h.is_empty() && h.charged() == 0 && p.used() == 0);
}

#[test]
fn test_in_order_bytes_are_always_taken_and_copied_beyond_the_budget() {
    let (mut h, mut p) = (HeldBytes::default(), HoldPool::new(8, 0));
    for i in 0..40 {
        let copied = h.push_ready(&mut p, StreamPos(i * 1400), frame(0, 1400), 0, 1400);
        assert_eq!(copied, if i < 4 { 0 } else { 1400 }, "half of the budget is for frames");
    }
    assert_eq!((h.charged(), p.used(), h.ready_len()), (4, 4, 56_000));
    assert!(buffers(&h, &mut p) <= 4 + 36 * 1400 / COPY_BUF + 2);
    h.consume(&mut p, 56_000);
    assert!(h.is_empty() && p.used() == 0);
}

#[test]
fn test_stream_always_inside_an_fpdu_keeps_two_buffers() {
    let (mut h, mut p) = (HeldBytes::default(), pool());
    let mut pos = StreamPos(0);
    for i in 0..100_000u32 {
        h.push_ready(&mut p, pos, frame(i as u8, 100), 0, 100);
        pos += 100;
        // All but the last 30 bytes were whole FPDUs.
        h.consume(&mut p, h.ready_len() - 30);
        assert!(h.lists().ready.len() <= 2, "{i}");
        assert_eq!(ready(&h), (70..100).map(|k| (i + k) as u8).collect::<Vec<_>>());
    }
}

/// Returns the positions `1..=n` in the order that `which` names.
fn order(which: &str, n: u64) -> Vec<u64> {
    let mut at: Vec<u64> = (1..=n).collect();
    match which {
        "descending" => at.reverse(),
        "odd, then even" => at.sort_by_key(|p| (p % 2 == 0, *p)),
        "random" => {
            let mut random = heddle_base::Random::new(&heddle_base::Seed::from_u64(7));
            for i in (1..at.len()).rev() {
                at.swap(i, random.below(i as u64 + 1) as usize);
            }
        }
        _ => {}
    }
    at
}

/// A peer sends one byte at a time beyond a gap, in every order: the connection keeps no more than
/// the bytes need, each segment costs little however many came before, and the bytes come out
/// right.
#[test]
fn test_tiny_segments_ahead_of_a_gap_cost_little_in_any_order() {
    const N: u64 = 20_000;
    for which in ["ascending", "descending", "odd, then even", "random"] {
        let (mut h, mut p) = (HeldBytes::default(), pool());
        let (most, mut refused) = (core::cell::Cell::new(0), Vec::new());
        let send = |h: &mut HeldBytes<Frame>, p: &mut HoldPool<Frame>, at: u64| {
            let before = p.work;
            let taken = h.push_ahead(p, StreamPos(at), frame(at as u8, 1), 0, 1);
            assert!(
                p.work - before <= (COPY_BUF + MAX_RUNS) as u64,
                "{which}: {}",
                p.work - before
            );
            assert!(h.lists().ahead.len() <= MAX_RUNS && h.charged() == p.used());
            most.set(most.get().max(h.charged()));
            taken.is_ok()
        };
        for at in order(which, N) {
            if !send(&mut h, &mut p, at) {
                refused.push(at);
            }
        }
        assert!(most.get() <= N as usize / COPY_BUF + 2 + MAX_RUNS, "{which}: {most:?} buffers");
        assert_eq!(buffers(&h, &mut p), h.charged(), "{which}");
        // The peer retransmits the bytes that were refused for too many gaps, until none are left.
        while !refused.is_empty() {
            let before = refused.len();
            refused.retain(|&at| !send(&mut h, &mut p, at));
            assert!(refused.len() < before, "{which}: no progress");
        }
        assert_eq!((h.lists().ahead.len(), h.charged()), (1, N as usize / COPY_BUF + 1), "{which}");
        assert_eq!(h.close_gap(&mut p, StreamPos(1)), N as usize);
        // The bytes may belong to an FPDU that never becomes whole: their buffers stay charged.
        assert_eq!(h.charged(), N as usize / COPY_BUF + 1, "{which}");
        assert_eq!(ready(&h), (1..=N).map(|i| i as u8).collect::<Vec<_>>(), "{which}");
        h.clear(&mut p);
        assert_eq!(p.used(), 0, "{which}");
    }
}

/// Bytes in order join bytes beyond gaps, again and again within one FPDU: the bytes go into shared
/// buffers, each charged at most once.
#[test]
fn test_ready_copies_share_buffers_however_they_became_ready() {
    let (mut h, mut p) = (HeldBytes::default(), pool());
    let mut next = StreamPos(0);
    for i in 0..10_000u64 {
        let at = StreamPos(2 * i + 1);
        assert!(h.push_ahead(&mut p, at, frame(at.0 as u8, 1), 0, 1).is_ok());
        h.push_ready(&mut p, next, frame(next.0 as u8, 1), 0, 1);
        next += 1;
        next += h.close_gap(&mut p, next) as u64;
        assert_eq!(next.0, 2 * i + 2);
        assert!(h.lists().ready.len() <= next.0 as usize / COPY_BUF + 1);
    }
    assert_eq!(ready(&h), (0..20_000u64).map(|i| i as u8).collect::<Vec<_>>());
    assert!(p.used() <= buffers(&h, &mut p), "{} buffers", p.used());
    h.clear(&mut p);
    assert_eq!(p.used(), 0);
}

/// Returns the number of frames that a connection gets of a window of `n` full frames beyond its
/// gap.
fn window(h: &mut HeldBytes<Frame>, p: &mut HoldPool<Frame>, n: u64) -> usize {
    (1..=n)
        .filter(|i| h.push_ahead(p, StreamPos(i * 1448), frame(0, 1448), 0, 1448).is_ok())
        .count()
}

#[test]
fn test_connections_with_gaps_leave_a_share_for_the_next() {
    let mut p = pool();
    let mut greedy: Vec<_> = (0..24).map(|_| HeldBytes::default()).collect();
    // The connections take turns, and ask for more than there is for all of them.
    for i in 1..=700 {
        for h in &mut greedy {
            let _ = h.push_ahead(&mut p, StreamPos(i * 1448), frame(0, 1448), 0, 1448);
        }
    }
    assert!(greedy.iter().all(|h| (163..=164).contains(&h.charged())), "each a 25th");
    let mut late = HeldBytes::default();
    assert_eq!(window(&mut late, &mut p, 70), 70);
    assert!(p.used() <= 4096);
    for h in &mut greedy {
        h.clear(&mut p);
    }
    let mut alone = HeldBytes::default();
    assert_eq!(window(&mut alone, &mut p, 725), 725, "a whole window when there is room");
}

#[test]
fn test_each_connection_gets_at_most_half_of_remaining_buffers() {
    let mut p = pool();
    let mut all: Vec<_> = (0..8).map(|_| HeldBytes::default()).collect();
    let got: Vec<_> = all.iter_mut().map(|h| window(h, &mut p, 10_000)).collect();
    assert_eq!(got, [2048, 1024, 512, 256, 128, 64, 32, 16]);
    assert!(p.used() < 4096);
}

#[test]
fn test_copies_are_charged_by_buffer_and_refused_beyond_the_budget() {
    let (mut h, mut p) = (HeldBytes::default(), HoldPool::new(8, 0));
    let mut byte = |h: &mut HeldBytes<Frame>, at: u64| {
        h.push_ahead(&mut p, StreamPos(at), frame(at as u8, 1), 0, 1).is_ok()
    };
    let stretch = COPY_BUF as u64;
    assert!((1..=4).all(|i| byte(&mut h, i * stretch)));
    assert!(!byte(&mut h, 5 * stretch), "half is the share of one connection");
    assert_eq!(h.charged(), 4);
    // A byte that needs no buffer of its own still finds room.
    assert!(byte(&mut h, stretch + 1) && !byte(&mut h, stretch - 1));
    h.clear(&mut p);
    assert_eq!(p.used(), 0);
}

#[test]
fn test_connection_holds_a_bounded_number_of_gaps() {
    let (mut h, mut p) = (HeldBytes::default(), pool());
    let taken = (0..2 * MAX_RUNS as u64)
        .filter(|i| h.push_ahead(&mut p, StreamPos(2 + 3 * i), frame(0, 1), 0, 1).is_ok())
        .count();
    assert_eq!((taken, h.lists().ahead.len()), (MAX_RUNS, MAX_RUNS));
}

#[test]
fn test_copied_bytes_are_counted_and_buffers_return_to_pool() {
    let (mut h, mut p) = (HeldBytes::default(), pool());
    assert_eq!(h.push_ready(&mut p, StreamPos(0), frame(0, 511), 0, 511), 511);
    assert_eq!(h.push_ready(&mut p, StreamPos(511), frame(0, 512), 0, 512), 0);
    let kept = h.push_ahead(&mut p, StreamPos(9000), frame(0, 511), 0, 511);
    assert!(matches!(kept, Ok(HeldPart { len: 511, copied: 511 })));
    let kept = h.push_ahead(&mut p, StreamPos(9511), frame(0, 512), 0, 512);
    assert!(matches!(kept, Ok(HeldPart { len: 512, copied: 0 })));
    assert_eq!((h.charged(), p.spare()), (3, SPARE_BUFS - 2));
    h.clear(&mut p);
    assert_eq!((p.used(), p.spare()), (0, SPARE_BUFS));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    /// For segments of any place and length, beyond gaps and in order, in any order, every byte
    /// that was taken comes out once and right, and the charge equals the held buffers.
    #[test]
    fn test_held_bytes_behave_as_a_stream_with_gaps(
        segments in proptest::collection::vec((0u64..9000, 1usize..1600, proptest::prelude::any::<bool>()), 1..80),
        limit in 0usize..40,
    ) {
        let (mut h, mut p) = (HeldBytes::default(), HoldPool::new(limit, 0));
        let byte = |pos: u64| (pos % 251) as u8;
        let make = |pos: u64, len: usize| Frame((0..len as u64).map(|i| byte(pos + i)).collect());
        let (mut next, mut taken) = (0u64, vec![false; 200_000]);
        let mut consumed = 0u64;
        for (at, len, eat) in segments {
            if at % 5 == 0 || at <= next {
                // In order, up to the bytes that are held already, as TCP delivers them.
                let len = taken[next as usize..][..len].iter().take_while(|t| !**t).count();
                h.push_ready(&mut p, StreamPos(next), make(next, len), 0, len);
                taken[next as usize..][..len].fill(true);
                next += len as u64;
                next += h.close_gap(&mut p, StreamPos(next)) as u64;
            } else if let Ok(kept) = h.push_ahead(&mut p, StreamPos(at), make(at, len), 0, len) {
                proptest::prop_assert!(kept.len <= len && kept.copied <= kept.len);
                taken[at as usize..][..kept.len].fill(true);
            }
            let (n, known) = (next as usize, consumed as usize);
            proptest::prop_assert!(!taken[n] && taken[known..n].iter().all(|t| *t));
            proptest::prop_assert_eq!(h.ready_len() as u64, next - consumed);
            let bytes: Vec<u8> = (consumed..next).map(byte).collect();
            proptest::prop_assert_eq!(ready(&h), bytes);
            proptest::prop_assert!(h.lists().ready.iter().all(|x| x.charged || x.is_copy()));
            let frames = h.lists().ready.iter().filter(|x| x.charged).count();
            let ahead: usize = buffers(&h, &mut p) - h.lists().ready.len();
            proptest::prop_assert_eq!(h.charged(), frames + ahead);
            proptest::prop_assert_eq!(p.used(), h.charged());
            proptest::prop_assert!(p.used() <= limit);
            if eat {
                let n = h.ready_len() / 2;
                h.consume(&mut p, n);
                consumed += n as u64;
            }
        }
        h.clear(&mut p);
        proptest::prop_assert_eq!(p.used(), 0);
    }
}

impl<F: Chunks + 'static> HeldBytes<F> {
    /// Returns the lists inside, or fresh ones if there are none yet.
    fn lists(&self) -> &Lists<F> {
        self.0.as_deref().unwrap_or_else(|| Box::leak(Box::default()))
    }
}

/// Returns an FPDU of a Write without payload, placed at `pos` of a stream that begins at 0.
fn placed(pos: u64) -> heddle_iwarp::PlacedFpdu {
    use heddle_iwarp::{QpConfig, QpContext, QpEnv, mpa};
    use heddle_mr::{MrTable, testing::TestMemory};
    let config = QpConfig { recv_markers: true, ..QpConfig::default() };
    let (mem, mrs) = (TestMemory::new(0, 0), MrTable::new(&heddle_base::Seed::from_u64(1), 1));
    let (mut plain, mut bytes) = (Vec::new(), Vec::new());
    let header = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    mpa::fpdu::append(&header, true, &mut plain).unwrap();
    mpa::markers::insert(&plain, pos, true, &mut bytes);
    let env = QpEnv { mem: &mem, mrs: &mrs, snapshots_full: false, posted: None };
    QpContext::new(&config).place_early(&env, StreamPos(pos), &&bytes[..], None).unwrap()
}

/// Placed FPDUs are bounded like buffers, for one connection and for all, and count as no buffer.
#[test]
fn test_placed_fpdus_are_bounded_and_come_out_in_order() {
    let mut p = HoldPool::new(100, 0);
    let mut all: Vec<HeldBytes<Frame>> = (0..3).map(|_| HeldBytes::default()).collect();
    let mut counts = Vec::new();
    for h in &mut all {
        let (mut pos, mut n) = (1000, 0);
        while h.has_room_for_placed(&p) {
            let fpdu = placed(pos);
            assert_eq!(n > 0, h.is_behind_placed(&p, StreamPos(pos)));
            h.push_placed(&mut p, StreamPos(pos), fpdu);
            pos += u64::from(fpdu.len());
            n += 1;
        }
        counts.push(n);
        assert_eq!((h.charged(), p.used()), (0, 0));
    }
    // Each connection gets half of what is left.
    assert_eq!(counts, [50, 25, 13]);
    assert_eq!(p.placed(), 88);
    let h = &mut all[0];
    assert!(h.pop_placed(&mut p, StreamPos(999)).is_none(), "there is a gap before it");
    // The bytes before the first FPDU have come; the bytes held after the last FPDU follow it.
    let end = (0..50).fold(1000, |at, _| at + u64::from(placed(at).len()));
    h.push_ahead(&mut p, StreamPos(end), frame(0, 600), 0, 600).ok().unwrap();
    let mut next = 1000;
    for _ in 0..50 {
        assert_eq!(h.close_gap(&mut p, StreamPos(next)), 0, "nothing passes one that is placed");
        let (pos, fpdu) = h.pop_placed(&mut p, StreamPos(next)).unwrap();
        assert_eq!(pos, StreamPos(next));
        next += u64::from(fpdu.len());
    }
    assert_eq!((next, p.placed()), (end, 38));
    assert_eq!((h.close_gap(&mut p, StreamPos(end)), ready(h).len()), (600, 600));
    for mut h in all {
        h.clear(&mut p);
    }
    assert_eq!((p.placed(), p.used()), (0, 0));
}

/// The pool counts a frame as one buffer, so it must not keep frames that are many.
#[test]
fn test_trains_are_copied_and_charged_by_what_they_take() {
    let (mut h, mut p) = (HeldBytes::default(), pool());
    let train = || frame(0, 45_000);
    let part =
        h.push_ahead(&mut p, StreamPos(50 * COPY_BUF as u64), train(), 66, 44_934).map_err(|_| ());
    assert_eq!(part, Ok(HeldPart { len: 44_934, copied: 44_934 }));
    assert_eq!((h.charged(), p.used()), (22, 22));
    // The end of a train that does not make a whole FPDU.
    let mut h = HeldBytes::default();
    assert_eq!(h.push_ready(&mut p, StreamPos(0), train(), 44_000, 1000), 1000);
    assert_eq!((h.charged(), h.ready().len()), (0, 1000));
    // A pool that is too small for a train refuses it and keeps nothing.
    let (mut h, mut small) = (HeldBytes::<Frame>::default(), HoldPool::new(20, 0));
    assert!(h.push_ahead(&mut small, StreamPos(9), train(), 0, 45_000).is_err());
    assert_eq!((small.used(), h.is_empty()), (0, true));
}
