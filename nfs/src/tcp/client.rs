//! A client's transport over TCP.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::rpc::{Auth, AuthSys, Call, Reply};

use crate::client::{Outgoing, Returned, Token, Transport, TransportError};
use crate::record;
use crate::wire::MESSAGE_MAX;

/// The longest message in bytes that the client accepts: data, and everything that a server may put
/// around the data.
const REPLY_MAX: u32 = 2 * MESSAGE_MAX;

/// A connection, with calls in flight.
#[derive(Debug)]
pub struct TcpTransport {
    reader: BufReader<TcpStream>,
    /// The body of an AUTH_SYS credential.
    cred: Vec<u8>,
    next: u32,
    waiting: HashSet<u32>,
    message: Vec<u8>,
}

impl TcpTransport {
    /// Connects. The calls carry the user and group of this process on `machine`.
    ///
    /// # Errors
    /// The errors of the socket; `InvalidInput` for a machine name of more than 255 bytes.
    pub fn connect(
        to: impl ToSocketAddrs,
        machine: &str,
        timeout: Duration,
    ) -> io::Result<TcpTransport> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut cred = vec![0; AuthSys::MAX_LEN];
        let sys = AuthSys {
            stamp: std::process::id(),
            machine: machine.as_bytes(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            gids: heddle_rpcrdma::rpc::Gids::default(),
        };
        let body =
            sys.encode(&mut cred).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let cred = body.body().to_vec();
        // A server recognizes repeated calls of an address by their XIDs, whichever client there
        // has made them; so each client starts at a random XID.
        let first = RandomState::new().hash_one("calls");
        let first = u32::try_from(first & 0xffff_ffff).unwrap_or(0);
        Ok(TcpTransport {
            reader: BufReader::new(stream),
            cred,
            next: first,
            waiting: HashSet::new(),
            message: Vec::new(),
        })
    }
}

impl Transport for TcpTransport {
    fn submit(&mut self, call: &Outgoing<'_>) -> Result<Token, TransportError> {
        let xid = self.next;
        self.next = self.next.wrapping_add(1);
        let cred = Auth::new(heddle_rpcrdma::rpc::Flavor::SYS, &self.cred).unwrap_or(Auth::NONE);
        let header = Call { xid: Xid(xid), procedure: call.procedure, cred, verf: Auth::NONE };
        let mut message = vec![0; header.encoded_len()];
        header.encode(&mut message).map_err(|e| TransportError::Other(e.to_string()))?;
        message.extend_from_slice(call.arguments);
        let mut stream = self.reader.get_ref();
        record::write(&mut stream, &message)?;
        stream.flush()?;
        self.waiting.insert(xid);
        Ok(Token(xid.into()))
    }

    fn wait(&mut self) -> Result<Returned, TransportError> {
        loop {
            match record::read(&mut self.reader, &mut self.message, REPLY_MAX) {
                Ok(true) => {}
                Ok(false) => return Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into())),
                Err(record::RecordError::Io(e)) => return Err(TransportError::Io(e)),
                Err(e) => return Err(TransportError::Other(e.to_string())),
            }
            let (reply, results) = Reply::decode(&self.message)
                .map_err(|e| TransportError::Other(format!("reply: {e}")))?;
            // A reply to no outstanding call is ignored.
            if !self.waiting.remove(&reply.xid.0) {
                continue;
            }
            let token = Token(reply.xid.0.into());
            let results = crate::client::accepted(&reply).map(|()| results.to_vec());
            return Ok(Returned { token, results });
        }
    }
}
