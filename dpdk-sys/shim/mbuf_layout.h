/* Offsets of the fields of an mbuf, for code that reads and writes them without a call.
 *
 * C names a field alike whether the field lies in the structure itself (DPDK 22.11) or in an
 * anonymous structure or union within it (24.11). The names that bindgen gives differ, so Rust
 * knows the fields by offset only. */
#ifndef HEDDLE_MBUF_LAYOUT_H
#define HEDDLE_MBUF_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include <rte_mbuf.h>

#define HEDDLE_AT(name, field) \
	static const uint32_t HEDDLE_MBUF_AT_##name = offsetof(struct rte_mbuf, field)

HEDDLE_AT(BUF_ADDR, buf_addr); /* void * */
HEDDLE_AT(DATA_OFF, data_off); /* uint16_t */
HEDDLE_AT(REFCNT, refcnt); /* uint16_t, atomic */
HEDDLE_AT(NB_SEGS, nb_segs); /* uint16_t */
HEDDLE_AT(OL_FLAGS, ol_flags); /* uint64_t */
HEDDLE_AT(PKT_LEN, pkt_len); /* uint32_t */
HEDDLE_AT(DATA_LEN, data_len); /* uint16_t */
HEDDLE_AT(VLAN_TCI, vlan_tci); /* uint16_t */
HEDDLE_AT(RSS_HASH, hash.rss); /* uint32_t */
HEDDLE_AT(BUF_LEN, buf_len); /* uint16_t */
HEDDLE_AT(NEXT, next); /* struct rte_mbuf * */
HEDDLE_AT(TX_OFFLOAD, tx_offload); /* uint64_t: l2_len:7, l3_len:9, l4_len:8, ... */

#undef HEDDLE_AT

/* The widths that the Rust code assumes. */
#define HEDDLE_WIDTH(field, width) \
	_Static_assert(sizeof(((struct rte_mbuf *)0)->field) == (width), "width of " #field)

HEDDLE_WIDTH(buf_addr, sizeof(void *));
HEDDLE_WIDTH(data_off, 2);
HEDDLE_WIDTH(refcnt, 2);
HEDDLE_WIDTH(nb_segs, 2);
HEDDLE_WIDTH(ol_flags, 8);
HEDDLE_WIDTH(pkt_len, 4);
HEDDLE_WIDTH(data_len, 2);
HEDDLE_WIDTH(vlan_tci, 2);
HEDDLE_WIDTH(hash.rss, 4);
HEDDLE_WIDTH(buf_len, 2);
HEDDLE_WIDTH(next, sizeof(void *));
HEDDLE_WIDTH(tx_offload, 8);

#undef HEDDLE_WIDTH

#endif
