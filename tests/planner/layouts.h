/* Layouts with times that are drawn or made by hand. */
#ifndef TESTS_PLANNER_LAYOUTS_H
#define TESTS_PLANNER_LAYOUTS_H

#include "planner/layout.h"

#include "sluice/model.h"
#include "support/check.h"

enum { LAYOUT_RANKS = 8, LAYOUT_MODULES = 16 };

/* A layout of threads on one host, with its table and devices. */
typedef struct made_layout {
    sl_schedule *table;
    sl_device_plan devices[LAYOUT_RANKS];
    sli_layout layout;
} made_layout;

static inline void make_layout(const sl_module *model, const sli_candidate *candidate, int rows,
                               made_layout *out)
{
    int micros = candidate->chunks;
    const sl_schedule_options options = {.ranks = candidate->pipeline_ranks, .micros = micros};
    *out = (made_layout){0};
    check_ok(sl_schedule_write(candidate->schedule, &options, &out->table));
    check_ok(sl_schedule_recompute(out->table, candidate->recompute));
    out->layout = (sli_layout){.model = model,
                               .table = out->table,
                               .replicas = candidate->replicas,
                               .shards = candidate->replicas,
                               .accumulate = 1,
                               .row_tokens = 16,
                               .micro_rows = rows / candidate->replicas / micros,
                               .eval_micro_rows = 1,
                               .eval_micros = 1,
                               .zero = candidate->zero,
                               .ranks = candidate->replicas,
                               .ranks_here = candidate->replicas,
                               .devices = out->devices};
}

/* The tutorials' model, of layers + 2 modules, of which the first `frozen` are. */
static inline sl_module *make_frozen_model(int layers, int frozen)
{
    const sl_model_options options = {
        .ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = layers, .context = 16};
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options, &model));
    for (int i = 0; i < frozen; i++)
        check_ok(sl_module_freeze(sl_module_child(model, i)));
    return model;
}

static inline sl_module *make_model(int layers)
{
    return make_frozen_model(layers, 0);
}

#endif
