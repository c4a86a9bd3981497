/* What sluice asks of MPI, as a table of functions.
 *
 * The code that calls MPI is a plugin, a shared object of its own that is opened when the first
 * group of processes is made: libsluice and the program need no MPI to start. The plugin needs
 * nothing of libsluice either; the two only share this header.
 *
 * Functions give 0, or MPI's error code. Functions that take a communicator or a request may be
 * called by several threads at once, each with its own request. The plugin keeps no state. */
#ifndef SLI_COMM_MPI_TRANSPORT_H
#define SLI_COMM_MPI_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for an MPI_Comm and the MPI_Datatype of its large messages. All zeros: none. */
typedef struct sli_communicator {
    void *comm, *unit;
} sli_communicator;

/* Room for an MPI_Request, a pointer or an integer. NULL: none. */
typedef struct sli_request {
    void *bits;
    bool receives;
} sli_request;

/* A message that is taken out of the queue: room for an MPI_Message. */
typedef struct sli_matched {
    void *bits;
    int source;
    size_t bytes;
} sli_matched;

typedef struct sli_transport {
    /* MPI_Init_thread, unless the program has called it, and the communicator of all processes.
     * `*initialized`: MPI is to be finalized by `finish`. `error` gets a sentence where this MPI
     * cannot be used. */
    int (*start)(sli_communicator *world, int *rank, int *size, bool *initialized, char *error,
                 size_t error_bytes);
    /* MPI_Finalize, unless the program has called it. Waits for all processes. */
    void (*finish)(void);
    /* Lets MPI go on with what is under way, unless the program has finalized it. */
    void (*progress)(sli_communicator *comm);
    /* Blocking: rank root's data replace those of the others. */
    int (*broadcast)(sli_communicator *comm, void *data, int bytes, int root);
    /* Blocking: each value becomes the lowest that a rank gave. */
    int (*lowest)(sli_communicator *comm, int64_t *values, int count);

    /* Never wait. Above 1 GiB, `bytes` must be a multiple of SLI_TRANSPORT_UNIT. */
    int (*send)(sli_communicator *comm, const void *data, size_t bytes, int to, int tag,
                sli_request *out);
    int (*receive)(sli_communicator *comm, void *data, size_t bytes, int from, int tag,
                   sli_request *out);
    /* Done requests become NULL, which test as done. */
    int (*test)(sli_request *request, bool *done);
    /* Asks for a request's end; it must still be tested until it is done. */
    int (*cancel)(sli_request *request);
    /* Takes the next message that has come from `from` (below 0: any rank) out of the queue. */
    int (*match)(sli_communicator *comm, int from, int tag, bool *found, sli_matched *out);
    int (*receive_matched)(sli_communicator *comm, sli_matched *matched, void *data,
                           sli_request *out);

    /* Blocking, called by those ranks of `parent` that are named. */
    int (*create)(sli_communicator *parent, const int *ranks, int count, sli_communicator *out);
    void (*free)(sli_communicator *comm);
    void (*describe)(int code, char *text, size_t bytes);
    int (*highest_tag)(void);
} sli_transport;

enum { SLI_TRANSPORT_UNIT = 4096 };

/* The plugin's one symbol. */
#define SLI_TRANSPORT_SYMBOL "sluice_mpi_transport"
typedef const sli_transport *(*sli_transport_entry)(void);

#endif
