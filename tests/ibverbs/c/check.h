/* Checks a condition in a test's program, and ends the program if it does not hold. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)
