/* Prints commands as the distribution's header lays them out, one line of hexadecimal digits each;
 * reads answers in the same form, and compares them field by field. */
#include <arpa/inet.h>
#include <assert.h>
#include <endian.h>
#include <netinet/in.h>
#include <infiniband/ib.h>
#include <rdma/rdma_user_cm.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static void show(__u32 number, const void *body, size_t len, size_t out)
{
	struct rdma_ucm_cmd_hdr hdr = { .cmd = number, .in = len, .out = out };

	for (size_t i = 0; i < sizeof hdr; i++)
		printf("%02x", ((unsigned char *)&hdr)[i]);
	for (size_t i = 0; i < len; i++)
		printf("%02x", ((unsigned char *)body)[i]);
	putchar('\n');
}
#define SHOW(number, body, out) show(RDMA_USER_CM_CMD_##number, &body, sizeof body, out)

static struct sockaddr_in at(int host, int port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };

	in.sin_addr.s_addr = htonl(0x0a000000 + host);
	return in;
}

static struct rdma_ucm_conn_param param(void)
{
	struct rdma_ucm_conn_param p = { .qp_num = 77, .qkey = 1, .private_data_len = 3, .srq = 1,
		.responder_resources = 5, .initiator_depth = 6, .flow_control = 1, .retry_count = 2,
		.rnr_retry_count = 3, .valid = 1 };

	memcpy(p.private_data, "abc", 3);
	return p;
}

static void commands(void)
{
	struct sockaddr_in us = at(1, 1111), peer = at(2, 2222);
	struct rdma_ucm_create_id create = { .uid = 1, .response = 2, .ps = RDMA_PS_TCP, .qp_type = 3 };
	struct rdma_ucm_destroy_id destroy = { .response = 2, .id = 9 };
	struct rdma_ucm_bind_ip bind_ip = { .id = 9 };
	struct rdma_ucm_bind bind = { .id = 9, .addr_size = sizeof us };
	struct rdma_ucm_resolve_ip resolve_ip = { .id = 9, .timeout_ms = 4 };
	struct rdma_ucm_resolve_addr resolve = {
		.id = 9, .timeout_ms = 4, .src_size = sizeof us, .dst_size = sizeof us
	};
	struct rdma_ucm_resolve_route route = { .id = 9, .timeout_ms = 4 };
	struct rdma_ucm_query query = { .response = 2, .id = 9 };
	struct rdma_ucm_connect connect = { .conn_param = param(), .id = 9 };
	struct rdma_ucm_listen listen = { .id = 9, .backlog = 8 };
	struct rdma_ucm_accept accept = { .uid = 1, .conn_param = param(), .id = 9 };
	struct rdma_ucm_reject reject = { .id = 9, .private_data_len = 3, .reason = 28 };
	struct rdma_ucm_disconnect disconnect = { .id = 9 };
	struct rdma_ucm_init_qp_attr attr = { .response = 2, .id = 9, .qp_state = 3 };
	struct rdma_ucm_get_event event = { .response = 2 };
	struct rdma_ucm_set_option option = { .optval = 6, .id = 9, .level = RDMA_OPTION_ID,
		.optname = RDMA_OPTION_ID_REUSEADDR, .optlen = 4 };
	struct rdma_ucm_notify notify = { .id = 9, .event = 1 };
	struct rdma_ucm_join_ip_mcast join_ip = { .response = 2, .uid = 1, .id = 9 };
	struct rdma_ucm_join_mcast join = { .response = 2, .uid = 1, .id = 9, .addr_size = sizeof us };
	struct rdma_ucm_migrate_id migrate = { .response = 2, .id = 9, .fd = 4 };

	memcpy(&bind_ip.addr, &us, sizeof us);
	memcpy(&bind.addr, &us, sizeof us);
	memcpy(&resolve_ip.src_addr, &us, sizeof us);
	memcpy(&resolve_ip.dst_addr, &peer, sizeof peer);
	memcpy(&resolve.src_addr, &us, sizeof us);
	memcpy(&resolve.dst_addr, &peer, sizeof peer);
	memcpy(&join_ip.addr, &us, sizeof us);
	memcpy(&join.addr, &us, sizeof us);
	memcpy(reject.private_data, "abc", 3);
	SHOW(CREATE_ID, create, sizeof(struct rdma_ucm_create_id_resp));
	SHOW(DESTROY_ID, destroy, sizeof(struct rdma_ucm_destroy_id_resp));
	SHOW(BIND_IP, bind_ip, 0);
	SHOW(BIND, bind, 0);
	SHOW(RESOLVE_IP, resolve_ip, 0);
	SHOW(RESOLVE_ADDR, resolve, 0);
	SHOW(RESOLVE_ROUTE, route, 0);
	SHOW(QUERY_ROUTE, query, sizeof(struct rdma_ucm_query_route_resp));
	query.option = RDMA_USER_CM_QUERY_ADDR;
	SHOW(QUERY, query, sizeof(struct rdma_ucm_query_addr_resp));
	query.option = RDMA_USER_CM_QUERY_PATH;
	SHOW(QUERY, query, sizeof(struct rdma_ucm_query_path_resp));
	query.option = RDMA_USER_CM_QUERY_GID;
	SHOW(QUERY, query, sizeof(struct rdma_ucm_query_addr_resp));
	SHOW(CONNECT, connect, 0);
	SHOW(LISTEN, listen, 0);
	SHOW(ACCEPT, accept, 0);
	SHOW(REJECT, reject, 0);
	SHOW(DISCONNECT, disconnect, 0);
	SHOW(INIT_QP_ATTR, attr, sizeof(struct ib_uverbs_qp_attr));
	SHOW(GET_EVENT, event, sizeof(struct rdma_ucm_event_resp));
	SHOW(SET_OPTION, option, 0);
	SHOW(NOTIFY, notify, 0);
	SHOW(JOIN_IP_MCAST, join_ip, sizeof(struct rdma_ucm_create_id_resp));
	SHOW(JOIN_MCAST, join, sizeof(struct rdma_ucm_create_id_resp));
	SHOW(LEAVE_MCAST, destroy, sizeof(struct rdma_ucm_destroy_id_resp));
	SHOW(MIGRATE_ID, migrate, sizeof(struct rdma_ucm_migrate_resp));
}

static void take(void *to, size_t len)
{
	unsigned byte;

	for (size_t i = 0; i < len; i++) {
		assert(scanf("%2x", &byte) == 1);
		((unsigned char *)to)[i] = byte;
	}
	assert(getchar() == '\n');
}

static void is(const void *addr, int host, int port)
{
	struct sockaddr_in want = at(host, port);

	assert(!memcmp(addr, &want, sizeof want));
}

static void answers(void)
{
	struct rdma_ucm_query_route_resp route;
	struct rdma_ucm_query_addr_resp addr, gid;
	struct rdma_ucm_query_path_resp path;
	struct ib_uverbs_qp_attr attr;
	struct rdma_ucm_event_resp event;
	struct rdma_ucm_create_id_resp id;
	static const unsigned char mapped[16] = { [10] = 0xff, 0xff, 10, 0, 0, 1 };

	take(&route, sizeof route);
	assert(!memcmp(&route.node_guid, "\1\2\3\4\5\6\7\10", 8) && route.num_paths == 0);
	assert(route.port_num == 1 && route.ibdev_index == 3);
	is(&route.src_addr, 1, 1111), is(&route.dst_addr, 2, 2222);
	assert(!memcmp(route.ib_route[0].sgid, mapped, 16) && route.ib_route[0].dgid[15] == 2);
	take(&addr, sizeof addr);
	assert(!memcmp(&addr.node_guid, "\1\2\3\4\5\6\7\10", 8));
	assert(addr.port_num == 1 && addr.pkey == 0xffff);
	assert(addr.src_size == sizeof(struct sockaddr_in) && addr.dst_size == addr.src_size);
	assert(addr.ibdev_index == 3);
	is(&addr.src_addr, 1, 1111), is(&addr.dst_addr, 2, 2222);
	take(&path, sizeof path);
	assert(path.num_paths == 0);
	take(&gid, sizeof gid);
	struct sockaddr_ib *ib = (void *)&gid.src_addr;
	assert(gid.src_size == sizeof *ib && ib->sib_family == AF_IB && ntohs(ib->sib_pkey) == 0xffff);
	assert(!memcmp(&ib->sib_addr, mapped, 16) && be64toh(ib->sib_sid) == (RDMA_PS_TCP << 16) + 1111);
	take(&attr, sizeof attr);
	assert(attr.qp_attr_mask == 41 && attr.qp_state == 1);
	assert(attr.qp_access_flags == 6 && attr.port_num == 1);
	take(&event, sizeof event);
	assert(event.uid == 1 && event.id == 9 && event.event == 8 && (int)event.status == -104);
	assert(event.param.conn.private_data_len == 3 && !memcmp(event.param.conn.private_data, "abc", 3));
	assert(event.param.conn.responder_resources == 5 && event.param.conn.initiator_depth == 6);
	take(&id, sizeof id);
	assert(id.id == 9);
}

int main(int argc, char **argv)
{
	(void)argv;
	argc > 1 ? answers() : commands();
	return 0;
}
