/* How operations are cut into ranges: by their shapes alone, never by the number of threads (but
 * for products by AMX, whose panels do not change the bits). */
#ifndef SLI_DEVICE_CPU_RANGES_H
#define SLI_DEVICE_CPU_RANGES_H

#include "core/integers.h"

#include <stdbool.h>

/* Elements that are worth handing to another thread: some 64 KiB, a few microseconds of work. */
enum { SLI_RANGE_ELEMENTS = 16384 };

typedef struct sli_ranges {
    int64_t total, size, count; /* `count` ranges of `size`; the last one has what remains */
} sli_ranges;

typedef struct sli_range {
    int64_t first, count;
} sli_range;

static inline sli_ranges sli_ranges_of(int64_t total, int64_t size)
{
    sli_ranges ranges = {total, size, sli_divide_up(total, size)};
    return ranges;
}

/* About total / size even ranges, their size rounded to a multiple of `grain`. */
static inline sli_ranges sli_ranges_near(int64_t total, int64_t size, int64_t grain)
{
    int64_t count = sli_larger(1, (total + size / 2) / size);
    int64_t rounded = sli_larger(grain, (total / count + grain / 2) / grain * grain);
    sli_ranges ranges = {total, rounded, sli_smaller(count, sli_divide_up(total, rounded))};
    return ranges;
}

/* Rows of `width` elements, in even ranges of about SLI_RANGE_ELEMENTS elements. */
static inline sli_ranges sli_ranges_of_rows(int64_t rows, int64_t width)
{
    int64_t most = sli_larger(1, SLI_RANGE_ELEMENTS / sli_larger(1, width));
    int64_t count = sli_larger(1, sli_divide_up(rows, most));
    return sli_ranges_of(rows, sli_larger(1, sli_divide_up(rows, count)));
}

/* At most `most` ranges of at least SLI_RANGE_ELEMENTS elements, sizes multiples of 64. */
static inline sli_ranges sli_ranges_of_elements(int64_t elements, int64_t most)
{
    int64_t size = sli_larger(SLI_RANGE_ELEMENTS, sli_divide_up(elements, most));
    return sli_ranges_of(elements, sli_divide_up(size, 64) * 64);
}

static inline sli_range sli_range_at(const sli_ranges *ranges, int64_t index)
{
    int64_t first = index * ranges->size;
    bool last = index == ranges->count - 1;
    sli_range range = {first, last ? ranges->total - first : ranges->size};
    return range;
}

#endif
