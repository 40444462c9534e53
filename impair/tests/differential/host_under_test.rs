//! The part that both hosts have in common.

use std::io;

/// The application's view of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct App {
    /// The connection was established once.
    pub open: bool,
    /// Bytes of the peer that the application has read.
    pub delivered: u64,
    /// The application has read the end of the peer's stream.
    pub ended: bool,
    /// The connection has ended with an error.
    pub failed: bool,
    /// The state once the connection was established; empty before.
    pub state: &'static str,
}

/// A TCP with an application that reads at once. Each call returns the frames that the host has sent
/// because of it.
pub trait HostUnderTest {
    /// Begins a seed: the host listens, or connects to the peer.
    fn begin(&mut self, ipv6: bool, accepted: bool, peer_port: u16) -> io::Result<Vec<Vec<u8>>>;
    fn receive(&mut self, frame: &[u8]) -> io::Result<Vec<Vec<u8>>>;
    fn write(&mut self, len: u32) -> io::Result<Vec<Vec<u8>>>;
    fn close(&mut self) -> io::Result<Vec<Vec<u8>>>;
    fn abort(&mut self) -> io::Result<Vec<Vec<u8>>>;
    fn app(&mut self) -> io::Result<App>;
    /// Ends a seed.
    fn end(&mut self) -> io::Result<()>;
}
