/* What failures cost: checkpoint intervals by Young's and Daly's formulas, and runs that are played
 * from one event to the next: a node fails, a node is back, the run ends.
 *
 *     |step step step|save|step step|save|step ✗ restart |step step ...
 *                                         ^^^^^^ lost      on the nodes that are left */
#include "planner/failures.h"

#include "core/error.h"
#include "core/philox.h"

#include <math.h>
#include <stdlib.h>

/* ---- Formulas ------------------------------------------------------------------------------ */

/* Daly's interval is that of the shortest expected time, up to a save as long as twice the time
 * between failures; where a save is longer, it is that time. */
sli_failures sli_cluster_failures(const sli_cluster *cluster, int nodes, double saved_bytes)
{
    sli_failures out = {INFINITY, 0, INFINITY, INFINITY, 1};
    if (cluster->mtbf_s <= 0)
        return out;
    double mtbf = out.mtbf_s = cluster->mtbf_s / nodes;
    double save = out.save_s = saved_bytes / (cluster->save_bytes_per_s * nodes);
    out.young_s = sqrt(2 * save * mtbf);
    double ratio = save / (2 * mtbf);
    out.interval_s = ratio < 1 ? out.young_s * (1 + sqrt(ratio) / 3 + ratio / 9) - save : mtbf;
    double interval = out.interval_s;
    out.useful =
        save > 0
            ? interval / (mtbf * exp(cluster->restart_s / mtbf) * expm1((interval + save) / mtbf))
            : exp(-cluster->restart_s / mtbf);
    return out;
}

/* ---- One run ------------------------------------------------------------------------------- */

typedef struct play {
    const sli_failing_run *run;
    const sli_failure_source *source;
    double *speeds;    /* [nodes + 1] */
    double *returns;   /* [nodes + spares] a ring: when nodes that have failed are back */
    int first, down;   /* of `returns`: the next, and how many */
    double time, work; /* now, and done */
    int64_t *failures_left;
} play;

static int count_running(const play *p)
{
    int left = p->run->nodes + p->run->spares - p->down;
    return left < p->run->nodes ? left : p->run->nodes;
}

static double draw_failure(const play *p)
{
    int running = count_running(p);
    return running > 0 ? p->source->draw(p->source->context, p->run->mtbf_s / running) : INFINITY;
}

static void fail_node(play *p)
{
    int room = p->run->nodes + p->run->spares;
    p->returns[(p->first + p->down) % room] = p->time + p->run->repair_s;
    p->down++;
    --*p->failures_left;
}

static void take_back(play *p)
{
    while (p->down > 0 && p->returns[p->first] <= p->time) {
        p->first = (p->first + 1) % (p->run->nodes + p->run->spares);
        p->down--;
    }
}

/* A node that fails meanwhile has it begin again. */
static void restart(play *p)
{
    double failure = 0;
    do {
        take_back(p);
        failure = draw_failure(p);
        if (failure < p->run->restart_s) {
            p->time += failure;
            fail_node(p);
        }
    } while (failure<p->run->restart_s && * p->failures_left> 0);
    p->time += p->run->restart_s;
    take_back(p);
}

/* What checkpoints keep of the time since a start. Saves that take no time lose nothing. */
static double kept_seconds(const sli_failing_run *run, double seconds)
{
    double cycle = run->interval_s + run->save_s;
    return run->save_s > 0 ? floor(seconds / cycle) * run->interval_s : seconds;
}

/* How long it has computed. */
static double computed_seconds(const sli_failing_run *run, double seconds)
{
    double cycle = run->interval_s + run->save_s;
    return run->save_s > 0
               ? kept_seconds(run, seconds) + fmin(fmod(seconds, cycle), run->interval_s)
               : seconds;
}

/* Computing and saving from now on, without a save at the end. */
static double seconds_to_end(const play *p, double speed)
{
    const sli_failing_run *run = p->run;
    double rest = (run->work_s - p->work) / speed;
    return rest + (run->save_s > 0 ? fmax(0, ceil(rest / run->interval_s) - 1) * run->save_s : 0);
}

/* Until the run ends, a node fails, or one is back that the run can use. */
static void run_steps(play *p, double speed)
{
    const sli_failing_run *run = p->run;
    double end = seconds_to_end(p, speed), failure = draw_failure(p),
           back = count_running(p) < run->nodes ? p->returns[p->first] - p->time : INFINITY,
           seconds = fmin(failure, back);
    if (end <= seconds) {
        p->time += end;
        p->work = run->work_s;
        return;
    }
    p->time += seconds;
    if (failure <= back) {
        p->work += speed * kept_seconds(run, seconds);
        fail_node(p);
    } else {
        p->work += speed * computed_seconds(run, seconds);
        p->time += run->save_s;
    }
    restart(p);
}

static sl_status find_speed(const play *p, double *out)
{
    double *speed = &p->speeds[count_running(p)];
    if (isnan(*speed))
        SL_TRY(p->run->speed(p->run->context, count_running(p), speed));
    *out = *speed;
    return SL_OK;
}

static sl_status play_run(play *p, double *seconds)
{
    while (p->work<p->run->work_s && * p->failures_left> 0) {
        double speed;
        SL_TRY(find_speed(p, &speed));
        if (speed > 0) {
            run_steps(p, speed);
            continue;
        }
        p->time = p->returns[p->first];
        restart(p);
    }
    *seconds = p->work < p->run->work_s ? INFINITY : p->time;
    return SL_OK;
}

sl_status sli_failing_run_play(const sli_failing_run *run, const sli_failure_source *source,
                               double *speeds, int64_t *failures_left, double *seconds)
{
    play p = {.run = run,
              .source = source,
              .speeds = speeds,
              .returns = calloc((size_t)run->nodes + (size_t)run->spares, sizeof *p.returns),
              .failures_left = failures_left};
    if (!p.returns)
        return sli_no_memory(NULL, "the failures of %d nodes", run->nodes);
    sl_status status = play_run(&p, seconds);
    free(p.returns);
    return status;
}

sl_status sli_failing_run_speeds(const sli_failing_run *run, double **out)
{
    double *speeds = *out = malloc(((size_t)run->nodes + 1) * sizeof **out);
    if (!speeds)
        return sli_no_memory(NULL, "the speeds of %d nodes", run->nodes);
    speeds[0] = 0;
    for (int nodes = 1; nodes < run->nodes; nodes++)
        speeds[nodes] = NAN;
    speeds[run->nodes] = 1;
    return SL_OK;
}

/* ---- Many runs ----------------------------------------------------------------------------- */

/* Of all runs together: some seconds. */
static const int64_t most_failures = 5000000;

typedef struct drawn_failures {
    sli_philox_key key;
    uint32_t run;
    uint64_t failure;
} drawn_failures;

/* By 53 bits, so that rare long times are among them. */
static double draw_exponential(void *context, double mean)
{
    drawn_failures *drawn = context;
    uint64_t failure = drawn->failure++;
    uint32_t counter[4] = {(uint32_t)failure, (uint32_t)(failure >> 32), drawn->run, 0};
    sli_philox(drawn->key, counter);
    uint64_t bits = (uint64_t)counter[0] << 32 | counter[1];
    return -mean * log1p(-(double)(bits >> 11) * 0x1p-53);
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The runs whose failures do not go beyond `most_failures`. */
static sl_status play_runs(const sli_failing_run *run, uint64_t seed, double *speeds,
                           double seconds[SLI_FAILING_RUNS], int *count)
{
    drawn_failures drawn = {.key = sli_philox_key_make(seed, SLI_RANDOM_FAILURES)};
    const sli_failure_source source = {draw_exponential, &drawn};
    int64_t left = most_failures;
    for (*count = 0; *count < SLI_FAILING_RUNS; ++*count) {
        drawn.run = (uint32_t)*count;
        drawn.failure = 0;
        SL_TRY(sli_failing_run_play(run, &source, speeds, &left, &seconds[*count]));
        if (isinf(seconds[*count]))
            break;
    }
    return SL_OK;
}

static double find_percentile(const double *sorted, int count, double fraction)
{
    int place = (int)ceil(fraction * count) - 1;
    return sorted[place > 0 ? place : 0];
}

static sl_status forecast(const sli_failing_run *run, uint64_t seed, double *speeds,
                          sli_failure_forecast *out)
{
    double seconds[SLI_FAILING_RUNS], sum = 0;
    SL_TRY(play_runs(run, seed, speeds, seconds, &out->runs));
    if (out->runs == 0) {
        *out = (sli_failure_forecast){0, INFINITY, INFINITY, INFINITY, 0, 0};
        return SL_OK;
    }
    for (int i = 0; i < out->runs; i++)
        sum += seconds[i];
    qsort(seconds, (size_t)out->runs, sizeof *seconds, compare_seconds);
    out->seconds = sum / out->runs;
    out->low = find_percentile(seconds, out->runs, 0.05);
    out->high = find_percentile(seconds, out->runs, 0.95);
    out->useful = run->work_s / out->seconds;
    return SL_OK;
}

/* Without time for repairs no run is on fewer nodes. */
static sl_status find_fewer_speed(const sli_failing_run *run, double *speeds, double *out)
{
    *out = 1;
    if (run->spares > 0 || run->repair_s <= 0)
        return SL_OK;
    double *speed = &speeds[run->nodes - 1];
    if (isnan(*speed))
        SL_TRY(run->speed(run->context, run->nodes - 1, speed));
    *out = *speed;
    return SL_OK;
}

sl_status sli_failing_run_forecast(const sli_failing_run *run, uint64_t seed,
                                   sli_failure_forecast *out)
{
    double *speeds;
    *out = (sli_failure_forecast){0};
    SL_TRY(sli_failing_run_speeds(run, &speeds));
    sl_status status = forecast(run, seed, speeds, out);
    if (status == SL_OK)
        status = find_fewer_speed(run, speeds, &out->fewer_speed);
    free(speeds);
    return status;
}

static sl_status find_interval(const sli_failing_run *run, uint64_t seed, double *speeds,
                               double *best, double *interval_s)
{
    const double factors[] = {0.5, M_SQRT1_2, M_SQRT2, 2};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        sli_failing_run other = *run;
        sli_failure_forecast of_other;
        other.interval_s *= factors[i];
        SL_TRY(forecast(&other, seed, speeds, &of_other));
        if (of_other.seconds < *best) {
            *best = of_other.seconds;
            *interval_s = other.interval_s;
        }
    }
    return SL_OK;
}

sl_status sli_failing_run_find_interval(const sli_failing_run *run, uint64_t seed,
                                        const sli_failure_forecast *known, double *interval_s)
{
    double *speeds, best = known->seconds;
    *interval_s = run->interval_s;
    SL_TRY(sli_failing_run_speeds(run, &speeds));
    sl_status status = find_interval(run, seed, speeds, &best, interval_s);
    free(speeds);
    return status;
}
