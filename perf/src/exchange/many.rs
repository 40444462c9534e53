//! Connections for their own sake: this module measures how fast connections begin and end, and how
//! much they take while no data moves. Their queue pairs are as small as possible.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use heddle_verbs::{
    AcceptParams, CmEvent, CmId, ConnectParams, ConnectionError, Cq, Device, EventQueue,
    ListenParams, Pd, Qp, QpInit, Sleeper,
};

use super::{ExchangeError, PATIENCE, Tally};

/// The interval between looks at the stop flag.
const LOOK: Duration = Duration::from_millis(100);

/// The objects that all connections share.
struct Ends {
    device: Device,
    pd: Pd,
    cq: Cq,
    events: EventQueue,
    sleeper: Sleeper,
    qps: HashMap<CmId, Qp>,
}

impl Ends {
    fn new(device: &Device) -> Result<Ends, ExchangeError> {
        let sleeper = Sleeper::with_fd()?;
        Ok(Ends {
            device: device.clone(),
            pd: device.alloc_pd()?,
            cq: device.create_cq(16, None)?,
            events: EventQueue::new(Some(sleeper.waker())),
            sleeper,
            qps: HashMap::new(),
        })
    }

    fn qp(&self) -> Result<Qp, ExchangeError> {
        let init = QpInit {
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            ..QpInit::new(self.cq.clone()).depths(1, 1)
        };
        Ok(self.device.create_qp(self.pd, init)?)
    }

    fn event(&self) -> Option<CmEvent> {
        self.sleeper.sleep(LOOK, || !self.events.is_empty());
        self.events.poll()
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<(), ExchangeError> {
        let qp = self.qp()?;
        let id = self.device.connect(remote, ConnectParams::new(qp.clone()), &self.events)?;
        self.qps.insert(id, qp);
        Ok(())
    }
}

/// Accepts all connections that come to `addr`, until `stop` is set.
///
/// # Errors
/// [`ExchangeError`].
pub fn accept(
    device: &Device,
    addr: SocketAddr,
    stop: &AtomicBool,
    tally: &Tally,
) -> Result<(), ExchangeError> {
    let mut ends = Ends::new(device)?;
    device.listen(addr, ListenParams::default(), &ends.events)?;
    while !stop.load(Ordering::Relaxed) {
        match ends.event() {
            Some(CmEvent::ConnectRequest { id, .. }) => {
                let qp = ends.qp()?;
                device.accept(id, AcceptParams::new(qp.clone()))?;
                ends.qps.insert(id, qp);
            }
            Some(CmEvent::Established { .. }) => {
                Tally::add(&tally.connections, 1);
                Tally::add(&tally.open, 1);
            }
            Some(CmEvent::Disconnected { id, .. }) => {
                ends.qps.remove(&id);
                tally.open.fetch_sub(1, Ordering::Relaxed);
            }
            Some(CmEvent::ConnectError { id, .. }) => drop(ends.qps.remove(&id)),
            Some(CmEvent::ListenFailed { error, .. }) => {
                return Err(ConnectionError::Listen(error).into());
            }
            Some(CmEvent::Listening { .. } | CmEvent::Rejected { .. }) | None => {}
        }
    }
    Ok(())
}

/// Which connections to make.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The address to connect to.
    pub remote: SocketAddr,
    /// The number of connections.
    pub count: u64,
    /// Most connections that are being made at a time.
    pub at_once: u64,
}

/// Makes the connections and keeps them until `stop` is set.
///
/// # Errors
/// [`ExchangeError`].
pub fn hold(
    device: &Device,
    wanted: Wanted,
    stop: &AtomicBool,
    tally: &Tally,
) -> Result<(), ExchangeError> {
    let Wanted { remote, count, at_once } = wanted;
    let mut ends = Ends::new(device)?;
    let (mut begun, mut up) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        while begun < count && begun - up < at_once {
            ends.connect(remote)?;
            begun += 1;
        }
        match ends.event() {
            Some(CmEvent::Established { .. }) => {
                up += 1;
                Tally::add(&tally.connections, 1);
                Tally::add(&tally.open, 1);
            }
            Some(event) => fail(event)?,
            None => {}
        }
    }
    Ok(())
}

/// Makes the connections, ends each at once, and returns the time that took.
///
/// # Errors
/// [`ExchangeError`].
pub fn make(device: &Device, wanted: Wanted, tally: &Tally) -> Result<Duration, ExchangeError> {
    let Wanted { remote, count, at_once } = wanted;
    let mut ends = Ends::new(device)?;
    let (mut begun, mut over) = (0, 0);
    let start = Instant::now();
    let mut last = start;
    while over < count {
        while begun < count && begun - over < at_once {
            ends.connect(remote)?;
            begun += 1;
        }
        match ends.event() {
            Some(CmEvent::Established { id, .. }) => device.disconnect(id)?,
            Some(CmEvent::Disconnected { id, .. }) => {
                ends.qps.remove(&id);
                over += 1;
                Tally::add(&tally.connections, 1);
                last = Instant::now();
            }
            Some(event) => fail(event)?,
            None if last.elapsed() > PATIENCE => return Err(ConnectionError::TimedOut.into()),
            None => {}
        }
    }
    Ok(start.elapsed())
}

/// Converts an unexpected event to an error.
fn fail(event: CmEvent) -> Result<(), ExchangeError> {
    Err(match event {
        CmEvent::ConnectError { error, .. } => ConnectionError::Connect(error).into(),
        CmEvent::Rejected { private_data, peer, .. } => {
            ConnectionError::Rejected { private_data, peer }.into()
        }
        CmEvent::Disconnected { reason, .. } => ExchangeError::Ended(reason),
        _ => return Ok(()),
    })
}
