//! Interrupts of receive queues.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use heddle_dpdk_sys as sys;

use super::ethdev::EthDev;
use super::lock::control;

/// The interrupt of a receive queue, from [`RxQueue::interrupt`](super::queue::RxQueue::interrupt),
/// for the thread that polls the queue.
#[derive(Debug)]
pub struct RxInterrupt {
    device: Arc<EthDev>,
    queue: u16,
    /// The descriptor that watches the queue; dropping this value removes the queue from it.
    epoll: Option<i32>,
}

impl RxInterrupt {
    pub(super) fn new(device: Arc<EthDev>, queue: u16) -> RxInterrupt {
        RxInterrupt { device, queue, epoll: None }
    }

    /// Makes `epoll` readable when the queue interrupts; `number` names the queue there. `epoll`
    /// must outlive this value. Returns false if the device has no interrupts, or was opened
    /// without ([`PortConfig::rx_interrupt`](super::PortConfig)).
    pub(crate) fn watch(&mut self, epoll: BorrowedFd<'_>, number: u32) -> bool {
        let fd = epoll.as_raw_fd();
        let _control = control();
        // SAFETY: a started port, which stays so while `device` lives, and an open descriptor.
        let rc = unsafe { sys::heddle_rx_intr_add(self.device.id, self.queue, fd, number) };
        if rc == 0 {
            self.epoll = Some(fd);
        }
        rc == 0
    }

    /// Lets the queue interrupt when a frame comes, or stops that. Returns false if the queue
    /// cannot.
    pub(crate) fn set(&self, on: bool) -> bool {
        // SAFETY: a started port, which stays so while `device` lives; called by the thread that
        // polls the queue.
        let rc = unsafe {
            if on {
                sys::rte_eth_dev_rx_intr_enable(self.device.id, self.queue)
            } else {
                sys::rte_eth_dev_rx_intr_disable(self.device.id, self.queue)
            }
        };
        rc == 0
    }
}

impl Drop for RxInterrupt {
    fn drop(&mut self) {
        if let Some(epoll) = self.epoll {
            let control = control();
            // SAFETY: the queue was added to this descriptor, which its owner keeps open until this
            // value is dropped; the port is started while `device` lives.
            let _ = unsafe { sys::heddle_rx_intr_del(self.device.id, self.queue, epoll) };
            // Dropping `device` may close the device, which takes the lock again.
            drop(control);
        }
    }
}
