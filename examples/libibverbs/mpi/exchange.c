// exchange - MPI over RDMA, by libfabric and libibverbs.
//
//     mpicc -O2 -o exchange exchange.c
//     mca="--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"
//     heddle run -- mpirun -n 2 $mca ./exchange
//
// Each rank sends messages of 1 byte to 4 MiB to the next, all ranks sum numbers up, and each puts
// a number into the window of each other rank. The ranks compare what arrives.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, int rank)
{
	fprintf(stderr, "rank %d: %s\n", rank, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv)
{
	int rank, ranks;
	long messages = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	const int most = 4 << 20;
	unsigned char *out = malloc(most), *in = malloc(most);
	for (int size = 1; size <= most; size *= 4) {
		for (int round = 0; round < 5; round++, messages++) {
			for (int i = 0; i < size; i++)
				out[i] = (unsigned char)(i * 7 + rank + round);
			memset(in, 0, (size_t)size);
			MPI_Sendrecv(out, size, MPI_BYTE, next, 1, in, size, MPI_BYTE, previous, 1, MPI_COMM_WORLD,
				     MPI_STATUS_IGNORE);
			for (int i = 0; i < size; i++)
				if (in[i] != (unsigned char)(i * 7 + previous + round))
					die("a message differs", rank);
		}
	}
	long sum = 0, mine = rank + 1;
	for (int i = 0; i < 200; i++) {
		MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		if (sum != (long)ranks * (ranks + 1) / 2)
			die("a sum is wrong", rank);
	}
	MPI_Win window;
	long *cells;
	MPI_Win_allocate(ranks * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD,
			 &cells, &window);
	memset(cells, 0, ranks * sizeof(long));
	MPI_Win_fence(0, window);
	for (int to = 0; to < ranks; to++) {
		long value = 1000 + rank;
		MPI_Put(&value, 1, MPI_LONG, to, rank, 1, MPI_LONG, window);
		MPI_Win_fence(0, window);
	}
	for (int from = 0; from < ranks; from++)
		if (cells[from] != 1000 + from)
			die("a window differs", rank);
	MPI_Win_free(&window);
	if (rank == 0)
		printf("%d ranks exchanged %ld messages each\n", ranks, messages);
	MPI_Finalize();
	return 0;
}
