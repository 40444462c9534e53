//! The addresses at which applications listen: chosen ports, and all addresses at once.

use heddle_verbs::{
    CmEvent, DYNAMIC_PORTS, DeviceError, EventQueue, ListenFailure, ListenParams, ReserveError,
};

use super::*;

/// Returns the outcome of a listener.
fn outcome(events: &EventQueue) -> Result<(), ListenFailure> {
    until("an outcome", || match events.poll()? {
        CmEvent::Listening { .. } => Some(Ok(())),
        CmEvent::ListenFailed { error, .. } => Some(Err(error)),
        other => panic!("{other:?}"),
    })
}

#[test]
fn test_bind_returns_the_port_that_was_chosen_and_keeps_it() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let other = nodes.us.hub().open(&DeviceConfig { memory: 0, ..Default::default() }).unwrap();
        let bound = device.reserve_addr(addr(US, 0)).unwrap();
        assert!(bound.addr().ip() == US && DYNAMIC_PORTS.contains(&bound.addr().port()));
        // No other device gets the port, whether its owner already listens there or not.
        let in_use = |device: &Device| match device.reserve_addr(bound.addr()) {
            Err(DeviceError::Address(at, ReserveError::InUse)) => at == bound.addr(),
            other => panic!("{other:?}"),
        };
        let events = EventQueue::new(None);
        let listen = || other.listen(bound.addr(), ListenParams::default(), &events).unwrap();
        assert!(in_use(&device) && in_use(&other));
        listen();
        assert!(matches!(outcome(&events), Err(ListenFailure::Worker(_))), "{kind:?}");
        let id = device.listen_at(&bound, ListenParams::default(), &events).unwrap();
        assert_eq!(outcome(&events), Ok(()));
        assert!(in_use(&other));
        // The device keeps the port when the listener ends.
        device.unlisten(id).unwrap();
        listen();
        assert!(matches!(outcome(&events), Err(ListenFailure::Worker(_))));
        let at = bound.addr();
        drop(bound);
        let free = until("the port is free", || other.reserve_addr(at).ok());
        // A reservation of another device does not count.
        let refused = device.listen_at(&free, ListenParams::default(), &events);
        assert!(matches!(refused, Err(DeviceError::Address(_, ReserveError::InUse))));
    });
}

/// An address without a listener can be reserved, whichever part refused the listener.
#[test]
fn test_refused_listener_leaves_its_address_free() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let other = nodes.us.hub().open(&DeviceConfig { memory: 0, ..Default::default() }).unwrap();
        let events = EventQueue::new(None);
        // These are more listeners than an RNIC has.
        let ids: Vec<_> = (10_000..11_100)
            .map(|port| {
                let id = device.listen(addr(US, port), ListenParams::default(), &events);
                (port, id.ok())
            })
            .collect();
        let mut failed = Vec::new();
        let count = ids.iter().filter(|(_, id)| id.is_some()).count();
        let mut outcomes = 0;
        until("all outcomes", || {
            while let Some(event) = events.poll() {
                outcomes += 1;
                if let CmEvent::ListenFailed { id, .. } = event {
                    failed.push(id);
                }
            }
            (outcomes == count).then_some(())
        });
        let refused = |id| matches!(id, Some(id) if failed.contains(&id));
        for (port, id) in ids {
            let listens = id.is_some() && !refused(id);
            let reserved = other.reserve_addr(addr(US, port));
            let in_use = matches!(reserved, Err(DeviceError::Address(_, ReserveError::InUse)));
            assert_eq!(in_use, listens, "{kind:?} {port} {id:?}");
        }
    });
}

#[test]
fn test_reservation_refuses_foreign_addresses() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let foreign = addr(Ipv4Addr::new(192, 0, 2, 1), 0);
        let refused = device.reserve_addr(foreign);
        let why = matches!(
            refused,
            Err(DeviceError::Address(at, ReserveError::NotOurs)) if at == foreign
        );
        assert!(why, "{kind:?} {refused:?}");
    });
}

#[test]
fn test_wildcard_listener_accepts_at_all_present_and_later_addresses() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let later = Ipv4Addr::new(10, 0, 0, 88);
        let listener = device.bind(addr(Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.addr().port();
        assert!(listener.addr().ip().is_unspecified() && DYNAMIC_PORTS.contains(&port));
        let them = nodes.them.device();
        let connect = |ip| Nodes::connect_to(them, ends(them, |i| i), &listener, addr(ip, port));
        drop(connect(US));
        readdress(nodes, &[(US, 24), (later, 24)]);
        let (theirs, ours) = connect(later);
        assert_eq!(theirs.remote(), addr(later, port), "{kind:?}");
        drop((theirs, ours));
        readdress(nodes, &[(US, 24)]);
    });
}

/// A listener at one address gets the connections to that address, beside a listener at all
/// addresses with the same port.
#[test]
fn test_listener_of_one_address_comes_before_the_wildcard() {
    both(|nodes, kind| {
        let device = nodes.device(kind);
        let any = device.bind(addr(Ipv4Addr::UNSPECIFIED, 7010)).unwrap();
        let one = device.bind(addr(US, 7010)).unwrap();
        let them = nodes.them.device();
        let (_theirs, ours) = Nodes::connect_to(them, ends(them, |i| i), &one, addr(US, 7010));
        assert!(ours.remote().ip() == THEM, "{kind:?}");
        assert!(any.request(Duration::ZERO).is_err());
    });
}
