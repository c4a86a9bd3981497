/* The memory that this process can have, and how much of it it has reserved.
 *
 * Linux promises more memory than there is, and kills a process that then uses it. Allocations that
 * cannot fit are refused here, while an error can still be returned. */
#ifndef SLI_CORE_USABLE_MEMORY_H
#define SLI_CORE_USABLE_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The machine's memory and swap, or less where a control group says so (core/cgroup.h). Memory of
 * other processes is not subtracted. `root` is "" except in tests. */
uint64_t sli_usable_memory(const char *root);

/* What processes can still have of the machine's memory and swap, as the kernel estimates it:
 * without the pages of the others. UINT64_MAX where that cannot be read. */
uint64_t sli_available_memory(const char *root);

/* Bytes of the process's pages in memory that are not a file's; 0 where that cannot be read. */
uint64_t sli_resident_memory(void);
/* And those that are: code, and files that are mapped. */
uint64_t sli_resident_files(void);
/* Both. */
uint64_t sli_resident_memory_with_files(void);

/* A limit that several allocators share. */
typedef struct sli_memory_bound {
    uint64_t usable_bytes;
    _Atomic uint64_t reserved_bytes; /* by them, touched or not, and what was in use before */
} sli_memory_bound;

void sli_memory_bound_init(sli_memory_bound *bound);

/* False where `bytes` more do not fit, or other processes have left less: nothing is reserved then.
 * Any thread may call. */
bool sli_memory_bound_reserve(sli_memory_bound *bound, size_t bytes);
void sli_memory_bound_release(sli_memory_bound *bound, size_t bytes);

#endif
