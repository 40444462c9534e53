//! How much memory a benchmark takes: registered, for queues, and for packet buffers.

use heddle_dataplane::VHOST_BUFFERS;
use heddle_services::Limits;
use heddle_services::bench::send_window;
use heddle_types::mpa::CrcPolicy;
use heddle_verbs::MAX_CQ_DEPTH;

use crate::spec::{BenchSpec, Wire};

/// Returns the bytes of registered memory that one side needs for all runs of a specification.
pub fn memory_for(spec: &BenchSpec) -> usize {
    let slots = |size| {
        let depth = spec.depth_for(size);
        if spec.op.takes_buffer() { send_window(spec.mode, depth).max(depth) } else { depth }
    };
    // Slots of the client's operations and those that it reads back, and of the server's.
    let regions = if spec.bidirectional { 3 } else { 2 };
    let most = spec.sizes.iter().map(|s| {
        // Each region starts at a page, and a connection has up to four regions.
        let own = spec.region(s).max(u64::from(s.0.max(1)) * u64::from(slots(s)));
        u64::from(spec.qps) * (regions * own + 5 * 4096)
    });
    let most = most.max().unwrap_or(0);
    // The memory of a finished run comes back a little after the next run begins, so both fit.
    usize::try_from(2 * most + (8 << 20)).unwrap_or(usize::MAX)
}

/// Returns the memory regions that one side needs for all runs of a specification. The regions of a
/// finished run may be there a little longer.
pub(crate) fn mrs_for(spec: &BenchSpec) -> usize {
    2 * MRS * spec.qps as usize + 64
}

/// The most memory regions of a connection.
const MRS: usize = 5;

/// Returns the bytes of queue memory that one side needs for all runs of a specification.
pub fn queues_for(spec: &BenchSpec) -> usize {
    let depth = spec.sizes.iter().map(|s| spec.depth_for(s)).max().unwrap_or(1) as usize;
    // A request has room for 128 bytes, a receive for 64. The client's send queue holds two of each
    // operation and two more, the server's receive queue as many, rounded up to a power of two.
    let qp = 64 * (3 * 4 * depth + 96);
    // The factor of two covers a finished run whose memory is not back yet; the rest is for the
    // completion queues.
    2 * spec.qps as usize * qp + cqs_for(spec)
}

/// Returns the completions of the server's connections for which its queues have room.
pub(crate) fn completions_for(spec: &BenchSpec) -> u32 {
    let depth = spec.sizes.iter().map(|s| spec.depth_for(s)).max().unwrap_or(1);
    let messages = if spec.op.takes_buffer() || spec.bidirectional { 2 * depth } else { 0 };
    let all = spec.qps.saturating_mul(messages + 16).min(MAX_CQ_DEPTH);
    all.next_power_of_two().max(Limits::default().completions)
}

/// Returns the bytes of queue memory for the completion queues of one worker.
pub(crate) fn cqs_for(spec: &BenchSpec) -> usize {
    (16 << 20).max(2 * 2 * 64 * completions_for(spec) as usize)
}

/// Returns the number of mbufs of a frame: headers, payload, trailer. With a CRC the sender copies
/// everything into one mbuf, which has room for a whole frame.
fn mbufs_per_frame(spec: &BenchSpec) -> u64 {
    if spec.mpa.crc == CrcPolicy::Required { 1 } else { 3 }
}

/// The highest number of bytes in a frame that are not payload.
const HEADERS: u64 = 90;

/// Mbufs in the caches of threads and in the sender's hands.
const SPARE_MBUFS: u64 = 1024;

/// Returns the number of mbufs of each RNIC for all runs of a specification: not many more than are
/// in flight at a time. A pool hands its mbufs out in turn, so with two threads each mbuf travels
/// through as much memory as the whole pool takes.
pub fn frames_for(spec: &BenchSpec) -> u32 {
    const MOST: u32 = 16 * 1024 - 1;
    if !spec.faults.is_none() {
        // Segments that the receiver holds behind gaps take mbufs in addition.
        return MOST;
    }
    let payload = u64::from(spec.mtu).saturating_sub(HEADERS).max(1);
    let most = spec.sizes.iter().map(|s| {
        let frames = u64::from(s.0).div_ceil(payload).max(1);
        u64::from(spec.qps) * u64::from(spec.depth_for(s)) * frames * mbufs_per_frame(spec)
            + SPARE_MBUFS
    });
    let kept = if spec.wire == Wire::Vhost { u64::from(VHOST_BUFFERS) } else { 0 };
    let most = (most.max().unwrap_or(0) + kept).saturating_add(1).next_power_of_two() - 1;
    let least = if kept > 0 { 4095 } else { 2047 };
    u32::try_from(most).unwrap_or(MOST).clamp(least, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Faults;
    use heddle_base::units::{Size, Sizes};
    use heddle_services::bench::Mode;
    use heddle_verbs::MpaOptions;

    #[test]
    fn test_frames_cover_data_in_flight_and_more_with_faults() {
        let spec = BenchSpec::default();
        assert_eq!(frames_for(&spec), 2047);
        assert_eq!(frames_for(&BenchSpec { wire: Wire::Vhost, ..spec.clone() }), 4095);
        // 512 messages of 64 KiB are 24,064 frames: more than the rings hold.
        assert_eq!(frames_for(&BenchSpec { qps: 128, ..spec.clone() }), 16_383);
        let rate = BenchSpec { mode: Mode::Rate, sizes: Sizes::one(Size(8)), ..spec.clone() };
        assert_eq!(frames_for(&BenchSpec { qps: 16, ..rate.clone() }), 4095);
        let off = MpaOptions { crc: CrcPolicy::Off, ..MpaOptions::new() };
        assert_eq!(frames_for(&BenchSpec { qps: 16, mpa: off, ..rate }), 8191, "three a frame");
        let faults = Faults { loss: "1%".parse().expect("a share"), ..Faults::NONE };
        assert_eq!(frames_for(&BenchSpec { faults, ..spec }), 16_383);
    }
}
