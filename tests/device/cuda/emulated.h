/* A device whose kernels are those of a CUDA device, run on the CPU (cuda_runtime_api.h); its
 * products and copies are a CPU device's. */
#ifndef TESTS_DEVICE_CUDA_EMULATED_H
#define TESTS_DEVICE_CUDA_EMULATED_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

sl_status emulated_device_create(sl_device **out);

/* Every launch draws the order in which threads run from numbers that begin with the seed. */
void emulation_seed(uint64_t seed);

/* The numbers of the threads of several blocks, in the order in which they run. */
enum { RECORDED_THREADS = 5 * 96 };
void record_threads(unsigned *out);

/* Each runs a small kernel, with a barrier that it needs or without, and returns true if its result
 * is wrong: a value is read before it is written, or written again before it is read. */
bool race_before_reading(bool with_barrier);
bool race_before_writing(bool with_barrier);

/* The multipliers of four elements of a row of `columns`, as kernels compute them. */
void emulated_mask(const sli_dropout *dropout, int64_t columns, int64_t row, int64_t column,
                   float mask[4]);

/* Reads shared memory that no thread of the block has written. */
bool shared_memory_begins_as_nan(void);

/* Runs a kernel whose threads wait for others of their warp, or of the block, that do not come. */
void deadlock(bool by_warp);

#ifdef __cplusplus
}
#endif

#endif
