/* A library to preload into a program that uses net_memif: it tells the driver's own fault from
 * others.
 *
 * DPDK's net_memif (seen with 22.11) unmaps its rings when the peer goes, on a thread of its own,
 * although a worker may be reading them at that moment. The program then ends with PEER_GONE. Any
 * other fault ends the program with SIGSEGV as usual, including a fault inside the driver before
 * its peer has gone or at another address. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define PEER_GONE 86
#define RANGES 64

static struct {
	uintptr_t from, to;
} gone[RANGES];
static unsigned int ranges;

static int in_driver(const void *code)
{
	Dl_info info;

	return dladdr(code, &info) != 0 && info.dli_fname != NULL &&
	       strstr(info.dli_fname, "librte_net_memif") != NULL;
}

/* Replaces the C library's function, and records the ranges that the driver unmaps. */
int munmap(void *addr, size_t len)
{
	if (in_driver(__builtin_return_address(0))) {
		unsigned int i = __atomic_fetch_add(&ranges, 1, __ATOMIC_ACQ_REL) % RANGES;

		gone[i].from = (uintptr_t)addr;
		gone[i].to = (uintptr_t)addr + len;
	}
	return (int)syscall(SYS_munmap, addr, len);
}

static const void *code_of(const ucontext_t *at)
{
#if defined(__x86_64__)
	return (const void *)at->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	return (const void *)at->uc_mcontext.pc;
#else
	(void)at;
	return NULL;
#endif
}

/* Returns 1 if the driver has unmapped this address, or if the address is an offset from null: the
 * driver also sets its pointer to a region to null. */
static int is_gone(uintptr_t addr)
{
	unsigned int i, n = __atomic_load_n(&ranges, __ATOMIC_ACQUIRE);

	for (i = 0; i < n && i < RANGES; i++)
		if ((addr >= gone[i].from && addr < gone[i].to) || addr < gone[i].to - gone[i].from)
			return 1;
	return 0;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	static const char said[] = "net_memif read its ring after its peer had gone\n";

	if (info->si_code > 0 && in_driver(code_of(context)) && is_gone((uintptr_t)info->si_addr)) {
		ssize_t written = write(STDERR_FILENO, said, sizeof(said) - 1);

		(void)written;
		_exit(PEER_GONE);
	}
	signal(number, SIG_DFL);
	/* A fault happens again at once, but a signal that a process has sent does not. */
	if (info->si_code <= 0)
		raise(number);
}

__attribute__((constructor)) static void install(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	sigaction(SIGSEGV, &action, NULL);
}
