#include "core/error.h"
#include "parallel/pipe/processes/link_messages.h"

#include "core/threads.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Between two polls of the link's thread, while data are under way and while none are: a fraction
 * of what an action takes, and rare enough to leave the cores to the ranks. */
enum { BUSY_PAUSE_NS = 200000, IDLE_PAUSE_NS = 1000000 };
/* Between two readings of a wait's clock, also on a busy machine. */
static const double longest_pause_seconds = 1;

/* ---- Failing, with the lock held -------------------------------------------------------- */

/* Breaks the link with this thread's error, unless there is none or the link is broken. */
static void break_link(sli_link *link, sl_status status)
{
    if (status == SL_OK || link->broken.status != SL_OK)
        return;
    sli_error_save(&link->broken, status);
    sli_failure_raise(link->failure, SLI_FAILURE_OF_LINK, status);
    (void)sli_group_check(link->group, status);
    sli_link_wake_ranks(link);
}

/* Fails if a process has died, or the group is broken. *leaver: the first one that has left; -1:
 * none. */
static sl_status find_leaver(const sli_link *link, int *leaver)
{
    const sli_group_ops *ops = link->group->ops;
    const char *why;
    bool has_left;
    *leaver = -1;
    for (int r = 0; r < sl_group_size(link->group); r++) {
        if (r == sl_group_rank(link->group) || !(why = ops->absence(link->group, r, &has_left)))
            continue;
        if (!has_left)
            return sl_error(SL_ERR_CANCELLED, "%s %s", link->names[r], why);
        *leaver = *leaver < 0 ? r : *leaver;
    }
    return ops->status(link->group);
}

/* Fails also if a process has left. The first cause counts: processes leave because another one has
 * died. */
static sl_status check_processes(const sli_link *link)
{
    int leaver;
    SL_TRY(find_leaver(link, &leaver));
    return leaver < 0 ? SL_OK
                      : sl_error(SL_ERR_CANCELLED, "%s has left the group", link->names[leaver]);
}

/* Breaks the link with the error of a process that has died or left, else with this thread's. */
static void break_link_by_cause(sli_link *link, sl_status status)
{
    sli_error_copy error;
    sli_error_save(&error, status);
    sl_status cause = check_processes(link);
    break_link(link, cause != SL_OK ? cause : sli_error_restore(&error));
}

/* A tensor that is too large ends the step, as an argument does that is wrong. */
static sl_status refuse_large_tensor(sli_link *link, int rank, size_t bytes)
{
    sli_failure_raise(link->failure, SLI_FAILURE_OF_CALL,
                      sl_error(SL_ERR_UNSUPPORTED,
                               "a tensor of %zu bytes is too large to be sent to %s: at most 1 GiB",
                               bytes, link->names[rank]));
    sli_link_wake_ranks(link);
    return sli_link_send_to_all(link, SLI_LINK_FAILURE, SLI_FAILURE_OF_CALL);
}

void sli_link_send(sli_link *link, int rank, int channel, int micro, sl_tensor **tensor)
{
    size_t bytes = sli_tensor_bytes(*tensor);
    const sl_shape *shape = sl_tensor_shape(*tensor);
    sli_link_header header = {.kind = SLI_LINK_TENSOR,
                              .channel = channel,
                              .micro = micro,
                              .dtype = sl_tensor_dtype(*tensor),
                              .dims = shape->dims};
    memcpy(header.size, shape->size, sizeof header.size);
    sli_link_message *message = NULL;
    sl_status status = SL_OK;
    if (bytes <= SLI_TRANSFER_BYTES)
        status = sli_link_message_create(link, rank, &header, tensor, &message);
    pthread_mutex_lock(&link->lock);
    if (status == SL_OK && link->broken.status == SL_OK)
        status = message ? sli_link_start_sending(link, &message)
                         : refuse_large_tensor(link, rank, bytes);
    break_link(link, status);
    pthread_mutex_unlock(&link->lock);
    sli_link_message_destroy(&message);
    sl_tensor_destroy(tensor);
}

void sli_link_send_failure(sli_link *link, int number)
{
    pthread_mutex_lock(&link->lock);
    if (link->broken.status == SL_OK)
        break_link(link, sli_link_send_to_all(link, SLI_LINK_FAILURE, number));
    pthread_mutex_unlock(&link->lock);
}

/* ---- Polling ---------------------------------------------------------------------------- */

/* With the lock held: lets all transfers go on; true where one did. `most` as in sli_link_progress.
 */
static bool poll_transfers(sli_link *link, const int64_t *most)
{
    bool goes_on = false;
    sl_status status = sli_link_progress(link, most, &goes_on);
    if (status != SL_OK)
        break_link_by_cause(link, status);
    return goes_on;
}

/* With the lock held, while the step's rows run: no process may leave before their end. */
static bool poll_in_step(sli_link *link)
{
    bool goes_on = poll_transfers(link, NULL);
    if (!goes_on && link->broken.status == SL_OK)
        break_link(link, check_processes(link));
    return goes_on;
}

/* Another thread that polls does this thread's work as well. */
static bool try_polling(sli_link *link)
{
    bool goes_on = false;
    if (pthread_mutex_trylock(&link->lock) != 0)
        return false;
    if (link->is_active && link->broken.status == SL_OK)
        goes_on = poll_in_step(link);
    pthread_mutex_unlock(&link->lock);
    return goes_on;
}

/* The process that all others wait for, directly or not, is the late one. */
static int find_late_process(const sli_link *link, int rank)
{
    int size = sl_group_size(link->group);
    for (int i = 0; i < size; i++) {
        int next = link->sources[rank].waits_for;
        if (next < 0 || next >= size || next == sl_group_rank(link->group))
            break;
        rank = next;
    }
    return rank;
}

static void break_late_link(sli_link *link, int rank)
{
    pthread_mutex_lock(&link->lock);
    rank = find_late_process(link, rank);
    break_link(link, sl_error(SL_ERR_CANCELLED, "nothing came from %s within %g s",
                              link->names[rank], link->group->options.timeout_seconds));
    pthread_mutex_unlock(&link->lock);
}

/* Tells the others whom a rank of this process waits for, or, with `change` -1, that none waits any
 * more. */
static void tell_wait(sli_link *link, int change, int rank)
{
    pthread_mutex_lock(&link->lock);
    link->told_waits += change;
    if (link->broken.status == SL_OK && (change > 0 || link->told_waits == 0))
        break_link(link, sli_link_send_to_all(link, SLI_LINK_WAITS, rank));
    pthread_mutex_unlock(&link->lock);
}

void sli_link_poll_or_pause(sli_link *link, sli_link_wait *wait)
{
    if (try_polling(link)) {
        wait->polls = 0;
        return;
    }
    sli_pause_polling(wait->polls++, wait->spins);
    if (wait->polls % 64 != 0)
        return;
    double limit = link->group->options.timeout_seconds;
    double waited = sli_running_clock_read(&wait->waited, longest_pause_seconds);
    if (waited > limit / 2 && !wait->is_told) {
        wait->is_told = true;
        tell_wait(link, 1, wait->rank);
    }
    if (waited > limit)
        break_late_link(link, wait->rank);
}

void sli_link_end_wait(sli_link *link, const sli_link_wait *wait)
{
    if (wait->is_told)
        tell_wait(link, -1, -1);
}

/* The link's thread: polls during a step, so that transfers go on while the ranks compute. */
static void *run_link(void *argument)
{
    sli_link *link = argument;
    pthread_mutex_lock(&link->lock);
    while (!link->is_ending) {
        if (!link->is_active || link->broken.status != SL_OK) {
            pthread_cond_wait(&link->changed, &link->lock);
            continue;
        }
        (void)poll_in_step(link);
        bool is_busy = link->incoming || link->outgoing;
        pthread_mutex_unlock(&link->lock);
        nanosleep(&(struct timespec){0, is_busy ? BUSY_PAUSE_NS : IDLE_PAUSE_NS}, NULL);
        pthread_mutex_lock(&link->lock);
    }
    pthread_mutex_unlock(&link->lock);
    return NULL;
}

/* ---- Steps ------------------------------------------------------------------------------ */

void sli_link_begin(sli_link *link, const sli_link_step *step, sli_channel *const *channels,
                    int channel_count)
{
    pthread_mutex_lock(&link->lock);
    link->step = *step;
    link->channels = channels;
    link->channel_count = channel_count;
    link->is_active = true;
    for (int r = 0; r < sl_group_size(link->group); r++)
        link->sources[r].waits_for = -1;
    sli_failure_raise(link->failure, SLI_FAILURE_OF_LINK, sli_error_restore(&link->broken));
    pthread_cond_signal(&link->changed);
    pthread_mutex_unlock(&link->lock);
}

void sli_link_stop(sli_link *link, int64_t *sent)
{
    pthread_mutex_lock(&link->lock);
    link->is_active = false;
    memcpy(sent, link->sent, (size_t)sl_group_size(link->group) * sizeof *sent);
    pthread_mutex_unlock(&link->lock);
}

/* With the lock held. */
static bool has_received(const sli_link *link, const int64_t *headers)
{
    for (int r = 0; r < sl_group_size(link->group); r++)
        if (r != sl_group_rank(link->group) && link->sources[r].received < headers[r])
            return false;
    return !link->incoming;
}

/* The first process whose messages, or their end, this one waits for. */
static int find_slow_process(const sli_link *link, const int64_t *headers)
{
    for (int r = 0; r < sl_group_size(link->group); r++)
        if (r != sl_group_rank(link->group) && link->sources[r].received < headers[r])
            return r;
    return link->incoming ? link->incoming->rank : link->outgoing->rank;
}

/* With the lock held, when nothing goes on. A process that has left had all that it needed, so
 * messages to it are dropped; those from it are on their way. */
static void check_flush(sli_link *link, const int64_t *headers, sli_running_clock *waited)
{
    bool has_left;
    int leaver;
    double limit = link->group->options.timeout_seconds;
    sl_status status = find_leaver(link, &leaver);
    for (int r = leaver; r >= 0 && r < sl_group_size(link->group); r++)
        if (r != sl_group_rank(link->group) && link->group->ops->absence(link->group, r, &has_left))
            sli_link_cancel(link, &link->outgoing, r);
    bool is_done = has_received(link, headers) && !link->outgoing;
    if (status == SL_OK && !is_done &&
        sli_running_clock_read(waited, longest_pause_seconds) > limit)
        status = sl_error(SL_ERR_CANCELLED, "nothing came from %s within %g s",
                          link->names[find_slow_process(link, headers)], limit);
    break_link(link, status);
}

sl_status sli_link_flush(sli_link *link, const int64_t *sent)
{
    sli_running_clock waited = {0};
    pthread_mutex_lock(&link->lock);
    for (int polls = 0; link->broken.status == SL_OK; polls++) {
        if (has_received(link, sent) && !link->outgoing)
            break;
        if (poll_transfers(link, sent)) {
            waited = (sli_running_clock){0};
            continue;
        }
        check_flush(link, sent, &waited);
        pthread_mutex_unlock(&link->lock);
        sli_pause_polling(polls, true);
        pthread_mutex_lock(&link->lock);
    }
    pthread_mutex_unlock(&link->lock);
    return sli_link_status(link);
}

sl_status sli_link_status(sli_link *link)
{
    pthread_mutex_lock(&link->lock);
    sl_status status = sli_error_restore(&link->broken);
    pthread_mutex_unlock(&link->lock);
    return status;
}

sl_status sli_link_break(sli_link *link, sl_status status)
{
    pthread_mutex_lock(&link->lock);
    break_link_by_cause(link, status);
    pthread_mutex_unlock(&link->lock);
    return sli_link_status(link);
}

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status start_thread(sli_link *link)
{
    int code = pthread_create(&link->thread, NULL, run_link, link);
    link->has_thread = code == 0;
    return code == 0 ? SL_OK : sli_no_memory(NULL, "the thread of a link (error %d)", code);
}

sl_status sli_link_create(const sli_link_options *options, sli_link **out)
{
    size_t size = (size_t)sl_group_size(options->group);
    sli_link *link = calloc(1, sizeof *link);
    *out = NULL;
    if (!link) {
        sl_group *group = options->group;
        sl_group_destroy(&group);
        return sli_no_memory(NULL, "a link of %zu processes", size);
    }
    link->group = options->group;
    link->names = options->names;
    link->failure = options->failure;
    pthread_mutex_init(&link->lock, NULL);
    pthread_cond_init(&link->changed, NULL);
    link->sent = calloc(size, sizeof *link->sent);
    link->sources = calloc(size, sizeof *link->sources);
    sl_status status;
    SL_TRY_OR_FAIL(
        link->sent && link->sources ? SL_OK : sli_no_memory(NULL, "a link of %zu processes", size));
    for (int r = 0; r < (int)size; r++) {
        link->sources[r].waits_for = -1;
        if (r != sl_group_rank(link->group))
            SL_TRY_OR_FAIL(sli_link_post_header(link, r));
    }
    SL_TRY_OR_FAIL(start_thread(link));
    *out = link;
    return SL_OK;

fail:
    sli_link_destroy(&link);
    return status;
}

void sli_link_destroy(sli_link **link)
{
    if (!link || !*link)
        return;
    sli_link *dead = *link;
    pthread_mutex_lock(&dead->lock);
    dead->is_ending = true;
    pthread_cond_signal(&dead->changed);
    pthread_mutex_unlock(&dead->lock);
    if (dead->has_thread)
        pthread_join(dead->thread, NULL);
    sli_link_cancel(dead, &dead->outgoing, SL_ANY_RANK);
    sli_link_cancel(dead, &dead->incoming, SL_ANY_RANK);
    for (int r = 0; dead->sources && r < sl_group_size(dead->group); r++)
        if (dead->sources[r].transfer.is_under_way)
            (void)dead->group->ops->cancel(dead->group, &dead->sources[r].transfer);
    sl_group_destroy(&dead->group);
    pthread_cond_destroy(&dead->changed);
    pthread_mutex_destroy(&dead->lock);
    free(dead->sent);
    free(dead->sources);
    free(dead);
    *link = NULL;
}
