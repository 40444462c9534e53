use super::*;

const FRAMES: [(u64, &[u8]); 2] =
    [(1_700_000_000_000_001_000, b"abcd"), (1_700_000_000_000_002_000, b"efghij")];

fn pcap(link: u32) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    // The snap length truncates the second frame.
    let mut out = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 6, link]);
    for (time, data) in FRAMES {
        let (s, us) = (time / 1_000_000_000, time % 1_000_000_000 / 1000);
        let len = u32::try_from(data.len()).unwrap();
        out.extend(words(&[u32::try_from(s).unwrap(), u32::try_from(us).unwrap(), len, len + 90]));
        out.extend(data);
    }
    out
}

/// Builds a pcapng file with times in the units of `resolution`, or without that option.
fn pcapng(resolution: Option<u8>, unit: u64) -> Vec<u8> {
    let word = |w: u32| w.to_le_bytes();
    let block = |kind: u32, body: &[u8]| {
        let len = word(u32::try_from(body.len() + 12).unwrap());
        [&word(kind), &len, body, &len].concat()
    };
    let section = [&word(0x1a2b_3c4d), &[1, 0, 0, 0][..], &[0xff; 8]].concat();
    let mut interface = [&[1, 0, 0, 0][..], &word(0)].concat();
    if let Some(r) = resolution {
        interface.extend([9, 0, 1, 0, r, 0, 0, 0, 0, 0, 0, 0]);
    }
    let mut out = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for (time, data) in FRAMES {
        let units = time / unit;
        let [high, low] =
            [units >> 32, units & 0xffff_ffff].map(|w| word(u32::try_from(w).unwrap()));
        let len = word(u32::try_from(data.len()).unwrap());
        let mut body = [&word(0), &high, &low, &len, &len, data].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        // A block of another kind stands between the frames.
        out.extend(block(0xbad, b"1234"));
        out.extend(block(6, &body));
    }
    out
}

fn read(bytes: &[u8]) -> (Vec<(u64, Vec<u8>)>, Option<String>) {
    let mut frames = Vec::new();
    let mut capture = match Capture::new(Box::new(Cursor::new(bytes.to_vec()))) {
        Ok(capture) => capture,
        Err(e) => return (frames, Some(e.to_string())),
    };
    loop {
        match capture.next() {
            Ok(Some((time, data))) => frames.push((time, data.into_owned())),
            Ok(None) => return (frames, None),
            Err(e) => return (frames, Some(e.to_string())),
        }
    }
}

#[test]
fn test_both_capture_formats_give_same_frames_and_times() {
    let want: Vec<_> = FRAMES.iter().map(|(t, d)| (*t, d.to_vec())).collect();
    assert_eq!(read(&pcap(1)), (want.clone(), None));
    assert_eq!(read(&pcapng(None, 1000)), (want.clone(), None));
    assert_eq!(read(&pcapng(Some(9), 1)), (want.clone(), None));
    assert_eq!(read(&pcapng(Some(6), 1000)), (want, None));
}

#[test]
fn test_timestamps_of_any_resolution_are_converted() {
    let time = |resolution| {
        let options = vec![InterfaceDescriptionOption::IfTsResol(resolution)];
        let linktype = DataLink::ETHERNET;
        nanoseconds(3 << 20, &InterfaceDescriptionBlock { linktype, snaplen: 0, options })
    };
    assert_eq!(time(0x80 | 20), 3_000_000_000);
    assert_eq!((time(127), time(0)), (0, (3 << 20) * 1_000_000_000));
}

#[test]
fn test_truncated_capture_is_detected_at_every_byte() {
    for (whole, ends) in [(pcap(1), vec![24, 44]), (pcapng(None, 1000), vec![28, 48, 64, 100, 116])]
    {
        for n in 0..whole.len() {
            let (frames, error) = read(&whole[..n]);
            assert_eq!(error.is_none(), ends.contains(&n), "{n} bytes: {error:?}");
            assert!(frames.len() < 2);
        }
    }
}

#[test]
fn test_files_of_other_formats_are_refused() {
    let error = |bytes: &[u8]| read(bytes).1.unwrap();
    assert!(error(b"not a capture, whatever it is").contains("unknown file format"));
    assert!(error(&pcap(101)).contains("link type 101"));
    let mut other = pcapng(None, 1000);
    other[28 + 8] = 113;
    assert!(error(&other).contains("link type 113"));
    let mut none = pcapng(None, 1000);
    // Changes the interface number of the first frame.
    none[64 + 8] = 7;
    assert!(error(&none).contains("frame 1 is of an interface"));
}
