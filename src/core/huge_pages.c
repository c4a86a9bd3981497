#include "core/huge_pages.h"

#include <stdlib.h>
#include <sys/mman.h>

static const size_t huge_page = (size_t)2 << 20, cache_line = 64;

void *sli_huge_pages_alloc(size_t bytes)
{
    void *block;
    if (posix_memalign(&block, bytes >= huge_page ? huge_page : cache_line, bytes) != 0)
        return NULL;
    if (bytes >= huge_page)
        madvise(block, bytes, MADV_HUGEPAGE); /* refused: small pages, slower */
    return block;
}
