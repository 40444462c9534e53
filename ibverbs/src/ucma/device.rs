//! The RNIC as the state machine uses it: requests to its connection manager, and the events that
//! the RNIC reports.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;

use heddle_socket::FaultKind;
use heddle_types::mpa::RtrSet;
use heddle_verbs::{
    AcceptParams, Agreed, BoundAddr, CmEvent, CmId, Congestion, ConnectFailure, ConnectParams,
    Device, DeviceError, DisconnectReason, Ecn, EventQueue, ListenFailure, ListenParams,
    ListenerId, MpaOptions, Pacing, PeerDepths, Qp, Qpn, ReserveError, TcpTerms,
};

use super::address::{in_scope, is_link_local, scope};
use super::command::ConnParam;
use super::errno::Errno;
use super::number::EventKind;
use super::reply::Identity;
use super::state::{Dial, Happening, Place, Reserved};
use crate::memory::complain;
use crate::rnic;

/// The index of a device that the kernel does not know: librdmacm then uses the GUID.
const NO_INDEX: u32 = u32::MAX;

/// Environment variables with settings of TCP for the program's listeners and connections: an
/// `rdma_set_option` for them does not exist.
const CONGESTION: &str = "HEDDLE_CONGESTION";
const ECN: &str = "HEDDLE_ECN";
const PACING: &str = "HEDDLE_PACING";

/// Returns the settings of TCP that the environment names.
fn tcp_terms() -> Result<TcpTerms, Errno> {
    fn named<T: Copy>(variable: &str, names: &[(&str, T)]) -> Result<Option<T>, Errno> {
        let Some(given) = std::env::var_os(variable).filter(|v| !v.is_empty()) else {
            return Ok(None);
        };
        let found = names.iter().find(|(name, _)| given == *name);
        found.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let all: Vec<_> = names.iter().map(|(name, _)| *name).collect();
            complain(&format!("{variable}={} is none of {}", given.display(), all.join(", ")));
            Errno::INVAL
        })
    }
    Ok(TcpTerms {
        congestion: named(CONGESTION, &Congestion::NAMES)?,
        ecn: named(ECN, &Ecn::NAMES)?,
        pacing: named(PACING, &Pacing::NAMES)?,
    })
}

/// The process's RNIC, with what connections need.
#[derive(Debug)]
pub(super) struct Rnic {
    /// The queue to which all connections and listeners report.
    pub(super) events: EventQueue,
    /// True if the RNIC is gone.
    pub(super) gone: bool,
}

impl Rnic {
    fn device(&self) -> Result<&'static Device, Errno> {
        if self.gone {
            return Err(Errno::NODEV);
        }
        rnic::device().map_err(|_| Errno::NODEV)
    }

    pub(super) fn identity(&self) -> Option<Identity> {
        self.device().ok()?;
        Some(Identity { guid: rnic::GUID.to_be_bytes(), index: NO_INDEX })
    }

    pub(super) fn has_address(&self, addr: SocketAddr) -> bool {
        self.device().is_ok_and(|device| rnic::net(device, addr).has(addr))
    }

    pub(super) fn source_for(&self, dst: SocketAddr) -> Result<SocketAddr, Errno> {
        rnic::net(self.device()?, dst).source_for(dst).ok_or(Errno::NETUNREACH)
    }

    pub(super) fn random() -> u16 {
        let bytes = RandomState::new().build_hasher().finish().to_ne_bytes();
        u16::from_ne_bytes([bytes[0], bytes[1]])
    }

    pub(super) fn reserve(&self, place: Place) -> Result<(Reserved, u16), Errno> {
        // An address of the RNIC has one port, so it needs no scope.
        let (device, addr) = (self.device()?, in_scope(place.addr, 0));
        let bound = match place.v6_only {
            true => device.reserve_addr_v6_only(addr),
            false => device.reserve_addr(addr),
        };
        let bound = bound.map_err(|e| errno_of(&e))?;
        let port = bound.addr().port();
        Ok((Reserved::new(bound), port))
    }

    pub(super) fn listen(
        &self,
        place: Place,
        reserved: Option<&Reserved>,
        backlog: u32,
    ) -> Result<ListenerId, Errno> {
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        let v6_only = place.v6_only;
        let tcp = tcp_terms()?;
        let params = ListenParams { backlog, v6_only, tcp, ..ListenParams::default() };
        let device = self.device()?;
        let listener = match reserved.and_then(Reserved::held::<BoundAddr>) {
            Some(at) => device.listen_at(at, params, &self.events),
            None => device.listen(in_scope(place.addr, 0), params, &self.events),
        };
        listener.map_err(|e| errno_of(&e))
    }

    pub(super) fn unlisten(&self, id: ListenerId) {
        // An error means that the RNIC is gone, and the listener with it.
        let _ = self.device().map(|device| device.unlisten(id));
    }

    pub(super) fn connect(&self, dial: Dial) -> Result<CmId, Errno> {
        let device = self.device()?;
        let (ird, ord) = depths(device, &dial.param);
        let mut params = ConnectParams::new(queue_pair(&dial.param)?)
            .mpa(MpaOptions::new().peer_to_peer(RtrSet::ALL))
            .reads(ird, ord);
        if !dial.local.ip().is_unspecified() {
            params = params.from(dial.local.ip());
        }
        params.private_data = dial.param.private_data;
        params.tcp = tcp_terms()?;
        let remote = match scope(dial.remote) {
            0 => dial.remote,
            link => in_scope(dial.remote, rnic::net(device, dial.remote).port_number(link)),
        };
        device.connect(remote, params, &self.events).map_err(|e| errno_of(&e))
    }

    pub(super) fn accept(&self, id: CmId, param: ConnParam) -> Result<(), Errno> {
        let device = self.device()?;
        let (ird, ord) = depths(device, &param);
        let mut params = AcceptParams::new(queue_pair(&param)?).reads(ird, ord);
        params.private_data = param.private_data;
        device.accept(id, params).map_err(|e| errno_of(&e))
    }

    pub(super) fn reject(&self, id: CmId, private_data: Vec<u8>) {
        // An error means that the RNIC or the peer is gone.
        let _ = self.device().map(|device| device.reject(id, private_data));
    }

    pub(super) fn disconnect(&self, id: CmId) {
        // As in `reject`.
        let _ = self.device().map(|device| device.disconnect(id));
    }

    /// Translates an event of the RNIC to what it means for the program's ids.
    pub(super) fn translate(&self, event: CmEvent) -> Option<Happening> {
        Some(match event {
            CmEvent::Listening { id } => Happening::Listening { id },
            CmEvent::ListenFailed { id, error } => {
                Happening::ListenFailed { id, errno: listen_errno(&error) }
            }
            CmEvent::ConnectRequest { id, listener, local, remote, private_data, peer, .. } => {
                let (local, remote) = self.scoped(local, remote);
                let param = self.asked(private_data, peer);
                Happening::Request { conn: id, listener, local, remote, param }
            }
            CmEvent::Established { id, private_data, agreed, local, .. } => {
                let (local, _) = self.scoped(local, local);
                let param = granted(private_data, agreed);
                Happening::Established { conn: id, local, param }
            }
            CmEvent::Rejected { id, private_data, peer, .. } => {
                let (kind, errno) = (EventKind::Rejected, Errno::CONNRESET);
                let param = self.asked(private_data, peer);
                Happening::Failed { conn: id, kind, errno, param }
            }
            CmEvent::ConnectError { id, error, .. } => {
                let (kind, errno) = failure(&error);
                Happening::Failed { conn: id, kind, errno, param: ConnParam::default() }
            }
            CmEvent::Disconnected { id, .. } => Happening::Disconnected { conn: id },
        })
    }

    /// Gives both ends of a connection the scopes that its link-local addresses have here.
    fn scoped(&self, local: SocketAddr, remote: SocketAddr) -> (SocketAddr, SocketAddr) {
        let Some(link) = [local, remote].into_iter().find(|at| is_link_local(at.ip())) else {
            return (local, remote);
        };
        match self.device() {
            Ok(device) => rnic::net(device, link).scoped(local, remote),
            Err(_) => (local, remote),
        }
    }

    /// Returns the peer's wishes. Its ORD is the number of Reads that this side has to serve
    /// (responder resources), its IRD the number of Reads that this side may have outstanding
    /// (initiator depth). MPA revision 1 does not carry them, so the program may then use the
    /// device's limits.
    fn asked(&self, private_data: Vec<u8>, peer: Option<PeerDepths>) -> ConnParam {
        let limits = self.device().ok().map(Device::limits);
        let most = (limits.map_or(0, |l| l.max_ird), limits.map_or(0, |l| l.max_ord));
        let ord = peer.and_then(|p| p.ord.get()).unwrap_or(most.0);
        let ird = peer.and_then(|p| p.ird.get()).unwrap_or(most.1);
        ConnParam {
            qp_num: 0,
            private_data,
            responder_resources: byte(ord.min(most.0)),
            initiator_depth: byte(ird.min(most.1)),
        }
    }
}

/// Returns true if the event says that the RNIC itself is gone.
pub(super) fn tells_of_the_end(event: &CmEvent) -> bool {
    matches!(
        event,
        CmEvent::ListenFailed { error: ListenFailure::ControlLost, .. }
            | CmEvent::ConnectError { error: ConnectFailure::ControlLost, .. }
            | CmEvent::Disconnected { reason: DisconnectReason::ControlLost, .. }
    )
}

fn granted(private_data: Vec<u8>, agreed: Agreed) -> ConnParam {
    ConnParam {
        qp_num: 0,
        private_data,
        responder_resources: byte(agreed.ird),
        initiator_depth: byte(agreed.ord),
    }
}

/// Converts a depth to the one byte that the ABI has for it.
fn byte(depth: u16) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}

/// Returns the IRD and ORD that a program asks for, capped at the device's limits.
fn depths(device: &Device, param: &ConnParam) -> (u16, u16) {
    let limits = device.limits();
    let ird = u16::from(param.responder_resources).min(limits.max_ird);
    (ird, u16::from(param.initiator_depth).min(limits.max_ord))
}

fn queue_pair(param: &ConnParam) -> Result<Qp, Errno> {
    rnic::find_qp(Qpn(param.qp_num)).ok_or(Errno::INVAL)
}

fn errno_of(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Overloaded => Errno::AGAIN,
        DeviceError::Gone | DeviceError::Ended { .. } | DeviceError::Socket(_) => Errno::NODEV,
        DeviceError::TooMany { .. } => Errno::NOMEM,
        DeviceError::Address(_, ReserveError::InUse) => Errno::ADDRINUSE,
        DeviceError::Address(..) => Errno::ADDRNOTAVAIL,
        DeviceError::Refused(fault) => match fault.kind {
            FaultKind::Denied => Errno(libc::EACCES),
            FaultKind::Busy => Errno::AGAIN,
            FaultKind::Quota => Errno::NOMEM,
            _ => Errno::INVAL,
        },
        _ => Errno::INVAL,
    }
}

fn listen_errno(error: &ListenFailure) -> Errno {
    use heddle_types::ListenError as E;
    match error {
        ListenFailure::Worker(E::InUse) => Errno::ADDRINUSE,
        ListenFailure::Worker(E::NotOurs) | ListenFailure::AddressRemoved => Errno::ADDRNOTAVAIL,
        ListenFailure::Worker(E::Full) => Errno::NOMEM,
        ListenFailure::Worker(_) => Errno::INVAL,
        ListenFailure::Withdrawn => Errno::CONNABORTED,
        ListenFailure::WorkerLost | ListenFailure::ControlLost => Errno::NODEV,
    }
}

/// Returns the event and the error number of a failed connection, as the kernel's iWARP devices
/// report them: a refusal is `REJECTED`, silence is `UNREACHABLE`, every other failure is
/// `CONNECT_ERROR`.
fn failure(error: &ConnectFailure) -> (EventKind, Errno) {
    use EventKind::{ConnectError, Rejected, Unreachable};
    use heddle_types::CloseReason;
    use heddle_types::RequestError;
    match error {
        ConnectFailure::Open(e) | ConnectFailure::Request(RequestError::Connect(e)) => {
            (ConnectError, open_errno(e))
        }
        ConnectFailure::Tcp(reason) => match reason {
            CloseReason::Refused => (Rejected, Errno::CONNREFUSED),
            CloseReason::Orderly | CloseReason::Reset => (Rejected, Errno::CONNRESET),
            CloseReason::TimedOut | CloseReason::WindowShut | CloseReason::Unfinished => {
                (Unreachable, Errno::TIMEDOUT)
            }
            CloseReason::Unreachable => (ConnectError, Errno::HOSTUNREACH),
            CloseReason::Aborted => (ConnectError, Errno::CONNABORTED),
            CloseReason::Withdrawn => (ConnectError, Errno::NETUNREACH),
        },
        ConnectFailure::PeerClosed
        | ConnectFailure::Request(RequestError::NoConnection)
        | ConnectFailure::InfiniBand(_) => (Rejected, Errno::CONNRESET),
        ConnectFailure::Startup(_) => (ConnectError, Errno::PROTO),
        ConnectFailure::TimedOut(_) => (Unreachable, Errno::TIMEDOUT),
        ConnectFailure::Cancelled => (ConnectError, Errno::CONNABORTED),
        ConnectFailure::Displaced => (ConnectError, Errno::NOMEM),
        ConnectFailure::Withdrawn => (ConnectError, Errno::NETUNREACH),
        ConnectFailure::WorkerLost | ConnectFailure::ControlLost => (ConnectError, Errno::NODEV),
        ConnectFailure::Worker(_) | ConnectFailure::Request(_) => (ConnectError, Errno::INVAL),
    }
}

fn open_errno(error: &heddle_types::ConnectError) -> Errno {
    use heddle_types::ConnectError as E;
    match error {
        E::InvalidRemote => Errno::INVAL,
        E::Family => Errno::AFNOSUPPORT,
        E::NoRoute => Errno::NETUNREACH,
        E::NotOurs => Errno::ADDRNOTAVAIL,
        E::PortInUse | E::Elsewhere => Errno::ADDRINUSE,
        E::TooManyConnections | E::TooManyNeighbors => Errno::NOMEM,
        _ => Errno(libc::EIO),
    }
}
