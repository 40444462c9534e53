//! The resources of a connection: a queue pair with its completion queue, Receives, room for
//! headers, and STags for fast registrations.

use heddle_rpcrdma::conn::{Config, Side};
use heddle_verbs::{Access, Cq, Device, DeviceError, Mr, Pd, PostError, Qp, QpInit, RecvWr, Waker};

use super::config::TransportConfig;
use super::send_queue::Places;
use crate::pool::FastPool;

/// The largest number of pieces in a Send or Write. A longer list is gathered into one piece, or
/// written by several requests.
pub(super) const SGES: u16 = 8;

/// The largest number of Sends under way: this many headers have room.
const HEADERS: u32 = 64;

/// The reason why a connection could not be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A Receive could not be posted.
    #[error("receive: {0}")]
    Receive(#[from] PostError),
}

/// The resources of a connection. They exist before the connection, because the first message may
/// arrive at once.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(super) qp: Qp,
    pub(super) cq: Cq,
    pub(super) pool: FastPool,
    pub(super) places: Places,
    pub(super) receives: Ring,
    pub(super) headers: Headers,
}

impl Parts {
    /// Creates the resources for a connection of this side. The peer may use `registrations` of
    /// memory at a time, and `waker` is woken when something has completed.
    pub(crate) fn new(
        device: &Device,
        pd: Pd,
        (side, config): (Side, &TransportConfig),
        registrations: u32,
        waker: Waker,
    ) -> Result<Parts, SetupError> {
        // This takes the larger demand of either version; the other parameters are not known yet.
        let conn: Config = config.connection(side, config.speaks, None, 1);
        let room = config.message_room() as usize;
        let receives = conn.receives();
        // A registration takes a request to begin and one to end; each piece of other work has room
        // beside all of them.
        let depth = (2 * registrations + 4 * HEADERS).max(256);
        let cq = device.create_cq(depth + receives, Some(waker))?;
        let init = QpInit {
            max_send_sge: SGES,
            max_recv_sge: 1,
            max_inline: 0,
            ..QpInit::new(cq.clone()).depths(depth, receives)
        };
        let qp = device.create_qp(pd, init)?;
        let pool = FastPool::new(device, &qp, registrations as usize, config.registration_max)?;
        let receives = Ring::new(device, pd, receives as usize, room)?;
        receives.post_all(&qp)?;
        let headers = Headers::new(device, pd, HEADERS as usize, room)?;
        Ok(Parts { qp, cq, pool, places: Places::new(depth), receives, headers })
    }

    /// Returns the queue pair of the connection.
    pub(crate) fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Returns the completion queue of the connection.
    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }
}

/// Receive buffers, all of which are posted.
#[derive(Debug)]
pub(super) struct Ring {
    mr: Mr,
    count: usize,
    room: usize,
}

impl Ring {
    fn new(device: &Device, pd: Pd, count: usize, room: usize) -> Result<Ring, DeviceError> {
        let mr = device.alloc_mr(pd, count.saturating_mul(room), Access::LOCAL_WRITE)?;
        Ok(Ring { mr, count, room })
    }

    fn post_all(&self, qp: &Qp) -> Result<(), PostError> {
        (0..self.count as u64).try_for_each(|i| self.post(qp, i))
    }

    /// Posts the buffer with this number.
    pub(super) fn post(&self, qp: &Qp, number: u64) -> Result<(), PostError> {
        let at = usize::try_from(number).unwrap_or(0).saturating_mul(self.room);
        qp.post_recv(&RecvWr::new(number, &[self.mr.sge(at, self.room)]))
    }

    /// Copies the received bytes in the buffer with this number to the front of `room`, and returns
    /// the copy.
    pub(super) fn read<'a>(&self, number: u64, len: u32, room: &'a mut Vec<u8>) -> &'a [u8] {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        // A worker reports no number or length beyond those of the posted buffers; this check only
        // keeps the range valid.
        let len = if number < self.count { (len as usize).min(self.room) } else { 0 };
        if room.len() < len {
            room.resize(self.room, 0);
        }
        let (bytes, _) = room.split_at_mut(len);
        self.mr.read(number.min(self.count) * self.room, bytes);
        bytes
    }
}

/// Room for the headers of Sends, and for short messages after them. A Send takes room when it is
/// posted, and frees the room when it has completed.
#[derive(Debug)]
pub(super) struct Headers {
    mr: Mr,
    room: usize,
    free: Vec<usize>,
}

impl Headers {
    fn new(device: &Device, pd: Pd, count: usize, room: usize) -> Result<Headers, DeviceError> {
        let mr = device.alloc_mr(pd, count.saturating_mul(room), Access::NONE)?;
        Ok(Headers { mr, room, free: (0..count).rev().collect() })
    }

    /// Returns true if there is room for a Send.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes room for a Send. Returns `None` when there is none.
    pub(super) fn begin(&mut self) -> Option<Head<'_>> {
        let number = self.free.pop()?;
        let from = number * self.room;
        Some(Head { mr: &self.mr, number, from, at: from, end: from + self.room })
    }

    /// Frees the room of a Send that has completed.
    pub(super) fn give(&mut self, number: usize) {
        self.free.push(number);
    }
}

/// The room of a Send that is being filled.
#[derive(Debug)]
pub(super) struct Head<'a> {
    mr: &'a Mr,
    number: usize,
    /// Offset of the first byte that was not cut off yet, of the next byte, and of the end.
    from: usize,
    at: usize,
    end: usize,
}

impl Head<'_> {
    /// Appends bytes. Returns `None` when they do not fit.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Option<()> {
        if bytes.len() > self.end - self.at {
            return None;
        }
        self.mr.write(self.at, bytes);
        self.at += bytes.len();
        Some(())
    }

    /// Returns the place of the bytes since the last cut, if there are any.
    pub(super) fn cut(&mut self) -> Option<heddle_verbs::Sge> {
        let len = self.at - self.from;
        let cut = (len > 0).then(|| self.mr.sge(self.from, len));
        self.from = self.at;
        cut
    }

    /// Returns the number of the room.
    pub(super) fn number(&self) -> usize {
        self.number
    }
}
