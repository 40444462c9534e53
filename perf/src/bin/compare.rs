//! Controls beside Heddle, in one run.

use std::time::Duration;

use heddle_perf::control::kernel::{PingPong, Wait};
use heddle_perf::pin;

fn main() {
    for wait in [Wait::Blocking, Wait::Spinning] {
        let cores = pin::first::<2>().unwrap();
        let p = PingPong { wait, size: 8, duration: Duration::from_secs(1), cores };
        println!("{wait:?} {:?}", p.run());
    }
}
