/* One rank writes the tensors of all ranks of a pipe's group into one file, and holds no more than
 * one of the others' at a time.
 *
 *     rank 0, writes     index of a tensor of rank 1 ──▶ │ ◀── its data, a report   …   none ──▶
 *     rank 1, serves     waits for an index              │                              ends
 *
 * The report is the error of a rank that cannot send its data, for want of memory, say: rank 0 then
 * does not wait for them. The others go on serving, and the group stays as it is. */
#include "comm/group.h"
#include "core/error.h"
#include "parallel/pipe/pipe_optimizer.h"

#include <stdlib.h>

enum { TAG_INDEX, TAG_REPORT, TAG_DATA };

/* Which tensor rank 0 asks for. */
typedef struct request {
    int64_t list, index; /* list -1: none any more */
} request;

enum {
    REQUEST_WORDS = sizeof(request) / sizeof(int64_t),
    REPORT_WORDS = sizeof(sli_error_copy) / sizeof(int32_t)
};

/* Tensors of 4 bytes an element are sent as so many words. */
static int64_t word_count(const sl_safetensors_item *item)
{
    return sl_shape_count(&item->shape) * (int64_t)sl_dtype_bytes(item->dtype) /
           (int64_t)sizeof(int32_t);
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

sl_status sli_state_stream_read(void *context, const sl_safetensors_item *item, const void **data)
{
    sli_state_stream *stream = context;
    request wanted = find_item(stream, item);
    int owner = stream->lists[wanted.list]->entries[wanted.index].owner;
    int64_t words = word_count(item);
    sli_error_copy report;
    *data = item->data;
    if (*data || words == 0)
        return SL_OK;
    SL_TRY(reserve_buffer(stream, (size_t)words * sizeof(int32_t)));
    SL_TRY(sl_group_send(stream->group, &wanted, REQUEST_WORDS, SL_I64, owner, TAG_INDEX, NULL));
    SL_TRY(
        sl_group_recv(stream->group, &report, REPORT_WORDS, SL_I32, owner, TAG_REPORT, NULL, NULL));
    report.text[sizeof report.text - 1] = '\0';
    SL_TRY(sli_error_restore(&report));
    SL_TRY(
        sl_group_recv(stream->group, stream->buffer, words, SL_I32, owner, TAG_DATA, NULL, NULL));
    *data = stream->buffer;
    return SL_OK;
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

/* Sends the data, or at least the error because of which they do not come. */
static sl_status send_item(const sli_state_stream *stream, const sl_safetensors_item *item)
{
    sli_error_copy report = {.status = SL_OK};
    char rank[SLI_RANK_BYTES];
    sl_status sent =
        sl_group_send(stream->group, item->data, word_count(item), SL_I32, 0, TAG_DATA, NULL);
    if (sent != SL_OK) {
        sl_error_context(sent,
                         "%s: ", sli_rank_text(stream->group, sl_group_rank(stream->group), rank));
        sli_error_save(&report, sent);
    }
    sl_status status =
        sl_group_send(stream->group, &report, REPORT_WORDS, SL_I32, 0, TAG_REPORT, NULL);
    SL_TRY(sli_group_check(stream->group, status));
    return sli_error_restore(&report);
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
        sl_status status = send_item(stream, &stream->lists[wanted.list]->items[wanted.index]);
        if (error.status == SL_OK)
            sli_error_save(&error, status);
    }
}
