//! Tests of the QP: a pair of QPs joined by a byte pipe, and single QPs fed by hand.

mod atomics;
mod ending;
mod fpdus;
mod golden;
mod hostile;
mod immediate;
mod memory;
mod model;
mod mutate;
mod order;
mod pages;
mod pair;
mod posting;
mod rtr;
mod rules;
mod transfer;
mod truncated;
mod verbs;

use super::*;
use crate::testing::TestMemory;
use crate::{Access, MrTable, Stag};
use heddle_base::{Chunks, Random, Seed};
use pair::{Pair, PairConfig};

/// Bytes in the pieces somebody has cut them to.
struct Pieces<'a>(Vec<&'a [u8]>);

impl<'a> Pieces<'a> {
    /// Cuts `bytes` to pieces of up to `max` bytes.
    fn cut(bytes: &'a [u8], max: usize, rng: &mut Random) -> Pieces<'a> {
        let mut rest = bytes;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let n = 1 + usize::try_from(rng.below(max as u64)).unwrap();
            let (a, b) = rest.split_at(n.min(rest.len()));
            parts.push(a);
            rest = b;
        }
        Pieces(parts)
    }
}

impl Chunks for Pieces<'_> {
    fn len(&self) -> usize {
        self.0.iter().map(|p| p.len()).sum()
    }

    fn chunk_at(&self, mut off: usize) -> &[u8] {
        for p in &self.0 {
            if off < p.len() {
                return &p[off..];
            }
            off -= p.len();
        }
        &[]
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
