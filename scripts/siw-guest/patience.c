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

typedef int resolve_addr(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int);

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to,
                      int timeout) {
    resolve_addr *real = (resolve_addr *)dlsym(RTLD_NEXT, "rdma_resolve_addr");
    struct timespec pause = {.tv_nsec = 500000000};
    if (!real) {
        errno = ENOSYS;
        return -1;
    }
    nanosleep(&pause, NULL);
    return real(id, from, to, timeout);
}
