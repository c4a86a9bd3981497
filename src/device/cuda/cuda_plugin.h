/* The border between the library and sluice_cuda.so, which has all code that calls CUDA
 * (cuda/plugin/, cuda/kernels/). The library opens it when a device of the kind is wanted. */
#ifndef SLI_DEVICE_CUDA_CUDA_PLUGIN_H
#define SLI_DEVICE_CUDA_CUDA_PLUGIN_H

#include "device/device_base.h"

/* What the shared object uses of the library. */
typedef struct sli_cuda_host {
    const char *(*version)(void); /* both are of one version */
    sl_status (*set_error)(sl_status status, const char *text);
    void (*init_device)(sl_device *device, const sli_device_ops *ops, const char *name);
    void (*finish_device)(sl_device *device);
    sl_status (*out_of_memory)(sl_device *device, const char *what, size_t bytes);
} sli_cuda_host;

typedef struct sli_cuda_plugin {
    /* How many GPUs there are. */
    sl_status (*count)(int *out);
    /* A device on a GPU, with streams and memory of its own. With `fill`, memory is filled with
     * NaN when it is handed out. Errors: SL_ERR_NOT_FOUND for a GPU that the machine lacks. */
    sl_status (*create)(const char *name, int gpu, bool fill, sl_device **out);
} sli_cuda_plugin;

/* NULL: the library is of another version. `host` is kept. */
typedef const sli_cuda_plugin *sli_cuda_entry(const sli_cuda_host *host);
#define SLI_CUDA_SYMBOL "sli_cuda_open"

#endif
