/* How gradients are exchanged while backward goes on.
 *
 *     backward's thread          communication thread              other replicas
 *     decoder done ─┐
 *     layer 3 done  ├ bucket 0 full ──▶ hook / all-reduce 0  ◀──────▶ all-reduce 0
 *     layer 2 done ─┴ bucket 1 full ──▶ hook / all-reduce 1  ◀──────▶ all-reduce 1
 *     …                                 …
 *     end: waits for the thread
 *
 * When is a gradient complete? When the module that it belongs to has gone backward for the last
 * time. A module runs once in a pass if all its ancestors are sequentials, because a sequential
 * runs each child once. Modules further down may run again (weights that are used twice), so their
 * parameters wait for the ancestor that satisfies this. A parameter that others are tied to waits
 * for the end of the step, when their gradients have been added. The caller knows which pass is a
 * step's last one: it sets the observer on that one only.
 *
 * All replicas must exchange buckets in one order, or they would wait for each other for ever. So a
 * full bucket waits for those before it in the order. In the first step that is the order of the
 * set, which presumes that modules run in the order in which they were registered. Each rank
 * records the order in which its buckets really became full, and rank 0's is every rank's from then
 * on. PyTorch moves parameters between its buckets instead. Here gradients and values stay in their
 * buckets, and modules, not single parameters, become ready, so the order of sending is all there
 * is to gain.
 *
 * Threads: `lock` guards `released` and `aborted`, which the communication thread waits for. What
 * is ready belongs to the thread that runs backward, and to the caller of begin and end while no
 * backward runs. A bucket's times and gradients are the communication thread's from its release to
 * its end. */
#include "parallel/ddp/reducer.h"

#include "comm/group.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/threads.h"
#include "nn/module.h"
#include "parallel/pipe/failure.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct tracked_parameter {
    sl_parameter *parameter;
    int bucket;
    bool ready, missing; /* in the step: complete; complete without a gradient */
} tracked_parameter;

typedef struct tracked_bucket {
    sl_ddp_bucket ddp;
    int parameters, pending; /* of them, those that are not ready yet */
    double ready, begun, ended;
} tracked_bucket;

struct sli_reducer {
    sl_parameter_set *set;
    sl_group *group;
    sli_bucket_exchange exchange;
    sli_worker *thread;
    sli_pass_observer observer;
    sli_failure failure; /* of the step under way */

    tracked_parameter *trained; /* [trained_count] in the order of registration */
    int32_t *used;              /* [trained_count] for drop_unused: all ranks' answers */
    int *index_of;              /* [parameters of the set] index in `trained`, -1: not trained */
    int trained_count;

    tracked_bucket *buckets;
    int *order;    /* [bucket_count] in which they are sent */
    int *arrivals; /* [bucket_count] the order in which they became full in this step */
    int bucket_count, arrived;

    pthread_mutex_t lock; /* guards what follows; taken last */
    pthread_cond_t changed;
    int released; /* order[0 … released - 1] may be sent */
    bool aborted;
};

/* ---- The communication thread ----------------------------------------------------------- */

/* Waits until order[at] may be sent. False: the step was aborted. */
static bool wait_for_release(sli_reducer *reducer, int at)
{
    pthread_mutex_lock(&reducer->lock);
    while (reducer->released <= at && !reducer->aborted)
        pthread_cond_wait(&reducer->changed, &reducer->lock);
    bool go = !reducer->aborted;
    pthread_mutex_unlock(&reducer->lock);
    return go;
}

static void send_buckets(void *argument)
{
    sli_reducer *reducer = argument;
    for (int at = 0; at < reducer->bucket_count; at++) {
        if (!wait_for_release(reducer, at))
            return;
        tracked_bucket *next = &reducer->buckets[reducer->order[at]];
        next->begun = sli_clock_seconds();
        sl_status status = sli_bucket_exchange_run(&reducer->exchange, &next->ddp);
        next->ended = sli_clock_seconds();
        if (status == SL_OK)
            continue;
        sl_error_context(status, "gradients of stage %d, bucket %d: ", next->ddp.stage,
                         next->ddp.index);
        sli_failure_raise(&reducer->failure, 0, status);
        (void)sli_group_check(reducer->group, status);
        return;
    }
}

/* ---- What is ready ---------------------------------------------------------------------- */

static void release_full_buckets(sli_reducer *reducer)
{
    pthread_mutex_lock(&reducer->lock);
    while (reducer->released < reducer->bucket_count &&
           reducer->buckets[reducer->order[reducer->released]].pending == 0)
        reducer->released++;
    pthread_cond_signal(&reducer->changed);
    pthread_mutex_unlock(&reducer->lock);
}

static sl_status mark_ready(sli_reducer *reducer, int index)
{
    tracked_parameter *tracked = &reducer->trained[index];
    sl_tensor *grads;
    if (tracked->ready)
        return SL_OK;
    tracked->ready = true;
    tracked->missing = tracked->parameter->grad_is_stale;
    tracked_bucket *bucket = &reducer->buckets[tracked->bucket];
    if (--bucket->pending > 0)
        return SL_OK;
    /* This makes the gradients of parameters that got none 0. */
    SL_TRY(sl_parameter_set_bucket_grads(reducer->set, tracked->bucket, &grads));
    bucket->ddp.grads = sl_tensor_f32(grads);
    bucket->ready = sli_clock_seconds();
    reducer->arrivals[reducer->arrived++] = tracked->bucket;
    release_full_buckets(reducer);
    return SL_OK;
}

static sl_status mark_module_ready(sli_reducer *reducer, const sl_module *module)
{
    for (int i = 0; i < module->parameter_count; i++) {
        const sl_parameter *parameter = module->parameters[i];
        if (parameter->is_cut || parameter->ties)
            continue;
        int index = reducer->index_of[sli_parameter_set_index(reducer->set, parameter)];
        if (index >= 0)
            SL_TRY(mark_ready(reducer, index));
    }
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(mark_module_ready(reducer, module->children[i]));
    return SL_OK;
}

static bool runs_once(const sl_module *module)
{
    for (const sl_module *above = module->parent; above; above = above->parent)
        if (!sli_module_is_sequential(above))
            return false;
    return true;
}

static sl_status went_backward(void *arg, const sl_module *module)
{
    if (sli_module_is_sequential(module) || !runs_once(module))
        return SL_OK;
    return mark_module_ready(arg, module);
}

sl_status sli_reducer_set_terms(sli_reducer *reducer, int terms)
{
    return sli_bucket_exchange_set_terms(&reducer->exchange, terms);
}

sl_status sli_reducer_add_term(sli_reducer *reducer)
{
    return sli_bucket_exchange_add_term(&reducer->exchange);
}

/* ---- A step ----------------------------------------------------------------------------- */

const sli_pass_observer *sli_reducer_observer(const sli_reducer *reducer)
{
    return &reducer->observer;
}

void sli_reducer_begin(sli_reducer *reducer, const sli_reduction *reduction)
{
    reducer->exchange.reduction = *reduction;
    reducer->arrived = reducer->released = 0;
    reducer->aborted = false;
    for (int b = 0; b < reducer->bucket_count; b++)
        reducer->buckets[b].pending = reducer->buckets[b].parameters;
    for (int i = 0; i < reducer->trained_count; i++)
        reducer->trained[i].ready = reducer->trained[i].missing = false;
    sli_worker_start(reducer->thread, send_buckets, reducer);
}

sl_status sli_reducer_end(sli_reducer *reducer)
{
    sl_status status = SL_OK;
    for (int i = reducer->trained_count - 1; i >= 0 && status == SL_OK; i--)
        status = mark_ready(reducer, i);
    sli_failure_raise(&reducer->failure, 0, status);
    if (status == SL_OK)
        sli_worker_wait(reducer->thread);
    else
        sli_reducer_abort(reducer, status);
    reducer->exchange.nodes = 0;
    return sli_failure_take(&reducer->failure);
}

void sli_reducer_abort(sli_reducer *reducer, sl_status error)
{
    (void)sli_group_check(reducer->group, error);
    pthread_mutex_lock(&reducer->lock);
    reducer->aborted = true;
    pthread_cond_signal(&reducer->changed);
    pthread_mutex_unlock(&reducer->lock);
    sli_worker_wait(reducer->thread);
}

sl_status sli_reducer_rebuild_order(sli_reducer *reducer)
{
    SL_TRY(sl_group_broadcast(reducer->group, reducer->arrivals, reducer->bucket_count, SL_I32, 0,
                              NULL));
    for (int i = 0; i < reducer->bucket_count; i++)
        reducer->order[i] = reducer->arrivals[i];
    return SL_OK;
}

sl_status sli_reducer_drop_unused(sli_reducer *reducer)
{
    for (int i = 0; i < reducer->trained_count; i++)
        reducer->used[i] = !reducer->trained[i].missing;
    SL_TRY(sl_group_all_reduce(reducer->group, reducer->used, reducer->trained_count, SL_I32,
                               SL_REDUCE_MAX, NULL));
    for (int i = 0; i < reducer->trained_count; i++)
        if (!reducer->used[i])
            reducer->trained[i].parameter->grad_is_stale = true;
    return SL_OK;
}

int sli_reducer_trained_count(const sli_reducer *reducer)
{
    return reducer->trained_count;
}

const sl_parameter *sli_reducer_missing(const sli_reducer *reducer, int index)
{
    return reducer->trained[index].missing ? reducer->trained[index].parameter : NULL;
}

void sli_reducer_log(const sli_reducer *reducer, double start, sl_ddp_bucket_log *logs)
{
    int64_t element_bytes = (int64_t)sli_bucket_exchange_element_bytes(&reducer->exchange);
    for (int at = 0; at < reducer->bucket_count; at++) {
        const tracked_bucket *sent = &reducer->buckets[reducer->order[at]];
        logs[at] = (sl_ddp_bucket_log){
            .stage = sent->ddp.stage,
            .index = sent->ddp.index,
            .parameters = sent->parameters,
            .bytes = sent->ddp.count * element_bytes,
            .ready = sent->ready - start,
            .reduce_start = sent->begun - start,
            .reduce_end = sent->ended - start,
        };
    }
}

/* ---- Creation --------------------------------------------------------------------------- */

static void list_parameters(sli_reducer *reducer)
{
    for (int i = 0; i < sl_parameter_set_count(reducer->set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(reducer->set, i);
        assert(sli_parameter_set_index(reducer->set, parameter) == i);
        reducer->index_of[i] = -1;
        if (parameter->kind != SL_PARAMETER_TRAINED)
            continue;
        reducer->index_of[i] = reducer->trained_count;
        reducer->trained[reducer->trained_count++].parameter = parameter;
    }
}

static void list_buckets(sli_reducer *reducer, int stage)
{
    for (int b = 0; b < reducer->bucket_count; b++) {
        tracked_bucket *bucket = &reducer->buckets[b];
        sl_parameter *const *in_bucket;
        bucket->ddp = (sl_ddp_bucket){
            .group = reducer->group,
            .stage = stage,
            .index = b,
            .count = sl_tensor_count(sl_parameter_set_bucket_values(reducer->set, b)),
        };
        bucket->parameters = sli_parameter_set_bucket(reducer->set, b, &in_bucket);
        for (int i = 0; i < bucket->parameters; i++)
            reducer->trained[reducer->index_of[sli_parameter_set_index(reducer->set, in_bucket[i])]]
                .bucket = b;
        reducer->order[b] = b;
    }
}

sl_status sli_reducer_create(sl_parameter_set *set, sl_group *group, sl_group *device_group,
                             int stage, sl_precision comm_precision, sli_reducer **out)
{
    size_t parameters = (size_t)sl_parameter_set_count(set) + 1;
    size_t buckets = (size_t)sl_parameter_set_bucket_count(set) + 1;
    *out = NULL;
    sli_reducer *reducer = calloc(1, sizeof *reducer);
    if (!reducer)
        return sli_no_memory("sl_ddp_create", "a reducer");
    reducer->set = set;
    reducer->group = group;
    reducer->bucket_count = sl_parameter_set_bucket_count(set);
    reducer->observer = (sli_pass_observer){went_backward, reducer};
    sli_failure_init(&reducer->failure);
    pthread_mutex_init(&reducer->lock, NULL);
    pthread_cond_init(&reducer->changed, NULL);
    reducer->trained = calloc(parameters, sizeof *reducer->trained);
    reducer->used = calloc(parameters, sizeof *reducer->used);
    reducer->index_of = calloc(parameters, sizeof *reducer->index_of);
    reducer->buckets = calloc(buckets, sizeof *reducer->buckets);
    reducer->order = calloc(buckets, sizeof *reducer->order);
    reducer->arrivals = calloc(buckets, sizeof *reducer->arrivals);
    sl_status status;
    if (!reducer->trained || !reducer->used || !reducer->index_of || !reducer->buckets ||
        !reducer->order || !reducer->arrivals)
        SL_TRY_OR_FAIL(sli_no_memory("sl_ddp_create", "a list of %zu parameters", parameters - 1));
    list_parameters(reducer);
    list_buckets(reducer, stage);
    SL_TRY_OR_FAIL(
        sli_bucket_exchange_init(&reducer->exchange, set, group, device_group, comm_precision));
    SL_TRY_OR_FAIL(sli_worker_create(NULL, NULL, &reducer->thread));
    *out = reducer;
    return SL_OK;

fail:
    sli_reducer_destroy(&reducer);
    return status;
}

void sli_reducer_destroy(sli_reducer **reducer)
{
    if (!reducer || !*reducer)
        return;
    sli_reducer *dead = *reducer;
    sli_worker_destroy(&dead->thread);
    for (int b = 0; dead->buckets && b < dead->bucket_count; b++)
        free(dead->buckets[b].ddp.scratch);
    pthread_cond_destroy(&dead->changed);
    pthread_mutex_destroy(&dead->lock);
    sli_failure_destroy(&dead->failure);
    sli_bucket_exchange_destroy(&dead->exchange);
    free(dead->trained);
    free(dead->used);
    free(dead->index_of);
    free(dead->buckets);
    free(dead->order);
    free(dead->arrivals);
    free(dead);
    *reducer = NULL;
}
