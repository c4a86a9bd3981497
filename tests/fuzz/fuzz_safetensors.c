/* Any bytes as a safetensors file: opening must end in a checked table or in one sentence, and
 * what was opened must be readable, and writable again with the same tensors. */
#define _GNU_SOURCE /* memfd_create */

#include "fuzz/fuzz.h"

#include "io/safetensors/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Puts the bytes into a file in memory and its path into `path`. */
static int make_file(const uint8_t *data, size_t bytes, char path[32])
{
    int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    demand(descriptor >= 0 && write(descriptor, data, bytes) == (ssize_t)bytes, "a file in memory");
    snprintf(path, 32, "/proc/self/fd/%d", descriptor);
    return descriptor;
}

/* Reads the tensors; items [*count], to be freed with their data, are those that can be written. */
static sl_safetensors_item *read_all(const sli_safetensors_reader *reader, size_t file_bytes,
                                     size_t *count)
{
    sl_safetensors_item *items = calloc(sli_safetensors_count(reader) + 1, sizeof *items);
    demand(items != NULL, "memory");
    *count = 0;
    for (size_t i = 0; i < sli_safetensors_count(reader); i++) {
        const sl_safetensors_info *info = sli_safetensors_get(reader, i);
        demand(info->bytes <= file_bytes, "a tensor inside the file");
        demand(sli_safetensors_find(reader, info->name) == info, "found by its name");
        char *memory = malloc(info->bytes + 1);
        demand(memory != NULL, "memory");
        sl_status status = sli_safetensors_read(reader, info, memory);
        demand((status == SL_OK) == info->readable, "readable as announced");
        if (!info->readable || info->dims > SL_MAX_DIMS) {
            free(memory);
            continue;
        }
        sl_safetensors_item *item = &items[(*count)++];
        *item = (sl_safetensors_item){info->name, info->dtype, {info->dims, {0}}, memory};
        for (int d = 0; d < info->dims; d++)
            item->shape.size[d] = info->size[d];
    }
    return items;
}

/* Writes the tensors to a new file, and compares them with what is read from it. */
static void write_again(const sl_safetensors_item *items, size_t count)
{
    char path[64];
    sli_safetensors_reader *reader;
    snprintf(path, sizeof path, "/dev/shm/fuzz_safetensors.%d", (int)getpid());
    demand(sl_safetensors_save(path, items, count, NULL, 0) == SL_OK, "written again");
    demand(sli_safetensors_open(path, &reader) == SL_OK, "read again");
    demand(unlink(path) == 0, "removed");
    demand(sli_safetensors_count(reader) == count, "as many tensors");
    for (size_t i = 0; i < count; i++) {
        const sl_safetensors_info *info = sli_safetensors_find(reader, items[i].name);
        demand(info && info->dtype == items[i].dtype, "there");
        char *memory = malloc(info->bytes + 1);
        demand(memory && sli_safetensors_read(reader, info, memory) == SL_OK, "read");
        demand(memcmp(memory, items[i].data, info->bytes) == 0, "the same");
        free(memory);
    }
    sli_safetensors_close(&reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[32];
    int descriptor = make_file(data, bytes, path);
    sli_safetensors_reader *reader;
    sl_status status = sli_safetensors_open(path, &reader);
    demand(status == SL_OK || status == SL_ERR_FORMAT, "accepted or refused for its format");
    if (status == SL_OK) {
        size_t count;
        sl_safetensors_item *items = read_all(reader, bytes, &count);
        write_again(items, count);
        for (size_t i = 0; i < count; i++)
            free(items[i].data);
        free(items);
    }
    sli_safetensors_close(&reader);
    close(descriptor);
    return 0;
}
