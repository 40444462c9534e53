//! FPDUs that break a rule each, and the answers to them.

use heddle_iwarp::ddp::Qn;
use heddle_iwarp::rdmap::Opcode;
use heddle_types::TermCode;
use heddle_verbs::Stag;

use crate::common::*;
use crate::fpdus::make::*;

/// The FPDU's bytes, the code of the Terminate that answers it, and the counter that counts it.
pub(crate) type Case = (&'static str, fn(&Regions) -> Vec<u8>, TermCode, &'static str);

pub(crate) const CASES: &[Case] = &[
    ("a wrong CRC", |_| flipped(send(1, 20), usize::MAX), TermCode::MPA_CRC, "err_crc"),
    ("a damaged payload", |_| flipped(send(1, 20), 25), TermCode::MPA_CRC, "err_crc"),
    (
        "a damaged STag",
        |r| flipped(write(r.all.stag(), r.all.to(), 9), 5),
        TermCode::MPA_CRC,
        "err_crc",
    ),
    ("an empty ULPDU", |_| raw(b""), TermCode::RDMAP_STREAM_CATASTROPHIC, "err_short"),
    ("half a header", |_| raw(&[0xc1, 0x40, 0]), TermCode::RDMAP_STREAM_CATASTROPHIC, "err_short"),
    (
        "DDP version 0, untagged",
        |_| changed(&send(1, 4), 0, 0x40),
        TermCode::DDP_UNTAGGED_VERSION,
        "err_ddp_version",
    ),
    (
        "DDP version 2, tagged",
        |r| changed(&write(r.all.stag(), r.all.to(), 4), 0, 0xc2),
        TermCode::DDP_TAGGED_VERSION,
        "err_ddp_version",
    ),
    (
        "RDMAP version 0",
        |_| changed(&send(1, 4), 1, 0x03),
        TermCode::RDMAP_VERSION,
        "err_rdmap_version",
    ),
    (
        "RDMAP version 2",
        |_| changed(&send(1, 4), 1, 0x83),
        TermCode::RDMAP_VERSION,
        "err_rdmap_version",
    ),
    ("opcode 15", |_| changed(&send(1, 4), 1, 0x4f), TermCode::RDMAP_OPCODE, "err_opcode"),
    (
        "a Send on the queue of Read Requests",
        |_| fpdu(untagged(Opcode::SEND, Qn::READ_REQUEST, 1, 0), &[0; 28]),
        TermCode::RDMAP_OPCODE,
        "err_opcode",
    ),
    (
        "a Send that is tagged",
        |r| tagged(Opcode::SEND, r.all.stag(), r.all.to(), 4),
        TermCode::RDMAP_OPCODE,
        "err_opcode",
    ),
    (
        "a Read Response nobody asked for",
        |r| tagged(Opcode::READ_RESPONSE, r.all.stag(), r.all.to(), 4),
        TermCode::RDMAP_OPCODE,
        "err_opcode",
    ),
    (
        "an Atomic Request for no region",
        |_| fpdu(untagged(Opcode::ATOMIC_REQUEST, Qn::READ_REQUEST, 1, 0), &[0; 52]),
        TermCode::RDMAP_INVALID_STAG,
        "err_stag",
    ),
    (
        "queue 4",
        |_| fpdu(untagged(Opcode::SEND, Qn(4), 1, 0), b"x"),
        TermCode::DDP_INVALID_QN,
        "err_queue",
    ),
    (
        "the last queue there could be",
        |_| fpdu(untagged(Opcode::SEND, Qn(u32::MAX), 1, 0), b"x"),
        TermCode::DDP_INVALID_QN,
        "err_queue",
    ),
    ("MSN 0", |_| send(0, 4), TermCode::DDP_MSN_RANGE, "err_msn"),
    ("MSN 2 before 1", |_| send(2, 4), TermCode::DDP_MSN_RANGE, "err_msn"),
    (
        "MSN 2 of the Read Requests before 1",
        |r| read_request(2, r.all.stag(), r.all.to(), 4),
        TermCode::DDP_MSN_RANGE,
        "err_msn",
    ),
    (
        "an offset of 1 in a message that has not begun",
        |_| fpdu(untagged(Opcode::SEND, Qn::SEND, 1, 1), b"x"),
        TermCode::DDP_INVALID_MO,
        "err_offset",
    ),
    ("a Send longer than its buffer", |_| send(1, 65), TermCode::DDP_TOO_LONG, "err_too_long"),
    (
        "a Send for which there is no buffer",
        |_| [send(1, 0), send(2, 0), send(3, 1)].concat(),
        TermCode::DDP_NO_BUFFER,
        "err_no_buffer",
    ),
    (
        "a Read Request of 27 bytes",
        |_| fpdu(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, 1, 0), &[0; 27]),
        TermCode::RDMAP_STREAM_CATASTROPHIC,
        "err_malformed",
    ),
    (
        "a Read Request of 29 bytes",
        |_| fpdu(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, 1, 0), &[0; 29]),
        TermCode::DDP_TOO_LONG,
        "err_too_long",
    ),
    (
        "one Read more than agreed",
        |r| (1..=17).flat_map(|n| read_request(n, r.all.stag(), r.all.to(), 4)).collect(),
        TermCode::DDP_NO_BUFFER,
        "err_no_buffer",
    ),
    (
        "a Write to an STag that does not exist",
        |r| write(Stag(r.all.stag().0 ^ 0x0100_0000), r.all.to(), 4),
        TermCode::DDP_INVALID_STAG,
        "err_stag",
    ),
    (
        "a Write with another key",
        |r| write(Stag(r.all.stag().0 ^ 1), r.all.to(), 4),
        TermCode::DDP_INVALID_STAG,
        "err_stag",
    ),
    (
        "a Write into another protection domain",
        |r| write(r.other.stag(), r.other.to(), 4),
        TermCode::DDP_STAG_NOT_ASSOCIATED,
        "err_association",
    ),
    (
        "a Write where only reading is allowed",
        |r| write(r.read.stag(), r.read.to(), 4),
        TermCode::DDP_INVALID_STAG,
        "err_access",
    ),
    (
        "a Write into a region for local use",
        |r| write(r.none.stag(), r.none.to(), 4),
        TermCode::DDP_INVALID_STAG,
        "err_access",
    ),
    (
        "a Write one byte beyond the end",
        |r| write(r.all.stag(), r.all.to() + REGION as u64 - 3, 4),
        TermCode::DDP_BOUNDS,
        "err_bounds",
    ),
    (
        "a Write one byte before the start",
        |r| write(r.all.stag(), r.all.to() - 1, 4),
        TermCode::DDP_BOUNDS,
        "err_bounds",
    ),
    (
        "a Write whose offset wraps",
        |r| write(r.all.stag(), u64::MAX - 1, 4),
        TermCode::DDP_TO_WRAP,
        "err_wrap",
    ),
    (
        "a Read of an STag that does not exist",
        |r| read_request(1, Stag(r.all.stag().0 ^ 1), r.all.to(), 4),
        TermCode::RDMAP_INVALID_STAG,
        "err_stag",
    ),
    (
        "a Read from another protection domain",
        |r| read_request(1, r.other.stag(), r.other.to(), 4),
        TermCode::RDMAP_STAG_NOT_ASSOCIATED,
        "err_association",
    ),
    (
        "a Read where only writing is allowed",
        |r| read_request(1, r.write.stag(), r.write.to(), 4),
        TermCode::RDMAP_ACCESS,
        "err_access",
    ),
    (
        "a Read one byte beyond the end",
        |r| read_request(1, r.all.stag(), r.all.to(), REGION as u32 + 1),
        TermCode::RDMAP_BOUNDS,
        "err_bounds",
    ),
    (
        "a Read whose offset wraps",
        |r| read_request(1, r.all.stag(), u64::MAX - 1, 4),
        TermCode::RDMAP_TO_WRAP,
        "err_wrap",
    ),
    (
        "a Read of 4 GiB less one",
        |r| read_request(1, r.all.stag(), r.all.to(), u32::MAX),
        TermCode::RDMAP_BOUNDS,
        "err_bounds",
    ),
    (
        "an invalidation of an STag that does not exist",
        |r| invalidate(Stag(r.all.stag().0 ^ 1)),
        TermCode::RDMAP_CANNOT_INVALIDATE,
        "err_invalidate",
    ),
    (
        "an invalidation in another protection domain",
        |r| invalidate(r.other.stag()),
        TermCode::RDMAP_CANNOT_INVALIDATE,
        "err_invalidate",
    ),
    (
        "an invalidation of a region for local use",
        |r| invalidate(r.none.stag()),
        TermCode::RDMAP_CANNOT_INVALIDATE,
        "err_invalidate",
    ),
];
