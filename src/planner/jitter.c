/* What jitter and slow nodes add to a step: each device's time of a step is drawn from a normal
 * distribution, and that of a slow node's devices multiplied. The slowest replica decides. All have
 * one layout, so their times follow, near enough, from one simulation and their ranks' factors; the
 * table is simulated with the times of the one that is found to be the slowest.
 *
 *     replica 0: 1.01 0.99 1.00 1.02      rank 1 is on a slow node: simulated
 *     replica 1: 1.00 1.22 0.98 1.01  <-  */
#include "planner/jitter.h"

#include "core/error.h"
#include "core/philox.h"

#include <math.h>
#include <stdlib.h>

/* ---- Factors -------------------------------------------------------------------------------- */

/* No device takes less than this part of its time. */
static const double least_factor = 0.05;

static void draw_words(uint64_t seed, uint32_t draw, uint32_t number, uint32_t what,
                       uint32_t counter[4])
{
    counter[0] = number;
    counter[1] = draw;
    counter[2] = what;
    counter[3] = 0;
    sli_philox(sli_philox_key_make(seed, SLI_RANDOM_JITTER), counter);
}

/* Above 0 and at most 1. */
static double uniform(uint32_t word)
{
    return ((double)word + 1) * 0x1p-32;
}

void sli_draw_factors(const sli_devices *devices, int used, uint64_t seed, uint32_t draw,
                      double *factors)
{
    enum { DEVICE, NODE };
    const sli_cluster *cluster = devices->cluster;
    double of_node = 1;
    for (int d = 0; d < used; d++) {
        uint32_t words[4];
        if (devices->units[SLI_LEVEL_NODE][d] == d) {
            draw_words(seed, draw, (uint32_t)d, NODE, words);
            of_node = uniform(words[0]) <= cluster->slow_nodes ? cluster->slow_factor : 1;
        }
        draw_words(seed, draw, (uint32_t)d, DEVICE, words);
        double normal = sqrt(-2 * log(uniform(words[0]))) * cos(2 * M_PI * uniform(words[1]));
        factors[d] = of_node * fmax(least_factor, 1 + cluster->spread * normal);
    }
}

/* ---- The slowest replica -------------------------------------------------------------------- */

/* What each rank works in a replica's table whose end is at `makespan`. */
typedef struct rank_work {
    double *busy; /* [ranks] */
    double all, makespan;
} rank_work;

static sl_status find_work(const sli_found_table *table, const int *balance, rank_work *out)
{
    const sl_partition_costs costs =
        sli_layout_partition_costs(&table->timed.layout, &table->timed.speed);
    const int *placement = sl_schedule_placement(table->timed.table);
    sl_simulation simulation;
    out->busy = calloc((size_t)table->grid.pipeline_ranks, sizeof *out->busy);
    if (!out->busy)
        return sli_no_memory(NULL, "the work of %d ranks", table->grid.pipeline_ranks);
    SL_TRY(sl_partition_simulate(&costs, balance, &simulation));
    for (int i = 0; i < simulation.entry_count; i++) {
        const sl_timeline_entry *entry = &simulation.entries[i];
        double seconds = entry->end - entry->start;
        out->busy[placement[entry->action.stage]] += seconds;
        out->all += seconds;
    }
    out->makespan = simulation.makespan;
    sl_simulation_clear(&simulation);
    return SL_OK;
}

/* As long as if one rank decided, which works all its time, and for the rest waits for the others,
 * for each as long as that one works: of the ranks the one for which that is longest. */
static double estimate(const rank_work *work, const sli_device_grid *grid, int replica,
                       const double *factors)
{
    double all = 0, longest = 0;
    for (int rank = 0; rank < grid->pipeline_ranks; rank++)
        all += work->busy[rank] * factors[sli_devices_find(grid, replica, rank)];
    for (int rank = 0; rank < grid->pipeline_ranks; rank++) {
        double busy = work->busy[rank], others = work->all - busy,
               own = busy * factors[sli_devices_find(grid, replica, rank)],
               waits = others > 0 ? (work->makespan - busy) * (all - own) / others : 0;
        longest = fmax(longest, own + waits);
    }
    return longest;
}

static int find_slowest(const rank_work *work, const sli_device_grid *grid, const double *factors)
{
    int slowest = 0;
    double most = 0;
    for (int replica = 0; replica < grid->replicas; replica++) {
        double seconds = estimate(work, grid, replica, factors);
        if (seconds > most) {
            most = seconds;
            slowest = replica;
        }
    }
    return slowest;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static void scale_replica(sli_found_table *table, int replica, const double *factors)
{
    for (int rank = 0; rank < table->grid.pipeline_ranks; rank++)
        sli_timed_table_scale(&table->timed, rank,
                              factors[sli_devices_find(&table->grid, replica, rank)]);
}

sl_status sli_time_replica(sli_found_table *table, const int *balance, int replica,
                           const double *factors, sl_step_costs *out)
{
    scale_replica(table, replica, factors);
    return sli_layout_time_step(&table->timed.layout, &table->timed.speed, balance, out);
}

/* Adds the seconds of each part. */
static void add_costs(const sl_step_costs *costs, sl_step_costs *sum)
{
    sum->seconds += costs->seconds;
    sum->pipeline += costs->pipeline;
    sum->exchange += costs->exchange;
    sum->update += costs->update;
    sum->bubble += costs->bubble * costs->pipeline;
    sum->imbalance += costs->imbalance * costs->pipeline;
    sum->recompute += costs->recompute * costs->pipeline;
}

/* The mean of so many; fractions are those of the mean pipeline. */
static sl_step_costs mean_of(const sl_step_costs *sum, int count)
{
    double pipeline = sum->pipeline > 0 ? sum->pipeline : 1;
    return (sl_step_costs){.seconds = sum->seconds / count,
                           .pipeline = sum->pipeline / count,
                           .exchange = sum->exchange / count,
                           .update = sum->update / count,
                           .bubble = sum->bubble / pipeline,
                           .imbalance = sum->imbalance / pipeline,
                           .recompute = sum->recompute / pipeline};
}

static sl_status draw_steps(sli_found_table *table, const int *balance, const rank_work *work,
                            uint64_t seed, int draws, sl_step_costs *out)
{
    int used = table->grid.replicas * table->grid.pipeline_ranks;
    double *factors = calloc((size_t)used, sizeof *factors);
    sl_step_costs sum = {0}, costs;
    sl_status status = factors ? SL_OK : sli_no_memory(NULL, "the times of %d devices", used);
    for (int draw = 0; draw < draws && status == SL_OK; draw++) {
        sli_draw_factors(&table->search.devices, used, seed, (uint32_t)draw, factors);
        int slowest = find_slowest(work, &table->grid, factors);
        status = sli_time_replica(table, balance, slowest, factors, &costs);
        if (status == SL_OK)
            add_costs(&costs, &sum);
    }
    free(factors);
    *out = mean_of(&sum, draws);
    return status;
}

/* Fewer draws of large tables, in which the factors of many ranks matter together. */
static int count_draws(int64_t actions)
{
    enum { LEAST = 4, MOST = 32 };
    const int64_t most_actions = 1 << 20;
    int64_t draws = most_actions / (actions > 0 ? actions : 1);
    return draws < LEAST ? LEAST : draws > MOST ? MOST : (int)draws;
}

sl_status sli_draw_step(const sli_cluster_job *job, const sli_cluster *cluster,
                        const sli_found_layout *found, uint64_t seed, sl_step_costs *out,
                        int *draws)
{
    sli_found_table table;
    rank_work work = {0};
    *out = found->costs;
    *draws = 0;
    if (!sli_cluster_has_jitter(cluster))
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(sli_found_table_open(job, cluster, found, true, &table));
    SL_TRY_OR_FAIL(find_work(&table, found->balance, &work));
    *draws = count_draws(table.actions);
    status = draw_steps(&table, found->balance, &work, seed, *draws, out);
fail:
    free(work.busy);
    sli_found_table_close(&table);
    return status;
}

/* Gives the table's ranks the times of the slowest replica of the first draw. */
static sl_status scale_slowest(sli_found_table *table, const int *balance, uint64_t seed)
{
    int used = table->grid.replicas * table->grid.pipeline_ranks;
    rank_work work = {0};
    double *factors = calloc((size_t)used, sizeof *factors);
    sl_status status;
    SL_TRY_OR_FAIL(factors ? SL_OK : sli_no_memory(NULL, "the times of %d devices", used));
    SL_TRY_OR_FAIL(find_work(table, balance, &work));
    sli_draw_factors(&table->search.devices, used, seed, 0, factors);
    scale_replica(table, find_slowest(&work, &table->grid, factors), factors);
fail:
    free(work.busy);
    free(factors);
    return status;
}

static sl_status simulate_first(sli_found_table *table, const int *balance, bool is_drawn,
                                uint64_t seed, sl_simulation *out)
{
    if (is_drawn)
        SL_TRY(scale_slowest(table, balance, seed));
    const sl_partition_costs costs =
        sli_layout_partition_costs(&table->timed.layout, &table->timed.speed);
    return sl_partition_simulate(&costs, balance, out);
}

/* The table that was simulated: with what its cut leaves out and splits. */
static sl_status rewrite_table(sli_found_table *table, const int *balance)
{
    const sli_layout *layout = &table->timed.layout;
    int stages = sl_schedule_stages(table->timed.table);
    sl_stage_backward *backward = calloc((size_t)stages, sizeof *backward);
    if (!backward)
        return sli_no_memory(NULL, "the table of %d stages", stages);
    sl_partition_backward(layout->model, stages, balance, backward);
    sl_status status = sl_schedule_freeze(table->timed.table, backward);
    if (status == SL_OK && layout->head_blocks > 0)
        status = sl_schedule_split_head(table->timed.table, sl_partition_head(layout->model));
    free(backward);
    return status;
}

sl_status sli_simulate_found(const sli_cluster_job *job, const sli_cluster *cluster,
                             const sli_found_layout *found, uint64_t seed, int64_t most,
                             sl_schedule **table, sl_simulation *simulation)
{
    sli_found_table opened;
    bool is_drawn = sli_cluster_has_jitter(cluster);
    *simulation = (sl_simulation){0};
    *table = NULL;
    sl_status status = sli_found_table_open(job, cluster, found, is_drawn, &opened);
    if (status == SL_OK && opened.timed.table && opened.actions <= most) {
        status = simulate_first(&opened, found->balance, is_drawn, seed, simulation);
        if (status == SL_OK)
            status = rewrite_table(&opened, found->balance);
        if (status == SL_OK) {
            *table = opened.timed.table;
            opened.timed.table = NULL;
        }
    }
    sli_found_table_close(&opened);
    return status;
}
