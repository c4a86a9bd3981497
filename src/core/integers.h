/* Arithmetic of sizes. */
#ifndef SLI_CORE_INTEGERS_H
#define SLI_CORE_INTEGERS_H

#include <stdint.h>

static inline int64_t sli_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t sli_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t sli_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
