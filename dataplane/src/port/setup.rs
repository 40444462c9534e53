//! Carries out a [`PortPlan`] on a device.

use std::ffi::c_void;
use std::net::IpAddr;
use std::ptr::NonNull;

use heddle_dpdk_sys as sys;
use heddle_tcp::Vid;

use super::caps::Capabilities;
use super::conf::{device_conf, settle};
use super::error::PortError;
use super::ethdev::{EthDev, driver_name};
use super::flow::FlowRule;
use super::lock::control;
use super::plan::{MacPlan, PortPlan};
use super::rules::Maker;
use super::spread::{QueueSpread, RssFound, RssPlan};
use crate::eal;
use crate::interface::Interface;
use crate::mempool::Mempool;

impl EthDev {
    /// Returns the device's capabilities, and DPDK's description of the device.
    pub(super) fn capabilities(&self) -> Result<(Capabilities, sys::rte_eth_dev_info), PortError> {
        let info = self.info()?;
        // SAFETY: a valid port.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.id) };
        let caps = Capabilities {
            driver: driver_name(&info),
            args: self.args.clone(),
            bound_to: self.bound_to.clone(),
            socket: u32::try_from(socket).ok(),
            mac: self.address(),
            host_mtu: Interface::numbered(info.if_index).map(|i| i.mtu),
            rings: self.has_rings(),
            joined: self.is_joined(),
            far_end_joins: self.far_end_joins(),
            ..Capabilities::of(&info)
        };
        let caps = match &self.members {
            Some(members) => caps.bonded(members.capabilities().to_vec()),
            None => caps,
        };
        Ok((caps, info))
    }

    /// Returns the device's station address, if it has a valid one.
    pub(super) fn address(&self) -> Option<[u8; 6]> {
        let mut addr = sys::rte_ether_addr::default();
        // SAFETY: a valid port; the callee fills `addr`.
        let rc = unsafe { sys::rte_eth_macaddr_get(self.id, &mut addr) };
        let mac = addr.addr_bytes;
        (rc == 0 && mac != [0; 6] && mac[0] & 1 == 0).then_some(mac)
    }

    /// Configures the device and starts it: with interrupts of its receive queues if the plan has
    /// them, and without if the device's driver refuses them. Returns whether the device takes
    /// frames for all addresses because it accepts no address, and why there are no interrupts.
    pub(super) fn set_up(
        &self,
        info: &sys::rte_eth_dev_info,
        plan: &PortPlan,
        pools: &[Mempool],
    ) -> Result<(bool, Option<String>), PortError> {
        let steps = |rx_interrupt| {
            self.configure(info, plan, pools, rx_interrupt)?;
            let all = self.set_address(plan.mac)?;
            self.start()?;
            Ok(all)
        };
        settle(plan.rx_interrupt, steps)
    }

    /// Configures the device, which must be stopped, and its queues.
    fn configure(
        &self,
        info: &sys::rte_eth_dev_info,
        plan: &PortPlan,
        pools: &[Mempool],
        rx_interrupt: bool,
    ) -> Result<(), PortError> {
        let mut key = plan.rss.as_ref().map(|r| r.key.clone()).unwrap_or_default();
        let conf = device_conf(plan, &mut key, rx_interrupt);
        let socket = plan.socket.unwrap_or(u32::MAX);
        let _control = control();
        if plan.isolated {
            self.isolate()?;
        }
        eal::clear_log();
        // SAFETY: a valid, stopped port; the configuration and the key it points to outlive the
        // call, which copies both.
        self.check("configuration", unsafe {
            sys::rte_eth_dev_configure(self.id, plan.queues, plan.queues, &conf)
        })?;
        if let Some(mtu) = plan.mtu.set {
            eal::clear_log();
            // SAFETY: a configured, stopped port.
            match unsafe { sys::rte_eth_dev_set_mtu(self.id, mtu) } {
                // The device has no MTU to set.
                rc if rc == -libc::ENOTSUP => {}
                rc => self.check("MTU", rc)?,
            }
        }
        eal::clear_log();
        let (mut nrx, mut ntx) = (plan.rx_desc, plan.tx_desc);
        // SAFETY: a configured port; both counts outlive the call.
        self.check("number of descriptors", unsafe {
            sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &mut nrx, &mut ntx)
        })?;
        for (i, pool) in (0..plan.queues).zip(pools) {
            let pool = pool.as_ptr();
            let mut rxconf = info.default_rxconf;
            rxconf.offloads = plan.rx_offloads;
            // SAFETY: a configured, stopped port; the pool lives as long as the process; the
            // queue's configuration is the driver's, and copied. A socket of all ones is "any".
            self.check("receive queue", unsafe {
                sys::rte_eth_rx_queue_setup(self.id, i, nrx, socket, &rxconf, pool)
            })?;
            let mut txconf = info.default_txconf;
            txconf.offloads = plan.tx_offloads;
            // SAFETY: as above.
            self.check("transmit queue", unsafe {
                sys::rte_eth_tx_queue_setup(self.id, i, ntx, socket, &txconf)
            })?;
        }
        Ok(())
    }

    /// Makes the device take frames for groups of stations if one of our addresses is an IPv6
    /// address: neighbors send their questions to a group (RFC 4861 section 7.2.2). Devices that
    /// cannot do so take such frames anyway, or none: the port's counters and the neighbors show it.
    pub(super) fn hear_groups(&self, addrs: &[IpAddr]) {
        if addrs.iter().any(IpAddr::is_ipv6) {
            // SAFETY: a started port.
            let _ = unsafe { sys::rte_eth_allmulticast_enable(self.id) };
            if let Some(members) = &self.members {
                members.hear_groups();
            }
        }
    }

    /// Makes a started device that filters VLANs bring the frames of a VLAN, or drop them.
    pub(super) fn filter_vlan(&self, vid: Vid, on: bool) -> Result<(), PortError> {
        let _control = control();
        eal::clear_log();
        // SAFETY: a started port; the callee checks the number.
        let rc = unsafe { sys::rte_eth_dev_vlan_filter(self.id, vid.get(), i32::from(on)) };
        self.check("filter of VLANs", rc)
    }

    /// Gives the device its station address. Returns true if the device takes all frames instead,
    /// because it accepts no address.
    fn set_address(&self, plan: MacPlan) -> Result<bool, PortError> {
        let mut addr = sys::rte_ether_addr { addr_bytes: plan.addr() };
        let _control = control();
        eal::clear_log();
        // SAFETY: a valid port; the address is copied.
        let rc = unsafe {
            match plan {
                MacPlan::Own(_) | MacPlan::Beside(_) => return Ok(false),
                // When it starts, a bond takes back its first member's address unless told so.
                MacPlan::Set(_) if self.members.is_some() => {
                    sys::heddle_bond_mac_set(self.id, addr.addr_bytes.as_ptr())
                }
                MacPlan::Set(_) => sys::rte_eth_dev_default_mac_addr_set(self.id, &mut addr),
                MacPlan::Add(_) => sys::rte_eth_dev_mac_addr_add(self.id, &mut addr, 0),
            }
        };
        if rc == 0 {
            return Ok(false);
        }
        // Take all frames only if no other user's frames come with them.
        let shared = matches!(plan, MacPlan::Add(_));
        // SAFETY: a valid port.
        if !shared && unsafe { sys::rte_eth_promiscuous_enable(self.id) } == 0 {
            return Ok(true);
        }
        // A device without any notion of addresses passes on every frame.
        if rc == -libc::ENOTSUP && !shared && self.address().is_none() {
            return Ok(true);
        }
        self.check("station address", rc).map(|()| false)
    }

    /// Programs the redirection table of a started device, and returns the setting that the device
    /// reports.
    pub(super) fn found_rss(&self, plan: &RssPlan) -> RssFound {
        let len = u16::try_from(plan.table.len()).unwrap_or(0);
        let group = sys::RTE_ETH_RETA_GROUP_SIZE as usize;
        let mut entries: Vec<sys::rte_eth_rss_reta_entry64> = plan
            .table
            .chunks(group)
            .map(|chunk| {
                let mask = u64::MAX >> (group - chunk.len());
                let mut e = sys::rte_eth_rss_reta_entry64 { mask, ..Default::default() };
                e.reta[..chunk.len()].copy_from_slice(chunk);
                e
            })
            .collect();
        let _control = control();
        // SAFETY: a started port; `entries` has an entry for each 64 of `len`, and outlives the
        // call.
        let rc = unsafe { sys::rte_eth_dev_rss_reta_update(self.id, entries.as_mut_ptr(), len) };
        let table_set = rc == 0;
        for e in &mut entries {
            e.reta = [0; sys::RTE_ETH_RETA_GROUP_SIZE as usize];
        }
        // SAFETY: as above; the callee fills the entries that the masks name.
        let rc = unsafe { sys::rte_eth_dev_rss_reta_query(self.id, entries.as_mut_ptr(), len) };
        let read = entries.iter().flat_map(|e| e.reta).take(plan.table.len()).collect();
        let mut key = vec![0u8; plan.key.len()];
        let mut conf = sys::rte_eth_rss_conf {
            rss_key: key.as_mut_ptr(),
            rss_key_len: u8::try_from(key.len()).unwrap_or(0),
            ..Default::default()
        };
        // SAFETY: a started port; the key has room for as many bytes as the device's has, and
        // outlives the call.
        let hashed = unsafe { sys::rte_eth_dev_rss_hash_conf_get(self.id, &mut conf) } == 0;
        RssFound {
            hash: hashed.then_some((key, conf.rss_hf)),
            table_set,
            table: (rc == 0).then_some(read),
        }
    }

    /// Puts the device, which is not configured yet, into isolated mode: it takes only frames that
    /// rules take.
    fn isolate(&self) -> Result<(), PortError> {
        let mut why = [0; 256];
        // SAFETY: a valid, stopped port; `why` has as many bytes as the call says.
        let rc = unsafe { sys::heddle_flow_isolate(self.id, why.as_mut_ptr().cast(), why.len()) };
        self.flow_result("isolated mode", rc, &why)
    }

    fn flow_result(&self, step: &'static str, rc: i32, why: &[u8]) -> Result<(), PortError> {
        if rc == 0 {
            return Ok(());
        }
        let said = why.split(|&c| c == 0).next().unwrap_or_default();
        let said = String::from_utf8_lossy(said).into_owned();
        let why = if said.is_empty() { eal::reason(rc) } else { said };
        Err(self.failed(step, why))
    }

    fn failed(&self, step: &'static str, why: String) -> PortError {
        PortError::Setup { device: self.name.clone(), step, why }
    }

    /// Returns how frames come to the queues of a started device.
    pub(super) fn spread(&self, plan: &PortPlan, steered: bool) -> Result<QueueSpread, PortError> {
        if plan.queues <= 1 {
            return Ok(QueueSpread::Single);
        }
        if self.is_joined() {
            return Ok(QueueSpread::Joined);
        }
        let Some(rss) = &plan.rss else { return Ok(QueueSpread::Unknown) };
        if plan.isolated {
            // The rules determine the spread, and the device refuses rules that it cannot follow.
            return Ok(QueueSpread::Rss { key: rss.key.clone(), table: rss.table.clone() });
        }
        match self.found_rss(rss).settle(rss, plan.queues) {
            Ok(spread) => Ok(spread),
            Err(_) if steered => Ok(QueueSpread::Unknown),
            Err(why) => Err(PortError::Spread {
                device: self.name.clone(),
                queues: plan.queues,
                why: why.into(),
            }),
        }
    }
}

/// The device's handle of a flow rule. Closing the device deletes the rule, if nothing did before.
#[derive(Debug)]
pub(super) struct FlowHandle(NonNull<c_void>);

// SAFETY: a handle that goes back to DPDK, whose flow calls may come from any thread.
unsafe impl Send for FlowHandle {}

/// Makes rules on a started device.
pub(super) struct RuleMaker<'a> {
    pub(super) device: &'a EthDev,
    pub(super) plan: &'a PortPlan,
}

impl Maker for RuleMaker<'_> {
    type Handle = FlowHandle;
    type Error = PortError;

    fn make(&mut self, rule: &FlowRule) -> Result<FlowHandle, PortError> {
        let spread = self.plan.rss.as_ref().filter(|_| rule.spread);
        let (table, key) = spread.map_or((&[][..], &[][..]), |r| (&r.table[..], &r.key[..]));
        let (mut rc, mut why) = (0, [0; 256]);
        let _control = control();
        // SAFETY: a started port; rule, table, key, `rc` and `why` outlive the call, and the
        // lengths are those of the slices.
        let made = unsafe {
            sys::heddle_flow_create(
                self.device.id,
                &rule.raw(),
                table.as_ptr(),
                u32::try_from(table.len()).unwrap_or(0),
                key.as_ptr(),
                u32::try_from(key.len()).unwrap_or(0),
                spread.map_or(0, |r| r.types),
                &mut rc,
                why.as_mut_ptr().cast(),
                why.len(),
            )
        };
        self.device.flow_result("flow rule", rc, &why)?;
        NonNull::new(made)
            .map(FlowHandle)
            .ok_or_else(|| self.device.failed("flow rule", String::new()))
    }

    fn delete(&mut self, FlowHandle(rule): &FlowHandle) -> Result<(), PortError> {
        let mut why = [0; 256];
        let _control = control();
        // SAFETY: a rule of this port that was not deleted yet; `why` has as many bytes as the call
        // says.
        let rc = unsafe {
            let text = why.as_mut_ptr().cast();
            sys::heddle_flow_destroy(self.device.id, rule.as_ptr(), text, why.len())
        };
        self.device.flow_result("end of a flow rule", rc, &why)
    }
}

/// Returns true if the interface is up, and its peer is up as well; `None` if that is unknown.
pub(super) fn runs(if_index: u32) -> Option<bool> {
    Interface::numbered(if_index).map(|i| i.up && i.running)
}
