// Preload this library into a program to make the program lose something, as LEAK says. So
// scripts/soak --leak can show that the soak would find a loss:
//
//   heap    a quarter of a MiB of its memory each second
//   fds     a descriptor each second
//   unmap   mappings of a MiB and more that it unmaps: the memory of an application that has gone
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *what(void) {
    const char *leak = getenv("LEAK");
    return leak ? leak : "";
}

int munmap(void *at, size_t len) {
    static int (*real)(void *, size_t);
    if (len >= 1 << 20 && !strcmp(what(), "unmap"))
        return 0;
    if (!real)
        real = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
    return real(at, len);
}

static void *lose(void *unused) {
    (void)unused;
    for (;;) {
        sleep(1);
        if (!strcmp(what(), "heap")) {
            char *lost = malloc(1 << 18);
            if (lost)
                memset(lost, 1, 1 << 18);
        } else if (!strcmp(what(), "fds")) {
            (void)!dup(2);
        }
    }
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    if (!pthread_create(&thread, NULL, lose, NULL))
        pthread_detach(thread);
}
