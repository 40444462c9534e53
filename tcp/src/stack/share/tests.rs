use super::*;

const NONE: (Vid, usize) = (Vid::NONE, 1);

fn us(n: u64) -> Instant {
    Instant::from_nanos(n * 1000)
}

fn vid(n: u16) -> Vid {
    Vid::new(n).unwrap()
}

/// Returns how many frames of a second find room, of which one comes each microsecond.
fn a_second(share: &mut Share, from: u64, link: (Vid, usize), kind: Kind) -> usize {
    (0..1_000_000).filter(|&n| share.charge(us(from + n), link, kind).is_ok()).count()
}

fn about(n: usize, rate: usize) -> bool {
    n.abs_diff(rate) <= rate / 100
}

const HALF: usize = A_SECOND as usize / 2;

#[test]
fn test_flood_of_one_kind_has_the_common_half_and_its_own_budget() {
    let mut share = Share::default();
    a_second(&mut share, 0, NONE, Kind::Syn);
    let n = a_second(&mut share, 1_000_000, NONE, Kind::Syn);
    assert!(about(n, HALF + HALF / 4), "{n}");
}

#[test]
fn test_all_kinds_together_have_the_whole_rate_and_no_more() {
    let mut share = Share::default();
    let kinds = [Kind::Syn, Kind::Segment, Kind::Icmp, Kind::Datagram];
    let mut run = |from: u64| {
        let all = (0..1_000_000u64).flat_map(|n| kinds.map(|kind| (from + n, kind)));
        all.filter(|&(n, kind)| share.charge(us(n), NONE, kind).is_ok()).count()
    };
    run(0);
    let n = run(1_000_000);
    assert!(about(n, 2 * HALF), "{n}");
}

#[test]
fn test_links_together_have_no_more_than_one_link_would_have() {
    let mut share = Share::default();
    let links = [Vid::NONE, vid(1), vid(2), vid(3)];
    let mut run = |from: u64| {
        let all = (0..1_000_000u64).flat_map(|n| links.map(|vid| (from + n, vid)));
        all.filter(|&(n, vid)| share.charge(us(n), (vid, 4), Kind::Syn).is_ok()).count()
    };
    run(0);
    let n = run(1_000_000);
    assert!(about(n, HALF + HALF / 4), "{n}");
}

/// While a flood of SYNs has used up the common budget, another kind on its link, and SYNs of another
/// link, find room at once.
#[test]
fn test_flood_takes_nothing_from_other_kinds_and_links() {
    let mut share = Share::default();
    let two = |vid| (vid, 2);
    for n in 0..100_000 {
        let _ = share.charge(us(0), two(Vid::NONE), Kind::Syn);
        assert!(n < 10_000 || share.charge(us(0), two(Vid::NONE), Kind::Syn).is_err());
    }
    let others = [(Vid::NONE, Kind::Segment), (Vid::NONE, Kind::Icmp), (vid(7), Kind::Syn)];
    for (vid, kind) in others {
        let room = (0..10_000).filter(|_| share.charge(us(0), two(vid), kind).is_ok()).count();
        assert_eq!(room, 100, "{vid:?} {kind:?}");
    }
}

#[test]
fn test_rest_makes_room_once_until_the_next_frame() {
    let mut share = Share::default();
    let room = |share: &mut Share, at| {
        (0..10_000).filter(|_| share.charge(us(at), NONE, Kind::Syn).is_ok()).count()
    };
    assert_eq!(room(&mut share, 0), AT_ONCE as usize + 200);
    assert_eq!(room(&mut share, 0), 0);
    for _ in 0..3 {
        share.rested = true;
        assert_eq!(room(&mut share, 0), AFTER_REST as usize);
    }
    // A budget does not grow beyond what it holds.
    share.rested = true;
    assert_eq!(room(&mut share, 10_000_000), AT_ONCE as usize + 200);
}

#[test]
fn test_port_with_other_vlans_than_before_keeps_no_budget_of_gone_ones() {
    let mut share = Share::default();
    for n in 1..=4000 {
        for _ in 0..2500 {
            let _ = share.charge(us(0), (vid(n), 3), Kind::Syn);
        }
        assert!(share.links.len() <= 3);
    }
}

#[test]
fn test_frame_over_the_share_counts_by_its_kind() {
    let mut share = Share::default();
    for (kind, reason) in [
        (Kind::Syn, DropReason::SynsOverShare),
        (Kind::Segment, DropReason::SegmentsOverShare),
        (Kind::Icmp, DropReason::IcmpOverShare),
        (Kind::Datagram, DropReason::UdpOverShare),
    ] {
        let last = (0..5000).map(|_| share.charge(us(0), NONE, kind)).last().unwrap();
        assert_eq!(last, Err(reason));
    }
}
