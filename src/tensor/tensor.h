/* What stages need of tensors beyond the public functions. */
#ifndef SLI_TENSOR_TENSOR_H
#define SLI_TENSOR_TENSOR_H

#include "sluice/tensor.h"

/* Puts a handle on another device, which must reach the same memory (as all CPU devices do): the
 * other device's kernels work on it from now on. Nothing is copied. If it is the storage's only
 * handle, its bytes count on that device from now on; the memory itself goes back to the device
 * that it came from, with its last handle. */
void sli_tensor_hand_over(sl_tensor *tensor, sl_device *to);

/* Has the tensor's storage another handle? */
bool sli_tensor_is_shared(const sl_tensor *tensor);

/* to = from, of as many elements, in f32 or bf16 (see sli_convert). */
sl_status sli_tensor_convert(const sl_tensor *from, sl_tensor *to);

/* A copy in another data type. */
sl_status sli_tensor_as(const sl_tensor *tensor, sl_dtype dtype, sl_memory_category category,
                        sl_tensor **out);

#endif
