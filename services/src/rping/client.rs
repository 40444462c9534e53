//! The end that starts, compares and stops.

use core::net::SocketAddr;
use std::time::{Duration, Instant};

use heddle_verbs::{
    Access, Agreed, CmEvent, CmId, ConnectFailure, ConnectParams, Cq, Cqe, CqeStatus, Data, Device,
    DeviceError, DisconnectReason, EventQueue, MpaOptions, Mr, PostError, Qp, QpInit, RecvWr,
    SendOp, SendWr,
};
use tracing::debug;

use super::{Info, message, printable};
use crate::Step;

/// The parameters of a client.
#[derive(Clone, Copy, Debug)]
pub struct RpingConfig {
    /// The server's address.
    pub remote: SocketAddr,
    /// The number of messages; 0: without end.
    pub count: u64,
    /// Bytes of a message, [`MIN_SIZE`](super::MIN_SIZE) to [`MAX_SIZE`](super::MAX_SIZE).
    pub size: u32,
    /// True if the client compares the returned bytes.
    pub validate: bool,
    /// The MPA options with which the client asks for its connection.
    pub mpa: MpaOptions,
}

/// Why a client failed.
#[derive(Debug, thiserror::Error)]
pub enum RpingError {
    /// The control plane refused.
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    /// The connection could not be established.
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, ConnectFailure),
    /// The server rejects the connection.
    #[error("{0} rejects the connection")]
    Rejected(SocketAddr),
    /// The connection ended before the client was done.
    #[error("the connection ended after {0} messages: {1}")]
    Disconnected(u64, DisconnectReason),
    /// An operation failed.
    #[error("message {0}: an operation failed: {1}")]
    Completion(u64, CqeStatus),
    /// The device did not take a work request.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// The server sent a message that is not an [`Info`].
    #[error("message {0}: the server sent {1} bytes, not {len}", len = Info::LEN)]
    Stray(u64, u32),
    /// The bytes that came back differ from the bytes that went out.
    #[error("message {0}: what came back differs from byte {1} on")]
    Differs(u64, usize),
    /// The server does not answer any more.
    #[error("message {0}: the server has not answered for {secs} s", secs = PATIENCE.as_secs())]
    Stalled(u64),
}

const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of the connection, with its reason, may come after a failed work request.
const GRACE: Duration = Duration::from_secs(3);
/// Time after a failed work request after which the client asks for the end of the connection: the
/// control plane knows the reason by then, and a peer that leaves TCP open no longer delays the end.
const ASK: Duration = Duration::from_millis(500);
const BUFFERS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    /// The client has announced its source, and waits for the first go-ahead.
    Reading,
    /// The client has announced its sink, and waits for the second go-ahead.
    Writing,
    Closing,
    Done,
}

/// A client. The caller calls [`step`](Self::step), with the RNIC's polls in between, until the
/// client is done.
pub struct RpingClient {
    device: Device,
    events: EventQueue,
    cq: Cq,
    qp: Qp,
    config: RpingConfig,
    id: CmId,
    source: Mr,
    sink: Mr,
    infos: Mr,
    inbox: Mr,
    sent: u64,
    done: u64,
    expected: Vec<u8>,
    state: State,
    agreed: Option<Agreed>,
    waits_since: Instant,
    /// The text of the message that came back last, for callers that show it.
    last: Option<String>,
    show: bool,
    /// The status of the first work request that did not succeed: an event with the reason follows
    /// after it.
    failed: Option<CqeStatus>,
    /// The client has asked for the end of the connection of a failed work request.
    asked: bool,
}

impl RpingClient {
    /// Starts to connect. With `show`, [`take_line`](Self::take_line) returns each message's text.
    pub fn new(
        device: &Device,
        config: RpingConfig,
        show: bool,
    ) -> Result<RpingClient, RpingError> {
        let pd = device.own_pd()?;
        let events = EventQueue::new(None);
        let cq = device.create_cq(64, None)?;
        let init = QpInit {
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInit::new(cq.clone()).depths(8, BUFFERS)
        };
        let qp = device.create_qp(pd.id(), init)?;
        let size = config.size as usize;
        let inbox = device.alloc_mr(pd.id(), BUFFERS as usize * Info::LEN, Access::LOCAL_WRITE)?;
        for b in 0..BUFFERS {
            post_buffer(&qp, &inbox, b.into())?;
        }
        let params = ConnectParams::new(qp.clone()).mpa(config.mpa);
        let id = device.connect(config.remote, params, &events)?;
        Ok(RpingClient {
            device: device.clone(),
            events,
            cq,
            qp,
            config,
            id,
            source: device.alloc_mr(pd.id(), size, Access::REMOTE_READ)?,
            sink: device.alloc_mr(pd.id(), size, Access::REMOTE_WRITE)?,
            infos: device.alloc_mr(pd.id(), 2 * Info::LEN, Access::NONE)?,
            inbox,
            sent: 0,
            done: 0,
            expected: Vec::new(),
            state: State::Connecting,
            agreed: None,
            waits_since: Instant::now(),
            last: None,
            show,
            failed: None,
            asked: false,
        })
    }

    /// Returns the number of messages that came back.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Returns the parameters on which the ends have agreed, after the connection is up.
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// Returns the text of the message that came back last, once.
    pub fn take_line(&mut self) -> Option<String> {
        self.last.take()
    }

    /// Makes the client end after the message in flight, as if that had been the last.
    pub fn stop(&mut self) {
        self.config.count = self.done.max(self.sent);
    }

    /// Does the work that is due. At most one message comes back in a step. After an error the
    /// client ends the connection, and the RNIC needs some more polls for that.
    pub fn step(&mut self) -> Result<Step, RpingError> {
        if self.state == State::Done {
            return Ok(Step::Done);
        }
        let result = self.advance();
        if result.is_err() {
            self.state = State::Done;
            // The connection may be gone already, so an error is ignored.
            let _ = self.device.disconnect(self.id);
        }
        result
    }

    fn advance(&mut self) -> Result<Step, RpingError> {
        if let Some(event) = self.events.poll() {
            self.handle_event(event)?;
            return Ok(Step::Busy);
        }
        if let Some(cqe) = self.cq.poll() {
            match self.handle_completion(&cqe) {
                // The event with the reason is on its way.
                Err(RpingError::Post(PostError::Ended)) => self.fail(CqeStatus::Flushed),
                handled => handled?,
            }
            return Ok(Step::Busy);
        }
        let waits = self.waits_since.elapsed();
        match self.failed {
            Some(_) if waits > ASK && !self.asked => {
                self.asked = true;
                // The connection may be gone already, so an error is ignored.
                let _ = self.device.disconnect(self.id);
                Ok(Step::Busy)
            }
            Some(status) if waits > GRACE => Err(RpingError::Completion(self.sent, status)),
            None if self.state != State::Connecting && waits > PATIENCE => {
                Err(RpingError::Stalled(self.sent))
            }
            _ => Ok(Step::Idle),
        }
    }

    fn handle_completion(&mut self, cqe: &Cqe) -> Result<(), RpingError> {
        if self.state == State::Closing || self.failed.is_some() {
            return Ok(());
        }
        if !cqe.status.is_success() {
            self.fail(cqe.status);
            return Ok(());
        }
        if cqe.wr_id & INBOX != 0 {
            if cqe.len as usize != Info::LEN {
                return Err(RpingError::Stray(self.sent, cqe.len));
            }
            post_buffer(&self.qp, &self.inbox, cqe.wr_id & !INBOX)?;
            self.go_ahead()?;
        }
        Ok(())
    }

    /// Records that the connection has ended, or is about to end; an event with the reason follows.
    fn fail(&mut self, status: CqeStatus) {
        self.failed = Some(status);
        self.waits_since = Instant::now();
    }

    fn handle_event(&mut self, event: CmEvent) -> Result<(), RpingError> {
        match event {
            CmEvent::Established { agreed, .. } => {
                debug!("connected: {agreed}");
                self.agreed = Some(agreed);
                if self.config.count > 0 || self.sent == 0 { self.ping() } else { self.close() }
            }
            CmEvent::Rejected { .. } => Err(RpingError::Rejected(self.config.remote)),
            CmEvent::ConnectError { error, .. } => {
                Err(RpingError::Connect(self.config.remote, error))
            }
            CmEvent::Disconnected { reason, .. } if self.state == State::Closing => {
                debug!(%reason, "closed");
                self.state = State::Done;
                Ok(())
            }
            CmEvent::Disconnected { reason, .. } => {
                Err(RpingError::Disconnected(self.done, reason))
            }
            CmEvent::ConnectRequest { .. }
            | CmEvent::Listening { .. }
            | CmEvent::ListenFailed { .. } => Ok(()),
        }
    }

    /// Starts the next message.
    fn ping(&mut self) -> Result<(), RpingError> {
        self.expected = message(self.sent, self.config.size);
        self.source.write(0, &self.expected);
        if self.config.validate {
            // Cleared, so that bytes of an earlier message do not pass for this one.
            self.sink.write(0, &vec![0; self.expected.len()]);
        }
        self.sent += 1;
        self.state = State::Reading;
        self.tell(0)
    }

    /// Handles a go-ahead: the server has read, or written.
    fn go_ahead(&mut self) -> Result<(), RpingError> {
        match self.state {
            State::Reading => {
                self.state = State::Writing;
                return self.tell(1);
            }
            State::Writing => {}
            // A surplus message is ignored, since the connection ends anyhow.
            State::Connecting | State::Closing | State::Done => return Ok(()),
        }
        if self.config.validate || self.show {
            let mut got = vec![0; self.expected.len()];
            self.sink.read(0, &mut got);
            if self.config.validate
                && let Some(at) = got.iter().zip(&self.expected).position(|(a, b)| a != b)
            {
                return Err(RpingError::Differs(self.sent, at));
            }
            self.last = self.show.then(|| printable(&got));
        }
        self.done += 1;
        if self.config.count > 0 && self.done >= self.config.count {
            self.close()
        } else {
            self.ping()
        }
    }

    fn close(&mut self) -> Result<(), RpingError> {
        self.state = State::Closing;
        self.waits_since = Instant::now();
        Ok(self.device.disconnect(self.id)?)
    }

    /// Announces the source (0) or the sink (1) to the server.
    fn tell(&mut self, which: usize) -> Result<(), RpingError> {
        self.waits_since = Instant::now();
        let mr = if which == 0 { &self.source } else { &self.sink };
        let info = Info { to: mr.to(), stag: mr.stag(), len: self.config.size };
        let at = which * Info::LEN;
        self.infos.write(at, &info.encode());
        Ok(self.qp.post_send(&SendWr {
            wr_id: which as u64,
            op: SendOp::Send { solicited: true, invalidate: None },
            data: Data::Sges(&[self.infos.sge(at, Info::LEN)]),
            signaled: true,
            fence: false,
        })?)
    }
}

/// Marks the work requests of the receive queue.
const INBOX: u64 = 1 << 32;

fn post_buffer(qp: &Qp, inbox: &Mr, n: u64) -> Result<(), PostError> {
    let at = usize::try_from(n).unwrap_or(0) * Info::LEN;
    qp.post_recv(&RecvWr::new(INBOX | n, &[inbox.sge(at, Info::LEN)]))
}
