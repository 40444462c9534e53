//! The EAL starts once, reports its choices, and refuses clearly.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use heddle_dataplane::*;

#[test]
fn test_eal_starts_once_and_refuses_clearly() {
    assert!(Eal::get().is_none());
    let bad = EalConfig { pci: vec!["3b:00".into()], ..EalConfig::default() };
    let e = Eal::init(&bad).unwrap_err();
    assert!(matches!(e, EalError::BadPci(_)) && e.to_string().contains("3b:00"), "{e}");
    let greedy =
        EalConfig { memory_mb: u32::MAX, hugepages: Hugepages::Require, ..EalConfig::default() };
    let e = Eal::init(&greedy).unwrap_err();
    assert!(matches!(e, EalError::TooFewHugepages { .. }), "{e}");

    let before = heddle_dataplane::lcore::available();
    let config = EalConfig { hugepages: Hugepages::Never, memory_mb: 64, ..EalConfig::default() };
    let eal = Eal::init(&config).unwrap();
    assert_eq!(heddle_dataplane::lcore::available(), before, "affinity is as before");
    assert_eq!(eal.memory_mode(), MemoryMode::NoHuge);
    assert!(eal.version().starts_with("DPDK "), "{}", eal.version());
    assert!(Eal::get().is_some() && !eal.has_pci());

    let has = |name: &str| eal.has_driver(&name.parse().unwrap());
    assert!(has("net_null0") && has("net_af_packet7,iface=lo"));
    assert!(!has("net_af_packt0,iface=lo") && !has("net_nosuchdriver0"));

    let e = Eal::init(&config).unwrap_err();
    assert!(matches!(e, EalError::AlreadyStarted), "{e}");

    // A pool with more buffers than there is memory is an error, and the EAL goes on.
    let huge = MempoolConfig::for_mtu(1 << 20, 9000);
    let e = Mempool::new(&eal, &huge).unwrap_err();
    assert!(e.to_string().contains("1048576"), "{e}");
    assert!(Mempool::new(&eal, &MempoolConfig::for_mtu(255, 1500)).is_ok());
}
