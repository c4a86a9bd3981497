/* The list of writers, and what they have in common. */
#include "parallel/schedule/writers.h"

#include "core/error.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order of sl_schedule_names. */
static const struct writer {
    sli_writer write;
    sli_filling filling;
    int least, own, most;    /* stages of a rank; `own` where the caller does not say */
    sli_placement placement; /* its own */
    bool any_placement;      /* it takes any other as well */
    bool takes_slices;
} writers[] = {
    {sli_write_gpipe, sli_fill_all, 1, 1, 1, SLI_PLACEMENT_LOOP, false, true},
    {sli_write_1f1b, sli_fill_1f1b, 1, 1, 1, SLI_PLACEMENT_LOOP, false, true},
    {sli_write_interleaved, sli_fill_interleaved, 1, 2, INT_MAX, SLI_PLACEMENT_LOOP, false, false},
    {sli_write_looped_bfs, sli_fill_all, 1, 2, INT_MAX, SLI_PLACEMENT_LOOP, true, false},
    {sli_write_zb_h1, sli_fill_1f1b, 1, 1, 1, SLI_PLACEMENT_LOOP, false, true},
    {sli_write_zb_v, sli_fill_zb_v, 2, 2, 2, SLI_PLACEMENT_V, false, false},
};
enum { WRITERS = sizeof writers / sizeof *writers };

const char *const sl_schedule_names[WRITERS + 1] = {
    "gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v", NULL,
};

/* The writer's number; negative: there is none. */
static int find_writer(const char *name)
{
    for (int i = 0; i < WRITERS; i++)
        if (strcmp(name, sl_schedule_names[i]) == 0)
            return i;
    return -1;
}

bool sl_schedule_has_name(const char *name)
{
    return find_writer(name) >= 0;
}

int sl_schedule_virtual_stages(const char *name)
{
    int number = find_writer(name);
    return number < 0 ? 0 : writers[number].own;
}

int sli_fill_all(const sli_filled_row *filled, int k)
{
    (void)k;
    return filled->micros;
}

int sl_schedule_filling(const char *name, const sl_schedule_options *options, int rank, int k)
{
    int number = name ? find_writer(name) : 0;
    if (number < 0)
        return 0;
    const sli_filled_row filled = {.ranks = options->ranks,
                                   .virtual_stages = options->virtual_stages
                                                         ? options->virtual_stages
                                                         : writers[number].own,
                                   .micros = options->micros,
                                   .rank = rank};
    return writers[number].filling(&filled, k);
}

static sl_status unknown_schedule(const char *name)
{
    char list[256];
    size_t used = 0;
    for (int i = 0; i < WRITERS; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 i == 0            ? ""
                                 : i < WRITERS - 1 ? ", "
                                                   : " or ",
                                 sl_schedule_names[i]);
    return sl_error(SL_ERR_NOT_FOUND, "schedule must be %s, got '%s'", list, name);
}

/* ---- Placement -------------------------------------------------------------------------- */

/* Renames the writer's own ranks to those of the wanted placement, into renamed[ranks]; false where
 * the two differ in more than names. */
static bool rename_ranks(const sl_schedule *table, const int *wanted, int *renamed)
{
    for (int rank = 0; rank < table->ranks; rank++)
        renamed[rank] = -1;
    for (int stage = 0; stage < table->stages; stage++) {
        int own = table->placement[stage];
        if (renamed[own] >= 0 && renamed[own] != wanted[stage])
            return false;
        renamed[own] = wanted[stage];
    }
    return true;
}

/* The same rows for ranks of other names. */
static sl_status copy_rows(const sl_schedule *table, const int *renamed, const int *placement,
                           sl_schedule **out)
{
    SL_TRY(sli_schedule_allocate(table->ranks, table->stages, table->micros, placement,
                                 table->count, out));
    (*out)->slices = table->slices;
    int *old_rank = calloc((size_t)table->ranks, sizeof *old_rank);
    if (!old_rank) {
        sl_schedule_destroy(out);
        return sli_no_memory("schedule", "%d ranks", table->ranks);
    }
    for (int rank = 0; rank < table->ranks; rank++)
        old_rank[renamed[rank]] = rank;
    for (int rank = 0; rank < table->ranks; rank++) {
        const sl_action *row;
        int count = sl_schedule_actions(table, old_rank[rank], &row);
        memcpy((*out)->actions + (*out)->count, row, (size_t)count * sizeof *row);
        (*out)->ends[rank] = (*out)->count += (size_t)count;
    }
    free(old_rank);
    return SL_OK;
}

static sl_status apply_placement(const char *name, const int *wanted, sl_schedule **table)
{
    int *renamed = malloc((size_t)(*table)->ranks * sizeof *renamed);
    if (!renamed)
        return sli_no_memory("schedule", "%d ranks", (*table)->ranks);
    sl_status status;
    sl_schedule *placed = NULL;
    if (rename_ranks(*table, wanted, renamed))
        status = copy_rows(*table, renamed, wanted, &placed);
    else
        status = sl_error(SL_ERR_INVALID,
                          "schedule: %s accepts its own placement and permutations of its "
                          "ranks, not this one: leave placement out, or use looped-bfs",
                          name);
    free(renamed);
    SL_TRY(status);
    sl_schedule_destroy(table);
    *table = placed;
    return SL_OK;
}

/* ---- Writing ---------------------------------------------------------------------------- */

static sl_status check_options(int number, const sl_schedule_options *options, int *stages)
{
    const struct writer *writer = &writers[number];
    int each = options->virtual_stages ? options->virtual_stages : writer->own;
    if (each < writer->least || each > writer->most)
        return sl_error(SL_ERR_INVALID, "schedule: %s has %d stage%s a rank, not %d",
                        sl_schedule_names[number], writer->own, writer->own == 1 ? "" : "s", each);
    if (options->ranks < 1 || __builtin_mul_overflow(options->ranks, each, stages))
        return sl_error(SL_ERR_INVALID, "schedule: ranks must be at least 1, got %d",
                        options->ranks);
    if (options->slices > 1 && !writer->takes_slices)
        return sl_error(SL_ERR_INVALID,
                        "schedule: %s does not cut micro-batches into slices: gpipe, 1f1b and "
                        "zb-h1 do",
                        sl_schedule_names[number]);
    const double costs[] = {options->forward, options->backward_input, options->backward_weight,
                            options->link};
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (!(costs[i] >= 0) || !isfinite(costs[i]))
            return sl_error(SL_ERR_INVALID, "schedule: every cost must be a number of 0 or more");
    return SL_OK;
}

/* Of one action. */
static sli_writer_costs action_costs(const sl_schedule_options *options, int virtual_stages,
                                     int slices)
{
    sli_writer_costs costs = {options->forward, options->backward_input, options->backward_weight,
                              options->link};
    if (costs.forward == 0 && costs.input == 0 && costs.weight == 0)
        costs.forward = costs.input = costs.weight = 1;
    costs.forward /= virtual_stages * slices;
    costs.input /= virtual_stages * slices;
    costs.weight /= virtual_stages * slices;
    return costs;
}

static sl_status run_writer(const struct writer *writer, const sl_schedule_options *options,
                            int stages, sl_schedule **out)
{
    const int *placement = options->placement;
    int slices, micros;
    SL_TRY(sli_schedule_count_slices(options, &slices, &micros));
    size_t room = 2 * (size_t)stages * (size_t)(micros > 0 ? micros : 0);
    SL_TRY(sli_schedule_allocate(options->ranks, stages, micros, placement, room, out));
    (*out)->slices = slices;
    if (!placement || !writer->any_placement)
        sli_placement_fill(writer->placement, options->ranks, stages, (*out)->placement);
    sli_writer_costs costs = action_costs(options, stages / options->ranks, slices);
    SL_TRY(writer->write(&costs, *out));
    if (placement && !writer->any_placement)
        SL_TRY(apply_placement(sl_schedule_names[writer - writers], placement, out));
    return sli_schedule_mark(*out);
}

sl_status sl_schedule_write(const char *name, const sl_schedule_options *options, sl_schedule **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    int number = name ? find_writer(name) : 0, stages = 0;
    if (number < 0)
        return unknown_schedule(name);
    SL_TRY(check_options(number, options, &stages));
    sl_status status = run_writer(&writers[number], options, stages, out);
    if (status != SL_OK)
        sl_schedule_destroy(out);
    return status;
}

/* Each rank runs all micro-batches through its first stage, then through the next: no placement
 * deadlocks. */
sl_status sli_schedule_forward_only(const sl_schedule_options *options, sl_schedule **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    int each = options->virtual_stages ? options->virtual_stages : 1, stages, *order;
    if (__builtin_mul_overflow(options->ranks, each, &stages))
        return sl_error(SL_ERR_INVALID, "sli_schedule_forward_only: too many stages");
    size_t cells = options->micros > 0 && stages > 0 ? (size_t)stages * (size_t)options->micros : 0;
    SL_TRY(sli_schedule_allocate(options->ranks, stages, options->micros, options->placement, cells,
                                 out));
    sl_status status;
    SL_TRY_OR_FAIL(sli_schedule_rank_stages(*out, &order));
    for (int i = 0; i < stages; i++)
        for (int micro = 0; micro < options->micros; micro++)
            sli_schedule_append(*out, i / each, order[i], SL_ACTION_FORWARD, micro);
    status = sli_schedule_mark(*out);

fail:
    free(order);
    if (status != SL_OK)
        sl_schedule_destroy(out);
    return status;
}

/* ---- Placements ----------------------------------------------------------------------- */

void sli_placement_fill(sli_placement kind, int ranks, int stages, int *placement)
{
    for (int stage = 0; stage < stages; stage++) {
        int round = stage / ranks, within = stage % ranks;
        bool returns = kind == SLI_PLACEMENT_V && round % 2 == 1;
        placement[stage] = returns ? ranks - 1 - within : within;
    }
}

static sl_status parse_list(const char *text, int ranks, int stages, int *placement)
{
    const char *at = text;
    for (int stage = 0; stage < stages; stage++) {
        char *end;
        long rank = strtol(at, &end, 10);
        bool valid = end != at && *at >= '0' && *at <= '9' && rank >= 0 && rank < ranks;
        if (!valid || *end != (stage + 1 < stages ? ',' : '\0'))
            return sl_error(SL_ERR_INVALID,
                            "placement must be loop, v or the rank (0 to %d) of each of the %d "
                            "stages, got '%s'",
                            ranks - 1, stages, text);
        placement[stage] = (int)rank;
        at = end + 1;
    }
    return SL_OK;
}

sl_status sl_placement_parse(const char *text, int ranks, int virtual_stages, int *placement)
{
    SLI_CHECK_NOT_NULL(text);
    SLI_CHECK_NOT_NULL(placement);
    int stages;
    if (ranks < 1 || virtual_stages < 1 || __builtin_mul_overflow(ranks, virtual_stages, &stages))
        return sl_error(SL_ERR_INVALID,
                        "a placement needs ranks and stages a rank of at least 1, got %d and %d",
                        ranks, virtual_stages);
    if (strcmp(text, "loop") == 0)
        sli_placement_fill(SLI_PLACEMENT_LOOP, ranks, stages, placement);
    else if (strcmp(text, "v") == 0)
        sli_placement_fill(SLI_PLACEMENT_V, ranks, stages, placement);
    else
        return parse_list(text, ranks, stages, placement);
    return SL_OK;
}
