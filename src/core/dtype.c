#include "sluice/dtype.h"
#include "core/dtype.h"

const char *const sl_precision_names[] = {"f32", "bf16", "tf32", NULL};

const char *sli_dtype_name(sl_dtype dtype)
{
    static const char *const names[] = {"f32", "f64", "i32", "i64", "bf16", "f16"};
    return names[dtype];
}

size_t sl_dtype_bytes(sl_dtype dtype)
{
    static const size_t bytes[] = {4, 8, 4, 8, 2, 2};
    return bytes[dtype];
}
