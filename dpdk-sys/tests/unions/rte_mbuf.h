/* An mbuf with the layout of DPDK 24.11 and later: fields inside anonymous unions and
 * structures, which an older bindgen type does not name. For a test; written from the published
 * layout, not copied. */
#ifndef MOCK_RTE_MBUF_H
#define MOCK_RTE_MBUF_H

#include <stdint.h>

struct rte_mempool;

struct rte_mbuf {
	void *buf_addr;
	uint64_t buf_iova;
	union {
		uint64_t rearm_data[1];
		struct {
			uint16_t data_off;
			uint16_t refcnt;
			uint16_t nb_segs;
			uint16_t port;
		};
	};
	uint64_t ol_flags;
	union {
		uint8_t rx_descriptor_fields1[24];
		struct {
			union {
				uint32_t packet_type;
				struct {
					uint32_t l2_type : 4, l3_type : 4, l4_type : 4, tun_type : 4, inner : 16;
				};
			};
			uint32_t pkt_len;
			uint16_t data_len;
			uint16_t vlan_tci;
			union {
				union {
					uint32_t rss;
					uint32_t other[2];
				} hash;
			};
			uint16_t vlan_tci_outer;
			uint16_t buf_len;
		};
	};
	struct rte_mempool *pool;
	_Alignas(64) struct rte_mbuf *next;
	union {
		uint64_t tx_offload;
		struct {
			uint64_t l2_len : 7, l3_len : 9, l4_len : 8, tso_segsz : 16, rest : 24;
		};
	};
} __attribute__((aligned(64)));

#endif
