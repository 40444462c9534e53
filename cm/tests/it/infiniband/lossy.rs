//! Thousands of exchanges over a bad wire: each connection has one outcome at each end, the two
//! outcomes fit, and nothing is left.

use std::collections::BTreeMap;

use heddle_base::{Random, Seed};
use heddle_types::{CmId, Event, Request};

use crate::infiniband::world::*;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Told {
    asked: bool,
    established: bool,
    over: bool,
}

/// Records an event in the application's list of what it knows of each connection.
fn note(told: &mut BTreeMap<CmId, Told>, event: &Event, seed: u64) {
    let id = event.cm_id().unwrap();
    let t = told.entry(id).or_default();
    assert!(!t.over, "seed {seed}: {event:?} after the end");
    match event {
        Event::ConnectRequest { .. } => {
            assert!(!t.asked, "seed {seed}: asked twice");
            t.asked = true;
        }
        Event::Established { .. } => {
            assert!(!t.established, "seed {seed}: established twice");
            t.established = true;
        }
        Event::Disconnected { .. } => {
            assert!(t.established, "seed {seed}: {event:?}");
            t.over = true;
        }
        Event::ConnectError { .. } | Event::Rejected { .. } => {
            assert!(!t.established, "seed {seed}: {event:?}");
            t.over = true;
        }
        Event::Listening { .. } | Event::ListenFailed { .. } => panic!("{event:?}"),
    }
}

fn exchange(seed: u64) {
    let mut net = Net::new(seed);
    let r = &mut Random::new(&Seed::from_u64(seed.wrapping_add(1 << 40)));
    net.weather = Weather {
        loss: [0.0, 0.1, 0.3, 0.6][r.below(4) as usize],
        duplicates: [0.0, 0.2, 0.5][r.below(3) as usize],
        latency: [1, 20, 700][r.below(3) as usize],
    };
    let count = 1 + r.below(4);
    for id in 1..=count {
        net.connect(id, |_| {});
    }
    let mut told = [BTreeMap::new(), BTreeMap::new()];
    let mut qpn = 100;
    let end = net.now + ms(300_000);
    loop {
        let more = net.step(end);
        for node in 0..2 {
            while let Some(event) = net.nodes[node].events.pop_front() {
                note(&mut told[node], &event, seed);
                let id = event.cm_id().unwrap();
                match event {
                    Event::ConnectRequest { .. } if r.chance(0.7) => {
                        qpn += 1;
                        net.accept(id, qpn);
                    }
                    Event::ConnectRequest { .. } if r.chance(0.7) => {
                        let private_data = b"no".to_vec();
                        net.ask(0, Request::Reject { id, private_data, needs_ord: None }).unwrap();
                        told[0].get_mut(&id).unwrap().over = true;
                    }
                    // The application ends some of its connections. The application leaves the
                    // remaining events alone, requests among them.
                    Event::Established { .. } if r.chance(0.3) => {
                        let done = net.ask(node, Request::Disconnect { id });
                        // The connection's end may have come at the same time, and be the
                        // application's next event.
                        let ended = |e: &Event| e.cm_id() == Some(id);
                        let told = net.nodes[node].events.iter().any(ended);
                        assert!(done.is_ok() || told, "seed {seed}: {done:?}");
                    }
                    _ => {}
                }
            }
        }
        if !more {
            break;
        }
    }
    // A connection that is still established is established at both ends. Without a transport
    // neither end notices when the other has ended, so both ends end it now, and both applications
    // hear of the end.
    let open = |told: &BTreeMap<CmId, Told>| -> Vec<CmId> {
        told.iter().filter(|(_, t)| t.established && !t.over).map(|(id, _)| *id).collect()
    };
    let (server, client) = (open(&told[0]), open(&told[1]));
    if net.weather.loss < 0.5 {
        // With this little loss, some of the attempts always succeed.
        assert_eq!(server.len(), client.len(), "seed {seed}");
    }
    for (node, ids) in [server, client].into_iter().enumerate() {
        for id in ids {
            net.ask(node, Request::Disconnect { id }).unwrap();
        }
    }
    net.run(ms(300_000));
    for (node, told) in told.iter_mut().enumerate() {
        while let Some(event) = net.nodes[node].events.pop_front() {
            note(told, &event, seed);
        }
        for (id, t) in told.iter() {
            assert!(t.over, "seed {seed}: node {node} hears no end of {id}");
        }
        let gauges = net.nodes[node].cm.gauges();
        assert_eq!((gauges.conns, gauges.timers), (0, 0), "seed {seed}");
    }
    assert_eq!(told[1].len() as u64, count, "each connect has its outcome");
    // For each client that is established there is a server that has accepted, though the server
    // may not have heard of the success.
    let established = |n: usize| told[n].values().filter(|t| t.established).count();
    let asked = told[0].values().filter(|t| t.asked).count();
    assert!(established(0) <= established(1), "seed {seed}: the client comes first");
    assert!(established(1) <= asked && asked as u64 <= count, "seed {seed}: asked once each");
}

#[test]
fn test_every_exchange_ends_in_the_right_state() {
    for seed in 0..3000 {
        exchange(seed);
    }
}
