//! Floods of many small frames: the server still hears the other peers.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heddle_testkit::frames::{self, SYN, Segment};

use crate::net::{Lab, Packets, SERVER};
use crate::server::{RPING, Server};
use crate::tcp::{Conn, Host, Offer, address};

/// SYNs from absent hosts, each with another address of the link, must not keep the server from
/// resolving present hosts.
#[test]
fn test_forged_syns_of_one_link_do_not_shut_out_new_hosts() {
    const RATE: u32 = 5000;
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let hosts: Vec<_> = (1..=8).map(address).collect();
    let mut host = Host::new(&lab, hosts.clone());
    let forger = Packets::open(&lab);
    let server_mac = host.path(hosts[0]).to.0;
    let stop = AtomicBool::new(false);
    let waited = thread::scope(|s| {
        let (stop, forger) = (&stop, &forger);
        s.spawn(move || {
            let start = Instant::now();
            let mut n = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let [_, a, b, c] = n.to_be_bytes();
                let from = Ipv4Addr::new(10, 77, 32 + b % 128, c);
                let path =
                    frames::Path { from: ([2, 0x99, 0, a, b, c], from), to: (server_mac, SERVER) };
                let syn =
                    Segment { source: 1024, dest: RPING, seq: n, flags: SYN, ..Segment::default() };
                forger.send(&Segment { window: 65_535, ..syn }.frame(&path));
                n += 1;
                let due = Duration::from_secs(n.into()) / RATE;
                thread::sleep(due.saturating_sub(start.elapsed()));
            }
        });
        thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        let mut waiting: Vec<_> = hosts
            .iter()
            .map(|&ip| Conn::new(&mut host, ip, 4000, RPING, Offer::default()))
            .collect();
        let mut sent = None::<Instant>;
        while !waiting.is_empty() && start.elapsed() < Duration::from_secs(10) {
            if sent.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
                waiting.iter().for_each(|c| c.put(&host, &c.syn(Offer::default())));
                sent = Some(Instant::now());
            }
            host.poll(Duration::from_millis(5));
            waiting.retain_mut(|c| !c.establish(&mut host));
        }
        stop.store(true, Ordering::Relaxed);
        waiting.len()
    });
    assert_eq!(waited, 0, "of 8 new hosts so many got no answer in 10 s");
    server.assert_alive();
}

/// Echo replies take no more than their share of the frames that the server sends on its own.
#[test]
fn test_echo_flood_does_not_starve_arp() {
    let lab = Lab::new(1500);
    let mut server = Server::start(&lab, &[]);
    let mut host = Host::new(&lab, [address(1)]);
    let path = host.path(address(1));
    host.send(&frames::echo(&path, 0, b"hello"));
    host.poll(Duration::from_secs(2));
    assert_eq!(host.echo_replies, 1, "one echo request is answered");
    let echo = frames::echo(&path, 1, &[0; 32]);
    let mut lost = 0;
    for _ in 0..50 {
        host.poll(Duration::ZERO);
        let before = host.arp_replies;
        // Send as many as the device's ring holds, so that the server sees every one.
        for _ in 0..400 {
            host.send(&echo);
        }
        host.ask();
        let start = Instant::now();
        while host.arp_replies == before && start.elapsed() < Duration::from_millis(500) {
            host.poll(Duration::from_millis(5));
        }
        lost += u32::from(host.arp_replies == before);
    }
    assert!(lost <= 2, "{lost} of 50 ARP requests behind 400 echo requests were not answered");
    server.assert_alive();
}
