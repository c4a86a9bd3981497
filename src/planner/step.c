/* How long a step takes: the simulated tables of the micro-batches of a replica's shards, then what
 * replicas exchange, as far as the tables do not hide it, and what tied parameters take, then the
 * update. */
#include "planner/layout.h"

#include "core/error.h"
#include "nn/module.h"
#include "nn/split_head.h"

#include <math.h>
#include <stdlib.h>

/* The buckets of a parameter set (sl_parameter_set_options). */
static const double first_bucket_bytes = 1 << 20, bucket_bytes = 25 << 20;

static double count_buckets(double bytes)
{
    return bytes > 0 ? 1 + ceil(fmax(0, bytes - first_bucket_bytes) / bucket_bytes) : 0;
}

double sli_exchange_seconds(const sl_link_cost *link, double bytes)
{
    return count_buckets(bytes) * link->seconds + bytes * link->seconds_per_byte;
}

/* Bytes of the gradients of modules first ... first + count - 1, without what is cut. */
static double gradient_bytes(const sli_layout *layout, const sli_cut_head *cut, int first,
                             int count)
{
    int64_t elements = 0;
    for (int i = first; i < first + count; i++) {
        const sl_module *module = sl_module_child(layout->model, i);
        if (module != cut->module)
            elements += sli_module_elements(module, SL_PARAMETER_TRAINED);
    }
    if (first == 0 && cut->embedding)
        elements -= sl_shape_count(sl_parameter_shape(cut->embedding));
    return (double)elements * (double)sizeof(float);
}

/* The replica with the most shards trains one after the other. */
static int count_shards(const sli_layout *layout)
{
    return (layout->shards + layout->replicas - 1) / layout->replicas;
}

/* The zeros of the gradients of the tables of modules first ... first + count - 1, in a step. */
static double zero_seconds(const sli_layout *layout, const sli_layout_speed *speed, int first,
                           int count)
{
    int64_t elements = 0;
    for (int i = first; i < first + count; i++)
        elements += sli_module_table_elements(sl_module_child(layout->model, i));
    return count_shards(layout) * (double)elements * (double)sizeof(float) *
           speed->update.table_zero;
}

/* What a step's stages and ranks take besides the table. */
typedef struct step_work {
    double *bytes;             /* [stages] of gradients */
    double *exchange, *gather; /* [ranks] seconds */
    double *update;
} step_work;

static void free_work(step_work *work)
{
    free(work->bytes);
    free(work->exchange);
    free(work->gather);
    free(work->update);
}

static sl_status allocate_work(const sl_schedule *table, step_work *work)
{
    size_t stages = (size_t)sl_schedule_stages(table), ranks = (size_t)sl_schedule_ranks(table);
    *work = (step_work){.bytes = calloc(stages, sizeof *work->bytes),
                        .exchange = calloc(ranks, sizeof *work->exchange),
                        .gather = calloc(ranks, sizeof *work->gather),
                        .update = calloc(ranks, sizeof *work->update)};
    return work->bytes && work->exchange && work->gather && work->update
               ? SL_OK
               : sli_no_memory(NULL, "the times of %zu stages", stages);
}

/* What a rank's exchange and update of so many bytes of gradients take; of ranks on the same cores
 * in turn, under the cores' number. */
static void add_gradient_costs(const sli_layout *layout, const sli_layout_speed *speed, int rank,
                               double bytes, step_work *work)
{
    int owners = layout->zero ? layout->replicas : 1,
        core_set = speed->cores ? speed->cores[rank] : rank;
    if (layout->replicas > 1)
        work->exchange[core_set] += sli_exchange_seconds(&speed->reduce, bytes);
    if (layout->zero)
        work->gather[core_set] += sli_exchange_seconds(&speed->gather, bytes);
    work->update[core_set] += bytes * (speed->update.optimizer / owners + speed->update.undivided);
}

/* Each rank's times for its stages, and for its part of a head that is cut. */
static void add_stages(const sli_layout *layout, const sli_layout_speed *speed, const int *balance,
                       step_work *work)
{
    const int *placement = sl_schedule_placement(layout->table);
    int ranks = sl_schedule_ranks(layout->table);
    const sli_cut_head cut = sli_layout_cut_head(layout);
    for (int s = 0, first = 0; s < sl_schedule_stages(layout->table); first += balance[s++]) {
        int rank = placement[s], core_set = speed->cores ? speed->cores[rank] : rank;
        work->bytes[s] = gradient_bytes(layout, &cut, first, balance[s]);
        add_gradient_costs(layout, speed, rank, work->bytes[s], work);
        work->update[core_set] += zero_seconds(layout, speed, first, balance[s]);
    }
    for (int rank = 0; rank < ranks && cut.module; rank++)
        add_gradient_costs(layout, speed, rank,
                           sli_split_head_fraction(layout->head_blocks, rank, ranks) *
                               (double)sli_cut_head_elements(&cut) * (double)sizeof(float),
                           work);
}

/* How long after its table a rank, whose actions are row[count], has sent its gradients. Those of a
 * stage are ready evenly while the action runs that completes them, and are sent in turn. */
static double late_seconds(const sli_layout_speed *speed, const double *bytes,
                           const sl_timeline_entry *row, int count, double makespan)
{
    double end = 0;
    for (int i = 0; i < count; i++) {
        double of_stage = bytes[row[i].action.stage], start = row[i].start;
        if (!row[i].action.completes || of_stage <= 0)
            continue;
        double buckets = count_buckets(of_stage),
               all = sli_exchange_seconds(&speed->reduce, of_stage),
               first_ready = start + (row[i].end - start) / buckets;
        end = fmax(fmax(end, first_ready) + all, row[i].end + all / buckets);
    }
    return fmax(0, end - makespan);
}

/* Replaces what each rank takes for the gradients by what the table does not hide. */
static void hide_exchange(const sli_layout *layout, const sli_layout_speed *speed,
                          const sl_simulation *simulation, step_work *work)
{
    const sl_timeline_entry *row = simulation->entries, *end = row + simulation->entry_count;
    const int *placement = sl_schedule_placement(layout->table);
    while (row < end) {
        int rank = placement[row->action.stage], count = 1;
        while (row + count < end && placement[row[count].action.stage] == rank)
            count++;
        work->exchange[rank] = late_seconds(speed, work->bytes, row, count, simulation->makespan);
        row += count;
    }
}

/* Pipeline ranks exchange and update at the same time, each for its stages. */
static sl_status time_update(const sli_layout *layout, const sli_layout_speed *speed,
                             const int *balance, const sl_simulation *simulation,
                             sl_step_costs *out)
{
    step_work work;
    sl_status status;
    SL_TRY_OR_FAIL(allocate_work(layout->table, &work));
    add_stages(layout, speed, balance, &work);
    if (speed->hides_exchange && layout->replicas > 1)
        hide_exchange(layout, speed, simulation, &work);
    for (int rank = 0; rank < sl_schedule_ranks(layout->table); rank++) {
        out->exchange = fmax(out->exchange, work.exchange[rank] + work.gather[rank]);
        out->update = fmax(out->update, work.update[rank]);
    }
fail:
    free_work(&work);
    return status;
}

/* ---- Ties ----------------------------------------------------------------------------------- */

typedef struct tie_traffic {
    const sli_layout *layout;
    const int *balance;
    sl_link_cost link; /* 0: no time */
    double sum;        /* seconds for each byte of a tied gradient, after each table */
    double seconds;
} tie_traffic;

/* The pipeline rank of a module. */
static int find_rank(const tie_traffic *traffic, sl_module *module)
{
    int index = sli_module_index_in(sli_module_root(module), module), stage = 0;
    for (int end = traffic->balance[0]; index >= end; end += traffic->balance[++stage])
        continue;
    return sl_schedule_placement(traffic->layout->table)[stage];
}

/* One rank adds the gradients after each table, while the others wait (nn/tied.c), or each rank its
 * part of a split head's. A process that has no values of its own gets them once a step, and sends
 * a gradient after each table (parallel/pipe/pipe_tied.c). */
static sl_status add_tie(sl_parameter *tied, void *arg)
{
    tie_traffic *traffic = arg;
    const sli_layout *layout = traffic->layout;
    int each = layout->has_own_memory ? 1 : sli_layout_rank(layout, 0).count;
    int user = find_rank(traffic, tied->module), owner = find_rank(traffic, tied->tied_to->module);
    int tables = count_shards(layout) * layout->accumulate;
    bool is_split = layout->head_blocks > 0;
    if (!sli_parameter_is_trained(tied))
        return SL_OK;
    double bytes = (double)sl_shape_count(sl_parameter_shape(tied)) * (double)sizeof(float);
    traffic->seconds += tables * bytes * traffic->sum;
    if (user / each != owner / each && !is_split)
        traffic->seconds +=
            (1 + tables) * (traffic->link.seconds + bytes * traffic->link.seconds_per_byte);
    return SL_OK;
}

/* The first stage gets the words of each batch from the ranks that own them, and sends their
 * gradients back (parallel/pipe/pipe_embedding.c). */
static double word_seconds(const sli_layout *layout, const sli_linear *head,
                           const sl_link_cost *link)
{
    int64_t rows =
        sl_schedule_micros(layout->table) * (int64_t)layout->accumulate * layout->micro_rows;
    double words = (double)sli_layout_most_words(layout, rows, head->out),
           bytes = words * (double)head->in * (double)sizeof(float);
    return count_shards(layout) * 2 * (link->seconds + bytes * link->seconds_per_byte);
}

/* Over the slowest link, as not all are known. In a run's measures nothing has bytes: its
 * pipeline's time has what its ties took. */
static double tie_seconds(const sli_layout *layout, const sli_layout_speed *speed,
                          const int *balance)
{
    int ranks = sl_schedule_ranks(layout->table);
    bool divides = layout->head_blocks > 0 && !speed->cores; /* the sum, among the ranks */
    tie_traffic traffic = {.layout = layout,
                           .balance = balance,
                           .sum = speed->update.tie_sum / (divides ? ranks : 1)};
    const sli_cut_head cut = sli_layout_cut_head(layout);
    for (int i = 0; speed->links && i < ranks * ranks; i++)
        if (speed->links[i].seconds_per_byte > traffic.link.seconds_per_byte)
            traffic.link = speed->links[i];
    (void)sli_module_for_each_tie(layout->model, add_tie, &traffic);
    return traffic.seconds + (cut.embedding ? word_seconds(layout, cut.linear, &traffic.link) : 0);
}

/* ---- The step ------------------------------------------------------------------------------- */

/* What the ranks' parts of a split head give back of a micro-batch. */
static double head_sums_bytes(const sli_layout *layout)
{
    int last = sl_module_child_count(layout->model) - 1;
    const sli_linear *head = sli_module_as_linear(sl_module_child(layout->model, last));
    if (layout->head_blocks == 0 || !head)
        return 0;
    const sli_split_head_bytes bytes = sli_split_head_plan(head->out, head->in, layout->head_blocks,
                                                           sl_schedule_ranks(layout->table),
                                                           layout->micro_rows * layout->row_tokens,
                                                           layout->precision == SL_PRECISION_BF16);
    return (double)bytes.all_sums;
}

sl_partition_costs sli_layout_partition_costs(const sli_layout *layout,
                                              const sli_layout_speed *speed)
{
    return (sl_partition_costs){.modules = sl_module_child_count(layout->model),
                                .profiles = speed->profiles,
                                .table = layout->table,
                                .model = layout->model,
                                .head_blocks = layout->head_blocks,
                                .head_sums_bytes = head_sums_bytes(layout),
                                .links = speed->links,
                                .cores = speed->cores};
}

static double count_recomputation(const sl_simulation *simulation)
{
    double again = 0;
    for (int i = 0; i < simulation->entry_count; i++)
        if (simulation->entries[i].action.kind == SL_ACTION_RECOMPUTE)
            again += simulation->entries[i].end - simulation->entries[i].start;
    return again;
}

/* What the ranks do in the pipeline's time. On shared cores an action is as much work as on cores
 * of its own, and the time is all ranks' work. */
static sl_status divide_pipeline(const sli_layout *layout, const sli_layout_speed *speed,
                                 const int *balance, const sl_simulation *simulation,
                                 sl_step_costs *out)
{
    sl_partition_costs apart = sli_layout_partition_costs(layout, speed);
    double again = count_recomputation(simulation), least_idle = simulation->makespan;
    int ranks = sl_schedule_ranks(layout->table);
    sl_simulation own;
    if (simulation->makespan <= 0)
        return SL_OK;
    apart.cores = NULL;
    if (speed->cores && again > 0) {
        SL_TRY(sl_partition_simulate(&apart, balance, &own));
        again = ranks * count_recomputation(&own);
        sl_simulation_clear(&own);
    }
    for (int rank = 0; rank < ranks; rank++)
        least_idle = simulation->idle[rank] < least_idle ? simulation->idle[rank] : least_idle;
    out->recompute = again / ranks / simulation->makespan;
    out->imbalance = simulation->bubble - least_idle / simulation->makespan;
    return SL_OK;
}

sl_status sli_layout_time_step(const sli_layout *layout, const sli_layout_speed *speed,
                               const int *balance, sl_step_costs *out)
{
    const sl_partition_costs costs = sli_layout_partition_costs(layout, speed);
    sl_simulation simulation;
    SL_TRY(sl_partition_simulate(&costs, balance, &simulation));
    *out =
        (sl_step_costs){.pipeline = count_shards(layout) * layout->accumulate * simulation.makespan,
                        .bubble = simulation.bubble};
    sl_status status;
    SL_TRY_OR_FAIL(divide_pipeline(layout, speed, balance, &simulation, out));
    status = time_update(layout, speed, balance, &simulation, out);
    out->exchange += tie_seconds(layout, speed, balance);
    out->seconds = out->pipeline + out->exchange + out->update;
fail:
    sl_simulation_clear(&simulation);
    return status;
}
