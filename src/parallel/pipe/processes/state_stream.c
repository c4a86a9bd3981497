/* One rank writes the tensors of all ranks of a group into one file, and holds no more than one of
 * the others' at a time.
 *
 *     rank 0, writes     which tensor of rank 1 ──▶ │ ◀── a report, its elements   …   none ──▶
 *     rank 1, serves     waits for a request        │                              ends
 *
 * The report says which elements the rank has, or the error of one that cannot send them, for want
 * of memory, say: rank 0 then does not wait for them. The others go on serving, and the group stays
 * as it is. */
#include "comm/agree.h"
#include "comm/group.h"
#include "core/error.h"
#include "parallel/pipe/pipe_optimizer.h"

#include <stdlib.h>
#include <string.h>

enum { TAG_INDEX, TAG_REPORT, TAG_DATA };

/* Which tensor rank 0 asks for. */
typedef struct request {
    int64_t list, index; /* list -1: none any more */
} request;

typedef struct report {
    int64_t first, count; /* the elements that follow */
    sli_error_copy error;
} report;

enum {
    REQUEST_WORDS = sizeof(request) / sizeof(int64_t),
    REPORT_WORDS = sizeof(report) / sizeof(int32_t)
};

static size_t bytes_of(const sl_safetensors_item *item, int64_t elements)
{
    return (size_t)elements * sl_dtype_bytes(item->dtype);
}

static request find_item(const sli_state_stream *stream, const sl_safetensors_item *item)
{
    request found = {0};
    while (item < stream->lists[found.list]->items ||
           item >= stream->lists[found.list]->items + stream->lists[found.list]->count)
        found.list++;
    found.index = item - stream->lists[found.list]->items;
    return found;
}

static sl_status reserve_buffer(sli_state_stream *stream, size_t bytes)
{
    if (bytes <= stream->bytes)
        return SL_OK;
    free(stream->buffer);
    stream->buffer = malloc(bytes);
    stream->bytes = stream->buffer ? bytes : 0;
    return stream->buffer ? SL_OK : sli_no_memory(NULL, "a tensor of %zu bytes", bytes);
}

/* Reads what a rank has of the item into the buffer, and adds to the elements that are there. */
static sl_status receive_elements(sli_state_stream *stream, const sl_safetensors_item *item,
                                  const request *wanted, int rank, int64_t *elements)
{
    report has;
    int64_t whole = sl_shape_count(&item->shape);
    SL_TRY(sl_group_send(stream->group, wanted, REQUEST_WORDS, SL_I64, rank, TAG_INDEX, NULL));
    SL_TRY(sl_group_recv(stream->group, &has, REPORT_WORDS, SL_I32, rank, TAG_REPORT, NULL, NULL));
    has.error.text[sizeof has.error.text - 1] = '\0';
    SL_TRY(sli_error_restore(&has.error));
    if (has.first < 0 || has.count < 0 || has.first > whole || has.count > whole - has.first)
        return sl_error(SL_ERR_INTERNAL, "rank %d has other elements of %s", rank, item->name);
    *elements += has.count;
    return has.count == 0
               ? SL_OK
               : sl_group_recv(stream->group, (char *)stream->buffer + bytes_of(item, has.first),
                               has.count, item->dtype, rank, TAG_DATA, NULL, NULL);
}

/* Brings all elements of one entry of the item to the buffer; adds their number to *elements. */
static sl_status read_entry(sli_state_stream *stream, const sl_safetensors_item *item,
                            const request *wanted, int64_t *elements)
{
    const sli_tensors *list = stream->lists[wanted->list];
    const sli_tensor_entry *entry = &list->entries[wanted->index];
    int64_t end = *elements + entry->whole;
    if (entry->count > 0)
        memcpy((char *)stream->buffer + bytes_of(item, entry->first),
               list->items[wanted->index].data, bytes_of(item, entry->count));
    *elements += entry->count;
    for (int rank = entry->owner; rank < sl_group_size(stream->group) && *elements < end;
         rank += stream->stride)
        if (rank > 0)
            SL_TRY(receive_elements(stream, item, wanted, rank, elements));
    return SL_OK;
}

sl_status sli_state_stream_read(void *context, const sl_safetensors_item *item, const void **data)
{
    sli_state_stream *stream = context;
    request wanted = find_item(stream, item);
    const sli_tensor_entry *entries = stream->lists[wanted.list]->entries;
    int64_t whole = sl_shape_count(&item->shape), elements = 0;
    *data = item->data;
    if (entries[wanted.index].count == whole)
        return SL_OK;
    SL_TRY(reserve_buffer(stream, bytes_of(item, whole)));
    SL_TRY(read_entry(stream, item, &wanted, &elements));
    while (elements < whole && entries[wanted.index].next > 0) {
        wanted.index = (int64_t)entries[wanted.index].next;
        SL_TRY(read_entry(stream, item, &wanted, &elements));
    }
    *data = stream->buffer;
    return elements == whole ? SL_OK
                             : sl_error(SL_ERR_INTERNAL, "no rank has all of %s", item->name);
}

sl_status sli_state_stream_end(sli_state_stream *stream, sl_status status)
{
    const request none = {.list = -1};
    sli_error_copy error;
    sli_error_save(&error, status);
    for (int r = 1; r < sl_group_size(stream->group); r++) {
        sl_status sent =
            sl_group_send(stream->group, &none, REQUEST_WORDS, SL_I64, r, TAG_INDEX, NULL);
        (void)sli_group_check(stream->group, sent); /* rank r waits for it */
        if (error.status == SL_OK)
            sli_error_save(&error, sent);
    }
    free(stream->buffer);
    stream->buffer = NULL;
    stream->bytes = 0;
    return sli_error_restore(&error);
}

/* Sends the elements, or at least the error because of which they do not come. */
static sl_status send_item(const sli_state_stream *stream, const sl_safetensors_item *item,
                           const sli_tensor_entry *entry)
{
    report has = {.first = entry->first, .count = entry->count};
    char rank[SLI_RANK_BYTES];
    sl_status sent = entry->count == 0 ? SL_OK
                                       : sl_group_send(stream->group, item->data, entry->count,
                                                       item->dtype, 0, TAG_DATA, NULL);
    if (sent != SL_OK)
        sl_error_context(sent,
                         "%s: ", sli_rank_text(stream->group, sl_group_rank(stream->group), rank));
    sli_error_save(&has.error, sent);
    SL_TRY(sli_group_check(stream->group, sl_group_send(stream->group, &has, REPORT_WORDS, SL_I32,
                                                        0, TAG_REPORT, NULL)));
    return sli_error_restore(&has.error);
}

sl_status sli_state_stream_serve(const sli_state_stream *stream)
{
    sli_error_copy error = {.status = SL_OK};
    for (;;) {
        request wanted;
        SL_TRY(
            sl_group_recv(stream->group, &wanted, REQUEST_WORDS, SL_I64, 0, TAG_INDEX, NULL, NULL));
        if (wanted.list < 0)
            return sli_error_restore(&error);
        const sli_tensors *list = stream->lists[wanted.list];
        sl_status status =
            send_item(stream, &list->items[wanted.index], &list->entries[wanted.index]);
        if (error.status == SL_OK)
            sli_error_save(&error, status);
    }
}
