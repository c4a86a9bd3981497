/* Names of data types, in errors. */
#ifndef SLI_CORE_DTYPE_H
#define SLI_CORE_DTYPE_H

#include "sluice/dtype.h"

/* "f32", "f64", "i32", "i64", "bf16", "f16". */
const char *sli_dtype_name(sl_dtype dtype);

#endif
