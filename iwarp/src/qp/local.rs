//! Requests of the send queue for which nothing is sent: fast registrations, binds, invalidations.
//!
//! They are carried out in their turn: after all of every earlier request is in FPDUs, and before
//! anything of a later one is. So a Send that hands an STag to the peer, posted behind its registration,
//! never comes before it. FPDUs of earlier requests refer to memory and no longer to STags: what TCP has
//! to send again is not touched by an invalidation. An invalidation waits for earlier Reads, which
//! are placed by STag.
//!
//! Completions are in the order of posting. So an invalidation completes when all before it is
//! acknowledged: then nothing refers to the memory through the STag any more, here or on the wire.

use super::cqe::CqeStatus;
use super::queues::{Progress, WqeOp};
use super::tx::Sending;
use super::{QpContext, QpEnv};
use crate::fault::Fault;
use crate::mr::Kind;
use crate::{Bind, BindError};

/// Requests that are carried out before others have their turn.
const TURN: u32 = 64;

impl QpContext {
    /// Carries out the next request, for which nothing is sent, and those behind it of the same
    /// sort; what is to be sent then.
    #[cold]
    pub(super) fn carry_out_locals<M>(&mut self, env: &QpEnv<'_, M>) -> Option<Sending> {
        self.carry_out_some(env);
        if !self.state.is_live() || self.drained || self.has_local() {
            return None;
        }
        self.start_message(env)
    }

    /// The same, without a look at what is to be sent.
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

    /// Whether the next request may be carried out and nothing is sent for it. After a turn there
    /// may be more of them than one call carries out.
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
