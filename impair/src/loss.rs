//! Which frames the wire loses.

use heddle_base::Random;

use crate::settings::{Burst, Settings};

/// The state of the loss model of one direction.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    is_bad: bool,
}

impl Loss {
    /// Returns true if the wire loses the next frame.
    pub(crate) fn takes(&mut self, settings: &Settings, random: &mut Random) -> bool {
        let Some(Burst { enter, leave, loss }) = settings.burst else {
            return random.chance(settings.loss);
        };
        // The state changes before the frame, so a burst loses the frame that begins it.
        self.is_bad = if self.is_bad { !random.chance(leave) } else { random.chance(enter) };
        random.chance(if self.is_bad { loss } else { settings.loss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_base::Seed;

    const FRAMES: usize = 1_000_000;

    fn lost(settings: &str) -> Vec<bool> {
        let settings = settings.parse().unwrap();
        let (mut loss, mut random) = (Loss::default(), Random::new(&Seed::from_u64(3)));
        (0..FRAMES).map(|_| loss.takes(&settings, &mut random)).collect()
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|l| **l).count() as f64 / lost.len() as f64
    }

    #[test]
    fn test_random_loss_takes_its_share() {
        assert_eq!(share(&lost("")), 0.0);
        assert_eq!(share(&lost("loss=1")), 1.0);
        let one = share(&lost("loss=1%"));
        assert!((0.009..0.011).contains(&one), "{one}");
    }

    #[test]
    fn test_bursts_have_the_share_and_the_length_of_the_model() {
        // The link is bad for 1 / 0.25 frames on average, and for 0.01 / 0.26 of all frames.
        let lost = lost("burst=1%:25%");
        let share = share(&lost);
        assert!((0.037..0.040).contains(&share), "{share}");
        let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count();
        let length = share * FRAMES as f64 / bursts as f64;
        assert!((3.9..4.1).contains(&length), "{length} {share}");
    }

    #[test]
    fn test_bad_and_good_link_lose_their_shares() {
        let share = share(&lost("loss=1%,burst=10%:10%:50%"));
        assert!((0.24..0.27).contains(&share), "{share}");
    }
}
