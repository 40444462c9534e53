/* The parts of DPDK that Heddle needs: headers for bindgen, and a function for each inline
 * function. A function handles a whole burst, so that the cost of the call does not show. */
#ifndef HEDDLE_SHIM_H
#define HEDDLE_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_bond.h>
#include <rte_eth_bond_8023ad.h>
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
static const uint64_t HEDDLE_RX_OFFLOAD_TCP_LRO = RTE_ETH_RX_OFFLOAD_TCP_LRO;
static const uint64_t HEDDLE_RX_OFFLOAD_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t HEDDLE_RX_OFFLOAD_VLAN_STRIP = RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
static const uint64_t HEDDLE_RX_OFFLOAD_VLAN_FILTER = RTE_ETH_RX_OFFLOAD_VLAN_FILTER;
static const uint64_t HEDDLE_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t HEDDLE_TX_OFFLOAD_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t HEDDLE_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t HEDDLE_TX_OFFLOAD_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t HEDDLE_RSS_TCP4 = RTE_ETH_RSS_NONFRAG_IPV4_TCP;
static const uint64_t HEDDLE_RSS_TCP6 = RTE_ETH_RSS_NONFRAG_IPV6_TCP;
static const uint8_t HEDDLE_BOND_ACTIVE_BACKUP = BONDING_MODE_ACTIVE_BACKUP;
static const uint8_t HEDDLE_BOND_8023AD = BONDING_MODE_8023AD;
static const uint8_t HEDDLE_BOND_HASH_L2 = BALANCE_XMIT_POLICY_LAYER2;
static const uint8_t HEDDLE_BOND_HASH_L23 = BALANCE_XMIT_POLICY_LAYER23;
static const uint8_t HEDDLE_BOND_HASH_L34 = BALANCE_XMIT_POLICY_LAYER34;
static const uint32_t HEDDLE_DEV_INTR_LSC = RTE_ETH_DEV_INTR_LSC;

static const uint64_t HEDDLE_MBUF_F_RX_RSS_HASH = RTE_MBUF_F_RX_RSS_HASH;
static const uint64_t HEDDLE_MBUF_F_RX_VLAN = RTE_MBUF_F_RX_VLAN;
static const uint64_t HEDDLE_MBUF_F_RX_VLAN_STRIPPED = RTE_MBUF_F_RX_VLAN_STRIPPED;
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
static const uint64_t HEDDLE_MBUF_F_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;
static const uint64_t HEDDLE_MBUF_F_EXTERNAL = RTE_MBUF_F_EXTERNAL;
static const uint64_t HEDDLE_MBUF_F_INDIRECT = RTE_MBUF_F_INDIRECT;

/* Bursts. */
uint16_t heddle_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
uint16_t heddle_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);

/* Returns 1 if the driver has to prepare frames before they are sent. Known once the port has
 * started. */
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
/* Returns NULL if the chain is sound, or the reason (a static string) why it is not. */
const char *heddle_mbuf_check(const struct rte_mbuf *m);
/* Allocates mbufs as they come from the pool: single segments with one reference
 * (rte_mbuf_raw_alloc()). The other fields keep the values of their last use. */
int heddle_mbuf_raw_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, unsigned int n);
/* Turns a raw mbuf into an empty one. */
void heddle_mbuf_reset(struct rte_mbuf *m);
/* Attaches an external buffer. Uses one reference of `shinfo`, which the caller has counted. */
void heddle_mbuf_attach(struct rte_mbuf *m, void *addr, uint64_t iova, uint16_t len,
			struct rte_mbuf_ext_shared_info *shinfo);
/* Returns a segment of an external buffer, or NULL when the pool is empty. Adds a reference of
 * `shinfo`. */
struct rte_mbuf *heddle_mbuf_external(struct rte_mempool *pool, void *addr, uint64_t iova,
				      uint16_t len, struct rte_mbuf_ext_shared_info *shinfo);

/* Shared information of external buffers. The functions change the counter atomically at any
 * value. */
void heddle_shinfo_init(struct rte_mbuf_ext_shared_info *s,
			void (*free_cb)(void *addr, void *opaque), void *opaque, uint16_t refs);
uint16_t heddle_shinfo_refs(const struct rte_mbuf_ext_shared_info *s);
uint16_t heddle_shinfo_add(struct rte_mbuf_ext_shared_info *s, uint16_t n);
uint16_t heddle_shinfo_sub(struct rte_mbuf_ext_shared_info *s, uint16_t n);

/* Rings between two ports. */
unsigned int heddle_ring_drain_mbufs(struct rte_ring *r);
unsigned int heddle_ring_count(const struct rte_ring *r);

/* Reads the state of a link without waiting. Returns 0 or an error. DPDK's structure differs
 * between versions. */
int heddle_link_get(uint16_t port, uint32_t *mbps, int *up, int *full_duplex);

/* Makes `epfd` readable when a frame comes to a queue whose interrupt is on. heddle_rx_intr_wait()
 * reports the queue as `number`. Returns 0 or an error. */
int heddle_rx_intr_add(uint16_t port, uint16_t queue, int epfd, uint32_t number);
int heddle_rx_intr_del(uint16_t port, uint16_t queue, int epfd);
/* Waits on `epfd`, which has only descriptors of queues, and clears the interrupts that came.
 * Writes the numbers of their queues to `which`, at most `max` (and 8). Returns how many, or -1. */
int heddle_rx_intr_wait(int epfd, int timeout_ms, uint32_t *which, int max);

/* Returns 1 if the ring mempool driver, which pools use by default, is loaded. */
int heddle_has_ring_mempools(void);

/* Records the names of devices that the system removes from now on. Returns 0 or an error. */
int heddle_removal_watch(void);
/* Returns 1 if the device of this name was removed. */
int heddle_removed(const char *name);

/* The frames that a flow rule takes from the wire: frames for one station address (any, if
 * `dst_mac` is all zero), of one EtherType, for one address of the network layer. */
struct heddle_flow {
	uint8_t dst_mac[6];
	uint16_t ether_type; /* host order */
	uint8_t dst_ip[16];  /* network order */
	uint8_t ip_len;      /* 0: any; 4 or 16 */
	uint8_t tcp;         /* nonzero: only TCP over IP */
	uint8_t priority;    /* a lower value goes first */
};
/* Makes the rule: spreads frames over the queues of `table`, by `key` and the header fields that
 * `types` names, or sends them to queue 0 when the table is empty. Returns the rule's handle. On
 * failure returns NULL and writes the error to `rc`, and the driver's reason, if it gives one,
 * to `why`. */
void *heddle_flow_create(uint16_t port, const struct heddle_flow *flow, const uint16_t *table,
			 uint32_t table_len, const uint8_t *key, uint32_t key_len, uint64_t types,
			 int *rc, char *why, size_t why_len);
/* Removes a rule. Returns 0, or an error; in that case the rule still exists, unchanged. */
int heddle_flow_destroy(uint16_t port, void *flow, char *why, size_t why_len);
int heddle_flow_isolate(uint16_t port, char *why, size_t why_len);

/* Bonds. DPDK 23.11 has other names for these functions. */
#define HEDDLE_BOND_MEMBERS 8
/* Makes a bond; returns its port, or an error. */
int heddle_bond_create(const char *name, uint8_t mode);
/* Adds a member, whose link the bond then asks for itself: of the drivers that announce an interrupt
 * of the link, some raise none (e1000, e1000e, vmxnet3), and tap's does not report its own. */
int heddle_bond_add(uint16_t bond, uint16_t member);
int heddle_bond_remove(uint16_t bond, uint16_t member);
/* Makes a member leave while it runs: DPDK then leaves its queues alone. It would take them away from a
 * member that has stopped, the list of one kind before the queues of the other, and net_tap of 24.11 reads
 * both lists while a queue goes. */
void heddle_bond_remove_running(uint16_t bond, uint16_t member);
int heddle_bond_primary_set(uint16_t bond, uint16_t member);
int heddle_bond_primary_get(uint16_t bond);
/* Writes the members whose link is up, at most `len`; returns how many, or an error. */
int heddle_bond_up_get(uint16_t bond, uint16_t *members, uint16_t len);
int heddle_bond_hash_set(uint16_t bond, uint8_t policy);
int heddle_bond_interval_set(uint16_t bond, uint32_t ms);
/* Waits until a bond that has stopped, with this interval, looks at its members' links no more: its
 * driver does not cancel the alarm of the next look, which would find the bond closed. */
void heddle_bond_await_monitor(uint32_t ms);
int heddle_bond_mac_set(uint16_t bond, const uint8_t *mac);

/* What LACP has agreed on for a member. States have the bits of IEEE 802.1AX. */
struct heddle_lacp {
	uint8_t selected;
	uint8_t actor_state;
	uint8_t partner_state;
	uint8_t partner_system[6];
	uint16_t partner_key;  /* host order */
	uint16_t partner_port; /* host order */
	uint16_t aggregator;   /* a member's port */
};
int heddle_bond_lacp(uint16_t bond, uint16_t member, struct heddle_lacp *lacp);

/* The work of a bond's queue beside frames, which the thread that polls the queue does now and then,
 * within rte_eth_rx_burst(): sends LACPDUs, drops what comes to members that carry nothing, and takes
 * back the frames that members have sent. */
struct heddle_bond_upkeep;
struct heddle_bond_upkeep *heddle_bond_upkeep_add(uint16_t bond, uint16_t queue, int lacp,
						  const uint16_t *members, uint16_t count);
/* No burst may run. */
void heddle_bond_upkeep_del(struct heddle_bond_upkeep *u);
/* Leaves out a member from now on. */
void heddle_bond_upkeep_leave(struct heddle_bond_upkeep *u, uint16_t member);
/* Returns the number of bursts so far. */
uint64_t heddle_bond_upkeep_bursts(const struct heddle_bond_upkeep *u);
/* Returns the number of frames that came to members that carry nothing. */
uint64_t heddle_bond_upkeep_dropped(const struct heddle_bond_upkeep *u);

/* Other functions. */
int heddle_errno(void);
uint64_t heddle_rdtsc(void);
void heddle_pause(void);
unsigned int heddle_lcore_id(void);
/* Returns 1 if a driver makes devices of that name ("vdev:NAME"), and 0 if none does. */
int heddle_vdev_known(const char *name);

/* DPDK's log: the shim keeps it in a small buffer instead of writing it to stdout. On request
 * the shim also writes it to stderr. */
int heddle_log_capture(void);
void heddle_log_echo(int on);
size_t heddle_log_take(char *dst, size_t len);

/* For the test that reads and writes the fields of mbuf_layout.h from Rust. The first function
 * writes the fields, each with the next number from `first` on; `next` and `buf_addr` take the
 * number as an address, and the lengths of `tx_offload` get fixed values. The second returns
 * fields as the digits of one decimal number. */
void heddle_mbuf_number(struct rte_mbuf *m, uint16_t first);
uint64_t heddle_mbuf_digits(const struct rte_mbuf *m);

/* Layouts as the C compiler sees them, for the test that compares. */
struct heddle_layout {
	const char *name;
	size_t value;
	size_t size;
};
const struct heddle_layout *heddle_layouts(size_t *count);

#endif
