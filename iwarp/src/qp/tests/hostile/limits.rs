//! The number of requests that a peer may have waiting here, however small each is.

use super::*;

/// A Read of no bytes refers to no memory, but still takes a place.
#[test]
fn test_responder_refuses_empty_read_beyond_the_ird() {
    for sizes in [[0, 0, 0], [8, 0, 0], [0, 8, 0], [0, 0, 8]] {
        let mut t = Target::new();
        let source = t.all;
        let mut asked = (1..).zip(sizes).map(|(msn, size)| read_request(msn, source, TO, size));
        t.accepts(&asked.next().unwrap());
        t.accepts(&asked.next().unwrap());
        t.refuses(&asked.next().unwrap(), 0x1202, 18, "err_no_buffer");
    }
    // After the QP has answered one request, there is room for the next.
    let mut t = Target::new();
    for msn in 1..=20 {
        t.accepts(&read_request(msn, Stag(1), 0, 0));
        assert_eq!(t.transmit().len(), 1);
    }
}
