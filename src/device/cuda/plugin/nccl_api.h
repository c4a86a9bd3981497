/* What sluice calls of NCCL, which is opened at run time: the names, numbers and structs of nccl.h,
 * which are the same in every version since 2.18. */
#ifndef SLI_DEVICE_CUDA_PLUGIN_NCCL_API_H
#define SLI_DEVICE_CUDA_PLUGIN_NCCL_API_H

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stddef.h>

enum { NCCL_LEAST_VERSION = 21800, NCCL_CONFIG_UNDEF_INT = INT_MIN };
#define NCCL_CONFIG_MAGIC 0xcafebeefu

typedef struct ncclComm *ncclComm_t;
typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t; /* others are errors */
typedef enum { ncclUint8 = 1 } ncclDataType_t;

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

/* As of 2.18; later versions add fields, and go by `size` and `version`. */
typedef struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

typedef struct sli_nccl_library {
    ncclResult_t (*GetVersion)(int *version);
    ncclResult_t (*GetUniqueId)(ncclUniqueId *id);
    ncclResult_t (*CommInitRankConfig)(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                       ncclConfig_t *config);
    ncclResult_t (*CommFinalize)(ncclComm_t comm);
    ncclResult_t (*CommDestroy)(ncclComm_t comm);
    ncclResult_t (*CommAbort)(ncclComm_t comm);
    ncclResult_t (*CommGetAsyncError)(ncclComm_t comm, ncclResult_t *state);
    const char *(*GetErrorString)(ncclResult_t code);
    const char *(*GetLastError)(ncclComm_t comm);
    ncclResult_t (*GroupStart)(void);
    ncclResult_t (*GroupEnd)(void);
    ncclResult_t (*Send)(const void *data, size_t count, ncclDataType_t type, int to,
                         ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*Recv)(void *data, size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                         cudaStream_t stream);
    ncclResult_t (*Broadcast)(const void *in, void *out, size_t count, ncclDataType_t type,
                              int root, ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*AllGather)(const void *in, void *out, size_t count, ncclDataType_t type,
                              ncclComm_t comm, cudaStream_t stream);
} sli_nccl_library;

#endif
