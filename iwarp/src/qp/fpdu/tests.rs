use super::*;
use heddle_mr::testing::TestMemory;

#[test]
fn test_fpdu_fits_two_cache_lines() {
    assert!(size_of::<Fpdu>() <= 128, "{}", size_of::<Fpdu>());
}

fn sample(mem: &TestMemory, payload: u32, crc: bool) -> Fpdu {
    let mut f = Fpdu::default();
    f.put_tagged(payload, 0x8140_0102_0304, 0x0506_0708_090a_0b0c);
    if payload > 0 {
        f.put_reference(heddle_mr::testing::range(3, payload, 0));
    }
    f.complete(mem, crc);
    assert_eq!(f.is_open(), crc && payload > 0);
    f
}

#[test]
fn test_fpdu_yields_same_bytes_and_checksum_in_any_pieces() {
    let mem = TestMemory::new(256, 0);
    mem.write(0, &(0..=255).collect::<Vec<u8>>());
    for payload in [0, 1, 2, 3, 4, 33, 100, 101, 102, 103] {
        for crc in [false, true] {
            let mut f = sample(&mem, payload, crc);
            let mut framed = vec![0xdd; f.len() as usize];
            let known = f.clone().fill(&mem, &mut framed, true);
            let known = known.unwrap_or_else(|| Sum::of(&framed));
            assert_eq!(known.folded() % 0xffff, Sum::of(&framed).folded() % 0xffff);
            f.seal(&mem);
            let mut whole = vec![0; f.len() as usize + 9];
            let n = f.copy_to(&mem, 0, &mut whole);
            assert_eq!((n, n % 4), (f.len() as usize, 0));
            whole.truncate(n);
            assert_eq!(whole, framed);
            assert_eq!(f.sum(&mem).folded() % 0xffff, Sum::of(&whole).folded() % 0xffff);
            let want = if crc { crc32c::crc32c(&whole[..n - 4]) } else { 0 };
            assert_eq!(whole[n - 4..], want.to_le_bytes());
            assert_eq!(whole[..2], u16::try_from(14 + payload).unwrap().to_be_bytes());
            for off in 0..n {
                for len in [1, 2, 7, 40] {
                    let mut part = vec![0; len];
                    let m = f.copy_to(&mem, u32::try_from(off).unwrap(), &mut part);
                    assert_eq!(m, len.min(n - off));
                    f.for_each_piece(count(off), count(len), |piece| match piece {
                        Piece::Bytes(bytes) => assert!(!bytes.is_empty()),
                        Piece::Memory(range) => assert!(!range.is_empty()),
                    });
                    assert_eq!(part[..m], whole[off..off + m]);
                }
            }
        }
    }
}

/// After it is sealed into a frame, an FPDU keeps the frame's checksum and CRC.
#[test]
fn test_sealed_fpdu_keeps_checksum_and_crc_when_memory_changes() {
    for payload in [33, 100, 101, 102, 103] {
        let mem = TestMemory::new(256, 7);
        let mut f = sample(&mem, payload, true);
        // Change the memory after the FPDU was made: the CRC must be that of the bytes sent.
        mem.write(0, &[8; 128]);
        let n = f.len() as usize;
        let mut framed = vec![0; n];
        f.fill(&mem, &mut framed, true);
        mem.write(0, &[9; 256]);
        assert!(!f.is_open());
        assert_eq!(framed[n - 4..], crc32c::crc32c(&framed[..n - 4]).to_le_bytes());
        assert_eq!(framed[16..16 + payload as usize], vec![8; payload as usize]);
        assert_eq!(f.sum(&mem).folded() % 0xffff, Sum::of(&framed).folded() % 0xffff);
        // A retransmission has the present payload, with the CRC of the first time.
        let mut again = vec![0; n];
        f.fill(&mem, &mut again, true);
        assert_eq!(again[16..16 + payload as usize], vec![9; payload as usize]);
        assert_eq!(again[n - 4..], framed[n - 4..]);
    }
}

/// With markers, an FPDU comes out as `markers::insert` makes it: in a frame, in any pieces, and
/// again. The payload stays where it is.
#[test]
fn test_fpdu_markers_match_markers_insert_in_any_pieces() {
    use crate::mpa::markers;
    let mem = TestMemory::new(2048, 0);
    mem.write(0, &(0..=255).cycle().take(2048).collect::<Vec<u8>>());
    for payload in [0, 33, 101, 500, 1403] {
        for crc in [false, true] {
            let mut plain = vec![0; sample(&mem, payload, false).len() as usize];
            sample(&mem, payload, false).copy_to(&mem, 0, &mut plain);
            for offset in (0..512).step_by(4) {
                let mut f = sample(&mem, payload, false);
                f.put_markers(&mem, offset, crc);
                let mut want = Vec::new();
                markers::insert(&plain, offset, crc, &mut want);
                let mut framed = vec![0xdd; f.len() as usize];
                let known =
                    f.clone().fill(&mem, &mut framed, true).unwrap_or_else(|| Sum::of(&framed));
                assert_eq!(framed, want, "{payload} at {offset}");
                assert_eq!(known.folded() % 0xffff, Sum::of(&want).folded() % 0xffff);
                f.seal(&mem);
                assert_eq!(f.sum(&mem).folded() % 0xffff, Sum::of(&want).folded() % 0xffff);
                for n in [1, 3, 7, 500] {
                    let mut again = Vec::new();
                    while again.len() < want.len() {
                        let mut part = vec![0; n];
                        let got = f.copy_to(&mem, count(again.len()), &mut part);
                        again.extend_from_slice(&part[..got]);
                    }
                    assert_eq!(again, want, "{payload} at {offset} by {n}");
                }
            }
        }
    }
}
