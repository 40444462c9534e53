//! Facts that the RNIC's process reports to its applications: ports, and the events of each
//! device's objects.

use core::net::IpAddr;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use heddle_types::{AppId, Event, Qpn};
use heddle_verbs::provider::WeakEvents;
use heddle_verbs::{
    DeviceEvent, DeviceEvents, PortAddr, PortInfo, PortLink, PortProbe, PortRoute, Qp,
};

use super::lock;
use super::names::{Holder, Names};

/// The board of one RNIC, which its control plane writes.
#[derive(Debug, Default)]
pub struct Board {
    ports: Mutex<Vec<Port>>,
    devices: Mutex<Devices>,
    /// Reserved addresses, and addresses at which applications listen.
    pub(super) names: Names,
}

#[derive(Debug)]
struct Port {
    mac: [u8; 6],
    mtu: u16,
    addresses: Vec<PortAddr>,
    routes: Vec<PortRoute>,
    /// The link as last looked at.
    link: PortLink,
    probe: Arc<dyn PortProbe>,
}

#[derive(Debug, Default)]
struct Devices {
    by_app: HashMap<AppId, WeakEvents>,
    /// Set once the RNIC has ended.
    over: bool,
}

impl Board {
    /// Adds a port with the next number.
    pub fn add_port(
        &self,
        (mac, mtu): ([u8; 6], u16),
        (addresses, routes): (Vec<PortAddr>, Vec<PortRoute>),
        probe: Arc<dyn PortProbe>,
    ) {
        let link = probe.link();
        lock(&self.ports).push(Port { mac, mtu, addresses, routes, link, probe });
    }

    /// Returns the ports as they are now. Asks each port for its link and counters.
    pub fn ports(&self) -> Vec<PortInfo> {
        let info = |p: &Port| PortInfo {
            mac: p.mac,
            mtu: p.mtu,
            link: p.probe.link(),
            addresses: p.addresses.clone(),
            routes: p.routes.clone(),
            counters: p.probe.counters(),
        };
        lock(&self.ports).iter().map(info).collect()
    }

    /// Returns true if a port has the address, or if no ports are known. A port that has an address
    /// of 127.0.0.0/8 has all of them.
    pub(crate) fn may_have(&self, addr: IpAddr) -> bool {
        let ports = lock(&self.ports);
        let mut addresses = ports.iter().flat_map(|port| &port.addresses);
        let is = |ours: IpAddr| ours == addr || ours.is_loopback() && addr.is_loopback();
        ports.is_empty() || addresses.any(|of_port| is(of_port.addr))
    }

    /// Sets the addresses and routes of each port. Devices get an event for each port whose addresses
    /// differ.
    pub fn set_addresses(&self, all: impl Iterator<Item = (Vec<PortAddr>, Vec<PortRoute>)>) {
        let mut changed = Vec::new();
        let mut ports = lock(&self.ports);
        for ((number, port), (addresses, routes)) in ports.iter_mut().enumerate().zip(all) {
            port.routes = routes;
            if port.addresses != addresses {
                port.addresses = addresses;
                changed.push(DeviceEvent::AddressesChanged(number));
            }
        }
        drop(ports);
        self.tell_all(&changed);
    }

    /// Looks at the links, if any device watches them. The control plane calls this now and then.
    pub fn look_at_links(&self) {
        if lock(&self.devices).by_app.is_empty() {
            return;
        }
        let mut changed = Vec::new();
        for (number, port) in lock(&self.ports).iter_mut().enumerate() {
            let before = std::mem::replace(&mut port.link, port.probe.link());
            match (before.up, port.link.up) {
                (false, true) => changed.push(DeviceEvent::PortUp(number)),
                (true, false) => changed.push(DeviceEvent::PortDown(number)),
                _ => {}
            }
        }
        self.tell_all(&changed);
    }

    /// Notes that `app` gets an event of a listener, or of a connection that has this queue pair.
    pub fn note(&self, app: AppId, event: &Event, qp: Option<&Qp>) {
        if let Event::ListenFailed { id, .. } = event {
            self.names.give_up(Holder::Listener(*id));
        }
        if let Some(events) = self.events_of(app) {
            events.note(event, qp);
        }
    }

    /// Adds an event about an object of an application.
    pub fn tell(&self, app: AppId, event: DeviceEvent) {
        if let Some(events) = self.events_of(app) {
            events.push(event);
        }
    }

    /// Reports that the RNIC has ended.
    pub fn end(&self) {
        lock(&self.devices).over = true;
        self.tell_all(&[DeviceEvent::DeviceFatal]);
    }

    /// Adds the device of `app` to the devices that get events.
    pub(crate) fn subscribe(&self, app: AppId, events: &DeviceEvents) {
        // If no other device watches, earlier changes of the links are events for no device: take
        // the links as they are. Otherwise report these changes to the others first.
        let is_first = lock(&self.devices).by_app.is_empty();
        match is_first {
            true => lock(&self.ports).iter_mut().for_each(|port| port.link = port.probe.link()),
            false => self.look_at_links(),
        }
        let over = {
            let mut devices = lock(&self.devices);
            devices.by_app.insert(app, events.downgrade());
            devices.over
        };
        if over {
            events.push(DeviceEvent::DeviceFatal);
        }
    }

    pub(crate) fn unsubscribe(&self, app: AppId) {
        lock(&self.devices).by_app.remove(&app);
    }

    pub(crate) fn forget_qp(&self, app: AppId, qpn: Qpn) {
        if let Some(events) = self.events_of(app) {
            events.forget_qp(qpn);
        }
    }

    fn events_of(&self, app: AppId) -> Option<DeviceEvents> {
        lock(&self.devices).by_app.get(&app).and_then(WeakEvents::upgrade)
    }

    fn tell_all(&self, changed: &[DeviceEvent]) {
        if changed.is_empty() {
            return;
        }
        let all: Vec<_> =
            lock(&self.devices).by_app.values().filter_map(WeakEvents::upgrade).collect();
        for events in all {
            changed.iter().for_each(|event| events.push(*event));
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::DeviceConfig;
    use crate::hub::testing;
    use heddle_verbs::PortCounters;

    /// A port whose link the test switches.
    #[derive(Debug, Default)]
    struct Switch(AtomicBool);

    impl PortProbe for Switch {
        fn link(&self) -> PortLink {
            let up = self.0.load(Ordering::Relaxed);
            PortLink { up, mbps: up.then_some(1000) }
        }

        fn counters(&self) -> PortCounters {
            PortCounters { rx_frames: 7, ..PortCounters::default() }
        }
    }

    #[test]
    fn test_every_watching_device_gets_link_events_and_none_from_before() {
        use DeviceEvent::{PortDown, PortUp};
        let (hub, _worker) = testing::hub();
        let switches = [Arc::new(Switch::default()), Arc::new(Switch::default())];
        for (n, switch) in (1..).zip(&switches) {
            let addr = PortAddr { addr: [10, 0, 0, n].into(), prefix: 24 };
            hub.board().add_port(([n; 6], 1500), (vec![addr], Vec::new()), switch.clone());
        }
        let set = |n: usize, up| switches[n].0.store(up, Ordering::Relaxed);
        let open = || hub.open(&DeviceConfig { memory: 0, ..DeviceConfig::default() }).unwrap();
        let (first, second) = (open(), open());
        set(1, true);
        let ours = first.events().unwrap();
        let look = || hub.board().look_at_links();
        look();
        assert_eq!(ours.poll(), None, "it was up before");
        set(0, true);
        // A program that begins to watch does not take the event from others.
        let theirs = second.events().unwrap();
        look();
        set(0, false);
        set(1, false);
        look();
        look();
        let all = |events: &DeviceEvents| std::iter::from_fn(|| events.poll()).collect::<Vec<_>>();
        assert_eq!(all(&ours), [PortUp(0), PortDown(0), PortDown(1)]);
        assert_eq!(all(&theirs), [PortDown(0), PortDown(1)], "what came before is not for them");
        set(0, true);
        let ports = first.ports().unwrap();
        assert_eq!((ports[0].link.mbps, ports[1].link.mbps), (Some(1000), None));
        assert_eq!((ports[0].counters.rx_frames, ports[1].mac, ports[1].mtu), (7, [2; 6], 1500));
        assert!(hub.board().may_have([10, 0, 0, 2].into()));
        assert!(!hub.board().may_have([10, 0, 0, 3].into()));
    }

    /// A program that fetches no events has a bounded queue.
    #[test]
    fn test_equal_pending_events_are_merged() {
        let events = DeviceEvents::new().unwrap();
        for _ in 0..1_000 {
            events.push(DeviceEvent::QpFatal(Qpn(1)));
            events.push(DeviceEvent::PortUp(0));
        }
        events.push(DeviceEvent::CqError(1));
        events.forget_qp(Qpn(1));
        let all: Vec<_> = std::iter::from_fn(|| events.poll()).collect();
        assert_eq!(all, [DeviceEvent::PortUp(0), DeviceEvent::CqError(1)]);
        events.push(DeviceEvent::DeviceFatal);
        events.push(DeviceEvent::PortUp(0));
        assert_eq!(events.poll(), Some(DeviceEvent::DeviceFatal));
        assert_eq!(events.poll(), None, "nothing follows");
    }
}
