//! A queue pair whose peer sends anything: no panic, nothing outside the granted region is touched,
//! and every work request completes at the end.
#![no_main]

use heddle_base::Seed;
use heddle_iwarp::ddp::DdpHeader;
use heddle_iwarp::mpa::{fpdu, markers};
use heddle_iwarp::testing::TestMemory;
use heddle_iwarp::{
    Access, MrTable, Pd, QpContext, QpConfig, QpEnv, RecvWr, SendWr, Sge, Stag,
};
use libfuzzer_sys::fuzz_target;

/// Octets of the region, and before and after it.
const SIZE: usize = 4096;
const GUARD: usize = 64;
const FILL: u8 = 0xaa;
/// Its tagged offset; not its address, so that mixing them up shows.
const BASE: u64 = 0x7000_0000_1000;
/// Receive buffers and their size.
const BUFFERS: u64 = 4;
const BUFFER: u32 = 512;

fuzz_target!(|data: &[u8]| {
    let Some((control, mut rest)) = data.split_first() else { return };
    let mem = TestMemory::new(SIZE + 2 * GUARD, FILL);
    let mrs = MrTable::new(&Seed::from_u64(1), 8);
    let (pd, crc) = (Pd(1), control & 1 != 0);
    let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
    let mr = mrs.register(pd, GUARD as u64, BASE, SIZE as u64, rights).expect("room for it");
    let env = QpEnv { mem: &mem, mrs: &mrs, snapshots_full: false };
    let recv_markers = control & 8 != 0;
    let config = QpConfig { pd, crc, ird: 2, ord: 2, recv_markers, ..QpConfig::default() };
    let mut qp = QpContext::new(&config);
    let sge = |at: u64, len| Sge { stag: mr.stag, to: BASE + at, len };
    let mut posted = 0;
    for n in 0..BUFFERS {
        let sges = [sge(n * u64::from(BUFFER), BUFFER)];
        qp.post_recv(&RecvWr::new(n, &sges)).expect("room for it");
        posted += 1;
    }
    // Reads under way, for Read Responses to answer.
    for n in 0..u64::from(control >> 1 & 3) {
        let sink = [sge(2048 + n * 600, 600)];
        qp.post_send(&SendWr::read(100 + n, &sink, Stag(7), 0)).expect("room for it");
        posted += 1;
    }
    let mut completed = 0;
    let mut turn = |qp: &mut QpContext| {
        for mulpdu in [64, 1442, 300, 1442] {
            qp.poll_transmit(&env, mulpdu);
        }
        qp.handle_acked(qp.tx_end());
        while qp.poll_event().is_some() {}
        completed += std::iter::from_fn(|| qp.poll_completion()).count();
    };
    turn(&mut qp);
    let mut stream = Vec::new();
    while let [what, len, tail @ ..] = rest {
        let (segment, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        if what & 1 == 0 {
            // No FPDU at all.
            stream.extend_from_slice(segment);
        } else {
            let mut segment = segment.to_vec();
            if what & 2 != 0 {
                aim(&mut segment, mr.stag);
            }
            let offset = qp.rx_next().0 + stream.len() as u64;
            if recv_markers && offset % 4 == 0 {
                let mut plain = Vec::new();
                fpdu::append(&segment, crc, &mut plain).expect("it is short");
                let before = stream.len();
                markers::insert(&plain, offset, crc, &mut stream);
                // Ahead of a gap, as far as the queue pair can tell: it may place it, and then it
                // comes in order all the same.
                let pos = heddle_base::StreamPos(offset);
                if what & 8 != 0 && qp.find_fpdu(pos, &&stream[before..]).is_some() {
                    qp.place_early(&env, pos, &&stream[before..], None);
                }
            } else {
                fpdu::append(&segment, crc, &mut stream).expect("it is short");
            }
        }
        let taken = qp.handle_stream(&env, &stream[..]);
        stream.drain(..taken);
        if what & 4 != 0 {
            turn(&mut qp);
        }
    }
    qp.abort();
    turn(&mut qp);
    assert_eq!(completed, posted);
    let all = mem.snapshot();
    assert!(all[..GUARD].iter().chain(&all[GUARD + SIZE..]).all(|b| *b == FILL));
});

/// Gives a segment an STag that is valid and an offset near the region, which a fuzzer does not
/// guess: that of its header, or of the Read Request in it.
fn aim(segment: &mut [u8], stag: Stag) {
    let near = |to: u64| BASE.wrapping_add(to & 0x1fff).wrapping_sub(0x400);
    match DdpHeader::parse(segment) {
        Ok((DdpHeader::Tagged { last, rsvd_ulp, to, .. }, _)) => {
            DdpHeader::Tagged { last, rsvd_ulp, stag, to: near(to) }.emit(segment);
        }
        Ok((_, len)) => {
            if let Some(request) = segment[len..].first_chunk_mut::<28>() {
                request[16..20].copy_from_slice(&stag.0.to_be_bytes());
                let to = u64::from_be_bytes(*request.last_chunk().expect("it has 28 octets"));
                request[20..].copy_from_slice(&near(to).to_be_bytes());
            }
        }
        Err(_) => {}
    }
}
