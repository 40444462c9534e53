//! TCP towards a peer with an odd window, odd segments or an odd way to acknowledge.

use std::time::{Duration, Instant};

use heddle_testkit::frames::{ACK, FIN, PSH, SYN};
use heddle_testkit::mpa;

use crate::linux::Client;
use crate::net::{LINUX, Lab, unacknowledged};
use crate::server::{RPING, SINK, Server};
use crate::target::PATIENCE;
use crate::tcp::{Conn, Host, Offer, address};

/// RFC 9293 3.10.7.4: with a window of zero only a segment at RCV.NXT is acceptable, and with a
/// window that has shrunk nothing beyond its edge is.
#[test]
fn test_acks_stay_inside_a_window_that_has_shrunk() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    for (port, window) in [(4000, 0), (4001, 1000)] {
        let mut c = Conn::connect(&mut host, address(1), port, RPING, Offer::default());
        c.acks = false;
        // Our own segments acknowledge what the start-up brings.
        c.ask_for_a_write(&mut host, 8000, 20_000);
        let edge = c.rcv_nxt.wrapping_add(8000);
        let all = |c: &mut Conn| (c.rcv_nxt.wrapping_sub(edge) < 1 << 31).then_some(());
        let una = c.rcv_nxt;
        c.wait(&mut host, Duration::from_secs(10), all).expect("8,000 bytes under way");
        // The peer claims that nothing of it has arrived, and that it has less room than it
        // announced.
        (c.rcv_nxt, c.window) = (una, window);
        c.seen.clear();
        // The server never answers half an FPDU, so its next segment is a plain acknowledgment. The
        // same holds when the half comes again.
        let half = c.segment(PSH | ACK, c.snd_nxt, &mpa::send(3, &[0; 16])[..20]);
        c.snd_nxt = c.snd_nxt.wrapping_add(20);
        // The server may have sent a tail loss probe before it learned of the window. Its first
        // acknowledgment of the half comes after everything that it had sent before.
        let mut knows = false;
        for _ in 0..10 {
            c.put(&host, &half);
            c.idle(&mut host, Duration::from_millis(100));
            // The peer's acknowledgment number does not move.
            c.rcv_nxt = una;
            if !knows {
                let first = c.seen.iter().position(|(_, s)| s.ack == c.snd_nxt);
                knows = first.is_some();
                c.seen.drain(..first.unwrap_or(c.seen.len()));
            }
        }
        let limit = una.wrapping_add(u32::from(window));
        let (inside, beyond): (Vec<_>, Vec<_>) =
            c.seen.iter().partition(|(_, s)| limit.wrapping_sub(s.seq) < 1 << 31);
        let acked = inside.iter().any(|(_, s)| s.ack == c.snd_nxt);
        assert!(acked, "window {window}: no acknowledgment that the peer may look at");
        let beyond: Vec<_> = beyond.iter().map(|(_, s)| s.seq.wrapping_sub(una)).collect();
        assert!(beyond.is_empty(), "window {window}: segments at RCV.NXT + {beyond:?}");
        c.reset(&mut host);
    }
    server.assert_alive();
}

/// A client asks for much and receives nothing: the server still acknowledges the client's own
/// bytes.
#[test]
fn test_linux_client_that_does_not_read_is_acknowledged() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let small = |s: &socket2::Socket| s.set_recv_buffer_size(8 << 10);
    let mut c = Client::connect_with(&lab, LINUX[0], SINK, small).expect("a connection");
    let reply = c.start(&mpa::request(b"")).expect("a Reply");
    let region = mpa::sink_region(&reply);
    for msn in 1..=4 {
        c.say(&mpa::read_request(msn, (9, 0), 256 << 10, region)).expect("it is sent");
    }
    // The window closes, and the server probes again and again whether it is open.
    std::thread::sleep(Duration::from_secs(1));
    for n in 0..8 {
        c.say(&mpa::write(true, region.0, region.1, &[n; 90])).expect("it is sent");
        let start = Instant::now();
        while unacknowledged(&c.stream) > 0 {
            assert!(start.elapsed() < Duration::from_secs(3), "message {n} is not acknowledged");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    server.assert_alive();
}

/// RFC 9293 3.8.6.1: the interval between zero-window probes grows, with or without SACK.
#[test]
fn test_zero_window_probes_back_off() {
    /// Four gaps between five probes. The last gap is eight times the first, so a late look at a
    /// probe does not change the result.
    const PROBES: usize = 5;
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    let shut = |(port, sack)| {
        let offer = Offer { sack, ..Offer::default() };
        let mut c = Conn::connect(&mut host, address(1), port, RPING, offer);
        // Leave room for some of the data, and then none.
        c.ask_for_a_write(&mut host, 30_000, 6000);
        let edge = c.rcv_nxt.wrapping_add(6000);
        let full = |c: &mut Conn| {
            c.window = u16::try_from(edge.wrapping_sub(c.rcv_nxt)).unwrap_or(0);
            (c.window == 0).then_some(())
        };
        c.wait(&mut host, PATIENCE, full).expect("the server fills the window");
        c.ack(&host);
        c.seen.clear();
        c.acks = false;
        c
    };
    let mut conns = [(4000, false), (4001, true)].map(shut);
    let stays = [conns[0].rcv_nxt, conns[1].rcv_nxt];
    let (mut answered, start) = ([0; 2], Instant::now());
    while conns.iter().any(|c| c.seen.len() < PROBES) {
        let seen = [conns[0].seen.len(), conns[1].seen.len()];
        assert!(start.elapsed() < PATIENCE, "{seen:?} probes, without and with SACK");
        host.poll(Duration::from_millis(5));
        for (n, c) in conns.iter_mut().enumerate() {
            c.absorb(&mut host);
            // Answer every probe as any TCP does: with the current position and no room.
            c.rcv_nxt = stays[n];
            if c.seen.len() > answered[n] {
                answered[n] = c.seen.len();
                c.ack(&host);
            }
        }
    }
    for (c, sack) in conns.into_iter().zip([false, true]) {
        let gaps: Vec<_> = c.seen[..PROBES].windows(2).map(|w| w[1].0 - w[0].0).collect();
        let (first, last) = (gaps[0], gaps[gaps.len() - 1]);
        assert!(last > first * 3 / 2, "SACK {sack}: they stay at {gaps:?}");
        c.reset(&mut host);
    }
    server.assert_alive();
}

/// RFC 2018 8: a receiver may drop data that it has SACKed. So the server must retransmit the left
/// edge if everything was SACKed and nothing is acknowledged.
#[test]
fn test_left_edge_is_retransmitted_although_everything_was_sacked() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    let mut c = Conn::connect(&mut host, address(1), 4000, RPING, Offer::default());
    c.ask_for_a_write(&mut host, 10_000, 65_535);
    let una = c.rcv_nxt;
    c.acks = false;
    // The peer SACKs the Write and the Send after it as they come, before any timer of the server's
    // fires.
    let (mut max, start) = (una, Instant::now());
    while start.elapsed() < Duration::from_millis(500) {
        host.poll(Duration::from_millis(5));
        c.absorb(&mut host);
        if c.rcv_nxt != max {
            max = c.rcv_nxt;
            c.rcv_nxt = una;
            c.sack(&host, &[(una, max)]);
            c.rcv_nxt = max;
        }
    }
    assert!(max.wrapping_sub(una) > 10_000, "the Write came");
    // From here on the peer is silent.
    c.seen.clear();
    let again = c.wait(&mut host, Duration::from_secs(10), |c| {
        c.seen.iter().any(|(_, s)| s.seq == una && !s.payload.is_empty()).then_some(())
    });
    assert!(again.is_some(), "the left edge never came again; {} segments did", c.seen.len());
    server.assert_alive();
}

/// The segments of a connection are as large as the MTU and the peer's MSS allow.
#[test]
fn test_jumbo_mtu_makes_jumbo_segments() {
    let lab = Lab::new(9000);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    for (port, timestamps, want) in [(4000, true, 8948), (4001, false, 8960)] {
        let offer = Offer { mss: 8960, timestamps, ..Offer::default() };
        let mut c = Conn::connect(&mut host, address(1), port, RPING, offer);
        c.ask_for_a_write(&mut host, 60_000, 65_535);
        let mut bytes = 0;
        while bytes < 60_000 {
            bytes += c.recv(&mut host).payload.len();
        }
        let longest = c.seen.iter().map(|(_, s)| s.payload.len()).max();
        assert_eq!(longest, Some(want), "timestamps {timestamps}");
        c.reset(&mut host);
    }
    // A peer with a smaller MSS gets smaller segments.
    let mut c = Conn::connect(&mut host, address(1), 4002, RPING, Offer::default());
    c.ask_for_a_write(&mut host, 20_000, 65_535);
    let mut bytes = 0;
    while bytes < 20_000 {
        bytes += c.recv(&mut host).payload.len();
    }
    assert!(c.seen.iter().all(|(_, s)| s.payload.len() <= 1460));
    server.assert_alive();
}

/// The server handles a FIN together with the data of its segment, and not only at the next frame
/// or timer.
#[test]
fn test_fin_on_a_data_segment_is_processed_with_the_data() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    let mut longest = Duration::ZERO;
    for n in 0..5 {
        let mut c = Conn::connect(&mut host, address(1), 4000 + n, SINK, Offer::default());
        assert!(!c.start(&mut host, &mpa::request(b"")).rejected);
        c.idle(&mut host, Duration::from_millis(100));
        let last = mpa::send(1, b"the last");
        c.put(&host, &c.segment(PSH | ACK | FIN, c.snd_nxt, &last));
        c.snd_nxt = c.snd_nxt.wrapping_add(u32::try_from(last.len() + 1).unwrap_or(0));
        let start = Instant::now();
        let ended = c.wait(&mut host, Duration::from_secs(10), |c| c.finished.then_some(()));
        assert!(ended.is_some() && !c.was_reset, "no FIN in return");
        longest = longest.max(start.elapsed());
    }
    assert!(longest < Duration::from_secs(1), "it took {longest:?}");
    server.assert_alive();
}

/// RFC 1122 3.2.1.7: a host does not discard a packet for itself because its TTL has run out.
#[test]
fn test_host_accepts_packet_with_ttl_of_zero() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    for (port, ttl) in [(4000, 1), (4001, 0)] {
        let mut c = Conn::new(&mut host, address(1), port, RPING, Offer::default());
        let syn = c.syn(Offer::default());
        assert_eq!(syn.flags, SYN);
        let start = Instant::now();
        let mut up = false;
        while !up && start.elapsed() < Duration::from_secs(3) {
            host.send(&syn.frame_with_ttl(&host.path(address(1)), ttl));
            host.poll(Duration::from_millis(300));
            up = c.establish(&mut host);
        }
        assert!(up, "a SYN with a TTL of {ttl} is not answered");
    }
    server.assert_alive();
}
