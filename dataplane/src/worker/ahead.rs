//! Looking ahead at the connections of a burst, and of a turn.
//!
//! A worker with few connections has them all in its caches. With many, each step from a frame or a
//! doorbell to a queue pair waits for memory. [`Prefetch`] makes these waits overlap: while the
//! worker handles a group of frames, the state of the groups after it is on its way.

use heddle_base::{Fetch, Instant};
use heddle_engine::{Engine, Step, Untaken};
use heddle_mr::Memory;

use super::queues::Queues;
use crate::prefetch::{self, LINE};
use crate::rx::RxMbuf;

/// Frames, or queue pairs, for which one step is taken together: their lines are about as many as a
/// processor fetches at a time.
pub(super) const GROUP: usize = 4;

/// Fetches memory by prefetch instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefetch;

impl Fetch for Prefetch {
    #[inline(always)]
    fn bytes(self, at: *const u8, len: usize) {
        // Where the compiler knows the size, no instruction but the fetches is left. The last
        // byte lies in a line of its own or in the line before.
        let last = len.saturating_sub(1);
        for line in 0..last.div_ceil(LINE) {
            prefetch::read(at.wrapping_add(line * LINE));
        }
        prefetch::read(at.wrapping_add(last));
    }
}

/// Hands a burst over group by group, and fetches the state of the groups that follow.
#[inline(never)]
pub(super) fn handle_frames<E: Engine<Frame = RxMbuf>, M: Memory>(
    engine: &mut E,
    now: Instant,
    mem: &M,
    posted: &Untaken<'_, E::Qp>,
    mut frames: &mut [Option<RxMbuf>],
) {
    engine.look_ahead(frames, Prefetch);
    let n = frames.len();
    // How far each step has come.
    let mut upto = [0; Step::ALL.len()];
    let mut at = 0;
    while at < n {
        for (i, step) in Step::ALL.into_iter().enumerate() {
            let ahead = (at + (Step::ALL.len() - i) * GROUP).min(n);
            let from = upto[i].max(at);
            for frame in from..ahead {
                let before = frame.checked_sub(1).and_then(|before| engine.seen_ahead(before));
                let seen = engine.seen_ahead(frame);
                if let Some(index) = seen.filter(|_| seen != before) {
                    engine.fetch(index, step, Prefetch);
                }
            }
            upto[i] = upto[i].max(ahead);
        }
        let mut end = (at + GROUP).min(n);
        // The frames of one connection stay together, since they may make one segment.
        while end < n
            && engine.seen_ahead(end).is_some_and(|i| engine.seen_ahead(end - 1) == Some(i))
        {
            end += 1;
        }
        let (group, later) = frames.split_at_mut(end - at);
        engine.handle_frames(now, mem, posted, group);
        (frames, at) = (later, end);
    }
}

/// Takes a step of the look ahead at a queue pair whose application has rung.
#[inline]
pub(super) fn fetch_qp<E: Engine>(engine: &E, queues: &Queues, index: usize, step: Step) {
    queues.fetch(index, step, Prefetch);
    engine.fetch(index, step, Prefetch);
}

/// Fetches the rings of the queue pairs whose completions come next.
#[inline]
pub(super) fn fetch_completed<E: Engine>(engine: &E, queues: &Queues) {
    for (i, step) in Step::ALL.into_iter().enumerate() {
        if let Some(index) = engine.completed_ahead((Step::ALL.len() - i) * GROUP / 2) {
            queues.fetch(index, step, Prefetch);
        }
    }
}
