/* Point to point between threads: a send copies its message into the group's one queue, so it never
 * waits; a receive takes the oldest message that it matches out of the queue. A transfer is copied
 * once, by whichever side starts it last, from where the sender has it to where the receiver wants
 * it. */
#include "comm/local/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sl_status sli_local_send(sl_group *group, const sli_message *message)
{
    sli_world *w = group->state;
    size_t bytes = (size_t)message->count * sl_dtype_bytes(message->dtype);
    sli_queued_message *sent = malloc(sizeof *sent + bytes);
    if (!sent)
        return sli_no_memory("send", "a message of %zu bytes", bytes);
    *sent = (sli_queued_message){NULL,         group->rank,    message->peer,
                                 message->tag, message->count, message->dtype};
    if (bytes > 0)
        memcpy(sent->data, message->data, bytes);
    pthread_mutex_lock(&w->lock);
    sl_status status;
    SL_TRY_OR_FAIL(sli_error_restore(&w->broken));
    if (w->slots[message->peer].left)
        SL_TRY_OR_FAIL(sli_message_absent(group, "send", message->peer, "has left the group"));
    sli_queued_message **end = &w->queue;
    while (*end)
        end = &(*end)->next;
    *end = sent;
    sent = NULL;
    pthread_cond_broadcast(&w->changed);

fail:
    pthread_mutex_unlock(&w->lock);
    free(sent);
    return status;
}

/* With the lock held: the oldest message that the receive matches, taken out of the queue. */
static sli_queued_message *remove_matching(sli_world *w, int rank, const sli_message *wanted)
{
    for (sli_queued_message **at = &w->queue; *at; at = &(*at)->next) {
        sli_queued_message *found = *at;
        if (found->receiver == rank && found->tag == wanted->tag &&
            (wanted->peer == SL_ANY_RANK || wanted->peer == found->sender)) {
            *at = found->next;
            return found;
        }
    }
    return NULL;
}

static sl_status deliver_message(const sl_group *group, const sli_queued_message *found,
                                 const sli_message *message)
{
    SL_TRY(sli_message_check(group, message, found->count, found->dtype, found->sender));
    size_t bytes = (size_t)found->count * sl_dtype_bytes(found->dtype);
    if (bytes > 0)
        memcpy(message->data, found->data, bytes);
    if (message->source)
        *message->source = found->sender;
    return SL_OK;
}

/* With the lock held: whether a rank that may send the message is still in the group. */
static bool any_sender_remains(const sli_world *w, int rank, const sli_message *message)
{
    if (message->peer != SL_ANY_RANK)
        return !w->slots[message->peer].left;
    for (int r = 0; r < w->size; r++)
        if (r != rank && !w->slots[r].left)
            return true;
    return false;
}

/* With the lock held: waits for something to change. */
static sl_status wait_for_message(const sl_group *group, const sli_message *message,
                                  sli_running_clock *waited)
{
    sli_world *w = group->state;
    char call[32];
    SL_TRY(sli_error_restore(&w->broken));
    if (!any_sender_remains(w, group->rank, message)) {
        snprintf(call, sizeof call, "recv, tag %d", message->tag);
        return message->peer == SL_ANY_RANK
                   ? sl_error(SL_ERR_CANCELLED, "%s: all others have left the group", call)
                   : sli_message_absent(group, call, message->peer, "has left the group");
    }
    return sli_local_wait(w, waited) ? SL_OK : sli_message_late(group, message);
}

sl_status sli_local_receive(sl_group *group, const sli_message *message)
{
    sli_world *w = group->state;
    sli_running_clock waited = {0};
    sl_status status = SL_OK;
    sli_queued_message *found;
    pthread_mutex_lock(&w->lock);
    while (!(found = remove_matching(w, group->rank, message)) && status == SL_OK)
        status = wait_for_message(group, message, &waited);
    pthread_mutex_unlock(&w->lock);
    if (found)
        status = deliver_message(group, found, message);
    free(found);
    return status;
}

/* ---- Transfers ---------------------------------------------------------------------------- */

/* With the lock held: the other end of a transfer, if it has been started. */
static sli_local_transfer *remove_other_end(sli_world *w, const sli_local_transfer *transfer)
{
    for (sli_local_transfer **at = &w->transfers; *at; at = &(*at)->next) {
        sli_local_transfer *other = *at;
        if (other->receives != transfer->receives && other->rank == transfer->message.peer &&
            other->message.peer == transfer->rank && other->message.tag == transfer->message.tag) {
            *at = other->next;
            return other;
        }
    }
    return NULL;
}

/* With the lock held. */
static void copy_data(const sli_local_transfer *transfer, const sli_local_transfer *other)
{
    const sli_message *source = transfer->receives ? &other->message : &transfer->message;
    const sli_message *target = transfer->receives ? &transfer->message : &other->message;
    size_t bytes = (size_t)target->count * sl_dtype_bytes(target->dtype);
    if (bytes > 0)
        memcpy(target->data, source->data, bytes);
}

sl_status sli_local_start(sl_group *group, const sli_message *message, bool receives,
                          sli_transfer *out)
{
    sli_world *w = group->state;
    *out = (sli_transfer){0};
    sli_local_transfer *started = malloc(sizeof *started);
    if (!started)
        return sli_no_memory(NULL, "a message");
    *started = (sli_local_transfer){.rank = group->rank, .receives = receives, .message = *message};
    pthread_mutex_lock(&w->lock);
    sli_local_transfer *other = remove_other_end(w, started);
    if (other) {
        copy_data(started, other);
        started->done = other->done = true;
    } else {
        sli_local_transfer **end = &w->transfers;
        while (*end)
            end = &(*end)->next;
        *end = started;
    }
    pthread_mutex_unlock(&w->lock);
    *out = (sli_transfer){.is_under_way = true, .receives = receives, .state = started};
    return SL_OK;
}

sl_status sli_local_progress(sl_group *group, sli_transfer *transfer)
{
    sli_world *w = group->state;
    sli_local_transfer *started = transfer->state;
    pthread_mutex_lock(&w->lock);
    sl_status status = sli_error_restore(&w->broken);
    bool done = started->done;
    pthread_mutex_unlock(&w->lock);
    if (status != SL_OK || !done)
        return status;
    free(started);
    *transfer = (sli_transfer){0};
    return SL_OK;
}

bool sli_local_cancel(sl_group *group, sli_transfer *transfer)
{
    sli_world *w = group->state;
    sli_local_transfer *started = transfer->state;
    pthread_mutex_lock(&w->lock);
    for (sli_local_transfer **at = &w->transfers; *at; at = &(*at)->next)
        if (*at == started) {
            *at = started->next;
            break;
        }
    pthread_mutex_unlock(&w->lock);
    free(started);
    *transfer = (sli_transfer){0};
    return true;
}

const char *sli_local_absence(sl_group *group, int rank, bool *has_left)
{
    sli_world *w = group->state;
    pthread_mutex_lock(&w->lock);
    *has_left = w->slots[rank].left;
    pthread_mutex_unlock(&w->lock);
    return *has_left ? "has left the group" : NULL;
}

sl_status sli_local_status(sl_group *group)
{
    sli_world *w = group->state;
    pthread_mutex_lock(&w->lock);
    sl_status status = sli_error_restore(&w->broken);
    pthread_mutex_unlock(&w->lock);
    return status;
}
