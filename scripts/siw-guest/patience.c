// Preload this library into clients whose server is in an emulated guest. perftest's server stops
// listening after the first connection, over which both sides exchange their needs, and listens
// anew for the others. Its client asks for those at once; a slower server refuses it, and then the
// client crashes in its clean-up.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <time.h>

struct rdma_cm_id;
struct sockaddr;

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int timeout) {
    int (*real)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int);
    struct timespec pause = {.tv_nsec = 500000000};
    real = (int (*)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int))dlsym(RTLD_NEXT, "rdma_resolve_addr");
    if (!real) {
        errno = ENOSYS;
        return -1;
    }
    nanosleep(&pause, NULL);
    return real(id, from, to, timeout);
}
