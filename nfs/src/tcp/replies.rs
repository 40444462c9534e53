//! Repeated calls over TCP: a client that has lost its connection, or its patience, repeats its
//! calls with the same XIDs. A repeated call that must not be carried out twice gets the first
//! reply again.

use std::net::SocketAddr;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_rpc::Repeat;
use heddle_rpc::server::{DuplicateLimits, Duplicates, Key, Verdict};
use heddle_rpcrdma::rpc::Call;

use crate::rdma::repeat;
use crate::wire::procedure;

type Reply = Arc<Vec<u8>>;

/// Bytes at the start of a WRITE's arguments by which the cache tells WRITEs apart; the data is not
/// among them.
const WRITE_HEAD: usize = 96;

/// The replies of a server, and the calls that it carries out.
#[derive(Debug)]
pub(super) struct Replies(Mutex<Duplicates<SyncSender<Reply>, Reply>>);

impl Default for Replies {
    fn default() -> Replies {
        Replies(Mutex::new(Duplicates::new(DuplicateLimits::default())))
    }
}

/// A call that its thread carries out. If the thread panics, the threads that wait for its reply
/// learn that none will come.
struct Begun<'a> {
    replies: &'a Replies,
    key: Key,
    is_over: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.replies.done(self.key, 0, None);
        }
    }
}

impl Replies {
    fn locked(&self) -> MutexGuard<'_, Duplicates<SyncSender<Reply>, Reply>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `carry_out` to append the reply to `call` to `out`, unless the call has come before
    /// and must not be carried out again. Returns false if there is no reply.
    pub(super) fn answer(
        &self,
        peer: SocketAddr,
        call: &[u8],
        out: &mut Vec<u8>,
        carry_out: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        let Ok((header, arguments)) = Call::decode(call) else { return carry_out(out) };
        let (xid, procedure) = (header.xid, header.procedure);
        let is_kept = match repeat(procedure) {
            Repeat::Always => return carry_out(out),
            Repeat::Afterwards => false,
            Repeat::Never => true,
        };
        let head = if procedure == procedure::WRITE { WRITE_HEAD } else { usize::MAX };
        let told = arguments.get(..head).unwrap_or(arguments);
        let (wait, reply) = sync_channel(1);
        let verdict = {
            let mut duplicates = self.locked();
            let digest = duplicates.digest((xid, procedure), [told]);
            duplicates.call((peer.ip(), xid), procedure, digest, wait)
        };
        let kept = match verdict {
            Verdict::New(key) => {
                let mut begun = Begun { replies: self, key, is_over: false };
                let start = out.len();
                let is_reply = carry_out(out);
                if is_reply {
                    begun.is_over = true;
                    let reply = Arc::new(out.get(start..).unwrap_or(&[]).to_vec());
                    let kept = is_kept.then(|| Arc::clone(&reply));
                    let waiting = self.done(key, reply.len(), kept);
                    // A thread that does not wait any more has lost its connection, so a failed
                    // send is ignored.
                    waiting.into_iter().for_each(|w| drop(w.try_send(Arc::clone(&reply))));
                }
                return is_reply;
            }
            Verdict::Running => reply.recv().ok(),
            Verdict::Done(reply) => Some(reply),
        };
        kept.map(|reply| out.extend_from_slice(&reply)).is_some()
    }

    fn done(&self, key: Key, weight: usize, kept: Option<Reply>) -> Vec<SyncSender<Reply>> {
        self.locked().done(key, weight, kept.map(|kept| || kept))
    }
}

#[cfg(test)]
mod tests {
    use heddle_rpcrdma::Xid;
    use heddle_rpcrdma::rpc::{Auth, Procedure};

    use super::*;

    fn peer(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    fn call(xid: u32, procedure: Procedure, arguments: &[u8]) -> Vec<u8> {
        let call = Call { xid: Xid(xid), procedure, cred: Auth::NONE, verf: Auth::NONE };
        let mut bytes = vec![0; call.encoded_len()];
        call.encode(&mut bytes).unwrap();
        bytes.extend_from_slice(arguments);
        bytes
    }

    fn answer(replies: &Replies, port: u16, call: &[u8], reply: u8) -> Vec<u8> {
        let mut out = b"before".to_vec();
        assert!(replies.answer(peer(port), call, &mut out, |out| {
            out.push(reply);
            true
        }));
        out.split_off(6)
    }

    #[test]
    fn test_remove_is_carried_out_once_on_any_connection_and_a_lookup_each_time() {
        let replies = Replies::default();
        let remove = call(7, procedure::REMOVE, b"name");
        assert_eq!(answer(&replies, 1, &remove, 1), [1]);
        assert_eq!(answer(&replies, 1, &remove, 2), [1], "on the same connection");
        assert_eq!(answer(&replies, 2, &remove, 3), [1], "on another");
        assert_eq!(answer(&replies, 1, &call(7, procedure::REMOVE, b"other"), 4), [4]);
        assert_eq!(answer(&replies, 1, &call(8, procedure::REMOVE, b"name"), 5), [5]);
        for procedure in [procedure::LOOKUP, procedure::WRITE] {
            let again = call(9, procedure, b"name");
            assert_eq!(answer(&replies, 1, &again, 6), [6]);
            assert_eq!(answer(&replies, 1, &again, 7), [7]);
        }
    }

    #[test]
    fn test_repeated_call_waits_for_reply_of_the_running_one() {
        let replies = Replies::default();
        let remove = call(7, procedure::REMOVE, b"name");
        std::thread::scope(|scope| {
            let mut again = None;
            let mut out = Vec::new();
            assert!(replies.answer(peer(1), &remove, &mut out, |out| {
                again = Some(scope.spawn(|| answer(&replies, 2, &remove, 2)));
                while replies.locked().waiting() < 2 {
                    std::thread::yield_now();
                }
                out.push(1);
                true
            }));
            assert_eq!((out, again.unwrap().join().unwrap()), (vec![1], vec![1]));
        });
    }

    #[test]
    fn test_call_whose_thread_panicked_is_executed_when_it_is_repeated() {
        let replies = Replies::default();
        let remove = call(7, procedure::REMOVE, b"name");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            replies.answer(peer(1), &remove, &mut Vec::new(), |_| panic!("a defect"))
        }));
        assert!(panicked.is_err());
        assert_eq!(answer(&replies, 1, &remove, 2), [2]);
    }
}
