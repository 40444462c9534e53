//! Peers that do nothing wrong. The server serves them, which shows that it refuses the others for
//! their acts, and not because a tool of ours is broken.

use std::time::Duration;

use heddle_testkit::mpa;

use crate::linux::{Client, Rping, time_to_be_served};
use crate::net::{LINUX, Lab};
use crate::server::{RPING, SINK, Server};
use crate::tcp::{Conn, Host, Offer, address};

#[test]
fn test_honest_linux_socket_is_served_by_rping_and_sink() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut rping = Rping::connect(&lab, LINUX[0], 20_000).expect("a connection");
    for _ in 0..20 {
        rping.ping().expect("what went out comes back");
    }
    assert!(time_to_be_served(&lab, LINUX[1], Duration::from_secs(10)) < Duration::from_secs(10));
    let mut sink = Client::connect(&lab, LINUX[0], SINK).expect("a connection");
    let reply = sink.start(&mpa::request(b"")).expect("a Reply");
    let (stag, to) = mpa::sink_region(&reply);
    sink.say(&mpa::write(true, stag, to, b"written and read back")).expect("it is sent");
    sink.say(&mpa::read_request(1, (9, 100), 21, (stag, to))).expect("it is sent");
    let m = sink.recv(Duration::from_secs(10)).expect("a Read Response");
    assert_eq!((m.opcode, m.tagged), (mpa::READ_RESPONSE, Some((9, 100))));
    assert_eq!(m.payload, b"written and read back");
    server.assert_alive();
}

#[test]
fn test_honest_frames_by_hand_are_served_by_rping() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    for timestamps in [false, true] {
        let offer = Offer { timestamps, ..Offer::default() };
        let port = 4000 + u16::from(timestamps);
        let mut c = Conn::connect(&mut host, address(1), port, RPING, offer);
        c.ask_for_a_write(&mut host, 5000, offer.window);
        let mut back = Vec::new();
        while back.len() < 5000 {
            let m = c.recv(&mut host);
            assert_eq!(m.tagged, Some((2, back.len() as u64)));
            back.extend(m.payload);
        }
        assert!(back == vec![7; 5000]);
        assert!(c.recv(&mut host).tagged.is_none(), "the go-ahead");
        c.idle(&mut host, Duration::from_millis(100));
        assert_eq!(c.acked, c.snd_nxt);
        c.reset(&mut host);
    }
    server.assert_alive();
}

/// A connection uses a CRC if either side requests it; `--crc off` leaves the choice to the peers.
#[test]
fn test_server_asks_for_a_crc_or_leaves_it_to_the_peers() {
    for (crc, asked) in [("on", true), ("off", false)] {
        let lab = Lab::new(1500);
        let mut server = Server::start(&lab, &["--crc", crc]);
        let reply = |request: &[u8]| {
            let mut c = Client::connect(&lab, LINUX[0], SINK).expect("a connection");
            c.start(request).expect("a Reply").crc
        };
        assert_eq!(reply(&mpa::request_without_crc()), asked, "--crc {crc}");
        assert!(reply(&mpa::request(b"")), "--crc {crc}");
        server.assert_alive();
    }
}

/// A server whose interface is deleted can receive nothing any more, so it reports that and ends.
#[test]
fn test_server_whose_interface_is_deleted_says_so_and_ends() {
    for placement in [&["--inline"][..], &[]] {
        let lab = Lab::new(1500);
        let mut server = Server::start_placed(&lab, placement);
        lab.delete();
        let status = server.wait(Duration::from_secs(10));
        let log = server.log();
        assert_eq!(status.and_then(|s| s.code()), Some(1), "{log}");
        assert!(log.contains("heddle: the interface srv is gone"), "{log}");
    }
}
