//! Registers programs with the host's rpcbind (RFC 1833, version 3 of the protocol).
//!
//! Only callers on the host itself may change the entries of rpcbind. Over its local socket rpcbind
//! sees the user of a caller, records the user as the owner of an entry, and lets no other user
//! remove the entry; over TCP on the loopback the caller would need a privileged port.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use heddle_rpc::rpcbind::{Entry, PROGRAM, procedure};
use heddle_rpc::{Body, Procedure};
use heddle_rpcrdma::Xid;
use heddle_rpcrdma::rpc::{Auth, Call, Reply};

use crate::record::{self, RecordError};

/// The path of rpcbind's socket on Linux.
pub const SOCKET: &str = "/run/rpcbind.sock";

/// The protocol version that this client uses.
const VERSION: u32 = 3;

/// The longest reply in bytes that this client accepts.
const REPLY_MAX: u32 = 4096;

/// A connection to an rpcbind.
#[derive(Debug)]
pub struct Rpcbind<S> {
    stream: S,
    xid: u32,
}

impl Rpcbind<UnixStream> {
    /// Connects to rpcbind's local socket. Each call takes up to twice `timeout`.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn connect(socket: &Path, timeout: Duration) -> io::Result<Rpcbind<UnixStream>> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Rpcbind::new(stream))
    }
}

impl<S: Read + Write> Rpcbind<S> {
    /// Makes a client over a connected stream.
    pub const fn new(stream: S) -> Rpcbind<S> {
        Rpcbind { stream, xid: 0 }
    }

    /// Adds an entry. Returns false when rpcbind has another address for this version of the
    /// program and this transport; an equal entry that exists already counts as success.
    ///
    /// # Errors
    /// The errors of the stream; `InvalidData` for a malformed reply, and for a reply that refuses
    /// the call.
    pub fn set(&mut self, entry: &Entry) -> io::Result<bool> {
        self.call(procedure::SET, entry)
    }

    /// Removes an entry. Returns false when the entry does not exist, or has another owner.
    ///
    /// # Errors
    /// As those of [`set`](Rpcbind::set).
    pub fn unset(&mut self, entry: &Entry) -> io::Result<bool> {
        self.call(procedure::UNSET, entry)
    }

    fn call(&mut self, number: u32, entry: &Entry) -> io::Result<bool> {
        self.xid = self.xid.wrapping_add(1);
        let procedure = Procedure { program: PROGRAM, version: VERSION, procedure: number };
        let xid = Xid(self.xid);
        let header = Call { xid, procedure, cred: Auth::NONE, verf: Auth::NONE };
        let mut message = vec![0; header.encoded_len()];
        header.encode(&mut message).map_err(invalid)?;
        let mut arguments = Body::new();
        entry.encode(&mut arguments).map_err(invalid)?;
        message.extend_from_slice(arguments.bytes());
        record::write(&mut self.stream, &message)?;
        self.stream.flush()?;
        match record::read(&mut self.stream, &mut message, REPLY_MAX) {
            Ok(true) => {}
            Ok(false) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(RecordError::Io(e)) => return Err(e),
            Err(other) => return Err(invalid(other)),
        }
        let (reply, results) = Reply::decode(&message).map_err(invalid)?;
        if reply.xid != xid {
            return Err(invalid("a reply to another call"));
        }
        crate::client::accepted(&reply).map_err(invalid)?;
        match results.first_chunk().map(|&done| u32::from_be_bytes(done)) {
            Some(done @ 0..=1) => Ok(done == 1),
            _ => Err(invalid("results that are none")),
        }
    }
}

fn invalid(why: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_string())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn nfs() -> Entry {
        Entry::rdma(100_003, 3, "10.0.0.1:20049".parse().unwrap())
    }

    /// Returns the outcome of a call to a peer that answers with these bytes, and the bytes that
    /// the peer received. `xid` is added to the XID of the call to make that of the reply.
    fn answered(xid: u32, rest: &'static [u8]) -> (io::Result<bool>, Vec<u8>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(HOUR)).unwrap();
        let peer = thread::spawn(move || {
            let mut call = Vec::new();
            record::read(&mut theirs, &mut call, REPLY_MAX).unwrap();
            let of_call = u32::from_be_bytes(*call.first_chunk().unwrap());
            let reply = [&(of_call + xid).to_be_bytes()[..], rest].concat();
            record::write(&mut theirs, &reply).unwrap();
            call
        });
        let outcome = Rpcbind::new(ours).set(&nfs());
        (outcome, peer.join().unwrap())
    }

    /// A reply that was accepted, with AUTH_NONE and SUCCESS, in front of results.
    macro_rules! success {
        ($results:literal) => {
            concat!("\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", $results).as_bytes()
        };
    }

    #[test]
    fn test_rpcbind_call_matches_rfc_and_its_answer_is_accepted() {
        let (done, call) = answered(0, success!("\0\0\0\x01"));
        assert!(done.unwrap());
        let numbers: Vec<u32> =
            call.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        // CALL, RPC version 2, rpcbind, version 3, SET, no credential, no verifier; then the entry.
        assert_eq!(numbers[1..10], [0, 2, 100_000, 3, 1, 0, 0, 0, 0]);
        assert_eq!(numbers[10..13], [100_003, 3, 4]);
        assert_eq!(call[52..], *b"rdma\0\0\0\x0e10.0.0.1.78.81\0\0\0\0\0\0");
        assert!(!answered(0, success!("\0\0\0\0")).0.unwrap());
    }

    #[test]
    fn test_invalid_rpcbind_answers_are_reported() {
        for (xid, reply) in [
            (1, success!("\0\0\0\x01")),
            (0, success!("\0\0\0\x02")),
            (0, success!("")),
            // PROG_UNAVAIL; denied; nothing more than the XID.
            (0, b"\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"),
            (0, b"\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x05"),
            (0, b""),
        ] {
            let error = answered(xid, reply).0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{reply:?}");
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(Rpcbind::new(ours).set(&nfs()).is_err());
        // A peer that does not answer blocks no caller: the call times out.
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let error = Rpcbind::new(ours).unset(&nfs()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }
}
