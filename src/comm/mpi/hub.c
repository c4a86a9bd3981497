/* How processes learn that another one is no more.
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
 * the host or the link dies nothing closes, so both sides say ALIVE twice a second, and who is
 * silent for SLI_SILENT_SECONDS is given up. The hub tells all others who is DEAD; without the hub
 * nobody would learn of anything, so its loss breaks every group.
 *
 * The hub also keeps the books on groups (hub_groups.c), so that an operation past its time limit
 * can say who never came, and it gathers everybody's BYE: MPI_Finalize waits for all ranks, and so
 * may be called only when all of them will. */
#define _GNU_SOURCE /* accept4 */
#include "comm/mpi/hub.h"

#include "comm/mpi/hub_groups.h"
#include "core/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPARE_CONNECTIONS = 16 }; /* for callers that have not said HELLO yet */
static const double hello_seconds = 2, joining_seconds = 60;

typedef struct caller {
    sli_line line;
    int rank; /* -1: has not said HELLO */
    double heard;
} caller;

typedef struct peer {
    caller *at; /* NULL: not connected yet, or dead */
    bool dead, gone, unready;
} peer;

struct sli_hub {
    pthread_t thread;
    int listener;
    int size, connected;
    sli_hub_address address;
    double started, said_alive;
    bool ended;
    sli_hub_groups groups;
    caller *callers; /* [size + SPARE_CONNECTIONS] */
    struct pollfd *polled;
    peer *peers; /* [size] by rank */
};

/* ---- Losing ranks ------------------------------------------------------------------------- */

static void lose(sli_hub *hub, int rank, const char *why);

static void tell(void *argument, int rank, const sli_note *note)
{
    sli_hub *hub = argument;
    if (hub->peers[rank].at && !sli_note_send(hub->peers[rank].at->line.fd, note))
        lose(hub, rank, "takes no more notes");
}

static void tell_all(sli_hub *hub, const sli_note *note)
{
    for (int r = 0; r < hub->size; r++)
        tell(hub, r, note);
}

static void lose(sli_hub *hub, int rank, const char *why)
{
    peer *lost = &hub->peers[rank];
    if (lost->dead)
        return;
    lost->dead = true;
    if (lost->at) {
        sli_line_close(&lost->at->line);
        lost->at = NULL;
    }
    if (hub->ended)
        return;
    sli_note note = {.kind = SLI_NOTE_DEAD, .rank = rank};
    snprintf(note.text, sizeof note.text, "%s", why);
    sli_hub_groups_lose(&hub->groups, rank);
    tell_all(hub, &note);
}

/* When nobody is left who will not come, MPI_Finalize can be called, or must not be. */
static void end_if_all_are_gone(sli_hub *hub)
{
    sli_note note = {.kind = SLI_NOTE_END};
    for (int r = 0; r < hub->size; r++) {
        const peer *one = &hub->peers[r];
        if (!one->gone && !one->dead)
            return;
        if (one->dead || one->unready)
            note.number = 1;
    }
    hub->ended = true;
    tell_all(hub, &note);
}

/* ---- Callers ------------------------------------------------------------------------------ */

static void take_call(sli_hub *hub)
{
    int fd = accept4(hub->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    for (int i = 0; i < hub->size + SPARE_CONNECTIONS; i++)
        if (hub->callers[i].line.fd < 0) {
            hub->callers[i] = (caller){.line.fd = fd, .rank = -1, .heard = sli_clock_seconds()};
            return;
        }
    close(fd);
}

static bool is_welcome(const sli_hub *hub, const sli_note *note)
{
    return note->kind == SLI_NOTE_HELLO && note->rank >= 0 && note->rank < hub->size &&
           !hub->peers[note->rank].at && !hub->peers[note->rank].dead &&
           memcmp(note->text, hub->address.token, SLI_TOKEN_BYTES) == 0;
}

static void welcome(sli_hub *hub, caller *from, const sli_note *note)
{
    if (!is_welcome(hub, note)) {
        sli_line_close(&from->line);
        return;
    }
    from->rank = note->rank;
    hub->peers[note->rank].at = from;
    hub->connected++;
    tell(hub, note->rank, &(sli_note){.kind = SLI_NOTE_HELLO});
    for (int r = 0; r < hub->size; r++)
        if (hub->peers[r].dead) {
            sli_note dead = {.kind = SLI_NOTE_DEAD, .rank = r, .text = "died"};
            tell(hub, note->rank, &dead);
        }
}

static void take_note(sli_hub *hub, caller *from, const sli_note *note)
{
    if (from->rank < 0) {
        welcome(hub, from, note);
    } else if (note->kind == SLI_NOTE_BYE) {
        hub->peers[from->rank].gone = true;
        hub->peers[from->rank].unready = note->number != 0;
    } else if (note->kind != SLI_NOTE_ALIVE) {
        sli_hub_groups_take(&hub->groups, from->rank, note);
    }
}

static void hang_up(sli_hub *hub, caller *from, const char *why)
{
    if (from->rank >= 0)
        lose(hub, from->rank, why);
    else
        sli_line_close(&from->line);
}

static void listen_to(sli_hub *hub, caller *from)
{
    sli_note note;
    sli_line_state state = SLI_LINE_NOTHING;
    while (from->line.fd >= 0 && (state = sli_note_take(&from->line, &note)) == SLI_LINE_NOTE) {
        from->heard = sli_clock_seconds();
        take_note(hub, from, &note);
    }
    if (from->line.fd >= 0 && state == SLI_LINE_BROKEN)
        hang_up(hub, from, "died");
}

/* ---- The thread --------------------------------------------------------------------------- */

static void look_at_the_clock(sli_hub *hub)
{
    double now = sli_clock_seconds();
    for (int i = 0; i < hub->size + SPARE_CONNECTIONS; i++) {
        caller *one = &hub->callers[i];
        double limit = one->rank < 0 ? hello_seconds : SLI_SILENT_SECONDS;
        if (one->line.fd >= 0 && now - one->heard > limit)
            hang_up(hub, one, "cannot be reached any more");
    }
    if (now - hub->started > joining_seconds)
        for (int r = 0; r < hub->size; r++)
            if (!hub->peers[r].at)
                lose(hub, r, "never connected to rank 0");
    if (now - hub->said_alive >= SLI_ALIVE_SECONDS) {
        hub->said_alive = now;
        tell_all(hub, &(sli_note){.kind = SLI_NOTE_ALIVE});
    }
    sli_hub_groups_tick(&hub->groups);
}

/* Lets every rank read END: a connection that is closed with notes unread would lose it. */
static void see_off(sli_hub *hub)
{
    double until = sli_clock_seconds() + hello_seconds;
    for (int r = 0; r < hub->size; r++)
        while (hub->peers[r].at && sli_clock_seconds() < until) {
            struct pollfd one = {hub->peers[r].at->line.fd, POLLIN, 0};
            sli_note note;
            if (poll(&one, 1, 100) > 0 &&
                sli_note_take(&hub->peers[r].at->line, &note) == SLI_LINE_BROKEN)
                lose(hub, r, "ended");
        }
}

static void *serve(void *argument)
{
    sli_hub *hub = argument;
    int slots = hub->size + SPARE_CONNECTIONS;
    while (!hub->ended) {
        for (int i = 0; i < slots; i++)
            hub->polled[i] = (struct pollfd){hub->callers[i].line.fd, POLLIN, 0};
        hub->polled[slots] = (struct pollfd){hub->listener, POLLIN, 0};
        poll(hub->polled, (nfds_t)slots + 1, (int)(SLI_ALIVE_SECONDS * 500));
        if (hub->polled[slots].revents)
            take_call(hub);
        for (int i = 0; i < slots; i++)
            if (hub->polled[i].revents && hub->callers[i].line.fd == hub->polled[i].fd)
                listen_to(hub, &hub->callers[i]);
        look_at_the_clock(hub);
        end_if_all_are_gone(hub);
    }
    see_off(hub);
    return NULL;
}

/* ---- Making ------------------------------------------------------------------------------- */

static void hub_free(sli_hub *hub)
{
    for (int i = 0; hub->callers && i < hub->size + SPARE_CONNECTIONS; i++)
        sli_line_close(&hub->callers[i].line);
    if (hub->listener >= 0)
        close(hub->listener);
    sli_hub_groups_free(&hub->groups);
    free(hub->callers);
    free(hub->polled);
    free(hub->peers);
    free(hub);
}

sl_status sli_hub_create(int size, sli_hub_address *address, sli_hub **out)
{
    *out = NULL;
    int slots = size + SPARE_CONNECTIONS;
    sli_hub *hub = calloc(1, sizeof *hub);
    if (!hub)
        return sl_error(SL_ERR_MEMORY, "sl_group_create_mpi: no memory for %d ranks", size);
    hub->listener = -1;
    hub->size = size;
    hub->started = sli_clock_seconds();
    hub->groups = (sli_hub_groups){.tell = tell, .hub = hub};
    hub->callers = calloc((size_t)slots, sizeof *hub->callers);
    hub->polled = calloc((size_t)slots + 1, sizeof *hub->polled);
    hub->peers = calloc((size_t)size, sizeof *hub->peers);
    for (int i = 0; hub->callers && i < slots; i++)
        hub->callers[i].line.fd = -1;
    sl_status status = SL_OK;
    if (!hub->callers || !hub->polled || !hub->peers)
        status = sl_error(SL_ERR_MEMORY, "sl_group_create_mpi: no memory for %d ranks", size);
    if (status == SL_OK)
        status = sli_hub_listen(&hub->listener, &hub->address);
    int code = status == SL_OK ? pthread_create(&hub->thread, NULL, serve, hub) : 0;
    if (code != 0)
        status =
            sl_error(SL_ERR_MEMORY, "sl_group_create_mpi: cannot start a thread (error %d)", code);
    if (status != SL_OK) {
        hub_free(hub);
        return status;
    }
    *address = hub->address;
    *out = hub;
    return SL_OK;
}

void sli_hub_destroy(sli_hub **hub)
{
    if (!*hub)
        return;
    pthread_join((*hub)->thread, NULL);
    hub_free(*hub);
    *hub = NULL;
}
