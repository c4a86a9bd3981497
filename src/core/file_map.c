/* Files in memory. The pages are the system's own copy of the file until somebody writes to them.
 */
#define _GNU_SOURCE /* MADV_POPULATE_READ */

#include "core/file.h"

#include "core/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct sli_file_map {
    atomic_int holders;
    char *bytes;
    size_t size;
};

/* Hardly any page is ever written, so none is counted as memory that the process needs: a file may
 * be larger than the memory. */
sli_file_map *sli_file_map_create(int descriptor, uint64_t size)
{
    sli_file_map *map = malloc(sizeof *map);
    if (!map)
        return NULL;
    void *bytes =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
    if (bytes == MAP_FAILED) {
        free(map);
        return NULL;
    }
    *map = (sli_file_map){.bytes = bytes, .size = size};
    atomic_init(&map->holders, 1);
    return map;
}

char *sli_file_map_bytes(const sli_file_map *map)
{
    return map->bytes;
}

sl_status sli_file_map_load(const sli_file_map *map, const char *path, uint64_t offset,
                            uint64_t bytes)
{
#ifdef MADV_POPULATE_READ
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), before = offset % page;
    if (madvise(map->bytes + (offset - before), bytes + before, MADV_POPULATE_READ) == 0 ||
        errno == EINVAL) /* Linux before 5.14: pages come when they are touched */
        return SL_OK;
    if (errno != EFAULT)
        return sli_io_error(path, "cannot be read");
    return sl_error(SL_ERR_IO,
                    "%s: its %" PRIu64 " bytes from byte %" PRIu64
                    " cannot be read: it has become shorter, or its disk has an error",
                    path, bytes, offset);
#else
    return SL_OK;
#endif
}

sli_file_map *sli_file_map_hold(sli_file_map *map)
{
    atomic_fetch_add_explicit(&map->holders, 1, memory_order_relaxed);
    return map;
}

void sli_file_map_release(sli_file_map **map)
{
    sli_file_map *held = *map;
    *map = NULL;
    if (!held || atomic_fetch_sub_explicit(&held->holders, 1, memory_order_acq_rel) > 1)
        return;
    munmap(held->bytes, held->size);
    free(held);
}
