/* Any bytes as a safetensors file: opening must end in a checked table or in one sentence, and
 * what was opened must be readable, and writable again with the same tensors. */
#define _GNU_SOURCE /* memfd_create */

#include "io/safetensors/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_safetensors: not %s; the last error: %s\n", what, sl_error_text());
    abort();
}

/* Puts the bytes into a file in memory and its path into `path`. */
static int make_file(const uint8_t *data, size_t bytes, char path[32])
{
    int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    demand(descriptor >= 0 && write(descriptor, data, bytes) == (ssize_t)bytes, "a file in memory");
    snprintf(path, 32, "/proc/self/fd/%d", descriptor);
    return descriptor;
}

static void read_all(const sl_safetensors_reader *reader, size_t file_bytes)
{
    for (size_t i = 0; i < sl_safetensors_count(reader); i++) {
        const sl_safetensors_info *info = sl_safetensors_get(reader, i);
        demand(info->bytes <= file_bytes, "a tensor inside the file");
        demand(sl_safetensors_find(reader, info->name) == info, "found by its name");
        char *memory = malloc(info->bytes + 1);
        demand(memory != NULL, "memory");
        sl_status status = sl_safetensors_read(reader, info, memory);
        demand((status == SL_OK) == info->readable, "readable as announced");
        free(memory);
    }
}

/* Lays the tensors out for a new file and reads that file's header. */
static void write_again(const sl_safetensors_reader *reader)
{
    size_t count = 0;
    sl_safetensors_item *items = calloc(sl_safetensors_count(reader) + 1, sizeof *items);
    demand(items != NULL, "memory");
    for (size_t i = 0; i < sl_safetensors_count(reader); i++) {
        const sl_safetensors_info *info = sl_safetensors_get(reader, i);
        if (!info->readable || info->dims > SL_MAX_DIMS)
            continue;
        items[count] = (sl_safetensors_item){info->name, info->dtype, {info->dims, {0}}, NULL};
        for (int d = 0; d < info->dims; d++)
            items[count].shape.size[d] = info->size[d];
        count++;
    }
    sli_safetensors_layout layout;
    sli_safetensors_header header;
    demand(sli_safetensors_layout_init(items, count, NULL, 0, &layout) == SL_OK, "laid out");
    demand(sli_safetensors_header_parse(layout.head + 8, layout.head_bytes - 8,
                                        layout.file_bytes - layout.head_bytes, &header) == SL_OK,
           "read again");
    demand(header.count == count, "as many tensors");
    for (size_t i = 0; i < count; i++) {
        const sli_safetensors_entry *entry = sli_safetensors_header_find(&header, items[i].name);
        demand(entry && entry->begin + layout.head_bytes == layout.ranges[i].begin, "in place");
    }
    sli_safetensors_header_clear(&header);
    sli_safetensors_layout_clear(&layout);
    free(items);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[32];
    int descriptor = make_file(data, bytes, path);
    sl_safetensors_reader *reader;
    sl_status status = sl_safetensors_open(path, &reader);
    demand(status == SL_OK || status == SL_ERR_FORMAT, "accepted or refused for its format");
    if (status == SL_OK) {
        read_all(reader, bytes);
        write_again(reader);
    }
    sl_safetensors_close(&reader);
    close(descriptor);
    return 0;
}
