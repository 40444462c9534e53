//! What the RNIC's process tells its applications of: ports, and what becomes of each device's objects.

use core::net::IpAddr;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use heddle_cm::{AppId, Event};
use heddle_iwarp::Qpn;

use super::events::{DeviceEvent, DeviceEvents, WeakEvents};
use super::lock;
use super::names::{Holder, Names};
use crate::port::{PortAddr, PortInfo, PortLink, PortProbe};
use crate::qp::Qp;

/// One RNIC's; whoever runs its control plane writes it.
#[derive(Debug, Default)]
pub struct Board {
    ports: Mutex<Vec<Port>>,
    devices: Mutex<Devices>,
    /// What is reserved, and where applications listen.
    pub(super) names: Names,
}

#[derive(Debug)]
struct Port {
    mac: [u8; 6],
    mtu: u16,
    addresses: Vec<PortAddr>,
    /// As it was when it was looked at last.
    link: PortLink,
    probe: Arc<dyn PortProbe>,
}

#[derive(Debug, Default)]
struct Devices {
    by_app: HashMap<AppId, WeakEvents>,
    /// The RNIC has ended.
    over: bool,
}

impl Board {
    /// One more port, the next in number.
    pub fn add_port(
        &self,
        (mac, mtu): ([u8; 6], u16),
        addresses: Vec<PortAddr>,
        probe: Arc<dyn PortProbe>,
    ) {
        let link = probe.link();
        lock(&self.ports).push(Port { mac, mtu, addresses, link, probe });
    }

    /// The ports as they are. Asks each of them for its link and counters.
    pub fn ports(&self) -> Vec<PortInfo> {
        let info = |p: &Port| PortInfo {
            mac: p.mac,
            mtu: p.mtu,
            link: p.probe.link(),
            addresses: p.addresses.clone(),
            counters: p.probe.counters(),
        };
        lock(&self.ports).iter().map(info).collect()
    }

    /// Returns true if a port has the address, or if none are known.
    pub(crate) fn may_have(&self, addr: IpAddr) -> bool {
        let ports = lock(&self.ports);
        let mut addresses = ports.iter().flat_map(|port| &port.addresses);
        ports.is_empty() || addresses.any(|of_port| of_port.addr == addr)
    }

    /// The addresses of each port from here on. Devices hear of the ports where others are.
    pub fn set_addresses(&self, all: impl Iterator<Item = Vec<PortAddr>>) {
        let mut changed = Vec::new();
        for ((number, port), addresses) in lock(&self.ports).iter_mut().enumerate().zip(all) {
            if port.addresses != addresses {
                port.addresses = addresses;
                changed.push(DeviceEvent::AddressesChanged(number));
            }
        }
        self.tell_all(&changed);
    }

    /// Looks at the links, if any device hears of them. For the control plane, now and then.
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

    /// An application is told of a listener, or of a connection, which has this queue pair.
    pub fn note(&self, app: AppId, event: &Event, qp: Option<&Qp>) {
        if let Event::ListenFailed { id, .. } = event {
            self.names.give_up(Holder::Listener(*id));
        }
        if let Some(events) = self.events_of(app) {
            events.note(event, qp);
        }
    }

    /// The RNIC has ended.
    pub fn end(&self) {
        lock(&self.devices).over = true;
        self.tell_all(&[DeviceEvent::DeviceFatal]);
    }

    /// The device of `app` hears of what happens from here on.
    pub(crate) fn subscribe(&self, app: AppId, events: &DeviceEvents) {
        // Where no other device hears of them, what became of the links before is nobody's event.
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
