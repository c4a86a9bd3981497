/* Tensors: a shape and a data type over storage on a device.
 *
 * A tensor is a handle; several handles may view one storage, and the storage is freed with its
 * last handle. Every tensor is dense in row-major order, views included: its elements lie one after
 * the other. A handle belongs to one thread at a time; storage may be shared between threads. */
#ifndef SLUICE_TENSOR_H
#define SLUICE_TENSOR_H

#include "sluice/device.h"
#include "sluice/dtype.h"

SL_API_BEGIN

enum { SL_MAX_DIMS = 4 };

typedef struct sl_tensor sl_tensor;

typedef struct sl_shape {
    int dims; /* 0 (a scalar) to SL_MAX_DIMS */
    int64_t size[SL_MAX_DIMS];
} sl_shape;

/* Shapes from their sizes: sl_shape_2d(20, 35) is [20, 35]. */
sl_shape sl_shape_1d(int64_t a);
sl_shape sl_shape_2d(int64_t a, int64_t b);
sl_shape sl_shape_3d(int64_t a, int64_t b, int64_t c);
int64_t sl_shape_count(const sl_shape *shape); /* of elements */
bool sl_shape_equal(const sl_shape *a, const sl_shape *b);

enum { SL_SHAPE_TEXT_BYTES = 96 };
/* Writes "[20, 35]" to `text`, which holds SL_SHAPE_TEXT_BYTES, and returns it. */
const char *sl_shape_text(const sl_shape *shape, char *text);

/* A new tensor with undefined content. Errors: SL_ERR_MEMORY; SL_ERR_INVALID for a negative size
 * and for more elements than can be counted. */
sl_status sl_tensor_create(sl_device *device, sl_memory_category category, sl_dtype dtype,
                           const sl_shape *shape, sl_tensor **out);

/* As sl_tensor_create, with every byte 0. Errors: also what the device reports. */
sl_status sl_tensor_create_zero(sl_device *device, sl_memory_category category, sl_dtype dtype,
                                const sl_shape *shape, sl_tensor **out);

/* Another tensor on the same storage, with the same shape. Errors: SL_ERR_MEMORY. */
sl_status sl_tensor_alias(const sl_tensor *tensor, sl_tensor **out);

/* A view with another shape, starting `offset` elements after the first of `tensor`. Errors:
 * SL_ERR_INVALID where it would end behind `tensor`; SL_ERR_MEMORY. */
sl_status sl_tensor_view(const sl_tensor *tensor, int64_t offset, const sl_shape *shape,
                         sl_tensor **out);

/* Frees the handle, and the storage with its last handle. */
void sl_tensor_destroy(sl_tensor **tensor);

const sl_shape *sl_tensor_shape(const sl_tensor *tensor);
sl_dtype sl_tensor_dtype(const sl_tensor *tensor);
sl_device *sl_tensor_device(const sl_tensor *tensor);
int64_t sl_tensor_count(const sl_tensor *tensor);

/* Sizes as a matrix: the last dimension is its columns, all others together its rows. A scalar
 * has one row and one column. */
int64_t sl_tensor_rows(const sl_tensor *tensor);
int64_t sl_tensor_columns(const sl_tensor *tensor);

/* The first element's address, on the tensor's device. The typed ones assert the data type. */
void *sl_tensor_data(const sl_tensor *tensor);
float *sl_tensor_f32(const sl_tensor *tensor);
int32_t *sl_tensor_i32(const sl_tensor *tensor);

/* Copies between tensors of equal shape and data type, or between a tensor and host memory of as
 * many bytes. Errors: SL_ERR_INVALID naming both shapes; what the device reports when it fails,
 * after which the target's content is undefined. */
sl_status sl_tensor_copy(sl_tensor *target, const sl_tensor *source);
sl_status sl_tensor_write(sl_tensor *tensor, const void *host);
sl_status sl_tensor_read(const sl_tensor *tensor, void *host);

SL_API_END

#endif
