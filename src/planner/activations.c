/* What each stage's device holds of activations, from shapes and the schedule's table.
 *
 * Which rank runs ahead of which differs from run to run, so what waits between two stages is
 * bounded. A stage's micro-batch is *under way* from its forward to its backward.
 *
 *   - What stage s has sent to s + 1 comes back as a gradient of the same size. The output, where
 * it still waits to be sent, and its gradient, where that waits to be taken, are never there at
 *     once: no more of both than micro-batches under way.
 *   - Stage s - 1 has no more than `most` micro-batches under way, and one that has left s by its
 *     backward may still be. So the inputs that wait for s are no more than `most` less those under
 *     way at s, nor more than are still to come. */
#include "planner/layout.h"

#include "core/error.h"
#include "core/integers.h"
#include "device/device.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/split_head.h"

#include <stdlib.h>

/* ---- One micro-batch ---------------------------------------------------------------------- */

/* One micro-batch, or slice, in one stage. A module's workspace is less than what it saves, or,
 * with weights that are frozen and save less, than what its forward makes. */
typedef struct micro_plan {
    int64_t input, output;     /* bytes; 0 for the first stage's input, ids that the caller owns */
    int64_t saved;             /* from forward to backward, or to its input's half */
    int64_t deferred;          /* between backward's halves */
    int64_t halfway;           /* during backward's first half: what some modules have saved and the
                                  others deferred, and one of them of both */
    int64_t workspace;         /* of forward and backward */
    int64_t loss;              /* workspace of the loss, with the last module */
    int64_t sums;              /* on a CPU: the scratch for the sums of a bias's gradient */
    int64_t forward;           /* of a forward that keeps nothing: the input and the output of the
                                  module where the stage holds most */
    int64_t forward_workspace; /* of this module */
    int64_t forward_cached;    /* of such a forward, of the module where the allocator's cache holds
                                  most: what it then holds, and what the module has */
    int64_t logits;            /* of a forward that keeps nothing: the loss's workspace */
    int64_t head;              /* between S and T, at its rank's first stage */
    int64_t head_sums;         /* of S */
    int64_t all_sums;          /* of the S of all ranks, at the last stage */
    int64_t cache, cache_gradient; /* of slices: for a whole micro-batch, what attention keeps for
                                      all of them, and its gradient from the first backward on */
} micro_plan;

static int64_t bytes_of(const sl_shape *shape)
{
    return sl_shape_count(shape) * (int64_t)sizeof(float);
}

/* Bytes of f32 as they are kept and sent, but for a module's exact ones. */
static int64_t kept_bytes(const sli_layout *layout, int64_t bytes)
{
    return layout->precision == SL_PRECISION_BF16 ? (bytes + 1) / 2 : bytes;
}

/* Bytes of f32 that a module works on. In bf16 products take copies of them. */
static int64_t work_bytes(const sli_layout *layout, int64_t bytes)
{
    return layout->precision == SL_PRECISION_BF16 ? bytes + bytes / 2 : bytes;
}

/* Whether a stage's devices, of the same kind in every replica, are CPUs. */
static bool is_on_host(const sli_layout *layout, const sl_stage_plan *stage)
{
    const char *device = layout->devices[stage->rank].name;
    return !*device || sli_device_name_has_host_memory(device);
}

/* Of the loss alone, whose logits have no gradient: they are f32 in any precision. */
static int64_t logits_bytes(const sli_layout *layout, const sl_stage_plan *stage,
                            const sl_shape *logits)
{
    int64_t classes = logits->size[logits->dims - 1];
    return sli_cross_entropy_workspace_bytes(sl_shape_count(logits) / classes, classes,
                                             SL_PRECISION_F32, is_on_host(layout, stage));
}

static bool trains_bias(const sl_module *head)
{
    const sli_linear *linear = sli_module_as_linear(head);
    return linear && sli_linear_trains_bias(linear);
}

/* What the loss needs at once. Where every backward is in halves, the gradient of all logits waits
 * for the second one, in the logits' own place in f32. */
static int64_t head_workspace_bytes(const sli_layout *layout, const sl_stage_plan *stage,
                                    bool defers_head, const sl_shape *logits)
{
    int64_t classes = logits->size[logits->dims - 1];
    if (!defers_head)
        return sli_cross_entropy_workspace_bytes(sl_shape_count(logits) / classes, classes,
                                                 layout->precision, is_on_host(layout, stage));
    return layout->precision == SL_PRECISION_BF16 ? logits_bytes(layout, stage, logits) : 0;
}

/* What a module holds in a forward that keeps nothing. In bf16 it works on a copy in f32 of its
 * input, and its products on one in bf16. */
static void plan_forward(const sli_layout *layout, int index, const sl_shape *in,
                         const sl_shape *next, micro_plan *out)
{
    const sl_module *module = sl_module_child(layout->model, index);
    int64_t in_bytes = index > 0 ? bytes_of(in) : 0;
    int64_t input = kept_bytes(layout, in_bytes);
    if (layout->precision == SL_PRECISION_BF16)
        input += work_bytes(layout, in_bytes);
    int64_t all = input + sli_module_forward_bytes(module, in, next),
            cached =
                input + sli_module_cached_bytes(module, sl_shape_count(in) / in->size[in->dims - 1],
                                                layout->precision);
    out->forward_cached = sli_larger(out->forward_cached, sli_larger(all, cached));
    if (all <= out->forward + out->forward_workspace)
        return;
    out->forward = kept_bytes(layout, in_bytes) + kept_bytes(layout, bytes_of(next));
    out->forward_workspace = sli_larger(all - out->forward, 0);
}

/* Adds what a module passes on from forward to backward: `saved` bytes, of which `exact` are f32 in
 * any precision, without the `cached` ones that slices have elsewhere; and between backward's
 * halves, but for a split head. */
static void add_passed_on(const sli_layout *layout, const sl_module *module, const sl_shape *in,
                          bool is_split, int64_t saved, int64_t exact, int64_t cached,
                          micro_plan *out)
{
    int64_t deferred = is_split ? 0 : kept_bytes(layout, sl_module_deferred_bytes(module, in));
    int64_t both = is_split ? saved : sli_module_halfway_bytes(module, in) - cached;
    both = kept_bytes(layout, both - exact) + exact;
    if (layout->precision == SL_PRECISION_BF16) /* the input's gradient is another tensor */
        both = sli_larger(both, deferred + kept_bytes(layout, bytes_of(in)));
    out->halfway = sli_larger(out->halfway, out->saved + both - out->deferred - deferred);
    out->saved += kept_bytes(layout, saved - exact) + exact;
    out->deferred += deferred;
}

/* The first `frozen` modules keep nothing but for `slices`, where there are several. *shape is that
 * of the stage's input, and becomes that of its output. The last stage keeps its output, the
 * decoder's input, for the loss, which takes the decoder over. */
static sl_status plan_micro(const sli_layout *layout, const sl_stage_plan *stage, int frozen,
                            int slices, bool defers_head, sl_shape *shape, micro_plan *out)
{
    const sl_module *model = layout->model;
    int last = sl_module_child_count(model) - 1;
    *out = (micro_plan){.input = stage->first > 0 ? kept_bytes(layout, bytes_of(shape)) : 0};
    for (int i = stage->first; i < stage->first + stage->count; i++) {
        const sl_module *module = sl_module_child(model, i);
        sl_shape next;
        SL_TRY(sl_module_output_shape(module, shape, &next));
        int64_t saved = i == last ? bytes_of(shape) : sl_module_saved_bytes(module, shape);
        int64_t classes = next.size[next.dims - 1], rows = sl_shape_count(&next) / classes;
        bool is_split = i == last && layout->head_blocks > 0;
        if (i == last && !is_split) {
            out->loss = head_workspace_bytes(layout, stage, defers_head, &next);
            if (is_on_host(layout, stage) && trains_bias(module))
                out->sums = sli_cpu_sums_bytes(rows, classes);
        }
        int64_t exact = i == last ? 0 : sli_module_exact_bytes(module, rows);
        int64_t cached = sli_module_slice_bytes(module, 1, rows);
        if (slices > 1) {
            int64_t all = sli_module_slice_bytes(module, layout->micro_rows, layout->row_tokens);
            saved -= cached;
            out->cache += all;
            out->cache_gradient += i >= frozen ? all : 0;
        }
        if (i >= frozen)
            add_passed_on(layout, module, shape, is_split, saved, exact, slices > 1 ? cached : 0,
                          out);
        if (i == last) {
            out->logits = logits_bytes(layout, stage, &next);
            continue;
        }
        int64_t blocks = sli_module_cached_bytes(module, rows, SL_PRECISION_F32);
        out->workspace = sli_larger(out->workspace, work_bytes(layout, sli_larger(saved, blocks)));
        plan_forward(layout, i, shape, &next, out);
        *shape = next;
    }
    out->halfway += out->deferred;
    out->output = kept_bytes(layout, bytes_of(shape));
    return SL_OK;
}

sl_status sli_layout_count_saved(const sli_layout *layout, int64_t *saved, int64_t *passed)
{
    int frozen = sli_module_frozen_count(layout->model);
    sl_shape shape = sl_shape_2d(layout->micro_rows, layout->row_tokens);
    for (int i = 0; i < sl_module_child_count(layout->model); i++) {
        const sl_stage_plan stage = {.first = i, .count = 1};
        micro_plan micro;
        SL_TRY(plan_micro(layout, &stage, frozen, 1, false, &shape, &micro));
        saved[i] = micro.saved;
        passed[i] = micro.output;
    }
    return SL_OK;
}

/* ---- A training step ---------------------------------------------------------------------- */

/* A stage while its rank goes along its row. */
typedef struct stage_use {
    const micro_plan *micro;
    bool is_last, goes_backward;
    int64_t held;        /* bytes of passes and of inputs that wait for a recomputation */
    int under_way, most; /* micro-batches now, and at most in the step */
    int most_before;     /* at most in the stage before it */
    int to_come;         /* micro-batches that have not gone forward */
    int of_head;         /* micro-batches between S and T */
    int most_of_head;    /* at most in the step, on any rank */
} stage_use;

/* Slices are numbered as they go backward, the first one last. */
static bool is_first_slice(sl_action action)
{
    return (action.micro + 1) % action.slices == 0;
}

static bool is_last_slice(sl_action action)
{
    return action.micro % action.slices == 0;
}

/* The last slice goes backward first. */
static void count_backward(sl_action action, stage_use *use)
{
    if (is_last_slice(action))
        use->held += use->micro->cache_gradient;
    if (is_first_slice(action))
        use->held -= use->micro->cache + use->micro->cache_gradient;
    use->under_way--;
}

static void count_action(sl_action action, stage_use *use)
{
    const micro_plan *micro = use->micro;
    switch (action.kind) {
    case SL_ACTION_FORWARD:
        if (use->goes_backward)
            use->held += action.discards ? micro->input : micro->saved;
        if (is_first_slice(action))
            use->held += micro->cache;
        if (is_last_slice(action) && !use->goes_backward)
            use->held -= micro->cache;
        use->under_way++;
        use->to_come--;
        break;
    case SL_ACTION_RECOMPUTE:
        use->held += micro->saved - micro->input;
        break;
    case SL_ACTION_BACKWARD:
        use->held -= micro->saved;
        count_backward(action, use);
        break;
    case SL_ACTION_BACKWARD_INPUT:
        use->held += micro->deferred - micro->saved;
        count_backward(action, use);
        break;
    case SL_ACTION_BACKWARD_WEIGHT:
        use->held -= micro->deferred;
        break;
    case SL_ACTION_HEAD_FORWARD:
        use->held += micro->head;
        use->of_head++;
        break;
    case SL_ACTION_HEAD_BACKWARD:
        use->held -= micro->head;
        use->of_head--;
        break;
    }
    if (use->of_head > use->most_of_head)
        use->most_of_head = use->of_head;
    if (use->under_way > use->most)
        use->most = use->under_way;
}

/* With what waits for the stage, and the gradient that the last one works on. Of what a stage
 * without backward sends, nothing comes back. The sums of a split head wait for the last one from S
 * to its backward, which comes before T. */
static int64_t most_bytes(const stage_use *use)
{
    int sums = use->under_way < use->most_of_head ? use->under_way : use->most_of_head;
    int inputs = use->most_before - use->under_way;
    inputs = inputs < use->to_come ? inputs : use->to_come;
    bool has_one_output = use->is_last || !use->goes_backward;
    return use->held + inputs * use->micro->input + sums * use->micro->all_sums +
           (has_one_output ? 1 : use->under_way) * use->micro->output;
}

/* While the action runs: a forward has its output already, a backward its gradient still. */
static int64_t most_bytes_during(sl_action action, const stage_use *before, const stage_use *after)
{
    const micro_plan *micro = before->micro;
    stage_use during = action.kind == SL_ACTION_FORWARD ? *after : *before;
    during.held = sli_larger(before->held, after->held);
    bool is_backward = action.kind == SL_ACTION_BACKWARD || action.kind == SL_ACTION_BACKWARD_INPUT;
    if (is_backward && is_last_slice(action))
        during.held = sli_larger(during.held, before->held + micro->cache_gradient);
    if (action.kind == SL_ACTION_BACKWARD_INPUT)
        during.held = sli_larger(during.held, before->held - micro->saved + micro->halfway);
    bool makes_output_again = action.kind == SL_ACTION_RECOMPUTE && !before->is_last;
    return most_bytes(&during) + (makes_output_again ? micro->output : 0) +
           (action.kind == SL_ACTION_HEAD_FORWARD ? micro->head_sums : 0);
}

/* What each stage of a pipeline rank holds when the rank holds most. `own` has room for the rank's
 * stages. */
static void plan_rank(const sl_schedule *schedule, int rank, int *own, stage_use *uses,
                      sl_stage_plan *stages)
{
    const sl_action *row;
    const int *placement = sl_schedule_placement(schedule);
    int count = sl_schedule_actions(schedule, rank, &row), own_count = 0;
    int64_t all = 0, most = 0; /* bytes of the rank between two actions, and in one */
    for (int s = 0; s < sl_schedule_stages(schedule); s++)
        if (placement[s] == rank) {
            all += most_bytes(&uses[s]);
            own[own_count++] = s;
        }
    for (int i = 0; i < count; i++) {
        stage_use *use = &uses[row[i].stage], before = *use;
        count_action(row[i], use);
        int64_t during = most_bytes_during(row[i], &before, use);
        all -= most_bytes(&before);
        if (all + during > most) {
            most = all + during;
            for (int k = 0; k < own_count; k++) {
                int s = own[k];
                stages[s].activation_bytes = &uses[s] == use ? during : most_bytes(&uses[s]);
            }
        }
        all += most_bytes(use);
    }
}

/* The stages before the step. */
static void start_step(int stages, int micro_count, const micro_plan *micros,
                       const sl_stage_backward *backward, stage_use *uses)
{
    for (int s = 0; s < stages; s++)
        uses[s] = (stage_use){.micro = &micros[s],
                              .is_last = s + 1 == stages,
                              .goes_backward = backward[s] != SL_STAGE_BACKWARD_NONE,
                              .to_come = micro_count};
}

static void count_actions(const sl_schedule *schedule, stage_use *uses)
{
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
        const sl_action *row;
        int count = sl_schedule_actions(schedule, rank, &row);
        for (int i = 0; i < count; i++)
            count_action(row[i], &uses[row[i].stage]);
    }
}

/* Adds what a rank's part of a split head holds of a micro-batch and needs meanwhile, to the rank's
 * first stage. `in` is the shape of the head's input, whose own bytes each rank keeps. */
static void plan_head(const sli_layout *layout, const sl_schedule *schedule, const sl_shape *in,
                      micro_plan *micros)
{
    const sl_module *model = layout->model;
    const sli_linear *head =
        sli_module_as_linear(sl_module_child(model, sl_module_child_count(model) - 1));
    int ranks = sl_schedule_ranks(schedule), stages = sl_schedule_stages(schedule);
    int64_t rows = sl_shape_count(in) / head->in;
    const sli_split_head_bytes bytes =
        sli_split_head_plan(head->out, head->in, layout->head_blocks, ranks, rows,
                            layout->precision == SL_PRECISION_BF16);
    bool has_part[SL_MAX_STAGES] = {false};
    micros[stages - 1].all_sums = bytes.all_sums;
    for (int s = 0; s < stages; s++) {
        int rank = sl_schedule_placement(schedule)[s];
        if (has_part[rank])
            continue;
        has_part[rank] = true;
        micros[s].head = bytes.record + kept_bytes(layout, bytes_of(in));
        micros[s].head_sums = bytes.sums;
        micros[s].workspace = sli_larger(micros[s].workspace, bytes.workspace);
    }
}

/* What a plan needs, [stages] each. */
typedef struct plan_work {
    int frozen;   /* the first modules, without backward */
    int *balance; /* then any stages of a rank */
    sl_stage_backward *backward;
    micro_plan *micros;
    stage_use *counted, *uses;
} plan_work;

static void free_work(plan_work *work)
{
    free(work->balance);
    free(work->backward);
    free(work->micros);
    free(work->counted);
    free(work->uses);
}

static sl_status allocate_work(int stages, plan_work *work)
{
    size_t count = (size_t)stages;
    *work = (plan_work){.balance = calloc(count, sizeof *work->balance),
                        .backward = calloc(count, sizeof *work->backward),
                        .micros = calloc(count, sizeof *work->micros),
                        .counted = calloc(count, sizeof *work->counted),
                        .uses = calloc(count, sizeof *work->uses)};
    return work->balance && work->backward && work->micros && work->counted && work->uses
               ? SL_OK
               : sli_no_memory(NULL, "the plan of %d stages", stages);
}

/* Whether the last stage has all its backwards in halves. */
static bool defers_last_stage(const sl_schedule *schedule)
{
    int last = sl_schedule_stages(schedule) - 1;
    const sl_action *row;
    int count = sl_schedule_actions(schedule, sl_schedule_placement(schedule)[last], &row);
    bool has_halves = false;
    for (int i = 0; i < count; i++) {
        if (row[i].stage == last && row[i].kind == SL_ACTION_BACKWARD)
            return false;
        has_halves |= row[i].stage == last && row[i].kind == SL_ACTION_BACKWARD_INPUT;
    }
    return has_halves;
}

/* A CPU's cache keeps the freed blocks of the loss while modules run, whose blocks have other
 * sizes, or the other way round: the smaller of both is there besides. */
static void plan_workspace(const micro_plan *micro, bool on_host, sl_stage_plan *stage)
{
    stage->workspace_bytes = sli_larger(micro->workspace, micro->loss);
    stage->cached_bytes = on_host ? sli_smaller(micro->loss, micro->workspace) + micro->sums : 0;
}

/* `schedule` is the layout's table, as far as the stages go backward. */
static sl_status plan_training_step(const sli_layout *layout, const sl_schedule *schedule,
                                    const plan_work *work, sl_stage_plan *stages)
{
    int slices = sl_schedule_slices(schedule);
    int count = sl_schedule_stages(schedule), micro_count = sl_schedule_micros(schedule) * slices;
    sl_shape shape = sl_shape_2d(layout->micro_rows, (layout->row_tokens + slices - 1) / slices);
    bool defers_head = defers_last_stage(schedule);
    micro_plan *micros = work->micros;
    stage_use *counted = work->counted, *uses = work->uses;
    for (int s = 0; s < count; s++)
        SL_TRY(
            plan_micro(layout, &stages[s], work->frozen, slices, defers_head, &shape, &micros[s]));
    if (layout->head_blocks > 0)
        plan_head(layout, schedule, &shape, micros);
    for (int s = 0; s < count; s++)
        plan_workspace(&micros[s], is_on_host(layout, &stages[s]), &stages[s]);
    start_step(count, micro_count, micros, work->backward, counted);
    count_actions(schedule, counted);
    start_step(count, micro_count, micros, work->backward, uses);
    for (int s = 1; s < count; s++)
        uses[s].most_before = counted[s - 1].most;
    for (int s = 0, *most = &uses[count - 1].most_of_head; s < count; s++)
        *most = counted[s].most_of_head > *most ? counted[s].most_of_head : *most;
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++)
        plan_rank(schedule, rank, work->balance, uses, stages);
    return SL_OK;
}

/* ---- An evaluation -------------------------------------------------------------------------- */

/* An evaluation keeps nothing, but its batch may be larger: of a stage, the inputs that wait, and
 * what a module or the loss holds. A CPU caches what other modules, and the loss, have had. It is
 * never there beside a step. */
static void plan_stage_evaluation(const sli_layout *layout, const micro_plan *micro, int64_t sums,
                                  sl_stage_plan *stage)
{
    int64_t modules = micro->forward + micro->forward_workspace;
    int64_t loss = micro->logits > 0 ? micro->output + micro->logits : 0;
    int64_t waiting = (layout->eval_micros - 1) * micro->input, most = sli_larger(modules, loss);
    int64_t cached = is_on_host(layout, stage)
                         ? sli_larger(micro->forward_cached + micro->logits, loss) - most + sums
                         : 0;
    if (waiting + most + cached <=
        stage->activation_bytes + stage->workspace_bytes + stage->cached_bytes)
        return;
    stage->activation_bytes = waiting + (modules > loss ? micro->forward : micro->output);
    stage->workspace_bytes = modules > loss ? micro->forward_workspace : micro->logits;
    stage->cached_bytes = cached;
}

static sl_status plan_evaluation(const sli_layout *layout, const plan_work *work,
                                 sl_stage_plan *stages)
{
    sl_shape shape = sl_shape_2d(layout->eval_micro_rows, layout->row_tokens);
    for (int s = 0; s < sl_schedule_stages(layout->table); s++) {
        micro_plan micro;
        SL_TRY(plan_micro(layout, &stages[s], work->frozen, 1, false, &shape, &micro));
        plan_stage_evaluation(layout, &micro, work->micros[s].sums, &stages[s]);
    }
    return SL_OK;
}

static sl_status plan_activations(const sli_layout *layout, const plan_work *work,
                                  sl_stage_plan *stages)
{
    int count = sl_schedule_stages(layout->table);
    sl_schedule *table;
    for (int s = 0; s < count; s++)
        work->balance[s] = stages[s].count;
    sl_partition_backward(layout->model, count, work->balance, work->backward);
    SL_TRY(sl_schedule_first_micros(layout->table, sl_schedule_micros(layout->table), &table));
    sl_status status;
    SL_TRY_OR_FAIL(sl_schedule_freeze(table, work->backward));
    if (layout->head_blocks > 0)
        SL_TRY_OR_FAIL(sl_schedule_split_head(table, sl_partition_head(layout->model)));
    status = plan_training_step(layout, table, work, stages);
fail:
    sl_schedule_destroy(&table);
    SL_TRY(status);
    return plan_evaluation(layout, work, stages);
}

sl_status sli_layout_plan_activations(const sli_layout *layout, sl_stage_plan *stages)
{
    plan_work work;
    sl_status status;
    SL_TRY_OR_FAIL(allocate_work(sl_schedule_stages(layout->table), &work));
    work.frozen = sli_module_frozen_count(layout->model);
    status = plan_activations(layout, &work, stages);
fail:
    free_work(&work);
    return status;
}
