//! Two ports of this process that a vhost-user socket joins: a back end (`net_vhost`), as the host of
//! a virtual machine has it, and a front end (`net_virtio_user`), as its guest has it.
//!
//! Frames pass as through a NIC without a wire: the back end copies them from the memory of one pool
//! into that of the other, and a frame of many segments stays whole, with the checksum that its
//! sender has left to the device. The two drivers agree on the rest over the socket. DPDK serves the
//! back end's half of this conversation on a thread of its own, so it goes on while this thread waits
//! for the front end.

use std::fs::{DirBuilder, remove_dir, remove_file};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::config::PortConfig;
use super::error::PortError;
use super::ethdev::{Joint, plug};
use super::vdev::VdevArg;
use super::{EthDev, Port};
use crate::eal::{self, Eal};

/// The time that the two ends have to agree. They take a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Descriptors of each virtqueue of [`Port::vhost_pair`]. A train takes up to 33, one for each buffer.
const DESCRIPTORS: u16 = 512;

/// Packet buffers that the front end of a [`Port::vhost_pair`] keeps for each pair of queues: one in
/// each receive descriptor, and one in each transmit descriptor until the queue needs it again.
pub const VHOST_BUFFERS: u32 = 2 * DESCRIPTORS as u32;

/// The longest path of a socket in bytes, without its NUL.
const MAX_PATH: usize = 107;

impl Port {
    /// Opens two ports joined by a vhost-user socket: the back end, with `a`, and the front end, with
    /// `b`. Queue `i` is joined to queue `i`. `name` sets the pair apart from others. Where the
    /// receiver's [`Offloads::lro`](super::Offloads) and the sender's `tso` allow it, trains pass
    /// uncut. The ports have no interrupts.
    ///
    /// The socket lies in a directory that only this user can enter, and both are gone when the
    /// ports are connected.
    ///
    /// Open the pair before other RNICs of this process register memory: the front end names all
    /// memory that DPDK knows to the back end, by its files, and registered memory has none.
    ///
    /// # Errors
    /// Fails if the drivers refuse, if they do not connect, or if the EAL has hugepages that the two
    /// ends cannot share ([`EalConfig::shares_memory`](crate::EalConfig)).
    pub fn vhost_pair(
        eal: &Eal,
        name: &str,
        a: &PortConfig,
        b: &PortConfig,
    ) -> Result<(Port, Port), PortError> {
        let failed = |why: String| PortError::Setup {
            device: format!("{name} (net_vhost and net_virtio_user)"),
            step: "connection",
            why,
        };
        if !eal.is_shareable() {
            return Err(failed(
                "the memory that both ends share is of hugepages, and DPDK was not started to \
                 share them (EalConfig::shares_memory)"
                    .into(),
            ));
        }
        let queues = a.pools.len();
        if queues != b.pools.len() {
            return Err(failed("both ends need as many queues".into()));
        }
        for pool in &b.pools {
            // A front end without buffers waits for those that wait in its own queue.
            let (has, needs) =
                (pool.available() + pool.in_use(), VHOST_BUFFERS + VHOST_BUFFERS / 2);
            if has < needs {
                return Err(failed(format!("{has} packet buffers, at least {needs} needed")));
            }
        }
        let socket = Socket::new().map_err(failed)?;
        let path = socket.path.display();
        let joins = |to: &PortConfig| to.offloads.lro && to.offloads.rx_checksum;
        let quiet = |c: &PortConfig| PortConfig {
            rx_interrupt: false,
            rx_desc: DESCRIPTORS,
            tx_desc: DESCRIPTORS,
            ..c.clone()
        };

        // The back end listens once it is configured, and the front end connects when it is plugged.
        let tso = u8::from(joins(a));
        let back = device(&format!("net_vhost_{name},iface={path},queues={queues},tso={tso}"), a)?;
        let back = Port::start(back.joined_by(Joint::Front { joins: joins(b) }), &quiet(a))?;
        // Several queues take a control queue.
        let cq = u8::from(queues > 1);
        let front = device(
            &format!(
                "net_virtio_user_{name},path={path},queues={queues},cq={cq},\
                 queue_size={DESCRIPTORS},mrg_rxbuf=1"
            ),
            b,
        )?;
        let front = front.joined_by(Joint::Back(Arc::clone(&back.device)));
        let front = Port::start(front, &quiet(b))?;
        if !(front.wait_link(PATIENCE).up && back.wait_link(PATIENCE).up) {
            // The front end starts without an error when it cannot share its memory.
            return Err(failed(eal::logged().unwrap_or_else(|| "no answer in 5 s".into())));
        }
        Ok((back, front))
    }
}

fn device(arguments: &str, config: &PortConfig) -> Result<EthDev, PortError> {
    plug(&arguments.parse::<VdevArg>()?, config.mtu, config.pools.len())
}

/// The place of a socket, in a directory of its own. Dropping it removes both; connections stay.
struct Socket {
    path: PathBuf,
}

impl Socket {
    fn new() -> Result<Socket, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let all = std::env::temp_dir();
        for _ in 0..1000 {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let dir = all.join(format!("heddle-vhost-{}-{n}", std::process::id()));
            let path = dir.join("s");
            let text = path.to_string_lossy();
            // A comma would end the argument of the device that has the path.
            if text.len() > MAX_PATH || text.contains(',') {
                let all = all.display();
                return Err(format!("{all} (TMPDIR) cannot hold a socket: it is long or has ','"));
            }
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(Socket { path }),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(format!("no directory {}: {e}", dir.display())),
            }
        }
        Err(format!("no free name in {}", all.display()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = remove_file(&self.path);
        if let Some(dir) = self.path.parent() {
            let _ = remove_dir(dir);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn test_socket_has_a_private_directory_that_goes_with_it() {
        let (one, other) = (Socket::new().unwrap(), Socket::new().unwrap());
        assert_ne!(one.path, other.path);
        let dir = one.path.parent().unwrap().to_owned();
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::write(&one.path, "").unwrap();
        drop(one);
        assert!(!dir.exists() && other.path.parent().unwrap().exists());
    }
}
