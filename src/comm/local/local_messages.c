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
    sl_status status = sli_error_restore(&w->broken);
    if (status == SL_OK && w->slots[message->peer].left)
        status = sli_message_absent(group, "send", message->peer, "has left the group");
    if (status == SL_OK) {
        sli_queued_message **end = &w->queue;
        while (*end)
            end = &(*end)->next;
        *end = sent;
        sent = NULL;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    free(sent);
    return status;
}

/* With the lock held: the oldest message that the receive matches, taken out of the queue. */
static sli_queued_message *remove_matching(sli_world *w, int rank, const sli_message *wanted)
{
    for (sli_queued_message **at = &w->queue; *at; at = &(*at)->next) {
        sli_queued_message *found = *at;
        if (found->to == rank && found->tag == wanted->tag &&
            (wanted->peer == SL_ANY_RANK || wanted->peer == found->from)) {
            *at = found->next;
            return found;
        }
    }
    return NULL;
}

static sl_status deliver_message(const sl_group *group, const sli_queued_message *found,
                                 const sli_message *message)
{
    SL_TRY(sli_message_check(group, message, found->count, found->dtype, found->from));
    size_t bytes = (size_t)found->count * sl_dtype_bytes(found->dtype);
    if (bytes > 0)
        memcpy(message->data, found->data, bytes);
    if (message->source)
        *message->source = found->from;
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
    char what[32];
    SL_TRY(sli_error_restore(&w->broken));
    if (!any_sender_remains(w, group->rank, message)) {
        snprintf(what, sizeof what, "recv, tag %d", message->tag);
        return message->peer == SL_ANY_RANK
                   ? sl_error(SL_ERR_CANCELLED, "%s: all others have left the group", what)
                   : sli_message_absent(group, what, message->peer, "has left the group");
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
static sli_local_transfer *remove_other_end(sli_world *w, const sli_local_transfer *own)
{
    for (sli_local_transfer **at = &w->transfers; *at; at = &(*at)->next) {
        sli_local_transfer *other = *at;
        if (other->receives != own->receives && other->rank == own->message.peer &&
            other->message.peer == own->rank && other->message.tag == own->message.tag) {
            *at = other->next;
            return other;
        }
    }
    return NULL;
}

/* With the lock held. */
static void copy_data(const sli_local_transfer *own, const sli_local_transfer *other)
{
    const sli_message *from = own->receives ? &other->message : &own->message;
    const sli_message *to = own->receives ? &own->message : &other->message;
    size_t bytes = (size_t)to->count * sl_dtype_bytes(to->dtype);
    if (bytes > 0)
        memcpy(to->data, from->data, bytes);
}

sl_status sli_local_start(sl_group *group, const sli_message *message, bool receives,
                          sli_transfer *out)
{
    sli_world *w = group->state;
    *out = (sli_transfer){0};
    sli_local_transfer *own = malloc(sizeof *own);
    if (!own)
        return sli_no_memory(NULL, "a message");
    *own = (sli_local_transfer){.rank = group->rank, .receives = receives, .message = *message};
    pthread_mutex_lock(&w->lock);
    sli_local_transfer *other = remove_other_end(w, own);
    if (other) {
        copy_data(own, other);
        own->done = other->done = true;
    } else {
        sli_local_transfer **end = &w->transfers;
        while (*end)
            end = &(*end)->next;
        *end = own;
    }
    pthread_mutex_unlock(&w->lock);
    *out = (sli_transfer){.is_under_way = true, .receives = receives, .state = own};
    return SL_OK;
}

sl_status sli_local_progress(sl_group *group, sli_transfer *transfer)
{
    sli_world *w = group->state;
    sli_local_transfer *own = transfer->state;
    pthread_mutex_lock(&w->lock);
    sl_status status = sli_error_restore(&w->broken);
    bool done = own->done;
    pthread_mutex_unlock(&w->lock);
    if (status != SL_OK || !done)
        return status;
    free(own);
    *transfer = (sli_transfer){0};
    return SL_OK;
}

bool sli_local_cancel(sl_group *group, sli_transfer *transfer)
{
    sli_world *w = group->state;
    sli_local_transfer *own = transfer->state;
    pthread_mutex_lock(&w->lock);
    for (sli_local_transfer **at = &w->transfers; *at; at = &(*at)->next)
        if (*at == own) {
            *at = own->next;
            break;
        }
    pthread_mutex_unlock(&w->lock);
    free(own);
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
