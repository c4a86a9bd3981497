/* The memory that this process can have, and what it has taken of it.
 *
 * Linux promises more memory than there is, and kills who then uses it. What cannot fit is refused
 * here, while an error can still be given. */
#ifndef SLI_CORE_USABLE_MEMORY_H
#define SLI_CORE_USABLE_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The machine's memory and swap, or less where a control group says so (core/cgroup.h). What other
 * processes hold is not subtracted. `root` is "" but in tests. */
uint64_t sli_usable_memory(const char *root);

/* The process's pages in memory that are no file's; 0 where the system does not tell. */
uint64_t sli_resident_memory(void);

/* What several allocators may take together. */
typedef struct sli_memory_bound {
    uint64_t usable_bytes;
    _Atomic uint64_t taken_bytes; /* by them, whether touched or not, and before them */
} sli_memory_bound;

void sli_memory_bound_init(sli_memory_bound *bound);

/* False, and nothing taken, where `bytes` more do not fit. Any thread may call. */
bool sli_memory_bound_take(sli_memory_bound *bound, size_t bytes);
void sli_memory_bound_give(sli_memory_bound *bound, size_t bytes);

#endif
