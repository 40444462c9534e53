//! Messages that are one segment.

use super::*;
use crate::rdmap::{AtomicRequest, AtomicResponse};
use heddle_types::{AtomicOp, Sge};

/// Without the L bit more segments would have to follow, but these messages have only one.
#[test]
fn test_receiver_refuses_single_segment_message_without_the_last_bit() {
    let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let waiting = || {
        let mut t = Target::new();
        let sink = [Sge { stag: t.all, to: TO, len: 8 }];
        t.qp.post_send(&SendWr::fetch_add(1, &sink, Stag(77), 0, 1)).unwrap();
        assert_eq!(t.transmit().len(), 1);
        let stag = t.region(rights().with(Access::REMOTE_ATOMIC));
        (t, stag)
    };
    for kind in 0..5 {
        let (mut t, stag) = waiting();
        let mut s = match kind {
            0 => read_request(1, stag, TO, 8),
            1 => cat(&untagged(Opcode::IMMEDIATE, true, 0, 1, 0), &[1; 8]),
            2 => cat(&untagged(Opcode::IMMEDIATE_SE, true, 0, 1, 0), &[1; 8]),
            3 => {
                let r = AtomicRequest { id: 1, stag, to: TO, op: add };
                cat(&untagged(Opcode::ATOMIC_REQUEST, true, 1, 1, 0), &r.emit())
            }
            _ => {
                let r = AtomicResponse { id: 1, original: 5 };
                cat(&untagged(Opcode::ATOMIC_RESPONSE, true, 3, 1, 0), &r.emit())
            }
        };
        waiting().0.accepts(&s);
        s[0] &= !0x40;
        // RDMAP, remote operation error, catastrophic error of the stream.
        t.refuses(&s, 0x0207, 18, "err_malformed");
    }
}
