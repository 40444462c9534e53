//! Names of programs and procedures (RFC 1813, RFC 1833, RFC 7530), header types and errors.

use heddle_rpcrdma::binding::NFS3_PROCEDURES;
use heddle_rpcrdma::property::{Value, id};
use heddle_rpcrdma::rpc::{AuthStat, Denied, ReplyBody, Status};
use heddle_rpcrdma::v2::{Property as Wire, Refusal, htype};
use heddle_rpcrdma::{rpc, v1};

use crate::item::{Procedure, Property};

const NFS4: [&str; 2] = ["NULL", "COMPOUND"];
const MOUNT: [&str; 6] = ["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"];
const NFSACL: [&str; 3] = ["NULL", "GETACL", "SETACL"];
const PORTMAP: [&str; 6] = ["NULL", "SET", "UNSET", "GETPORT", "DUMP", "CALLIT"];
const RPCBIND: [&str; 13] = [
    "NULL",
    "SET",
    "UNSET",
    "GETADDR",
    "DUMP",
    "BCAST",
    "GETTIME",
    "UADDR2TADDR",
    "TADDR2UADDR",
    "GETVERSADDR",
    "INDIRECT",
    "GETADDRLIST",
    "GETSTAT",
];

/// Numbers of the programs.
const PORTMAPPER: u32 = 100_000;
const NFS: u32 = 100_003;
const MOUNTD: u32 = 100_005;
/// Access lists next to NFS version 3, as Solaris and Linux have them.
const ACL: u32 = 100_227;
/// The first program number by which servers of NFS version 4 call their clients.
const NFS4_CALLBACK: u32 = 0x4000_0000;

/// Returns the name of a program's version, and the names of its procedures.
fn program(program: u32, version: u32) -> Option<(&'static str, &'static [&'static str])> {
    Some(match (program, version) {
        (PORTMAPPER, 2) => ("PORTMAP", &PORTMAP),
        (PORTMAPPER, 3 | 4) => ("RPCBIND", &RPCBIND),
        (NFS, 3) => ("NFS3", &NFS3_PROCEDURES),
        (NFS, 4) => ("NFS4", &NFS4),
        (MOUNTD, 1..=3) => ("MOUNT", &MOUNT),
        (ACL, 3) => ("NFSACL", &NFSACL),
        (NFS4_CALLBACK, _) => ("NFS4_CB", &NFS4),
        _ => return None,
    })
}

/// Returns a procedure with its names.
pub(crate) fn procedure(p: rpc::Procedure) -> Procedure {
    let named = program(p.program, p.version);
    let name = named.and_then(|(program, procedures)| {
        Some((program, *procedures.get(usize::try_from(p.procedure).ok()?)?))
    });
    Procedure { program: p.program, program_version: p.version, procedure: p.procedure, name }
}

/// Returns true if results of a procedure begin with a status, as those of NFS version 3 do.
pub(crate) fn has_status(p: &Procedure) -> bool {
    match p.program {
        NFS => p.program_version >= 3 && p.procedure > 0,
        MOUNTD => p.procedure == 1,
        _ => false,
    }
}

/// Returns the name of a reply's status.
pub(crate) fn status(body: &ReplyBody<'_>) -> String {
    match body {
        ReplyBody::Accepted { status, .. } => match *status {
            Status::Success => "SUCCESS".into(),
            Status::ProgUnavail => "PROG_UNAVAIL".into(),
            Status::ProgMismatch { low, high } => format!("PROG_MISMATCH {low}..{high}"),
            Status::ProcUnavail => "PROC_UNAVAIL".into(),
            Status::GarbageArgs => "GARBAGE_ARGS".into(),
            Status::SystemErr => "SYSTEM_ERR".into(),
        },
        ReplyBody::Denied(Denied::RpcMismatch { low, high }) => {
            format!("RPC_MISMATCH {low}..{high}")
        }
        ReplyBody::Denied(Denied::AuthError(AuthStat(n))) => format!("AUTH_ERROR {n}"),
    }
}

/// Returns the name of a procedure of version 1.
pub(crate) fn procedure_v1(kind: u32) -> &'static str {
    use v1::procedure;
    match kind {
        procedure::MSG => "RDMA_MSG",
        procedure::NOMSG => "RDMA_NOMSG",
        procedure::MSGP => "RDMA_MSGP",
        procedure::DONE => "RDMA_DONE",
        procedure::ERROR => "RDMA_ERROR",
        _ => "unknown",
    }
}

/// Returns the name of a header type of version 2.
pub(crate) fn htype_v2(kind: u32) -> &'static str {
    match kind {
        htype::ERROR => "RDMA2_ERROR",
        htype::GRANT => "RDMA2_GRANT",
        htype::CONNPROP_MIDDLE => "RDMA2_CONNPROP_MIDDLE",
        htype::CONNPROP_FINAL => "RDMA2_CONNPROP_FINAL",
        htype::CALL_EXTERNAL => "RDMA2_CALL_EXTERNAL",
        htype::CALL_MIDDLE => "RDMA2_CALL_MIDDLE",
        htype::CALL_INLINE => "RDMA2_CALL_INLINE",
        htype::REPLY_EXTERNAL => "RDMA2_REPLY_EXTERNAL",
        htype::REPLY_MIDDLE => "RDMA2_REPLY_MIDDLE",
        htype::REPLY_INLINE => "RDMA2_REPLY_INLINE",
        _ => "unknown",
    }
}

/// Returns an error of version 1 as text.
pub(crate) fn refusal_v1(refusal: v1::Refusal) -> String {
    match refusal {
        v1::Refusal::Versions { low, high } => format!("ERR_VERS {low}..{high}"),
        v1::Refusal::Chunk => "ERR_CHUNK".into(),
    }
}

/// Returns an error of version 2 as text.
pub(crate) fn refusal_v2(refusal: Refusal) -> String {
    match refusal {
        Refusal::Versions { low, high } => format!("RDMA2_ERR_VERS {low}..{high}"),
        Refusal::BadXdr => "RDMA2_ERR_BAD_XDR".into(),
        Refusal::BadPropval => "RDMA2_ERR_BAD_PROPVAL".into(),
        Refusal::InvalHtype => "RDMA2_ERR_INVAL_HTYPE".into(),
        Refusal::InvalCont => "RDMA2_ERR_INVAL_CONT".into(),
        Refusal::ReadChunks { max } => format!("RDMA2_ERR_READ_CHUNKS, at most {max}"),
        Refusal::WriteChunks { max } => format!("RDMA2_ERR_WRITE_CHUNKS, at most {max}"),
        Refusal::Segments { max } => format!("RDMA2_ERR_SEGMENTS, at most {max}"),
        Refusal::WriteResource { chunk, needed } => {
            format!("RDMA2_ERR_WRITE_RESOURCE, chunk {chunk} needs {needed} bytes")
        }
        Refusal::ReplyResource { needed } => {
            format!("RDMA2_ERR_REPLY_RESOURCE, {needed} bytes needed")
        }
        Refusal::VersMismatch => "RDMA2_ERR_VERS_MISMATCH".into(),
        Refusal::System => "RDMA2_ERR_SYSTEM".into(),
        Refusal::Unknown(code) => format!("error {code}"),
    }
}

/// Returns the name and value of a property of version 2.
pub(crate) fn property(wire: Wire<'_>) -> Property {
    let name = match wire.id {
        id::SBSIZ => "send-size",
        id::RBSIZ => "receive-size",
        id::RSSIZ => "segment-size",
        id::RCSIZ => "segment-count",
        id::BRS => "reverse",
        id::HOSTAUTH => "host-authentication",
        other => return Property { name: format!("property {other}"), value: None },
    };
    let value = match Value::of(wire) {
        Ok(
            Value::SendSize(n)
            | Value::ReceiveSize(n)
            | Value::SegmentSize(n)
            | Value::SegmentCount(n)
            | Value::Reverse(n),
        ) => n,
        // A host's authentication data may be secret, so the decoder does not show them.
        Ok(Value::HostAuth(_) | Value::Unknown) | Err(_) => None,
    };
    Property { name: name.into(), value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_procedure_is_named_by_its_program_and_version() {
        let name = |program, version, number| {
            procedure(rpc::Procedure { program, version, procedure: number }).name
        };
        assert_eq!(name(100_003, 3, 6), Some(("NFS3", "READ")));
        assert_eq!(name(100_003, 3, 21), Some(("NFS3", "COMMIT")));
        assert_eq!(name(100_003, 3, 22), None);
        assert_eq!(name(100_003, 4, 1), Some(("NFS4", "COMPOUND")));
        assert_eq!(name(100_003, 2, 6), None);
        assert_eq!(name(100_005, 3, 1), Some(("MOUNT", "MNT")));
        assert_eq!(name(100_000, 2, 3), Some(("PORTMAP", "GETPORT")));
        assert_eq!(name(100_000, 4, 3), Some(("RPCBIND", "GETADDR")));
        assert_eq!(name(u32::MAX, 1, 0), None);
    }
}
