/* What stages need of tensors beyond the public functions. */
#ifndef SLI_TENSOR_TENSOR_H
#define SLI_TENSOR_TENSOR_H

#include "core/file.h"
#include "device/device.h"
#include "sluice/tensor.h"

/* Puts a handle on another device, which must reach the same memory (as all CPU devices do): the
 * other device's kernels work on it from now on. Nothing is copied. If it is the storage's only
 * handle, its bytes count on that device from now on; the memory itself goes back to the device
 * that it came from, with its last handle. */
void sli_tensor_hand_over(sl_tensor *tensor, sl_device *to);

/* How a tensor gets from one device's thread to another's: the first calls send, passes the handle
 * on, and the other calls receive. Between devices that reach the host's memory, send hands it over
 * and receive does nothing; else receive replaces it by a copy. The tensor's content must not
 * change after send. Errors of receive: the copy's; then the tensor is destroyed and NULL. */
void sli_tensor_send(sl_tensor *tensor, sl_device *to);
sl_status sli_tensor_receive(sl_tensor **tensor, sl_device *to);

/* Both, on one thread. */
sl_status sli_tensor_move(sl_tensor **tensor, sl_device *to);

/* target += source, of as many f32 elements; `source` may be on another device. */
sl_status sli_tensor_add(sl_tensor *target, const sl_tensor *source);

/* The tensor's elements for work on the host (device.h). */
sl_status sli_tensor_open_host(const sl_tensor *tensor, bool reads, sli_host_array *out);
sl_status sli_tensor_close_host(sl_tensor *tensor, sli_host_array *host, bool writes);

/* Does the host know, without waiting for a device, that all elements of an i32 tensor are in
 * 0 .. count - 1? It does where it wrote them itself, to memory that it does not reach. */
bool sli_tensor_is_below(const sl_tensor *tensor, int64_t count);

/* Replaces the tensor's memory by `memory` of a file's map, which is held: of every handle on its
 * storage, all of which the tensor must be. The content that it had is lost. The host must reach
 * the device's memory; no other thread may use a handle meanwhile. The bytes count on no device. */
void sli_tensor_map(sl_tensor *tensor, sli_file_map *map, void *memory);

/* Has the tensor's storage another handle? */
bool sli_tensor_is_shared(const sl_tensor *tensor);

/* target = source, of as many elements, in f32 or bf16 (see sli_convert). */
sl_status sli_tensor_convert(const sl_tensor *source, sl_tensor *target);

/* The elements of a tensor of this data type; NULL for another one, and for no tensor. */
float *sli_tensor_if_f32(const sl_tensor *tensor);
uint16_t *sli_tensor_if_bf16(const sl_tensor *tensor);

/* A copy in another data type. */
sl_status sli_tensor_as(const sl_tensor *tensor, sl_dtype dtype, sl_memory_category category,
                        sl_tensor **out);

/* A view of rows `start` to `start + length - 1` of dimension 0. Errors: SL_ERR_INVALID for a
 * scalar and for rows that `tensor` does not have; SL_ERR_MEMORY. */
sl_status sli_tensor_narrow(const sl_tensor *tensor, int64_t start, int64_t length,
                            sl_tensor **out);

/* Replaces a tensor [N, T, …] by a copy [N, columns, …], of each row's from `first` on; one with T
 * = columns stays as it is. Errors: SL_ERR_INVALID for other shapes, SL_ERR_MEMORY. */
sl_status sli_tensor_trim(sl_tensor **tensor, int64_t first, int64_t columns);

size_t sli_tensor_bytes(const sl_tensor *tensor);

/* Sets every byte to 0. Errors: what the device reports. */
sl_status sli_tensor_zero(sl_tensor *tensor);

#endif
