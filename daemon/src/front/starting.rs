//! The start of the RNIC, which may not come back.
//!
//! A driver waits for its device as long as the device takes. A device that uses other addresses
//! than those it is given never answers (virtio beside its IOMMU), and only the end of the process
//! ends such a wait. So DPDK is started on a thread of its own, which the front thread gives up
//! when a signal comes, or when the start stands still.

use core::future::Future;
use core::time::Duration;

use heddle_ctl::Node;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Signals;
use crate::config::Config;
use crate::rnic::{self, Progress, StartError};

/// Time that one step of the start may take. A NIC that loads firmware takes seconds.
const STUCK: Duration = Duration::from_secs(60);

/// Interval at which the front thread looks at the step.
const LOOK: Duration = Duration::from_millis(100);

/// Starts the RNIC; returns `None` when a signal to end comes during the start.
///
/// # Errors
/// [`StartError`], also when the start stands still.
pub(super) async fn start(
    config: &Config,
    signals: &mut Signals,
) -> Result<Option<Node>, StartError> {
    let (progress, config) = (Progress::default(), config.clone());
    let (to, from) = oneshot::channel();
    let told = progress.clone();
    // No code joins this thread, because it may stand in a driver for ever.
    std::thread::Builder::new()
        .name("heddle-start".into())
        .spawn(move || drop(to.send(rnic::start(&config, &told))))
        .map_err(StartError::failed)?;
    tokio::select! {
        started = ready(from, &progress, STUCK) => started.map(Some),
        () = signals.end() => Ok(None),
    }
}

/// Awaits the result of the start.
async fn ready<T>(
    from: impl Future<Output = Result<Result<T, StartError>, oneshot::error::RecvError>>,
    progress: &Progress,
    stuck: Duration,
) -> Result<T, StartError> {
    let stands_still = async {
        while progress.since().elapsed() < stuck {
            sleep(LOOK.min(stuck)).await;
        }
    };
    tokio::select! {
        biased;
        started = from => started.unwrap_or_else(|_| {
            Err(StartError::Failed("the start has ended by a defect".into()))
        }),
        () = stands_still => Err(StartError::Failed(progress.stuck(stuck))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn run<T>(f: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(f)
    }

    #[test]
    fn test_stalled_start_fails_with_its_step_and_a_hint() {
        let (_to, from) = oneshot::channel::<Result<(), StartError>>();
        let progress = Progress::default();
        progress.opening("port1", "0000:01:00.0", true);
        let e = run(ready(from, &progress, Duration::from_millis(20))).unwrap_err().to_string();
        for part in ["port1", "0000:01:00.0", "virtio", "iova = \"pa\""] {
            assert!(e.contains(part), "{e}");
        }
        let progress = Progress::default();
        let (_to, from) = oneshot::channel::<Result<(), StartError>>();
        let e = run(ready(from, &progress, Duration::from_millis(20))).unwrap_err().to_string();
        assert!(e.contains("starting DPDK") && !e.contains("iova"), "{e}");
    }

    #[test]
    fn test_start_that_progresses_may_exceed_time_limit_of_one_step() {
        let (to, from) = oneshot::channel();
        let progress = Progress::default();
        let steps = progress.clone();
        let limit = Duration::from_secs(2);
        let starter = std::thread::spawn(move || {
            for step in 0..6 {
                steps.opening(&format!("port{step}"), "net_null0", false);
                std::thread::sleep(limit / 5);
            }
            to.send(Ok(7)).unwrap();
        });
        assert_eq!(run(ready(from, &progress, limit)).unwrap(), 7);
        starter.join().unwrap();
    }

    #[test]
    fn test_start_that_panics_is_an_error() {
        let (to, from) = oneshot::channel::<Result<(), StartError>>();
        drop(to);
        let e = run(ready(from, &Progress::default(), STUCK)).unwrap_err().to_string();
        assert!(e.contains("defect"), "{e}");
    }
}
