/* Threads that wait for events when the program cancels them, and when it destroys what they wait for. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static void *wait_for_completions(void *channel)
{
	struct ibv_cq *cq;
	void *context;
	int got = ibv_get_cq_event(channel, &cq, &context);
	/* A thread whose channel was destroyed waits on, or is told so. */
	return (void *)(long)(got == 0);
}

static void *wait_for_event(void *context)
{
	struct ibv_async_event event;
	while (ibv_get_async_event(context, &event) == 0)
		ibv_ack_async_event(&event);
	return NULL;
}

/* A thread has to be in its call: only the system knows that it sleeps there. */
static void let_it_wait(void)
{
	usleep(100 * 1000);
}

static void cancel(pthread_t thread)
{
	void *result;
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices && devices[0]);
	struct ibv_context *context = ibv_open_device(devices[0]);
	CHECK(context);
	ibv_free_device_list(devices);

	/* Cancelled while they wait: what they waited for goes on. */
	pthread_t thread;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0);
	CHECK(cq);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	for (int i = 0; i < 3; i++) {
		CHECK(pthread_create(&thread, NULL, wait_for_completions, channel) == 0);
		let_it_wait();
		cancel(thread);
		CHECK(pthread_create(&thread, NULL, wait_for_event, context) == 0);
		let_it_wait();
		cancel(thread);
	}

	/* Cancelled before they come to wait. */
	CHECK(pthread_create(&thread, NULL, wait_for_completions, channel) == 0);
	cancel(thread);

	/* Destroyed under a thread that waits; then others get its memory and its descriptor. */
	CHECK(pthread_create(&thread, NULL, wait_for_completions, channel) == 0);
	let_it_wait();
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	for (int i = 0; i < 20; i++) {
		struct ibv_comp_channel *next = ibv_create_comp_channel(context);
		CHECK(next);
		cq = ibv_create_cq(context, 4, NULL, next, 0);
		CHECK(cq);
		CHECK(ibv_destroy_cq(cq) == 0);
		CHECK(ibv_destroy_comp_channel(next) == 0);
	}
	CHECK(ibv_destroy_comp_channel(channel) == EINVAL);
	cancel(thread);

	/* Memory and objects can still be made and unmade: nobody holds a lock. */
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
