//! Tests of the QP: a pair of QPs joined by a byte pipe, and single QPs to which tests pass bytes.

mod alike;
mod atomics;
mod ending;
mod fpdus;
mod golden;
mod handed;
mod hostile;
mod immediate;
mod memory;
mod model;
mod mutate;
mod order;
mod pages;
mod pair;
mod posting;
mod ready;
mod rtr;
mod rules;
mod transfer;
mod truncated;
mod verbs;

use super::*;
use heddle_base::{Chunks, Random, Seed};
use heddle_mr::{MrTable, testing::TestMemory};
use heddle_types::{Access, Cqe, Stag};
use pair::{Pair, PairConfig};

/// Bytes in the pieces that a test has cut them into.
struct Pieces<'a> {
    bytes: &'a [u8],
    /// The end of each piece.
    ends: Vec<usize>,
}

impl<'a> Pieces<'a> {
    /// Cuts `bytes` into pieces of up to `max` bytes.
    fn cut(bytes: &'a [u8], max: usize, rng: &mut Random) -> Pieces<'a> {
        let (mut end, mut ends) = (0, Vec::new());
        while end < bytes.len() {
            end += 1 + usize::try_from(rng.below(max as u64)).unwrap();
            end = end.min(bytes.len());
            ends.push(end);
        }
        Pieces { bytes, ends }
    }
}

impl Chunks for Pieces<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        let piece = self.ends.partition_point(|end| *end <= off);
        self.ends.get(piece).map_or(&[], |end| &self.bytes[off..*end])
    }
}

fn random_bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut rng = Random::new(&Seed::from_u64(seed));
    (0..n).map(|_| rng.next_u32().to_le_bytes()[0]).collect()
}

fn len32(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

fn rights() -> Access {
    Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ)
}

fn completions(qp: &mut QpContext) -> Vec<Cqe> {
    std::iter::from_fn(|| qp.poll_completion()).collect()
}

fn events(qp: &mut QpContext) -> Vec<QpEvent> {
    std::iter::from_fn(|| qp.poll_event()).collect()
}
