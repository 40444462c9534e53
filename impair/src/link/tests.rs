use core::time::Duration;

use heddle_base::{Instant, Seed};
use proptest::prelude::*;

use super::Link;
use crate::frame::{Codepoint, ETHERNET, codepoint, ipv4, segment};

const MS: u64 = 1_000_000;

fn link(settings: &str) -> Link {
    Link::new(settings.parse().unwrap(), &Seed::from_u64(7))
}

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

/// Returns a frame of `len` bytes that carries its number.
fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Pops all frames, each when it is due: the times in nanoseconds, and the frames.
fn drain(link: &mut Link) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(due) = link.next() {
        assert_eq!(link.pop(at(due.as_nanos() - 1)), None);
        let (when, frame) = link.pop(due).unwrap();
        assert_eq!(when, due);
        all.push((due.as_nanos(), frame));
    }
    all
}

/// Pushes `count` frames of 1,000 bytes, one each `every` nanoseconds from `from` on, and pops
/// them: the times at which they were due, and their numbers.
fn pass(link: &mut Link, count: u32, from: u64, every: u64) -> Vec<(u64, u32)> {
    for n in 0..count {
        assert_eq!(link.push(at(from + u64::from(n) * every), &numbered(n, 1000)), None);
    }
    let number = |f: &[u8]| u32::from_be_bytes([f[14], f[15], f[16], f[17]]);
    drain(link).iter().map(|(due, frame)| (*due, number(frame))).collect()
}

#[test]
fn test_link_without_settings_delivers_every_frame_at_once() {
    let mut l = link("");
    let got = pass(&mut l, 100, 1, 10);
    assert_eq!(got, (0..100).map(|n| (1 + 10 * u64::from(n), n)).collect::<Vec<_>>());
    assert_eq!((l.counters().frames, l.counters().delivered), (100, 100));
    assert_eq!((l.counters().bytes, l.counters().delivered_bytes), (100_000, 100_000));
}

#[test]
fn test_delay_holds_each_frame_for_its_time() {
    let got = pass(&mut link("delay=5ms"), 3, 1, MS);
    assert_eq!(got, [(1 + 5 * MS, 0), (1 + 6 * MS, 1), (1 + 7 * MS, 2)]);
}

#[test]
fn test_rate_spaces_frames_by_their_length() {
    // 1,000 bytes take 80 microseconds, and wait for the frames before.
    let got = pass(&mut link("rate=100Mbit/s,delay=1ms"), 3, 1, 0);
    assert_eq!(got, [(1 + MS + 80_000, 0), (1 + MS + 160_000, 1), (1 + MS + 240_000, 2)]);
    // Slower than the rate, each frame takes its own time only.
    let got = pass(&mut link("rate=100Mbit/s"), 3, 1, 100_000);
    assert_eq!(got, [(80_001, 0), (180_001, 1), (280_001, 2)]);
}

#[test]
fn test_rate_loses_no_fraction_of_a_nanosecond() {
    // 1,000 bytes at 7 GB/s take 142 6/7 ns.
    let mut l = link("rate=7GB/s");
    let got = pass(&mut l, 7000, 1, 0);
    assert_eq!(got.last().unwrap().0, 1 + 1_000_000);
}

#[test]
fn test_queue_drops_the_frame_that_finds_no_room() {
    let mut l = link("rate=100Mbit/s,queue=3000");
    assert_eq!(pass(&mut l, 5, 1, 0).len(), 3);
    assert_eq!((l.counters().queue_dropped, l.counters().peak_queue), (2, 3000));
    // A frame has left after 80 microseconds, so another finds room; a byte more does not.
    let mut l = link("rate=100Mbit/s,queue=3000");
    (0..3).for_each(|n| assert_eq!(l.push(at(1), &numbered(n, 1000)), None));
    l.push(at(1 + 80_000), &numbered(3, 1001));
    assert_eq!(l.counters().queue_dropped, 1);
    l.push(at(1 + 80_000), &numbered(4, 1000));
    assert_eq!(l.counters().queue_dropped, 1);
    // The averages seen by the five frames: 0, 1000, 2000, 2000, 2000.
    assert_eq!(l.counters().queue_sum, 7000);
}

#[test]
fn test_mark_begins_at_the_threshold_and_only_where_the_sender_understands_it() {
    let mut l = link("rate=100Mbit/s,mark=2000");
    let frame = ipv4(1000 - 14, 2);
    (0..4).for_each(|_| assert_eq!(l.push(at(1), &frame), None));
    l.push(at(1), &ipv4(1000 - 14, 0));
    let ecn: Vec<u8> = drain(&mut l).iter().map(|(_, f)| f[ETHERNET + 1] & 3).collect();
    assert_eq!(ecn, [2, 2, 3, 3, 0]);
    assert_eq!(l.counters().marked, 2);
}

#[test]
fn test_ordered_jitter_keeps_order_and_stays_in_its_range() {
    let got = pass(&mut link("delay=1ms,jitter=1ms"), 2000, 1, 10_000);
    assert!(got.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 < w[1].1));
    let extra = |&(due, n): &(u64, u32)| due - (1 + MS + u64::from(n) * 10_000);
    assert!(got.iter().map(extra).all(|e| e <= MS));
    assert!(got.iter().map(extra).any(|e| e > MS / 2));
}

#[test]
fn test_unordered_jitter_changes_the_order() {
    let got = pass(&mut link("delay=1ms,jitter=1ms,unordered"), 2000, 1, 10_000);
    assert!(got.windows(2).any(|w| w[0].1 > w[1].1));
    let extra = |&(due, n): &(u64, u32)| due - (1 + MS + u64::from(n) * 10_000);
    let mean = got.iter().map(extra).sum::<u64>() / 2000;
    assert!((MS * 45 / 100..MS * 55 / 100).contains(&mean), "{mean}");
}

#[test]
fn test_reordered_frames_come_later_and_others_do_not_wait() {
    let mut l = link("delay=1ms,reorder=10%:2ms");
    let got = pass(&mut l, 2000, 1, 10_000);
    let late = got.iter().filter(|&&(due, n)| due == 1 + 3 * MS + u64::from(n) * 10_000).count();
    let punctual = got.iter().filter(|&&(due, n)| due == 1 + MS + u64::from(n) * 10_000).count();
    assert_eq!((late + punctual, late as u64), (2000, l.counters().reordered));
    assert!((150..250).contains(&late), "{late}");
}

#[test]
fn test_loss_follows_the_queue() {
    let mut l = link("rate=100Mbit/s,loss=50%");
    let got = pass(&mut l, 1000, 1, 0);
    assert_eq!(got.len() as u64 + l.counters().lost, 1000);
    assert!((400..600).contains(&got.len()));
    // The lost frames have taken their share of the rate.
    assert!(got.iter().all(|&(due, n)| due == 1 + 80_000 * (u64::from(n) + 1)));
}

#[test]
fn test_copies_are_delivered_at_the_same_time() {
    let mut l = link("dup=1");
    assert_eq!(pass(&mut l, 2, 1, 10), [(1, 0), (1, 0), (11, 1), (11, 1)]);
    assert_eq!((l.counters().duplicated, l.counters().delivered), (2, 4));
}

#[test]
fn test_corruption_inverts_one_bit_behind_the_ethernet_header() {
    let mut l = link("corrupt=1");
    let frame = vec![0x55; 64];
    (0..500).for_each(|_| assert_eq!(l.push(at(1), &frame), None));
    let mut places = std::collections::BTreeSet::new();
    for (_, got) in drain(&mut l) {
        let bits: u32 = got.iter().map(|b| (b ^ 0x55).count_ones()).sum();
        assert_eq!(bits, 1);
        places.extend(got.iter().position(|b| *b != 0x55));
    }
    assert!(places.iter().all(|p| (14..64).contains(p)) && places.len() == 50);
    // A frame that is nothing but its header has no such bit.
    assert_eq!(l.push(at(1), &[0x55; 14]), None);
    assert_eq!((l.counters().corrupted, drain(&mut l)[0].1.len()), (500, 14));
}

#[test]
fn test_mtu_drops_the_longer_packet_and_answers_unless_silent() {
    let mut l = link("mtu=1400");
    assert_eq!(l.push(at(1), &ipv4(1400, 0)), None);
    let answer = l.push(at(1), &ipv4(1401, 0)).unwrap();
    assert_eq!(answer[ETHERNET + 20..ETHERNET + 22], [3, 4]);
    assert_eq!((l.counters().too_big, l.counters().answered), (1, 1));
    assert_eq!(drain(&mut l).len(), 1);
    let mut l = link("mtu=1400,silent");
    assert_eq!(l.push(at(1), &ipv4(1401, 0)), None);
    assert_eq!((l.counters().too_big, l.counters().answered, l.next()), (1, 0, None));
}

#[test]
fn test_delay_line_has_a_limit_in_bytes() {
    let mut l = link("delay=60s");
    let frame = vec![0; 1 << 20];
    (0..513).for_each(|_| assert_eq!(l.push(at(1), &frame), None));
    assert_eq!((l.counters().line_dropped, drain(&mut l).len()), (1, 512));
    assert_eq!(l.push(at(61_000 * MS), &frame), None);
    assert_eq!(l.counters().line_dropped, 1);
}

#[test]
fn test_equal_seeds_have_equal_fates() {
    let settings = "loss=10%,dup=10%,jitter=1ms,unordered,corrupt=10%,reorder=10%";
    let fate = |seed| {
        let mut l = Link::new(settings.parse().unwrap(), &Seed::from_u64(seed));
        (0..500).for_each(|n| assert_eq!(l.push(at(u64::from(n)), &numbered(n, 100)), None));
        drain(&mut l)
    };
    assert_eq!(fate(1), fate(1));
    assert_ne!(fate(1), fate(2));
}

#[test]
fn test_buffers_are_used_again_without_their_old_bytes() {
    let mut l = link("");
    for len in [100, 20, 60] {
        let frame = numbered(1, len);
        l.push(at(1), &frame);
        let (_, got) = l.pop(at(1)).unwrap();
        assert_eq!(got, frame);
        l.recycle(got);
    }
}

proptest! {
    /// Every frame is delivered, or counted as one that is not.
    #[test]
    fn test_every_frame_is_accounted_for(
        frames in proptest::collection::vec((0u64..3_000_000, 0usize..1600, any::<u8>()), 1..200),
        seed in any::<u64>(),
    ) {
        let settings = "loss=5%,burst=5%:30%,delay=1ms,jitter=2ms,unordered,reorder=5%,dup=5%,\
                        corrupt=5%,rate=10Mbit/s,queue=20K,mark=5K,mtu=1400";
        let mut l = Link::new(settings.parse().unwrap(), &Seed::from_u64(seed));
        let (mut now, mut answers) = (0, 0);
        for (pause, len, fill) in &frames {
            now += pause;
            let mut frame = ipv4(1500, 2);
            frame.resize(*len, *fill);
            answers += u64::from(l.push(at(now), &frame).is_some());
            while let Some((due, frame)) = l.pop(at(now)) {
                prop_assert!(due <= at(now));
                l.recycle(frame);
            }
        }
        while l.pop(at(now) + Duration::from_secs(60)).is_some() {}
        let c = l.counters();
        prop_assert_eq!(c.answered, answers);
        let gone = c.lost + c.queue_dropped + c.line_dropped + c.too_big;
        prop_assert_eq!(c.frames + c.duplicated, c.delivered + gone);
        prop_assert!(c.peak_queue <= 20 << 10);
        prop_assert_eq!(l.held, 0);
    }
}

/// Pushes a frame, and pops what becomes of it.
fn through(link: &mut Link, frame: &[u8]) -> Option<Vec<u8>> {
    assert_eq!(link.push(at(1), frame), None);
    drain(link).pop().map(|(_, frame)| frame)
}

#[test]
fn test_random_marks_take_their_share_of_frames_that_can_take_one() {
    let mut l = link("ce=10%");
    for _ in 0..10_000 {
        let marked = through(&mut l, &ipv4(100, 2)).unwrap();
        assert!(matches!(codepoint(&marked), Some(Codepoint::Ect0 | Codepoint::Ce)));
        assert_eq!(codepoint(&through(&mut l, &ipv4(100, 0)).unwrap()), Some(Codepoint::NotEct));
    }
    assert!((900..1100).contains(&l.counters().marked), "{}", l.counters().marked);
}

#[test]
fn test_link_gives_syns_another_codepoint() {
    let mut l = link("syn-ecn=ce");
    for (flags, want) in [(2, Codepoint::Ce), (0x12, Codepoint::Ce), (0x10, Codepoint::NotEct)] {
        let got = through(&mut l, &segment(false, flags)).unwrap();
        assert_eq!(codepoint(&got), Some(want));
    }
    assert_eq!(l.counters().syns_changed, 2);
}

#[test]
fn test_link_drops_syns_that_ask_for_ecn() {
    let mut l = link("drop-ecn-syn");
    for (flags, arrives) in [(0x1c2, false), (0x0c2, false), (2, true), (0x1d2, true)] {
        assert_eq!(through(&mut l, &segment(true, flags)).is_some(), arrives, "{flags:x}");
    }
    assert_eq!(l.counters().ecn_syns_dropped, 2);
}

#[test]
fn test_bleaching_link_clears_its_own_marks_too() {
    let mut l = link("ce=1,bleach,clear-ace");
    assert_eq!(codepoint(&through(&mut l, &ipv4(100, 2)).unwrap()), Some(Codepoint::NotEct));
    assert_eq!((l.counters().marked, l.counters().bleached), (1, 1));
    let got = through(&mut l, &segment(false, 0x150)).unwrap();
    assert_eq!(got, segment(false, 0x10));
    assert_eq!(l.counters().ace_cleared, 1);
}
