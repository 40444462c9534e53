//! Completions as they lie in a ring.
//!
//! Numbers are written out here, once, and never given a second meaning: worker and application may
//! be of different builds.

use std::sync::atomic::{AtomicU64, Ordering};

use heddle_iwarp::rdmap::TermCode;
use heddle_iwarp::{BindError, Cqe, CqeOp, CqeStatus, MrFault, PostError, Qpn, Queue, Stag};

use super::layout::CQE;

/// A completion in the words that cross; see [`layout`](super::layout).
pub type RawCqe = [u64; CQE];

const SOLICITED: u64 = 1;
const INVALIDATED: u64 = 2;

const OPS: [CqeOp; 9] = [
    CqeOp::Recv,
    CqeOp::Send,
    CqeOp::Write,
    CqeOp::Read,
    CqeOp::Immediate,
    CqeOp::Atomic,
    CqeOp::FastRegister,
    CqeOp::BindWindow,
    CqeOp::LocalInvalidate,
];

const SUCCESS: u64 = 0;
const FLUSHED: u64 = 1;
const LOCAL_LENGTH: u64 = 2;
const LOCAL_PROTECTION: u64 = 3;
const LOCAL_QP_OPERATION: u64 = 4;
const REMOTE_ACCESS: u64 = 5;
const REMOTE_OPERATION: u64 = 6;
const LOCAL_BIND: u64 = 7;

/// What [`LOCAL_BIND`] tells of, by its number.
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

/// What [`LOCAL_QP_OPERATION`] tells of, by its number.
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

/// The words of a completion.
#[inline]
pub fn encode(cqe: &Cqe) -> RawCqe {
    let (status, detail) = match cqe.status {
        CqeStatus::Success => (SUCCESS, 0),
        CqeStatus::Flushed => (FLUSHED, 0),
        CqeStatus::LocalLength => (LOCAL_LENGTH, 0),
        CqeStatus::LocalProtection => (LOCAL_PROTECTION, 0),
        CqeStatus::LocalQpOperation(e) => (LOCAL_QP_OPERATION, number(&e, &POST_ERRORS)),
        CqeStatus::LocalBind(e) => (LOCAL_BIND, number(&e, &BIND_ERRORS)),
        CqeStatus::RemoteAccess(c) => (REMOTE_ACCESS, terminate(c)),
        CqeStatus::RemoteOperation(c) => (REMOTE_OPERATION, terminate(c)),
    };
    let mut flags = SOLICITED * u64::from(cqe.solicited);
    let mut high = detail;
    if let Some(stag) = cqe.invalidated {
        flags |= INVALIDATED;
        high = u64::from(stag.0);
    }
    let op = number(&cqe.op, &OPS);
    [
        cqe.wr_id,
        op | status << 8 | flags << 16 | u64::from(cqe.qpn.0) << 32,
        u64::from(cqe.len) | high << 32,
        0,
    ]
}

/// The completion in the words; `None` when they hold a number that this build does not know.
#[inline]
pub fn decode([wr_id, word, data, _]: RawCqe) -> Option<Cqe> {
    let low = |v: u64| u32::try_from(v & 0xffff_ffff).unwrap_or(0);
    let byte = |shift: u32| u8::try_from(word >> shift & 0xff).unwrap_or(0);
    let (detail, flags) = (low(data >> 32), u64::from(byte(16)));
    let code = || {
        let [code, etype, layer, _] = detail.to_le_bytes();
        TermCode { layer, etype, code }
    };
    let status = match u64::from(byte(8)) {
        SUCCESS => CqeStatus::Success,
        FLUSHED => CqeStatus::Flushed,
        LOCAL_LENGTH => CqeStatus::LocalLength,
        LOCAL_PROTECTION => CqeStatus::LocalProtection,
        LOCAL_QP_OPERATION => CqeStatus::LocalQpOperation(*POST_ERRORS.get(detail as usize)?),
        LOCAL_BIND => CqeStatus::LocalBind(*BIND_ERRORS.get(detail as usize)?),
        REMOTE_ACCESS => CqeStatus::RemoteAccess(code()),
        REMOTE_OPERATION => CqeStatus::RemoteOperation(code()),
        _ => return None,
    };
    let op = *OPS.get(usize::from(byte(0)))?;
    Some(Cqe {
        wr_id,
        qpn: Qpn(low(word >> 32)),
        queue: if op == CqeOp::Recv { Queue::Rq } else { Queue::Sq },
        op,
        status,
        solicited: flags & SOLICITED != 0,
        len: low(data),
        invalidated: (flags & INVALIDATED != 0).then_some(Stag(detail)),
        immediate: None,
    })
}

/// Whether it may wake somebody who waits for solicited completions: those, and every failure.
#[inline]
pub(crate) fn is_solicited(cqe: &Cqe) -> bool {
    cqe.solicited || !cqe.status.is_success()
}

/// Stores a completion.
#[inline]
pub(crate) fn store(words: &[AtomicU64], raw: RawCqe) {
    for (w, v) in words.iter().zip(raw) {
        w.store(v, Ordering::Relaxed);
    }
}

/// Loads one.
#[inline]
pub(crate) fn load(words: &[AtomicU64]) -> RawCqe {
    let mut raw = [0; CQE];
    for (v, w) in raw.iter_mut().zip(words) {
        *v = w.load(Ordering::Relaxed);
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn test_completions_are_laid_out_as_documented() {
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
    }

    #[test]
    fn test_every_status_survives() {
        let code = TermCode { layer: 2, etype: 3, code: 0xff };
        let mut all = vec![
            CqeStatus::Success,
            CqeStatus::Flushed,
            CqeStatus::LocalLength,
            CqeStatus::LocalProtection,
            CqeStatus::RemoteAccess(code),
            CqeStatus::RemoteOperation(code),
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
        fn test_any_words_are_read_or_refused(raw in any::<[u64; CQE]>()) {
            let mut raw = raw;
            raw[3] = 0;
            if let Some(c) = decode(raw) {
                prop_assert_eq!(decode(encode(&c)), Some(c));
            }
        }
    }
}
