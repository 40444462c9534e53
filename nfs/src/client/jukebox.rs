//! Calls that a server asks the client to make again later (NFS3ERR_JUKEBOX: RFC 1813 section 2.6).
//!
//! The server has done nothing for such a call. The client waits, each time twice as long, and
//! makes the call anew; when the time is over, the client reports the status as it is.

use std::time::Duration;

use heddle_rpcrdma::rpc::Procedure;

use super::{Client, Transport, TransportError};
use crate::wire::{Status, Xdr, procedure};

/// How long a client repeats calls that a server asks it to make again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The first pause; each later pause is twice as long as the one before.
    pub first: Duration,
    /// The upper limit of a single pause.
    pub longest: Duration,
    /// The upper limit of all pauses of one call together.
    pub all: Duration,
}

impl Default for Patience {
    /// Pauses from 100 ms to 5 s, and 60 s in all.
    fn default() -> Patience {
        let ms = Duration::from_millis;
        Patience { first: ms(100), longest: ms(5000), all: ms(60_000) }
    }
}

/// The pauses of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    next: Duration,
    longest: Duration,
    left: Duration,
}

impl Pauses {
    pub(super) const fn new(patience: Patience) -> Pauses {
        let Patience { first, longest, all } = patience;
        Pauses { next: first, longest, left: all }
    }

    /// Returns the next pause; `None` when the time is over.
    fn next(&mut self) -> Option<Duration> {
        if self.left.is_zero() {
            return None;
        }
        let pause = self.next.min(self.left);
        self.left -= pause;
        self.next = (self.next * 2).min(self.longest);
        Some(pause)
    }
}

/// Returns true if the results of an NFS procedure say that the client is to make the call again
/// later.
fn is_jukebox(procedure: Procedure, results: &[u8]) -> bool {
    let jukebox = Status::JUKEBOX.bytes();
    procedure.program == procedure::PROGRAM
        && procedure != procedure::NULL
        && results.starts_with(&jukebox)
}

impl<T: Transport> Client<T> {
    /// Makes the client wait longer for servers that ask for it, or not at all.
    pub const fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    pub(super) const fn pauses(&self) -> Pauses {
        Pauses::new(self.patience)
    }

    /// Returns true if the results ask for the call to be made again later and time is left. In
    /// that case the function has paused before it returns.
    ///
    /// # Errors
    /// The errors of the transport.
    pub(super) fn is_to_be_made_again(
        &mut self,
        procedure: Procedure,
        results: &[u8],
        pauses: &mut Pauses,
    ) -> Result<bool, TransportError> {
        if !is_jukebox(procedure, results) {
            return Ok(false);
        }
        let Some(pause) = pauses.next() else { return Ok(false) };
        self.transport.pause(pause)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Outgoing, Pipeline, Returned, Token};
    use super::*;
    use crate::wire::{Fattr, Handle, Opaque, ReadOk};

    #[test]
    fn test_pauses_double_up_to_the_longest_until_patience_ends() {
        let ms = Duration::from_millis;
        let patience = Patience { first: ms(100), longest: ms(300), all: ms(1000) };
        let mut pauses = Pauses::new(patience);
        let all: Vec<_> = std::iter::from_fn(|| pauses.next()).collect();
        assert_eq!(all, [100, 200, 300, 300, 100].map(ms));
        let none = Patience { all: Duration::ZERO, ..patience };
        assert_eq!(Pauses::new(none).next(), None);
    }

    /// A server that asks the client to come later `left` times, and counts calls and pauses.
    struct Busy {
        left: u32,
        calls: u64,
        paused: Duration,
        answer: Option<Returned>,
    }

    impl Transport for Busy {
        fn submit(&mut self, call: &Outgoing<'_>) -> Result<Token, TransportError> {
            self.calls += 1;
            let token = Token(self.calls);
            let attributes = None::<Fattr>;
            let results = if self.left > 0 {
                self.left -= 1;
                Err::<ReadOk<'_>, _>((Status::JUKEBOX, attributes)).bytes()
            } else if call.procedure == procedure::READ {
                let data = Opaque(&b"data"[..]);
                Ok::<_, (Status, Option<Fattr>)>(ReadOk { attributes, count: 4, eof: true, data })
                    .bytes()
            } else {
                Status::OK.bytes()
            };
            self.answer = Some(Returned { token, results: Ok(results) });
            Ok(token)
        }

        fn wait(&mut self) -> Result<Returned, TransportError> {
            self.answer.take().ok_or_else(|| TransportError::Other("nothing".into()))
        }

        fn pause(&mut self, time: Duration) -> Result<(), TransportError> {
            self.paused += time;
            Ok(())
        }
    }

    fn client(left: u32) -> Client<Busy> {
        let transport = Busy { left, calls: 0, paused: Duration::ZERO, answer: None };
        Client::new(transport, Pipeline { size: 4, depth: 1 })
    }

    #[test]
    fn test_client_retries_jukebox_until_success_or_end_of_patience() {
        let mut patient = client(3);
        let results = patient.call(procedure::COMMIT, &()).unwrap();
        assert_eq!(results, Status::OK.bytes());
        let Busy { calls, paused, .. } = patient.transport;
        assert_eq!((calls, paused), (4, Duration::from_millis(700)));
        let mut never = client(u32::MAX);
        let results = never.call(procedure::COMMIT, &()).unwrap();
        assert!(is_jukebox(procedure::COMMIT, &results));
        assert_eq!(never.transport.paused, Patience::default().all);
    }

    #[test]
    fn test_read_answered_with_jukebox_is_retried() {
        let mut client = client(2);
        let (file, mut data) = (Handle::new(b"f").unwrap(), Vec::new());
        let read = client.read(file, 4, |piece| {
            data.extend_from_slice(piece);
            Ok(())
        });
        assert_eq!((read.unwrap(), &*data), (4, &b"data"[..]));
        assert_eq!(client.transport.calls, 3);
    }

    #[test]
    fn test_jukebox_status_counts_only_for_nfs_procedures() {
        let jukebox = Status::JUKEBOX.bytes();
        assert!(is_jukebox(procedure::LOOKUP, &jukebox));
        assert!(!is_jukebox(procedure::NULL, &jukebox));
        assert!(!is_jukebox(crate::wire::mount::MNT, &jukebox));
        assert!(!is_jukebox(procedure::LOOKUP, &Status::IO.bytes()));
    }
}
