#include "pipes.h"

#include "modules.h"

#include <stdlib.h>
#include <string.h>

test_pipe open_pipe(sl_module *model, sl_loss *loss, sl_pipe_options options, int device_count,
                    int threads)
{
    test_pipe opened = {.device_count = device_count, .model = model, .loss = loss};
    sl_device *devices[TEST_MAX_STAGES];
    for (int i = 0; i < device_count; i++)
        check_ok(sl_device_create_cpu(threads, &opened.devices[i]));
    for (int stage = 0; stage < options.stages; stage++)
        devices[stage] = opened.devices[stage % device_count];
    options.model = model;
    options.loss = loss;
    options.devices = devices;
    check_ok(sl_pipe_create(&options, &opened.pipe));
    return opened;
}

void test_pipe_destroy(test_pipe *pipe)
{
    sl_pipe_destroy(&pipe->pipe);
    assert_null(pipe->pipe);
    sl_module_destroy(&pipe->model);
    sl_loss_destroy(&pipe->loss);
    for (int i = 0; i < pipe->device_count; i++) {
        assert_int_equal(device_bytes(pipe->devices[i]), 0);
        sl_device_destroy(&pipe->devices[i]);
    }
}

void check_pipe_is_empty(const test_pipe *pipe)
{
    for (int i = 0; i < pipe->device_count; i++) {
        sl_memory_stats stats;
        sl_device_memory(pipe->devices[i], &stats);
        assert_int_equal(stats.current_bytes[SL_MEMORY_ACTIVATIONS], 0);
        assert_int_equal(stats.current_bytes[SL_MEMORY_WORKSPACE], 0);
    }
}

typedef sl_tensor *(*tensor_of)(sl_parameter *parameter);

static float *gather(const sl_pipe *pipe, tensor_of get, int64_t *count)
{
    float *all = NULL;
    *count = 0;
    for (int stage = 0; stage < sl_pipe_stages(pipe); stage++) {
        sl_parameter_set *set = sl_pipe_parameters(pipe, stage);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            sl_parameter *parameter = sl_parameter_set_get(set, i);
            if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
                continue;
            sl_tensor *tensor = get(parameter);
            int64_t more = sl_tensor_count(tensor);
            all = realloc(all, (size_t)(*count + more) * sizeof *all);
            assert_non_null(all);
            check_ok(sl_tensor_read(tensor, all + *count));
            *count += more;
        }
    }
    return all;
}

static sl_tensor *value_of(sl_parameter *parameter)
{
    return sl_parameter_value(parameter);
}

float *pipe_values(const sl_pipe *pipe, int64_t *count)
{
    return gather(pipe, value_of, count);
}

float *pipe_gradients(const sl_pipe *pipe, int64_t *count)
{
    return gather(pipe, gradient_of, count);
}

typedef struct sgd {
    sl_pipe *pipe;
    float lr;
} sgd;

static sl_status sgd_on_stage(int stage, void *arg)
{
    const sgd *step = arg;
    sl_parameter_set *set = sl_pipe_parameters(step->pipe, stage);
    for (int i = 0; i < sl_parameter_set_bucket_count(set); i++) {
        sl_tensor *values = sl_parameter_set_bucket_values(set, i);
        sl_tensor *grads;
        SL_TRY(sl_parameter_set_bucket_grads(set, i, &grads));
        for (int64_t j = 0; j < sl_tensor_count(values); j++)
            sl_tensor_f32(values)[j] -= step->lr * sl_tensor_f32(grads)[j];
    }
    return SL_OK;
}

void pipe_sgd_step(test_pipe *pipe, float lr)
{
    sgd step = {pipe->pipe, lr};
    check_ok(sl_pipe_run_on_stages(pipe->pipe, sgd_on_stage, &step));
}

double pipe_train(test_pipe *pipe, const sl_tensor *input, const sl_tensor *targets, uint64_t step)
{
    sl_pipe_batch batch = {.input = input,
                           .targets = targets,
                           .step = step,
                           .first_sample = (int64_t)step * sl_tensor_shape(input)->size[0]};
    double loss = -1;
    check_ok(sl_pipe_train(pipe->pipe, &batch, &loss));
    return loss;
}

/* ---- Random tables ---------------------------------------------------------------------- */

/* How far one micro-batch is at a stage, and how it is to go. */
typedef struct progress {
    bool forward, again, input, weight;
    bool recomputes, halves;
} progress;

typedef struct random_writer {
    sl_schedule_options options;
    int stages;
    int *placement;
    progress *cells;    /* [stages][micros] */
    sl_action *actions; /* [ranks][most] */
    int *counts, most;
} random_writer;

static progress *cell_of(const random_writer *w, int stage, int micro)
{
    return &w->cells[stage * w->options.micros + micro];
}

/* Has the micro-batch before it gone through the half at this stage? */
static bool is_next(const random_writer *w, int stage, int micro, bool weight)
{
    const progress *before = micro > 0 ? cell_of(w, stage, micro - 1) : NULL;
    return !before || (weight ? before->weight : before->input);
}

static bool can_run(const random_writer *w, sl_action action)
{
    int stage = action.stage, micro = action.micro;
    const progress *cell = cell_of(w, stage, micro);
    bool ready = cell->forward && (cell->again || !cell->recomputes) && !cell->input &&
                 is_next(w, stage, micro, false) &&
                 (stage + 1 == w->stages || cell_of(w, stage + 1, micro)->input);
    switch (action.kind) {
    case SL_ACTION_FORWARD:
        return !cell->forward && (stage == 0 || cell_of(w, stage - 1, micro)->forward);
    case SL_ACTION_RECOMPUTE:
        return cell->recomputes && cell->forward && !cell->again;
    case SL_ACTION_BACKWARD:
        return !cell->halves && ready && is_next(w, stage, micro, true);
    case SL_ACTION_BACKWARD_INPUT:
        return cell->halves && ready;
    case SL_ACTION_BACKWARD_WEIGHT:
        return cell->halves && cell->input && !cell->weight && is_next(w, stage, micro, true);
    case SL_ACTION_HEAD_FORWARD:
    case SL_ACTION_HEAD_BACKWARD:
        break; /* sl_schedule_split_head adds them */
    }
    return false;
}

/* Draws one of the actions that can run, of rank `rank` (-1: of any) and from kind `least` on. */
static bool draw_action(const random_writer *w, unsigned *seed, int rank, sl_action_kind least,
                        sl_action *out)
{
    int found = 0;
    for (int stage = 0; stage < w->stages; stage++)
        for (int micro = 0; micro < w->options.micros; micro++)
            for (int kind = (int)least; kind <= SL_ACTION_BACKWARD_WEIGHT; kind++) {
                sl_action action = {.stage = stage, .micro = micro, .kind = (sl_action_kind)kind};
                bool fits = (rank < 0 || w->placement[stage] == rank) && can_run(w, action);
                if (fits && test_draw(seed, 0, found++) == 0)
                    *out = action;
            }
    return found > 0;
}

static void append_action(random_writer *w, sl_action action)
{
    int rank = w->placement[action.stage];
    progress *cell = cell_of(w, action.stage, action.micro);
    cell->forward |= action.kind == SL_ACTION_FORWARD;
    cell->again |= action.kind == SL_ACTION_RECOMPUTE;
    cell->input |= action.kind == SL_ACTION_BACKWARD || action.kind == SL_ACTION_BACKWARD_INPUT;
    cell->weight |= action.kind == SL_ACTION_BACKWARD || action.kind == SL_ACTION_BACKWARD_WEIGHT;
    w->actions[rank * w->most + w->counts[rank]++] = action;
}

/* All ranks' actions come in one order, in which each finds what it needs, so that nothing waits
 * for ever. A forward may share its cell with a backward that could also have run before it. */
static void write_rows(random_writer *w, unsigned *seed)
{
    sl_action action = {0}, other = {0};
    while (draw_action(w, seed, -1, SL_ACTION_FORWARD, &action)) {
        bool joins = action.kind == SL_ACTION_FORWARD && test_draw(seed, 0, 1) &&
                     draw_action(w, seed, w->placement[action.stage], SL_ACTION_BACKWARD, &other);
        append_action(w, action);
        other.joined = true;
        if (joins)
            append_action(w, other);
    }
}

static void draw_placement(random_writer *w, unsigned *seed)
{
    for (int stage = 0; stage < w->stages; stage++)
        w->placement[stage] = stage % w->options.ranks;
    for (int stage = 0; stage < w->stages; stage++) {
        int other = test_draw(seed, 0, w->stages - 1), rank = w->placement[stage];
        w->placement[stage] = w->placement[other];
        w->placement[other] = rank;
    }
}

void draw_balance(unsigned *seed, int modules, int stages, int *balance)
{
    for (int stage = 0; stage < stages; stage++)
        balance[stage] = 1;
    for (int left = modules - stages; left > 0; left--)
        balance[test_draw(seed, 0, stages - 1)]++;
}

sl_schedule *library_table(const char *name, int ranks, int micros)
{
    sl_schedule *table;
    check_ok(
        sl_schedule_write(name, &(sl_schedule_options){.ranks = ranks, .micros = micros}, &table));
    return table;
}

sl_schedule *random_table(unsigned *seed, int ranks, int virtual_stages, int micros)
{
    int stages = ranks * virtual_stages, most = 4 * virtual_stages * micros;
    random_writer w = {.options = {.ranks = ranks,
                                   .virtual_stages = virtual_stages,
                                   .micros = micros},
                       .stages = stages,
                       .placement = malloc((size_t)stages * sizeof(int)),
                       .cells = calloc((size_t)(stages * micros), sizeof(progress)),
                       .actions = malloc((size_t)(ranks * most) * sizeof(sl_action)),
                       .counts = calloc((size_t)ranks, sizeof(int)),
                       .most = most};
    assert_true(w.placement && w.cells && w.actions && w.counts);
    bool recomputes = test_draw(seed, 0, 1);
    for (int i = 0; i < stages * micros; i++) {
        w.cells[i].halves = test_draw(seed, 0, 1);
        w.cells[i].recomputes = recomputes && test_draw(seed, 0, 1);
    }
    draw_placement(&w, seed);
    write_rows(&w, seed);
    int total = 0;
    for (int rank = 0; rank < ranks; rank++) {
        memmove(w.actions + total, w.actions + rank * most,
                (size_t)w.counts[rank] * sizeof *w.actions);
        total += w.counts[rank];
    }
    sl_schedule *table;
    w.options.placement = w.placement;
    check_ok(sl_schedule_from_table(&w.options, w.counts, w.actions, &table));
    free(w.placement);
    free(w.cells);
    free(w.actions);
    free(w.counts);
    return table;
}

/* ---- Timelines -------------------------------------------------------------------------- */

/* When the stage's forward or backward of the micro-batch ended, whose result others wait for. */
static double result_of(const sl_timeline_entry *entries, int count, int stage, int micro,
                        bool forward)
{
    for (int i = 0; i < count; i++) {
        sl_action action = entries[i].action;
        bool gives =
            forward ? action.kind == SL_ACTION_FORWARD
                    : action.kind == SL_ACTION_BACKWARD || action.kind == SL_ACTION_BACKWARD_INPUT;
        if (gives && action.stage == stage && action.micro == micro)
            return entries[i].end;
    }
    fail_msg("stage %d never ran micro-batch %d", stage, micro);
    return 0;
}

/* By field, because the bytes between the fields mean nothing. */
static bool same_action(sl_action a, sl_action b)
{
    return a.stage == b.stage && a.micro == b.micro && a.kind == b.kind && a.joined == b.joined &&
           a.discards == b.discards && a.completes == b.completes;
}

void check_timeline(const sl_timeline_entry *entries, int count, const sl_schedule *schedule,
                    int stages, double clock_error)
{
    int at = 0;
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++) {
        const sl_action *row;
        double free_at = 0;
        int length = sl_schedule_actions(schedule, rank, &row);
        for (int i = 0; i < length; i++, at++) {
            const sl_timeline_entry *e = &entries[at];
            assert_true(at < count);
            assert_true(same_action(e->action, row[i]));
            assert_true(e->start >= free_at && e->end >= e->start);
            free_at = e->end;
            bool forward = row[i].kind == SL_ACTION_FORWARD;
            bool backward =
                row[i].kind == SL_ACTION_BACKWARD || row[i].kind == SL_ACTION_BACKWARD_INPUT;
            int from = forward ? row[i].stage - 1 : row[i].stage + 1;
            if ((forward || backward) && from >= 0 && from < stages)
                assert_true(e->start >=
                            result_of(entries, count, from, row[i].micro, forward) - clock_error);
        }
    }
    assert_int_equal(count, at);
}
