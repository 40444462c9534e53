//! The check of a REQ, before the manager keeps anything of it.

use core::net::IpAddr;

use heddle_ib::Gid;
use heddle_ib::cm::{Rej, Req, Transport};
use heddle_ib::ip_cm::{Fault, Header, IpVersions, PROTO_TCP, Service};
use heddle_types::ib::RejReason;

use super::counters::IbCounters;

/// The reason why a REQ is refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The service is not one of ours, or no application listens there.
    NoService,
    /// The REQ does not ask for a reliable connection.
    Transport,
    /// The primary path leads to another port than this one.
    Gid(IpAddr),
    /// The annex's header is wrong.
    Header(Fault),
    /// The REQ has the name, or the queue pair, of another connection.
    Stale,
    /// There is no place left for another connection.
    NoRoom,
}

impl Refused {
    /// Counts the refusal, and writes its reason into a REJ.
    pub(crate) fn say(self, rej: &mut Rej, counters: &mut IbCounters) {
        let (counter, reason) = match self {
            Refused::NoService => (&mut counters.req_no_service, RejReason::INVALID_SERVICE_ID),
            Refused::Transport => (&mut counters.req_transport, RejReason::INVALID_TRANSPORT),
            Refused::Gid(_) => (&mut counters.req_gid, RejReason::INVALID_GID),
            Refused::Header(_) => (&mut counters.req_header, RejReason::CONSUMER),
            Refused::Stale => (&mut counters.req_stale, RejReason::STALE_CONNECTION),
            Refused::NoRoom => (&mut counters.req_no_room, RejReason::NO_RESOURCES),
        };
        *counter += 1;
        rej.reason = reason;
        match self {
            Refused::Header(fault) => (rej.ari, rej.ari_len) = fault.ari(),
            // The REJ carries the GID by which this port is reached.
            Refused::Gid(ours) => {
                let Gid(gid) = ours.into();
                rej.ari[..gid.len()].copy_from_slice(&gid);
                rej.ari_len = 16;
            }
            _ => {}
        }
    }
}

/// Returns the TCP port that a REQ asks for: for reliable connections the service id has protocol
/// 6.
pub(crate) fn port(req: &Req) -> Result<u16, Refused> {
    match Service::of(req.service_id) {
        Some(Service { protocol: PROTO_TCP, port }) => Ok(port),
        _ => Err(Refused::NoService),
    }
}

/// Checks the rest of a REQ, once a listener provides the service: first the annex's header, in its
/// order, then the transport and the port that the primary path leads to. The provider of the
/// service verifies the versions first (CA11-11), so a REQ of another version gets that reason,
/// even if it has other faults.
///
/// The destination must be the address that the packet came to, because a port of RoCE has exactly
/// one address. The source must be the address that the packet came from; otherwise any host could
/// appear to applications under any address. The annex has no code for the latter.
pub(crate) fn header(
    req: &Req,
    taken: IpVersions,
    from: IpAddr,
    ours: IpAddr,
) -> Result<Header, Refused> {
    let header = Header::parse(&req.private_data, taken).map_err(Refused::Header)?;
    if req.transport != Transport::RC {
        return Err(Refused::Transport);
    }
    if req.primary.remote_gid != Gid::from(ours) {
        return Err(Refused::Gid(ours));
    }
    if header.dst != ours {
        return Err(Refused::Header(Fault::UnknownAddress { ours }));
    }
    if header.src != from {
        return Err(Refused::Header(Fault::Unspecified));
    }
    Ok(header)
}
