//! The conversion of a connection's work to work requests of a queue pair.

use heddle_rpcrdma::conn::{self, NotRegistered, WorkId};
use heddle_rpcrdma::segment::{Handle, Segment};
use heddle_verbs::{Access, PostError, SendWr, Sge, Stag};

use super::parts::{Parts, SGES};
use super::send_queue::UNNAMED;
use super::store::Store;
use crate::memory::Memory;

/// Posts fast registrations of all `regions` and puts their segments into `segments`. If there are
/// too few STags, posts none and returns whether there may be enough later. Takes `memory` for bytes
/// of the call that are in none yet.
pub(super) fn register(
    (parts, store, memory): (&mut Parts, &mut Store, &Memory),
    regions: &[conn::Region],
    segments: &mut Vec<Segment>,
) -> Result<Option<NotRegistered>, PostError> {
    segments.clear();
    if regions.len() > parts.pool.len() {
        return Ok(Some(NotRegistered::Never));
    }
    if regions.len() > parts.pool.available() {
        return Ok(Some(NotRegistered::Later));
    }
    // The memory that these few bytes lack may come back without an event of this connection, so
    // the call does not wait for it.
    if regions.iter().any(|region| store.promote(region.memory.buffer, memory).is_err()) {
        return Ok(Some(NotRegistered::Never));
    }
    for region in regions {
        let (Some(sge), Some(stag)) = (store.sge(&region.memory), parts.pool.take()) else {
            return Err(PostError::BindData);
        };
        let rights = match region.access {
            conn::Access::RemoteRead => Access::REMOTE_READ,
            conn::Access::RemoteWrite => Access::REMOTE_WRITE,
        };
        let rights = rights.with(Access::REMOTE_INVALIDATE);
        let pieces = [sge];
        // The offset of the first byte is 0, so that the peer does not learn the address of the
        // memory.
        let wr = SendWr::fast_register(UNNAMED, stag, &pieces, 0, rights).unsignaled();
        parts.places.post(&parts.qp, &wr)?;
        segments.push(Segment { handle: Handle(stag.0), length: sge.len, offset: 0 });
    }
    Ok(None)
}

/// Posts a Send. Returns the number of its header's room.
pub(super) fn send(
    (parts, store, sges): (&mut Parts, &Store, &mut Vec<Sge>),
    id: WorkId,
    (header, payload): (&[u8], &[conn::Sge]),
    invalidate: Option<Handle>,
) -> Result<usize, PostError> {
    sges.clear();
    let mut head = parts.headers.begin().ok_or(PostError::TooLong)?;
    head.put(header).ok_or(PostError::TooLong)?;
    if payload.len() < usize::from(SGES) {
        for piece in payload {
            // Copying short pieces costs less than registered memory for them and a longer list.
            if let Some(short) = store.short(piece) {
                short.iter().try_for_each(|bytes| head.put(bytes)).ok_or(PostError::TooLong)?;
            } else {
                sges.extend(head.cut());
                sges.push(store.sge(piece).ok_or(PostError::BindData)?);
            }
        }
    } else {
        // The message has more pieces than a request can have, because it has many small items.
        let mut rest = Vec::new();
        for piece in payload {
            store.gather(piece, &mut rest).ok_or(PostError::BindData)?;
        }
        head.put(&rest).ok_or(PostError::TooLong)?;
    }
    sges.extend(head.cut());
    let number = head.number();
    let mut wr = SendWr::send(id.to_bits(), sges);
    if let Some(handle) = invalidate {
        wr = wr.invalidating(Stag(handle.0));
    }
    parts.places.post(&parts.qp, &wr)?;
    Ok(number)
}

/// Posts an RDMA Read.
pub(super) fn read(
    parts: &mut Parts,
    store: &Store,
    id: WorkId,
    to: &conn::Sge,
    from: Segment,
) -> Result<(), PostError> {
    let sink = [store.sge(to).ok_or(PostError::BindData)?];
    let wr = SendWr::read(id.to_bits(), &sink, Stag(from.handle.0), from.offset);
    parts.places.post(&parts.qp, &wr)
}

/// Posts an RDMA Write, in several requests if it has many pieces; only the last may be `signaled`.
pub(super) fn write(
    (parts, store, sges): (&mut Parts, &Store, &mut Vec<Sge>),
    id: WorkId,
    from: &[conn::Sge],
    (to, signaled): (Segment, bool),
) -> Result<(), PostError> {
    let mut at = to.offset;
    let count = from.len().div_ceil(usize::from(SGES)).max(1);
    let mut chunks = from.chunks(usize::from(SGES));
    for number in 1..=count {
        sges.clear();
        for piece in chunks.next().unwrap_or(&[]) {
            sges.push(store.sge(piece).ok_or(PostError::BindData)?);
        }
        let wr = SendWr::write(id.to_bits(), sges, Stag(to.handle.0), at);
        let wr = if signaled && number == count { wr } else { wr.unsignaled() };
        parts.places.post(&parts.qp, &wr)?;
        at = sges.iter().fold(at, |at, sge| at.saturating_add(sge.len.into()));
    }
    Ok(())
}

/// Posts a local invalidation.
pub(super) fn invalidate(parts: &mut Parts, id: WorkId, stag: Stag) -> Result<(), PostError> {
    // The connection invalidates each of its handles once, so an error here is a defect.
    parts.pool.invalidating(stag).map_err(|_| PostError::BindData)?;
    parts.places.post(&parts.qp, &SendWr::local_invalidate(id.to_bits(), stag))
}
