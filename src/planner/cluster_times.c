/* How long a cluster's devices compute, and what jitter adds to that. */
#include "planner/cluster.h"

#include "core/error.h"
#include "nn/module.h"

#include <math.h>
#include <stdlib.h>

/* ---- Modules ------------------------------------------------------------------------------ */

/* Between two points of the curve by the logarithm of the FLOP; beyond its ends as at them. */
static double efficiency_of(const sli_node_kind *kind, double flop)
{
    const sli_efficiency *curve = kind->curve;
    int above = 0;
    while (above < kind->points && curve[above].flop < flop)
        above++;
    if (above == 0)
        return curve[0].fraction;
    if (above == kind->points)
        return curve[kind->points - 1].fraction;
    const sli_efficiency *low = &curve[above - 1], *high = &curve[above];
    double part = log(flop / low->flop) / log(high->flop / low->flop);
    return low->fraction + part * (high->fraction - low->fraction);
}

static double seconds_of(const sli_node_kind *kind, sl_precision precision, double flop,
                         double bytes)
{
    return fmax(flop / (kind->flops[precision] * efficiency_of(kind, flop)),
                bytes / kind->memory_bytes_per_s);
}

/* Where a module has no products, its bytes decide, of each half of backward as of forward. */
static double half_of(double pass, const sli_pass_work *work, double flop, bool is_there)
{
    return work->forward > 0 ? pass * flop / work->forward : is_there ? pass : 0;
}

/* A pass over a module reads its parameters and input, and writes its output and what it saves. The
 * loss takes over the last module: its times are forward and both halves of backward. */
static void time_module(const sli_node_kind *kind, const sl_module *module,
                        const sli_pass_work *work, sl_precision precision, const sl_shape *in,
                        const sl_shape *next, bool is_last, sl_module_profile *out)
{
    double element = precision == SL_PRECISION_BF16 ? 2 : sizeof(float),
           output_bytes = element * (double)sl_shape_count(next),
           saved = (double)sl_module_saved_bytes(module, in) * element / sizeof(float),
           bytes = work->value_bytes + element * (double)sl_shape_count(in) + output_bytes + saved,
           pass = seconds_of(kind, precision, work->forward, bytes),
           input = half_of(pass, work, work->input, true),
           weight = half_of(pass, work, work->weight, work->trains);
    *out = is_last ? (sl_module_profile){0, pass + input + weight, pass + input, weight, 0}
                   : (sl_module_profile){pass, input + weight, input, weight, output_bytes};
}

static sl_status time_modules(const sli_node_kind *kind, const sl_module *model,
                              const sli_pass_work *work, sl_precision precision, sl_shape shape,
                              sl_module_profile *out)
{
    int count = sl_module_child_count(model);
    for (int i = 0; i < count; i++) {
        const sl_module *module = sl_module_child(model, i);
        sl_shape next;
        SL_TRY(sl_module_output_shape(module, &shape, &next));
        time_module(kind, module, &work[i], precision, &shape, &next, i + 1 == count, &out[i]);
        shape = next;
    }
    return SL_OK;
}

/* Measured times instead of computed ones, where there are some. */
static sl_status take_profile(const sli_node_kind *kind, int modules, int64_t rows,
                              sl_module_profile *out)
{
    const sli_kind_profile *profile = &kind->profile;
    if (profile->rungs == 0)
        return SL_OK;
    sl_module_profile *measured = calloc((size_t)modules, sizeof *measured);
    if (!measured)
        return sli_no_memory(NULL, "the times of %d modules", modules);
    sli_ladder_times(profile->times, profile->rungs, modules, rows, measured);
    for (int i = 0; i < modules; i++) {
        measured[i].output_bytes = out[i].output_bytes;
        out[i] = measured[i];
    }
    free(measured);
    return SL_OK;
}

sl_status sli_cluster_time_modules(const sli_node_kind *kind, const sl_module *model,
                                   sl_precision precision, int64_t micro_rows, int64_t row_tokens,
                                   sl_module_profile *out)
{
    int count = sl_module_child_count(model);
    const sl_shape ids = sl_shape_2d(micro_rows, row_tokens);
    sli_pass_work *work = calloc((size_t)count, sizeof *work);
    if (!work)
        return sli_no_memory(NULL, "the work of %d modules", count);
    sl_status status;
    SL_TRY_OR_FAIL(sli_module_count_work(model, &ids, precision, work));
    status = time_modules(kind, model, work, precision, ids, out);
fail:
    free(work);
    return status == SL_OK ? take_profile(kind, count, micro_rows, out) : status;
}

/* The norm reads the gradients; the optimizer reads them again, and reads and writes the value and
 * the state. With averages that are rounded at random, the update of a weight takes as long as so
 * many FLOP at the peak rate, measured on a core of an AMD EPYC with all of it in the core's cache;
 * without, the memory is what it waits for on any device. */
double sli_cluster_time_update(double memory_bytes_per_s, double flops_f32,
                               const sl_optimizer_options *optimizer)
{
    enum { ROUNDING_FLOP = 300 };
    double state = (double)sl_optimizer_state_bytes(optimizer) / sizeof(float),
           moving = (4 + 2 * state) / memory_bytes_per_s,
           rounding = ROUNDING_FLOP / (sizeof(float) * flops_f32);
    return optimizer->precision == SL_PRECISION_BF16 ? fmax(moving, rounding) : moving;
}

sli_update_speed sli_cluster_update_speed(double memory_bytes_per_s, double flops_f32,
                                          const sl_optimizer_options *optimizer)
{
    enum { PASSES_OF_SUM = 3 };           /* it reads two gradients and writes one */
    double pass = 1 / memory_bytes_per_s; /* over the gradients */
    return (sli_update_speed){
        .optimizer = sli_cluster_time_update(memory_bytes_per_s, flops_f32, optimizer) - pass,
        .undivided = pass,
        .table_zero = pass,
        .tie_sum = PASSES_OF_SUM * pass,
    };
}

/* ---- Jitter ------------------------------------------------------------------------------- */

/* The largest of n draws is below x with probability P(x)^n. */
static double expected_largest(int n)
{
    enum { STEPS = 4000 };
    const double bound = 8, width = 2 * bound / STEPS;
    double sum = 0;
    for (int i = 0; i < STEPS; i++) {
        double x = -bound + (i + 0.5) * width, below = pow(0.5 * erfc(-x / sqrt(2)), n);
        sum += (x > 0 ? 1 - below : -below) * width;
    }
    return sum;
}

bool sli_cluster_has_jitter(const sli_cluster *cluster)
{
    return cluster->spread > 0 || (cluster->slow_nodes > 0 && cluster->slow_factor > 1);
}

double sli_cluster_jitter(const sli_cluster *cluster, int ranks, int nodes)
{
    double none_slow = pow(1 - cluster->slow_nodes, nodes),
           largest = cluster->spread > 0 ? 1 + cluster->spread * expected_largest(ranks) : 1;
    return cluster->slow_nodes > 0 ? largest * (none_slow + (1 - none_slow) * cluster->slow_factor)
                                   : largest;
}
