/* Allocating memory: arrays that grow, huge pages, and how much memory there is. */
#ifndef SLI_CORE_MEMORY_H
#define SLI_CORE_MEMORY_H

#include "sluice/status.h"

#include <stdatomic.h>
#include <stdbool.h>
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

/* ---- How much there is ---------------------------------------------------------------- */

/* Linux promises more memory than there is, and kills a process that then uses it. Allocations that
 * cannot fit are refused here, while an error can still be returned. */

/* The machine's memory and swap, or less where a control group says so (core/cgroup.h). Memory of
 * other processes is not subtracted. `root` is "" except in tests. */
uint64_t sli_usable_memory(const char *root);

/* Bytes of the process's pages in memory that are not a file's; 0 where that cannot be read. */
uint64_t sli_resident_memory(void);

/* A limit that several allocators share. */
typedef struct sli_memory_bound {
    uint64_t usable_bytes;
    _Atomic uint64_t reserved_bytes; /* by them, touched or not, and what was in use before */
} sli_memory_bound;

void sli_memory_bound_init(sli_memory_bound *bound);

/* False where `bytes` more do not fit: nothing is reserved then. Any thread may call. */
bool sli_memory_bound_reserve(sli_memory_bound *bound, size_t bytes);
void sli_memory_bound_release(sli_memory_bound *bound, size_t bytes);

#endif
