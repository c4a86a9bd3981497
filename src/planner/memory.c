/* What a layout takes: each stage's memory, and a host's. */
#include "planner/layout.h"

#include "core/integers.h"
#include "core/memory.h"
#include "core/sum_tree.h"
#include "core/usable_memory.h"
#include "device/device.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/split_head.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

sli_rank_plan sli_layout_rank(const sli_layout *layout, int rank)
{
    int each = layout->ranks > layout->replicas ? layout->ranks / layout->replicas : 1;
    int count = sl_schedule_ranks(layout->table) / each;
    bool is_near = layout->near_replicas && each > 1;
    int replica = is_near ? rank % layout->replicas : rank / each;
    int index = is_near ? rank / layout->replicas : rank % each;
    return (sli_rank_plan){replica, index, index * count, count};
}

/* ---- One replica ------------------------------------------------------------------------- */

typedef struct tied_plan {
    const sli_layout *layout;
    sl_stage_plan *stages;
    const sl_parameter *cut; /* an embedding that is cut, with the head that is tied to it; NULL */
} tied_plan;

static sl_stage_plan *find_stage(const tied_plan *plan, sl_module *module)
{
    sl_stage_plan *stage = plan->stages;
    int index = sli_module_index_in(sli_module_root(module), module);
    while (index >= stage->first + stage->count)
        stage++;
    return stage;
}

/* A tied parameter has no memory but its gradient, in the stage that uses it. Where that stage is
 * in another process than the owner's, it has a copy of the value as well, and the owner's process
 * a second gradient (parallel/pipe/pipe_tied.c). */
static sl_status add_tied(sl_parameter *tied, void *arg)
{
    const tied_plan *plan = arg;
    if (plan->cut && tied->tied_to == plan->cut)
        return SL_OK;
    sl_stage_plan *user = find_stage(plan, tied->module);
    sl_stage_plan *owner = find_stage(plan, tied->tied_to->module);
    int64_t bytes = sl_shape_count(sl_parameter_shape(tied)) * (int64_t)sizeof(float);
    bool is_trained = sli_parameter_is_trained(tied);
    int each = sli_layout_rank(plan->layout, 0).count;
    if (is_trained)
        user->gradient_bytes += bytes;
    if (user->rank / each == owner->rank / each)
        return SL_OK;
    sl_precision precision = plan->layout->precision;
    bool is_narrow = sli_parameter_dtype(tied, precision) == SL_BF16;
    if (!is_narrow)
        user->parameter_bytes += bytes;
    if (is_narrow ||
        (precision == SL_PRECISION_BF16 && sli_parameter_is_in_products(tied->tied_to)))
        user->parameter_bytes += bytes / 2;
    if (is_trained)
        owner->gradient_bytes += bytes;
    return SL_OK;
}

/* The sums of shards that a replica holds at most beside its gradients. */
static int count_sums(const sli_layout *layout)
{
    int shards = layout->shards, replicas = layout->replicas, most = 0;
    if (shards == replicas)
        return 0;
    for (int r = 0; r < replicas; r++) {
        int height = sli_sum_tree_height(sli_sum_tree_first(shards, r, replicas),
                                         sli_sum_tree_first(shards, r + 1, replicas), shards);
        most = height > most ? height : most;
    }
    return most - 1;
}

/* What parameters take together. */
typedef struct parameter_counts {
    int64_t trained, frozen; /* elements */
    int64_t value_bytes;
} parameter_counts;

static void add_module(const sli_layout *layout, const sl_module *module, parameter_counts *counts)
{
    counts->trained += sli_module_elements(module, SL_PARAMETER_TRAINED);
    counts->frozen += sli_module_elements(module, SL_PARAMETER_FROZEN);
    counts->value_bytes += sli_module_value_bytes(module, layout->precision);
}

/* A trained one, `sign` times. */
static void add_parameter(const sli_layout *layout, const sl_parameter *parameter, int sign,
                          parameter_counts *counts)
{
    counts->trained += sign * sl_shape_count(sl_parameter_shape(parameter));
    counts->value_bytes += sign * sli_parameter_value_bytes(parameter, layout->precision);
}

/* Frozen parameters and buffers are memory without gradient or state. */
static void add_parameters(const sli_layout *layout, const parameter_counts *counts,
                           sl_stage_plan *stage)
{
    int owners = layout->zero ? layout->replicas : 1;
    int64_t trained = counts->trained;
    stage->parameter_elements += trained + counts->frozen;
    stage->parameter_bytes += counts->value_bytes;
    stage->gradient_bytes += (1 + count_sums(layout)) * trained * (int64_t)sizeof(float);
    stage->optimizer_bytes +=
        (trained + owners - 1) / owners * sl_optimizer_state_bytes(&layout->optimizer);
    stage->best_bytes += layout->keeps_best ? trained * (int64_t)sizeof(float) : 0;
}

/* ---- A split head (parallel/pipe/pipe_head_values.c) ---------------------------------------- */

sli_cut_head sli_layout_cut_head(const sli_layout *layout)
{
    const sl_module *module =
        sl_module_child(layout->model, sl_module_child_count(layout->model) - 1);
    const sli_linear *linear = sli_module_as_linear(module);
    bool in_one_process = sli_layout_rank(layout, 0).count == sl_schedule_ranks(layout->table);
    if (layout->head_blocks == 0 || !linear || in_one_process)
        return (sli_cut_head){0};
    return (sli_cut_head){module, linear, linear->weight->tied_to};
}

int64_t sli_cut_head_elements(const sli_cut_head *head)
{
    return sli_module_elements(head->module, SL_PARAMETER_TRAINED) +
           (head->embedding ? sl_shape_count(sl_parameter_shape(head->embedding)) : 0);
}

/* What is in the stage's set, parts apart. */
static void plan_parameters(const sli_layout *layout, const sli_cut_head *cut, sl_stage_plan *stage)
{
    parameter_counts counts = {0};
    for (int i = stage->first; i < stage->first + stage->count; i++) {
        const sl_module *module = sl_module_child(layout->model, i);
        if (module != cut->module)
            add_module(layout, module, &counts);
    }
    if (cut->embedding && stage->first == 0)
        add_parameter(layout, cut->embedding, -1, &counts);
    add_parameters(layout, &counts, stage);
}

/* How many classes a rank has. */
static int64_t count_classes(const sli_layout *layout, int64_t classes, int rank)
{
    int first, end, blocks = sli_split_head_blocks(classes, layout->head_blocks);
    sli_split_head_find_part(blocks, rank, sl_schedule_ranks(layout->table), &first, &end);
    sli_class_range range = sli_class_range_of(classes, blocks, first, end);
    return range.end - range.first;
}

int64_t sli_layout_most_words(const sli_layout *layout, int64_t rows, int64_t classes)
{
    int64_t tokens = rows * layout->row_tokens;
    return sli_smaller(tokens, classes);
}

/* The first stage's table of a batch's words, for training or evaluation, and its gradient. */
static void add_table(const sli_layout *layout, const sli_linear *head, sl_stage_plan *first)
{
    int64_t micros = sl_schedule_micros(layout->table) * (int64_t)layout->accumulate;
    int64_t trained = sli_layout_most_words(layout, micros * layout->micro_rows, head->out);
    int64_t evaluated =
        sli_layout_most_words(layout, layout->eval_micros * layout->eval_micro_rows, head->out);
    int64_t row_bytes = head->in * (int64_t)sizeof(float);
    first->parameter_bytes += sli_larger(trained, evaluated) * row_bytes;
    first->gradient_bytes += trained * row_bytes;
}

/* Each rank's part, at its first stage; at the last stage the copies of the whole head, for
 * evaluation and for checkpoints. A tied head has its gradient beside the embedding's, of which the
 * first stage has the rows of a batch. */
static void add_cut_head(const sli_layout *layout, const sli_cut_head *cut, sl_stage_plan *stages)
{
    const sli_linear *head = cut->linear;
    int count = sl_schedule_stages(layout->table);
    int64_t weights = head->in * head->out, copies = layout->keeps_best ? 2 : 1;
    bool has_part[SLI_MAX_PLANNED_STAGES] = {false};
    parameter_counts all = {0};
    add_module(layout, cut->module, &all);
    if (cut->embedding)
        add_parameter(layout, cut->embedding, 1, &all);
    for (int s = 0; s < count; s++) {
        int rank = stages[s].rank;
        if (has_part[rank])
            continue;
        has_part[rank] = true;
        int64_t classes = count_classes(layout, head->out, rank);
        parameter_counts part = {all.trained / head->out * classes,
                                 all.frozen / head->out * classes,
                                 all.value_bytes / head->out * classes};
        add_parameters(layout, &part, &stages[s]);
        if (cut->embedding)
            stages[s].gradient_bytes += classes * head->in * (int64_t)sizeof(float);
    }
    stages[count - 1].parameter_bytes +=
        weights * (layout->precision == SL_PRECISION_BF16 ? 2 : 4) +
        (all.trained + all.frozen - weights) * (int64_t)sizeof(float);
    stages[count - 1].saved_bytes += (copies * all.trained + all.frozen) * (int64_t)sizeof(float);
    if (cut->embedding)
        add_table(layout, head, &stages[0]);
}

sl_status sli_layout_plan_stages(const sli_layout *layout, const int *balance,
                                 sl_stage_plan *stages)
{
    const int *placement = sl_schedule_placement(layout->table);
    int count = sl_schedule_stages(layout->table);
    sli_cut_head cut = sli_layout_cut_head(layout);
    tied_plan plan = {layout, stages, cut.embedding};
    for (int s = 0, first = 0; s < count; s++) {
        stages[s] = (sl_stage_plan){.rank = placement[s], .first = first, .count = balance[s]};
        first += balance[s];
        plan_parameters(layout, &cut, &stages[s]);
    }
    if (layout->row_tokens > 0)
        SL_TRY(sli_module_for_each_tie(layout->model, add_tied, &plan));
    for (int s = 0; s < count; s++)
        stages[s].saved_bytes = stages[s].parameter_bytes + stages[s].best_bytes;
    if (cut.module)
        add_cut_head(layout, &cut, stages);
    return layout->row_tokens > 0 ? sli_layout_plan_activations(layout, stages) : SL_OK;
}

/* ---- All ranks of a host -------------------------------------------------------------------- */

uint64_t sl_usable_memory(void)
{
    return sli_usable_memory("");
}

static void add_device(const sl_stage_plan *stage, bool keeps_best, sl_host_plan *out)
{
    out->parameter_bytes += stage->parameter_bytes;
    out->gradient_bytes += stage->gradient_bytes;
    out->optimizer_bytes += stage->optimizer_bytes;
    out->activation_bytes += stage->activation_bytes + stage->workspace_bytes + stage->cached_bytes;
    if (keeps_best)
        out->best_bytes += stage->best_bytes;
}

/* A pipeline rank of a replica, on a host. */
typedef struct host_rank {
    int rank;
    bool on_host;    /* its memory is the host's */
    bool is_first;   /* of the first replica, which saves what is the same on all */
    bool keeps_best; /* its process has a copy of the best parameters for it */
} host_rank;

/* Adds what the pipeline rank has in host memory. Each replica saves its shard of the optimizer's
 * state. */
static void add_pipeline_rank(const sli_layout *layout, const sl_stage_plan *stages, host_rank own,
                              sl_host_plan *out)
{
    for (int s = 0; s < sl_schedule_stages(layout->table); s++) {
        const sl_stage_plan *stage = &stages[s];
        if (stage->rank != own.rank)
            continue;
        if (own.on_host)
            add_device(stage, own.keeps_best, out);
        if (!layout->saves)
            continue;
        if (own.is_first)
            out->saved_bytes += stage->saved_bytes;
        if (own.is_first || layout->zero)
            out->saved_bytes += stage->optimizer_bytes;
    }
}

static void add_up(const sli_layout *layout, sl_host_plan *out)
{
    if (layout->activation_factor > 0)
        out->activation_bytes = llround(layout->activation_factor * (double)out->activation_bytes);
    out->total_bytes = out->parameter_bytes + out->gradient_bytes + out->optimizer_bytes +
                       out->activation_bytes + out->best_bytes + out->saved_bytes +
                       out->process_bytes;
}

/* The devices of all hosts have the same names. */
void sli_layout_plan_host(const sli_layout *layout, const sl_stage_plan *stages, int first_rank,
                          int ranks, sl_host_plan *out)
{
    int processes = layout->processes ? ranks : 1;
    *out = (sl_host_plan){.process_bytes = processes * layout->process_bytes};
    for (int rank = first_rank; rank < first_rank + ranks; rank++) {
        sli_rank_plan part = sli_layout_rank(layout, rank),
                      here = sli_layout_rank(layout, layout->first_rank + rank - first_rank);
        const sl_device_plan *devices =
            layout->devices + here.replica * sl_schedule_ranks(layout->table) + here.first;
        for (int i = 0; i < part.count; i++) {
            const char *device = devices[i].name;
            add_pipeline_rank(layout, stages,
                              (host_rank){.rank = part.first + i,
                                          .on_host =
                                              !*device || sli_device_name_has_host_memory(device),
                                          .is_first = part.replica == 0,
                                          /* one copy a process */
                                          .keeps_best = layout->processes || rank == first_rank},
                              out);
        }
    }
    add_up(layout, out);
}

void sli_layout_plan_own_host(const sli_layout *layout, const sl_stage_plan *stages, int rank,
                              sl_host_plan *out)
{
    *out = (sl_host_plan){.process_bytes = layout->process_bytes};
    for (int s = 0; s < sl_schedule_stages(layout->table); s++)
        if (stages[s].rank == rank)
            add_device(&stages[s], layout->keeps_best, out);
    add_up(layout, out);
}

const char *sl_host_plan_text(const sl_host_plan *host, char text[SL_HOST_PLAN_BYTES])
{
    static const char *const names[] = {"parameters",      "gradients",
                                        "optimizer",       "activations and workspace",
                                        "best parameters", "copies for checkpoints",
                                        "the program"};
    const int64_t bytes[] = {host->parameter_bytes,  host->gradient_bytes, host->optimizer_bytes,
                             host->activation_bytes, host->best_bytes,     host->saved_bytes,
                             host->process_bytes};
    size_t used = 0;
    *text = '\0';
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes && used < SL_HOST_PLAN_BYTES; i++) {
        char amount[SLI_BYTES_TEXT_SIZE];
        if (bytes[i] > 0)
            used +=
                (size_t)snprintf(text + used, SL_HOST_PLAN_BYTES - used, "%s%s %s",
                                 used > 0 ? ", " : "", names[i], sli_bytes_text(bytes[i], amount));
    }
    return text;
}
