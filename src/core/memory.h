/* Memory: arrays that grow, huge pages, and amounts as text. */
#ifndef SLI_CORE_MEMORY_H
#define SLI_CORE_MEMORY_H

#include "sluice/status.h"

#include <stddef.h>
#include <stdint.h>

/* Makes room for `count` elements in an array that grows by doubling: `array` is the address of the
 * pointer to it, *capacity how many elements it has room for; both begin as NULL and 0. `max` is
 * the most elements that there can be, `what` what they are called ("files"). The array is
 * unchanged after an error: SL_ERR_UNSUPPORTED (more than `max`), SL_ERR_MEMORY. */
sl_status sli_array_reserve(void *array, size_t *capacity, size_t count, size_t element_bytes,
                            size_t max, const char *what);

/* Blocks of 2 MiB and more are aligned to that and asked to be huge pages: they cost one
 * fault and one TLB entry for each 2 MiB instead of 4 KiB. Smaller ones are aligned to
 * 64 bytes. NULL: no memory. free() takes it back. */
void *sli_huge_pages_alloc(size_t bytes);

/* Makes all of such a block zero, without touching more pages than it must: the system gives others
 * as zeros when they are touched. */
void sli_huge_pages_clear(void *block, size_t bytes);

/* "1.25 GiB", "3.50 MiB", "10 B": the amount for an error's text. Returns `text`. */
enum { SLI_BYTES_TEXT_SIZE = 24 };
const char *sli_bytes_text(int64_t bytes, char text[SLI_BYTES_TEXT_SIZE]);

#endif
