//! Tests with broken and forged captures.

use heddle_tcp::Flags;
use proptest::prelude::*;

use super::*;
use crate::testing::{Wire, decode};
use crate::{CONNECTIONS_MAX, Decoder};

fn sample() -> Vec<Vec<u8>> {
    use crate::testing::{call, reply};
    use heddle_rpcrdma::v1;
    let mut w = Wire::new(false, true);
    with_chunks([3, 5, 4], 40, |c| w.v1(0, 7, 1, v1::Body::Msg(c), &call(7, 6)));
    w.read(1, 3, at(3), 1000);
    w.respond(0, &[0; 1000]);
    w.write(1, 5, at(5), &[0; 1000]);
    w.v1(1, 7, 1, v1::Body::Msg(v1::Chunks::NONE), &reply(7, 0));
    w.frames
}

#[test]
fn test_decoder_bounds_connections_and_keeps_those_of_mpa() {
    let mut decoder = Decoder::new(None);
    let mut items = Vec::new();
    for frame in sample() {
        decoder.frame(0, &frame, &mut items);
    }
    let mut syn = sample()[0].clone();
    for port in 0..5000u16 {
        syn[34..36].copy_from_slice(&port.to_be_bytes());
        decoder.frame(0, &syn, &mut items);
        assert!(decoder.connections.len() <= CONNECTIONS_MAX);
    }
    assert!(decoder.connections.values().any(|c| c.is_mpa()));
    assert_eq!(decoder.summary().forgotten, 5000 - CONNECTIONS_MAX as u64 + 1);
}

#[test]
fn test_decoder_bounds_bytes_held_for_unanswered_mpa_startup() {
    let mut w = Wire::new(false, false);
    // The Reply is not in the capture.
    w.frames.truncate(3);
    for _ in 0..200 {
        w.segment(0, Flags::ACK, &[0; 20_000]);
    }
    assert_eq!(verdicts(&w.decode().0), [Rule::Startup]);
}

#[test]
fn test_decoder_skips_connections_without_mpa_unless_port_is_given() {
    let mut w = Wire::without_mpa(80);
    w.segment(0, Flags::ACK, b"GET / HTTP/1.1\r\n\r\n");
    let (items, summary) = w.decode();
    assert_eq!((items, summary.not_followed), (vec![], 1));
    let (mut decoder, mut items) = (Decoder::new(Some(80)), Vec::new());
    w.frames.iter().for_each(|f| decoder.frame(0, f, &mut items));
    assert_eq!(verdicts(&items), [Rule::Startup]);
    let (mut decoder, mut items) = (Decoder::new(Some(81)), Vec::new());
    w.frames.iter().for_each(|f| decoder.frame(0, f, &mut items));
    assert_eq!((items, decoder.summary().segments), (vec![], 0));
}

proptest! {
    #[test]
    fn prop_changed_and_shuffled_frames_are_read(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()),
            0..8,
        ),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut frames = sample();
        for (frame, byte, bits) in changes {
            let frame = frame.index(frames.len());
            let at = byte.index(frames[frame].len());
            frames[frame][at] ^= bits;
        }
        for (a, b) in swaps {
            let (a, b) = (a.index(frames.len()), b.index(frames.len()));
            frames.swap(a, b);
        }
        let cut_frame = cut.index(frames.len());
        let len = cut.index(frames[cut_frame].len() + 1);
        frames[cut_frame].truncate(len);
        let (items, summary) = decode(&frames);
        prop_assert_eq!(verdicts(&items).len() as u64, summary.verdicts);
        for item in &items {
            prop_assert!(!line(item, 0).contains('\n'));
            prop_assert!(serde_json::to_string(item).is_ok());
        }
    }
}
