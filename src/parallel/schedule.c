#include "parallel/schedule_table.h"

#include "sluice/option.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

sl_status sli_schedule_check_size(const char *who, int stages, int micros)
{
    if (stages < 1)
        return sl_error(SL_ERR_INVALID, "%s: stages must be at least 1, got %d", who, stages);
    if (micros < 1)
        return sl_error(SL_ERR_INVALID, "%s: micro-batches must be at least 1, got %d", who,
                        micros);
    if (stages > INT_MAX / SLI_ACTIONS_PER_MICRO / micros)
        return sl_error(SL_ERR_INVALID,
                        "%s: a table of %d stages and %d micro-batches is too large", who, stages,
                        micros);
    return SL_OK;
}

sl_status sli_schedule_allocate(const char *who, int stages, int micros, int capacity,
                                sl_schedule **out)
{
    *out = NULL;
    SL_TRY(sli_schedule_check_size(who, stages, micros));
    sl_schedule *schedule = malloc(sizeof *schedule);
    int *ends = calloc((size_t)stages, sizeof *ends);
    sl_action *actions = malloc(((size_t)capacity + 1) * sizeof *actions);
    if (!schedule || !ends || !actions) {
        free(schedule);
        free(ends);
        free(actions);
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a table of %d actions", who, capacity);
    }
    *schedule = (sl_schedule){stages, micros, ends, actions};
    *out = schedule;
    return SL_OK;
}

void sl_schedule_destroy(sl_schedule **schedule)
{
    if (!schedule || !*schedule)
        return;
    free((*schedule)->ends);
    free((*schedule)->actions);
    free(*schedule);
    *schedule = NULL;
}

void sli_schedule_append(sl_schedule *schedule, int stage, sl_action_kind kind, int micro)
{
    int used = schedule->ends[stage];
    if (used == 0 && stage > 0)
        used = schedule->ends[stage - 1];
    schedule->actions[used] = (sl_action){kind, micro};
    schedule->ends[stage] = used + 1;
}

static bool keeps(const sl_schedule *schedule, sl_recompute recompute, int micro)
{
    switch (recompute) {
    case SL_RECOMPUTE_NEVER:
        return true;
    case SL_RECOMPUTE_ALWAYS:
        return false;
    case SL_RECOMPUTE_EXCEPT_LAST:
        return micro == schedule->micros - 1;
    }
    assert(!"a checkpoint mode that does not exist");
    return false;
}

void sli_schedule_append_forward(sl_schedule *schedule, int stage, sl_recompute recompute,
                                 int micro)
{
    bool keep = keeps(schedule, recompute, micro);
    sli_schedule_append(schedule, stage, keep ? SL_ACTION_FORWARD : SL_ACTION_FORWARD_DISCARD,
                        micro);
}

void sli_schedule_append_backward(sl_schedule *schedule, int stage, sl_recompute recompute,
                                  int micro)
{
    if (!keeps(schedule, recompute, micro))
        sli_schedule_append(schedule, stage, SL_ACTION_RECOMPUTE, micro);
    sli_schedule_append(schedule, stage, SL_ACTION_BACKWARD, micro);
}

sl_status sl_schedule_create(sl_schedule_kind kind, int stages, int micros, sl_recompute recompute,
                             sl_schedule **out)
{
    *out = NULL;
    switch (kind) {
    case SL_SCHEDULE_GPIPE:
        return sl_schedule_gpipe(stages, micros, recompute, out);
    case SL_SCHEDULE_1F1B:
        return sl_schedule_1f1b(stages, micros, recompute, out);
    }
    return sl_error(SL_ERR_INVALID, "sl_schedule_create: no schedule has the number %d", (int)kind);
}

sl_status sl_schedule_forward_only(int stages, int micros, sl_schedule **out)
{
    *out = NULL;
    SL_TRY(sli_schedule_check_size("sl_schedule_forward_only", stages, micros));
    SL_TRY(sli_schedule_allocate("sl_schedule_forward_only", stages, micros, stages * micros, out));
    for (int stage = 0; stage < stages; stage++)
        for (int micro = 0; micro < micros; micro++)
            sli_schedule_append(*out, stage, SL_ACTION_FORWARD_DISCARD, micro);
    return SL_OK;
}

sl_status sl_schedule_from_table(int stages, int micros, const int *counts,
                                 const sl_action *actions, sl_schedule **out)
{
    *out = NULL;
    SL_TRY(sli_schedule_check_size("sl_schedule_from_table", stages, micros));
    int total = 0;
    for (int stage = 0; stage < stages; stage++)
        if (counts[stage] < 0 || __builtin_add_overflow(total, counts[stage], &total) ||
            total == INT_MAX)
            return sl_error(SL_ERR_INVALID, "sl_schedule_from_table: stage %d has %d actions",
                            stage, counts[stage]);
    SL_TRY(sli_schedule_allocate("sl_schedule_from_table", stages, micros, total, out));
    int end = 0;
    for (int stage = 0; stage < stages; stage++)
        (*out)->ends[stage] = end += counts[stage];
    if (total > 0)
        memcpy((*out)->actions, actions, (size_t)total * sizeof *actions);
    return SL_OK;
}

int sl_schedule_stages(const sl_schedule *schedule)
{
    return schedule->stages;
}

int sl_schedule_micros(const sl_schedule *schedule)
{
    return schedule->micros;
}

int sl_schedule_actions(const sl_schedule *schedule, int stage, const sl_action **actions)
{
    assert(stage >= 0 && stage < schedule->stages);
    int start = stage > 0 ? schedule->ends[stage - 1] : 0;
    *actions = schedule->actions + start;
    return schedule->ends[stage] - start;
}

bool sli_schedule_is_forward_only(const sl_schedule *schedule)
{
    for (int i = 0; i < schedule->ends[schedule->stages - 1]; i++)
        if (schedule->actions[i].kind != SL_ACTION_FORWARD_DISCARD)
            return false;
    return true;
}

/* ---- Names ------------------------------------------------------------------------------ */

const char *sli_action_name(sl_action_kind kind)
{
    switch (kind) {
    case SL_ACTION_FORWARD:
        return "FORWARD";
    case SL_ACTION_FORWARD_DISCARD:
        return "FORWARD_DISCARD";
    case SL_ACTION_RECOMPUTE:
        return "RECOMPUTE";
    case SL_ACTION_BACKWARD:
        return "BACKWARD";
    }
    return "an unknown action";
}

const char *const sl_schedule_kind_names[] = {"gpipe", "1f1b", NULL};
const char *const sl_recompute_names[] = {"except_last", "never", "always", NULL};

const char *sl_schedule_kind_name(sl_schedule_kind kind)
{
    return kind <= SL_SCHEDULE_1F1B ? sl_schedule_kind_names[kind] : "unknown";
}

const char *sl_recompute_name(sl_recompute recompute)
{
    return recompute <= SL_RECOMPUTE_ALWAYS ? sl_recompute_names[recompute] : "unknown";
}

static sl_status parse_name(const char *what, const char *const *names, const char *text, int *out)
{
    const sl_option option = {.name = what, .type = SL_OPTION_CHOICE, .choices = names};
    return sl_option_set(&option, out, text) == SL_OK
               ? SL_OK
               : sl_error(SL_ERR_NOT_FOUND, "%s", sl_error_text());
}

sl_status sl_schedule_kind_parse(const char *text, sl_schedule_kind *out)
{
    int kind;
    SL_TRY(parse_name("schedule", sl_schedule_kind_names, text, &kind));
    *out = (sl_schedule_kind)kind;
    return SL_OK;
}

sl_status sl_recompute_parse(const char *text, sl_recompute *out)
{
    int mode;
    SL_TRY(parse_name("recompute", sl_recompute_names, text, &mode));
    *out = (sl_recompute)mode;
    return SL_OK;
}
