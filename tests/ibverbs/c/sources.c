/* Resolves the hosts that standard input names, a line each, and prints the address from which
 * rdma_cm would connect to each one; "none" if the device reaches no such host. */

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

/* Fills in a socket address; returns its length. */
static socklen_t parse(const char *text, struct sockaddr_storage *addr)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)addr;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)addr;
	memset(addr, 0, sizeof *addr);
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(7);
		return sizeof *v4;
	}
	CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1);
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(7);
	return sizeof *v6;
}

static const char *name(const struct sockaddr *addr, char *text, socklen_t len)
{
	const void *ip = addr->sa_family == AF_INET
				 ? (const void *)&((const struct sockaddr_in *)addr)->sin_addr
				 : (const void *)&((const struct sockaddr_in6 *)addr)->sin6_addr;
	return inet_ntop(addr->sa_family, ip, text, len);
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	char line[INET6_ADDRSTRLEN + 2];
	while (fgets(line, sizeof line, stdin)) {
		struct sockaddr_storage dst;
		struct rdma_cm_id *id;
		struct rdma_cm_event *event;
		line[strcspn(line, "\n")] = '\0';
		parse(line, &dst);
		CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&dst, 2000) == 0);
		CHECK(rdma_get_cm_event(channel, &event) == 0);
		enum rdma_cm_event_type type = event->event;
		CHECK(rdma_ack_cm_event(event) == 0);
		if (type == RDMA_CM_EVENT_ADDR_RESOLVED) {
			char text[INET6_ADDRSTRLEN];
			CHECK(id->verbs);
			puts(name(rdma_get_local_addr(id), text, sizeof text));
		} else {
			CHECK(type == RDMA_CM_EVENT_ADDR_ERROR);
			puts("none");
		}
		fflush(stdout);
		CHECK(rdma_destroy_id(id) == 0);
	}
	rdma_destroy_event_channel(channel);
	return 0;
}
