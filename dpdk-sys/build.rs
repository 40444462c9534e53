//! Finds the system's DPDK, generates bindings for the parts that Heddle uses and compiles the
//! shim.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

/// Libraries named on the link line: only the ones that the bindings and the shim call. The EAL
/// loads the other PMDs by itself, as plugins. `net_ring` is here for `rte_eth_from_rings`; the EAL
/// finds it already loaded and its constructor runs once. `net_bond` is here for `rte_eth_bond_*`.
const LIBS: [&str; 7] = [
    "rte_eal",
    "rte_ring",
    "rte_mempool",
    "rte_mbuf",
    "rte_ethdev",
    "rte_net_ring",
    "rte_net_bond",
];

/// Libraries that the bindings call where there are such libraries: DPDK has moved its log out of
/// the EAL (23.11).
const NEWER_LIBS: [&str; 1] = ["rte_log"];

const TYPES: &str = "rte_mbuf|rte_mbuf_ext_shared_info|rte_mempool|rte_ring|rte_eth_conf|\
    rte_eth_dev_info|rte_eth_stats|rte_eth_rxconf|rte_eth_txconf|rte_ether_addr|\
    rte_eth_rss_conf|rte_eth_rss_reta_entry64|rte_eth_fp_ops|rte_device|heddle_.*";

const FUNCTIONS: &str = "heddle_.*|rte_eal_init|rte_eal_hotplug_(add|remove)|rte_dev_probe|\
    rte_dev_remove|rte_dev_dma_(map|unmap)|rte_dev_name|rte_version|rte_strerror|rte_get_tsc_hz|\
    rte_log_set_global_level|rte_thread_(un)?register|rte_extmem_(un)?register|\
    rte_pktmbuf_pool_create|rte_pktmbuf_copy|rte_mempool_avail_count|rte_mempool_in_use_count|\
    rte_eth_dev_(configure|start|stop|close|set_mtu|get_mtu|info_get|get_port_by_name|get_name_by_port|\
    default_mac_addr_set|mac_addr_add|socket_id|is_valid_port|adjust_nb_rx_tx_desc|set_link_(up|down))|rte_eth_macaddr_get|\
    rte_eth_(rx|tx)_queue_setup|rte_eth_promiscuous_(enable|disable|get)|\
    rte_eth_allmulticast_enable|rte_eth_dev_vlan_filter|rte_eth_stats_(get|reset)|\
    rte_eth_dev_rss_(reta_update|reta_query|hash_conf_get)|\
    rte_eth_dev_rx_intr_(enable|disable)|\
    rte_eth_from_rings|rte_ring_(create|free)";

fn fail(why: &str) -> ! {
    println!(
        "cargo::error=Heddle needs DPDK 22.11 or newer with headers: {why}. \
         On Debian: apt install libdpdk-dev dpdk-dev libclang-dev pkg-config"
    );
    exit(1);
}

/// Returns all compiler flags: the `pkg-config` crate keeps include paths only, but the headers
/// also need `-march` (SSSE3 and up) and `-include rte_config.h`.
fn cflags() -> Vec<String> {
    let tool = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let out = match Command::new(&tool).args(["--cflags", "libdpdk"]).output() {
        Ok(o) if o.status.success() => o.stdout,
        Ok(_) => fail("pkg-config cannot give the flags of libdpdk"),
        Err(e) => fail(&format!("{tool} does not run ({e})")),
    };
    String::from_utf8_lossy(&out).split_whitespace().map(str::to_owned).collect()
}

fn main() {
    for f in ["build.rs", "shim/shim.c", "shim/shim.h", "shim/mbuf_layout.h"] {
        println!("cargo::rerun-if-changed={f}");
    }
    let lib = match pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
    {
        Ok(lib) => lib,
        Err(pkg_config::Error::ProbeFailure { .. }) => {
            fail("pkg-config does not find libdpdk, or it is older")
        }
        Err(pkg_config::Error::Command { .. }) => fail("pkg-config does not run"),
        Err(e) => fail(&e.to_string().replace('\n', " ")),
    };
    let flags = cflags();
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());

    let bindings = bindgen::Builder::default()
        .header("shim/shim.h")
        .clang_args(&flags)
        .allowlist_function(FUNCTIONS)
        .allowlist_type(TYPES)
        .allowlist_var("HEDDLE_.*|RTE_PKTMBUF_HEADROOM|RTE_MAX_ETHPORTS|RTE_ETH_MQ_.*|RTE_ETH_RETA_GROUP_SIZE|\
             rte_eth_fp_ops")
        // Code reaches these types only through pointers, and they are large. For mbufs the names
        // of the offsets are known (shim/mbuf_layout.h).
        .opaque_type(
            "rte_mbuf|rte_mempool_.*|rte_bus|rte_driver|rte_intr_handle|rte_devargs|rte_eth_fdir_conf",
        )
        .no_copy("rte_mbuf|rte_mempool|rte_ring")
        .layout_tests(false)
        .generate_comments(false)
        .derive_debug(false)
        .derive_default(true)
        .formatter(bindgen::Formatter::None)
        .generate();
    match bindings {
        Ok(b) => {
            if let Err(e) = b.write_to_file(out.join("bindings.rs")) {
                fail(&format!("cannot write the bindings ({e})"));
            }
        }
        Err(e) => {
            fail(&format!("bindgen cannot read its headers ({})", e.to_string().replace('\n', " ")))
        }
    }

    let mut shim = cc::Build::new();
    shim.file("shim/shim.c").opt_level(3).define("ALLOW_EXPERIMENTAL_API", None);
    for f in &flags {
        // `-include FILE` comes as two words and must stay in order.
        shim.flag(f);
    }
    shim.warnings(false).extra_warnings(false);
    if let Err(e) = shim.try_compile("heddle_shim") {
        fail(&format!("the C shim does not compile ({})", e.to_string().replace('\n', " ")));
    }

    for p in &lib.link_paths {
        println!("cargo::rustc-link-search=native={}", p.display());
    }
    if let Ok(dir) = pkg_config::get_variable("libdpdk", "libdir") {
        println!("cargo::rustc-link-search=native={dir}");
    }
    let newer = NEWER_LIBS.into_iter().filter(|l| lib.libs.iter().any(|has| has == l));
    for l in LIBS.into_iter().chain(newer) {
        println!("cargo::rustc-link-lib=dylib={l}");
    }
    println!("cargo::metadata=version={}", lib.version);
}
