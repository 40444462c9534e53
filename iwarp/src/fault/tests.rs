use super::*;

/// Every row with the numbers and figures of the RFCs: layer and type in one byte, code, and the
/// bits M (0x80), D (0x40), R (0x20) that its Terminate has when all headers are known; `None`
/// where no Terminate is sent.
const ROWS: &[(Fault, u8, u8, Option<u8>)] = &[
    // RFC 5044 section 8; RFC 5040 figure 10: the layer below DDP repeats nothing.
    (Fault::ConnectionLost, 0x20, 1, None),
    (Fault::Crc, 0x20, 2, Some(0)),
    (Fault::Marker, 0x20, 3, Some(0)),
    (Fault::StartupFrame, 0x20, 4, None),
    // RFC 6581 section 8.
    (Fault::StartupLocal, 0x20, 5, Some(0)),
    (Fault::InsufficientIrd, 0x20, 6, Some(0)),
    (Fault::NoMatchingRtr, 0x20, 7, Some(0)),
    // RFC 5041 section 7.2, type 1; figure 10: length and DDP header.
    (Fault::TaggedVersion, 0x11, 4, Some(0xc0)),
    (Fault::TaggedStag, 0x11, 0, Some(0xc0)),
    (Fault::TaggedAccess, 0x11, 0, Some(0xc0)),
    (Fault::TaggedAssociation, 0x11, 2, Some(0xc0)),
    (Fault::TaggedBounds, 0x11, 1, Some(0xc0)),
    (Fault::TaggedWrap, 0x11, 3, Some(0xc0)),
    (Fault::ResponseStag, 0x11, 0, Some(0xc0)),
    (Fault::ResponseRange, 0x11, 1, Some(0xc0)),
    // Type 2.
    (Fault::UntaggedVersion, 0x12, 6, Some(0xc0)),
    (Fault::Queue, 0x12, 1, Some(0xc0)),
    (Fault::Msn, 0x12, 3, Some(0xc0)),
    (Fault::NoBuffer, 0x12, 2, Some(0xc0)),
    (Fault::NoReceive, 0x12, 2, Some(0xc0)),
    (Fault::Offset, 0x12, 4, Some(0xc0)),
    (Fault::TooLong, 0x12, 5, Some(0xc0)),
    // RFC 5040 figures 9 and 10.
    (Fault::Short, 0x02, 7, Some(0xc0)),
    (Fault::RdmapVersion, 0x02, 5, Some(0xc0)),
    (Fault::Opcode, 0x02, 6, Some(0xc0)),
    (Fault::Malformed, 0x02, 7, Some(0xc0)),
    (Fault::ResponseShort, 0x02, 7, Some(0xc0)),
    (Fault::ReadStag, 0x01, 0, Some(0xe0)),
    (Fault::ReadAssociation, 0x01, 3, Some(0xe0)),
    (Fault::ReadAccess, 0x01, 2, Some(0xe0)),
    (Fault::ReadBounds, 0x01, 1, Some(0xe0)),
    (Fault::ReadWrap, 0x01, 4, Some(0xe0)),
    (Fault::Invalidate, 0x01, 9, Some(0xc0)),
    (Fault::Local, 0x00, 0, Some(0)),
    // Section 7.1: a Terminate is not among the messages whose errors an end answers.
    (Fault::TerminateMsn, 0x12, 3, None),
    (Fault::TerminateOffset, 0x12, 4, None),
    (Fault::TerminateMalformed, 0x02, 7, None),
    // RFC 7306 section 8: length and DDP header, no RDMAP header.
    (Fault::AtomicStag, 0x01, 0, Some(0xc0)),
    (Fault::AtomicAssociation, 0x01, 3, Some(0xc0)),
    (Fault::AtomicAccess, 0x01, 2, Some(0xc0)),
    (Fault::AtomicBounds, 0x01, 1, Some(0xc0)),
    (Fault::AtomicWrap, 0x01, 4, Some(0xc0)),
    (Fault::AtomicAlignment, 0x02, 7, Some(0xc0)),
    (Fault::AtomicOperation, 0x02, 6, Some(0xc0)),
    (Fault::AtomicResponse, 0x02, 7, Some(0xc0)),
];

#[test]
fn test_every_fault_has_code_and_headers_of_its_rfc() {
    let table: Vec<_> = Fault::ALL
        .iter()
        .map(|fault| {
            let code = fault.code();
            let bits = match fault.answer() {
                Answer::Nothing => None,
                Answer::Code => Some(0),
                Answer::Ddp => Some(0xc0),
                Answer::DdpAndRdmap => Some(0xe0),
            };
            (*fault, code.layer << 4 | code.etype, code.code, bits)
        })
        .collect();
    assert_eq!(table, ROWS);
}

/// The QP counts each fault that can end a stream once, under an `err_` name. The code that drives
/// a start-up counts the faults of start-ups.
#[test]
fn test_every_fault_of_a_stream_is_counted_once() {
    for fault in Fault::ALL {
        let mut counters = QpCounters::default();
        fault.count(&mut counters);
        let mut counted = Vec::new();
        counters.for_each(|name, _, v| {
            if v > 0 {
                counted.push((name.starts_with("err_"), v));
            }
        });
        let no_stream = matches!(
            fault,
            Fault::ConnectionLost
                | Fault::StartupFrame
                | Fault::StartupLocal
                | Fault::InsufficientIrd
                | Fault::NoMatchingRtr
        );
        let want: &[_] = if no_stream { &[] } else { &[(true, 1)] };
        assert_eq!(counted, want, "{fault:?}");
    }
}
