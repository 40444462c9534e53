//! The properties that an FPDU reports to its sender.

use super::pair::{BASE, Node};
use super::*;
use heddle_types::SendOp;

/// Returns the FPDUs that a node makes now, each as `poll_transmit_into` leaves it.
fn made(node: &mut Node) -> Vec<Fpdu> {
    let env = QpEnv { mem: &node.mem, mrs: &node.mrs, snapshots_full: false, posted: None };
    let mut buffers = Buffers::default();
    std::iter::from_fn(|| {
        let mut out = Fpdu::default();
        node.qp.poll_transmit_into(&env, 1442, &mut buffers, &mut out).then_some(out)
    })
    .collect()
}

/// Returns whether the FPDU ends its message, the bytes that the CRC still has to read, the bytes
/// of a snapshot, and whether it is better filled into a frame.
fn told(f: &Fpdu) -> (bool, u32, u32, bool) {
    assert_eq!(f.is_open(), f.open_len() > 0);
    (f.ends_message(), f.open_len(), f.snapshot_len(), f.is_fillable())
}

/// The first 1428 of 3000 bytes and a tagged header of 14 fill a ULPDU of 1442.
#[test]
fn test_fpdu_reports_message_end_and_open_bytes_in_every_form() {
    for (crc, markers) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut c = PairConfig::default();
        (c.qp.crc, c.qp.send_markers) = (crc, markers);
        let mut p = Pair::open(c);
        assert_eq!(p.nodes[0].qp.sends_markers(), markers);
        let stag = p.nodes[1].stag;
        let (long, short) = ([p.nodes[0].sge(0, 3000)], [p.nodes[0].sge(0, 32)]);
        let posts = [
            SendWr::write(1, &long, stag, BASE),
            SendWr::send(2, &short),
            SendWr::send_inline(3, &[7; 100]),
            SendWr::write_immediate(4, &long, stag, BASE, 5),
        ];
        for wr in &posts {
            p.nodes[0].qp.post_send(wr).unwrap();
        }
        let open = |n| if crc { n } else { 0 };
        // Without CRC, the sender sends memory from where it lies.
        let write =
            [(false, open(1428), 0, crc), (false, open(1428), 0, crc), (true, open(144), 0, crc)];
        let whole = (true, 0, 0, true);
        let mut fpdus = made(p.a());
        let want = [&write[..], &[whole, whole], &write, &[whole]].concat();
        assert_eq!(fpdus.iter().map(told).collect::<Vec<_>>(), want, "{crc} {markers}");
        // A sealed FPDU is sent from where its payload lies.
        fpdus[0].seal(&p.nodes[0].mem);
        assert_eq!(told(&fpdus[0]), (false, 0, 0, false));
    }
}

/// Until the peer acknowledges it, a Read Response keeps all its bytes, unless they are few.
#[test]
fn test_read_response_reports_how_many_bytes_it_holds() {
    let mut p = Pair::open(PairConfig::default());
    let stag = p.nodes[1].stag;
    for (len, want) in [
        (32, vec![(true, 0, 0, true)]),
        // Length (2), header (14), payload, pad to whole words, CRC (4).
        (33, vec![(true, 0, 56, true)]),
        (1500, vec![(false, 0, 1448, true), (true, 0, 92, true)]),
    ] {
        let sink = [p.nodes[0].sge(5000, len)];
        p.send(0, 1, SendOp::Read { stag, to: BASE }, sink);
        p.transmit(0, 9);
        p.deliver(1, usize::MAX);
        let mut fpdus = made(p.b());
        assert_eq!(fpdus.iter().map(told).collect::<Vec<_>>(), want, "{len}");
        for f in &mut fpdus {
            f.clear(&mut Buffers::default());
            assert_eq!(f.snapshot_len(), 0, "it keeps none any more");
        }
    }
}
