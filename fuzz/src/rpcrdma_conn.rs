//! Connections of RPC over RDMA, between two ends from the crate's own tests: memory, queue pairs
//! and a wire in virtual time. The input bytes choose the configuration of each end, the calls and
//! answers, which work is carried out and completed when, which calls are given up, and when the
//! connection is lost.
//!
//! In one mode both ends are honest: then every message arrives as it was given, no access reaches
//! memory that was not offered, and no Send lacks a Receive. In the other mode the wire changes,
//! loses, repeats and invents messages: then each end does what the messages that it received
//! allow, and no more, with bounded memory. In both modes each call ends once, and no memory stays
//! registered or lent.

mod attack;

#[path = "../../rpcrdma/tests/it/conn/allowed.rs"]
mod allowed;
#[path = "../../rpcrdma/tests/it/conn/choices.rs"]
mod choices;
#[path = "../../rpcrdma/tests/it/conn/exchange.rs"]
mod exchange;
#[path = "../../rpcrdma/tests/it/conn/model.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod model;
#[path = "../../rpcrdma/tests/it/conn/world.rs"]
mod world;

use heddle_base::{Random, Seed};

use crate::Seeds;
use attack::Attack;
use choices::Choices;
use world::World;

/// Bytes of the longest item, and the number of calls of a connection.
const LARGEST: u32 = 1 << 18;
const CALLS: u32 = 12;

/// The bytes of an input; after them come random bytes, which are the same in each run.
pub(crate) struct Bytes<'a> {
    left: &'a [u8],
    behind: Random,
}

impl<'a> Bytes<'a> {
    fn new(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes { left: bytes, behind: Random::new(&Seed::from_u64(1)) }
    }

    /// Returns the next bytes of the input, and none after its end.
    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, left) = self.left.split_at(most.min(self.left.len()));
        self.left = left;
        taken
    }
}

impl Choices for Bytes<'_> {
    fn below(&mut self, n: u64) -> u64 {
        let taken = self.take(match n {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 4,
        });
        if taken.is_empty() {
            return self.behind.below(n);
        }
        taken.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)) % n
    }

    fn chance(&mut self, p: f64) -> bool {
        match self.take(1) {
            [byte] => f64::from(*byte) < 256.0 * p,
            _ => self.behind.chance(p),
        }
    }

    fn contents(&mut self) -> &mut Random {
        &mut self.behind
    }
}

/// Tries one input, whose first byte chooses the mode. Returns true if a call was made.
pub fn run(data: &[u8]) -> bool {
    let Some((&choice, bytes)) = data.split_first() else { return false };
    let bytes = Bytes::new(bytes);
    if choice & 1 == 0 {
        World::new(bytes, LARGEST).run(CALLS);
        true
    } else {
        Attack::new(bytes).run()
    }
}

/// Makes random inputs, which get through all phases, and some in which the wire changes much.
pub fn seeds() -> Seeds {
    let bytes = |seed: u64, choice: u8| {
        let mut random = Random::new(&Seed::from_u64(seed));
        let words = (0..150).flat_map(|_| random.next_u32().to_be_bytes());
        [choice].into_iter().chain(words).collect()
    };
    let honest = (0..4).map(|n| (format!("honest-{n}"), bytes(n, 0)));
    let attack = (4..8).map(|n| (format!("attack-{n}"), bytes(n, 1)));
    honest.chain(attack).collect()
}
