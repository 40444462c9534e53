//! Entries as they lie in a ring, and back.

use heddle_types::{Access, AtomicOp, Bind, Data};

use super::*;
use proptest::prelude::*;

fn lines(blocks: usize) -> Vec<Line> {
    (0..blocks).map(|_| [const { AtomicU64::new(0) }; BLOCK]).collect()
}

fn ring(lines: &[Line]) -> BlockRing<'_> {
    BlockRing::new(lines, 0, lines.len() as u64)
}

fn words(lines: &[Line]) -> Vec<u64> {
    lines.as_flattened().iter().map(|w| w.load(Ordering::Relaxed)).collect()
}

fn put_send(ring: BlockRing<'_>, at: u64, wr: &SendWr<'_>) -> u64 {
    let Some(e) = encode_send(wr) else {
        let e = encode_with_operands(wr);
        store(ring, (at, 0), e, &wr.data);
        return e.blocks;
    };
    store(ring, (at, 0), e, &wr.data);
    e.blocks
}

fn put_recv(ring: BlockRing<'_>, at: u64, wr: &RecvWr<'_>) -> u64 {
    let e = encode_recv(wr);
    store(ring, (at, 0), e, &Data::Sges(wr.sges));
    e.blocks
}

/// Golden words: other processes rely on the layout.
#[test]
fn test_send_entry_layout_matches_documentation() {
    let r = lines(2);
    let sge = Sge { stag: Stag(0xaabb_cc01), len: 5, to: 0x77 };
    let wr = SendWr {
        wr_id: 9,
        op: SendOp::Write { stag: Stag(0x1234_5678), to: 0x99 },
        data: Data::Sges(&[sge]),
        signaled: true,
        fence: true,
    };
    put_send(ring(&r), 0, &wr);
    let want = [0x0101_0303, 9, 0x1234_5678, 0x99, 0x77, 0x5_aabb_cc01, 0, 0];
    assert_eq!(words(&r)[..8], want);
    let wr = SendWr {
        wr_id: 10,
        op: SendOp::Send { solicited: true, invalidate: Some(Stag(7)) },
        data: Data::Inline(b"abcdefghi"),
        signaled: false,
        fence: false,
    };
    put_send(ring(&r), 1, &wr);
    let text = [u64::from_ne_bytes(*b"abcdefgh"), u64::from_ne_bytes(*b"i\0\0\0\0\0\0\0")];
    let want = [0x9_0100_0c02, 10, 7 << 32, 0, text[0], text[1], 0, 0];
    assert_eq!(words(&r)[8..], want);
}

#[test]
fn test_entry_layout_with_operands_matches_documentation() {
    let r = lines(2);
    let sink = [Sge { stag: Stag(2), len: 8, to: 0x77 }];
    let op = AtomicOp::CmpSwap { compare: 3, compare_mask: 4, swap: 5, swap_mask: 6 };
    put_send(ring(&r), 0, &SendWr::atomic(9, &sink, Stag(1), 0x99, op).fenced());
    let want = [0x0201_0308, 9, 1, 0x99, 3, 5, 4, 6, 0x77, 0x8_0000_0002];
    assert_eq!(words(&r)[..10], want);
    let op = AtomicOp::FetchAdd { add: 3, mask: 4 };
    put_send(ring(&r), 0, &SendWr::atomic(9, &sink, Stag(1), 0x99, op));
    assert_eq!(words(&r)[..8], [0x0201_0107, 9, 1, 0x99, 3, 0, 4, 0]);
    put_send(ring(&r), 0, &SendWr::immediate(9, 0x1234).solicited());
    assert_eq!(words(&r)[..8], [0x0100_0505, 9, 0, 0, 0x1234, 0, 0, 0]);
    put_send(ring(&r), 0, &SendWr::write_immediate(9, &sink, Stag(1), 0x99, 7).unsignaled());
    assert_eq!(words(&r)[..5], [0x0201_0006, 9, 1, 0x99, 7]);
}

#[test]
fn test_stag_entry_layout_matches_documentation() {
    let r = lines(4);
    let sge = [Sge { stag: Stag(0xaabb_cc01), len: 5, to: 0x77 }];
    let access = Access::REMOTE_READ.with(Access::REMOTE_ATOMIC);
    let wr = SendWr::fast_register(9, Stag(0x1234_5678), &sge, 0x99, access);
    put_send(ring(&r), 0, &wr);
    let want = [0x0101_010a, 9, 0x14_1234_5678, 0x99, 0x77, 0x5_aabb_cc01, 0, 0];
    assert_eq!(words(&r)[..8], want);
    let wr = SendWr::local_invalidate(10, Stag(7)).unsignaled();
    put_send(ring(&r), 1, &wr);
    assert_eq!(words(&r)[8..16], [0x0100_000b, 10, 7, 0, 0, 0, 0, 0]);
    let wr = SendWr::bind_window(11, Stag(8), &sge, 0, Access::REMOTE_WRITE).fenced();
    put_send(ring(&r), 2, &wr);
    let want = [0x0101_030c, 11, 0x2_0000_0008, 0, 0x77, 0x5_aabb_cc01, 0, 0];
    assert_eq!(words(&r)[16..24], want);
}

#[test]
fn test_recv_entry_layout_matches_documentation() {
    let r = lines(1);
    let sges = [Sge { stag: Stag(1), len: 2, to: 3 }, Sge { stag: Stag(4), len: 5, to: 6 }];
    put_recv(ring(&r), 0, &RecvWr { wr_id: 11, sges: &sges });
    assert_eq!(words(&r), [0x0102_0000, 11, 3, 0x2_0000_0001, 6, 0x5_0000_0004, 0, 0]);
}

fn sges() -> impl Strategy<Value = Vec<Sge>> {
    let sge = (any::<u32>(), any::<u32>(), any::<u64>());
    let sge = sge.prop_map(|(s, len, to)| Sge { stag: Stag(s), len, to });
    proptest::collection::vec(sge, 0..=MAX_SGES)
}

fn op() -> impl Strategy<Value = SendOp> {
    let place = (any::<u32>(), any::<u64>());
    prop_oneof![
        (any::<bool>(), any::<Option<u32>>())
            .prop_map(|(solicited, s)| SendOp::Send { solicited, invalidate: s.map(Stag) }),
        place.prop_map(|(s, to)| SendOp::Write { stag: Stag(s), to }),
        place.prop_map(|(s, to)| SendOp::Read { stag: Stag(s), to }),
        (any::<u64>(), any::<bool>())
            .prop_map(|(data, solicited)| SendOp::Immediate { data, solicited }),
        (any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(s, to, data, solicited)| {
                SendOp::WriteImmediate { stag: Stag(s), to, data, solicited }
            }
        ),
        (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(s, to, add, mask)| {
            let op = AtomicOp::FetchAdd { add, mask };
            SendOp::Atomic { stag: Stag(s), to, op }
        }),
        (any::<u32>(), any::<u64>(), any::<[u64; 4]>()).prop_map(
            |(s, to, [compare, compare_mask, swap, swap_mask])| {
                let op = AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask };
                SendOp::Atomic { stag: Stag(s), to, op }
            }
        ),
        (any::<u32>(), any::<u64>(), any::<u8>()).prop_map(|(s, to, a)| {
            SendOp::FastRegister(Bind { stag: Stag(s), to, access: Access::from_bits(a) })
        }),
        (any::<u32>(), any::<u64>(), any::<u8>()).prop_map(|(s, to, a)| {
            SendOp::BindWindow(Bind { stag: Stag(s), to, access: Access::from_bits(a) })
        }),
        any::<u32>().prop_map(|s| SendOp::LocalInvalidate { stag: Stag(s) }),
    ]
}

proptest! {
    #[test]
    fn test_requests_come_out_as_they_went_in(
        wrs in proptest::collection::vec(
            (op(), any::<u64>(), any::<bool>(), any::<bool>(), sges(),
             proptest::option::of(proptest::collection::vec(any::<u8>(), 0..=MAX_INLINE))), 1..40)
    ) {
        let r = lines(16);
        let (tail, mut end) = (AtomicU64::new(0), 0);
        let (mut reader, mut entry) = (EntryReader::new(16), Entry::default());
        for (op, wr_id, signaled, fence, sges, inline) in &wrs {
            let data = inline.as_ref().map_or(Data::Sges(sges), |b| Data::Inline(b));
            let wr = SendWr { wr_id: *wr_id, op: *op, data, signaled: *signaled, fence: *fence };
            end += put_send(ring(&r), end, &wr);
            tail.store(end, Ordering::Release);
            prop_assert_eq!(reader.has_next(|| &tail), Ok(true));
            let same = reader.send(ring(&r), &mut entry, |taken: &SendWr<'_>| *taken == wr);
            prop_assert_eq!(same, Ok(true));
            prop_assert_eq!(reader.has_next(|| &tail), Ok(false));
            let recv = RecvWr { wr_id: *wr_id, sges };
            end += put_recv(ring(&r), end, &recv);
            tail.store(end, Ordering::Release);
            prop_assert_eq!(reader.has_next(|| &tail), Ok(true));
            let same = reader.recv(ring(&r), &mut entry, |taken| *taken == recv);
            prop_assert_eq!(same, Ok(true));
        }
    }

    /// Any words and any tail: the reader returns an error, or a request within every limit. The
    /// reader never panics, and never steps beyond the published entries.
    #[test]
    fn test_entry_reader_reads_or_refuses_arbitrary_words(
        fill in proptest::collection::vec(any::<[u64; BLOCK]>(), 16), tail in any::<u64>(), near in 0u64..20
    ) {
        let r: Vec<Line> = fill.into_iter().map(|l| l.map(AtomicU64::new)).collect();
        for tail in [tail, near] {
            let tail = AtomicU64::new(tail);
            let (mut reader, mut entry) = (EntryReader::new(16), Entry::default());
            while let Ok(true) = reader.has_next(|| &tail) {
                let within = reader.send(ring(&r), &mut entry, |wr: &SendWr<'_>| match wr.data {
                    Data::Sges(s) => s.len() <= MAX_SGES,
                    Data::Inline(b) => b.len() <= MAX_INLINE,
                });
                match within {
                    Ok(within) => prop_assert!(within),
                    Err(_) => break,
                }
                prop_assert!(reader.head() <= 16);
            }
        }
    }
}

/// The reader accepts the counts of an entry of one block up to the room after its head.
#[test]
fn test_entry_reader_refuses_counts_beyond_the_block() {
    let r = lines(1);
    let tail = AtomicU64::new(1);
    let first = |word: u64| {
        r[0][0].store(word | 1 << 24, Ordering::Relaxed);
        let (mut reader, mut entry) = (EntryReader::new(1), Entry::default());
        assert_eq!(reader.has_next(|| &tail), Ok(true));
        let send = reader.send(ring(&r), &mut entry, |wr: &SendWr<'_>| match wr.data {
            Data::Sges(s) => s.len(),
            Data::Inline(b) => b.len(),
        });
        let mut reader = EntryReader::new(1);
        assert_eq!(reader.has_next(|| &tail), Ok(true));
        (send, reader.recv(ring(&r), &mut entry, |wr| wr.sges.len()))
    };
    let not_recv = Err(Broken::Opcode(3));
    assert_eq!(first(opcode::WRITE | 2 << 16), (Ok(2), not_recv));
    assert_eq!(first(opcode::WRITE | 3 << 16), (Err(Broken::Data), not_recv));
    let inline = opcode::WRITE | flag::INLINE << 8;
    assert_eq!(first(inline | 32 << 32), (Ok(32), not_recv));
    assert_eq!(first(inline | 33 << 32), (Err(Broken::Data), not_recv));
    let not_send = Err(Broken::Opcode(0));
    assert_eq!(first(opcode::RECV | 2 << 16), (not_send, Ok(2)));
    assert_eq!(first(opcode::RECV | 3 << 16).1, Ok(3));
    assert_eq!(first(opcode::RECV | 4 << 16).1, Err(Broken::Data));
}

#[test]
fn test_entry_reader_refuses_tail_beyond_the_ring() {
    let mut reader = EntryReader::new(8);
    let tails = [9, u64::MAX, 8].map(AtomicU64::new);
    assert_eq!(reader.has_next(|| &tails[0]), Err(Broken::Tail));
    assert_eq!(reader.has_next(|| &tails[1]), Err(Broken::Tail));
    assert_eq!(reader.has_next(|| &tails[2]), Ok(true));
}
