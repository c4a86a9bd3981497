/* Memory whose large blocks lie in huge pages. */
#ifndef SLI_CORE_HUGE_PAGES_H
#define SLI_CORE_HUGE_PAGES_H

#include <stddef.h>

/* Blocks of 2 MiB and more are aligned to that and asked to be huge pages: who touches all of them
 * has one fault and one TLB entry for each 2 MiB instead of 4 KiB. Smaller ones are aligned to 64
 * bytes. NULL: no memory. free() takes it back. */
void *sli_huge_pages_alloc(size_t bytes);

#endif
