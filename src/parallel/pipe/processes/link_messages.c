#include "parallel/pipe/processes/link_messages.h"

#include "core/error.h"
#include "parallel/pipe/pipe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_HEADER, TAG_DATA };

sl_status sli_link_header_check_shape(const sli_link_header *got, const char *sender)
{
    int64_t bytes = 0;
    bool is_valid =
        got->dtype >= SL_F32 && got->dtype <= SL_BF16 && got->dims >= 0 && got->dims <= SL_MAX_DIMS;
    if (is_valid)
        bytes = (int64_t)sl_dtype_bytes((sl_dtype)got->dtype);
    for (int d = 0; d < got->dims && is_valid; d++)
        is_valid = got->size[d] >= 0 && !__builtin_mul_overflow(bytes, got->size[d], &bytes);
    if (is_valid && bytes <= SLI_TRANSFER_BYTES)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s sent a header that is damaged: type %d, %d dimensions",
                    sender, got->dtype, got->dims);
}

static const char *kind_name(int32_t kind)
{
    static const char *const names[] = {
        [SLI_TABLE_FORWARD] = "a forward",
        [SLI_TABLE_TRAINING] = "a training step",
        [SLI_TABLE_WHOLE] = "a training step of whole rows",
        [SLI_TABLE_GRADIENT] = "a gradient in evaluation mode",
        [SLI_LINK_EVALUATION] = "an evaluation",
    };
    return kind >= 0 && kind <= SLI_LINK_EVALUATION ? names[kind] : "of an unknown kind";
}

sl_status sli_link_header_check_step(const sli_link_header *got, const sli_link_step *step,
                                     const char *sender)
{
    const sli_link_step *theirs = &got->step;
    if (theirs->sequence == step->sequence && theirs->kind == step->kind &&
        theirs->first_micro == step->first_micro)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "the ranks of a pipe call different functions: %s is in call %" PRIu64
                    ", %s, this rank in call %" PRIu64 ", %s",
                    sender, theirs->sequence, kind_name(theirs->kind), step->sequence,
                    kind_name(step->kind));
}

void sli_link_wake_ranks(const sli_link *link)
{
    for (int i = 0; i < link->channel_count; i++)
        sli_channel_wake(link->channels[i]);
}

void sli_link_message_destroy(sli_link_message **message)
{
    if (!message || !*message)
        return;
    sli_host_array_close(&(*message)->host, false);
    sl_tensor_destroy(&(*message)->tensor);
    free(*message);
    *message = NULL;
}

/* ---- Receiving -------------------------------------------------------------------------- */

sl_status sli_link_post_header(sli_link *link, int rank)
{
    sli_link_source *source = &link->sources[rank];
    sli_message message = {.data = &source->header,
                           .count = sizeof source->header / sizeof(int32_t),
                           .dtype = SL_I32,
                           .peer = rank,
                           .tag = TAG_HEADER};
    return link->group->ops->start(link->group, &message, true, &source->transfer);
}

/* Is there an empty slot for the tensor? */
static sl_status check_slot(const sli_link *link, int rank, const sli_link_header *got)
{
    if (got->channel >= 0 && got->channel < link->channel_count &&
        sli_channel_accepts(link->channels[got->channel], rank, got->micro))
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s sent a tensor that this rank does not expect",
                    link->names[rank]);
}

/* Ends the step in all processes: those that wait for this one would wait for ever. After the step
 * its headers are counted, and one more would end the next step. */
static sl_status refuse_other_step(sli_link *link, sl_status status)
{
    bool is_known = sli_failure_precedes(link->failure, SLI_FAILURE_OF_CALL);
    sli_failure_raise(link->failure, SLI_FAILURE_OF_CALL, status);
    sli_link_wake_ranks(link);
    if (is_known || !link->is_active)
        return SL_OK;
    return sli_link_send_to_all(link, SLI_LINK_FAILURE, SLI_FAILURE_OF_CALL);
}

/* Posts the receive of a tensor's data. */
static sl_status receive_tensor(sli_link *link, int rank, const sli_link_header *got)
{
    SL_TRY(sli_link_header_check_shape(got, link->names[rank]));
    SL_TRY(check_slot(link, rank, got));
    sli_link_message *message = calloc(1, sizeof *message);
    if (!message)
        return sli_no_memory(NULL, "a tensor of %s", link->names[rank]);
    sl_shape shape = {.dims = got->dims};
    memcpy(shape.size, got->size, sizeof shape.size);
    message->header = *got;
    message->rank = rank;
    sl_status status = sli_link_header_check_step(got, &link->step, link->names[rank]);
    message->is_wanted = status == SL_OK;
    message->next = link->incoming;
    link->incoming = message;
    if (status != SL_OK)
        SL_TRY(refuse_other_step(link, status));
    SL_TRY(sl_tensor_create(sli_channel_device(link->channels[got->channel]), SL_MEMORY_ACTIVATIONS,
                            (sl_dtype)got->dtype, &shape, &message->tensor));
    SL_TRY(sli_tensor_open_host(message->tensor, false, &message->host));
    sli_message data = {.data = message->host.host,
                        .count = sl_tensor_count(message->tensor),
                        .dtype = (sl_dtype)got->dtype,
                        .peer = rank,
                        .tag = TAG_DATA};
    return link->group->ops->start(link->group, &data, true, &message->data);
}

static sl_status handle_header(sli_link *link, int rank, const sli_link_header *got)
{
    switch (got->kind) {
    case SLI_LINK_TENSOR:
        return receive_tensor(link, rank, got);
    case SLI_LINK_FAILURE:
        sli_failure_raise_elsewhere(link->failure, got->number);
        sli_link_wake_ranks(link);
        return SL_OK;
    case SLI_LINK_WAITS:
        link->sources[rank].waits_for = got->number;
        return SL_OK;
    default:
        return sl_error(SL_ERR_INVALID, "%s sent a header of the unknown kind %d",
                        link->names[rank], got->kind);
    }
}

/* Handles the headers that have come from a process, but no more than `most` in all. */
static sl_status receive_headers(sli_link *link, int rank, int64_t most, bool *goes_on)
{
    sli_link_source *source = &link->sources[rank];
    while (source->received < most) {
        SL_TRY(link->group->ops->progress(link->group, &source->transfer));
        if (source->transfer.is_under_way)
            return SL_OK;
        sli_link_header got = source->header;
        *goes_on = true;
        source->received++;
        SL_TRY(sli_link_post_header(link, rank));
        SL_TRY(handle_header(link, rank, &got));
    }
    return SL_OK;
}

static sl_status deliver_tensor(sli_link *link, sli_link_message *one)
{
    if (!one->is_wanted)
        return SL_OK;
    SL_TRY(check_slot(link, one->rank, &one->header));
    SL_TRY(sli_host_array_close(&one->host, true));
    sli_channel_send(link->channels[one->header.channel], one->header.micro, &one->tensor);
    return SL_OK;
}

/* Gives the tensors whose data have come to their channels. */
static sl_status deliver_tensors(sli_link *link, bool *goes_on)
{
    for (sli_link_message **at = &link->incoming; *at;) {
        sli_link_message *one = *at;
        SL_TRY(link->group->ops->progress(link->group, &one->data));
        if (one->data.is_under_way) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        *goes_on = true;
        sl_status status = deliver_tensor(link, one);
        sli_link_message_destroy(&one);
        SL_TRY(status);
    }
    return SL_OK;
}

/* ---- Sending ---------------------------------------------------------------------------- */

static sl_status free_sent(sli_link *link, bool *goes_on)
{
    for (sli_link_message **at = &link->outgoing; *at;) {
        sli_link_message *one = *at;
        if (one->header_transfer.is_under_way)
            SL_TRY(link->group->ops->progress(link->group, &one->header_transfer));
        if (one->data.is_under_way)
            SL_TRY(link->group->ops->progress(link->group, &one->data));
        if (one->header_transfer.is_under_way || one->data.is_under_way) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        *goes_on = true;
        sli_link_message_destroy(&one);
    }
    return SL_OK;
}

sl_status sli_link_message_create(const sli_link *link, int rank, const sli_link_header *header,
                                  sl_tensor **tensor, sli_link_message **out)
{
    sli_link_message *one = *out = calloc(1, sizeof *one);
    if (!one)
        return sli_no_memory(NULL, "a message to %s", link->names[rank]);
    one->header = *header;
    one->rank = rank;
    if (!tensor)
        return SL_OK;
    one->tensor = *tensor;
    *tensor = NULL;
    sl_status status = sli_tensor_open_host(one->tensor, true, &one->host);
    if (status != SL_OK)
        sli_link_message_destroy(out);
    return status;
}

sl_status sli_link_start_sending(sli_link *link, sli_link_message **message)
{
    sli_link_message *one = *message;
    *message = NULL;
    one->header.step = link->step;
    one->next = link->outgoing;
    link->outgoing = one;
    sli_message header = {.data = &one->header,
                          .count = sizeof one->header / sizeof(int32_t),
                          .dtype = SL_I32,
                          .peer = one->rank,
                          .tag = TAG_HEADER};
    link->sent[one->rank]++;
    SL_TRY(link->group->ops->start(link->group, &header, false, &one->header_transfer));
    if (!one->tensor)
        return SL_OK;
    sli_message data = {.data = one->host.host,
                        .count = sl_tensor_count(one->tensor),
                        .dtype = sl_tensor_dtype(one->tensor),
                        .peer = one->rank,
                        .tag = TAG_DATA};
    return link->group->ops->start(link->group, &data, false, &one->data);
}

static sl_status send_header(sli_link *link, int rank, const sli_link_header *header)
{
    sli_link_message *one;
    SL_TRY(sli_link_message_create(link, rank, header, NULL, &one));
    return sli_link_start_sending(link, &one);
}

sl_status sli_link_send_to_all(sli_link *link, sli_link_header_kind kind, int number)
{
    sli_link_header header = {.kind = kind, .number = number};
    for (int r = 0; r < sl_group_size(link->group); r++)
        if (r != sl_group_rank(link->group))
            SL_TRY(send_header(link, r, &header));
    return SL_OK;
}

void sli_link_cancel(sli_link *link, sli_link_message **list, int rank)
{
    for (sli_link_message **at = list, *one; (one = *at);) {
        if (rank != SL_ANY_RANK && one->rank != rank) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        bool is_free = true;
        if (one->header_transfer.is_under_way)
            is_free = link->group->ops->cancel(link->group, &one->header_transfer);
        if (one->data.is_under_way)
            is_free = link->group->ops->cancel(link->group, &one->data) && is_free;
        if (!is_free)
            continue; /* its data may still be read: they are never freed */
        sli_link_message_destroy(&one);
    }
}

sl_status sli_link_progress(sli_link *link, const int64_t *most, bool *goes_on)
{
    SL_TRY(free_sent(link, goes_on));
    for (int r = 0; r < sl_group_size(link->group); r++)
        if (r != sl_group_rank(link->group))
            SL_TRY(receive_headers(link, r, most ? most[r] : INT64_MAX, goes_on));
    return deliver_tensors(link, goes_on);
}
