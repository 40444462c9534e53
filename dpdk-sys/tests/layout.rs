//! Sizes and offsets as bindgen sees them against those of the C compiler.

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
        rte_eth_link,
        rte_eth_stats,
        rte_eth_rxconf,
        rte_eth_txconf,
    );
    field!(
        rust,
        rte_mbuf.buf_addr,
        rte_mbuf.buf_iova,
        rte_mbuf.data_off,
        rte_mbuf.refcnt,
        rte_mbuf.nb_segs,
        rte_mbuf.port,
        rte_mbuf.ol_flags,
        rte_mbuf.__bindgen_anon_1 as "rte_mbuf.packet_type",
        rte_mbuf.pkt_len,
        rte_mbuf.data_len,
        rte_mbuf.__bindgen_anon_2 as "rte_mbuf.hash",
        rte_mbuf.buf_len,
        rte_mbuf.pool,
        rte_mbuf.next,
        rte_mbuf.__bindgen_anon_3 as "rte_mbuf.tx_offload",
        rte_mbuf.shinfo,
        rte_mbuf.priv_size,
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
    assert!(c.len() >= 50, "{}", c.len());
    for (name, value, size) in &c {
        assert_eq!(rust.get(name), Some(&(*value, *size)), "{name}");
    }
    assert_eq!(c.len(), rust.len(), "every layout in Rust has its twin in C");
}

#[test]
fn test_tx_offload_bit_fields() {
    // The data plane writes these three as shifts of one word.
    let mut bits = rte_mbuf__bindgen_ty_3__bindgen_ty_1::default();
    bits.set_l2_len(14);
    bits.set_l3_len(40);
    bits.set_l4_len(32);
    let both = rte_mbuf__bindgen_ty_3 { __bindgen_anon_1: bits };
    // SAFETY: both members are plain integers over the same 8 bytes.
    assert_eq!(unsafe { both.tx_offload }, 14 | 40 << 7 | 32 << 16);
}
