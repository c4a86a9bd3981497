#define _GNU_SOURCE /* asprintf */

#include "io/checkpoint/plan.h"

#include <stdio.h>
#include <stdlib.h>

void sli_checkpoint_plan_clear(sli_checkpoint_plan *plan)
{
    for (size_t i = 0; plan->names && i < plan->files; i++)
        free(plan->names[i]);
    free(plan->names);
    free(plan->writer_of);
    free(plan->file_of);
    free(plan->items);
    *plan = (sli_checkpoint_plan){0};
}

/* items[0 … count - 1], larger elements first. */
static void order_items(const sl_safetensors_item *items, size_t count, sl_safetensors_item *out)
{
    static const size_t widths[] = {8, 4, 2};
    size_t placed = 0;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t i = 0; i < count; i++)
            if (sl_dtype_bytes(items[i].dtype) == widths[w])
                out[placed++] = items[i];
}

static void order_writers(const sl_checkpoint_part *part, const int *writer_of,
                          sl_safetensors_item *out)
{
    for (size_t first = 0, end; first < part->count; first = end) {
        for (end = first + 1; end < part->count; end++)
            if (writer_of && writer_of[end] != writer_of[first])
                break;
        order_items(part->items + first, end - first, out + first);
    }
}

static void assign_files(const int *writer_of, uint64_t limit, sli_checkpoint_plan *to)
{
    uint64_t in_file = 0;
    to->files = 1;
    to->writer_of[0] = writer_of && to->count ? writer_of[0] : 0;
    for (size_t i = 0; i < to->count; i++) {
        const sl_safetensors_item *item = &to->items[i];
        uint64_t bytes = (uint64_t)sl_shape_count(&item->shape) * sl_dtype_bytes(item->dtype);
        bool full = limit > 0 && in_file > 0 && in_file + bytes > limit;
        int writer = writer_of ? writer_of[i] : 0;
        if (full || writer != to->writer_of[to->files - 1]) {
            to->writer_of[to->files++] = writer;
            in_file = 0;
        }
        to->file_of[i] = to->files - 1;
        in_file += bytes;
        to->bytes += bytes;
    }
}

static sl_status name_files(const char *part, sli_checkpoint_plan *to)
{
    to->names = calloc(to->files, sizeof(char *));
    for (size_t i = 0; to->names && i < to->files; i++) {
        int made = to->files == 1 ? asprintf(&to->names[i], "%s.safetensors", part)
                                  : asprintf(&to->names[i], "%s-%05zu-of-%05zu.safetensors", part,
                                             i + 1, to->files);
        if (made < 0) {
            to->names[i] = NULL;
            return sl_error(SL_ERR_MEMORY, "no memory for a file's name");
        }
    }
    return to->names ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for the names of files");
}

sl_status sli_checkpoint_plan_create(const sl_checkpoint_part *part, const int *writer_of,
                                     uint64_t limit, sli_checkpoint_plan *out)
{
    *out = (sli_checkpoint_plan){.items = calloc(part->count + 1, sizeof *out->items),
                                 .count = part->count,
                                 .file_of = calloc(part->count + 1, sizeof *out->file_of),
                                 .writer_of = calloc(part->count + 1, sizeof *out->writer_of)};
    if (!out->items || !out->file_of || !out->writer_of)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", part->count);
    order_writers(part, writer_of, out->items);
    assign_files(writer_of, limit, out);
    return name_files(part->name, out);
}

size_t sli_checkpoint_plan_first(const sli_checkpoint_plan *plan, int writer, size_t *count)
{
    size_t first = 0;
    while (first < plan->files && plan->writer_of[first] < writer)
        first++;
    *count = 0;
    while (first + *count < plan->files && plan->writer_of[first + *count] == writer)
        ++*count;
    return first;
}
