// Preload this library into a program to record, five times a second, how many bytes the program
// has from malloc and has not freed: in the file that HEAP names, as eight bytes in the machine's
// byte order. The resident size that the system counts also includes free pieces, and rises with
// each peak.
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static void *count(void *file) {
    int fd = (int)(intptr_t)file;
    for (;;) {
        struct mallinfo2 all = mallinfo2();
        uint64_t used = all.uordblks + all.hblkhd;
        (void)!pwrite(fd, &used, sizeof used, 0);
        usleep(200000);
    }
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("HEAP");
    int fd = path ? open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;
    sigset_t all, before;
    pthread_t thread;
    if (fd < 0)
        return;
    // Block all signals in this thread, so that the program's own threads get them.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, NULL, count, (void *)(intptr_t)fd))
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
