/* The plugin: the only file of sluice that calls MPI. Built as sluice_mpi.so. */
#include "comm/mpi/transport.h"

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request fits into its room");
_Static_assert(sizeof(MPI_Message) <= sizeof(void *), "a message fits into its room");
_Static_assert(sizeof(MPI_Comm) <= sizeof(void *), "a communicator fits into its room");
_Static_assert(sizeof(MPI_Datatype) <= sizeof(void *), "a type fits into its room");

enum { MANY_BYTES = 1 << 30 };

static void set_comm(sli_communicator *out, MPI_Comm comm)
{
    out->comm = NULL;
    if (comm != MPI_COMM_NULL)
        memcpy(&out->comm, &comm, sizeof comm);
}

static MPI_Comm comm_of(const sli_communicator *communicator)
{
    MPI_Comm comm = MPI_COMM_NULL;
    if (communicator->comm)
        memcpy(&comm, &communicator->comm, sizeof comm);
    return comm;
}

/* Bytes as MPI counts them: one by one, or in units where an int cannot count them. */
typedef struct extent {
    MPI_Datatype type;
    int count;
} extent;

static extent extent_of(const sli_communicator *comm, size_t bytes)
{
    extent units = {.count = (int)(bytes / SLI_TRANSPORT_UNIT)};
    if (bytes <= MANY_BYTES)
        return (extent){MPI_BYTE, (int)bytes};
    memcpy(&units.type, &comm->unit, sizeof units.type);
    return units;
}

static void set_request(sli_request *out, MPI_Request request)
{
    out->bits = NULL;
    if (request != MPI_REQUEST_NULL)
        memcpy(&out->bits, &request, sizeof request);
}

static MPI_Request request_of(const sli_request *request)
{
    MPI_Request handle = MPI_REQUEST_NULL;
    if (request->bits)
        memcpy(&handle, &request->bits, sizeof handle);
    return handle;
}

static int initialize(bool *initialized, char *error, size_t error_bytes)
{
    int is_initialized = 0, is_finalized = 0, provided = MPI_THREAD_SINGLE;
    MPI_Initialized(&is_initialized);
    MPI_Finalized(&is_finalized);
    if (is_finalized) {
        snprintf(error, error_bytes, "the program has finalized MPI already");
        return MPI_ERR_OTHER;
    }
    int code = is_initialized ? MPI_Query_thread(&provided)
                              : MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    if (code != MPI_SUCCESS)
        return code;
    *initialized = !is_initialized;
    if (provided < MPI_THREAD_MULTIPLE) {
        snprintf(error, error_bytes, "MPI gives no MPI_THREAD_MULTIPLE%s",
                 is_initialized ? ": the program initialized it with less" : "");
        return MPI_ERR_OTHER;
    }
    return MPI_SUCCESS;
}

static int start(sli_communicator *world, int *rank, int *size, bool *initialized, char *error,
                 size_t error_bytes)
{
    MPI_Datatype unit = MPI_DATATYPE_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    int code = initialize(initialized, error, error_bytes);
    if (code == MPI_SUCCESS)
        code = MPI_Type_contiguous(SLI_TRANSPORT_UNIT, MPI_BYTE, &unit);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(&unit);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (code != MPI_SUCCESS)
        return code;
    *world = (sli_communicator){.comm = NULL};
    memcpy(&world->unit, &unit, sizeof unit);
    set_comm(world, comm);
    MPI_Comm_rank(comm, rank);
    return MPI_Comm_size(comm, size);
}

static void finish(void)
{
    int is_finalized = 0;
    MPI_Finalized(&is_finalized);
    if (!is_finalized)
        MPI_Finalize();
}

static void progress(sli_communicator *comm)
{
    int is_finalized = 0, flag = 0;
    MPI_Finalized(&is_finalized);
    if (!is_finalized)
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_of(comm), &flag, MPI_STATUS_IGNORE);
}

static int broadcast(sli_communicator *comm, void *data, int bytes, int root)
{
    return MPI_Bcast(data, bytes, MPI_BYTE, root, comm_of(comm));
}

static int lowest(sli_communicator *comm, int64_t *values, int count)
{
    return MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_INT64_T, MPI_MIN, comm_of(comm));
}

static int send_data(sli_communicator *comm, const void *data, size_t bytes, int to, int tag,
                     sli_request *out)
{
    extent size = extent_of(comm, bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Isend(data, size.count, size.type, to, tag, comm_of(comm), &request);
    /* The caller tests it until it is done: NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker) */
    set_request(out, request);
    out->receives = false;
    return code;
}

static int receive_data(sli_communicator *comm, void *data, size_t bytes, int from, int tag,
                        sli_request *out)
{
    extent size = extent_of(comm, bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Irecv(data, size.count, size.type, from, tag, comm_of(comm), &request);
    /* The caller tests it until it is done: NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker) */
    set_request(out, request);
    out->receives = true;
    return code;
}

static int test(sli_request *request, bool *done)
{
    MPI_Request tested = request_of(request);
    int flag = 0;
    int code = MPI_Test(&tested, &flag, MPI_STATUS_IGNORE);
    set_request(request, tested);
    *done = flag;
    return code;
}

static int cancel(sli_request *request)
{
    MPI_Request cancelled = request_of(request);
    return cancelled == MPI_REQUEST_NULL ? MPI_SUCCESS : MPI_Cancel(&cancelled);
}

static int match(sli_communicator *comm, int from, int tag, bool *found, sli_matched *out)
{
    int flag = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    int code =
        MPI_Improbe(from < 0 ? MPI_ANY_SOURCE : from, tag, comm_of(comm), &flag, &message, &status);
    *found = code == MPI_SUCCESS && flag;
    if (!*found)
        return code;
    MPI_Count bytes = 0;
    code = MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    *out = (sli_matched){.source = status.MPI_SOURCE, .bytes = (size_t)bytes};
    memcpy(&out->bits, &message, sizeof message);
    return code;
}

static int receive_matched(sli_communicator *comm, sli_matched *matched, void *data,
                           sli_request *out)
{
    extent size = extent_of(comm, matched->bytes);
    MPI_Message message;
    memcpy(&message, &matched->bits, sizeof message);
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Imrecv(data, size.count, size.type, &message, &request);
    set_request(out, request);
    out->receives = true;
    return code;
}

static int create(sli_communicator *parent, const int *ranks, int count, sli_communicator *out)
{
    MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    int code = MPI_Comm_group(comm_of(parent), &all);
    if (code == MPI_SUCCESS)
        code = MPI_Group_incl(all, count, ranks, &members);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_create_group(comm_of(parent), members, 0, &comm);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    out->unit = parent->unit;
    set_comm(out, comm);
    if (members != MPI_GROUP_NULL)
        MPI_Group_free(&members);
    if (all != MPI_GROUP_NULL)
        MPI_Group_free(&all);
    return code;
}

static void free_communicator(sli_communicator *comm)
{
    MPI_Comm freed = comm_of(comm);
    if (freed != MPI_COMM_NULL)
        MPI_Comm_free(&freed);
    comm->comm = NULL;
}

static void describe(int code, char *text, size_t bytes)
{
    char full[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, full, &length);
    snprintf(text, bytes, "%s", full);
}

static int highest_tag(void)
{
    int *value = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&value, &found);
    return found ? *value : 32767; /* the least that the standard allows */
}

const sli_transport *sluice_mpi_transport(void);

const sli_transport *sluice_mpi_transport(void)
{
    static const sli_transport transport = {.start = start,
                                            .finish = finish,
                                            .progress = progress,
                                            .broadcast = broadcast,
                                            .lowest = lowest,
                                            .send = send_data,
                                            .receive = receive_data,
                                            .test = test,
                                            .cancel = cancel,
                                            .match = match,
                                            .receive_matched = receive_matched,
                                            .create = create,
                                            .free = free_communicator,
                                            .describe = describe,
                                            .highest_tag = highest_tag};
    return &transport;
}
