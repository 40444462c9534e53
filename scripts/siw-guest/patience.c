// Preloaded into perftest's clients: they sleep for a second after the first connection, until their server listens
// anew. A server in an emulated guest may take longer, and a client that is refused then crashes in its clean-up.
#include <time.h>

unsigned int sleep(unsigned int seconds) {
    struct timespec longer = {.tv_sec = 4 * (time_t)seconds};
    nanosleep(&longer, NULL);
    return 0;
}
