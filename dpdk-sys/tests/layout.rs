//! Compares sizes and offsets of bindgen with the C compiler's.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::offset_of;

use heddle_dpdk_sys::*;

/// Name, size or offset, size of the field.
type Layout = (String, usize, usize);

fn c_layouts() -> Vec<Layout> {
    let mut n = 0;
    // SAFETY: the callee returns a static table and writes its length, and its names are static
    // NUL-terminated strings.
    unsafe {
        let table = heddle_layouts(&mut n);
        std::slice::from_raw_parts(table, n)
            .iter()
            .map(|l| (CStr::from_ptr(l.name).to_str().unwrap().to_owned(), l.value, l.size))
            .collect()
    }
}

fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! size {
    ($map:ident, $($t:ty),+ $(,)?) => {
        $($map.insert(format!("sizeof {}", stringify!($t)), (size_of::<$t>(), size_of::<$t>()));)+
    };
}

macro_rules! field {
    ($map:ident, $($t:ident . $($f:ident).+ $(as $name:literal)?),+ $(,)?) => {$(
        #[allow(unused_mut, unused_assignments, reason = "only fields of unions are renamed")]
        {
            let mut name = stringify!($t.$($f).+).replace(' ', "");
            $(name = $name.to_owned();)?
            let at = offset_of!($t, $($f).+);
            $map.insert(name, (at, size_of_field(|s: &$t| &s.$($f).+)));
        }
    )+};
}

#[test]
fn test_layouts_are_those_of_the_c_compiler() {
    let mut rust: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    size!(
        rust,
        rte_mbuf,
        rte_mbuf_ext_shared_info,
        rte_mempool,
        rte_ring,
        rte_ether_addr,
        rte_eth_conf,
        rte_eth_dev_info,
        rte_eth_stats,
        rte_eth_rxconf,
        rte_eth_txconf,
    );
    field!(
        rust,
        rte_mbuf_ext_shared_info.free_cb,
        rte_mbuf_ext_shared_info.fcb_opaque,
        rte_mbuf_ext_shared_info.refcnt,
        rte_mempool.size,
        rte_mempool.cache_size,
        rte_mempool.elt_size,
        rte_ring.size,
        rte_ring.capacity,
        rte_eth_conf.rxmode,
        rte_eth_conf.txmode,
        rte_eth_conf.rx_adv_conf,
        rte_eth_conf.rx_adv_conf.rss_conf.rss_hf,
        rte_eth_conf.rxmode.mtu,
        rte_eth_conf.rxmode.offloads,
        rte_eth_conf.txmode.offloads,
        rte_eth_dev_info.device,
        rte_eth_dev_info.driver_name,
        rte_eth_dev_info.min_mtu,
        rte_eth_dev_info.max_mtu,
        rte_eth_dev_info.max_rx_queues,
        rte_eth_dev_info.max_tx_queues,
        rte_eth_dev_info.rx_offload_capa,
        rte_eth_dev_info.tx_offload_capa,
        rte_eth_dev_info.flow_type_rss_offloads,
        rte_eth_stats.imissed,
        rte_eth_stats.rx_nombuf,
    );
    let c = c_layouts();
    assert!(c.len() >= 30, "{}", c.len());
    for (name, value, size) in &c {
        assert_eq!(rust.get(name), Some(&(*value, *size)), "{name}");
    }
    assert_eq!(c.len(), rust.len(), "every layout in Rust has its twin in C");
}

/// The offsets from the build, by name.
const OFFSETS: [(&str, u32); 12] = [
    ("BUF_ADDR", HEDDLE_MBUF_AT_BUF_ADDR),
    ("DATA_OFF", HEDDLE_MBUF_AT_DATA_OFF),
    ("REFCNT", HEDDLE_MBUF_AT_REFCNT),
    ("NB_SEGS", HEDDLE_MBUF_AT_NB_SEGS),
    ("OL_FLAGS", HEDDLE_MBUF_AT_OL_FLAGS),
    ("PKT_LEN", HEDDLE_MBUF_AT_PKT_LEN),
    ("DATA_LEN", HEDDLE_MBUF_AT_DATA_LEN),
    ("VLAN_TCI", HEDDLE_MBUF_AT_VLAN_TCI),
    ("RSS_HASH", HEDDLE_MBUF_AT_RSS_HASH),
    ("BUF_LEN", HEDDLE_MBUF_AT_BUF_LEN),
    ("NEXT", HEDDLE_MBUF_AT_NEXT),
    ("TX_OFFLOAD", HEDDLE_MBUF_AT_TX_OFFLOAD),
];

/// The header that names the fields compiles where they lie in anonymous structures and unions, as
/// from DPDK 24.11 on, and gives the same offsets for the same layout.
#[test]
fn test_mbuf_layout_compiles_with_fields_in_anonymous_unions() {
    let dir = env!("CARGO_MANIFEST_DIR");
    let tmp = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (tmp.join("mbuf_layout.c"), tmp.join("mbuf_layout"));
    let mut text =
        String::from("#include <stdio.h>\n#include \"mbuf_layout.h\"\nint main(void) {\n");
    for (name, _) in OFFSETS {
        text += &format!("printf(\"{name} %u\\n\", HEDDLE_MBUF_AT_{name});\n");
    }
    std::fs::write(&source, text + "}\n").unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let out = std::process::Command::new(cc)
        .args(["-std=gnu11", "-Wall", "-Werror", &format!("-I{dir}/tests/unions")])
        .args([&format!("-I{dir}/shim"), "-o"])
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let said = String::from_utf8(std::process::Command::new(program).output().unwrap().stdout);
    let want: String = OFFSETS.iter().map(|(name, at)| format!("{name} {at}\n")).collect();
    assert_eq!(said.unwrap(), want);
}
