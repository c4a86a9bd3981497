/* The types of a tensor's elements, and how they are multiplied and reduced. */
#ifndef SLUICE_DTYPE_H
#define SLUICE_DTYPE_H

#include "sluice/status.h"

SL_API_BEGIN

/* F16 is a type of numbers in files: sluice reads them, and computes nothing with them. */
typedef enum sl_dtype { SL_F32, SL_F64, SL_I32, SL_I64, SL_BF16, SL_F16 } sl_dtype;

/* The bytes of an element. */
size_t sl_dtype_bytes(sl_dtype dtype);

/* In what matrix products are computed. BF16: their matrices are bf16 and their sums f32; what
 * forward keeps for backward and what modules pass on to each other is bf16. TF32: products round
 * the numbers of their f32 matrices to 11 bits, and sums are f32; only GPUs have them. All else is
 * f32. */
typedef enum sl_precision { SL_PRECISION_F32, SL_PRECISION_BF16, SL_PRECISION_TF32 } sl_precision;

extern const char *const sl_precision_names[]; /* "f32", "bf16", "tf32", NULL */

/* What a reduction over ranks makes of their elements (sluice/group.h). */
typedef enum sl_reduce_op {
    SL_REDUCE_SUM,
    SL_REDUCE_AVERAGE, /* floating-point types only */
    SL_REDUCE_PRODUCT,
    SL_REDUCE_MIN,
    SL_REDUCE_MAX
} sl_reduce_op;

SL_API_END

#endif
