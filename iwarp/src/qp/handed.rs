//! FPDUs that one queue pair hands to its peer, where one owner has both.
//!
//! The two ends of such a connection need no stream between them. The sender makes an FPDU as it
//! makes every other, and the receiver checks it and carries it out as every other, by the same
//! functions. Only two things differ. The payload never leaves registered memory: the receiver
//! calls [`Memory::copy`] to move it from the memory that the FPDU refers to, so a Read Response
//! needs no snapshot. And the FPDU has no place in TCP's stream: both ends leave their positions as
//! they are. So the owner may stop handing over after any FPDU, and the next FPDU goes into the
//! stream as if the handed ones had never existed.
//!
//! The peer has an FPDU as soon as it is handed over. So a Send or Write that the peer accepts
//! completes at once. If the peer refuses a request, its Terminate reaches the requester before
//! anything else happens, and the request completes with the status that the Terminate stands for.

use super::buffers::Buffers;
use super::fpdu::Fpdu;
use super::queues::Progress;
use super::rx::FpduAt;
use super::stream::{Stream, place_each};
use super::{QpContext, QpEnv};
use heddle_base::{Chunks, Sum};
use heddle_mr::{MemRange, Memory};
use heddle_types::{AtomicOp, ConnectedState};

/// An FPDU as its receiver reads it. The bytes are those of the head; the payload, unless the head
/// contains it, follows in registered memory.
struct Handed<'a> {
    head: &'a [u8],
    payload: Option<MemRange>,
    len: usize,
}

impl Chunks for Handed<'_> {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        self.head.get(off..).unwrap_or_default()
    }
}

impl Stream for Handed<'_> {
    /// Returns 0: queue pairs that hand FPDUs over have agreed on no CRC.
    fn crc<M: Memory>(&self, _mem: &M, _at: usize, _body: usize) -> u32 {
        0
    }

    #[inline]
    fn place<M: Memory>(&self, mem: &M, at: usize, ranges: &[MemRange]) {
        let Some(payload) = self.payload else { return place_each(self, mem, at, ranges) };
        let mut done = u32::try_from(at.saturating_sub(self.head.len())).unwrap_or(u32::MAX);
        for dst in ranges {
            if let Some(src) = payload.slice(done, dst.len()) {
                mem.copy(*dst, src);
            }
            done = done.saturating_add(dst.len());
        }
    }
}

/// The same memory under another type. With this type the compiler makes separate code for FPDUs
/// that are handed over, and the code for frames stays as it was: it has one caller, into which it
/// is inlined whole.
#[derive(Debug)]
struct SameMemory<'a, M>(&'a M);

impl<M: Memory> Memory for SameMemory<'_, M> {
    #[inline]
    fn place(&self, dst: MemRange, src: &[u8]) {
        self.0.place(dst, src);
    }

    #[inline]
    fn gather(&self, src: MemRange, dst: &mut [u8]) {
        self.0.gather(src, dst);
    }

    #[inline]
    fn copy(&self, dst: MemRange, src: MemRange) {
        self.0.copy(dst, src);
    }

    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum) {
        self.0.digest(src, crc)
    }

    fn atomic(&self, at: MemRange, op: AtomicOp) -> Option<u64> {
        self.0.atomic(at, op)
    }

    fn takes_atomics(&self, at: MemRange) -> bool {
        self.0.takes_atomics(at)
    }
}

impl QpContext {
    /// Returns true if this end of a connection may [hand over](QpContext::hand_over): neither end
    /// has failed or closed, and FPDUs have neither CRC nor markers. An application that asks for a
    /// CRC wants it computed and compared, which takes a stream.
    pub fn can_hand_over(&self) -> bool {
        let plain = !self.crc && !self.send_markers && !self.recv_markers;
        plain && self.state == ConnectedState::Rts && !self.peer_closed
    }

    /// Starts to hand FPDUs over. The caller has made sure that the peer has taken every byte of
    /// the stream so far, and that none of them is kept for retransmission.
    pub fn begin_handing(&mut self) {
        self.acked = self.acked.max(self.tx_pos);
        self.handing = true;
    }

    /// Stops handing over: further FPDUs go into the stream.
    pub fn end_handing(&mut self) {
        self.handing = false;
    }

    /// Returns true if FPDUs are handed over, and the QP has not ended.
    #[inline]
    pub const fn is_handing(&self) -> bool {
        self.handing && self.state.is_live()
    }

    /// Hands the next FPDU over to the peer, and takes the peer's Terminate at once if the peer
    /// refuses the FPDU. Returns the FPDU's length in bytes, or `None` when there is no FPDU, or
    /// when the FPDU is of a message that [waits](QpContext::waits_for_receive) for a receive of
    /// the peer.
    ///
    /// `mulpdu` is the same as for [`poll_transmit`](QpContext::poll_transmit); `fpdu` is a place
    /// to make the FPDU in. The environments are those of this queue pair and of the peer; they
    /// differ at most in `posted`.
    #[inline]
    pub fn hand_over<M: Memory>(
        &mut self,
        peer: &mut QpContext,
        [env, peer_env]: [&QpEnv<'_, M>; 2],
        mulpdu: u16,
        (buffers, fpdu): (&mut Buffers, &mut Fpdu),
    ) -> Option<u32> {
        let mems = [SameMemory(env.mem), SameMemory(peer_env.mem)];
        let env = &QpEnv { mem: &mems[0], mrs: env.mrs, snapshots_full: false, posted: env.posted };
        let peer_env = &QpEnv { mem: &mems[1], posted: peer_env.posted, ..*env };
        if peer.rq.rqes.is_empty() && peer.rnr.may_wait() && self.waits_for(peer, [env, peer_env]) {
            return None;
        }
        if !self.make_handed(env, mulpdu, buffers, fpdu) {
            return None;
        }
        let len = fpdu.len();
        peer.take_handed(peer_env, fpdu);
        fpdu.clear(buffers);
        if !peer.state.is_live() {
            // Take the Terminate now: `complete_sends` must not count the refused request as done.
            if peer.make_handed(peer_env, mulpdu, buffers, fpdu) {
                self.take_handed(env, fpdu);
                fpdu.clear(buffers);
            }
        } else if self.state.is_live() {
            self.complete_sends();
        }
        Some(len)
    }

    /// Returns true if nothing can be handed over before the peer has a receive. A Read Response
    /// goes first, because the peer may post a receive only after it.
    #[inline(never)]
    fn waits_for<M>(&mut self, peer: &mut QpContext, [env, peer_env]: [&QpEnv<'_, M>; 2]) -> bool {
        if self.has_local() {
            // Later requests may want a receive.
            self.carry_out_some(env);
            if self.has_local() {
                return true;
            }
        }
        let wants = self.wants_receive() || self.wants_receive_for_rtr(peer);
        if !peer.state.is_live() || !wants || peer.has_receive(peer_env.posted) {
            return false;
        }
        peer.rnr.begin();
        if self.may_respond() {
            self.responses_next = true;
            return false;
        }
        true
    }

    /// Returns true if a Read Response can be handed over, even while the next request waits for a
    /// receive of the peer.
    pub fn may_respond(&self) -> bool {
        self.sending.is_none() && !self.reads.inbound.is_empty()
    }

    /// Makes an FPDU as [`poll_transmit_into`](QpContext::poll_transmit_into) does, without a place
    /// in the stream.
    #[inline]
    fn make_handed<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        mulpdu: u16,
        buffers: &mut Buffers,
        fpdu: &mut Fpdu,
    ) -> bool {
        let (pos, first) = (self.tx_pos, self.sq.next);
        let made = self.poll_transmit_into(env, mulpdu, buffers, fpdu);
        self.tx_pos = pos;
        // Requests that have been sent end where the stream ends, which is acknowledged. After a
        // failure no such request is left.
        let mut index = first;
        while self.state.is_live() && index != self.sq.next {
            let wqe = self.sq.wqes.at_mut(index);
            if wqe.progress == Progress::Sent {
                wqe.end = pos;
            }
            index = index.wrapping_add(1);
        }
        made
    }

    /// Takes an FPDU of the peer, as [`handle_stream`](QpContext::handle_stream) takes the FPDUs of
    /// a stream.
    #[inline]
    fn take_handed<M: Memory>(&mut self, env: &QpEnv<'_, M>, fpdu: &Fpdu) {
        let head = fpdu.head();
        let len = fpdu.len() as usize;
        let (Some(length), true) = (head.first_chunk(), self.state.is_live()) else {
            self.counters.rare().rx_dropped_bytes += len as u64;
            return;
        };
        let frame = FpduAt { at: 0, ulpdu: u16::from_be_bytes(*length) };
        let handed = Handed { head, payload: fpdu.payload(), len };
        if let Err(culprit) = self.handle_fpdu(env, &handed, frame, None) {
            let taken = self.handle_again(env, &handed, frame, culprit);
            debug_assert!(taken, "the sender has seen that there is a receive");
        }
    }
}
