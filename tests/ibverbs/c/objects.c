/* Makes, uses and destroys objects of libibverbs by the distribution's header, as a C program does.
 * Checks the functions that the header's inline functions reach, the errno of each refusal, and
 * which objects are busy. Makes no connection. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

/* Checks for a null result with this errno. */
#define REFUSED(what, error)                \
	do {                                \
		errno = 0;                  \
		CHECK((what) == NULL);      \
		CHECK(errno == (error));    \
	} while (0)

static void device(struct ibv_context *context)
{
	struct ibv_device_attr_ex attr;
	struct ibv_device_attr plain;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, table[16];
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	union ibv_gid gid;
	__be16 pkey;
	ssize_t count;

	CHECK(context->device->node_type == IBV_NODE_RNIC);
	CHECK(context->device->transport_type == IBV_TRANSPORT_IWARP);
	CHECK(!strcmp(ibv_get_device_name(context->device), "heddle0"));
	CHECK(ibv_query_device(context, &plain) == 0);
	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK(!memcmp(&plain, &attr.orig_attr, sizeof plain));
	CHECK(plain.max_qp > 0 && plain.max_cqe > 0 && plain.phys_port_cnt == 1);
	CHECK(plain.node_guid == ibv_get_device_guid(context->device));
	CHECK(attr.phys_port_cnt_ex == 1 && attr.completion_timestamp_mask != 0);
	CHECK(attr.odp_caps.general_caps == 0);
	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len >= 1);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	/* The IPv4-mapped form of 10.77.0.1. */
	CHECK(!memcmp(gid.raw, "\0\0\0\0\0\0\0\0\0\0\377\377\12\115\0\1", 16));
	CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1);
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 0) == 0);
	CHECK(!memcmp(entry.gid.raw, "\0\0\0\0\0\0\0\0\0\0\377\377\12\115\0\1", 16));
	CHECK(ibv_query_gid_ex(context, 1, 99, &entry, 0) == ENODATA);
	count = ibv_query_gid_table(context, table, 16, 0);
	CHECK(count == port.gid_tbl_len && table[0].port_num == 1);
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1);
	CHECK(ibv_get_pkey_index(context, 1, pkey) == 0);
	CHECK(ibv_query_rt_values_ex(context, &values) == 0 && values.raw_clock.tv_nsec > 0);
}

/* The lowest free descriptor before the library has opened any. */
static int first_free;

static int lowest_free(void)
{
	int fd = open("/dev/null", O_RDONLY);

	CHECK(fd >= 0 && close(fd) == 0);
	return fd;
}

/* If a thread of the library took a signal that all threads of the program have blocked, the signal
 * would end the program. tgtd's workers send such signals to their process, for a signalfd. */
static void own_signals(void)
{
	sigset_t set;
	int taken;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	CHECK(kill(getpid(), SIGUSR2) == 0);
	CHECK(sigwait(&set, &taken) == 0 && taken == SIGUSR2);
}

static void memory(struct ibv_pd *pd)
{
	size_t length = 3 * 4096;
	char *bytes = aligned_alloc(4096, length);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *mr, *part;

	CHECK(bytes);
	memset(bytes, 7, length);
	REFUSED(ibv_reg_mr(pd, bytes, 0, all), EINVAL);
	REFUSED(ibv_reg_mr(pd, bytes, length, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_mr(pd, bytes, length, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	REFUSED(ibv_reg_mr(pd, (void *)4096, length, all), EFAULT);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, length, 0, -1, all), EBADF);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, length, 0, 0, all), EOPNOTSUPP);
	mr = ibv_reg_mr(pd, bytes, length, all);
	CHECK(mr && mr->addr == bytes && mr->length == length && mr->pd == pd && mr->lkey);
	/* netcat accepts no descriptor beyond 16. The library has more than a dozen of its own by now. */
	CHECK(lowest_free() < first_free + 5);
	/* A part of the same pages, at an odd address, which peers name by another address. */
	part = ibv_reg_mr_iova(pd, bytes + 5, 100, 0x1000, all | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(part && part->lkey != mr->lkey);
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes, 4096, 0) == 0);
	CHECK(mr->length == 4096);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(part) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	for (size_t i = 0; i < length; i++)
		CHECK(bytes[i] == 7);
	free(bytes);
}

static void queues(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq_init_attr_ex extended = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_poll_cq_attr poll_attr = {};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 16}};
	struct ibv_qp_init_attr_ex init_ex;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	struct ibv_ah_attr ah_attr = {.port_num = 1};
	struct ibv_send_wr wr = {}, *bad = NULL;
	struct ibv_recv_wr receive = {.wr_id = 9}, *bad_receive = NULL;
	struct ibv_cq *cq, *event_cq;
	struct ibv_cq_ex *cq_ex;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_wc wc[4];
	union ibv_gid gid = {};
	void *event_context;
	int got;

	CHECK(channel && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	REFUSED(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_create_cq(context, 16, NULL, NULL, 1), EINVAL);
	cq = ibv_create_cq(context, 16, &init, channel, 0);
	CHECK(cq && cq->cqe >= 16 && cq->channel == channel);
	CHECK(ibv_get_cq_event(channel, &event_cq, &event_context) == -1 && errno == EAGAIN);
	CHECK(ibv_poll_cq(cq, 4, wc) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	cq_ex = ibv_create_cq_ex(context, &extended);
	CHECK(cq_ex && ibv_start_poll(cq_ex, &poll_attr) == ENOENT);
	extended.wc_flags = IBV_WC_EX_WITH_CVLAN;
	REFUSED(ibv_create_cq_ex(context, &extended), EOPNOTSUPP);

	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	init.send_cq = init.recv_cq = cq;
	init.qp_type = IBV_QPT_UD;
	REFUSED(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init.qp_type = IBV_QPT_RC;
	init.cap.max_inline_data = 513;
	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	init.cap.max_inline_data = 512;
	qp = ibv_create_qp(pd, &init);
	CHECK(qp && qp->state == IBV_QPS_RESET && qp->qp_num && init.cap.max_send_wr >= 4);
	CHECK(ibv_qp_to_qp_ex(qp) == NULL);
	memset(&init_ex, 0, sizeof init_ex);
	memcpy(&init_ex, &init, sizeof init);
	init_ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
	init_ex.pd = pd;
	REFUSED(ibv_create_qp_ex(context, &init_ex), EOPNOTSUPP);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_INIT);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP) == EOPNOTSUPP);

	/* A queue pair that never had a connection flushes its requests, and raises the event that the
	 * program has armed. */
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	CHECK(poll(&(struct pollfd){.fd = channel->fd, .events = POLLIN}, 1, 60000) == 1);
	CHECK(ibv_get_cq_event(channel, &event_cq, &event_context) == 0);
	CHECK(event_cq == cq && event_context == &init);
	ibv_ack_cq_events(cq, 1);
	while (!(got = ibv_poll_cq(cq, 4, wc)))
		;
	CHECK(got == 1 && wc[0].wr_id == 9 && wc[0].status == IBV_WC_WR_FLUSH_ERR);
	CHECK(wc[0].qp_num == qp->qp_num);

	REFUSED(ibv_create_ah(pd, &ah_attr), EOPNOTSUPP);
	CHECK(ibv_attach_mcast(qp, &gid, 0) == EOPNOTSUPP);
	REFUSED(ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){.length = 64}), EOPNOTSUPP);
	REFUSED(ibv_alloc_td(context, &(struct ibv_td_init_attr){}), EOPNOTSUPP);
	REFUSED(ibv_create_counters(context, &(struct ibv_counters_init_attr){}), EOPNOTSUPP);
	REFUSED(ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){}), EOPNOTSUPP);

	REFUSED(ibv_create_srq(pd, &(struct ibv_srq_init_attr){}), EINVAL);
	srq = ibv_create_srq(pd, &srq_init);
	CHECK(srq && ibv_post_srq_recv(srq, &receive, &bad_receive) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	/* rdma_destroy_qp passes on what its identifier has. */
	CHECK(ibv_destroy_qp(NULL) == EINVAL);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

static void numbers(void)
{
	CHECK(ibv_rate_to_mult(IBV_RATE_5_GBPS) == 2 && mult_to_ibv_rate(2) == IBV_RATE_5_GBPS);
	CHECK(ibv_rate_to_mbps(IBV_RATE_100_GBPS) == 103125 && ibv_rate_to_mult(99) == -1);
	CHECK(!strcmp(ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR), "Work Request Flushed Error"));
	CHECK(!strcmp(ibv_wc_status_str(-1), "unknown") && !strcmp(ibv_wc_status_str(24), "unknown"));
	CHECK(!strcmp(ibv_node_type_str(IBV_NODE_RNIC), "iWARP NIC"));
	CHECK(!strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), "active"));
	CHECK(!strcmp(ibv_event_type_str(IBV_EVENT_QP_FATAL), "local work queue catastrophic error"));
	CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}

int main(void)
{
	int count;
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_pd *pd;

	first_free = lowest_free();
	list = ibv_get_device_list(&count);
	CHECK(list && count == 1 && !list[1]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	device(context);
	own_signals();
	pd = ibv_alloc_pd(context);
	CHECK(pd && pd->context == context);
	memory(pd);
	queues(context, pd);
	numbers();
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
