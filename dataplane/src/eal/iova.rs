//! The kinds of addresses that devices use: those of this process, or those of the machine.
//!
//! With an IOMMU, a device can use the process's addresses, and can read registered memory in
//! place. Without an IOMMU, a device uses physical addresses. DPDK knows the physical addresses of
//! the EAL's hugepages, so packet buffers work; but each page of registered memory would have its
//! own physical address, so the RNIC copies payload into packet buffers instead.

use super::pci::PciFacts;

/// The kind of addresses that devices use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IovaMode {
    /// The process's addresses.
    Va,
    /// Physical addresses.
    Pa,
}

/// Facts about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// Packet buffers lie in hugepages.
    pub(super) hugepages: bool,
    /// The kernel shows physical addresses to this process.
    pub(super) sees_physical: bool,
}

/// Bits of a process's address on x86-64 and 64-bit Arm, in the range that the kernel uses unless a
/// process asks for more.
const VA_BITS: u8 = 47;

/// Chooses the kind of addresses for all devices at once, or takes the kind that is `asked` for if
/// all devices can use it. An error names the device that cannot be used, and the reason.
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

/// Returns the reason why a device cannot use the process's addresses.
fn needs_physical(d: &PciFacts) -> Option<&'static str> {
    match d.driver.as_deref() {
        // The kernel's driver stays in place and translates.
        Some("mlx5_core" | "mlx4_core" | "mana") => None,
        Some("igb_uio" | "uio_pci_generic") => Some("its driver knows no IOMMU"),
        Some("vfio-pci") if !d.iommu => Some("vfio without an IOMMU"),
        Some("vfio-pci") if d.iommu_bits.is_some_and(|bits| bits < VA_BITS) => {
            Some("its IOMMU translates too few bits")
        }
        // Other devices are bound to no driver that DPDK could use; probing reports this.
        _ => None,
    }
}

/// Returns true if the kernel shows physical addresses to this process: to other processes it shows
/// zeros.
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
            present: true,
            driver: Some(driver.into()),
            iommu,
            ..PciFacts::default()
        }
    }

    const ALL: Machine = Machine { hugepages: true, sees_physical: true };

    #[test]
    fn test_iova_mode_is_virtual_when_every_device_supports_it() {
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
    fn test_iova_mode_is_physical_when_any_device_needs_it() {
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
    fn test_error_names_requirement_missing_for_physical_addresses() {
        let d = [bound("vfio-pci", false)];
        let e = choose(None, &d, Machine { hugepages: false, ..ALL }).unwrap_err();
        assert!(e.contains("0000:3b:00.0") && e.contains("hugepages"), "{e}");
        let e = choose(None, &d, Machine { sees_physical: false, ..ALL }).unwrap_err();
        assert!(e.contains("without an IOMMU") && e.contains("CAP_SYS_ADMIN"), "{e}");
    }

    #[test]
    fn test_requested_iova_mode_is_used_when_it_is_possible() {
        let d = [bound("vfio-pci", false)];
        let (va, pa) = (Some(IovaMode::Va), Some(IovaMode::Pa));
        assert_eq!(choose(pa, &[bound("vfio-pci", true)], ALL), Ok(IovaMode::Pa));
        assert_eq!(choose(va, &[], ALL), Ok(IovaMode::Va));
        let e = choose(va, &d, ALL).unwrap_err();
        assert!(e.contains("0000:3b:00.0 needs physical addresses"), "{e}");
        assert!(choose(pa, &[], Machine { hugepages: false, ..ALL }).is_err());
    }
}
