#include "comm/mpi/hub_groups.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long the ranks have to say where they are. */
static const double answer_seconds = 1;

typedef struct place {
    bool joined, left;
    bool asked; /* and has not answered yet */
    int process;
    uint64_t sequence; /* the newest operation that it is known to have begun */
} place;

struct sli_hub_group {
    sli_hub_group *next;
    uint64_t id;
    int size, joined;
    bool broken, late;
    sli_wire_message end;       /* if broken: the first BREAK */
    sli_wire_message complaint; /* if late: the first LATE */
    double answers_until;
    place places[]; /* by rank within the group */
};

/* A group is found by its number and its size, so that a message's rank, which is below its size,
 * is one of the group. */
static sli_hub_group *find(const sli_hub_groups *groups, const sli_wire_message *message)
{
    sli_hub_group *at = groups->first;
    while (at && (at->id != message->group || at->size != message->size))
        at = at->next;
    return at;
}

static void forget(sli_hub_groups *groups, sli_hub_group *group)
{
    sli_hub_group **at = &groups->first;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    free(group);
}

static void tell_members(const sli_hub_groups *groups, const sli_hub_group *group,
                         const sli_wire_message *message)
{
    for (int r = 0; r < group->size; r++)
        if (group->places[r].joined && !group->places[r].left)
            groups->tell(groups->hub, group->places[r].process, message);
}

static sli_wire_message break_of(const sli_hub_group *group, sl_status error)
{
    return (sli_wire_message){.kind = SLI_HUB_BREAK,
                              .group = group->id,
                              .size = group->size,
                              .number = error};
}

static void end_group(const sli_hub_groups *groups, sli_hub_group *group,
                      const sli_wire_message *end)
{
    if (group->broken)
        return;
    group->broken = true;
    group->end = *end;
    tell_members(groups, group, end);
}

/* ---- Who is late? ------------------------------------------------------------------------- */

static bool has_come(const sli_hub_group *group, const place *one)
{
    return one->joined && one->sequence >= group->complaint.sequence;
}

static void name_the_missing(const sli_hub_groups *groups, sli_hub_group *group)
{
    char ranks[160] = "";
    size_t used = 0;
    for (int r = 0; r < group->size && used < sizeof ranks; r++)
        if (!has_come(group, &group->places[r]))
            used +=
                (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%d", used ? ", " : "", r);
    const sli_wire_message *late = &group->complaint;
    sli_wire_message end = break_of(group, SL_ERR_CANCELLED);
    if (used > 0)
        snprintf(end.text, sizeof end.text,
                 "%.128s, operation %" PRIu64 " of the group: rank %s did not come within %g s",
                 late->text, late->sequence, ranks, late->seconds);
    else
        snprintf(end.text, sizeof end.text,
                 "%.128s, operation %" PRIu64
                 " of the group: all ranks came, but it did not finish within %g s",
                 late->text, late->sequence, late->seconds);
    group->late = false;
    end_group(groups, group, &end);
}

static void decide(const sli_hub_groups *groups, sli_hub_group *group)
{
    bool waiting = false;
    for (int r = 0; r < group->size; r++)
        waiting |= group->places[r].asked;
    if (group->late && (!waiting || groups->now > group->answers_until))
        name_the_missing(groups, group);
}

static void ask(const sli_hub_groups *groups, sli_hub_group *group, const sli_wire_message *late)
{
    if (group->late || group->broken)
        return;
    group->late = true;
    group->complaint = *late;
    group->answers_until = groups->now + answer_seconds;
    for (int r = 0; r < group->size; r++)
        group->places[r].asked = group->places[r].joined && !group->places[r].left;
    tell_members(groups, group,
                 &(sli_wire_message){.kind = SLI_HUB_ASK, .group = group->id, .size = group->size});
    decide(groups, group);
}

/* ---- Joining and leaving ------------------------------------------------------------------ */

static sli_hub_group *allocate(int size)
{
    return calloc(1, sizeof(sli_hub_group) + (size_t)size * sizeof(place));
}

/* The group of the message, made where there is none. Without memory it is broken from the start,
 * so that all who join hear of it; NULL where even the spare one is used. */
static sli_hub_group *find_or_add(sli_hub_groups *groups, const sli_wire_message *message)
{
    sli_hub_group *group = find(groups, message);
    if (group)
        return group;
    group = allocate(message->size);
    bool complete = group != NULL;
    if (!complete) {
        group = groups->spare;
        groups->spare = NULL;
    } else if (!groups->spare) {
        groups->spare = allocate(groups->processes);
    }
    if (!group)
        return NULL;
    group->id = message->group;
    group->size = message->size;
    group->next = groups->first;
    groups->first = group;
    if (!complete) {
        group->broken = true;
        group->end = break_of(group, SL_ERR_MEMORY);
        snprintf(group->end.text, sizeof group->end.text,
                 "rank 0 of the job has no memory to watch over the group");
    }
    return group;
}

/* Tells a process that has just joined what it has missed. */
static void tell_past(const sli_hub_groups *groups, const sli_hub_group *group, int process)
{
    if (group->broken)
        groups->tell(groups->hub, process, &group->end);
    for (int r = 0; r < group->size; r++)
        if (group->places[r].left) {
            sli_wire_message left = {.kind = SLI_HUB_LEFT,
                                     .group = group->id,
                                     .rank = r,
                                     .size = group->size,
                                     .sequence = group->places[r].sequence};
            groups->tell(groups->hub, process, &left);
        }
}

static bool take_join(sli_hub_groups *groups, int process, const sli_wire_message *message)
{
    sli_hub_group *group = find_or_add(groups, message);
    if (!group || group->places[message->rank].joined || group->places[message->rank].left)
        return false;
    group->places[message->rank] = (place){.joined = true, .process = process};
    group->joined++;
    tell_past(groups, group, process);
    sli_wire_message ready = {.kind = SLI_HUB_READY, .group = group->id, .size = group->size};
    if (group->joined == group->size && !group->broken)
        tell_members(groups, group, &ready);
    return true;
}

static void mark_left(sli_hub_groups *groups, sli_hub_group *group, int rank, uint64_t sequence)
{
    place *one = &group->places[rank];
    one->left = true;
    one->asked = false;
    one->sequence = sequence;
    int here = 0;
    for (int r = 0; r < group->size; r++)
        here += !group->places[r].left;
    if (here == 0)
        forget(groups, group);
    else
        decide(groups, group);
}

static void take_left(sli_hub_groups *groups, sli_hub_group *group, const sli_wire_message *message)
{
    sli_wire_message end = break_of(group, SL_ERR_CANCELLED);
    snprintf(end.text, sizeof end.text, "the making of the group: rank %d left it", message->rank);
    tell_members(groups, group, message);
    if (group->joined < group->size)
        end_group(groups, group, &end);
    mark_left(groups, group, message->rank, message->sequence);
}

/* A rank that could not join, or joined and could not go on: the others, and those that join later,
 * are told at once. */
static bool take_refusal(sli_hub_groups *groups, int process, const sli_wire_message *message)
{
    sli_hub_group *group = find_or_add(groups, message);
    if (!group)
        return false;
    place *one = &group->places[message->rank];
    if (one->left || (one->joined && one->process != process))
        return false;
    sli_wire_message end = break_of(group, (sl_status)message->number);
    memcpy(end.text, message->text, sizeof end.text);
    one->joined = false; /* it needs to hear nothing of it */
    end_group(groups, group, &end);
    mark_left(groups, group, message->rank, 0);
    return true;
}

bool sli_hub_groups_take(sli_hub_groups *groups, int process, const sli_wire_message *message)
{
    if (message->kind == SLI_HUB_JOIN)
        return take_join(groups, process, message);
    if (message->kind == SLI_HUB_REFUSE)
        return take_refusal(groups, process, message);
    sli_hub_group *group = find(groups, message);
    if (!group)
        return false;
    place *one = &group->places[message->rank];
    if (!one->joined || one->left || one->process != process)
        return false;
    if (message->kind == SLI_HUB_LEFT) {
        take_left(groups, group, message);
    } else if (message->kind == SLI_HUB_BREAK) {
        end_group(groups, group, message);
    } else if (message->kind == SLI_HUB_LATE) {
        ask(groups, group, message);
    } else if (message->kind == SLI_HUB_AT) {
        one->asked = false;
        one->sequence = message->sequence;
        decide(groups, group);
    } else {
        return false;
    }
    return true;
}

void sli_hub_groups_lose(sli_hub_groups *groups, int process)
{
    for (sli_hub_group *at = groups->first; at; at = at->next) {
        for (int r = 0; r < at->size; r++)
            if (at->places[r].joined && at->places[r].process == process)
                at->places[r].asked = false;
        decide(groups, at);
    }
}

void sli_hub_groups_tick(sli_hub_groups *groups)
{
    for (sli_hub_group *at = groups->first; at; at = at->next)
        decide(groups, at);
}

sl_status sli_hub_groups_create(sli_hub_groups *groups)
{
    groups->first = NULL;
    groups->spare = allocate(groups->processes);
    return groups->spare ? SL_OK
                         : sl_error(SL_ERR_MEMORY, "no memory for %d ranks", groups->processes);
}

void sli_hub_groups_free(sli_hub_groups *groups)
{
    free(groups->spare);
    while (groups->first)
        forget(groups, groups->first);
}
