/* Cancels threads that wait for events, and destroys the objects that they wait for. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

/* The thread that waits, or 0 until it has begun. */
static volatile pid_t waiter;

static void begin(void)
{
	waiter = syscall(SYS_gettid);
}

static void *wait_for_completions(void *channel)
{
	begin();
	struct ibv_cq *cq;
	void *context;
	int got = ibv_get_cq_event(channel, &cq, &context);
	return (void *)(long)(got == 0);
}

static void *wait_for_event(void *context)
{
	struct ibv_async_event event;
	begin();
	while (ibv_get_async_event(context, &event) == 0)
		ibv_ack_async_event(&event);
	return NULL;
}

/* Returns true if the thread sleeps in the system call that waits for events. */
static int sleeps(void)
{
	char path[64];
	long call = -1;
	if (!waiter)
		return 0;
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", waiter);
	FILE *file = fopen(path, "r");
	CHECK(file);
	/* The kernel writes "running" for a thread that does not sleep. */
	int known = fscanf(file, "%ld", &call) == 1;
	fclose(file);
	return known && (call == SYS_poll || call == SYS_read);
}

static void let_it_wait(void)
{
	while (!sleeps())
		usleep(1000);
}

static void start(pthread_t *thread, void *(*body)(void *), void *argument)
{
	waiter = 0;
	CHECK(pthread_create(thread, NULL, body, argument) == 0);
}

static void *wait_for_signal(void *channel)
{
	begin();
	struct ibv_cq *cq;
	void *context;
	int got = ibv_get_cq_event(channel, &cq, &context);
	return (void *)(long)(got == -1 && errno == EINTR);
}

static volatile sig_atomic_t handled;

static void count(int signal)
{
	(void)signal;
	handled++;
}

static void handle(int flags)
{
	struct sigaction action = { .sa_handler = count, .sa_flags = flags };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	handled = 0;
}

static void interrupt(pthread_t thread)
{
	CHECK(pthread_kill(thread, SIGUSR1) == 0);
	while (!handled)
		usleep(1000);
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

	/* Cancel threads while they wait: the objects that they waited for still work. */
	pthread_t thread;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0);
	CHECK(cq);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	for (int i = 0; i < 3; i++) {
		start(&thread, wait_for_completions, channel);
		let_it_wait();
		cancel(thread);
		start(&thread, wait_for_event, context);
		let_it_wait();
		cancel(thread);
	}

	/* A handler with SA_RESTART leaves the wait as it is; any other ends it. */
	handle(SA_RESTART);
	start(&thread, wait_for_completions, channel);
	let_it_wait();
	interrupt(thread);
	let_it_wait();
	cancel(thread);
	handle(SA_RESTART);
	start(&thread, wait_for_event, context);
	let_it_wait();
	interrupt(thread);
	let_it_wait();
	cancel(thread);
	handle(0);
	start(&thread, wait_for_signal, channel);
	let_it_wait();
	interrupt(thread);
	void *ended;
	CHECK(pthread_join(thread, &ended) == 0);
	CHECK(ended == (void *)1);

	/* Cancel a thread before it waits. */
	start(&thread, wait_for_completions, channel);
	cancel(thread);

	/*
	 * Destroy a channel under a waiting thread; then other objects get its memory and descriptor.
	 * The thread waits on, even if the RNIC wakes it once more while it gives the queue up.
	 */
	for (int round = 0; round < 10; round++) {
		start(&thread, wait_for_completions, channel);
		let_it_wait();
		CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
		CHECK(ibv_destroy_cq(cq) == 0);
		CHECK(ibv_destroy_comp_channel(channel) == 0);
		CHECK(ibv_destroy_comp_channel(channel) == EINVAL);
		for (int i = 0; i < 20; i++) {
			struct ibv_comp_channel *next = ibv_create_comp_channel(context);
			CHECK(next);
			cq = ibv_create_cq(context, 4, NULL, next, 0);
			CHECK(cq);
			CHECK(ibv_destroy_cq(cq) == 0);
			CHECK(ibv_destroy_comp_channel(next) == 0);
		}
		cancel(thread);
		channel = ibv_create_comp_channel(context);
		CHECK(channel);
		cq = ibv_create_cq(context, 4, NULL, channel, 0);
		CHECK(cq);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
	}
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);

	/* The program can still make and destroy memory and objects, so no thread holds a lock. */
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
