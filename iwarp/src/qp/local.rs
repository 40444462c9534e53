//! Requests of the send queue that send nothing: fast registrations, binds, invalidations.
//!
//! The QP carries them out in their turn: after all of every earlier request is in FPDUs, and
//! before any part of a later one is. So a Send that gives an STag to the peer, posted after the
//! STag's registration, never precedes it. FPDUs of earlier requests refer to memory and no longer
//! to STags, so an invalidation does not affect retransmissions. An invalidation waits for earlier
//! Reads, whose responses are placed by STag.
//!
//! Completions are in the order of posting. So an invalidation completes when the peer has
//! acknowledged every earlier request: then no FPDU refers to the memory through the STag any more,
//! here or on the wire.

use super::queues::{Progress, WqeOp};
use super::tx::Sending;
use super::{QpContext, QpEnv};
use crate::fault::Fault;
use heddle_mr::Kind;
use heddle_types::{Bind, BindError, CqeStatus};

/// Most local requests that one call carries out, so that other connections have their turn.
const TURN: u32 = 64;

impl QpContext {
    /// Carries out the next request, which sends nothing, and the requests of the same kind after
    /// it. Returns the next message to send.
    #[cold]
    pub(super) fn carry_out_locals<M>(&mut self, env: &QpEnv<'_, M>) -> Option<Sending> {
        self.carry_out_some(env);
        if !self.state.is_live() || self.drained || self.has_local() {
            return None;
        }
        self.start_message(env)
    }

    /// Carries out such requests, and does not look for a message to send.
    pub(super) fn carry_out_some<M>(&mut self, env: &QpEnv<'_, M>) {
        let mut failed = None;
        for _ in 0..TURN {
            if !self.has_local() {
                break;
            }
            let wqe = self.sq.wqes.at(self.sq.next);
            if let Some(why) = wqe.refused {
                failed = Some(CqeStatus::LocalQpOperation(why));
            } else if let Err(e) = self.carry_out(env, wqe.op) {
                failed = Some(CqeStatus::LocalBind(e));
            }
            if failed.is_some() {
                break;
            }
            self.counters.rare().local_binds += 1;
            self.sq.wqes.at_mut(self.sq.next).progress = Progress::Done;
            self.sq.next = self.sq.next.wrapping_add(1);
            self.pass_refused();
        }
        self.sending = None;
        if let Some(status) = failed {
            let culprit = self.local_culprit(status);
            debug_assert_eq!(culprit.fault, Fault::Local);
            return self.fail(culprit);
        }
        self.complete_sends();
    }

    /// Returns true if the next request sends nothing and may be carried out. The result can be
    /// true even after a call that carried out requests, because one call carries out a limited
    /// number.
    pub fn has_local(&self) -> bool {
        self.state.is_live()
            && !self.hold
            && self.sending.is_none()
            && self.sq.has_next()
            && self.sq.wqes.at(self.sq.next).op.is_local()
            && self.may_start()
    }

    fn carry_out<M>(&self, env: &QpEnv<'_, M>, op: WqeOp) -> Result<(), BindError> {
        let us = (self.pd, self.qpn);
        let (kind, bind) = match op {
            WqeOp::FastRegister { stag, to, access } => (Kind::Fast, Bind { stag, to, access }),
            WqeOp::BindWindow { stag, to, access } => (Kind::QpWindow, Bind { stag, to, access }),
            WqeOp::LocalInvalidate { stag } => return env.mrs.invalidate_local(us, stag),
            _ => return Err(BindError::Stag),
        };
        let sges = self.sq.sges(self.sq.wqes.at(self.sq.next));
        env.mrs.bind(us, kind, &bind, sges.iter().map(|s| (s.stag, s.to, s.len)))
    }
}
