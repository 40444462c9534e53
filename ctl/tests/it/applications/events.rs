//! Ports, and events of a device and its objects.

use heddle_tcp::{Route, Vid, Vlan};
use heddle_verbs::{Access, DeviceEvent, DeviceEvents, PortAddr, QpInit, RecvWr, SendWr};

use super::*;

fn next(events: &DeviceEvents) -> DeviceEvent {
    events.wait(Some(PATIENCE)).unwrap().expect("an event")
}

#[test]
fn test_application_sees_addresses_and_ports_and_hears_when_they_change() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let events = device.events().unwrap();
        let at = |ip: Ipv4Addr, prefix| PortAddr { addr: ip.into(), prefix };
        assert_eq!(device.addresses().unwrap(), [at(US, 24)]);
        let ports = device.ports().unwrap();
        let [port] = &ports[..] else { panic!("{ports:?}") };
        assert_eq!((port.mac, port.mtu), (nodes.us.port().mac(), nodes.us.port().mtu()));
        assert_eq!(port.link.up, nodes.us.port().link().up);
        let (ours, _theirs) = nodes.connect(&device, ends(&device, |init| init), 7001);
        // The device shows the port's own counters. These counters may stay zero, because DPDK's
        // rings may count nothing.
        until("the port's counters", || {
            let (seen, port) = (device.ports().unwrap()[0].counters, nodes.us.port().stats());
            (seen.rx_frames == port.rx_frames && seen.tx_bytes == port.tx_bytes).then_some(())
        });
        assert_eq!(next(&events), DeviceEvent::CommunicationEstablished(ours.qp().qpn()));
        let other = Ipv4Addr::new(10, 0, 0, 77);
        readdress(nodes, &[(US, 24), (other, 16)]);
        assert_eq!(next(&events), DeviceEvent::AddressesChanged(0));
        assert_eq!(device.addresses().unwrap(), [at(US, 24), at(other, 16)]);
        // Addresses that stay the same cause no event.
        readdress(nodes, &[(US, 24), (other, 16)]);
        readdress(nodes, &[(US, 24)]);
        assert_eq!(next(&events), DeviceEvent::AddressesChanged(0));
        assert_eq!(events.poll(), None);
    });
}

/// Routes of a VLAN as well: programs choose the source of a connection by them.
#[test]
fn test_application_sees_the_routes_of_ports_with_our_ends_of_connections() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        assert_eq!(device.ports().unwrap()[0].routes, []);
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        let via = |to: &str, via: &str| Route { dest: cidr(to), via: via.parse().unwrap() };
        let in_vlan = vec![cidr("10.7.0.1/24"), cidr("fd00:7::1/64"), cidr("fd00:7::2/64")];
        let routes = vec![via("10.9.0.0/16", "10.7.0.9"), via("::/0", "fe80::9")];
        let in_vlan = Addressing::new(in_vlan, routes).unwrap();
        let in_vlan = in_vlan.with_deprecated(vec!["fd00:7::1".parse().unwrap()]);
        let vlan = Vlan::new(Vid::new(7).unwrap(), in_vlan);
        let routes = vec![via("0.0.0.0/0", "10.0.0.9")];
        let net = Addressing::new(vec![cidr("10.0.0.1/24")], routes).unwrap();
        set_addressing(nodes, net.with_vlans(vec![vlan]).unwrap());
        let shown = device.ports().unwrap().remove(0).routes;
        let shown = shown.iter().map(|r| format!("{}/{} {:?}", r.to, r.prefix, r.from));
        let want = ["0.0.0.0/0 [10.0.0.1]", "10.9.0.0/16 [10.7.0.1]", "::/0 [fd00:7::2]"];
        assert_eq!(shown.collect::<Vec<_>>(), want);
        readdress(nodes, &[(US, 24)]);
        assert_eq!(device.ports().unwrap()[0].routes, []);
    });
}

#[test]
fn test_application_hears_of_established_and_failed_queue_pairs() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let events = device.events().unwrap();
        let pd = device.alloc_pd().unwrap();
        let srq = device.create_srq(pd, 16, 1, None).unwrap();
        let shared = Ends::with(&device, pd, 64, |i| i.depths(16, 16).shared(&srq)).unwrap();
        let qpn = shared.qp.qpn();
        let (ours, theirs) = nodes.connect(&device, shared, 7002);
        assert_eq!(next(&events), DeviceEvent::CommunicationEstablished(qpn));
        // A Send without a receive ends the connection.
        let source = theirs.alloc_mr(8, Access::NONE).unwrap();
        theirs.post_send(&SendWr::send(1, &[source.sge(0, 8)])).unwrap();
        assert_eq!(next(&events), DeviceEvent::LastWqeReached(qpn));
        assert_eq!(next(&events), DeviceEvent::QpFatal(qpn));
        drop((ours, theirs));
        // A queue pair that ends in order has not failed.
        let plain = ends(&device, |init| init);
        let (ours, theirs) = nodes.connect(&device, plain, 7002);
        let qpn = ours.qp().qpn();
        assert_eq!(next(&events), DeviceEvent::CommunicationEstablished(qpn));
        ours.disconnect().unwrap();
        drop(theirs);
        assert_eq!(events.poll(), None, "{kind:?}");
    });
}

#[test]
fn test_application_gets_one_srq_limit_event_for_each_arm() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let events = device.events().unwrap();
        let pd = device.alloc_pd().unwrap();
        let mr = device.alloc_mr(pd, 64, Access::LOCAL_WRITE).unwrap();
        let srqs = [(); 2].map(|()| device.create_srq(pd, 16, 1, None).unwrap());
        let shared = Ends::with(&device, pd, 64, |i| i.depths(16, 16).shared(&srqs[1])).unwrap();
        let (ours, theirs) = nodes.connect(&device, shared, 7003);
        next(&events);
        let source = theirs.alloc_mr(8, Access::NONE).unwrap();
        for _ in 0..3 {
            while srqs[1].len() < 4 {
                srqs[1].post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, 8)] }).unwrap();
            }
            srqs[1].arm_limit(3);
            assert_eq!(events.poll(), None);
            for _ in 0..2 {
                theirs.post_send(&SendWr::send(1, &[source.sge(0, 8)])).unwrap();
                assert!(ours.wait(PATIENCE).unwrap().status.is_success());
            }
            assert_eq!(next(&events), DeviceEvent::SrqLimitReached(srqs[1].number()));
            assert_eq!(events.poll(), None, "{kind:?}");
        }
    });
}

#[test]
fn test_application_hears_of_an_overflow_of_its_completion_queue() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let events = device.events().unwrap();
        let small = device.create_cq(2, None).unwrap();
        let configure = |init: QpInit| QpInit { recv_cq: small.clone(), ..init };
        let ends = ends(&device, configure);
        let mr = device.alloc_mr(ends.qp.pd(), 64, Access::LOCAL_WRITE).unwrap();
        for wr_id in 0..4 {
            ends.qp.post_recv(&RecvWr { wr_id, sges: &[mr.sge(0, 8)] }).unwrap();
        }
        let qpn = ends.qp.qpn();
        let (_ours, theirs) = nodes.connect(&device, ends, 7004);
        assert_eq!(next(&events), DeviceEvent::CommunicationEstablished(qpn));
        let source = theirs.alloc_mr(8, Access::NONE).unwrap();
        for _ in 0..4 {
            theirs.post_send(&SendWr::send(1, &[source.sge(0, 8)])).unwrap();
        }
        assert_eq!(next(&events), DeviceEvent::CqError(small.number()), "{kind:?}");
        assert_eq!(next(&events), DeviceEvent::QpFatal(qpn));
        assert!(small.check().is_err());
    });
}

#[test]
fn test_pending_events_are_dropped_with_their_queue_pair() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let events = device.events().unwrap();
        let (ours, theirs) = nodes.connect(&device, ends(&device, |init| init), 7005);
        until("the event is there", || {
            let fd = events.fd();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            (rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1).then_some(())
        });
        ours.disconnect().unwrap();
        drop(theirs);
        assert_eq!(events.poll(), None, "{kind:?}");
    });
}

#[test]
fn test_application_hears_of_the_end_of_the_rnic() {
    for kind in [Kind::Local, Kind::Remote] {
        let mut nodes = Nodes::new();
        let device = nodes.device(kind);
        let events = device.events().unwrap();
        let waits = std::thread::spawn(move || {
            (events.wait(None).unwrap(), events.wait(Some(Duration::ZERO)).unwrap())
        });
        let Nodes { us, them, serving, _turn } = nodes;
        match kind {
            Kind::Local => drop(us),
            // A server in a process of its own ends its session with the client's end.
            Kind::Remote => {
                drop(us);
                drop(device);
                serving.into_iter().for_each(|s| s.join().unwrap());
            }
        }
        drop(them);
        assert_eq!(waits.join().unwrap(), (Some(DeviceEvent::DeviceFatal), None), "{kind:?}");
    }
}
