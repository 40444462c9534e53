//! The choices in a random test, and their source: a random number generator or a fuzzer.

use heddle_base::Random;
use heddle_rpcrdma::conn::{Config, Side, Speaks};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::property::{Properties, ReverseSupport};

/// A source of choices.
pub(crate) trait Choices {
    /// Returns a number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64;

    /// Returns true with probability `p`.
    fn chance(&mut self, p: f64) -> bool;

    /// Returns the generator for the contents of messages and their layout in memory.
    fn contents(&mut self) -> &mut Random;
}

impl Choices for Random {
    fn below(&mut self, n: u64) -> u64 {
        Random::below(self, n)
    }

    fn chance(&mut self, p: f64) -> bool {
        Random::chance(self, p)
    }

    fn contents(&mut self) -> &mut Random {
        self
    }
}

/// Returns a number up to and including `most`.
pub(crate) fn up_to<C: Choices>(choices: &mut C, most: u32) -> u32 {
    u32::try_from(choices.below(u64::from(most) + 1)).unwrap()
}

/// Returns an index below `len`.
pub(crate) fn index<C: Choices>(choices: &mut C, len: usize) -> usize {
    usize::try_from(choices.below(len as u64)).unwrap()
}

fn pick<C: Choices>(choices: &mut C, of: &[u32]) -> u32 {
    of[index(choices, of.len())]
}

/// Returns the configuration of an end with random sizes.
pub(crate) fn config<C: Choices>(
    side: Side,
    speaks: Speaks,
    largest: u32,
    choices: &mut C,
) -> Config {
    let size = |choices: &mut C| 4096 << choices.below(3);
    let one_k = |choices: &mut C| 1024 << choices.below(4);
    Config {
        speaks,
        calls: u16::try_from(1 + choices.below(12)).unwrap(),
        served: u16::try_from(1 + choices.below(12)).unwrap(),
        credits: 2 + up_to(choices, 19),
        private_data: PrivateData::new(choices.chance(0.5), one_k(choices), one_k(choices))
            .unwrap(),
        properties: Properties {
            send_size: size(choices),
            receive_size: size(choices),
            segment_size: pick(choices, &[largest / 2, largest]),
            segment_count: 64,
            reverse: ReverseSupport::General,
        },
        host_auth: if choices.chance(0.3) { vec![7; 100] } else { Vec::new() },
        message_max: 2 * largest,
        parts_max: pick(choices, &[1, 3, 1000]),
        registration_max: pick(choices, &[largest / 2, largest]),
        ord: u16::try_from(1 + choices.below(4)).unwrap(),
        read_max: pick(choices, &[largest >> 10, 1 << 14, largest]),
        ..Config::new(side)
    }
}
