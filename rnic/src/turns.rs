//! Turns of shares: the order in which the connections of several tenants make FPDUs.
//!
//! Each of the two lists of connections with FPDUs to make (for frames, and to hand over) is a plain
//! queue while all connections have one share, which has no limits. Once a connection belongs to a
//! tenant, the plain queue only takes arrivals: before each turn, the RNIC moves them into a
//! [`FairQueue`]. While connections wait there for their turn, [`ConnId::NONE`] stands for them in
//! the plain queue, so that all code that asks whether there is work asks the plain queue alone.
//!
//! A queue pair cuts FPDUs when TCP can send them, so the order in which queue pairs cut is the
//! order of new bytes on the wire, and a connection that has to wait for its rate cuts nothing.
//! TCP's own frames (ACKs, updates of the window, retransmissions, FINs) pass these lists by.

use std::collections::VecDeque;
use std::sync::Arc;

use heddle_base::Instant;
use heddle_engine::{FairQueue, Share, Shares};
use heddle_mr::Memory;
use heddle_types::{ConnId, ConnectedState};

use crate::conn::Mode;
use crate::frame::RnicFrame;
use crate::handed::Budget;
use crate::receive::Sink;
use crate::rnic::Rnic;
use crate::shared::Shared;

/// The cost of an FPDU beside its bytes, in bytes. A Write of 8 bytes takes about as many
/// instructions as a thousand bytes of a long message (`instructions/figures.toml`: `write-64-frame`
/// and `write-1424-frame`).
const FPDU_COST: u64 = 1024;

/// The cost of a turn that makes no FPDU.
const TURN_COST: u64 = 128;

/// Connections in turns of their shares: those with FPDUs for frames, and those that hand over.
#[derive(Debug, Default)]
pub(crate) struct FairTurns([FairQueue<ConnId>; 2]);

impl<F> Shared<F> {
    /// Returns a plain list, its fair turns, and the shares. The list is that of connections that
    /// hand over if `handed`, and otherwise that of connections with FPDUs for frames.
    fn turns(
        &mut self,
        handed: bool,
    ) -> (&mut VecDeque<ConnId>, &mut FairQueue<ConnId>, &mut Shares) {
        let Shared { ready, handed: joined, fair, shares, .. } = self;
        let list = if handed { &mut joined.ready } else { ready };
        (list, &mut fair.0[usize::from(handed)], shares)
    }

    /// Returns the running counts of FPDUs that were made from a list, and of their bytes.
    fn made(&self, handed: bool) -> [u64; 2] {
        let c = &self.counters;
        if handed { [c.handed_fpdus, c.handed_bytes] } else { [c.tx_fpdus, c.tx_fpdu_bytes] }
    }

    /// Charges the turn of a connection, before which [`made`](Self::made) returned `before`, to its
    /// share and to the rates.
    fn charge(&mut self, handed: bool, conn: ConnId, before: [u64; 2], now: Instant) {
        let [fpdus, bytes] = self.made(handed);
        let (fpdus, bytes) = (fpdus - before[0], bytes - before[1]);
        let (_, fair, shares) = self.turns(handed);
        fair.charge(shares, TURN_COST + fpdus * FPDU_COST + bytes);
        if bytes > 0 {
            shares.spend(conn.index(), bytes, now);
        }
    }

    /// Leaves a list as the rest of the RNIC expects it after fair turns.
    fn end_turns(&mut self, handed: bool) {
        let (list, fair, shares) = self.turns(handed);
        // The budget of all turns may have ended between two turns, or in one that was cut short.
        fair.charge(shares, 0);
        if list.is_empty() && !fair.is_empty() {
            list.push_back(ConnId::NONE);
        }
        let wakes = self.fair.0.iter().filter_map(FairQueue::next_wake);
        self.looks.set_shares(wakes.min());
    }
}

impl Mode {
    /// Returns true if the next FPDU can only be a Terminate.
    fn is_terminating(&self) -> bool {
        matches!(self, Mode::Fpdu(qp) if qp.state() == ConnectedState::Terminate)
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Makes a connection belong to a share.
    pub fn assign(&mut self, conn: ConnId, share: &Arc<Share>) {
        if let Some(lane) = self.shared.shares.assign(conn.index(), share) {
            for fair in &mut self.shared.fair.0 {
                fair.renew(lane);
            }
        }
    }

    /// Lets the next queue pair whose share has its turn cut FPDUs; returns false if no queue pair
    /// had any to cut.
    #[inline(never)]
    pub(crate) fn make_fairly<M: Memory>(&mut self, now: Instant, mem: &M) -> bool {
        let mut made = false;
        while !made && let Some((conn, credit)) = self.next_turn(false, now) {
            let before = self.shared.made(false);
            self.shared.ready.push_back(conn);
            made = self.make_fpdus(mem, credit);
            self.shared.charge(false, conn, before, now);
            // A queue pair with more requests that send nothing than it may carry out at a time is on
            // the list again, and goes on in the worker's next turn.
            if !made && !self.shared.ready.is_empty() {
                break;
            }
        }
        self.shared.end_turns(false);
        made
    }

    /// Hands over FPDUs in turns of the shares.
    #[inline(never)]
    pub(crate) fn hand_fairly<M: Memory>(&mut self, now: Instant, sink: Sink<'_, M>) {
        let mut left = Budget::TURN;
        while left.is_some()
            && let Some((conn, credit)) = self.next_turn(true, now)
        {
            let before = self.shared.made(true);
            self.hand_from(now, sink, (conn, credit), &mut left);
            self.shared.charge(true, conn, before, now);
        }
        self.shared.end_turns(true);
    }

    /// Returns the next connection in the turns of the shares, and the bytes that it may send by
    /// its own rate and that of its share.
    fn next_turn(&mut self, handed: bool, now: Instant) -> Option<(ConnId, u64)> {
        self.take_arrivals(handed);
        let Rnic { stack, shared, .. } = self;
        let (_, fair, shares) = shared.turns(handed);
        while let Some((conn, credit)) = fair.pop(shares, Some(now)) {
            let Some((_, state)) = stack.get_mut(conn) else { continue };
            if state.mode.is_terminating() {
                return Some((conn, u64::MAX));
            }
            match shares.credit(conn.index(), now) {
                Ok(own) => return Some((conn, credit.min(own))),
                // The connection stays on the list: it is among those that wait.
                Err(until) => fair.wait(shares.lane(conn.index()), conn, now, until),
            }
        }
        None
    }

    /// Moves the connections of a plain list into fair turns. A Terminate waits for no share and no
    /// rate: the peer has to learn that the stream has ended.
    fn take_arrivals(&mut self, handed: bool) {
        let Rnic { stack, shared, .. } = self;
        let (list, fair, shares) = shared.turns(handed);
        for conn in list.drain(..) {
            let Some((_, state)) = stack.get_mut(conn) else { continue };
            if state.mode.is_terminating() {
                fair.urge(conn);
            } else {
                fair.push(shares.lane(conn.index()), conn);
            }
        }
    }

    /// Lets shares and connections go on that have waited for their rates.
    pub(crate) fn wake_shares(&mut self, now: Instant) {
        if !self.shared.looks.are_shares_due(now) {
            return;
        }
        for handed in [false, true] {
            let (_, fair, shares) = self.shared.turns(handed);
            fair.wake(shares, now);
            self.shared.end_turns(handed);
        }
    }
}
