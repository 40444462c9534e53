//! An RNIC at a wire whose other end is in the hands of the test.

use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Clock, Eal, ManualClock};

use super::{Far, US, config};

/// The RNIC, and the test's end of its wire.
pub struct Link {
    pub us: Endpoint,
    pub hand: ManualClock,
    /// The RNIC's station.
    pub mac: [u8; 6],
    far: Far,
}

impl Link {
    /// Opens an RNIC whose configuration `change` has changed.
    pub fn open(eal: &Eal, change: impl FnOnce(&mut EndpointConfig)) -> Link {
        let (clock, hand) = Clock::manual();
        let mut config = config(US, &clock);
        change(&mut config);
        let (us, far) = Far::open(eal, &config);
        let mac = us.port().mac();
        Link { us, hand, mac, far }
    }

    /// Puts a frame on the wire.
    pub fn put(&mut self, frame: &[u8]) {
        self.far.put(frame);
    }

    /// Returns the frames that the RNIC has sent, up to a burst of them.
    pub fn burst(&mut self) -> Vec<Vec<u8>> {
        self.far.burst()
    }

    /// Lets the RNIC do what it has to do now; returns the frames that it sends.
    pub fn settle(&mut self) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        for _ in 0..200 {
            self.us.poll();
            seen.append(&mut self.burst());
        }
        seen
    }

    /// Puts a frame on the wire; returns the frames that follow.
    pub fn say(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.put(frame);
        self.settle()
    }
}
