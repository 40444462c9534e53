//! Connections of RPC over RDMA, between two ends that the crate's own tests have: memory, queue pairs
//! and a wire in virtual time. The octets choose what each end is, what is called and answered, which
//! work is carried out and completed when, what is given up, and when the connection is lost.
//!
//! Either both ends are honest: then every message is what was given, nothing is reached that was not
//! offered, no Send finds no Receive. Or messages are changed, lost, repeated and made up on their way:
//! then each end does what the messages it got allow, and no more, with bounded memory. In both, each call
//! ends once, and nothing stays registered or lent.

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

/// Octets of the longest item, and calls of a connection.
const LARGEST: u32 = 1 << 18;
const CALLS: u32 = 12;

/// The octets of an input; behind them, what comes is random, and the same each time.
pub(crate) struct Octets<'a> {
    left: &'a [u8],
    behind: Random,
}

impl<'a> Octets<'a> {
    fn new(octets: &'a [u8]) -> Octets<'a> {
        Octets { left: octets, behind: Random::new(&Seed::from_u64(1)) }
    }

    /// The next of them; nothing when all are used.
    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, left) = self.left.split_at(most.min(self.left.len()));
        self.left = left;
        taken
    }
}

impl Choices for Octets<'_> {
    fn below(&mut self, n: u64) -> u64 {
        let taken = self.take(match n {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 4,
        });
        if taken.is_empty() {
            return self.behind.below(n);
        }
        taken.iter().fold(0, |all, &octet| all << 8 | u64::from(octet)) % n
    }

    fn chance(&mut self, p: f64) -> bool {
        match self.take(1) {
            [octet] => f64::from(*octet) < 256.0 * p,
            _ => self.behind.chance(p),
        }
    }

    fn contents(&mut self) -> &mut Random {
        &mut self.behind
    }
}

/// The first octet chooses which of the two. Whether a call was made.
pub fn run(data: &[u8]) -> bool {
    let Some((&choice, octets)) = data.split_first() else { return false };
    let octets = Octets::new(octets);
    if choice & 1 == 0 {
        World::new(octets, LARGEST).run(CALLS);
        true
    } else {
        Attack::new(octets).run()
    }
}

/// Random ones, which get through all phases, and some in which much is changed.
pub fn seeds() -> Seeds {
    let octets = |seed: u64, choice: u8| {
        let mut random = Random::new(&Seed::from_u64(seed));
        let words = (0..150).flat_map(|_| random.next_u32().to_be_bytes());
        [choice].into_iter().chain(words).collect()
    };
    let honest = (0..4).map(|n| (format!("honest-{n}"), octets(n, 0)));
    let attack = (4..8).map(|n| (format!("attack-{n}"), octets(n, 1)));
    honest.chain(attack).collect()
}
