//! Completions as they lie in a ring.
//!
//! This module writes each number out once, and no number ever gets a second meaning: worker and
//! application may be of different builds.

use heddle_base::sync::atomic::{AtomicU64, Ordering};
use heddle_types::{
    BindError, Cqe, CqeOp, CqeStatus, MrFault, PostError, Qpn, Queue, Stag, TermCode,
};

use super::layout::CQE;
use super::wqe::low32;

/// A completion in the words that both sides exchange; see [`layout`](super::layout).
pub type RawCqe = [u64; CQE];

const SOLICITED: u64 = 1;
const INVALIDATED: u64 = 2;
const IMMEDIATE: u64 = 4;

const SUCCESS: u64 = 0;
const FLUSHED: u64 = 1;
const LOCAL_LENGTH: u64 = 2;
const LOCAL_PROTECTION: u64 = 3;
const LOCAL_QP_OPERATION: u64 = 4;
const REMOTE_ACCESS: u64 = 5;
const REMOTE_OPERATION: u64 = 6;
const LOCAL_BIND: u64 = 7;
const RETRY_EXCEEDED: u64 = 8;
const RNR_RETRY_EXCEEDED: u64 = 9;

/// The errors of [`LOCAL_BIND`], by their number.
const BIND_ERRORS: [BindError; 10] = [
    BindError::Stag,
    BindError::Valid,
    BindError::Scattered,
    BindError::Length,
    BindError::Rights,
    BindError::Memory(MrFault::InvalidStag),
    BindError::Memory(MrFault::NotAssociated),
    BindError::Memory(MrFault::Access),
    BindError::Memory(MrFault::ToWrap),
    BindError::Memory(MrFault::Bounds),
];

/// The errors of [`LOCAL_QP_OPERATION`], by their number.
const POST_ERRORS: [PostError; 13] = [
    PostError::Full,
    PostError::TooManySges,
    PostError::InlineTooLong,
    PostError::TooLong,
    PostError::ToWrap,
    PostError::ReadSges,
    PostError::ReadInline,
    PostError::NoReads,
    PostError::Closing,
    PostError::Ended,
    PostError::AtomicSink,
    PostError::ImmediateData,
    PostError::BindData,
];

fn number<T: PartialEq>(of: &T, list: &[T]) -> u64 {
    list.iter().position(|x| x == of).map_or(0xff, |i| i as u64)
}

fn terminate(c: TermCode) -> u64 {
    u64::from(c.layer) << 16 | u64::from(c.etype) << 8 | u64::from(c.code)
}

const fn op_number(op: CqeOp) -> u64 {
    match op {
        CqeOp::Recv => 0,
        CqeOp::Send => 1,
        CqeOp::Write => 2,
        CqeOp::Read => 3,
        CqeOp::Immediate => 4,
        CqeOp::FetchAdd => 5,
        CqeOp::FastRegister => 6,
        CqeOp::BindWindow => 7,
        CqeOp::LocalInvalidate => 8,
        CqeOp::CmpSwap => 9,
    }
}

/// Returns the words of a completion.
#[inline]
pub fn encode(cqe: &Cqe) -> RawCqe {
    let (status, detail) = match cqe.status {
        CqeStatus::Success => (SUCCESS, 0),
        failure => encode_failure(failure),
    };
    let (invalidated, high) = cqe.invalidated.map_or((0, detail), |s| (INVALIDATED, s.0.into()));
    let (immediate, data) = cqe.immediate.map_or((0, 0), |data| (IMMEDIATE, data));
    let flags = (SOLICITED * u64::from(cqe.solicited)) | invalidated | immediate;
    [
        cqe.wr_id,
        op_number(cqe.op) | status << 8 | flags << 16 | u64::from(cqe.qpn.0) << 32,
        u64::from(cqe.len) | high << 32,
        data,
    ]
}

/// Returns number and detail of a status.
#[cold]
fn encode_failure(status: CqeStatus) -> (u64, u64) {
    match status {
        CqeStatus::Success => (SUCCESS, 0),
        CqeStatus::Flushed => (FLUSHED, 0),
        CqeStatus::LocalLength => (LOCAL_LENGTH, 0),
        CqeStatus::LocalProtection => (LOCAL_PROTECTION, 0),
        CqeStatus::LocalQpOperation(e) => (LOCAL_QP_OPERATION, number(&e, &POST_ERRORS)),
        CqeStatus::LocalBind(e) => (LOCAL_BIND, number(&e, &BIND_ERRORS)),
        CqeStatus::RemoteAccess(c) => (REMOTE_ACCESS, terminate(c)),
        CqeStatus::RemoteOperation(c) => (REMOTE_OPERATION, terminate(c)),
        CqeStatus::RetryExceeded => (RETRY_EXCEEDED, 0),
        CqeStatus::RnrRetryExceeded => (RNR_RETRY_EXCEEDED, 0),
    }
}

/// Returns the completion in the words, or `None` when they hold a number that this build does not
/// know.
#[inline]
pub fn decode([wr_id, word, data, immediate]: RawCqe) -> Option<Cqe> {
    let [op, status, flags, _, qpn @ ..] = word.to_le_bytes();
    let (len, high) = (low32(data), low32(data >> 32));
    let status = match u64::from(status) {
        SUCCESS => CqeStatus::Success,
        failure => decode_failure(failure, high)?,
    };
    let (queue, op) = match op {
        0 => (Queue::Rq, CqeOp::Recv),
        1 => (Queue::Sq, CqeOp::Send),
        2 => (Queue::Sq, CqeOp::Write),
        3 => (Queue::Sq, CqeOp::Read),
        4 => (Queue::Sq, CqeOp::Immediate),
        5 => (Queue::Sq, CqeOp::FetchAdd),
        6 => (Queue::Sq, CqeOp::FastRegister),
        7 => (Queue::Sq, CqeOp::BindWindow),
        8 => (Queue::Sq, CqeOp::LocalInvalidate),
        9 => (Queue::Sq, CqeOp::CmpSwap),
        _ => return None,
    };
    let flags = u64::from(flags);
    Some(Cqe {
        wr_id,
        qpn: Qpn(u32::from_le_bytes(qpn)),
        queue,
        op,
        status,
        solicited: flags & SOLICITED != 0,
        len,
        invalidated: (flags & INVALIDATED != 0).then_some(Stag(high)),
        immediate: (flags & IMMEDIATE != 0).then_some(immediate),
    })
}

#[cold]
fn decode_failure(number: u64, detail: u32) -> Option<CqeStatus> {
    let [code, etype, layer, _] = detail.to_le_bytes();
    let code = TermCode { layer, etype, code };
    Some(match number {
        FLUSHED => CqeStatus::Flushed,
        LOCAL_LENGTH => CqeStatus::LocalLength,
        LOCAL_PROTECTION => CqeStatus::LocalProtection,
        LOCAL_QP_OPERATION => CqeStatus::LocalQpOperation(*POST_ERRORS.get(detail as usize)?),
        LOCAL_BIND => CqeStatus::LocalBind(*BIND_ERRORS.get(detail as usize)?),
        REMOTE_ACCESS => CqeStatus::RemoteAccess(code),
        REMOTE_OPERATION => CqeStatus::RemoteOperation(code),
        RETRY_EXCEEDED => CqeStatus::RetryExceeded,
        RNR_RETRY_EXCEEDED => CqeStatus::RnrRetryExceeded,
        _ => return None,
    })
}

/// Returns true if the completion may wake a program that waits for solicited completions: the
/// completion is solicited or has failed.
#[inline]
pub fn is_solicited(cqe: &Cqe) -> bool {
    cqe.solicited || !cqe.status.is_success()
}

/// The words where a completion lies.
pub type Slot = [AtomicU64; CQE];

/// Stores a completion.
#[inline]
pub fn store(slot: &Slot, raw: RawCqe) {
    for (w, v) in slot.iter().zip(raw) {
        w.store(v, Ordering::Relaxed);
    }
}

/// Loads a completion.
#[inline]
pub fn load(slot: &Slot) -> RawCqe {
    slot.each_ref().map(|w| w.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPS: [CqeOp; 10] = [
        CqeOp::Recv,
        CqeOp::Send,
        CqeOp::Write,
        CqeOp::Read,
        CqeOp::Immediate,
        CqeOp::FetchAdd,
        CqeOp::CmpSwap,
        CqeOp::FastRegister,
        CqeOp::BindWindow,
        CqeOp::LocalInvalidate,
    ];

    fn sample(op: CqeOp, status: CqeStatus) -> Cqe {
        Cqe {
            wr_id: 0x0102_0304_0506_0708,
            qpn: Qpn(0x00ab_cdef),
            queue: if op == CqeOp::Recv { Queue::Rq } else { Queue::Sq },
            op,
            status,
            solicited: false,
            len: 77,
            invalidated: None,
            immediate: None,
        }
    }

    #[test]
    fn test_completion_layout_matches_documentation() {
        let c = Cqe {
            solicited: true,
            invalidated: Some(Stag(0x1122_3344)),
            ..sample(CqeOp::Recv, CqeStatus::Success)
        };
        assert_eq!(
            encode(&c),
            [0x0102_0304_0506_0708, 0x00ab_cdef_0003_0000, 0x1122_3344_0000_004d, 0]
        );
        let c =
            sample(CqeOp::Write, CqeStatus::RemoteAccess(TermCode { layer: 1, etype: 1, code: 2 }));
        assert_eq!(encode(&c)[1..3], [0x00ab_cdef_0000_0502, 0x0001_0102_0000_004d]);
        let c = Cqe { immediate: Some(0x1234), ..sample(CqeOp::Recv, CqeStatus::Success) };
        assert_eq!(encode(&c)[1..], [0x00ab_cdef_0004_0000, 0x4d, 0x1234]);
        assert_eq!(decode(encode(&c)), Some(c));
    }

    #[test]
    fn test_every_completion_status_round_trips() {
        let code = TermCode { layer: 2, etype: 3, code: 0xff };
        let mut all = vec![
            CqeStatus::Success,
            CqeStatus::Flushed,
            CqeStatus::LocalLength,
            CqeStatus::LocalProtection,
            CqeStatus::RemoteAccess(code),
            CqeStatus::RemoteOperation(code),
            CqeStatus::RetryExceeded,
            CqeStatus::RnrRetryExceeded,
        ];
        all.extend(POST_ERRORS.map(CqeStatus::LocalQpOperation));
        all.extend(BIND_ERRORS.map(CqeStatus::LocalBind));
        for op in OPS {
            for status in &all {
                let c = sample(op, *status);
                assert_eq!(decode(encode(&c)), Some(c));
            }
        }
    }

    proptest! {
        #[test]
        fn test_completion_decoder_reads_or_refuses_any_words(raw in any::<[u64; CQE]>()) {
            if let Some(c) = decode(raw) {
                prop_assert_eq!(decode(encode(&c)), Some(c));
            }
        }
    }
}
