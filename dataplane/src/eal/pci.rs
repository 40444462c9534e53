//! PCI devices as the kernel knows them, before DPDK has looked at any.

use std::path::{Path, PathBuf};

use super::clean;

/// Facts about a PCI device before the EAL starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PciFacts {
    /// The device's PCI address, with all four numbers.
    pub(crate) name: String,
    /// Whether the machine has the device.
    pub(crate) present: bool,
    /// Vendor and device, as `8086:10d3`; `None` if unknown.
    pub(crate) id: Option<String>,
    /// The kernel driver that the device is bound to.
    pub(crate) driver: Option<String>,
    /// Whether an IOMMU is between the device and the memory.
    pub(crate) iommu: bool,
    /// Bits of an address that the IOMMU translates; `None` if unknown, which counts as enough.
    pub(crate) iommu_bits: Option<u8>,
}

impl PciFacts {
    /// Reads the facts about the device at an address from sysfs.
    pub(crate) fn read(name: &str) -> PciFacts {
        PciFacts::read_from(&devices(), name)
    }

    fn read_from(devices: &Path, name: &str) -> PciFacts {
        let dir = devices.join(name);
        let driver = std::fs::read_link(dir.join("driver")).ok();
        let driver = driver.and_then(|p| Some(p.file_name()?.to_str()?.to_owned()));
        // For devices without an IOMMU, vfio makes groups of its own with this name.
        let group = std::fs::read_to_string(dir.join("iommu_group/name")).unwrap_or_default();
        let iommu = dir.join("iommu_group").exists() && group.trim() != "vfio-noiommu";
        let cap = std::fs::read_to_string(dir.join("iommu/intel-iommu/cap")).ok();
        let cap = cap.and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
        let number = |file: &str| {
            let text = std::fs::read_to_string(dir.join(file)).ok()?;
            text.trim().strip_prefix("0x").map(str::to_owned)
        };
        PciFacts {
            name: name.into(),
            present: dir.exists(),
            id: number("vendor").zip(number("device")).map(|(v, d)| format!("{v}:{d}")),
            driver,
            iommu,
            iommu_bits: cap.and_then(vt_d_bits),
        }
    }

    /// Returns the reason why DPDK has no port for a device that the machine has; `None` if the
    /// machine does not have the device. `log` is DPDK's log of its start, for which the
    /// configuration named `devices` PCI devices.
    pub(crate) fn unusable(&self, log: &str, devices: usize) -> Option<String> {
        if !self.present {
            return None;
        }
        let without = || {
            let d = self.driver.as_deref().unwrap_or_default();
            let id = self.id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
            format!("it is bound to {d}, but DPDK has no driver for it{id}: is a plugin missing?")
        };
        let said = || said_of(log, &self.name, devices).unwrap_or_else(without);
        Some(self.taken().unwrap_or_else(said))
    }

    /// Returns the reason why the device is not DPDK's to use; `None` if it is bound to a kernel
    /// driver that leaves the device to DPDK.
    pub(crate) fn taken(&self) -> Option<String> {
        let bind = format!("bind it to vfio-pci (dpdk-devbind.py --bind=vfio-pci {})", self.name);
        match self.driver.as_deref() {
            None => Some(format!("it is bound to no driver: {bind}")),
            Some(d) if FOR_DPDK.contains(&d) => None,
            Some(d) => Some(format!("the kernel's driver {d} has it: {bind}")),
        }
    }
}

/// Returns true if the machine does not have the device, or has it no longer.
pub(crate) fn is_absent(name: &str) -> bool {
    !devices().join(name).exists()
}

fn devices() -> PathBuf {
    PathBuf::from("/sys/bus/pci/devices")
}

/// Kernel drivers that leave a device to DPDK, or share it.
const FOR_DPDK: [&str; 6] =
    ["vfio-pci", "igb_uio", "uio_pci_generic", "mlx5_core", "mlx4_core", "mana"];

/// Finds the reason in DPDK's log why it has no port for a device: the first line that names the
/// device. If the configuration names a single device, the first line of all may be the reason.
/// Lines that only say that there is no port give no reason.
fn said_of(log: &str, name: &str, devices: usize) -> Option<String> {
    const NO_REASON: [&str; 2] = ["cannot be used", "No device found"];
    let mut lines = log.lines().filter(|l| !NO_REASON.iter().any(|n| l.contains(n)));
    let named = lines.clone().find(|l| l.contains(name));
    named.or_else(|| lines.next().filter(|_| devices == 1)).and_then(clean)
}

/// Returns the bits of an address that VT-d translates, from its capability register (MGAW, bits 21
/// to 16, which hold the number minus one).
fn vt_d_bits(cap: u64) -> Option<u8> {
    u8::try_from((cap >> 16 & 0x3f) + 1).ok()
}

/// Returns DPDK's name of the device at a PCI address: all four numbers, without arguments.
pub(crate) fn pci_name(s: &str) -> Option<String> {
    let addr = s.split(',').next().unwrap_or("");
    let hex = |t: &str, max: usize| {
        let digits = t.len() <= max && t.bytes().all(|b| b.is_ascii_hexdigit());
        u32::from_str_radix(t, 16).ok().filter(|_| digits)
    };
    let (rest, function) = addr.rsplit_once('.')?;
    let parts: Vec<&str> = rest.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [b, d] => (0, hex(b, 2)?, hex(d, 2)?),
        [dom, b, d] => (hex(dom, 8)?, hex(b, 2)?, hex(d, 2)?),
        _ => return None,
    };
    let fine =
        matches!(function.as_bytes(), [b'0'..=b'7']) && s.bytes().all(|b| b.is_ascii_graphic());
    fine.then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_pci_address_is_parsed_and_normalized() {
        for (ok, name) in [
            ("0000:3b:00.0", "0000:3b:00.0"),
            ("3B:0.7", "0000:3b:00.7"),
            ("0000:3b:00.0,rx_vec_en=1", "0000:3b:00.0"),
            ("10000:00:1f.6", "10000:00:1f.6"),
        ] {
            assert_eq!(pci_name(ok).as_deref(), Some(name), "{ok}");
        }
        for bad in ["", "3b", "3b:00", "3b:00.8", "zz:00.0", "0000:3b:00.0 --proc-type=auto", "-a"]
        {
            assert_eq!(pci_name(bad), None, "{bad}");
        }
    }

    fn bound(driver: Option<&str>) -> PciFacts {
        PciFacts {
            name: "0000:3b:00.0".into(),
            present: true,
            id: Some("8086:10d3".into()),
            driver: driver.map(str::to_owned),
            ..PciFacts::default()
        }
    }

    #[test]
    fn test_error_says_why_dpdk_cannot_use_a_device() {
        assert_eq!(PciFacts::default().unusable("", 1), None, "there is none");
        let said = |driver| bound(driver).unusable("", 1).unwrap();
        assert!(said(None).starts_with("it is bound to no driver: bind it to vfio-pci"));
        let kernel = said(Some("e1000e"));
        assert!(kernel.contains("the kernel's driver e1000e has it"), "{kernel}");
        assert!(kernel.contains("--bind=vfio-pci 0000:3b:00.0"), "{kernel}");
        let none = said(Some("vfio-pci"));
        assert!(none.contains("no driver for it (8086:10d3)"), "{none}");
    }

    #[test]
    fn test_reason_from_dpdk_log_is_given_for_the_device_it_names() {
        let log = "EAL: 0000:3b:00.0 VFIO group is not viable! Not all devices are bound\n\
                   EAL: Requested device 0000:3b:00.0 cannot be used\n";
        let d = bound(Some("vfio-pci"));
        let said = d.unusable(log, 2).unwrap();
        assert_eq!(said, "0000:3b:00.0 VFIO group is not viable! Not all devices are bound");
        // A log line that names no device counts only if the configuration names a single device.
        let log =
            "virtio_init(): cannot allocate\nEAL: Requested device 0000:3b:00.0 cannot be used\n";
        assert_eq!(d.unusable(log, 1).unwrap(), "cannot allocate");
        assert!(d.unusable(log, 2).unwrap().contains("no driver for it"));
        assert!(bound(Some("e1000e")).unusable(log, 1).unwrap().contains("e1000e has it"));
    }

    #[test]
    fn test_pci_facts_are_read_from_sysfs() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let device = |name: &str, driver: Option<&str>, group: Option<&str>, cap: Option<&str>| {
            let at = dir.path().join(name);
            std::fs::create_dir_all(&at).unwrap();
            if let Some(driver) = driver {
                symlink(format!("../../drivers/{driver}"), at.join("driver")).unwrap();
            }
            if let Some(group) = group {
                std::fs::create_dir(at.join("iommu_group")).unwrap();
                std::fs::write(at.join("iommu_group/name"), group).unwrap();
            }
            if let Some(cap) = cap {
                std::fs::create_dir_all(at.join("iommu/intel-iommu")).unwrap();
                std::fs::write(at.join("iommu/intel-iommu/cap"), cap).unwrap();
            }
            PciFacts::read_from(dir.path(), name)
        };
        let f = device("0000:00:01.0", Some("vfio-pci"), Some(""), Some("d2008c40660462\n"));
        assert_eq!(
            (f.driver.as_deref(), f.iommu, f.iommu_bits),
            (Some("vfio-pci"), true, Some(39))
        );
        let f = device("0000:00:02.0", Some("vfio-pci"), Some("vfio-noiommu\n"), None);
        assert_eq!((f.iommu, f.iommu_bits), (false, None));
        let f = device("0000:00:03.0", None, None, None);
        let there = PciFacts { name: "0000:00:03.0".into(), present: true, ..PciFacts::default() };
        assert_eq!(f, there);
        std::fs::write(dir.path().join("0000:00:03.0/vendor"), "0x8086\n").unwrap();
        std::fs::write(dir.path().join("0000:00:03.0/device"), "0x10d3\n").unwrap();
        let f = PciFacts::read_from(dir.path(), "0000:00:03.0");
        assert_eq!(f.id.as_deref(), Some("8086:10d3"));
        assert!(!PciFacts::read_from(dir.path(), "0000:00:04.0").present);
    }

    #[test]
    fn test_iommu_width_is_read_from_capability_register() {
        // MGAW is 38 and 47.
        assert_eq!(vt_d_bits(0x00d2_008c_4066_0462), Some(39));
        assert_eq!(vt_d_bits(0x08d2_078c_106f_0462), Some(48));
    }
}
