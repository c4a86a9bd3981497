/* How processes learn that another one has died.
 *
 * MPI says nothing about it: a receive from a dead process just never ends. So every rank, rank 0
 * included, has a connection of its own, by TCP, to a thread of rank 0:
 *
 *        rank 0             rank 1             rank 2
 *      ┌────────┐         ┌────────┐         ┌────────┐
 *      │ ranks' │←─ MPI ─→│ ranks' │←─ MPI ─→│ ranks' │
 *      │  calls │         │  calls │         │  calls │
 *      │ watch ─┼─┐       │ watch ─┼─┐       │ watch ─┼─┐
 *      │ hub  ←─┼─┴───────┼────────┼─┴───────┼────────┼─┘
 *      └────────┘         └────────┘         └────────┘
 *
 * A process that dies closes its connection, whatever kills it: the hub sees that at once. Where
 * the host or the link dies nothing closes, so both sides say ALIVE twice a second, and a side that
 * is silent for SLI_SILENT_SECONDS is given up. Each side counts only the seconds in which it runs
 * itself (core/clock.h): a job that is suspended as a whole goes on, whichever process wakes first,
 * while one rank that is suspended alone counts as lost. The hub tells all others which process is
 * DEAD. Without the hub no rank would learn of a death, so its loss breaks every group.
 *
 * A group is made in two steps. Each rank prepares all that it needs, then says JOIN, or REFUSE if
 * it could not; when all have joined the hub says READY, and only then they call MPI, which waits
 * for all of them. A refusal reaches the others at once.
 *
 * The hub also knows each group's ranks (hub_groups.c), so that an operation past its time limit
 * names those that never came. And it gathers every rank's BYE: MPI_Finalize waits for all ranks,
 * so it may be called only when all of them will. */
#include "comm/mpi/hub.h"

#include "comm/wire/wire_listener.h"
#include "core/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static const double join_seconds = 60, end_seconds = 2;

typedef struct process {
    bool called, dead;
    bool said_bye, unready; /* to finalize MPI */
    bool told;              /* the others have been told that it has said bye */
} process;

struct sli_hub {
    pthread_t thread;
    sli_wire_listener *listener;
    int size;
    atomic_bool stop;
    bool ended;
    sli_hub_groups groups;
    process *processes; /* [size] by rank */
};

/* Its text is runs of its ranks and nothing else. */
static bool has_runs(const sli_wire_message *message)
{
    const char *text = message->text;
    sli_hub_run run;
    while (sli_hub_run_read(&text, message->size, &run))
        ;
    return text > message->text && *text == '\0';
}

bool sli_hub_message_is_valid(const sli_wire_message *message, int processes)
{
    bool is_error = message->number < SL_OK && message->number >= SL_ERR_CONFLICT;
    switch (message->kind) {
    case SLI_HUB_REFUSE:
        return message->size > 0 && is_error;
    case SLI_HUB_BREAK:
        return message->size > 0 && is_error && message->sequence <= 1;
    case SLI_HUB_DEAD:
        return message->size == processes;
    case SLI_HUB_ENDED:
        return message->size == processes && has_runs(message);
    case SLI_HUB_RANKS_LEFT:
        return has_runs(message);
    case SLI_HUB_BYE:
    case SLI_HUB_END:
        return message->number == 0 || message->number == 1;
    default:
        return message->size > 0;
    }
}

/* ---- Losing ranks ------------------------------------------------------------------------- */

static void send_to_rank(void *argument, int rank, const sli_wire_message *message)
{
    sli_hub *hub = argument;
    sli_wire_listener_send(hub->listener, rank, message);
}

static void send_to_all(sli_hub *hub, const sli_wire_message *message)
{
    for (int r = 0; r < hub->size; r++)
        send_to_rank(hub, r, message);
}

static void send_to_those_that_go_on(sli_hub *hub, const sli_wire_message *message)
{
    for (int r = 0; r < hub->size; r++)
        if (!hub->processes[r].said_bye)
            send_to_rank(hub, r, message);
}

static void tell_of_ended(sli_hub *hub)
{
    const sli_wire_message empty = {.kind = SLI_HUB_ENDED, .size = hub->size};
    sli_wire_message message = empty;
    for (int r = 0; r < hub->size; r++) {
        sli_hub_run run = {r, r - 1, 0};
        for (; r < hub->size && hub->processes[r].said_bye && !hub->processes[r].told; r++) {
            hub->processes[r].told = true;
            run.last = r;
        }
        if (run.last < run.first || sli_hub_run_write(&run, &message))
            continue;
        send_to_those_that_go_on(hub, &message);
        message = empty;
        (void)sli_hub_run_write(&run, &message);
    }
    if (*message.text)
        send_to_those_that_go_on(hub, &message);
}

/* Of the groups first: of a process that has ended, what it did before counts. */
static void tell(sli_hub *hub)
{
    sli_hub_groups_tell(&hub->groups);
    tell_of_ended(hub);
}

static void mark_dead(sli_hub *hub, int rank, const char *why)
{
    process *lost = &hub->processes[rank];
    if (lost->dead || hub->ended)
        return;
    lost->dead = true;
    tell(hub); /* of what it had left before */
    sli_wire_message dead = {.kind = SLI_HUB_DEAD, .rank = rank, .size = hub->size};
    snprintf(dead.text, sizeof dead.text, "%s", why);
    sli_hub_groups_mark_dead(&hub->groups, rank);
    send_to_all(hub, &dead);
}

/* Once every rank has answered or died, it is known whether MPI_Finalize is safe to call. */
static void end_if_all_have_answered(sli_hub *hub)
{
    sli_wire_message end = {.kind = SLI_HUB_END};
    for (int r = 0; r < hub->size; r++) {
        const process *one = &hub->processes[r];
        if (!one->said_bye && !one->dead)
            return;
        if (one->dead || one->unready)
            end.number = 1;
    }
    hub->ended = true;
    send_to_all(hub, &end);
}

/* ---- What the listener tells -------------------------------------------------------------- */

static void on_call(void *argument, int rank, const char *host)
{
    sli_hub *hub = argument;
    (void)host;
    hub->processes[rank].called = true;
    if (hub->processes[rank].dead) { /* it came too late */
        sli_wire_listener_refuse(hub->listener, rank);
        return;
    }
    for (int r = 0; r < hub->size; r++)
        if (hub->processes[r].dead) {
            sli_wire_message dead = {.kind = SLI_HUB_DEAD,
                                     .rank = r,
                                     .size = hub->size,
                                     .text = "died"};
            send_to_rank(hub, rank, &dead);
        }
}

/* The process has left its groups and makes none any more: the others must not wait for it there.
 * They are told together with the groups that it has left, and after that. */
static void handle_bye(sli_hub *hub, int rank, const sli_wire_message *bye)
{
    hub->processes[rank].said_bye = true;
    hub->processes[rank].unready = bye->number != 0;
    sli_hub_groups_tell_soon(&hub->groups);
}

static void on_message(void *argument, int rank, const sli_wire_message *message)
{
    sli_hub *hub = argument;
    bool valid = sli_hub_message_is_valid(message, hub->size);
    hub->groups.now = sli_wire_listener_seconds(hub->listener);
    if (valid && message->kind == SLI_HUB_BYE) {
        handle_bye(hub, rank, message);
    } else if (!valid || !sli_hub_groups_handle(&hub->groups, rank, message)) {
        sli_wire_listener_refuse(hub->listener, rank);
    }
}

static void on_end(void *argument, int rank, sli_wire_state why)
{
    sli_hub *hub = argument;
    hub->groups.now = sli_wire_listener_seconds(hub->listener);
    mark_dead(hub, rank, sli_wire_state_text(why));
}

/* ---- The thread --------------------------------------------------------------------------- */

static void check_times(sli_hub *hub)
{
    hub->groups.now = sli_wire_listener_seconds(hub->listener);
    for (int r = 0; r < hub->size && hub->groups.now > join_seconds; r++)
        if (!hub->processes[r].called)
            mark_dead(hub, r, "never connected to rank 0");
    sli_hub_groups_check_times(&hub->groups);
    if (hub->groups.tell_at > 0 && hub->groups.now > hub->groups.tell_at)
        tell(hub);
}

/* Every rank can read END before the hub hangs up: a connection that is closed with messages
 * unread loses them. */
static void wait_for_hang_up(sli_hub *hub)
{
    double until = sli_wire_listener_seconds(hub->listener) + end_seconds;
    while (sli_wire_listener_connected(hub->listener) > 0 &&
           sli_wire_listener_seconds(hub->listener) < until)
        (void)sli_wire_listener_turn(hub->listener, -1, SLI_WIRE_TURN_SECONDS);
}

static void *run_hub(void *argument)
{
    sli_hub *hub = argument;
    while (!hub->ended && !atomic_load(&hub->stop)) {
        (void)sli_wire_listener_turn(hub->listener, -1, SLI_WIRE_TURN_SECONDS);
        check_times(hub);
        end_if_all_have_answered(hub);
    }
    if (hub->ended)
        wait_for_hang_up(hub);
    sli_wire_listener_hang_up(hub->listener);
    return NULL;
}

/* ---- Making ------------------------------------------------------------------------------- */

static void hub_free(sli_hub *hub)
{
    sli_wire_listener_destroy(&hub->listener);
    sli_hub_groups_free(&hub->groups);
    free(hub->processes);
    free(hub);
}

sl_status sli_hub_create(int size, bool this_host, sli_wire_address *address, sli_hub **out)
{
    *out = NULL;
    sli_hub *hub = calloc(1, sizeof *hub);
    if (!hub)
        return sli_no_memory(NULL, "%d ranks", size);
    hub->size = size;
    hub->groups = (sli_hub_groups){.processes = size, .send = send_to_rank, .hub = hub};
    hub->processes = calloc((size_t)size, sizeof *hub->processes);
    sli_wire_listener_options options = {.ranks = size,
                                         .kinds = SLI_HUB_KINDS,
                                         .this_host = this_host,
                                         .silent_seconds = SLI_SILENT_SECONDS,
                                         .owner = hub,
                                         .called = on_call,
                                         .said = on_message,
                                         .ended = on_end};
    sl_status status;
    SL_TRY_OR_FAIL(hub->processes ? SL_OK : sli_no_memory(NULL, "%d ranks", size));
    SL_TRY_OR_FAIL(sli_hub_groups_create(&hub->groups));
    SL_TRY_OR_FAIL(sli_wire_listen(&options, address, &hub->listener));
    int code = pthread_create(&hub->thread, NULL, run_hub, hub);
    SL_TRY_OR_FAIL(code == 0 ? SL_OK : sli_no_memory(NULL, "a thread (error %d)", code));
    *out = hub;
    return SL_OK;

fail:
    hub_free(hub);
    return status;
}

void sli_hub_stop(sli_hub *hub)
{
    if (hub)
        atomic_store(&hub->stop, true);
}

void sli_hub_destroy(sli_hub **hub)
{
    if (!*hub)
        return;
    pthread_join((*hub)->thread, NULL);
    hub_free(*hub);
    *hub = NULL;
}
