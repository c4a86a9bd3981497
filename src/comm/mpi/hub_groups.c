#include "comm/mpi/hub_groups.h"

#include "core/clock.h"

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
    int size;
    bool broken, late;
    sli_note end;       /* if broken: the first BREAK */
    sli_note complaint; /* if late: the first LATE */
    double answers_until;
    place places[]; /* by rank within the group */
};

static sli_hub_group *find(const sli_hub_groups *groups, uint64_t id)
{
    sli_hub_group *at = groups->first;
    while (at && at->id != id)
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
                         const sli_note *note)
{
    for (int r = 0; r < group->size; r++)
        if (group->places[r].joined && !group->places[r].left)
            groups->tell(groups->hub, group->places[r].process, note);
}

static void end_group(const sli_hub_groups *groups, sli_hub_group *group, const sli_note *note)
{
    if (group->broken)
        return;
    group->broken = true;
    group->end = *note;
    tell_members(groups, group, note);
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
    const sli_note *late = &group->complaint;
    sli_note note = {.kind = SLI_NOTE_BREAK, .group = group->id, .number = SL_ERR_CANCELLED};
    if (used > 0)
        snprintf(note.text, sizeof note.text,
                 "%.128s, operation %" PRIu64 " of the group: rank %s did not come within %g s",
                 late->text, late->sequence, ranks, late->seconds);
    else
        snprintf(note.text, sizeof note.text,
                 "%.128s, operation %" PRIu64
                 " of the group: all ranks came, but it did not finish within %g s",
                 late->text, late->sequence, late->seconds);
    group->late = false;
    end_group(groups, group, &note);
}

static void decide(const sli_hub_groups *groups, sli_hub_group *group)
{
    bool waiting = false;
    for (int r = 0; r < group->size; r++)
        waiting |= group->places[r].asked;
    if (group->late && (!waiting || sli_clock_seconds() > group->answers_until))
        name_the_missing(groups, group);
}

static void ask(const sli_hub_groups *groups, sli_hub_group *group, const sli_note *late)
{
    if (group->late || group->broken)
        return;
    group->late = true;
    group->complaint = *late;
    group->answers_until = sli_clock_seconds() + answer_seconds;
    for (int r = 0; r < group->size; r++)
        group->places[r].asked = group->places[r].joined && !group->places[r].left;
    tell_members(groups, group, &(sli_note){.kind = SLI_NOTE_ASK, .group = group->id});
    decide(groups, group);
}

/* ---- Joining and leaving ------------------------------------------------------------------ */

static sli_hub_group *add(sli_hub_groups *groups, const sli_note *join)
{
    sli_hub_group *added = calloc(1, sizeof *added + (size_t)join->number * sizeof(place));
    if (!added)
        return NULL;
    added->id = join->group;
    added->size = join->number;
    added->next = groups->first;
    groups->first = added;
    return added;
}

static void take_join(sli_hub_groups *groups, int process, const sli_note *note)
{
    sli_hub_group *group = find(groups, note->group);
    if (!group)
        group = add(groups, note);
    if (!group) {
        sli_note end = {.kind = SLI_NOTE_BREAK,
                        .group = note->group,
                        .number = SL_ERR_MEMORY,
                        .text = "rank 0 has no memory to watch over the group"};
        groups->tell(groups->hub, process, &end);
        return;
    }
    group->places[note->rank] = (place){.joined = true, .process = process};
    if (group->broken)
        groups->tell(groups->hub, process, &group->end);
    for (int r = 0; r < group->size; r++) /* what it has missed */
        if (group->places[r].left) {
            sli_note left = {.kind = SLI_NOTE_LEFT,
                             .group = group->id,
                             .rank = r,
                             .sequence = group->places[r].sequence};
            groups->tell(groups->hub, process, &left);
        }
}

static void take_left(sli_hub_groups *groups, sli_hub_group *group, const sli_note *note)
{
    place *one = &group->places[note->rank];
    one->left = true;
    one->asked = false;
    one->sequence = note->sequence;
    tell_members(groups, group, note);
    int here = 0;
    for (int r = 0; r < group->size; r++)
        here += !group->places[r].left;
    if (here == 0)
        forget(groups, group);
    else
        decide(groups, group);
}

void sli_hub_groups_take(sli_hub_groups *groups, int process, const sli_note *note)
{
    if (note->kind == SLI_NOTE_JOIN) {
        take_join(groups, process, note);
        return;
    }
    sli_hub_group *group = find(groups, note->group);
    if (!group)
        return;
    if (note->kind == SLI_NOTE_LEFT) {
        take_left(groups, group, note);
    } else if (note->kind == SLI_NOTE_BREAK) {
        end_group(groups, group, note);
    } else if (note->kind == SLI_NOTE_LATE) {
        ask(groups, group, note);
    } else if (note->kind == SLI_NOTE_AT) {
        group->places[note->rank].asked = false;
        group->places[note->rank].sequence = note->sequence;
        decide(groups, group);
    }
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

void sli_hub_groups_free(sli_hub_groups *groups)
{
    while (groups->first)
        forget(groups, groups->first);
}
