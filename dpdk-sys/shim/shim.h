/* What Heddle needs of DPDK: its headers for bindgen, and a function for each inline function,
 * whole bursts at a time so that the call costs nothing that shows. */
#ifndef HEDDLE_SHIM_H
#define HEDDLE_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_interrupts.h>
#include <rte_log.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

#include "mbuf_layout.h"

/* Macros that bindgen cannot evaluate. */
static const uint64_t HEDDLE_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t HEDDLE_RX_OFFLOAD_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t HEDDLE_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t HEDDLE_RX_OFFLOAD_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t HEDDLE_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t HEDDLE_TX_OFFLOAD_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t HEDDLE_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t HEDDLE_RSS_TCP4 = RTE_ETH_RSS_NONFRAG_IPV4_TCP;
static const uint64_t HEDDLE_RSS_TCP6 = RTE_ETH_RSS_NONFRAG_IPV6_TCP;
static const uint32_t HEDDLE_DEV_INTR_LSC = RTE_ETH_DEV_INTR_LSC;

static const uint64_t HEDDLE_MBUF_F_RX_RSS_HASH = RTE_MBUF_F_RX_RSS_HASH;
static const uint64_t HEDDLE_MBUF_F_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t HEDDLE_MBUF_F_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t HEDDLE_MBUF_F_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t HEDDLE_MBUF_F_RX_IP_CKSUM_NONE = RTE_MBUF_F_RX_IP_CKSUM_NONE;
static const uint64_t HEDDLE_MBUF_F_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t HEDDLE_MBUF_F_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t HEDDLE_MBUF_F_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t HEDDLE_MBUF_F_RX_L4_CKSUM_NONE = RTE_MBUF_F_RX_L4_CKSUM_NONE;
static const uint64_t HEDDLE_MBUF_F_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t HEDDLE_MBUF_F_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t HEDDLE_MBUF_F_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t HEDDLE_MBUF_F_TX_TCP_CKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t HEDDLE_MBUF_F_EXTERNAL = RTE_MBUF_F_EXTERNAL;
static const uint64_t HEDDLE_MBUF_F_INDIRECT = RTE_MBUF_F_INDIRECT;

/* Bursts. */
uint16_t heddle_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
uint16_t heddle_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);

/* Whether the driver wants to see frames before they are sent; known once the port has started. */
int heddle_tx_has_prepare(uint16_t port);
uint16_t heddle_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);

/* Mbufs. */
struct rte_mbuf *heddle_mbuf_alloc(struct rte_mempool *pool);
int heddle_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, unsigned int n);
void heddle_mbuf_free(struct rte_mbuf *m);
void heddle_mbuf_free_bulk(struct rte_mbuf **pkts, unsigned int n);
int heddle_mbuf_chain(struct rte_mbuf *head, struct rte_mbuf *tail);
int heddle_mbuf_linearize(struct rte_mbuf *m);
struct rte_mbuf *heddle_mbuf_copy(const struct rte_mbuf *m, struct rte_mempool *pool);
/* 0, or the reason (a static string) the chain is not sound. */
const char *heddle_mbuf_check(const struct rte_mbuf *m);
/* As they come from the pool: single segments with one reference (rte_mbuf_raw_alloc()), the other
 * fields as they were left. */
int heddle_mbuf_raw_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, unsigned int n);
/* Makes a raw one an empty one. */
void heddle_mbuf_reset(struct rte_mbuf *m);
/* For one of the references of `shinfo`, which the caller has counted. */
void heddle_mbuf_attach(struct rte_mbuf *m, void *addr, uint64_t iova, uint16_t len,
			struct rte_mbuf_ext_shared_info *shinfo);
/* One external-buffer segment; NULL when the pool is empty. Takes one more reference of `shinfo`. */
struct rte_mbuf *heddle_mbuf_external(struct rte_mempool *pool, void *addr, uint64_t iova,
				      uint16_t len, struct rte_mbuf_ext_shared_info *shinfo);

/* Shared information of external buffers; the counter is changed atomically at any value. */
void heddle_shinfo_init(struct rte_mbuf_ext_shared_info *s,
			void (*free_cb)(void *addr, void *opaque), void *opaque, uint16_t refs);
uint16_t heddle_shinfo_refs(const struct rte_mbuf_ext_shared_info *s);
uint16_t heddle_shinfo_add(struct rte_mbuf_ext_shared_info *s, uint16_t n);
uint16_t heddle_shinfo_sub(struct rte_mbuf_ext_shared_info *s, uint16_t n);

/* Rings between two ports. */
unsigned int heddle_ring_drain_mbufs(struct rte_ring *r);
unsigned int heddle_ring_count(const struct rte_ring *r);

/* State of a link without waiting; 0 or an error. The structure differs between versions. */
int heddle_link_get(uint16_t port, uint32_t *mbps, int *up, int *full_duplex);

/* Makes `epfd` readable when a frame comes to a queue whose interrupt is on; `number` is what
 * heddle_rx_intr_wait() calls it. 0 or an error. */
int heddle_rx_intr_add(uint16_t port, uint16_t queue, int epfd, uint32_t number);
int heddle_rx_intr_del(uint16_t port, uint16_t queue, int epfd);
/* Waits on `epfd`, which has descriptors of queues only, and clears the interrupts that came. The numbers
 * of their queues go to `which`, `max` at most (and 8); returns how many, or -1. */
int heddle_rx_intr_wait(int epfd, int timeout_ms, uint32_t *which, int max);

/* Whether there is what pools are made of by default. */
int heddle_has_ring_mempools(void);

/* Keeps the names of devices that the system takes away from now on. 0 or an error. */
int heddle_removal_watch(void);
/* Whether the device of this name is one of them. */
int heddle_removed(const char *name);

/* What one flow rule takes from the wire: frames for a station address (none, when all zero: any),
 * of one EtherType, for one address of the network layer. */
struct heddle_flow {
	uint8_t dst_mac[6];
	uint16_t ether_type; /* host order */
	uint8_t dst_ip[16];  /* network order */
	uint8_t ip_len;      /* 0: any; 4 or 16 */
	uint8_t tcp;         /* of IP only TCP */
	uint8_t priority;    /* the lower goes first */
};
/* Makes the rule: spread over `table` by `key` and what `types` name, or to queue 0 when the table is
 * empty. The rule's name, or NULL, and the error in `rc`; its reason, where the driver gives one, is in
 * `why`. */
void *heddle_flow_create(uint16_t port, const struct heddle_flow *flow, const uint16_t *table,
			 uint32_t table_len, const uint8_t *key, uint32_t key_len, uint64_t types,
			 int *rc, char *why, size_t why_len);
/* Takes a rule back. 0, or an error; the rule is there then, as before. */
int heddle_flow_destroy(uint16_t port, void *flow, char *why, size_t why_len);
int heddle_flow_isolate(uint16_t port, char *why, size_t why_len);

/* This and that. */
int heddle_errno(void);
uint64_t heddle_rdtsc(void);
void heddle_pause(void);
unsigned int heddle_lcore_id(void);

/* DPDK's log: kept in a small buffer instead of going to stdout; also to stderr on request. */
int heddle_log_capture(void);
void heddle_log_echo(int on);
size_t heddle_log_take(char *dst, size_t len);

/* Writes the fields of mbuf_layout.h, each with the next number from `first` on, and adds them up;
 * for the test that reads and writes them from Rust. `next` and `buf_addr` take the number as an
 * address. */
void heddle_mbuf_number(struct rte_mbuf *m, uint16_t first);
uint64_t heddle_mbuf_digits(const struct rte_mbuf *m);

/* Layouts as C sees them, for the test that compares. */
struct heddle_layout {
	const char *name;
	size_t value;
	size_t size;
};
const struct heddle_layout *heddle_layouts(size_t *count);

#endif
