/* Communicators of NCCL, whose library is opened when the first one is made. They do not block: a
 * call returns ncclInProgress where it needs other ranks, so that the caller can give up when one
 * of them dies. */
#include "device/cuda/launchers.h"
#include "device/cuda/plugin/cuda_device.h"
#include "device/cuda/plugin/nccl_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sli_nccl {
    sl_device *device;
    sli_nccl_library library;
    ncclComm_t comm;
    cudaStream_t stream;
};

/* ---- The library ------------------------------------------------------------------------ */

static const char file[] = "libnccl.so.2";

/* Where each of its functions goes. */
static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define FUNCTION(name)                                                                             \
    {                                                                                              \
        "nccl" #name, offsetof(sli_nccl_library, name)                                             \
    }
    FUNCTION(GetVersion),
    FUNCTION(GetUniqueId),
    FUNCTION(CommInitRankConfig),
    FUNCTION(CommFinalize),
    FUNCTION(CommDestroy),
    FUNCTION(CommAbort),
    FUNCTION(CommGetAsyncError),
    FUNCTION(GetErrorString),
    FUNCTION(GetLastError),
    FUNCTION(GroupStart),
    FUNCTION(GroupEnd),
    FUNCTION(Send),
    FUNCTION(Recv),
    FUNCTION(Broadcast),
    FUNCTION(AllGather),
#undef FUNCTION
};

static sl_status refuse_library(const sl_device *device, const char *why)
{
    return sl_error(SL_ERR_UNSUPPORTED,
                    "%s: groups of the backend nccl need %s of NCCL 2.18 or "
                    "later: %s",
                    device->name, file, why);
}

/* It stays open: a later call gets the same library. */
static sl_status open_library(const sl_device *device, sli_nccl_library *out)
{
    int version = 0;
    char text[64];
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return refuse_library(device, dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(object, functions[i].name);
        if (!symbol)
            return refuse_library(device, dlerror());
        memcpy((char *)out + functions[i].offset, &symbol, sizeof symbol);
    }
    if (out->GetVersion(&version) == ncclSuccess && version >= NCCL_LEAST_VERSION)
        return SL_OK;
    snprintf(text, sizeof text, "this one is %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return refuse_library(device, text);
}

/* SL_OK also while the call is in progress. */
static sl_status check_call(const sli_nccl *self, const char *what, ncclResult_t code)
{
    if (code == ncclSuccess || code == ncclInProgress)
        return SL_OK;
    const char *details = self->library.GetLastError(self->comm);
    bool has_details = details && *details;
    return sl_error(SL_ERR_IO, "%s: NCCL: %s: %s%s%s%s", self->device->name, what,
                    self->library.GetErrorString(code), has_details ? " (" : "",
                    has_details ? details : "", has_details ? ")" : "");
}

/* ---- Communicators ---------------------------------------------------------------------- */

static sl_status name_communicator(sl_device *device, char id[SLI_NCCL_ID_BYTES])
{
    sli_nccl with = {.device = device};
    ncclUniqueId made;
    SL_TRY(sli_cuda_enter(device));
    SL_TRY(open_library(device, &with.library));
    SL_TRY(check_call(&with, "name a communicator", with.library.GetUniqueId(&made)));
    memcpy(id, made.internal, SLI_NCCL_ID_BYTES);
    return SL_OK;
}

static void destroy_communicator(sli_nccl **self, bool abort)
{
    sli_nccl *dead = *self;
    *self = NULL;
    if (!dead)
        return;
    if (sli_cuda_enter(dead->device) == SL_OK) {
        if (dead->comm)
            (void)(abort ? dead->library.CommAbort(dead->comm)
                         : dead->library.CommDestroy(dead->comm));
        if (dead->stream) {
            (void)cudaStreamSynchronize(dead->stream); /* what read the memory has ended */
            (void)cudaStreamDestroy(dead->stream);
        }
    }
    free(dead);
}

static sl_status join_communicator(sli_nccl *self, const char *id, int rank, int size)
{
    ncclUniqueId name;
    ncclConfig_t config = {.size = sizeof config,
                           .magic = NCCL_CONFIG_MAGIC,
                           .version = NCCL_LEAST_VERSION,
                           .blocking = 0,
                           .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                           .minCTAs = NCCL_CONFIG_UNDEF_INT,
                           .maxCTAs = NCCL_CONFIG_UNDEF_INT,
                           .splitShare = NCCL_CONFIG_UNDEF_INT};
    memcpy(name.internal, id, SLI_NCCL_ID_BYTES);
    SL_TRY(sli_cuda_enter(self->device));
    SL_TRY(open_library(self->device, &self->library));
    SLI_CUDA_TRY(self->device, "create a stream",
                 cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking));
    return check_call(self, "create a communicator",
                      self->library.CommInitRankConfig(&self->comm, size, name, rank, &config));
}

static sl_status create_communicator(sl_device *device, const char id[SLI_NCCL_ID_BYTES], int rank,
                                     int size, bool ranks_are_threads, sli_nccl **out)
{
    *out = NULL;
    if (ranks_are_threads)
        SL_TRY(sli_cuda_pool_open(device));
    sli_nccl *self = *out = calloc(1, sizeof *self);
    if (!self)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a communicator", device->name);
    self->device = device;
    sl_status status = join_communicator(self, id, rank, size);
    if (status != SL_OK)
        destroy_communicator(out, true);
    return status;
}

static sl_status finalize_communicator(sli_nccl *self)
{
    SL_TRY(sli_cuda_enter(self->device));
    return check_call(self, "leave", self->library.CommFinalize(self->comm));
}

/* ---- Operations ------------------------------------------------------------------------- */

static sl_status begin_operation(sli_nccl *self)
{
    SL_TRY(sli_cuda_enter(self->device));
    return sli_cuda_check(self->device, "wait for the device",
                          sli_cuda_wait_for_stream(self->stream, sli_cuda(self->device)->stream));
}

static ncclResult_t queue_move(const sli_nccl *self, const sli_move *m)
{
    return m->receives
               ? self->library.Recv(m->data, m->bytes, ncclUint8, m->peer, self->comm, self->stream)
               : self->library.Send(m->data, m->bytes, ncclUint8, m->peer, self->comm,
                                    self->stream);
}

static sl_status queue_moves(sli_nccl *self, const sli_move *moves, int count)
{
    SL_TRY(sli_cuda_enter(self->device));
    ncclResult_t code = self->library.GroupStart();
    for (int i = 0; i < count && (code == ncclSuccess || code == ncclInProgress); i++)
        code = queue_move(self, &moves[i]);
    ncclResult_t ended = self->library.GroupEnd();
    return check_call(self, "move data",
                      code == ncclSuccess || code == ncclInProgress ? ended : code);
}

static sl_status queue_broadcast(sli_nccl *self, void *data, size_t bytes, int root)
{
    SL_TRY(sli_cuda_enter(self->device));
    return check_call(self, "broadcast",
                      self->library.Broadcast(data, data, bytes, ncclUint8, root, self->comm,
                                              self->stream));
}

static sl_status queue_all_gather(sli_nccl *self, const void *in, void *out, size_t bytes)
{
    SL_TRY(sli_cuda_enter(self->device));
    return check_call(self, "all_gather",
                      self->library.AllGather(in, out, bytes, ncclUint8, self->comm, self->stream));
}

static sl_status queue_copy(sli_nccl *self, void *to, const void *from, size_t bytes)
{
    SL_TRY(sli_cuda_enter(self->device));
    return sli_cuda_check(self->device, "copy",
                          cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, self->stream));
}

static sl_status queue_combine(sli_nccl *self, const sli_combine *arguments)
{
    SL_TRY(sli_cuda_enter(self->device));
    return sli_cuda_check(self->device, "combine", sli_launch_combine(arguments, self->stream));
}

/* ---- Progress --------------------------------------------------------------------------- */

static sl_status is_queued(sli_nccl *self, bool *out)
{
    ncclResult_t state;
    SL_TRY(sli_cuda_enter(self->device));
    ncclResult_t code = self->library.CommGetAsyncError(self->comm, &state);
    *out = code == ncclSuccess && state == ncclSuccess;
    return check_call(self, "communicate", code == ncclSuccess ? state : code);
}

static sl_status is_finished(sli_nccl *self, bool *out)
{
    SL_TRY(is_queued(self, out)); /* an error of another rank shows here */
    if (!*out)
        return SL_OK;
    cudaError_t code = cudaStreamQuery(self->stream);
    *out = code == cudaSuccess;
    if (code == cudaErrorNotReady)
        (void)cudaGetLastError(); /* or the next launch reports it */
    return code == cudaErrorNotReady ? SL_OK : sli_cuda_check(self->device, "communicate", code);
}

const sli_nccl_ops sli_cuda_nccl = {
    .name = name_communicator,
    .create = create_communicator,
    .begin = begin_operation,
    .move = queue_moves,
    .broadcast = queue_broadcast,
    .all_gather = queue_all_gather,
    .copy = queue_copy,
    .combine = queue_combine,
    .is_queued = is_queued,
    .is_finished = is_finished,
    .finalize = finalize_communicator,
    .destroy = destroy_communicator,
};
