//! The socket of a client, and the descriptors that come through it.
//!
//! The last close of a descriptor may take as long as its maker likes, and the queue of a socket
//! may hold descriptors that no process has received. So the front thread neither receives nor
//! closes descriptors. The front thread looks at the kind of the next data ([`Guest::read`]), and
//! has a lane of [`closer`] receive and close anything that is not plain bytes. A lane also closes
//! the client's own socket, unless its queue is empty for good.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use heddle_shm::closer;
use heddle_socket::Inbox;
use heddle_socket::wire::{self, MAX_REQUEST, RawRead, Received};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

/// Number of sockets that lanes have to close and have not closed.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Number of sockets to be closed, at a descriptor each, above which no client is admitted.
const MOST_CLOSING: usize = 512;

/// A client's socket. However the guest is dropped, a lane closes the socket, unless the socket's
/// queue is empty for good.
#[derive(Debug)]
pub(super) struct Guest {
    stream: Option<UnixStream>,
    uid: u32,
}

/// The kind of the next data.
#[derive(Debug)]
pub(super) enum Next {
    /// Plain bytes, which are in the inbox, or the end.
    Read(Received),
    /// Bytes with descriptors, which are still in the socket: [`Guest::take`].
    Descriptors,
}

impl Guest {
    /// Takes the socket of a client that has just connected.
    pub(super) fn new(stream: UnixStream) -> io::Result<Guest> {
        let uid = stream.peer_cred().map_or(u32::MAX, |cred| cred.uid());
        let guest = Guest { stream: Some(stream), uid };
        wire::guard(guest.stream().as_fd())?;
        Ok(guest)
    }

    /// Returns the socket.
    #[expect(clippy::expect_used, reason = "there until it is dropped")]
    pub(super) fn stream(&self) -> &UnixStream {
        self.stream.as_ref().expect("a guest has its socket")
    }

    /// Returns an inbox for the client's data; the client's lane closes the descriptors.
    pub(super) fn inbox(&self) -> Inbox {
        let lane = closer::lane_of(self.uid);
        Inbox::closing_by(MAX_REQUEST, Arc::new(move |fd| closer::release(lane, fd)))
    }

    /// Reads plain bytes once. Cancelling the future loses no data.
    pub(super) async fn read(&self, inbox: &mut Inbox) -> io::Result<Next> {
        let look = || wire::receive_bytes(self.stream().as_fd(), inbox);
        let found = self.stream().async_io(Interest::READABLE, look).await?;
        Ok(found.map_or(Next::Descriptors, Next::Read))
    }

    /// Has the lane read once, with descriptors. Await the future to its end: only then is the data
    /// in the inbox.
    pub(super) async fn take(&self, inbox: &mut Inbox) -> io::Result<Received> {
        let socket = self.stream().as_fd().try_clone_to_owned()?;
        let (to, from) = oneshot::channel::<io::Result<RawRead>>();
        closer::run(closer::lane_of(self.uid), move || {
            let taken = wire::take(&socket);
            drop(socket);
            drop(to.send(taken));
        });
        let taken = from.await.map_err(|_| io::Error::other("nothing was received"))?;
        inbox.add(taken?)
    }

    /// Closes the socket. Returns when the socket, and everything that the client has queued in it,
    /// is closed.
    pub(super) async fn close(mut self) {
        let (to, from) = oneshot::channel::<()>();
        self.hand_over(move || drop(to));
        // The lane sends no message: dropping its end is the signal.
        let _ = from.await;
    }

    fn hand_over(&mut self, done: impl FnOnce() + Send + 'static) {
        let Some(stream) = self.stream.take() else { return };
        // Without a runtime the socket cannot be taken from it; then the process is ending anyway.
        let Ok(stream) = stream.into_std() else { return };
        // A client whose place is free again may come back at once, without waiting for the lane.
        if wire::end(&stream) {
            drop(stream);
            return done();
        }
        CLOSING.fetch_add(1, Ordering::Relaxed);
        closer::run(closer::lane_of(self.uid), move || {
            drop(stream);
            CLOSING.fetch_sub(1, Ordering::Relaxed);
            done();
        });
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.hand_over(|| {});
    }
}

/// Returns true if so many sockets wait to be closed that no more should be admitted.
pub(super) fn too_many_closing() -> bool {
    CLOSING.load(Ordering::Relaxed) >= MOST_CLOSING
}
