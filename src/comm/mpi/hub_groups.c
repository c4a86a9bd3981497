#include "comm/mpi/hub.h"

#include "comm/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long the ranks have to say which operation they have begun. */
static const double answer_seconds = 1;
/* How long after a rank has left the others are told. Most groups are left by all of their ranks at
 * once: the messages would be as many as ranks times ranks. */
static const double tell_seconds = 0.1;

typedef struct group_rank {
    bool joined, left;
    bool told;  /* the others have been told that it has left */
    bool asked; /* and has not answered yet */
    int process;
    uint64_t sequence; /* the newest operation that it is known to have begun */
} group_rank;

struct sli_hub_group {
    sli_hub_group *next;
    uint64_t id;
    int size, joined, left;
    int untold;     /* ranks that have left, of which the others have not been told */
    bool has_cause; /* the others know the first error because of which a rank has left */
    bool broken, is_late;
    sli_wire_message end;  /* if broken: the first BREAK */
    sli_wire_message late; /* if late: the first LATE */
    double answers_until;
    group_rank ranks[];
};

/* The group with a message's number and size: the message's rank is then one of its ranks. */
static sli_hub_group *find_group(const sli_hub_groups *groups, const sli_wire_message *message)
{
    sli_hub_group *group = groups->first;
    while (group && (group->id != message->group || group->size != message->size))
        group = group->next;
    return group;
}

static void remove_group(sli_hub_groups *groups, sli_hub_group *group)
{
    sli_hub_group **at = &groups->first;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    free(group);
}

static void send_to_group(const sli_hub_groups *groups, const sli_hub_group *group,
                          const sli_wire_message *message)
{
    for (int r = 0; r < group->size; r++)
        if (group->ranks[r].joined && !group->ranks[r].left)
            groups->send(groups->hub, group->ranks[r].process, message);
}

/* `rank`: the one that the error is about; SLI_NO_RANK: none. */
static sli_wire_message break_message(const sli_hub_group *group, sl_status error, int rank)
{
    return (sli_wire_message){.kind = SLI_HUB_BREAK,
                              .group = group->id,
                              .rank = rank == SLI_NO_RANK ? 0 : rank,
                              .size = group->size,
                              .number = error,
                              .sequence = rank != SLI_NO_RANK};
}

/* Adds a rank of the group to a list. One that has not joined has no number in the job yet. */
static void add_rank(const sli_hub_group *group, int rank, char *text, size_t bytes)
{
    const group_rank *member = &group->ranks[rank];
    sli_ranks_text_add(rank, member->joined ? member->process : rank, text, bytes);
}

static void break_group(const sli_hub_groups *groups, sli_hub_group *group,
                        const sli_wire_message *end)
{
    if (group->broken)
        return;
    group->broken = true;
    group->end = *end;
    send_to_group(groups, group, end);
}

/* ---- Operations past their time limit ----------------------------------------------------- */

static void break_naming_missing(const sli_hub_groups *groups, sli_hub_group *group)
{
    const sli_wire_message *late = &group->late;
    char ranks[160] = "";
    int first = SLI_NO_RANK;
    for (int r = 0; r < group->size; r++)
        if (!group->ranks[r].joined || group->ranks[r].sequence < late->sequence) {
            add_rank(group, r, ranks, sizeof ranks);
            first = first == SLI_NO_RANK ? r : first;
        }
    sli_wire_message end = break_message(group, SL_ERR_CANCELLED, first);
    if (first != SLI_NO_RANK)
        snprintf(end.text, sizeof end.text,
                 "%.128s, operation %" PRIu64 " of the group: %s did not come within %g s",
                 late->text, late->sequence, ranks, late->seconds);
    else
        snprintf(end.text, sizeof end.text,
                 "%.128s, operation %" PRIu64
                 " of the group: all ranks came, but it did not finish within %g s",
                 late->text, late->sequence, late->seconds);
    group->is_late = false;
    break_group(groups, group, &end);
}

static void check_late(const sli_hub_groups *groups, sli_hub_group *group)
{
    bool waiting = false;
    if (!group->is_late)
        return;
    for (int r = 0; r < group->size; r++)
        waiting |= group->ranks[r].asked;
    if (!waiting || groups->now > group->answers_until)
        break_naming_missing(groups, group);
}

static void ask_ranks(const sli_hub_groups *groups, sli_hub_group *group,
                      const sli_wire_message *late)
{
    sli_wire_message question = {.kind = SLI_HUB_ASK, .group = group->id, .size = group->size};
    if (group->is_late || group->broken)
        return;
    group->is_late = true;
    group->late = *late;
    group->answers_until = groups->now + answer_seconds;
    for (int r = 0; r < group->size; r++)
        group->ranks[r].asked = group->ranks[r].joined && !group->ranks[r].left;
    send_to_group(groups, group, &question);
    check_late(groups, group);
}

/* ---- Joining and leaving ------------------------------------------------------------------ */

static sli_hub_group *allocate_group(int size)
{
    return calloc(1, sizeof(sli_hub_group) + (size_t)size * sizeof(group_rank));
}

/* The group of the message, made where there is none. Without memory the group is the spare one,
 * broken from the start, so that all that join are told. NULL where there is no memory for a spare
 * one either, which is asked for first: a single failed allocation never leads there. */
static sli_hub_group *find_or_add_group(sli_hub_groups *groups, const sli_wire_message *message)
{
    sli_hub_group *group = find_group(groups, message);
    if (group)
        return group;
    if (!groups->spare)
        groups->spare = allocate_group(groups->processes);
    group = allocate_group(message->size);
    bool complete = group != NULL;
    if (!complete) {
        group = groups->spare;
        groups->spare = NULL;
    }
    if (!group)
        return NULL;
    group->id = message->group;
    group->size = message->size;
    group->next = groups->first;
    groups->first = group;
    if (!complete) {
        group->broken = true;
        group->end = break_message(group, SL_ERR_MEMORY, SLI_NO_RANK);
        snprintf(group->end.text, sizeof group->end.text,
                 "rank 0 of the job has no memory to watch over the group");
    }
    return group;
}

static bool handle_join(sli_hub_groups *groups, int process, const sli_wire_message *message)
{
    sli_hub_group *group = find_or_add_group(groups, message);
    if (!group || group->ranks[message->rank].joined || group->ranks[message->rank].left)
        return false;
    group->ranks[message->rank] = (group_rank){.joined = true, .process = process};
    group->joined++;
    sli_wire_message ready = {.kind = SLI_HUB_READY, .group = group->id, .size = group->size};
    if (group->broken)
        groups->send(groups->hub, process, &group->end);
    else if (group->joined == group->size)
        send_to_group(groups, group, &ready);
    return true;
}

/* Removes the group when its last rank leaves. */
static void mark_left(sli_hub_groups *groups, sli_hub_group *group, int rank, uint64_t sequence)
{
    group->ranks[rank].left = true;
    group->ranks[rank].asked = false;
    group->ranks[rank].sequence = sequence;
    if (++group->left == group->size)
        remove_group(groups, group);
    else
        check_late(groups, group);
}

void sli_hub_groups_tell_soon(sli_hub_groups *groups)
{
    if (groups->tell_at == 0)
        groups->tell_at = groups->now + tell_seconds;
}

/* The others of the group are told, at once of the first error. */
static void tell_later(sli_hub_groups *groups, sli_hub_group *group,
                       const sli_wire_message *message)
{
    if (*message->text && !group->has_cause) {
        group->has_cause = group->ranks[message->rank].told = true;
        send_to_group(groups, group, message);
        return;
    }
    group->untold++;
    sli_hub_groups_tell_soon(groups);
}

/* A group that a rank leaves before all have joined is broken. */
static void handle_left(sli_hub_groups *groups, sli_hub_group *group,
                        const sli_wire_message *message)
{
    sli_wire_message end = break_message(group, SL_ERR_CANCELLED, message->rank);
    char rank[SLI_RANK_BYTES] = "";
    add_rank(group, message->rank, rank, sizeof rank);
    snprintf(end.text, sizeof end.text, "the creation of the group: %s left it%s%.1023s", rank,
             *message->text ? ", after this error: " : "", message->text);
    tell_later(groups, group, message);
    if (group->joined < group->size)
        break_group(groups, group, &end);
    mark_left(groups, group, message->rank, message->sequence);
}

/* The next run of ranks from `rank` on of which the group has not been told. */
static bool next_run(const sli_hub_group *group, int rank, sli_hub_run *out)
{
    const group_rank *ranks = group->ranks;
    while (rank < group->size && (!ranks[rank].joined || !ranks[rank].left || ranks[rank].told))
        rank++;
    if (rank == group->size)
        return false;
    *out = (sli_hub_run){rank, rank, ranks[rank].sequence};
    for (int r = rank + 1; r < group->size && ranks[r].joined && ranks[r].left && !ranks[r].told &&
                           ranks[r].sequence == out->sequence;
         r++)
        out->last = r;
    return true;
}

static void tell_group(const sli_hub_groups *groups, sli_hub_group *group)
{
    const sli_wire_message empty = {.kind = SLI_HUB_RANKS_LEFT,
                                    .group = group->id,
                                    .size = group->size};
    sli_wire_message message = empty;
    sli_hub_run run = {.last = -1};
    while (next_run(group, run.last + 1, &run)) {
        if (!sli_hub_run_write(&run, &message)) {
            send_to_group(groups, group, &message);
            message = empty;
            (void)sli_hub_run_write(&run, &message);
        }
        for (int r = run.first; r <= run.last; r++)
            group->ranks[r].told = true;
    }
    send_to_group(groups, group, &message);
    group->untold = 0;
}

void sli_hub_groups_tell(sli_hub_groups *groups)
{
    for (sli_hub_group *group = groups->first; group; group = group->next)
        if (group->untold > 0)
            tell_group(groups, group);
    groups->tell_at = 0;
}

/* A rank cannot join, or has joined and cannot go on: the others, and those that join later, are
 * told at once. */
static bool handle_refusal(sli_hub_groups *groups, int process, const sli_wire_message *message)
{
    sli_hub_group *group = find_or_add_group(groups, message);
    if (!group)
        return false;
    group_rank *rank = &group->ranks[message->rank];
    if (rank->left || (rank->joined && rank->process != process))
        return false;
    sli_wire_message end = break_message(group, (sl_status)message->number, SLI_NO_RANK);
    memcpy(end.text, message->text, sizeof end.text);
    rank->joined = false; /* it is not told its own error */
    break_group(groups, group, &end);
    mark_left(groups, group, message->rank, 0);
    return true;
}

/* A process's rank of the group; NULL: it has none. */
static group_rank *find_rank(sli_hub_group *group, int process)
{
    for (int r = 0; r < group->size; r++)
        if (group->ranks[r].joined && group->ranks[r].process == process)
            return &group->ranks[r];
    return NULL;
}

bool sli_hub_groups_handle(sli_hub_groups *groups, int process, const sli_wire_message *message)
{
    if (message->kind == SLI_HUB_JOIN)
        return handle_join(groups, process, message);
    if (message->kind == SLI_HUB_REFUSE)
        return handle_refusal(groups, process, message);
    sli_hub_group *group = find_group(groups, message);
    if (!group)
        return false;
    group_rank *rank =
        message->kind == SLI_HUB_BREAK ? find_rank(group, process) : &group->ranks[message->rank];
    if (!rank || !rank->joined || rank->left || rank->process != process)
        return false;
    switch (message->kind) {
    case SLI_HUB_LEFT:
        handle_left(groups, group, message);
        return true;
    case SLI_HUB_BREAK:
        break_group(groups, group, message);
        return true;
    case SLI_HUB_LATE:
        ask_ranks(groups, group, message);
        return true;
    case SLI_HUB_AT:
        rank->asked = false;
        rank->sequence = message->sequence;
        check_late(groups, group);
        return true;
    default:
        return false;
    }
}

void sli_hub_groups_mark_dead(sli_hub_groups *groups, int process)
{
    for (sli_hub_group *group = groups->first; group; group = group->next) {
        for (int r = 0; r < group->size; r++)
            if (group->ranks[r].joined && group->ranks[r].process == process)
                group->ranks[r].asked = false;
        check_late(groups, group);
    }
}

void sli_hub_groups_check_times(sli_hub_groups *groups)
{
    for (sli_hub_group *group = groups->first; group; group = group->next)
        check_late(groups, group);
}

sl_status sli_hub_groups_create(sli_hub_groups *groups)
{
    groups->first = NULL;
    groups->spare = allocate_group(groups->processes);
    return groups->spare ? SL_OK : sli_no_memory(NULL, "%d ranks", groups->processes);
}

void sli_hub_groups_free(sli_hub_groups *groups)
{
    free(groups->spare);
    while (groups->first)
        remove_group(groups, groups->first);
}
