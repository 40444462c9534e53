//! The addresses devices are given: those of this process, or those of the machine.
//!
//! Behind an IOMMU a device can go by the process's addresses, and registered memory can be read where
//! it lies. Without one it goes by physical addresses: those are known for the EAL's hugepages, so
//! packet buffers work; of registered memory each page would have its own, and payload is copied
//! into packet buffers instead.

use std::path::Path;

/// What devices are addressed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IovaMode {
    /// The process's addresses.
    Va,
    /// Physical addresses.
    Pa,
}

/// What is known of a PCI device before the EAL starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PciFacts {
    /// Its address, with all four numbers.
    pub(super) name: String,
    /// The driver of the kernel that it is bound to.
    pub(super) driver: Option<String>,
    /// Whether an IOMMU is between it and the memory.
    pub(super) iommu: bool,
    /// Bits of an address that the IOMMU translates; `None`: not said, and enough.
    pub(super) iommu_bits: Option<u8>,
}

/// What is known of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// Packet buffers lie in hugepages.
    pub(super) hugepages: bool,
    /// The kernel tells this process physical addresses.
    pub(super) sees_physical: bool,
}

/// Bits of a process's address on x86-64 and 64-bit Arm, as the kernel hands them out unless asked.
const VA_BITS: u8 = 47;

/// Chooses for all devices at once, or takes what is `asked` for where they can go by that. An error
/// names the device that cannot be used, and says why.
pub(super) fn choose(
    asked: Option<IovaMode>,
    devices: &[PciFacts],
    machine: Machine,
) -> Result<IovaMode, String> {
    let in_need = devices.iter().find_map(|d| Some((d.name.as_str(), needs_physical(d)?)));
    let (device, why) = match (in_need, asked) {
        (None, None | Some(IovaMode::Va)) => return Ok(IovaMode::Va),
        (None, Some(IovaMode::Pa)) => ("(any)", "asked for"),
        (Some((device, why)), Some(IovaMode::Va)) => {
            return Err(format!("device {device} needs physical addresses ({why})"));
        }
        (Some(d), _) => d,
    };
    let missing = if !machine.hugepages {
        "that takes hugepages"
    } else if !machine.sees_physical {
        "that takes CAP_SYS_ADMIN, to read them"
    } else {
        return Ok(IovaMode::Pa);
    };
    Err(format!("device {device} needs physical addresses ({why}), and {missing}"))
}

/// Why a device cannot go by the process's addresses.
fn needs_physical(d: &PciFacts) -> Option<&'static str> {
    match d.driver.as_deref() {
        // The kernel's driver stays and translates.
        Some("mlx5_core" | "mlx4_core" | "mana") => None,
        Some("igb_uio" | "uio_pci_generic") => Some("its driver knows no IOMMU"),
        Some("vfio-pci") if !d.iommu => Some("vfio without an IOMMU"),
        Some("vfio-pci") if d.iommu_bits.is_some_and(|bits| bits < VA_BITS) => {
            Some("its IOMMU translates too few bits")
        }
        // Others are bound to nothing we could use: probing says so.
        _ => None,
    }
}

impl PciFacts {
    /// Of the device at an address, from sysfs.
    pub(super) fn read(name: &str) -> PciFacts {
        PciFacts::read_from(Path::new("/sys/bus/pci/devices"), name)
    }

    fn read_from(devices: &Path, name: &str) -> PciFacts {
        let dir = devices.join(name);
        let driver = std::fs::read_link(dir.join("driver")).ok();
        let driver = driver.and_then(|p| Some(p.file_name()?.to_str()?.to_owned()));
        // vfio makes groups of its own for devices without an IOMMU, and names them so.
        let group = std::fs::read_to_string(dir.join("iommu_group/name")).unwrap_or_default();
        let iommu = dir.join("iommu_group").exists() && group.trim() != "vfio-noiommu";
        let cap = std::fs::read_to_string(dir.join("iommu/intel-iommu/cap")).ok();
        let cap = cap.and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
        PciFacts { name: name.into(), driver, iommu, iommu_bits: cap.and_then(vt_d_bits) }
    }
}

/// Bits of an address that VT-d translates, from its capability register (MGAW, bits 21 to 16, one
/// less than it is).
fn vt_d_bits(cap: u64) -> Option<u8> {
    u8::try_from((cap >> 16 & 0x3f) + 1).ok()
}

/// Whether the kernel shows this process physical addresses: it shows zeros to others.
pub(super) fn sees_physical() -> bool {
    use std::os::unix::fs::FileExt;
    let here = 1u64;
    let page = std::ptr::from_ref(&here) as u64 / 4096;
    let mut entry = [0; 8];
    std::fs::File::open("/proc/self/pagemap")
        .and_then(|f| f.read_exact_at(&mut entry, page * 8))
        .is_ok_and(|()| u64::from_ne_bytes(entry) & ((1 << 55) - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(driver: &str, iommu: bool) -> PciFacts {
        PciFacts {
            name: "0000:3b:00.0".into(),
            driver: Some(driver.into()),
            iommu,
            iommu_bits: None,
        }
    }

    const ALL: Machine = Machine { hugepages: true, sees_physical: true };

    #[test]
    fn test_addresses_of_the_process_where_every_device_can_go_by_them() {
        assert_eq!(choose(None, &[], ALL), Ok(IovaMode::Va), "virtual devices");
        for d in [
            bound("vfio-pci", true),
            PciFacts { iommu_bits: Some(48), ..bound("vfio-pci", true) },
            bound("mlx5_core", false),
            bound("mlx5_core", true),
            PciFacts { driver: None, ..bound("", false) },
        ] {
            let nothing = Machine { hugepages: false, sees_physical: false };
            assert_eq!(choose(None, std::slice::from_ref(&d), nothing), Ok(IovaMode::Va), "{d:?}");
        }
    }

    #[test]
    fn test_one_device_without_iommu_is_enough_for_physical_ones() {
        for d in [
            bound("vfio-pci", false),
            bound("igb_uio", true),
            bound("uio_pci_generic", false),
            PciFacts { iommu_bits: Some(39), ..bound("vfio-pci", true) },
        ] {
            assert_eq!(choose(None, &[bound("mlx5_core", true), d], ALL), Ok(IovaMode::Pa));
        }
    }

    #[test]
    fn test_what_is_missing_for_physical_addresses_is_said() {
        let d = [bound("vfio-pci", false)];
        let e = choose(None, &d, Machine { hugepages: false, ..ALL }).unwrap_err();
        assert!(e.contains("0000:3b:00.0") && e.contains("hugepages"), "{e}");
        let e = choose(None, &d, Machine { sees_physical: false, ..ALL }).unwrap_err();
        assert!(e.contains("without an IOMMU") && e.contains("CAP_SYS_ADMIN"), "{e}");
    }

    #[test]
    fn test_what_is_asked_for_is_taken_where_it_works() {
        let d = [bound("vfio-pci", false)];
        let (va, pa) = (Some(IovaMode::Va), Some(IovaMode::Pa));
        assert_eq!(choose(pa, &[bound("vfio-pci", true)], ALL), Ok(IovaMode::Pa));
        assert_eq!(choose(va, &[], ALL), Ok(IovaMode::Va));
        let e = choose(va, &d, ALL).unwrap_err();
        assert!(e.contains("0000:3b:00.0 needs physical addresses"), "{e}");
        assert!(choose(pa, &[], Machine { hugepages: false, ..ALL }).is_err());
    }

    #[test]
    fn test_facts_are_read_from_sysfs() {
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
        assert_eq!(f, PciFacts { name: "0000:00:03.0".into(), ..PciFacts::default() });
    }

    #[test]
    fn test_width_is_that_of_the_register() {
        // MGAW is 38 and 47.
        assert_eq!(vt_d_bits(0x00d2_008c_4066_0462), Some(39));
        assert_eq!(vt_d_bits(0x08d2_078c_106f_0462), Some(48));
    }
}
