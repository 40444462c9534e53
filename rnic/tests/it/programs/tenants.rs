//! Shares of tenants, which programs neither notice nor depend on: weights and rates change the time
//! of a result, and no result.

use std::sync::Arc;

use heddle_base::{Random, Seed};
use heddle_engine::{Share, ShareTerms};

use crate::programs::program::{Program, pick};
use crate::programs::stream::Stream;
use crate::sim::Pair;

/// The shares of a program's connections, at both hosts.
pub struct Tenants {
    shares: Vec<Arc<Share>>,
    random: Random,
}

impl Tenants {
    /// Gives most connections of every second program a share, and the others none.
    pub fn new(program: &Program, pair: &mut Pair, streams: &[Stream]) -> Tenants {
        let mut random = Random::new(&Seed::from_u64(program.seed ^ 0x7e4a));
        if !random.chance(0.5) {
            return Tenants { shares: Vec::new(), random };
        }
        let shares: Vec<_> = (1..=3).map(|n| Share::new(n, terms(&mut random))).collect();
        for stream in streams {
            for (me, id) in stream.ids.into_iter().enumerate() {
                let which = random.below(4) as usize;
                if let Some(share) = shares.get(which) {
                    pair.driver(me).rnic.assign(id, share);
                }
            }
        }
        Tenants { shares, random }
    }

    /// Changes the terms of a share now and then.
    pub fn step(&mut self) {
        if !self.shares.is_empty() && self.random.chance(0.05) {
            let which = self.random.below(self.shares.len() as u64) as usize;
            self.shares[which].set(terms(&mut self.random));
        }
    }

    /// Returns how often a share or a connection has waited for its rate.
    pub fn waits(&self) -> u64 {
        self.shares.iter().map(|share| share.usage().waits).sum()
    }
}

fn terms(r: &mut Random) -> ShareTerms {
    let rates = [None, None, Some(1_000_000), Some(10_000_000), Some(100_000_000)];
    ShareTerms {
        weight: pick(r, &[1, 2, 9, 1000]),
        rate: pick(r, &rates),
        connection_rate: pick(r, &rates),
    }
}
