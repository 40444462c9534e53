//! Peculiarities of single drivers that their capabilities do not show.

use super::caps::Capabilities;

/// How a driver differs from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quirks {
    /// The driver takes frames of several segments without announcing it.
    pub(super) takes_chains: bool,
    /// The driver must compute no checksum: it gets some wrong, or spoils frames meanwhile.
    pub(super) no_tx_checksums: bool,
    /// The device's address is also that of an interface of the kernel on the same link, so the
    /// port needs another address.
    pub(super) shares_mac: bool,
    /// The driver reports that frames have 1518 bytes at most, but takes longer ones
    /// ([`arguments`]). `net_tap` also reports a limit (1522), but keeps to it.
    pub(super) understates_mtu: bool,
    /// The interface of the kernel behind the device has an MTU of its own, which frames must
    /// respect and which we must not change.
    pub(super) kernel_mtu: bool,
    /// The driver reports that its link is up, whatever the state of the interface of the kernel
    /// behind it; the port has to ask the interface instead.
    pub(super) kernel_link: bool,
    /// The driver receives into several buffers without announcing it, or into none of the pool.
    pub(super) scatters: bool,
    /// The host's kernel goes on using the device, and rules split the frames between the kernel
    /// and us.
    pub(super) bifurcated: bool,
    /// The driver has RSS types, but does not spread by Toeplitz's hash over a table that it shows.
    pub(super) spreads_otherwise: bool,
    /// The cutting of a frame also mends the checksum of the IPv4 header, though the driver offers no
    /// such offload: the header of the frame needs a right one.
    pub(super) cuts_with_ip_checksum: bool,
    /// The most mbuf segments of a frame that the device cuts, if there are fewer than the driver
    /// reports.
    pub(super) cut_segs: Option<u16>,
    /// The device brings frames of many segments without an offload to switch on.
    pub(super) joins: bool,
    /// The device reads DPDK's own memory alone, so frames cannot refer to registered memory.
    pub(super) reads_own_memory: bool,
    /// The device drops frames of VLANs unless it is told of each VLAN.
    pub(super) filters_vlans: bool,
    /// Queues that the redirection table can name, if the device has more.
    pub(super) rss_queues: Option<u16>,
    /// The driver reads the lists of both kinds of queues while a queue goes: a device has to leave a
    /// bond while it runs, when DPDK leaves its queues alone.
    pub(super) leaves_running: bool,
}

impl Quirks {
    /// Returns the quirks of a device; those of a bond are its members' together.
    pub(super) fn of(device: &Capabilities) -> Quirks {
        let members = device.members.iter().map(Quirks::of);
        match members.reduce(Quirks::meet) {
            None => Quirks::of_driver(&device.driver, &device.args),
            // A bond sets the MTU of its members, and DPDK refuses more than they report.
            Some(all) => Quirks { understates_mtu: false, ..all },
        }
    }

    /// Returns the quirks of a bond of two devices: a bond can do what both can, and needs what
    /// either needs.
    fn meet(self, other: Quirks) -> Quirks {
        let fewer = |a: Option<u16>, b: Option<u16>| a.into_iter().chain(b).min();
        Quirks {
            takes_chains: self.takes_chains && other.takes_chains,
            no_tx_checksums: self.no_tx_checksums || other.no_tx_checksums,
            shares_mac: self.shares_mac || other.shares_mac,
            understates_mtu: self.understates_mtu && other.understates_mtu,
            kernel_mtu: self.kernel_mtu || other.kernel_mtu,
            kernel_link: self.kernel_link || other.kernel_link,
            scatters: self.scatters && other.scatters,
            bifurcated: self.bifurcated || other.bifurcated,
            spreads_otherwise: self.spreads_otherwise || other.spreads_otherwise,
            cuts_with_ip_checksum: self.cuts_with_ip_checksum && other.cuts_with_ip_checksum,
            cut_segs: fewer(self.cut_segs, other.cut_segs),
            joins: self.joins && other.joins,
            reads_own_memory: self.reads_own_memory || other.reads_own_memory,
            filters_vlans: self.filters_vlans || other.filters_vlans,
            rss_queues: fewer(self.rss_queues, other.rss_queues),
            leaves_running: self.leaves_running || other.leaves_running,
        }
    }

    /// Returns the quirks of a driver, by its name in DPDK, for a device with these arguments.
    fn of_driver(driver: &str, args: &str) -> Quirks {
        let none = Quirks::default();
        match driver {
            "net_pcap" => Quirks { takes_chains: true, scatters: true, ..none },
            "net_af_packet" => {
                Quirks { understates_mtu: true, kernel_mtu: true, kernel_link: true, ..none }
            }
            "net_af_xdp" => Quirks { kernel_mtu: true, kernel_link: true, ..none },
            "net_memif" => Quirks { understates_mtu: true, scatters: true, ..none },
            // A received frame consists of the sender's mbufs.
            "net_ring" => Quirks { scatters: true, ..none },
            // The driver frees the frames that it gets, unless its arguments tell it to copy
            // (`copy=1`). It makes frames of no flow on every queue, and yet reports a key and a table
            // (24.11).
            "net_null" => Quirks {
                takes_chains: !args.contains("copy"),
                scatters: true,
                spreads_otherwise: true,
                ..none
            },
            // The driver of 22.11 sums segment by segment without swapping bytes after a segment of
            // odd length: the frame of every FPDU whose payload is odd is lost, and so is every
            // retransmission of it. The driver of 24.11 takes the headers off a frame before it
            // computes any checksum, and does not put them back if the kernel refuses the frame, as
            // it does while the interface is down: another attempt sends what is left, in the end
            // nothing. The port has the address of the interface that it makes. A bridge with this
            // interface takes frames for that address as its own and does not pass them on. With
            // `remote=`, frames pass a real interface, whose address the port must have.
            "net_tap" => Quirks {
                no_tx_checksums: true,
                // The kernel chooses the queue, by the queue from which the last frame of a flow
                // was sent; RSS exists only for flow rules.
                spreads_otherwise: true,
                shares_mac: !args.split(',').any(|a| a.starts_with("remote=")),
                // 24.11.
                leaves_running: true,
                ..none
            },
            // QEMU's device drops every tagged frame once the driver has taken over the filter of
            // VLANs, as DPDK's does.
            "net_virtio" => Quirks { cuts_with_ip_checksum: true, filters_vlans: true, ..none },
            // The back end maps the files of DPDK's memory, and knows no other address.
            "net_virtio_user" => {
                Quirks { cuts_with_ip_checksum: true, reads_own_memory: true, ..none }
            }
            // The driver copies what it receives into buffers of the pool, as many as a frame needs.
            // With `tso=1` its guest may leave frames uncut.
            "net_vhost" => {
                Quirks { scatters: true, joins: args.split(',').any(|a| a == "tso=1"), ..none }
            }
            "net_vmxnet3" => Quirks { cuts_with_ip_checksum: true, cut_segs: Some(24), ..none },
            "mlx5_pci" | "mlx5_auxiliary" | "net_mlx4" => Quirks { bifurcated: true, ..none },
            // An entry of the table has four bits (82599 and later), but the device has up to 128
            // queues.
            "net_ixgbe" => Quirks { rss_queues: Some(16), ..none },
            // The table spreads over a traffic class, which has 64 queues at most.
            "net_i40e" => Quirks { rss_queues: Some(64), ..none },
            _ => none,
        }
    }
}

/// Returns the arguments of a virtual device with additions that make it take frames at `mtu` and
/// have as many queues.
pub(super) fn arguments(name: &str, args: &str, mtu: u16, queues: usize) -> String {
    let count = match name {
        _ if queues <= 1 => None,
        n if n.starts_with("net_af_packet") => Some("qpairs="),
        n if n.starts_with("net_af_xdp") => Some("queue_count="),
        // The others make as many queues as the port sets up.
        _ => None,
    };
    let given = |key: &str| args.split(',').any(|a| a.starts_with(key));
    let comma = if args.is_empty() { "" } else { "," };
    match count {
        Some(key) if !given(key) => slots(name, &format!("{args}{comma}{key}{queues}"), mtu),
        _ => slots(name, args, mtu),
    }
}

/// Adds the size and the number of the slots of the rings that `net_af_packet` shares with the kernel.
fn slots(name: &str, args: &str, mtu: u16) -> String {
    // The kernel drops a frame that finds no free slot. The driver's 512 slots of 2048 bytes hold
    // less than the window of one connection (1 MiB of payload), so a worker that loses its
    // processor for a moment would lose frames. Slots of 4 MiB hold the windows of a few. They are
    // at least 512, so that blocks (below) divide them.
    const SLOTS: u32 = 512;
    const BYTES: u32 = 4 << 20;
    // A frame shares its slot, of 2048 bytes by default, with 66 bytes of the kernel's; the kernel
    // would drop longer frames. Slots are aligned to 16 bytes. The driver assumes that slots lie
    // without gaps, so a block, which consists of whole pages, must also consist of whole slots: a
    // power of two of them, at most 256, which divides the number of slots. A slot must not be
    // longer than a buffer of the pool, so it is not rounded further.
    const SLOT: u32 = 2048;
    const PAGE: u32 = 4096;
    let needed = u32::from(mtu) + 18 + 66;
    let given = |key: &str| args.split(',').any(|a| a.starts_with(key));
    if !name.starts_with("net_af_packet") || given("framesz=") {
        return args.to_owned();
    }
    let mut all = args.to_owned();
    let mut add = |key: &str, value: u32| {
        let comma = if all.is_empty() { "" } else { "," };
        all = format!("{all}{comma}{key}{value}");
    };
    let slot = if needed <= SLOT { SLOT } else { needed.next_multiple_of(16) };
    if slot > SLOT {
        add("framesz=", slot);
        add("blocksz=", slot * (PAGE >> slot.trailing_zeros().min(PAGE.trailing_zeros())));
    }
    let slots = (BYTES / slot).next_power_of_two().max(SLOTS);
    // A caller that chooses the size of blocks also chooses how many slots they make.
    if slots > SLOTS && !given("framecnt=") && !given("blocksz=") {
        add("framecnt=", slots);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_quirks_depend_on_device_arguments() {
        assert!(Quirks::of_driver("net_null", "size=512").takes_chains);
        assert!(!Quirks::of_driver("net_null", "size=512,copy=1").takes_chains);
        assert!(Quirks::of_driver("net_tap", "iface=t0").shares_mac);
        assert!(!Quirks::of_driver("net_tap", "iface=t0,remote=eth0").shares_mac);
        let (p, a) = ("net_af_packet0", "iface=e0");
        assert_eq!(arguments(p, a, 1500, 1), "iface=e0,framecnt=2048");
        assert_eq!(arguments(p, a, 1964, 1), "iface=e0,framecnt=2048");
        assert_eq!(arguments(p, "framecnt=64,iface=e0", 1500, 1), "framecnt=64,iface=e0");
        assert_eq!(arguments(p, "iface=e0,blocksz=8192", 1500, 1), "iface=e0,blocksz=8192");
        let of_1965 = "iface=e0,framesz=2064,blocksz=528384,framecnt=2048";
        assert_eq!(arguments(p, a, 1965, 1), of_1965);
        assert_eq!(arguments(p, a, 9000, 1), "iface=e0,framesz=9088,blocksz=290816");
        assert_eq!(arguments(p, "framesz=8192,iface=e0", 9000, 1), "framesz=8192,iface=e0");
        assert_eq!(arguments("net_tap0", "iface=t0", 9000, 4), "iface=t0");
        assert_eq!(arguments(p, a, 1500, 2), "iface=e0,qpairs=2,framecnt=2048");
        let of_four = "qpairs=4,iface=e0,framecnt=2048";
        assert_eq!(arguments(p, "qpairs=4,iface=e0", 1500, 2), of_four);
        assert_eq!(arguments("net_af_xdp0", a, 1500, 2), "iface=e0,queue_count=2");
        assert_eq!(arguments("net_memif0", "", 1500, 2), "");
        assert!(Quirks::of_driver("net_vhost", "iface=/tmp/s,tso=1").joins);
        assert!(!Quirks::of_driver("net_vhost", "iface=/tmp/tso=1").joins);
        assert_eq!(Quirks::of_driver("net_ice", ""), Quirks::default());
    }
}
