//! The configuration of a device, and how it is tried. Nothing here calls DPDK.

use heddle_dpdk_sys as sys;

use super::error::PortError;
use super::plan::PortPlan;

/// Takes `steps` with interrupts if they are `asked` for, and once more without them if that fails:
/// drivers refuse interrupts when they configure a device (virtio without MSI-X) or start it (too
/// few vectors). A failure of both attempts has another reason, which is the second attempt's
/// error.
pub(super) fn settle(
    asked: bool,
    steps: impl Fn(bool) -> Result<bool, PortError>,
) -> Result<(bool, Option<String>), PortError> {
    match steps(asked) {
        Ok(all) => Ok((all, None)),
        Err(with) if asked => {
            let all = steps(false)?;
            let why = match with {
                PortError::Setup { why, .. } => why,
                other => other.to_string(),
            };
            Ok((all, Some(why)))
        }
        Err(e) => Err(e),
    }
}

/// Returns the configuration of a device. The result points to `key`, the key of the plan.
pub(super) fn device_conf(
    plan: &PortPlan,
    key: &mut [u8],
    rx_interrupt: bool,
) -> sys::rte_eth_conf {
    let mut conf = sys::rte_eth_conf::default();
    conf.rxmode.mtu = u32::from(plan.mtu.configured);
    conf.rxmode.offloads = plan.rx_offloads;
    conf.rxmode.max_lro_pkt_size = plan.max_lro_pktlen;
    conf.txmode.offloads = plan.tx_offloads;
    if let Some(rss) = &plan.rss {
        conf.rxmode.mq_mode = sys::rte_eth_rx_mq_mode_RTE_ETH_MQ_RX_RSS;
        let to = &mut conf.rx_adv_conf.rss_conf;
        to.rss_hf = rss.types;
        to.rss_key = key.as_mut_ptr();
        to.rss_key_len = u8::try_from(key.len()).unwrap_or(0);
    }
    // Leave interrupts of the link off. With them on, DPDK no longer asks the device for its link
    // but shows the last state that an interrupt brought; for a device that announces such
    // interrupts and raises none (e1000, e1000e and vmxnet3 have done so), DPDK would show the
    // first state for ever.
    // A bond's link is the state that the bond itself keeps, as it looks at its members; to ask a bond
    // would ask the members from two threads at once.
    conf.intr_conf.set_lsc(u32::from(plan.bonded));
    conf.intr_conf.set_rxq(u32::from(rx_interrupt));
    conf
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::caps::Capabilities;
    use super::super::plan::devices;
    use super::super::plan::tests::planned;
    use super::*;

    #[test]
    fn test_link_change_interrupts_are_never_requested() {
        for caps in devices::all() {
            let plan = planned(&caps, false);
            let conf = device_conf(&plan, &mut [], plan.rx_interrupt);
            assert_eq!(conf.intr_conf.lsc(), 0, "{}: DPDK would not ask it any more", caps.driver);
            assert_eq!(conf.intr_conf.rxq(), 0, "{}", caps.driver);
        }
    }

    #[test]
    fn test_link_of_a_bond_is_read_and_not_asked_for() {
        let caps = Capabilities::default().bonded(vec![devices::e1000e(), devices::virtio()]);
        let caps = Capabilities { max_rx_queues: 1, max_tx_queues: 1, ..caps };
        let caps = Capabilities { max_rx_pktlen: u32::MAX, max_mtu: u16::MAX, ..caps };
        let plan = planned(&caps, true);
        let conf = device_conf(&plan, &mut [], plan.rx_interrupt);
        assert_eq!((conf.intr_conf.lsc(), conf.intr_conf.rxq()), (1, 0));
    }

    fn refusal(why: &str) -> PortError {
        PortError::Setup { device: "dev".into(), step: "configuration", why: why.into() }
    }

    #[test]
    fn test_device_that_refuses_receive_interrupts_starts_without() {
        let tried = std::cell::RefCell::default();
        let steps = |rx_interrupt: bool| {
            std::cell::RefCell::<Vec<bool>>::borrow_mut(&tried).push(rx_interrupt);
            if rx_interrupt { Err(refusal("Multiple intr vector not supported")) } else { Ok(true) }
        };
        let (all, why) = settle(true, steps).unwrap();
        assert_eq!((all, why.as_deref()), (true, Some("Multiple intr vector not supported")));
        assert_eq!(tried.take(), [true, false]);
        assert_eq!(settle(false, steps).unwrap(), (true, None));
        assert_eq!(tried.take(), [false]);
    }

    #[test]
    fn test_device_that_fails_either_way_reports_error_without_interrupts() {
        let steps =
            |rx_interrupt| Err(refusal(if rx_interrupt { "too few vectors" } else { "no memory" }));
        let e = settle(true, steps).unwrap_err().to_string();
        assert_eq!(e, "device dev: configuration failed: no memory");
    }

    #[test]
    fn test_receive_interrupts_need_a_request_and_message_signaling() {
        for caps in devices::all() {
            let bound = |to: &str| Capabilities { bound_to: Some(to.into()), ..caps.clone() };
            let asked = |caps: &Capabilities| {
                let plan = planned(caps, true);
                device_conf(&plan, &mut [], plan.rx_interrupt).intr_conf.rxq()
            };
            assert_eq!((asked(&caps), asked(&bound("vfio-pci"))), (1, 1), "{}", caps.driver);
            assert_eq!(asked(&bound("uio_pci_generic")), 0, "{}: INTx alone", caps.driver);
        }
    }
}
