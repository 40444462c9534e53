//! What is known of single drivers and does not show in what they say of themselves.

/// How a driver differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quirks {
    /// It takes frames of several segments without announcing it.
    pub(super) takes_chains: bool,
    /// What it computes as TCP checksum is wrong for some frames.
    pub(super) wrong_tcp_checksum: bool,
    /// Its address is also that of an interface of the kernel on the same link, so the port needs
    /// another one.
    pub(super) shares_mac: bool,
}

impl Quirks {
    /// Those of a driver by its name in DPDK, for a device with these arguments.
    pub(super) fn of(driver: &str, args: &str) -> Quirks {
        let none = Quirks::default();
        match driver {
            "net_pcap" => Quirks { takes_chains: true, ..none },
            // It frees what it gets, unless it was told to copy (`copy=1`).
            "net_null" => Quirks { takes_chains: !args.contains("copy"), ..none },
            // It sums segment by segment without swapping behind one of odd length (seen with
            // 22.11): the frame of every FPDU whose payload is odd is lost, and so is every
            // retransmission of it.
            // The port has the address of the interface it makes. A bridge that the interface is
            // put into takes frames for that address as its own and does not pass them on. With
            // `remote=` frames pass a real interface, whose address it must be.
            "net_tap" => Quirks {
                wrong_tcp_checksum: true,
                shares_mac: !args.split(',').any(|a| a.starts_with("remote=")),
                ..none
            },
            _ => none,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_arguments_matter() {
        assert!(Quirks::of("net_null", "size=512").takes_chains);
        assert!(!Quirks::of("net_null", "size=512,copy=1").takes_chains);
        assert!(Quirks::of("net_tap", "iface=t0").shares_mac);
        assert!(!Quirks::of("net_tap", "iface=t0,remote=eth0").shares_mac);
        assert_eq!(Quirks::of("net_ixgbe", ""), Quirks::default());
    }
}
