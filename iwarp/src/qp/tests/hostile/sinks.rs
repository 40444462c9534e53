//! Local memory that is gone when the peer's answer comes.

use super::*;
use crate::rdmap::AtomicResponse;

/// The application's mistake: its own request says so, and the peer is told no more than that.
#[test]
fn test_reading_atomic_response_whose_sink_is_gone() {
    let mut t = Target::new();
    let stag = t.region(Access::LOCAL_WRITE);
    let sink = [Sge { stag, to: TO, len: 8 }];
    t.qp.post_send(&SendWr::fetch_add(1, &sink, Stag(77), 0, 1)).unwrap();
    assert_eq!(t.transmit().len(), 1);
    t.mrs.deregister(stag).unwrap();
    let answer = AtomicResponse { id: 1, original: 5 };
    let bytes = cat(&untagged(Opcode::ATOMIC_RESPONSE, true, 3, 1, 0), &answer.emit());
    let special = [(1, CqeStatus::LocalProtection)];
    t.refuses_raw_but(&framed(&bytes, true), 0x0000, 0, &[], "err_local", &special);
}
