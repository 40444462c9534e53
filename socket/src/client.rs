//! The client's side, for programs that wait for each answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::document::{Answer, Call, Fault, VERSION, to_line};
use crate::wire::{ForeignFd, Inbox, MAX_ANSWER, Received, receive, send};

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server listens there, or the server does not let us connect.
    #[error("cannot connect to {path}: {why}")]
    Connect {
        /// Path of the socket.
        path: String,
        /// The system's reason.
        why: io::Error,
    },
    /// The connection broke, or an answer did not arrive in time.
    #[error("the control socket: {0}")]
    Io(#[from] io::Error),
    /// The server has ended the connection.
    #[error("the server has closed the control socket")]
    Closed,
    /// The server sent an answer that does not belong to the request.
    #[error("the server answers what was not asked: {0}")]
    Confused(String),
    /// The server refuses the request.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    inbox: Inbox,
    next: u64,
}

impl Client {
    /// Connects to the socket at `path`. Each answer may take ten seconds.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let path = path.as_ref();
        let fail = |why| ClientError::Connect { path: path.display().to_string(), why };
        let socket = UnixStream::connect(path).map_err(fail)?;
        Client::new(socket).map_err(fail)
    }

    /// Returns a client on an existing connection.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(socket: UnixStream) -> io::Result<Client> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { socket, inbox: Inbox::new(MAX_ANSWER), next: 1 })
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError`]; after any but [`ClientError::Fault`] the connection is of no use.
    pub fn call<A: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
    ) -> Result<A, ClientError> {
        self.call_with(request, &[]).map(|(answer, _)| answer)
    }

    /// Does the same as [`call`](Client::call), with descriptors in both directions.
    ///
    /// # Errors
    /// As [`call`](Client::call).
    pub fn call_with<A: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(A, Vec<OwnedFd>), ClientError> {
        let id = self.next;
        self.next += 1;
        let sent = self.send(&to_line(&Call { v: VERSION, id, request }), fds);
        let answer = match (sent, self.answer()) {
            (_, Ok(answer)) => answer,
            // A server that turns us away says why before it closes.
            (Err(e), Err(_)) | (Ok(()), Err(e)) => return Err(e),
        };
        if answer.id != id && answer.id != 0 {
            return Err(ClientError::Confused(format!("{} for {id}", answer.id)));
        }
        let n = answer.fds as usize;
        let Some(fds) = self.inbox.take_fds(n) else {
            return Err(ClientError::Confused(format!("{n} descriptors that did not come")));
        };
        // A client trusts its server, so it may close the server's descriptors itself.
        let fds = fds.into_iter().filter_map(ForeignFd::into_fd).collect();
        Ok((answer.into_result()?, fds))
    }

    fn send(&self, mut bytes: &[u8], mut fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        while !bytes.is_empty() {
            let sent = send(self.socket.as_fd(), bytes, fds)?;
            (bytes, fds) = (&bytes[sent..], &[]);
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<Answer, ClientError> {
        loop {
            if let Some(line) = self.inbox.pop() {
                return serde_json::from_slice(&line)
                    .map_err(|e| ClientError::Confused(e.to_string()));
            }
            if receive(self.socket.as_fd(), &mut self.inbox)? == Received::End {
                return Err(ClientError::Closed);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::thread;

    use super::*;
    use crate::document::FaultKind;

    #[derive(Serialize)]
    #[serde(tag = "op", content = "args", rename_all = "kebab-case")]
    enum Ask {
        Status,
    }

    /// Answers each line with the next of `answers`.
    fn server(answers: &'static [&'static str]) -> (Client, thread::JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let served = thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            let mut asked = Vec::new();
            for answer in answers {
                asked.push(lines.next().unwrap().unwrap());
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        (Client::new(ours).unwrap(), served)
    }

    #[test]
    fn test_client_call_returns_its_answer_or_fault() {
        let (mut c, served) = server(&[
            "{\"v\":1,\"id\":1,\"ok\":5}\n",
            "{\"v\":1,\"id\":2,\"error\":{\"kind\":\"busy\",\"text\":\"later\"}}\n",
        ]);
        assert_eq!(c.call::<u8>(&Ask::Status).unwrap(), 5);
        let fault = c.call::<u8>(&Ask::Status).unwrap_err();
        assert!(matches!(fault, ClientError::Fault(f) if f.kind == FaultKind::Busy));
        assert!(matches!(
            c.call::<u8>(&Ask::Status),
            Err(ClientError::Closed | ClientError::Io(_))
        ));
        let asked = served.join().unwrap();
        assert_eq!(asked[1], "{\"v\":1,\"id\":2,\"op\":\"status\"}");
    }

    /// The server has closed the connection before the client could ask.
    #[test]
    fn test_client_reports_fault_of_server_that_closed_before_the_call() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let why = b"{\"v\":1,\"id\":0,\"error\":{\"kind\":\"denied\",\"text\":\"not you\"}}\n";
        (&theirs).write_all(why).unwrap();
        drop(theirs);
        let fault = Client::new(ours).unwrap().call::<u8>(&Ask::Status).unwrap_err();
        assert!(matches!(&fault, ClientError::Fault(f) if f.kind == FaultKind::Denied), "{fault}");
    }

    #[test]
    fn test_client_refuses_answer_that_does_not_match_its_call() {
        for answer in [
            &["{\"v\":1,\"id\":9,\"ok\":5}\n"][..],
            &["{\"v\":1,\"id\":1,\"fds\":1,\"ok\":5}\n"],
            &["{\"ok\":5}\n"],
        ] {
            let (mut c, served) = server(answer);
            assert!(
                matches!(c.call::<u8>(&Ask::Status), Err(ClientError::Confused(_))),
                "{answer:?}"
            );
            served.join().unwrap();
        }
    }
}
