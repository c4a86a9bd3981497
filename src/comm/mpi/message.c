/* Single messages. A message travels with its count and type, so that the receiver can compare them
 * with what it expects. It is copied when it is sent, since a send never waits for the receiver. A
 * transfer is the data alone, which MPI takes from where the sender has them. */
#include "comm/mpi/call.h"
#include "core/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct envelope {
    int64_t count;
    int32_t dtype, unused;
} envelope;

/* MPI counts very large messages in units (transport.h). */
static size_t padded_bytes(size_t bytes)
{
    return bytes <= (size_t)1 << 30
               ? bytes
               : (bytes + SLI_TRANSPORT_UNIT - 1) / SLI_TRANSPORT_UNIT * SLI_TRANSPORT_UNIT;
}

static sl_status check_tag(const sli_mpi_group *state, const char *what, int tag)
{
    int highest = state->process->mpi->highest_tag() - SLI_TAG_USERS;
    if (tag < 0 || tag > highest)
        return sl_error(SL_ERR_INVALID, "%s: tags are 0 to %d over MPI, got %d", what, highest,
                        tag);
    return SL_OK;
}

/* ---- Sending ------------------------------------------------------------------------------ */

/* With the lock held: frees the messages that MPI has sent. */
static void free_received(sli_mpi_group *state)
{
    sli_outgoing **at = &state->outgoing;
    while (*at) {
        sli_outgoing *one = *at;
        bool done = false;
        if (atomic_load(&state->process->unusable) ||
            state->process->mpi->test(&one->request, &done) != 0 || !done) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        free(one);
    }
}

static sl_status start_sending(sl_group *group, const sli_message *message, sli_outgoing *sent,
                               size_t bytes)
{
    sli_mpi_group *state = group->state;
    pthread_mutex_lock(&state->lock);
    free_received(state);
    int code = state->process->mpi->send(&state->comm, sent->data, bytes, message->peer,
                                         message->tag + SLI_TAG_USERS, &sent->request);
    if (code == 0) {
        sent->next = state->outgoing;
        state->outgoing = sent;
    }
    pthread_mutex_unlock(&state->lock);
    if (code == 0)
        return SL_OK;
    free(sent);
    sli_call call = sli_call_begin(group, NULL);
    return sli_call_mpi_error(&call, code);
}

sl_status sli_mpi_send(sl_group *group, const sli_message *message)
{
    sli_mpi_group *state = group->state;
    SL_TRY(check_tag(state, "send", message->tag));
    SL_TRY(sli_watch_status(state->process->watch, &state->member));
    const char *absence =
        sli_watch_absence(state->process->watch, &state->member, message->peer, NULL);
    if (absence)
        return sli_message_absent(group, "send", message->peer, absence);
    size_t bytes = (size_t)message->count * sl_dtype_bytes(message->dtype);
    size_t whole = padded_bytes(sizeof(envelope) + bytes);
    sli_outgoing *sent = malloc(sizeof *sent + whole);
    if (!sent)
        return sli_no_memory("send", "a message of %zu bytes", bytes);
    *sent = (sli_outgoing){.receiver = message->peer};
    envelope top = {message->count, message->dtype, 0};
    memcpy(sent->data, &top, sizeof top);
    if (bytes > 0)
        memcpy(sent->data + sizeof top, message->data, bytes);
    if (whole > sizeof top + bytes)
        memset(sent->data + sizeof top + bytes, 0, whole - sizeof top - bytes);
    return start_sending(group, message, sent, whole);
}

/* With the lock held: whether the receiver of some message is still in the group. */
static bool any_receiver_remains(sli_mpi_group *state)
{
    for (const sli_outgoing *sent = state->outgoing; sent; sent = sent->next)
        if (!sli_watch_absence(state->process->watch, &state->member, sent->receiver, NULL))
            return true;
    return false;
}

void sli_mpi_flush(sl_group *group)
{
    sli_mpi_group *state = group->state;
    sli_call call = sli_call_begin(group, NULL);
    pthread_mutex_lock(&state->lock);
    for (int polls = 0; state->outgoing; polls++) {
        free_received(state);
        if (!any_receiver_remains(state) || atomic_load(&state->process->unusable) ||
            sli_watch_status(state->process->watch, &state->member) != SL_OK ||
            sli_call_is_late(&call))
            break;
        sli_pause_polling(polls, true);
    }
    while (state->outgoing) {
        sli_outgoing *one = state->outgoing;
        state->outgoing = one->next;
        sli_requests_end(state->process, &one->request, 1);
        free(one);
    }
    pthread_mutex_unlock(&state->lock);
}

/* ---- Receiving ---------------------------------------------------------------------------- */

/* Why no rank can send the message any more; NULL if one can. */
static const char *absent_sender(sl_group *group, const sli_message *message)
{
    sli_mpi_group *state = group->state;
    const char *why = NULL;
    for (int r = 0; r < group->size; r++) {
        if ((message->peer == SL_ANY_RANK && r == group->rank) ||
            (message->peer != SL_ANY_RANK && message->peer != r))
            continue;
        why = sli_watch_absence(state->process->watch, &state->member, r, NULL);
        if (!why)
            return NULL;
    }
    return why ? why : "is alone in the group";
}

/* Called when a poll finds nothing: pauses a little, and fails when waiting is over. */
static sl_status pause_receive(sli_call *call, const sli_message *message)
{
    sli_mpi_group *state = call->state;
    SL_TRY(sli_watch_status(state->process->watch, &state->member));
    if (atomic_load(&state->process->unusable))
        return sl_error(SL_ERR_CANCELLED, "recv: this process cannot use MPI any more");
    if (sli_call_is_late(call))
        return sli_message_late(call->group, message);
    sli_pause_polling(call->idle++, true);
    return SL_OK;
}

/* The hub's word that a rank has left comes on another way than the messages that it sent before,
 * and may be faster: for so long they may still come. */
static const double longest_delay_seconds = 1;

static sl_status fail_absent(const sl_group *group, const sli_message *message, int rank,
                             const char *absence, const char *when)
{
    char what[32], why[96];
    snprintf(what, sizeof what, "recv, tag %d", message->tag);
    snprintf(why, sizeof why, "%s%s", absence, when);
    return sli_message_absent(group, what, rank, why);
}

static sl_status match_message(sli_call *call, const sli_message *message, sli_matched *out)
{
    const sli_transport *mpi = call->state->process->mpi;
    sli_running_clock absent = {0};
    for (;;) {
        const char *absence = absent_sender(call->group, message);
        bool found;
        int code = mpi->match(&call->state->comm, message->peer, message->tag + SLI_TAG_USERS,
                              &found, out);
        if (code != 0)
            return sli_call_mpi_error(call, code);
        if (found)
            return SL_OK;
        if (absence && !sli_call_is_late(call) &&
            sli_running_clock_read(&absent, longest_delay_seconds / 4) < longest_delay_seconds)
            absence = NULL;
        if (absence && message->peer == SL_ANY_RANK)
            return sl_error(SL_ERR_CANCELLED, "recv, tag %d: all others have left the group",
                            message->tag);
        if (absence)
            return fail_absent(call->group, message, message->peer, absence, "");
        SL_TRY(pause_receive(call, message));
    }
}

static sl_status receive_data(sli_call *call, const sli_message *message, sli_matched *matched,
                              char *data)
{
    sli_mpi_process *process = call->state->process;
    sli_request request = {.bits = NULL};
    sli_message from_it = *message;
    from_it.peer = matched->source;
    int code = process->mpi->receive_matched(&call->state->comm, matched, data, &request);
    sl_status status = SL_OK;
    while (code == 0 && status == SL_OK && request.bits) {
        bool done = false;
        code = process->mpi->test(&request, &done);
        if (code != 0 || done)
            break;
        const char *absence =
            sli_watch_absence(process->watch, &call->state->member, matched->source, NULL);
        if (absence && call->idle > 10000)
            status =
                fail_absent(call->group, message, matched->source, absence, " amid its message");
        else
            status = pause_receive(call, &from_it);
    }
    if (code != 0)
        status = sli_call_mpi_error(call, code);
    if (status != SL_OK)
        sli_requests_end(process, &request, 1);
    return status;
}

static sl_status deliver_message(const sl_group *group, const char *data, size_t bytes, int source,
                                 const sli_message *message)
{
    envelope top = {0};
    if (bytes >= sizeof top)
        memcpy(&top, data, sizeof top);
    SL_TRY(sli_message_check(group, message, top.count, (sl_dtype)top.dtype, source));
    if (top.count > 0)
        memcpy(message->data, data + sizeof top,
               (size_t)top.count * sl_dtype_bytes(message->dtype));
    if (message->source)
        *message->source = source;
    return SL_OK;
}

sl_status sli_mpi_receive(sl_group *group, const sli_message *message)
{
    sli_call call = sli_call_begin(group, NULL);
    SL_TRY(check_tag(call.state, "recv", message->tag));
    sli_matched matched;
    SL_TRY(match_message(&call, message, &matched));
    call.idle = 0;
    char *data = malloc(matched.bytes);
    if (!data)
        return sli_no_memory("recv", "a message of %zu bytes", matched.bytes);
    sl_status status;
    SL_TRY_OR_FAIL(receive_data(&call, message, &matched, data));
    status = deliver_message(group, data, matched.bytes, matched.source, message);
fail:
    free(data);
    return status;
}

/* ---- Transfers ---------------------------------------------------------------------------- */

static sl_status check_process(const sli_mpi_group *state)
{
    if (atomic_load_explicit(&state->process->unusable, memory_order_relaxed))
        return sl_error(SL_ERR_CANCELLED, "this process cannot use MPI any more");
    return SL_OK;
}

static sl_status fail_transfer(sl_group *group, int code)
{
    sli_call call = sli_call_begin(group, NULL);
    return sli_call_mpi_error(&call, code);
}

sl_status sli_mpi_start(sl_group *group, const sli_message *message, bool receives,
                        sli_transfer *out)
{
    sli_mpi_group *state = group->state;
    const sli_transport *mpi = state->process->mpi;
    size_t bytes = (size_t)message->count * sl_dtype_bytes(message->dtype);
    sli_request request = {.bits = NULL};
    *out = (sli_transfer){0};
    SL_TRY(check_process(state));
    int tag = message->tag + SLI_TAG_USERS;
    int code = receives
                   ? mpi->receive(&state->comm, message->data, bytes, message->peer, tag, &request)
                   : mpi->send(&state->comm, message->data, bytes, message->peer, tag, &request);
    if (code != 0)
        return fail_transfer(group, code);
    *out = (sli_transfer){.is_under_way = true, .receives = receives, .state = request.bits};
    return SL_OK;
}

sl_status sli_mpi_progress(sl_group *group, sli_transfer *transfer)
{
    sli_mpi_group *state = group->state;
    sli_request request = {transfer->state, transfer->receives};
    bool done = false;
    SL_TRY(check_process(state));
    int code = state->process->mpi->test(&request, &done);
    transfer->state = request.bits;
    transfer->is_under_way = code == 0 && !done;
    return code == 0 ? SL_OK : fail_transfer(group, code);
}

bool sli_mpi_cancel(sl_group *group, sli_transfer *transfer)
{
    const sli_mpi_group *state = group->state;
    sli_request request = {transfer->state, transfer->receives};
    *transfer = (sli_transfer){0};
    return sli_requests_end(state->process, &request, 1);
}

const char *sli_mpi_absence(sl_group *group, int rank, bool *has_left)
{
    sli_mpi_group *state = group->state;
    *has_left = false;
    if (!atomic_load_explicit(&state->member.alarm, memory_order_relaxed))
        return NULL;
    return sli_watch_absence(state->process->watch, &state->member, rank, has_left);
}

sl_status sli_mpi_status(sl_group *group)
{
    sli_mpi_group *state = group->state;
    if (!atomic_load_explicit(&state->member.alarm, memory_order_relaxed))
        return SL_OK;
    return sli_watch_check(state->process->watch, &state->member, NULL);
}
