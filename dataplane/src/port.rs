//! Ports: devices and pairs of rings.
//!
//! A [`Port`] is opened, configured and started in one step, and hands out its queues once, each
//! to be owned by one worker. It is stopped, closed and unplugged when the last of port and queues
//! is dropped; there is no `stop`, which would pull the device from under a worker in a burst.
//!
//! **Frames of several segments.** A driver takes them when it announces it. `net_pcap` and
//! `net_null` do not, but write and free whole chains (tested); for others that do not, as
//! `net_af_xdp`, [`crate::TxQueue`] copies the frame into one segment and counts it.

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use heddle_dpdk_sys as sys;
use thiserror::Error;

use crate::device::{Device, find, plug};
use crate::eal::{self, Eal};
use crate::mempool::Mempool;
use crate::queue::{RxQueue, TxQueue};
use crate::ring::RingPair;
use crate::vdev::VdevArg;

/// What a port is made of.
#[derive(Clone, Debug)]
pub enum PortSource {
    /// A virtual device, plugged in for the port and removed with it.
    Vdev(VdevArg),
    /// A device the EAL has already, by its PCI address in any of its forms, or its name.
    Device(String),
}

/// How a port is set up.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Receive descriptors of each queue; rounded to what the device takes.
    pub rx_desc: u16,
    /// Transmit descriptors of each queue; rounded to what the device takes.
    pub tx_desc: u16,
    /// Mempools, one for each pair of queues: queue `i` receives into the `i`-th.
    pub pools: Vec<Mempool>,
    /// Receive frames for every address.
    pub promiscuous: bool,
}

impl PortConfig {
    /// One pair of queues that receives into `pool`, at an MTU of 1500.
    pub fn new(pool: Mempool) -> PortConfig {
        PortConfig {
            mtu: 1500,
            rx_desc: 1024,
            tx_desc: 1024,
            pools: vec![pool],
            promiscuous: false,
        }
    }
}

/// What a port does by itself. Everything listed is switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCaps {
    /// Checks the IPv4 header checksum of received frames.
    pub rx_ip_checksum: bool,
    /// Checks the TCP checksum of received frames.
    pub rx_tcp_checksum: bool,
    /// Fills in the IPv4 header checksum when asked.
    pub tx_ip_checksum: bool,
    /// Fills in the TCP checksum when asked.
    pub tx_tcp_checksum: bool,
    /// Sends frames of several segments; otherwise they are copied together.
    pub multi_segs: bool,
    /// Spreads flows over the queues and gives the RSS hash.
    pub rss: bool,
}

/// What a port counted since it was opened. A driver that does not count leaves zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames dropped because the queue was full.
    pub rx_missed: u64,
    /// Frames that were wrong.
    pub rx_errors: u64,
    /// Frames dropped because the mempool was empty.
    pub rx_no_mbuf: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
}

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether it is up.
    pub up: bool,
    /// Mb/s; `None` when the device does not know.
    pub mbps: Option<u32>,
}

/// Why there is no port. Each names the device.
#[derive(Debug, Error)]
pub enum PortError {
    /// The description is malformed.
    #[error("device {device}: {why}")]
    BadDevice {
        /// As it was given.
        device: String,
        /// What is wrong.
        why: String,
    },
    /// There is no such device.
    #[error("device {0}: there is no such device")]
    NotFound(String),
    /// A device of that name is in use.
    #[error("device {0}: a device of this name is in use already")]
    InUse(String),
    /// The driver refused it, or there is no such driver.
    #[error("device {device}: {why}")]
    Probe {
        /// As it was given.
        device: String,
        /// The driver's first complaint.
        why: String,
    },
    /// The device cannot do what the configuration asks.
    #[error("device {device}: {what} of {wanted} asked for, at most {max} possible")]
    Limit {
        /// Its name.
        device: String,
        /// What is limited.
        what: &'static str,
        /// Asked for.
        wanted: u32,
        /// Possible.
        max: u32,
    },
    /// A step of setting it up failed.
    #[error("device {device}: {step} failed: {why}")]
    Setup {
        /// Its name.
        device: String,
        /// The step.
        step: &'static str,
        /// DPDK's reason.
        why: String,
    },
}

/// An opened port.
#[derive(Debug)]
pub struct Port {
    device: Arc<Device>,
    driver: String,
    mac: [u8; 6],
    mtu: u16,
    caps: PortCaps,
    queues: Vec<(RxQueue, TxQueue)>,
}

impl Port {
    /// Opens, configures and starts a port.
    ///
    /// # Errors
    /// See [`PortError`]; a device plugged in for the port is removed again.
    pub fn open(_eal: &Eal, source: &PortSource, config: &PortConfig) -> Result<Port, PortError> {
        let device = match source {
            PortSource::Vdev(v) => plug(v)?,
            PortSource::Device(given) => Device {
                id: find(&eal::pci_name(given).unwrap_or_else(|| given.clone()))
                    .ok_or_else(|| PortError::NotFound(given.clone()))?,
                name: given.clone(),
                args: String::new(),
                plugged: None,
                rings: None,
            },
        };
        Port::start(device, config)
    }

    /// Two ports joined by rings of `capacity` frames each way and queue: what one sends, the
    /// other receives, as the same mbufs. Queue `i` is joined to queue `i`. `name` sets the pair
    /// apart from others.
    ///
    /// # Errors
    /// When the name is in use or memory is short.
    pub fn ring_pair(
        _eal: &Eal,
        name: &str,
        capacity: u32,
        a: &PortConfig,
        b: &PortConfig,
    ) -> Result<(Port, Port), PortError> {
        let rings = Arc::new(RingPair::new(name, capacity, a.pools.len().max(b.pools.len()))?);
        let open = |side: usize, config: &PortConfig| {
            let (id, bus_name) = rings.port(side)?;
            let device = Device {
                id,
                name: format!("{name}.{}", ["a", "b"][side]),
                args: String::new(),
                plugged: Some(bus_name),
                rings: Some(Arc::clone(&rings)),
            };
            Port::start(device, config)
        };
        Ok((open(0, a)?, open(1, b)?))
    }

    fn start(device: Device, config: &PortConfig) -> Result<Port, PortError> {
        // From here on dropping the device closes and unplugs it.
        let device = Arc::new(device);
        let info = device.info()?;
        let driver = c_string(info.driver_name);
        let caps = device.configure(&info, &driver, config)?;
        let mac = device.mac();
        device.start()?;
        if config.promiscuous {
            // Virtual devices that cannot switch it receive everything anyway.
            // SAFETY: a started port.
            let _ = unsafe { sys::rte_eth_promiscuous_enable(device.id) };
        }
        let queues = (0u16..)
            .zip(&config.pools)
            .map(|(i, pool)| {
                (
                    RxQueue::new(Arc::clone(&device), i),
                    TxQueue::new(Arc::clone(&device), i, *pool, caps.multi_segs),
                )
            })
            .collect();
        Ok(Port { device, driver, mac, mtu: config.mtu, caps, queues })
    }

    /// The queues, one pair for each mempool of the configuration; empty when taken before.
    pub fn take_queues(&mut self) -> Vec<(RxQueue, TxQueue)> {
        std::mem::take(&mut self.queues)
    }

    /// The port's name.
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// Name of its driver.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Its Ethernet address. A device without one gets a locally administered one from its name.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Largest IP packet in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// What it does by itself.
    pub fn caps(&self) -> PortCaps {
        self.caps
    }

    /// State of its link, without waiting.
    pub fn link(&self) -> Link {
        let mut link = sys::rte_eth_link::default();
        // SAFETY: a started port; the callee fills `link`.
        let rc = unsafe { sys::rte_eth_link_get_nowait(self.device.id, &mut link) };
        let known = link.link_speed != 0 && link.link_speed != u32::MAX;
        Link {
            up: rc == 0 && link.link_status() == 1,
            mbps: (rc == 0 && known).then_some(link.link_speed),
        }
    }

    /// What the driver counted.
    pub fn stats(&self) -> PortStats {
        let mut s = sys::rte_eth_stats::default();
        // SAFETY: a started port; the callee fills `s`; zeros stay when it cannot.
        let _ = unsafe { sys::rte_eth_stats_get(self.device.id, &mut s) };
        PortStats {
            rx_frames: s.ipackets,
            rx_bytes: s.ibytes,
            rx_missed: s.imissed,
            rx_errors: s.ierrors,
            rx_no_mbuf: s.rx_nombuf,
            tx_frames: s.opackets,
            tx_bytes: s.obytes,
            tx_errors: s.oerrors,
        }
    }

    /// Receives frames for every address, or no longer.
    ///
    /// # Errors
    /// When the device cannot.
    pub fn set_promiscuous(&self, on: bool) -> Result<(), PortError> {
        // SAFETY: a started port.
        let rc = unsafe {
            if on {
                sys::rte_eth_promiscuous_enable(self.device.id)
            } else {
                sys::rte_eth_promiscuous_disable(self.device.id)
            }
        };
        self.device.check("promiscuous mode", rc)
    }

    /// Lets the device read and write an arena (IOMMU mapping). Virtual devices need none.
    ///
    /// # Errors
    /// When the mapping fails.
    pub fn map(&self, arena: &crate::Arena) -> Result<(), PortError> {
        let info = self.device.info()?;
        if self.device.plugged.is_some() || info.device.is_null() {
            return Ok(());
        }
        let base = arena.base().as_ptr();
        // SAFETY: the device is plugged in; the range is registered external memory, and its IOVA
        // is its address (iova-mode=va).
        let rc = unsafe {
            sys::rte_dev_dma_map(info.device, base.cast(), base as u64, arena.mapped_len())
        };
        if rc != 0 && eal::last_errno() == libc::ENOTSUP {
            return Ok(());
        }
        self.device.check("DMA mapping", rc)
    }
}

fn c_string(p: *const std::ffi::c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: DPDK gives NUL-terminated names that live as long as the driver is loaded.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.mac;
        write!(f, "{} ({}, MTU {}, ", self.name(), self.driver, self.mtu)?;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x})", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}
