//! RPC-over-RDMA beside the raw operations that carry it.
//!
//! ```text
//!   Load ── calls ──▶ client ══ RPC-over-RDMA ══▶ server ──▶ program
//!   Client (workload) ═════ RDMA Write, Read, Send ═════▶ BenchServer
//! ```
//!
//! Each round runs the raw operation first, then each version of RPC-over-RDMA.
//!
//! * [`heddle_services::rpc`]: the procedures, and the server's side of them;
//! * [`load`]: the client's side: it keeps a number of calls in flight, times and compares them;
//! * [`pair`]: both ends in one process; [`remote`]: the client alone;
//! * [`report`]: the results of all rounds.
//!
//! # The comparison
//!
//! A raw operation moves as many bytes in the same direction by the same kind of RDMA operation,
//! with as many outstanding, on RNICs of the same shape: an RDMA Write for GET, an RDMA Read for
//! PUT, a Send for ECHO. With one ECHO at a time (`lat`) that is a ping-pong of Sends, which
//! carries the same two messages; with many (`rate`) a call is two Sends and the raw operation one.

pub mod load;
pub mod pair;
pub mod remote;
pub mod report;

use heddle_base::units::Size;
use heddle_rpc::client::{ClientError, ConnectionFailure};
use heddle_rpc::server::{AlreadyRegistered, ServerError};
use heddle_rpc::{CallError, NoMemory, Speaks, TooLong, TransportConfig};
use heddle_services::bench::Mode;
use heddle_services::rpc::program::{Call, MAX_SIZE};

use crate::embedded::BenchError;
use crate::spec::{BenchSpec, SpecError};
use crate::workload::Run;

/// The highest number of calls outstanding on a connection.
pub const MAX_DEPTH: u32 = 256;

/// A benchmark of one procedure, size and version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RpcRun {
    /// The procedure to call.
    pub call: Call,
    /// The versions of RPC-over-RDMA that the client uses.
    pub speaks: Speaks,
    /// True if the client sends private data (RFC 8797).
    pub private_data: bool,
    /// Size, connections, depth and end of the run; its `op` is the raw operation's.
    pub run: Run,
}

impl RpcRun {
    /// Makes a run of `call` with items of `size`, as `spec` says.
    pub fn new(spec: &BenchSpec, call: Call, speaks: Speaks, size: Size) -> RpcRun {
        RpcRun { call, speaks, private_data: true, run: Run::new(&raw(spec, call), size) }
    }

    /// Returns the transport configuration of both ends, with room for the outstanding calls and
    /// their registrations.
    fn transport(&self) -> TransportConfig {
        let usual = TransportConfig::default();
        let calls = u16::try_from(self.run.depth).unwrap_or(u16::MAX).max(usual.calls);
        TransportConfig {
            speaks: self.speaks,
            private_data: self.private_data,
            calls,
            registrations: usual.registrations.max(2 * u32::from(calls)),
            ..usual
        }
    }

    /// Returns the bytes of messages and items of all connections at either end. A call in flight
    /// has its item, a copy of the item at a server that makes each anew, and messages; long
    /// messages contain the item's bytes.
    fn memory(&self) -> usize {
        const MESSAGES: usize = 16 << 10;
        let call = 4 * (self.run.size as usize).next_multiple_of(64) + MESSAGES;
        self.run.qps as usize * self.run.depth as usize * call + (1 << 20)
    }
}

/// Returns the specification of the raw operation that `call` is compared with.
pub fn raw(spec: &BenchSpec, call: Call) -> BenchSpec {
    BenchSpec { op: call.raw(), ..spec.clone() }
}

/// Returns the procedures that a mode measures by default: GET and PUT measure throughput, ECHO
/// everything else.
pub fn calls_of(mode: Mode) -> &'static [Call] {
    match mode {
        Mode::Bw => &[Call::Get, Call::Put],
        Mode::Rate | Mode::Lat => &[Call::Echo],
    }
}

/// Refuses a specification that cannot run with these calls.
///
/// # Errors
/// [`SpecError`].
pub fn check(spec: &BenchSpec, calls: &[Call]) -> Result<(), SpecError> {
    let range = |what, given: u32, min: u32, max: u32| match (min..=max).contains(&given) {
        true => Ok(()),
        false => {
            Err(SpecError::Range { what, given: given.into(), min: min.into(), max: max.into() })
        }
    };
    for call in calls {
        raw(spec, *call).check()?;
    }
    for size in spec.sizes.iter() {
        range("size of an RPC item", size.0, 1, MAX_SIZE)?;
        range("depth of RPC", spec.depth_for(size), 1, MAX_DEPTH)?;
    }
    Ok(())
}

/// Returns the registered memory in bytes that one RNIC needs for all runs of a specification.
pub fn memory_for(spec: &BenchSpec) -> usize {
    // Receives and headers of a connection: some 200 messages with room for 4 KiB, more for more
    // calls.
    let conn = |run: &RpcRun| (256 + 3 * run.run.depth as usize) * 4096;
    let of = |size| {
        let run = RpcRun::new(spec, Call::Get, Speaks::BOTH, size);
        run.memory() + run.run.qps as usize * conn(&run)
    };
    // The memory of a finished run comes back a little after the next run begins, so both fit.
    2 * spec.sizes.iter().map(of).max().unwrap_or(0) + (16 << 20)
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// The RNICs, or the raw operation, failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The RPC client could not start.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The RPC server could not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server already has the program.
    #[error(transparent)]
    Registered(#[from] AlreadyRegistered),
    /// There is no memory for items.
    #[error(transparent)]
    Memory(#[from] NoMemory),
    /// The arguments are too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// A call has failed.
    #[error("call {number} failed: {error}{}", after(failure.as_ref()))]
    Call {
        /// The number of the call on its connection, from 0.
        number: u64,
        /// The error of the call.
        error: CallError,
        /// The reason why the last connection that failed has failed.
        failure: Option<ConnectionFailure>,
    },
    /// The results do not have the format of this procedure.
    #[error("the results of call {number} cannot be read")]
    Results {
        /// The number of the call on its connection, from 0.
        number: u64,
    },
    /// A byte differs from the byte that was sent.
    #[error("the {size} bytes of call {number} are wrong at byte {at}")]
    Wrong {
        /// The number of the call on its connection, from 0.
        number: u64,
        /// Bytes of the call's item.
        size: u32,
        /// The index of the first wrong byte.
        at: usize,
    },
    /// An earlier failed run took the RNICs with it.
    #[error("the benchmark's RNICs were lost when an earlier run failed")]
    Lost,
}

fn after(failure: Option<&ConnectionFailure>) -> String {
    failure.map_or_else(String::new, |failure| format!(" (connection: {failure})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_base::units::Sizes;

    #[test]
    fn test_check_takes_the_longest_item_and_depth_and_none_beyond() {
        let spec = |size, depth| BenchSpec {
            sizes: Sizes::one(Size(size)),
            depth: Some(depth),
            ..BenchSpec::default()
        };
        let check = |size, depth| check(&spec(size, depth), calls_of(Mode::Bw));
        assert_eq!(check(MAX_SIZE, 4), Ok(()));
        assert_eq!(check(1, MAX_DEPTH), Ok(()));
        for (size, depth) in [(0, 4), (MAX_SIZE + 1, 4), (1, MAX_DEPTH + 1)] {
            let e = check(size, depth);
            assert!(matches!(e, Err(SpecError::Range { .. })), "{size} {depth}: {e:?}");
        }
    }
}
