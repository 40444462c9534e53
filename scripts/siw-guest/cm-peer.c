/*
 * cm-peer - one end of a connection through Linux's RDMA connection manager. It prints everything
 * that crosses its interface on one line per event, for a test to compare.
 *
 *   cm-peer listen  [OPTION...] ADDR PORT
 *   cm-peer connect [OPTION...] ADDR PORT
 *
 *   -P TEXT   private data of our request, acceptance or refusal
 *   -r N      responder_resources      -i N  initiator_depth      (both 1)
 *   -R        (listen) refuse
 *   -w MS     (listen) time to wait before the answer
 *   -d MS     time from the establishment to our disconnection; without it the peer disconnects
 *   -n N      (listen) connections to serve, one after the other (1)
 *   -s ADDR   (connect) source address
 *   -y N      (connect) retry_count of the queue pair (7)
 *   -u        the UDP port space: a request for a service ID (SIDR)
 *   -t MS     time without an event after which to give up (an hour: the clock of a
 *           guest on a busy machine runs ahead of ours)
 *
 * A line:  EVENT status=N local=A:P remote=A:P rr=N id=N private=LEN:HEX
 * rr and id (responder_resources, initiator_depth) and the private data are those of the event, for
 * a request and for an answer. LEN counts trailing zeros of the data, which HEX does not show.
 *
 * Exit status: 0 the connection was established and ended in order, or (-R) we refused it; 3 the
 * peer refused it; 4 the peer was not reached; 5 nothing happened; 1 any other outcome.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
	const char *private, *source;
	int rr, id, refuse, wait_ms, disconnect_ms, count, retry, udp, patience_ms;
} opt = { "", NULL, 1, 1, 0, 0, -1, 1, 7, 0, 3600000 };

static struct rdma_event_channel *channel;

static void die(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

static void print_addr(const char *name, struct sockaddr *sa)
{
	struct sockaddr_in *in = (struct sockaddr_in *)sa;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)sa;
	char text[INET6_ADDRSTRLEN];

	if (sa && sa->sa_family == AF_INET)
		printf(" %s=%s:%u", name, inet_ntoa(in->sin_addr), ntohs(in->sin_port));
	else if (sa && sa->sa_family == AF_INET6)
		printf(" %s=[%s]:%u", name,
		       inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text)),
		       ntohs(in6->sin6_port));
	else
		printf(" %s=-", name);
}

/* Reads an address of either version; returns 0 for text that is none. */
static int read_addr(const char *text, int port, struct sockaddr_storage *to)
{
	struct sockaddr_in *in = (struct sockaddr_in *)to;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)to;

	memset(to, 0, sizeof(*to));
	if (inet_pton(AF_INET6, text, &in6->sin6_addr) == 1) {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
		return 1;
	}
	in->sin_family = AF_INET;
	in->sin_port = htons(port);
	return inet_pton(AF_INET, text, &in->sin_addr) == 1;
}

static void print_data(const void *data, unsigned int len)
{
	const unsigned char *bytes = data;
	unsigned int shown = len;

	while (shown && !bytes[shown - 1])
		shown--;
	printf(" private=%u:", len);
	for (unsigned int i = 0; i < shown; i++)
		printf("%02x", bytes[i]);
}

static void print_event(const struct rdma_cm_event *e)
{
	printf("%s status=%d", rdma_event_str(e->event), e->status);
	print_addr("local", rdma_get_local_addr(e->id));
	print_addr("remote", rdma_get_peer_addr(e->id));
	switch (e->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
		if (opt.udp) {
			printf(" qpn=%u qkey=%x", e->param.ud.qp_num, e->param.ud.qkey);
			print_data(e->param.ud.private_data, e->param.ud.private_data_len);
		} else {
			printf(" rr=%u id=%u", e->param.conn.responder_resources,
			       e->param.conn.initiator_depth);
			print_data(e->param.conn.private_data, e->param.conn.private_data_len);
		}
		break;
	default:
		break;
	}
	putchar('\n');
}

/* Waits for the next event, prints it and returns it; the caller acknowledges it. Returns NULL if
 * none comes for `ms`. */
static struct rdma_cm_event *next_event(int ms)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *e;
	int n = poll(&p, 1, ms);

	if (n < 0)
		die("poll");
	if (!n)
		return NULL;
	if (rdma_get_cm_event(channel, &e))
		die("rdma_get_cm_event");
	print_event(e);
	return e;
}

/* Waits for an event of this type. Any other event ends the run, with a status of its own. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e = next_event(opt.patience_ms);

	if (!e) {
		printf("NOTHING instead of %s\n", rdma_event_str(type));
		exit(5);
	}
	if (e->event == type)
		return e;
	switch (e->event) {
	case RDMA_CM_EVENT_REJECTED:
		exit(3);
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
		exit(4);
	default:
		exit(1);
	}
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = opt.udp ? IBV_QPT_UD : IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (rdma_create_qp(id, NULL, &attr))
		die("rdma_create_qp");
}

static struct rdma_conn_param param(void)
{
	return (struct rdma_conn_param){
		.private_data = opt.private,
		.private_data_len = strlen(opt.private),
		.responder_resources = opt.rr,
		.initiator_depth = opt.id,
		.retry_count = opt.retry,
		.rnr_retry_count = 7,
	};
}

/* Keeps a connection from its establishment to its end. */
static void live(struct rdma_cm_id *id)
{
	struct rdma_cm_event *e;

	if (opt.udp)
		return;
	if (opt.disconnect_ms >= 0) {
		e = next_event(opt.disconnect_ms);
		if (!e && rdma_disconnect(id))
			die("rdma_disconnect");
		if (!e)
			e = expect(RDMA_CM_EVENT_DISCONNECTED);
		rdma_ack_cm_event(e);
	} else {
		rdma_ack_cm_event(expect(RDMA_CM_EVENT_DISCONNECTED));
		if (rdma_disconnect(id) && errno != EINVAL)
			die("rdma_disconnect");
	}
	/* Over iWARP, TCP has its own TIME-WAIT, and the connection manager reports no event for it. */
	if (id->verbs->device->transport_type != IBV_TRANSPORT_IWARP)
		rdma_ack_cm_event(expect(RDMA_CM_EVENT_TIMEWAIT_EXIT));
}

static void take_one(void)
{
	struct rdma_cm_event *e = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = e->id;
	struct rdma_conn_param p = param();

	rdma_ack_cm_event(e);
	usleep(opt.wait_ms * 1000);
	if (opt.refuse) {
		if (rdma_reject(id, opt.private, strlen(opt.private)))
			die("rdma_reject");
	} else {
		make_qp(id);
		if (opt.udp)
			p.qp_num = id->qp->qp_num;
		if (rdma_accept(id, &p))
			die("rdma_accept");
		if (!opt.udp) {
			rdma_ack_cm_event(expect(RDMA_CM_EVENT_ESTABLISHED));
			live(id);
		}
		rdma_destroy_qp(id);
	}
	rdma_destroy_id(id);
}

static void do_listen(struct sockaddr_storage *at)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, opt.udp ? RDMA_PS_UDP : RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_bind_addr(id, (struct sockaddr *)at) || rdma_listen(id, 8))
		die("rdma_listen");
	printf("LISTENING\n");
	while (opt.count--)
		take_one();
	rdma_destroy_id(id);
}

static void do_connect(struct sockaddr_storage *to)
{
	struct sockaddr_storage from;
	struct rdma_conn_param p = param();
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;

	if (opt.source && !read_addr(opt.source, 0, &from))
		die("source");
	if (rdma_create_id(channel, &id, NULL, opt.udp ? RDMA_PS_UDP : RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_resolve_addr(id, opt.source ? (struct sockaddr *)&from : NULL,
			      (struct sockaddr *)to, 5000))
		die("rdma_resolve_addr");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
	if (rdma_resolve_route(id, 5000))
		die("rdma_resolve_route");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
	make_qp(id);
	if (rdma_connect(id, &p))
		die("rdma_connect");
	e = expect(RDMA_CM_EVENT_ESTABLISHED);
	rdma_ack_cm_event(e);
	live(id);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
}

int main(int argc, char **argv)
{
	struct sockaddr_storage addr;
	const char *verb = argc > 1 ? argv[1] : "";
	int c;

	setvbuf(stdout, NULL, _IOLBF, 0);
	optind = 2;
	while ((c = getopt(argc, argv, "P:r:i:Rw:d:n:s:y:ut:")) != -1)
		switch (c) {
		case 'P': opt.private = optarg; break;
		case 'r': opt.rr = atoi(optarg); break;
		case 'i': opt.id = atoi(optarg); break;
		case 'R': opt.refuse = 1; break;
		case 'w': opt.wait_ms = atoi(optarg); break;
		case 'd': opt.disconnect_ms = atoi(optarg); break;
		case 'n': opt.count = atoi(optarg); break;
		case 's': opt.source = optarg; break;
		case 'y': opt.retry = atoi(optarg); break;
		case 'u': opt.udp = 1; break;
		case 't': opt.patience_ms = atoi(optarg); break;
		default: return 2;
		}
	if (argc - optind != 2 || !read_addr(argv[optind], atoi(argv[optind + 1]), &addr))
		return fprintf(stderr, "cm-peer listen|connect [OPTION...] ADDR PORT\n"), 2;
	channel = rdma_create_event_channel();
	if (!channel)
		die("rdma_create_event_channel");
	if (!strcmp(verb, "listen"))
		do_listen(&addr);
	else if (!strcmp(verb, "connect"))
		do_connect(&addr);
	else
		return 2;
	return 0;
}
