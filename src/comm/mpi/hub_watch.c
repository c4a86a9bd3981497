/* Which error a rank's call ends with, when several ranks fail one after the other: the first cause
 * wins. The hub tells of a death before anything that follows from it. A rank that leaves a group
 * because of an error, of this group or of another one, sends that error along. */
#include "comm/mpi/hub_watch.h"

#include "comm/mpi/hub.h"
#include "comm/wire/wire_listener.h"
#include "core/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { REASON_BYTES = 64 };
static const uint64_t has_not_left = UINT64_MAX;
/* How long to wait for the hub's answer about a late operation: longer than the hub waits for the
 * ranks' answers. */
static const double answer_seconds = 2.5;
static const double call_seconds = 30;

struct sli_watch {
    pthread_t thread;
    int rank, size;
    int stop;                /* eventfd: ends the thread */
    sli_running_clock clock; /* the thread's, as the next two */
    double heard, said_alive;
    sli_wire_connection hub; /* read by the thread; sending needs the lock */
    pthread_mutex_t lock;    /* guards all below, and sending */
    sli_member *members;
    char (*dead)[REASON_BYTES]; /* [size] how a process ended; "" where it lives */
    bool hub_is_lost;
    bool ended, all_ready;
};

/* ---- Composing errors, with the lock held ------------------------------------------------- */

static const char *operation_text(const sli_operation *operation, char *text)
{
    if (operation)
        return sli_operation_text(operation, text);
    snprintf(text, SLI_OPERATION_TEXT_BYTES, "the creation of the group");
    return text;
}

/* Breaks the group with this thread's error, unless it is broken. */
static void break_member(sli_member *member, sl_status error)
{
    if (member->broken.status != SL_OK)
        return;
    sli_error_save(&member->broken, error);
    atomic_store(&member->alarm, true);
}

/* Why `rank` will not come to operation `sequence`; NULL if it may. */
static const char *reason_of_absence(const sli_watch *watch, const sli_member *member, int rank,
                                     uint64_t sequence)
{
    if (member->last[rank] != has_not_left)
        return member->last[rank] < sequence ? "left the group before it came" : NULL;
    const char *why = watch->dead[member->processes[rank]];
    return *why ? why : NULL;
}

/* The reason to give: ranks leave because another one has died, so a death comes first. */
static const char *first_reason(const sli_watch *watch, const sli_member *member, uint64_t sequence)
{
    const char *first = NULL;
    for (int r = 0; r < member->size; r++) {
        const char *why = reason_of_absence(watch, member, r, sequence);
        if (why && (!first || member->last[r] == has_not_left))
            first = why;
    }
    return first;
}

/* Writes the ranks that are absent for this reason: "rank 1, 3". Returns the first one's number in
 * the job. */
static int write_absent(const sli_watch *watch, const sli_member *member, uint64_t sequence,
                        const char *why, char *text, size_t bytes)
{
    int first = SLI_NO_RANK;
    text[0] = '\0';
    for (int r = 0; r < member->size; r++) {
        const char *own = reason_of_absence(watch, member, r, sequence);
        if (!own || strcmp(own, why) != 0)
            continue;
        sli_ranks_text_add(r, member->processes[r], text, bytes);
        first = first == SLI_NO_RANK ? member->processes[r] : first;
    }
    return first;
}

/* Breaks the group if the operation needs a rank that is dead or has left. */
static void break_for_absent(const sli_watch *watch, sli_member *member,
                             const sli_operation *operation)
{
    uint64_t sequence = operation ? operation->sequence : 0;
    char ranks[256], what[SLI_OPERATION_TEXT_BYTES];
    int first = 0;
    const char *why = first_reason(watch, member, sequence);
    if (member->broken.status != SL_OK || (!why && !watch->hub_is_lost))
        return;
    if (why)
        first = write_absent(watch, member, sequence, why, ranks, sizeof ranks);
    (void)operation_text(operation, what);
    sl_status status;
    if (why) {
        const char *cause = strncmp(why, "left", 4) == 0 ? member->cause : "";
        status = sl_error(SL_ERR_CANCELLED, "%s, operation %" PRIu64 " of the group: %s %s%s%s",
                          what, sequence, ranks, why, *cause ? ", after this error: " : "", cause);
    } else {
        status = sl_error(SL_ERR_CANCELLED,
                          "%s, operation %" PRIu64 " of the group: rank 0 of the job %s, which "
                          "watches over the others",
                          what, sequence, watch->dead[0]);
    }
    break_member(member, sli_error_set_rank(status, first));
}

/* ---- The thread --------------------------------------------------------------------------- */

/* The group with a message's number and size: the message's rank is then one of its ranks. */
static sli_member *find_member(const sli_watch *watch, const sli_wire_message *message)
{
    sli_member *member = watch->members;
    while (member && (member->id != message->group || member->size != message->size))
        member = member->next;
    return member;
}

/* With the lock held. If it fails, the hub has hung up or does not read: the thread that reads from
 * it finds it closed or silent. */
static void send_to_hub(sli_watch *watch, const sli_wire_message *message)
{
    if (watch->hub.fd >= 0)
        (void)sli_wire_send(&watch->hub, message);
}

/* A message from this process about the group. */
static sli_wire_message message_about(const sli_member *member, int kind)
{
    return (sli_wire_message){.kind = kind,
                              .group = member->id,
                              .rank = member->rank,
                              .size = member->size};
}

/* A group in the making needs every rank; a later operation may not. */
static void mark_dead(sli_watch *watch, int process, const char *why)
{
    if (*watch->dead[process])
        return;
    snprintf(watch->dead[process], REASON_BYTES, "%.63s", why);
    for (sli_member *member = watch->members; member; member = member->next) {
        atomic_store(&member->alarm, true);
        if (!atomic_load(&member->ready))
            break_for_absent(watch, member, NULL);
    }
}

static void mark_left(sli_member *member, const sli_wire_message *message)
{
    const char *text = message->text;
    sli_hub_run run;
    while (sli_hub_run_read(&text, message->size, &run))
        for (int r = run.first; r <= run.last; r++)
            member->last[r] = run.sequence;
    atomic_store(&member->alarm, true);
}

static void mark_ended(sli_watch *watch, const sli_wire_message *message)
{
    const char *text = message->text;
    sli_hub_run run;
    while (sli_hub_run_read(&text, message->size, &run))
        for (int r = run.first; r <= run.last; r++)
            mark_dead(watch, r, "has ended");
}

static void handle_group_message(sli_watch *watch, const sli_wire_message *message)
{
    sli_member *member = find_member(watch, message);
    if (!member)
        return;
    if (message->kind == SLI_HUB_BREAK) {
        sl_status status = sl_error((sl_status)message->number, "%s", message->text);
        break_member(member, message->sequence
                                 ? sli_error_set_rank(status, member->processes[message->rank])
                                 : status);
    } else if (message->kind == SLI_HUB_READY) {
        atomic_store(&member->ready, true);
    } else if (message->kind == SLI_HUB_LEFT) {
        member->last[message->rank] = message->sequence;
        if (!*member->cause)
            snprintf(member->cause, sizeof member->cause, "%.1023s", message->text);
        atomic_store(&member->alarm, true);
    } else if (message->kind == SLI_HUB_RANKS_LEFT) {
        mark_left(member, message);
    } else if (message->kind == SLI_HUB_ASK) {
        sli_wire_message answer = message_about(member, SLI_HUB_AT);
        answer.sequence = atomic_load(&member->sequence);
        send_to_hub(watch, &answer);
    }
}

static void handle_message(sli_watch *watch, const sli_wire_message *message)
{
    pthread_mutex_lock(&watch->lock);
    if (message->kind == SLI_HUB_DEAD) {
        mark_dead(watch, message->rank, message->text);
    } else if (message->kind == SLI_HUB_ENDED) {
        mark_ended(watch, message);
    } else if (message->kind == SLI_HUB_END) {
        watch->ended = true;
        watch->all_ready = message->number == 0;
    } else {
        handle_group_message(watch, message);
    }
    pthread_mutex_unlock(&watch->lock);
}

static void mark_hub_lost(sli_watch *watch, const char *why)
{
    pthread_mutex_lock(&watch->lock);
    sli_wire_close(&watch->hub);
    if (!watch->ended) {
        watch->hub_is_lost = true;
        mark_dead(watch, 0, why);
    }
    pthread_mutex_unlock(&watch->lock);
}

static void read_messages(sli_watch *watch)
{
    sli_wire_message message;
    sli_wire_state state;
    while ((state = sli_wire_receive(&watch->hub, &message)) == SLI_WIRE_MESSAGE) {
        watch->heard = watch->clock.seconds;
        if (message.kind == SLI_WIRE_ALIVE)
            continue;
        if (!sli_hub_message_is_valid(&message, watch->size)) {
            state = SLI_WIRE_INVALID;
            break;
        }
        handle_message(watch, &message);
    }
    if (state == SLI_WIRE_NOTHING && watch->clock.seconds - watch->heard > SLI_SILENT_SECONDS)
        state = SLI_WIRE_SILENT;
    if (state != SLI_WIRE_NOTHING)
        mark_hub_lost(watch, sli_wire_state_text(state));
}

static void *run_watch(void *argument)
{
    sli_watch *watch = argument;
    struct pollfd polled[2] = {{watch->hub.fd, POLLIN, 0}, {watch->stop, POLLIN, 0}};
    while (!polled[1].revents && watch->hub.fd >= 0) {
        poll(polled, 2, (int)(1000 * SLI_WIRE_TURN_SECONDS));
        double now = sli_running_clock_read(&watch->clock, 2 * SLI_WIRE_TURN_SECONDS);
        read_messages(watch);
        if (now - watch->said_alive < SLI_WIRE_ALIVE_SECONDS)
            continue;
        watch->said_alive = now;
        pthread_mutex_lock(&watch->lock);
        send_to_hub(watch, &(sli_wire_message){.kind = SLI_WIRE_ALIVE});
        pthread_mutex_unlock(&watch->lock);
    }
    return NULL;
}

/* The error because of which this process leaves the group: the group's own, else that of another
 * group; of an error that followed from another rank's, the first one. "" without an error. */
static const char *cause_of_leaving(const sli_watch *watch, const sli_member *member)
{
    const sli_member *broken = member->broken.status != SL_OK ? member : watch->members;
    while (broken && broken->broken.status == SL_OK)
        broken = broken->next;
    if (!broken)
        return "";
    return *broken->cause ? broken->cause : broken->broken.text;
}

/* With the lock held. */
static void send_left(sli_watch *watch, const sli_member *member)
{
    sli_wire_message left = message_about(member, SLI_HUB_LEFT);
    left.sequence = atomic_load(&member->sequence);
    snprintf(left.text, sizeof left.text, "%s", cause_of_leaving(watch, member));
    send_to_hub(watch, &left);
}

/* ---- Making and ending -------------------------------------------------------------------- */

static void watch_free(sli_watch *watch)
{
    sli_wire_close(&watch->hub);
    if (watch->stop >= 0)
        close(watch->stop);
    pthread_mutex_destroy(&watch->lock);
    free(watch->dead);
    free(watch);
}

sl_status sli_watch_create(const sli_wire_address *hub, int rank, int size, sli_watch **out)
{
    *out = NULL;
    sli_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return sli_no_memory(NULL, "%d ranks", size);
    watch->rank = rank;
    watch->size = size;
    watch->hub.fd = -1;
    pthread_mutex_init(&watch->lock, NULL);
    watch->dead = calloc((size_t)size, sizeof *watch->dead);
    watch->stop = eventfd(0, EFD_CLOEXEC);
    sli_wire_call_options options = {.rank = rank,
                                     .ranks = size,
                                     .kinds = SLI_HUB_KINDS,
                                     .host = "",
                                     .whom = "rank 0",
                                     .seconds = call_seconds};
    sl_status status;
    SL_TRY_OR_FAIL(watch->dead && watch->stop >= 0 ? SL_OK : sli_no_memory(NULL, "%d ranks", size));
    SL_TRY_OR_FAIL(sli_wire_call(hub, &options, &watch->hub));
    int code = pthread_create(&watch->thread, NULL, run_watch, watch);
    SL_TRY_OR_FAIL(code == 0 ? SL_OK : sli_no_memory(NULL, "a thread (error %d)", code));
    *out = watch;
    return SL_OK;

fail:
    watch_free(watch);
    return status;
}

bool sli_watch_end(sli_watch *watch, bool ready, void (*progress)(void *argument), void *argument)
{
    sli_wire_message bye = {.kind = SLI_HUB_BYE, .number = !ready};
    pthread_mutex_lock(&watch->lock);
    for (const sli_member *member = watch->members; member; member = member->next)
        send_left(watch, member); /* it begins nothing more in a group that it has not left */
    send_to_hub(watch, &bye);
    while (!watch->ended && !watch->hub_is_lost) {
        pthread_mutex_unlock(&watch->lock);
        progress(argument);
        nanosleep(&(struct timespec){0, 500000}, NULL);
        pthread_mutex_lock(&watch->lock);
    }
    bool all_ready = watch->ended && watch->all_ready;
    pthread_mutex_unlock(&watch->lock);
    return all_ready;
}

void sli_watch_destroy(sli_watch **watch)
{
    if (!*watch)
        return;
    (void)eventfd_write((*watch)->stop, 1);
    pthread_join((*watch)->thread, NULL);
    watch_free(*watch);
    *watch = NULL;
}

/* ---- Groups ------------------------------------------------------------------------------- */

void sli_watch_join(sli_watch *watch, sli_member *member)
{
    for (int r = 0; r < member->size; r++)
        member->last[r] = has_not_left;
    sli_wire_message join = message_about(member, SLI_HUB_JOIN);
    pthread_mutex_lock(&watch->lock);
    atomic_store(&member->alarm, true); /* the first check looks for those that died before */
    member->next = watch->members;
    watch->members = member;
    send_to_hub(watch, &join);
    pthread_mutex_unlock(&watch->lock);
}

sl_status sli_watch_refuse_group(sli_watch *watch, uint64_t id, int rank, int size, sl_status error)
{
    sli_wire_message refusal = {
        .kind = SLI_HUB_REFUSE, .group = id, .rank = rank, .size = size, .number = error};
    sli_ranks_text_add(rank, watch->rank, refusal.text, sizeof refusal.text);
    size_t used = strlen(refusal.text);
    snprintf(refusal.text + used, sizeof refusal.text - used, ": %.480s", sl_error_text());
    pthread_mutex_lock(&watch->lock);
    send_to_hub(watch, &refusal);
    pthread_mutex_unlock(&watch->lock);
    return error;
}

void sli_watch_leave(sli_watch *watch, sli_member *member)
{
    pthread_mutex_lock(&watch->lock);
    sli_member **at = &watch->members;
    while (*at != member)
        at = &(*at)->next;
    *at = member->next;
    send_left(watch, member);
    pthread_mutex_unlock(&watch->lock);
}

bool sli_watch_has_members(sli_watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    bool has = watch->members != NULL;
    pthread_mutex_unlock(&watch->lock);
    return has;
}

sl_status sli_watch_check(sli_watch *watch, sli_member *member, const sli_operation *operation)
{
    pthread_mutex_lock(&watch->lock);
    break_for_absent(watch, member, operation);
    bool absent = watch->hub_is_lost || member->broken.status != SL_OK;
    for (int r = 0; r < member->size; r++)
        absent |= reason_of_absence(watch, member, r, UINT64_MAX) != NULL;
    atomic_store(&member->alarm, absent);
    pthread_mutex_unlock(&watch->lock);
    return sli_watch_status(watch, member);
}

sl_status sli_watch_status(sli_watch *watch, sli_member *member)
{
    pthread_mutex_lock(&watch->lock);
    sl_status status = sli_error_restore(&member->broken);
    pthread_mutex_unlock(&watch->lock);
    return status;
}

sl_status sli_watch_break(sli_watch *watch, sli_member *member, sl_status error)
{
    pthread_mutex_lock(&watch->lock);
    if (member->broken.status == SL_OK) {
        sli_wire_message end = message_about(member, SLI_HUB_BREAK);
        break_member(member, error);
        end.number = error;
        for (int r = 0; r < member->size; r++)
            if (member->processes[r] == member->broken.rank) {
                end.rank = r;
                end.sequence = 1;
            }
        snprintf(end.text, sizeof end.text, "%s", member->broken.text);
        send_to_hub(watch, &end);
    }
    pthread_mutex_unlock(&watch->lock);
    return sli_watch_status(watch, member);
}

sl_status sli_watch_break_late(sli_watch *watch, sli_member *member, const sli_operation *operation,
                               double seconds)
{
    sli_running_clock waited = {0};
    sli_wire_message late = message_about(member, SLI_HUB_LATE);
    late.sequence = operation ? operation->sequence : 0;
    late.seconds = seconds;
    (void)operation_text(operation, late.text);
    pthread_mutex_lock(&watch->lock);
    send_to_hub(watch, &late);
    while (member->broken.status == SL_OK && sli_running_clock_read(&waited, 1) < answer_seconds) {
        pthread_mutex_unlock(&watch->lock);
        nanosleep(&(struct timespec){0, 500000}, NULL);
        pthread_mutex_lock(&watch->lock);
        break_for_absent(watch, member, operation);
    }
    if (member->broken.status == SL_OK)
        break_member(member,
                     sl_error(SL_ERR_CANCELLED,
                              "%s, operation %" PRIu64 " of the group: not finished within %g s",
                              late.text, late.sequence, seconds));
    pthread_mutex_unlock(&watch->lock);
    return sli_watch_status(watch, member);
}

const char *sli_watch_absence(sli_watch *watch, sli_member *member, int rank, bool *has_left)
{
    pthread_mutex_lock(&watch->lock);
    const char *why = watch->dead[member->processes[rank]];
    bool left = member->last[rank] != has_not_left;
    if (left)
        why = "has left the group";
    if (has_left)
        *has_left = left;
    pthread_mutex_unlock(&watch->lock);
    return *why ? why : NULL;
}
