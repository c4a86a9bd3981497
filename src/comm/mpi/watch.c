#include "comm/mpi/watch.h"

#include "comm/mpi/hub.h"
#include "comm/mpi/kinds.h"
#include "core/clock.h"
#include "core/wire_listener.h"

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

enum { WHY_BYTES = 64 };
static const uint64_t has_not_left = UINT64_MAX;
/* How long to wait for the hub's word on a late operation: longer than the hub waits for ranks. */
static const double verdict_seconds = 2.5;
static const double calling_seconds = 30;

struct sli_watch {
    pthread_t thread;
    int rank, size;
    int stop;                /* eventfd: ends the thread */
    sli_running_clock clock; /* the thread's, as the next two */
    double heard, said_alive;
    sli_wire_connection line; /* read by the thread; anyone who has the lock sends */
    pthread_mutex_t lock;     /* guards all below, and the sending */
    sli_member *members;
    char (*dead)[WHY_BYTES]; /* [size] "" where a process lives */
    bool alone;              /* the hub is lost */
    bool ended, all_ready;
};

/* ---- Composing errors, with the lock held ------------------------------------------------- */

static const char *operation_text(const sli_operation *operation, char *text)
{
    if (operation)
        return sli_operation_text(operation, text);
    snprintf(text, SLI_OPERATION_TEXT_BYTES, "the making of the group");
    return text;
}

static void break_member(sli_member *member, sl_status error, const char *text)
{
    if (member->broken)
        return;
    member->broken = true;
    member->error = error;
    snprintf(member->error_text, sizeof member->error_text, "%s", text);
    atomic_store(&member->alarm, true);
}

/* Why `rank` will not come to operation `sequence`; NULL if it may. */
static const char *reason(const sli_watch *watch, const sli_member *member, int rank,
                          uint64_t sequence)
{
    if (member->stays[rank] != has_not_left)
        return member->stays[rank] < sequence ? "left the group before it came" : NULL;
    const char *why = watch->dead[member->processes[rank]];
    return *why ? why : NULL;
}

/* The reason to give: ranks leave because another one has died, so that comes first. */
static const char *first_reason(const sli_watch *watch, const sli_member *member, uint64_t sequence)
{
    const char *first = NULL;
    for (int r = 0; r < member->size; r++) {
        const char *why = reason(watch, member, r, sequence);
        if (why && (!first || member->stays[r] == has_not_left))
            first = why;
    }
    return first;
}

/* "rank 1, 3 died"; "rank 1 (3 of the job) died" where numbers differ. */
static void absence_text(const sli_watch *watch, const sli_member *member, uint64_t sequence,
                         const char *why, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "rank");
    const char *glue = " ";
    for (int r = 0; r < member->size && used < bytes; r++) {
        const char *own = reason(watch, member, r, sequence);
        if (!own || strcmp(own, why) != 0)
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%d", glue, r);
        if (member->processes[r] != r && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, " (%d of the job)",
                                     member->processes[r]);
        glue = ", ";
    }
    if (used < bytes)
        snprintf(text + used, bytes - used, " %s", why);
}

static void break_for_absent(const sli_watch *watch, sli_member *member,
                             const sli_operation *operation)
{
    uint64_t sequence = operation ? operation->sequence : 0;
    char who[256], what[SLI_OPERATION_TEXT_BYTES], text[SLI_WIRE_TEXT_BYTES];
    const char *why = first_reason(watch, member, sequence);
    if (why)
        absence_text(watch, member, sequence, why, who, sizeof who);
    else if (watch->alone)
        snprintf(who, sizeof who, "rank 0 of the job %s, which watches over the others",
                 watch->dead[0]);
    else
        return;
    snprintf(text, sizeof text, "%s, operation %" PRIu64 " of the group: %s",
             operation_text(operation, what), sequence, who);
    break_member(member, SL_ERR_CANCELLED, text);
}

static sl_status member_status(const sli_member *member)
{
    return member->broken ? sl_error(member->error, "%s", member->error_text) : SL_OK;
}

/* ---- The thread --------------------------------------------------------------------------- */

/* By its number and its size, so that a message's rank, which is below its size, is one of it. */
static sli_member *find(const sli_watch *watch, const sli_wire_message *message)
{
    sli_member *at = watch->members;
    while (at && (at->id != message->group || at->size != message->size))
        at = at->next;
    return at;
}

static void tell(sli_watch *watch, const sli_wire_message *message)
{
    if (watch->line.fd >= 0) /* a line that is broken shows when it is read */
        (void)sli_wire_send(&watch->line, message);
}

/* About the group that the process is a member of. */
static sli_wire_message about(const sli_member *member, int kind)
{
    return (sli_wire_message){.kind = kind,
                              .group = member->id,
                              .rank = member->rank,
                              .size = member->size};
}

static void mark_dead(sli_watch *watch, int process, const char *why)
{
    if (*watch->dead[process])
        return;
    snprintf(watch->dead[process], WHY_BYTES, "%.63s", why);
    for (sli_member *at = watch->members; at; at = at->next)
        atomic_store(&at->alarm, true);
}

static void take_group_message(sli_watch *watch, const sli_wire_message *message)
{
    sli_member *member = find(watch, message);
    if (!member)
        return;
    if (message->kind == SLI_HUB_BREAK) {
        if (!atomic_load(&member->ready)) /* others leave because a rank is dead: say that */
            break_for_absent(watch, member, NULL);
        break_member(member, (sl_status)message->number, message->text);
    } else if (message->kind == SLI_HUB_READY) {
        atomic_store(&member->ready, true);
    } else if (message->kind == SLI_HUB_LEFT) {
        member->stays[message->rank] = message->sequence;
        atomic_store(&member->alarm, true);
    } else if (message->kind == SLI_HUB_ASK) {
        sli_wire_message answer = about(member, SLI_HUB_AT);
        answer.sequence = atomic_load(&member->sequence);
        tell(watch, &answer);
    }
}

static void take_message(sli_watch *watch, const sli_wire_message *message)
{
    pthread_mutex_lock(&watch->lock);
    if (message->kind == SLI_HUB_DEAD) {
        mark_dead(watch, message->rank, message->text);
    } else if (message->kind == SLI_HUB_END) {
        watch->ended = true;
        watch->all_ready = message->number == 0;
    } else {
        take_group_message(watch, message);
    }
    pthread_mutex_unlock(&watch->lock);
}

static void lose_hub(sli_watch *watch, const char *why)
{
    pthread_mutex_lock(&watch->lock);
    sli_wire_close(&watch->line);
    if (!watch->ended) {
        watch->alone = true;
        mark_dead(watch, 0, why);
    }
    pthread_mutex_unlock(&watch->lock);
}

static void listen_to_hub(sli_watch *watch)
{
    sli_wire_message message;
    sli_wire_state state;
    while ((state = sli_wire_receive(&watch->line, &message)) == SLI_WIRE_MESSAGE) {
        watch->heard = watch->clock.seconds;
        if (message.kind == SLI_WIRE_ALIVE)
            continue;
        if (!sli_hub_message_is_sound(&message, watch->size)) {
            state = SLI_WIRE_FALSE;
            break;
        }
        take_message(watch, &message);
    }
    if (state == SLI_WIRE_NOTHING && watch->clock.seconds - watch->heard > SLI_SILENT_SECONDS)
        state = SLI_WIRE_SILENT;
    if (state != SLI_WIRE_NOTHING)
        lose_hub(watch, sli_wire_state_text(state));
}

static void *keep_watch(void *argument)
{
    sli_watch *watch = argument;
    struct pollfd polled[2] = {{watch->line.fd, POLLIN, 0}, {watch->stop, POLLIN, 0}};
    while (!polled[1].revents && watch->line.fd >= 0) {
        poll(polled, 2, (int)(1000 * SLI_WIRE_TURN_SECONDS));
        double now = sli_running_clock_read(&watch->clock, 2 * SLI_WIRE_TURN_SECONDS);
        listen_to_hub(watch);
        if (now - watch->said_alive < SLI_WIRE_ALIVE_SECONDS)
            continue;
        watch->said_alive = now;
        pthread_mutex_lock(&watch->lock);
        tell(watch, &(sli_wire_message){.kind = SLI_WIRE_ALIVE});
        pthread_mutex_unlock(&watch->lock);
    }
    return NULL;
}

static void tell_left(sli_watch *watch, const sli_member *member)
{
    sli_wire_message left = about(member, SLI_HUB_LEFT);
    left.sequence = atomic_load(&member->sequence);
    tell(watch, &left);
}

/* ---- Making and ending -------------------------------------------------------------------- */

static void watch_free(sli_watch *watch)
{
    sli_wire_close(&watch->line);
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
        return sl_error(SL_ERR_MEMORY, "no memory for %d ranks", size);
    watch->rank = rank;
    watch->size = size;
    watch->line.fd = -1;
    pthread_mutex_init(&watch->lock, NULL);
    watch->dead = calloc((size_t)size, sizeof *watch->dead);
    watch->stop = eventfd(0, EFD_CLOEXEC);
    sli_wire_call_options options = {.rank = rank,
                                     .ranks = size,
                                     .kinds = SLI_HUB_KINDS,
                                     .host = "",
                                     .whom = "rank 0",
                                     .seconds = calling_seconds};
    sl_status status = SL_OK;
    if (!watch->dead || watch->stop < 0)
        status = sl_error(SL_ERR_MEMORY, "no memory for %d ranks", size);
    if (status == SL_OK)
        status = sli_wire_call(hub, &options, &watch->line);
    int code = status == SL_OK ? pthread_create(&watch->thread, NULL, keep_watch, watch) : 0;
    if (code != 0)
        status = sl_error(SL_ERR_MEMORY, "cannot start a thread (error %d)", code);
    if (status != SL_OK) {
        watch_free(watch);
        return status;
    }
    *out = watch;
    return SL_OK;
}

bool sli_watch_end(sli_watch *watch, bool ready, void (*progress)(void *argument), void *argument)
{
    sli_wire_message bye = {.kind = SLI_HUB_BYE, .number = !ready};
    pthread_mutex_lock(&watch->lock);
    for (const sli_member *at = watch->members; at; at = at->next)
        tell_left(watch, at); /* it begins nothing more in a group that it has not left */
    tell(watch, &bye);
    while (!watch->ended && !watch->alone) {
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
        member->stays[r] = has_not_left;
    sli_wire_message join = about(member, SLI_HUB_JOIN);
    pthread_mutex_lock(&watch->lock);
    atomic_store(&member->alarm, true); /* who died before is looked for once */
    member->next = watch->members;
    watch->members = member;
    tell(watch, &join);
    pthread_mutex_unlock(&watch->lock);
}

sl_status sli_watch_refuse(sli_watch *watch, uint64_t id, int rank, int size, sl_status error)
{
    sli_wire_message refusal = {
        .kind = SLI_HUB_REFUSE, .group = id, .rank = rank, .size = size, .number = error};
    snprintf(refusal.text, sizeof refusal.text, "rank %d: %.480s", rank, sl_error_text());
    pthread_mutex_lock(&watch->lock);
    tell(watch, &refusal);
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
    tell_left(watch, member);
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
    if (!member->broken)
        break_for_absent(watch, member, operation);
    bool absent = watch->alone || member->broken;
    for (int r = 0; r < member->size; r++)
        absent |= reason(watch, member, r, UINT64_MAX) != NULL;
    atomic_store(&member->alarm, absent);
    sl_status status = member_status(member);
    pthread_mutex_unlock(&watch->lock);
    return status;
}

sl_status sli_watch_status(sli_watch *watch, sli_member *member)
{
    pthread_mutex_lock(&watch->lock);
    sl_status status = member_status(member);
    pthread_mutex_unlock(&watch->lock);
    return status;
}

sl_status sli_watch_break(sli_watch *watch, sli_member *member, sl_status error, const char *text)
{
    pthread_mutex_lock(&watch->lock);
    if (!member->broken) {
        sli_wire_message end = about(member, SLI_HUB_BREAK);
        end.number = error;
        break_member(member, error, text);
        memcpy(end.text, member->error_text, sizeof end.text);
        tell(watch, &end);
    }
    sl_status status = member_status(member);
    pthread_mutex_unlock(&watch->lock);
    return status;
}

sl_status sli_watch_late(sli_watch *watch, sli_member *member, const sli_operation *operation,
                         double seconds)
{
    char what[SLI_OPERATION_TEXT_BYTES];
    sli_running_clock waited = {0};
    sli_wire_message late = about(member, SLI_HUB_LATE);
    late.sequence = operation ? operation->sequence : 0;
    late.seconds = seconds;
    snprintf(late.text, sizeof late.text, "%s", operation_text(operation, what));
    pthread_mutex_lock(&watch->lock);
    tell(watch, &late);
    while (!member->broken && sli_running_clock_read(&waited, 1) < verdict_seconds) {
        pthread_mutex_unlock(&watch->lock);
        nanosleep(&(struct timespec){0, 500000}, NULL);
        pthread_mutex_lock(&watch->lock);
        if (!member->broken)
            break_for_absent(watch, member, operation);
    }
    if (!member->broken) {
        char text[SLI_WIRE_TEXT_BYTES];
        snprintf(text, sizeof text,
                 "%.128s, operation %" PRIu64 " of the group: not finished within %g s", late.text,
                 late.sequence, seconds);
        break_member(member, SL_ERR_CANCELLED, text);
    }
    sl_status status = member_status(member);
    pthread_mutex_unlock(&watch->lock);
    return status;
}

const char *sli_watch_absence(sli_watch *watch, sli_member *member, int rank)
{
    pthread_mutex_lock(&watch->lock);
    const char *why = NULL;
    if (member->stays[rank] != has_not_left)
        why = "has left the group";
    else if (*watch->dead[member->processes[rank]])
        why = watch->dead[member->processes[rank]];
    pthread_mutex_unlock(&watch->lock);
    return why;
}
