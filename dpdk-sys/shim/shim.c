#define _GNU_SOURCE
#include "shim.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include <rte_alarm.h>
#include <rte_cycles.h>
#include <rte_devargs.h>
#include <rte_malloc.h>
#include <rte_pause.h>

int heddle_vdev_known(const char *name)
{
	struct rte_devargs args;

	memset(&args, 0, sizeof(args));
	if (rte_devargs_parse(&args, name) != 0)
		return 0;
	rte_devargs_reset(&args);
	return 1;
}

uint16_t heddle_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n)
{
	return rte_eth_rx_burst(port, queue, pkts, n);
}

uint16_t heddle_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n)
{
	return rte_eth_tx_burst(port, queue, pkts, n);
}

int heddle_tx_has_prepare(uint16_t port)
{
	return port < RTE_MAX_ETHPORTS && rte_eth_fp_ops[port].tx_pkt_prepare != NULL;
}

uint16_t heddle_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n)
{
	return rte_eth_tx_prepare(port, queue, pkts, n);
}

struct rte_mbuf *heddle_mbuf_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

int heddle_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, unsigned int n)
{
	return rte_pktmbuf_alloc_bulk(pool, pkts, n);
}

void heddle_mbuf_free(struct rte_mbuf *m)
{
	rte_pktmbuf_free(m);
}

/* Segments to put back into one pool, and references to drop of one external buffer. */
struct freed {
	struct rte_mempool *pool;
	struct rte_mbuf_ext_shared_info *shinfo;
	void *addr;
	unsigned int count;
	uint16_t refs;
	struct rte_mbuf *segs[64];
};

static inline void freed_put(struct freed *f)
{
	if (f->count > 0)
		rte_mempool_put_bulk(f->pool, (void **)f->segs, f->count);
	f->count = 0;
}

static void freed_unref(struct freed *f)
{
	if (f->refs > 0 && __atomic_sub_fetch(&f->shinfo->refcnt, f->refs, __ATOMIC_ACQ_REL) == 0)
		f->shinfo->free_cb(f->addr, f->shinfo->fcb_opaque);
	f->refs = 0;
}

/* Does the work of rte_pktmbuf_detach(), but drops the reference later, together with others:
 * counting down is an atomic operation on a cache line that all senders use. */
static inline void detach_external(struct rte_mbuf *m, struct freed *f)
{
	uint16_t priv = rte_pktmbuf_priv_size(m->pool);

	if (m->shinfo != f->shinfo) {
		freed_unref(f);
		f->shinfo = m->shinfo;
		f->addr = m->buf_addr;
	}
	f->refs++;
	m->priv_size = priv;
	m->buf_addr = (char *)m + sizeof(*m) + priv;
	rte_mbuf_iova_set(m, rte_mempool_virt2iova(m) + sizeof(*m) + priv);
	m->buf_len = rte_pktmbuf_data_room_size(m->pool);
	rte_pktmbuf_reset_headroom(m);
	m->data_len = 0;
	m->ol_flags = 0;
}

void heddle_mbuf_free_bulk(struct rte_mbuf **pkts, unsigned int n)
{
	struct freed f;
	struct rte_mbuf *m, *next;
	unsigned int i;

	f.pool = NULL;
	f.shinfo = NULL;
	f.count = 0;
	f.refs = 0;
	for (i = 0; i < n; i++) {
		for (m = pkts[i]; m != NULL; m = next) {
			next = m->next;
			if (rte_mbuf_refcnt_read(m) == 1 && RTE_MBUF_HAS_EXTBUF(m) &&
			    !RTE_MBUF_HAS_PINNED_EXTBUF(m))
				detach_external(m, &f);
			m = rte_pktmbuf_prefree_seg(m);
			if (unlikely(m == NULL))
				continue;
			if (m->pool != f.pool || f.count == RTE_DIM(f.segs)) {
				freed_put(&f);
				f.pool = m->pool;
			}
			f.segs[f.count++] = m;
		}
	}
	freed_put(&f);
	freed_unref(&f);
}

int heddle_mbuf_chain(struct rte_mbuf *head, struct rte_mbuf *tail)
{
	return rte_pktmbuf_chain(head, tail);
}

int heddle_mbuf_linearize(struct rte_mbuf *m)
{
	return rte_pktmbuf_linearize(m);
}

struct rte_mbuf *heddle_mbuf_copy(const struct rte_mbuf *m, struct rte_mempool *pool)
{
	return rte_pktmbuf_copy(m, pool, 0, UINT32_MAX);
}

const char *heddle_mbuf_check(const struct rte_mbuf *m)
{
	const char *reason = NULL;

	return rte_mbuf_check(m, 1, &reason) == 0 ? NULL : reason;
}

struct rte_mbuf *heddle_mbuf_external(struct rte_mempool *pool, void *addr, uint64_t iova,
				      uint16_t len, struct rte_mbuf_ext_shared_info *shinfo)
{
	struct rte_mbuf *m = rte_pktmbuf_alloc(pool);

	if (likely(m != NULL)) {
		heddle_shinfo_add(shinfo, 1);
		heddle_mbuf_attach(m, addr, iova, len, shinfo);
	}
	return m;
}

int heddle_mbuf_raw_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, unsigned int n)
{
	return rte_mempool_get_bulk(pool, (void **)pkts, n);
}

void heddle_mbuf_reset(struct rte_mbuf *m)
{
	rte_pktmbuf_reset(m);
}

void heddle_mbuf_attach(struct rte_mbuf *m, void *addr, uint64_t iova, uint16_t len,
			struct rte_mbuf_ext_shared_info *shinfo)
{
	m->ol_flags = 0;
	rte_pktmbuf_attach_extbuf(m, addr, iova, len, shinfo);
	m->data_off = 0;
	m->data_len = len;
	m->pkt_len = len;
}

void heddle_shinfo_init(struct rte_mbuf_ext_shared_info *s,
			void (*free_cb)(void *addr, void *opaque), void *opaque, uint16_t refs)
{
	s->free_cb = free_cb;
	s->fcb_opaque = opaque;
	__atomic_store_n(&s->refcnt, refs, __ATOMIC_RELEASE);
}

uint16_t heddle_shinfo_refs(const struct rte_mbuf_ext_shared_info *s)
{
	return __atomic_load_n(&s->refcnt, __ATOMIC_ACQUIRE);
}

uint16_t heddle_shinfo_add(struct rte_mbuf_ext_shared_info *s, uint16_t n)
{
	/* Not rte_mbuf_ext_refcnt_update(): at a count of one, that function makes a plain store. */
	return __atomic_add_fetch(&s->refcnt, n, __ATOMIC_ACQ_REL);
}

uint16_t heddle_shinfo_sub(struct rte_mbuf_ext_shared_info *s, uint16_t n)
{
	return __atomic_sub_fetch(&s->refcnt, n, __ATOMIC_ACQ_REL);
}

int heddle_link_get(uint16_t port, uint32_t *mbps, int *up, int *full_duplex)
{
	struct rte_eth_link link;
	int rc;

	memset(&link, 0, sizeof(link));
	rc = rte_eth_link_get_nowait(port, &link);
	*mbps = link.link_speed;
	*up = link.link_status == RTE_ETH_LINK_UP;
	*full_duplex = link.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	return rc;
}

int heddle_rx_intr_add(uint16_t port, uint16_t queue, int epfd, uint32_t number)
{
	return rte_eth_dev_rx_intr_ctl_q(port, queue, epfd, RTE_INTR_EVENT_ADD,
					 (void *)(uintptr_t)number);
}

int heddle_rx_intr_del(uint16_t port, uint16_t queue, int epfd)
{
	return rte_eth_dev_rx_intr_ctl_q(port, queue, epfd, RTE_INTR_EVENT_DEL, NULL);
}

int heddle_rx_intr_wait(int epfd, int timeout_ms, uint32_t *which, int max)
{
	struct rte_epoll_event events[8];
	int i, n;

	if (max > (int)RTE_DIM(events))
		max = RTE_DIM(events);
	n = rte_epoll_wait(epfd, events, max, timeout_ms);
	for (i = 0; i < n; i++)
		which[i] = (uint32_t)(uintptr_t)events[i].epdata.data;
	return n;
}

int heddle_has_ring_mempools(void)
{
	uint32_t i;

	for (i = 0; i < rte_mempool_ops_table.num_ops; i++)
		if (strcmp(rte_mempool_ops_table.ops[i].name, "ring_mp_mc") == 0)
			return 1;
	return 0;
}

/* The names of removed devices: a place for each possible port. A device removed twice has one
 * place. */
static char removed[RTE_MAX_ETHPORTS][64];
static pthread_mutex_t removed_lock = PTHREAD_MUTEX_INITIALIZER;

static int removed_find(const char *name)
{
	int i;

	for (i = 0; i < RTE_MAX_ETHPORTS && removed[i][0] != '\0'; i++)
		if (strcmp(removed[i], name) == 0)
			return 1;
	return 0;
}

/* Runs on DPDK's interrupt thread. When a device is unplugged, vfio asks for the device by this
 * event, and waits until its descriptor is closed. */
static void removal_event(const char *name, enum rte_dev_event_type event, void *arg)
{
	int i;

	(void)arg;
	if (event != RTE_DEV_EVENT_REMOVE || name == NULL || strlen(name) >= sizeof(removed[0]))
		return;
	pthread_mutex_lock(&removed_lock);
	if (!removed_find(name)) {
		for (i = 0; i < RTE_MAX_ETHPORTS && removed[i][0] != '\0'; i++)
			;
		if (i < RTE_MAX_ETHPORTS)
			strcpy(removed[i], name);
	}
	pthread_mutex_unlock(&removed_lock);
}

int heddle_removal_watch(void)
{
	return rte_dev_event_callback_register(NULL, removal_event, NULL);
}

int heddle_removed(const char *name)
{
	int found;

	pthread_mutex_lock(&removed_lock);
	found = removed_find(name);
	pthread_mutex_unlock(&removed_lock);
	return found;
}

#if RTE_VERSION >= RTE_VERSION_NUM(23, 11, 0, 0)
#define bond_add rte_eth_bond_member_add
#define bond_remove rte_eth_bond_member_remove
#define bond_active_get rte_eth_bond_active_members_get
#define bond_lacp_info rte_eth_bond_8023ad_member_info
#else
#define bond_add rte_eth_bond_slave_add
#define bond_remove rte_eth_bond_slave_remove
#define bond_active_get rte_eth_bond_active_slaves_get
#define bond_lacp_info rte_eth_bond_8023ad_slave_info
#endif

int heddle_bond_create(const char *name, uint8_t mode)
{
	return rte_eth_bond_create(name, mode, 0);
}

int heddle_bond_add(uint16_t bond, uint16_t member)
{
	struct rte_eth_dev_info info;
	int rc = rte_eth_dev_info_get(member, &info);

	if (rc != 0)
		return rc;
	/* The bond polls the links of members without this flag, and of no others. DPDK shows the
	 * flags read-only, but has them in memory that it writes itself; no other code uses them: the
	 * member is stopped, and Heddle never asks for the interrupt. */
	*(uint32_t *)(uintptr_t)info.dev_flags &= ~RTE_ETH_DEV_INTR_LSC;
	return bond_add(bond, member);
}

int heddle_bond_remove(uint16_t bond, uint16_t member)
{
	return bond_remove(bond, member);
}

void heddle_bond_remove_running(uint16_t bond, uint16_t member)
{
	/* A bond that has failed to start may have stopped members with queues. A member that runs
	 * goes on, and one without queues does not start. */
	rte_eth_dev_start(member);
	bond_remove(bond, member);
}

int heddle_bond_primary_set(uint16_t bond, uint16_t member)
{
	return rte_eth_bond_primary_set(bond, member);
}

int heddle_bond_primary_get(uint16_t bond)
{
	return rte_eth_bond_primary_get(bond);
}

int heddle_bond_up_get(uint16_t bond, uint16_t *members, uint16_t len)
{
	return bond_active_get(bond, members, len);
}

int heddle_bond_hash_set(uint16_t bond, uint8_t policy)
{
	return rte_eth_bond_xmit_policy_set(bond, policy);
}

int heddle_bond_interval_set(uint16_t bond, uint32_t ms)
{
	return rte_eth_bond_link_monitoring_set(bond, ms);
}

static void has_come(void *alarm)
{
	sem_post(alarm);
}

/* Waits until the thread of alarms has come to an alarm of this moment and `us` microseconds. */
static void await_alarm(uint64_t us)
{
	sem_t alarm;

	sem_init(&alarm, 0, 0);
	if (rte_eal_alarm_set(us, has_come, &alarm) == 0)
		while (sem_wait(&alarm) != 0)
			;
	else
		/* No memory: nothing tells how far the thread is. */
		rte_delay_us_sleep(2 * us);
	sem_destroy(&alarm);
}

void heddle_bond_await_monitor(uint32_t ms)
{
	/* A look that runs may still set the alarm of the next. Alarms come in the order of time. */
	await_alarm(1);
	await_alarm((uint64_t)ms * 1000 + 1000);
}

int heddle_bond_mac_set(uint16_t bond, const uint8_t *mac)
{
	struct rte_ether_addr addr;

	memcpy(addr.addr_bytes, mac, sizeof(addr.addr_bytes));
	return rte_eth_bond_mac_address_set(bond, &addr);
}

int heddle_bond_lacp(uint16_t bond, uint16_t member, struct heddle_lacp *lacp)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 11, 0, 0)
	struct rte_eth_bond_8023ad_member_info info;
#else
	struct rte_eth_bond_8023ad_slave_info info;
#endif
	int rc;

	memset(&info, 0, sizeof(info));
	rc = bond_lacp_info(bond, member, &info);
	lacp->selected = info.selected == SELECTED;
	lacp->actor_state = info.actor_state;
	lacp->partner_state = info.partner_state;
	memcpy(lacp->partner_system, info.partner.system.addr_bytes, 6);
	lacp->partner_key = rte_be_to_cpu_16(info.partner.key);
	lacp->partner_port = rte_be_to_cpu_16(info.partner.port_number);
	lacp->aggregator = info.agg_port_id;
	return rc;
}

/* DPDK sends an LACPDU with the next burst, and makes one every 100 ms. */
#define UPKEEP_PER_SECOND 20
#define NO_MEMBER UINT16_MAX

struct heddle_bond_upkeep {
	const struct rte_eth_rxtx_callback *callback;
	uint64_t next, period;
	uint64_t bursts, dropped;
	uint16_t bond, queue, count;
	uint16_t lacp;
	int primary; /* the member that carried the frames at the last burst */
	uint16_t members[HEDDLE_BOND_MEMBERS];
};

static void upkeep_drop(struct heddle_bond_upkeep *u, struct rte_mbuf **pkts, uint16_t n)
{
	heddle_mbuf_free_bulk(pkts, n);
	__atomic_store_n(&u->dropped, u->dropped + n, __ATOMIC_RELAXED);
}

/* Frees the frames that wait at a member that carries nothing: copies of what came to the member
 * that carries the frames, our own broadcasts, and frames for others. */
static void upkeep_drain(struct heddle_bond_upkeep *u, uint16_t member)
{
	struct rte_mbuf *stale[64];
	unsigned int round;
	uint16_t n;

	for (round = 0; round < 16; round++) {
		n = rte_eth_rx_burst(member, u->queue, stale, RTE_DIM(stale));
		if (n == 0)
			return;
		upkeep_drop(u, stale, n);
		if (n < RTE_DIM(stale))
			return;
	}
}

/* Takes back the frames that a member has sent. Drivers do so as they send more, and a member that
 * carries nothing sends nothing more: it would keep references to registered memory. */
static void upkeep_reclaim(struct heddle_bond_upkeep *u, uint16_t member)
{
	if (rte_eth_tx_done_cleanup(member, u->queue, 0) < 0)
		(void)rte_eth_tx_burst(member, u->queue, NULL, 0);
}

static void upkeep_work(struct heddle_bond_upkeep *u)
{
	int primary = u->lacp ? -1 : rte_eth_bond_primary_get(u->bond);
	uint16_t i, member;

	if (u->lacp)
		(void)rte_eth_tx_burst(u->bond, u->queue, NULL, 0);
	for (i = 0; i < u->count; i++) {
		member = __atomic_load_n(&u->members[i], __ATOMIC_ACQUIRE);
		if (member == NO_MEMBER || member == primary)
			continue;
		if (!u->lacp && primary >= 0)
			upkeep_drain(u, member);
		upkeep_reclaim(u, member);
	}
}

static uint16_t upkeep(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n,
		       uint16_t max, void *arg)
{
	struct heddle_bond_upkeep *u = arg;
	uint64_t now = rte_rdtsc();

	(void)port;
	(void)queue;
	(void)max;
	if (!u->lacp) {
		int primary = rte_eth_bond_primary_get(u->bond);

		if (unlikely(primary != u->primary)) {
			/* A member that takes over begins with frames of the time before, such as our
			 * own announcements. */
			if (u->primary >= 0 && primary >= 0) {
				upkeep_drop(u, pkts, n);
				n = 0;
				upkeep_drain(u, primary);
			}
			u->primary = primary;
		}
	}
	if (unlikely(now >= u->next)) {
		u->next = now + u->period;
		upkeep_work(u);
	}
	/* After the work: a count that has moved twice says that no burst from before is left. */
	__atomic_store_n(&u->bursts, u->bursts + 1, __ATOMIC_RELEASE);
	return n;
}

struct heddle_bond_upkeep *heddle_bond_upkeep_add(uint16_t bond, uint16_t queue, int lacp,
						  const uint16_t *members, uint16_t count)
{
	struct heddle_bond_upkeep *u;

	if (count > HEDDLE_BOND_MEMBERS)
		return NULL;
	u = rte_zmalloc(NULL, sizeof(*u), RTE_CACHE_LINE_SIZE);
	if (u == NULL)
		return NULL;
	u->period = rte_get_tsc_hz() / UPKEEP_PER_SECOND;
	u->bond = bond;
	u->queue = queue;
	u->lacp = lacp != 0;
	u->count = count;
	u->primary = rte_eth_bond_primary_get(bond);
	memcpy(u->members, members, count * sizeof(members[0]));
	u->callback = rte_eth_add_rx_callback(bond, queue, upkeep, u);
	if (u->callback == NULL) {
		rte_free(u);
		return NULL;
	}
	return u;
}

void heddle_bond_upkeep_del(struct heddle_bond_upkeep *u)
{
	/* The callback's memory is the caller's once no burst can use it (rte_ethdev.h). */
	if (rte_eth_remove_rx_callback(u->bond, u->queue, u->callback) == 0)
		rte_free((void *)(uintptr_t)u->callback);
	rte_free(u);
}

void heddle_bond_upkeep_leave(struct heddle_bond_upkeep *u, uint16_t member)
{
	uint16_t i;

	for (i = 0; i < u->count; i++)
		if (u->members[i] == member)
			__atomic_store_n(&u->members[i], NO_MEMBER, __ATOMIC_RELEASE);
}

uint64_t heddle_bond_upkeep_bursts(const struct heddle_bond_upkeep *u)
{
	return __atomic_load_n(&u->bursts, __ATOMIC_ACQUIRE);
}

uint64_t heddle_bond_upkeep_dropped(const struct heddle_bond_upkeep *u)
{
	return __atomic_load_n(&u->dropped, __ATOMIC_RELAXED);
}

static void flow_why(const struct rte_flow_error *e, char *why, size_t len)
{
	if (len > 0)
		snprintf(why, len, "%s", e->message != NULL ? e->message : "");
}

int heddle_flow_isolate(uint16_t port, char *why, size_t why_len)
{
	struct rte_flow_error e = { .message = NULL };
	int rc = rte_flow_isolate(port, 1, &e);

	flow_why(&e, why, why_len);
	return rc;
}

void *heddle_flow_create(uint16_t port, const struct heddle_flow *f, const uint16_t *table,
			 uint32_t table_len, const uint8_t *key, uint32_t key_len, uint64_t types,
			 int *rc, char *why, size_t why_len)
{
	static const uint8_t any_mac[6];
	struct rte_flow_item_eth eth, eth_mask;
	struct rte_flow_item_ipv4 ip4, ip4_mask;
	struct rte_flow_item_ipv6 ip6, ip6_mask;
	struct rte_flow_item items[4];
	struct rte_flow_attr attr = { .ingress = 1, .priority = f->priority };
	struct rte_flow_action_queue queue = { .index = 0 };
	struct rte_flow_action_rss rss = {
		.func = RTE_ETH_HASH_FUNCTION_TOEPLITZ,
		.types = types,
		.key_len = key_len,
		.queue_num = table_len,
		.key = key,
		.queue = table,
	};
	struct rte_flow_action actions[2];
	struct rte_flow_error e = { .message = NULL };
	struct rte_flow *made;
	unsigned int n = 0;

	memset(&eth, 0, sizeof(eth));
	memset(&eth_mask, 0, sizeof(eth_mask));
	memset(&ip4, 0, sizeof(ip4));
	memset(&ip4_mask, 0, sizeof(ip4_mask));
	memset(&ip6, 0, sizeof(ip6));
	memset(&ip6_mask, 0, sizeof(ip6_mask));
	memset(items, 0, sizeof(items));
	memset(actions, 0, sizeof(actions));
	if (memcmp(f->dst_mac, any_mac, 6) != 0) {
		memcpy(eth.hdr.dst_addr.addr_bytes, f->dst_mac, 6);
		memset(eth_mask.hdr.dst_addr.addr_bytes, 0xff, 6);
	}
	eth.hdr.ether_type = rte_cpu_to_be_16(f->ether_type);
	eth_mask.hdr.ether_type = RTE_BE16(0xffff);
	items[n].type = RTE_FLOW_ITEM_TYPE_ETH;
	items[n].spec = &eth;
	items[n++].mask = &eth_mask;
	if (f->ip_len == 4) {
		memcpy(&ip4.hdr.dst_addr, f->dst_ip, 4);
		memset(&ip4_mask.hdr.dst_addr, 0xff, 4);
		items[n].type = RTE_FLOW_ITEM_TYPE_IPV4;
		items[n].spec = &ip4;
		items[n++].mask = &ip4_mask;
	} else if (f->ip_len == 16) {
		memcpy(&ip6.hdr.dst_addr, f->dst_ip, 16);
		memset(&ip6_mask.hdr.dst_addr, 0xff, 16);
		items[n].type = RTE_FLOW_ITEM_TYPE_IPV6;
		items[n].spec = &ip6;
		items[n++].mask = &ip6_mask;
	}
	if (f->tcp)
		items[n++].type = RTE_FLOW_ITEM_TYPE_TCP;
	items[n].type = RTE_FLOW_ITEM_TYPE_END;
	if (table_len > 0) {
		actions[0].type = RTE_FLOW_ACTION_TYPE_RSS;
		actions[0].conf = &rss;
	} else {
		actions[0].type = RTE_FLOW_ACTION_TYPE_QUEUE;
		actions[0].conf = &queue;
	}
	actions[1].type = RTE_FLOW_ACTION_TYPE_END;
	made = rte_flow_create(port, &attr, items, actions, &e);
	*rc = made != NULL ? 0 : rte_errno != 0 ? -rte_errno : -1;
	if (made == NULL)
		flow_why(&e, why, why_len);
	return made;
}

int heddle_flow_destroy(uint16_t port, void *flow, char *why, size_t why_len)
{
	struct rte_flow_error e = { .message = NULL };
	int rc = rte_flow_destroy(port, flow, &e);

	if (rc != 0)
		flow_why(&e, why, why_len);
	return rc;
}

void heddle_mbuf_number(struct rte_mbuf *m, uint16_t first)
{
	m->buf_addr = (void *)(uintptr_t)first++;
	m->data_off = first++;
	rte_mbuf_refcnt_set(m, first++);
	m->nb_segs = first++;
	m->ol_flags = first++;
	m->pkt_len = first++;
	m->data_len = first++;
	m->hash.rss = first++;
	m->buf_len = first++;
	m->next = (struct rte_mbuf *)(uintptr_t)first++;
	m->l2_len = 14;
	m->l3_len = 40;
	m->l4_len = 32;
	m->vlan_tci = 77;
}

uint64_t heddle_mbuf_digits(const struct rte_mbuf *m)
{
	uint64_t d = 0;

	d = d * 10 + m->data_off;
	d = d * 10 + m->nb_segs;
	d = d * 10 + m->ol_flags;
	d = d * 10 + m->pkt_len;
	d = d * 10 + m->data_len;
	d = d * 10 + (uintptr_t)m->next;
	d = d * 100 + m->l2_len;
	d = d * 100 + m->l3_len;
	d = d * 100 + m->l4_len;
	return d;
}

unsigned int heddle_ring_drain_mbufs(struct rte_ring *r)
{
	unsigned int n = 0;
	void *m;

	while (rte_ring_dequeue(r, &m) == 0) {
		rte_pktmbuf_free(m);
		n++;
	}
	return n;
}

unsigned int heddle_ring_count(const struct rte_ring *r)
{
	return rte_ring_count(r);
}

int heddle_errno(void)
{
	return rte_errno;
}

uint64_t heddle_rdtsc(void)
{
	return rte_rdtsc();
}

void heddle_pause(void)
{
	rte_pause();
}

unsigned int heddle_lcore_id(void)
{
	return rte_lcore_id();
}

/* The newest bytes of the log: the oldest of them is at index 0. */
static char log_buf[4096];
static size_t log_len;
static int log_echo;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t log_write(void *cookie, const char *buf, size_t size)
{
	size_t n = size < sizeof(log_buf) ? size : sizeof(log_buf);
	const char *src = buf + (size - n);

	(void)cookie;
	pthread_mutex_lock(&log_lock);
	if (log_len + n > sizeof(log_buf)) {
		size_t cut = log_len + n - sizeof(log_buf);

		memmove(log_buf, log_buf + cut, log_len - cut);
		log_len -= cut;
	}
	memcpy(log_buf + log_len, src, n);
	log_len += n;
	if (log_echo)
		fwrite(buf, 1, size, stderr);
	pthread_mutex_unlock(&log_lock);
	return (ssize_t)size;
}

int heddle_log_capture(void)
{
	cookie_io_functions_t io = { .write = log_write };
	FILE *f = fopencookie(NULL, "w", io);

	if (f == NULL)
		return -1;
	setvbuf(f, NULL, _IOLBF, 0);
	return rte_openlog_stream(f);
}

void heddle_log_echo(int on)
{
	pthread_mutex_lock(&log_lock);
	log_echo = on;
	pthread_mutex_unlock(&log_lock);
}

size_t heddle_log_take(char *dst, size_t len)
{
	size_t n;

	pthread_mutex_lock(&log_lock);
	n = log_len < len ? log_len : len;
	memcpy(dst, log_buf + (log_len - n), n);
	log_len = 0;
	pthread_mutex_unlock(&log_lock);
	return n;
}

#define SIZE(t) { "sizeof " #t, sizeof(struct t), sizeof(struct t) }
#define FIELD(t, f) { #t "." #f, offsetof(struct t, f), sizeof(((struct t *)0)->f) }

static const struct heddle_layout layouts[] = {
	SIZE(rte_mbuf),
	SIZE(rte_mbuf_ext_shared_info),
	FIELD(rte_mbuf_ext_shared_info, free_cb),
	FIELD(rte_mbuf_ext_shared_info, fcb_opaque),
	FIELD(rte_mbuf_ext_shared_info, refcnt),
	SIZE(rte_mempool),
	FIELD(rte_mempool, size),
	FIELD(rte_mempool, cache_size),
	FIELD(rte_mempool, elt_size),
	SIZE(rte_ring),
	FIELD(rte_ring, size),
	FIELD(rte_ring, capacity),
	SIZE(rte_ether_addr),
	SIZE(rte_eth_conf),
	FIELD(rte_eth_conf, rxmode),
	FIELD(rte_eth_conf, txmode),
	FIELD(rte_eth_conf, rx_adv_conf),
	FIELD(rte_eth_conf, rx_adv_conf.rss_conf.rss_hf),
	FIELD(rte_eth_conf, rxmode.mtu),
	FIELD(rte_eth_conf, rxmode.offloads),
	FIELD(rte_eth_conf, txmode.offloads),
	SIZE(rte_eth_dev_info),
	FIELD(rte_eth_dev_info, device),
	FIELD(rte_eth_dev_info, driver_name),
	FIELD(rte_eth_dev_info, min_mtu),
	FIELD(rte_eth_dev_info, max_mtu),
	FIELD(rte_eth_dev_info, max_rx_queues),
	FIELD(rte_eth_dev_info, max_tx_queues),
	FIELD(rte_eth_dev_info, rx_offload_capa),
	FIELD(rte_eth_dev_info, tx_offload_capa),
	FIELD(rte_eth_dev_info, flow_type_rss_offloads),
	SIZE(rte_eth_stats),
	FIELD(rte_eth_stats, imissed),
	FIELD(rte_eth_stats, rx_nombuf),
	SIZE(rte_eth_rxconf),
	SIZE(rte_eth_txconf),
};

const struct heddle_layout *heddle_layouts(size_t *count)
{
	*count = sizeof(layouts) / sizeof(layouts[0]);
	return layouts;
}
