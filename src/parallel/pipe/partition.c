/* Where a model is cut into stages. */
#include "nn/layers.h"
#include "nn/module.h"
#include "sluice/pipe.h"

#include "core/error.h"

#include <stdlib.h>

/* ---- The tutorials' rule ---------------------------------------------------------------- */

static sl_status by_layers(int modules, int stages, int *balance)
{
    int layers = modules - 2; /* without the encoder and the decoder */
    if (layers < stages)
        return sl_error(SL_ERR_INVALID,
                        "sl_partition: %d stages need as many layers between the first and the "
                        "last module, the model has %d",
                        stages, layers < 0 ? 0 : layers);
    int most = layers / stages + (layers % stages != 0);
    bool none_empty = (stages - 1) * most < layers;
    for (int stage = 0; stage < stages; stage++) {
        if (!none_empty)
            balance[stage] = layers / stages + (stage < layers % stages);
        else if (stage + 1 < stages)
            balance[stage] = most;
        else
            balance[stage] = layers - (stages - 1) * most;
    }
    balance[0]++;
    balance[stages - 1]++;
    return SL_OK;
}

/* ---- By parameters ---------------------------------------------------------------------- */

/* best[s][n]: the smallest cost of the first n modules in s + 1 stages; cut[s][n]: where the last
 * of those stages starts. `before[n]` is the number of parameters before module n. */
typedef struct search {
    int modules, stages;
    const int64_t *before; /* [modules + 1] */
    double *best;          /* [stages][modules + 1] */
    int *cut;              /* [stages][modules + 1] */
} search;

static size_t cell_index(const search *s, int stage, int modules)
{
    return (size_t)stage * (size_t)(s->modules + 1) + (size_t)modules;
}

static double block_parameters(const search *s, int start, int end)
{
    return (double)(s->before[end] - s->before[start]);
}

/* Fills the tables by dynamic programming. Without a limit the cost is the largest block; with one
 * it is the sum of the blocks' squares, none of them above the limit. Negative: impossible. */
static void fill_tables(search *s, double limit)
{
    for (int stage = 0; stage < s->stages; stage++) {
        for (int end = 0; end <= s->modules; end++) {
            double best = -1;
            int cut = 0;
            for (int start = stage; start < end; start++) {
                double size = block_parameters(s, start, end);
                double before = stage > 0   ? s->best[cell_index(s, stage - 1, start)]
                                : start > 0 ? -1
                                            : 0;
                if (before < 0 || (limit >= 0 && size > limit))
                    continue;
                double cost = limit >= 0 ? before + size * size : size > before ? size : before;
                if (best < 0 || cost < best) {
                    best = cost;
                    cut = start;
                }
            }
            s->best[cell_index(s, stage, end)] = best;
            s->cut[cell_index(s, stage, end)] = cut;
        }
    }
}

/* The largest block is made as small as possible first; of all cuts that reach this, one with the
 * smallest sum of squares is taken, which spreads what is left as evenly as it can be. */
static void find_cuts(search *s, int *balance)
{
    fill_tables(s, -1);
    fill_tables(s, s->best[cell_index(s, s->stages - 1, s->modules)]);
    int end = s->modules;
    for (int stage = s->stages - 1; stage >= 0; stage--) {
        int start = s->cut[cell_index(s, stage, end)];
        balance[stage] = end - start;
        end = start;
    }
}

static sl_status by_parameters(const sl_module *model, int stages, int *balance)
{
    int modules = sl_module_child_count(model);
    if (modules < stages)
        return sl_error(SL_ERR_INVALID,
                        "sl_partition: %d stages need as many modules, the model has %d", stages,
                        modules);
    size_t cells = (size_t)stages * ((size_t)modules + 1);
    int64_t *before = calloc((size_t)modules + 1, sizeof *before);
    search s = {modules, stages, before, malloc(cells * sizeof *s.best),
                malloc(cells * sizeof *s.cut)};
    sl_status status;
    SL_TRY_OR_FAIL(
        before && s.best && s.cut ? SL_OK : sli_no_memory("sl_partition", "%d modules", modules));
    for (int i = 0; i < modules; i++)
        before[i + 1] = before[i] + sl_module_parameter_elements(sl_module_child(model, i));
    find_cuts(&s, balance);

fail:
    free(before);
    free(s.best);
    free(s.cut);
    return status;
}

sl_status sl_partition(const sl_module *model, int stages, sl_partition_rule rule, int *balance)
{
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(balance);
    if (!sli_module_is_sequential(model))
        return sl_error(SL_ERR_INVALID, "sl_partition: the model must be a sequential, got %s",
                        sl_module_type(model));
    if (stages < 1)
        return sl_error(SL_ERR_INVALID, "sl_partition: stages must be at least 1, got %d", stages);
    switch (rule) {
    case SL_PARTITION_LAYERS:
        return by_layers(sl_module_child_count(model), stages, balance);
    case SL_PARTITION_PARAMETERS:
        return by_parameters(model, stages, balance);
    }
    return sl_error(SL_ERR_INVALID, "sl_partition: no rule has the number %d", (int)rule);
}

/* ---- What is frozen --------------------------------------------------------------------- */

typedef struct training {
    const sl_module *model;
    int first, end; /* modules of the stage */
    bool trains;
} training;

static sl_status note_tied(sl_parameter *tied, void *arg)
{
    training *stage = arg;
    int index = sli_module_index_in(stage->model, tied->module);
    stage->trains |= sli_parameter_is_trained(tied) && index >= stage->first && index < stage->end;
    return SL_OK;
}

static bool trains(const sl_module *model, int first, int count)
{
    training stage = {.model = model, .first = first, .end = first + count};
    for (int i = first; i < first + count; i++)
        stage.trains |= sli_module_elements(sl_module_child(model, i), SL_PARAMETER_TRAINED) > 0;
    if (!stage.trains)
        (void)sli_module_for_each_tie(model, note_tied, &stage);
    return stage.trains;
}

void sl_partition_backward(const sl_module *model, int stages, const int *balance,
                           sl_stage_backward *backward)
{
    int frozen = sli_module_frozen_count(model);
    bool any = sli_module_elements(model, SL_PARAMETER_TRAINED) > 0;
    for (int s = 0, first = 0; s < stages; first += balance[s++])
        backward[s] = first + balance[s] <= frozen               ? SL_STAGE_BACKWARD_NONE
                      : !any || trains(model, first, balance[s]) ? SL_STAGE_BACKWARD_WHOLE
                                                                 : SL_STAGE_BACKWARD_INPUT;
}

double sl_partition_head(const sl_module *model)
{
    int last = sl_module_child_count(model) - 1;
    int64_t others = 0;
    for (int i = 1; i < last; i++)
        others += sl_module_parameter_elements(sl_module_child(model, i));
    const sli_linear *linear = sli_module_as_linear(sl_module_child(model, last));
    int64_t head = linear ? linear->in * linear->out : 0; /* a tied weight is another module's */
    return (double)(head > 0 ? head : 1) / (double)(others > 0 ? others : 1);
}
