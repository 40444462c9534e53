//! Operations that end a stream, or may end it.

use heddle_base::Random;
use heddle_types::{CqeOp, PostError, SendOp, Sge};

use crate::programs::draft::{Draft, NOWHERE};
use crate::programs::program::{Wrong, pick};
use crate::programs::shared::{MORE, SHARED_BUFFER};
use crate::programs::stream::{
    Bad, CANNOT_INVALIDATE, DDP_BOUNDS, DDP_STAG, LOCAL, NO_BUFFER, RDMAP_ACCESS, RDMAP_BOUNDS,
    RDMAP_STAG, STREAM_BROKEN, TOO_LONG,
};
use crate::programs::world::{SHARED, WORDS, World};
use crate::sim::{TO_BASE, pattern};

impl World {
    pub fn do_wrong(&mut self, r: &mut Random, s: usize, me: usize, wrong: Wrong) {
        *self.outcome.0.entry(format!("{wrong:?}")).or_default() += 1;
        self.streams[s].excuse(&[]);
        let peer = 1 - me;
        let far = TO_BASE + (SHARED as u64) - 10;
        let (read, write) = (self.regions[peer].read_only.stag, self.regions[peer].write_only.stag);
        let shared = self.regions[peer].shared.stag;
        let ord = self.streams[s].plan.ord[me];
        let some = |r: &mut Random| 1 + r.below(3000) as usize;
        let mut codes = vec![];
        let draft = match wrong {
            Wrong::WriteStag | Wrong::WriteBounds | Wrong::WriteAccess => {
                let (stag, to, code) = match wrong {
                    Wrong::WriteStag => (NOWHERE, TO_BASE, DDP_STAG),
                    Wrong::WriteBounds => (shared, far + 10, DDP_BOUNDS),
                    _ => (read, TO_BASE, DDP_STAG),
                };
                codes.push(code);
                let data = pattern(r.next_u64(), some(r));
                let d = Draft::new(CqeOp::Write, SendOp::Write { stag, to }).bad(Bad::Remote);
                self.with_data(r, (s, me), Draft { len: data.len(), ..d }, &data)
            }
            Wrong::ReadStag | Wrong::ReadBounds | Wrong::ReadAccess | Wrong::ReadSges => {
                let (stag, to, code) = match wrong {
                    Wrong::ReadStag => (NOWHERE, TO_BASE, RDMAP_STAG),
                    Wrong::ReadBounds => (shared, far, RDMAP_BOUNDS),
                    Wrong::ReadAccess => (write, TO_BASE, RDMAP_ACCESS),
                    _ => (shared, TO_BASE, LOCAL),
                };
                codes.push(code);
                let len = 11 + some(r);
                let refused = match wrong {
                    Wrong::ReadSges => Some(PostError::ReadSges),
                    _ if ord == 0 => Some(PostError::NoReads),
                    _ => None,
                };
                codes.extend(refused.map(|_| LOCAL));
                self.allocate(me, len).map(|sink| {
                    let mut sges = vec![self.sge(s, me, sink, len)];
                    if wrong == Wrong::ReadSges {
                        sges.push(self.sge(s, me, sink, 0));
                    }
                    let d = Draft::new(CqeOp::Read, SendOp::Read { stag, to });
                    let d = d.bad(refused.map_or(Bad::Remote, Bad::Refused));
                    Draft { sges, len, held: Some((sink, len)), ..d }
                })
            }
            Wrong::AtomicAccess | Wrong::AtomicMisaligned | Wrong::AtomicBounds => {
                let off = match wrong {
                    Wrong::AtomicMisaligned => 4 - TO_BASE % 4,
                    Wrong::AtomicBounds => 8 * WORDS as u64,
                    _ => 0,
                };
                codes.extend(match (wrong, ord) {
                    (_, 0) => vec![LOCAL],
                    (Wrong::AtomicMisaligned, _) => vec![STREAM_BROKEN, RDMAP_BOUNDS],
                    (Wrong::AtomicBounds, _) => vec![RDMAP_BOUNDS],
                    _ => vec![RDMAP_ACCESS],
                });
                let bad = if ord == 0 { Bad::Refused(PostError::NoReads) } else { Bad::Remote };
                self.atomic(r, s, me, off).map(|mut d| {
                    if let (Wrong::AtomicAccess, SendOp::Atomic { stag, to, .. }) =
                        (wrong, &mut d.op)
                    {
                        (*stag, *to) = (shared, TO_BASE);
                    }
                    d.bad(bad)
                })
            }
            Wrong::LocalStag | Wrong::LocalAccess | Wrong::LocalBounds => {
                codes.push(LOCAL);
                let mut sge = Sge { stag: NOWHERE, to: TO_BASE, len: some(r) as u32 };
                let mut d = Draft::new(CqeOp::Write, SendOp::Write { stag: shared, to: TO_BASE });
                match wrong {
                    Wrong::LocalBounds => {
                        (sge.stag, sge.to) = (self.regions[me].local[s].stag, u64::MAX - 5000);
                    }
                    Wrong::LocalAccess if ord > 0 => {
                        sge.stag = self.regions[me].read_only.stag;
                        d = Draft::new(CqeOp::Read, SendOp::Read { stag: shared, to: TO_BASE });
                    }
                    _ => {}
                }
                let len = sge.len as usize;
                Some(Draft { sges: vec![sge], len, ..d.bad(Bad::Local) })
            }
            Wrong::TooLong | Wrong::NoReceive => {
                codes.extend([NO_BUFFER, TOO_LONG]);
                let shared = self.streams[s].plan.shared[peer];
                match wrong {
                    Wrong::TooLong if shared => {
                        let len = SHARED_BUFFER + MORE + r.below(600) as usize;
                        self.send_of(r, (s, me), None, len)
                    }
                    Wrong::TooLong => {
                        let draft = self.send(r, s, me, None);
                        draft.map(|d| Draft { buffer: d.len.checked_sub(1), ..d })
                    }
                    _ => {
                        if shared {
                            self.starve(peer);
                        }
                        self.send(r, s, me, None).map(|d| Draft { buffer: None, ..d })
                    }
                }
            }
            Wrong::Invalidate => {
                codes.push(CANNOT_INVALIDATE);
                let stag = pick(r, &[NOWHERE, shared]);
                self.send(r, s, me, Some(stag)).map(|d| d.bad(Bad::Remote))
            }
            Wrong::InvalidateUnfenced => {
                codes.push(RDMAP_STAG);
                self.to_invalidate(r, s, me).and_then(|stag| self.send(r, s, me, Some(stag)))
            }
            Wrong::DeregisterTarget => {
                codes.extend([DDP_STAG, RDMAP_STAG, CANNOT_INVALIDATE]);
                self.deregister_window(r, s, me);
                None
            }
            Wrong::DeregisterLocal => {
                // The answer to a Read finds no sink.
                codes.extend([LOCAL, DDP_STAG]);
                if !self.streams[s].ends[me].local_gone {
                    let host = &self.pair.hosts[me];
                    host.mrs.deregister(self.regions[me].local[s].stag).unwrap();
                    self.streams[s].ends[me].local_gone = true;
                }
                None
            }
            // Not all misuses are possible at any time.
            Wrong::Misuse => {
                let found = (0..5).find_map(|_| self.misuse(r, s, me));
                codes.extend(found.as_ref().map(|(_, code)| *code));
                found.map(|(draft, _)| draft)
            }
            Wrong::Bind => {
                codes.push(LOCAL);
                (0..5).find_map(|_| self.bad_bind(r, s, me))
            }
            Wrong::LocalMisuse => {
                codes.push(LOCAL);
                self.streams[s].excuse(&[LOCAL]);
                self.misuse_here(r, s, me)
            }
            Wrong::InvalidateInUse => {
                self.invalidate_in_use(r, s, me);
                None
            }
            Wrong::DeregisterParent => {
                self.deregister_parent(r, s, me);
                None
            }
            Wrong::Disconnect => {
                self.disconnect(s, me);
                None
            }
            Wrong::Abort => {
                self.abort(s, me);
                let link = &self.pair.link;
                let loses = [link.loss, link.corrupt, self.pair.no_buffer];
                self.streams[s].reset_unheard = loses.into_iter().any(|chance| chance > 0.0);
                None
            }
            Wrong::Cut => {
                self.streams[s].cut = true;
                self.pair.blocked.push(self.streams[s].port);
                None
            }
        };
        self.streams[s].excuse(&codes);
        if let Some(draft) = draft {
            self.post(r, s, me, draft);
        }
    }

    /// Unregisters a region that the peer may be using.
    fn deregister_window(&mut self, r: &mut Random, s: usize, me: usize) {
        let left = &mut self.streams[s].ends[me].windows;
        let left: Vec<_> = left.iter_mut().filter(|w| !w.deregistered).collect();
        let n = left.len() as u64;
        if n == 0 {
            return;
        }
        let w = left.into_iter().nth(r.below(n) as usize).unwrap();
        (w.deregistered, w.gone) = (true, true);
        let stag = w.stag;
        self.pair.hosts[me].mrs.deregister(stag).unwrap();
        self.tick();
        self.cut_off_users(me, stag);
    }
}
