#define _GNU_SOURCE /* MADV_HUGEPAGE */

#include "core/memory.h"
#include "core/error.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t huge_page = (size_t)2 << 20, cache_line = 64;
enum { FIRST_CAPACITY = 16 };

sl_status sli_array_reserve(void *array, size_t *capacity, size_t count, size_t element_bytes,
                            size_t max, const char *what)
{
    size_t room = *capacity ? *capacity : FIRST_CAPACITY;
    void *old, *grown;
    if (count <= *capacity)
        return SL_OK;
    if (count > max)
        return sl_error(SL_ERR_UNSUPPORTED, "there can be at most %zu %s", max, what);
    while (room < count)
        room = room <= max / 2 ? 2 * room : max;
    memcpy(&old, array, sizeof old);
    grown = room <= SIZE_MAX / element_bytes ? realloc(old, room * element_bytes) : NULL;
    if (!grown)
        return sli_no_memory(NULL, "%zu %s", room, what);
    memcpy(array, &grown, sizeof grown);
    *capacity = room;
    return SL_OK;
}

void *sli_huge_pages_alloc(size_t bytes)
{
    void *block;
    if (posix_memalign(&block, bytes >= huge_page ? huge_page : cache_line, bytes) != 0)
        return NULL;
    if (bytes >= huge_page)
        madvise(block, bytes, MADV_HUGEPAGE); /* refused: small pages, slower */
    return block;
}

void sli_huge_pages_clear(void *block, size_t bytes)
{
    size_t pages = bytes / huge_page * huge_page;
    if (pages > 0 && madvise(block, pages, MADV_DONTNEED) != 0)
        pages = 0;
    memset((char *)block + pages, 0, bytes - pages);
}

const char *sli_bytes_text(int64_t bytes, char text[SLI_BYTES_TEXT_SIZE])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    enum { LARGEST = sizeof units / sizeof *units - 1 };
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < LARGEST; unit++)
        value /= 1024;
    snprintf(text, SLI_BYTES_TEXT_SIZE, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}
