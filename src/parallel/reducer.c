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
 * A rank may hold several terms of the sum over all ranks (core/sum_tree.h). Those before its last
 * one are added, as they come, to nodes on a stack. The last one is the step's gradients: when
 * a bucket is full, the nodes that it completes are added to it; the remaining nodes are sent with
 * it.
 *
 * Threads: `lock` guards `released` and `aborted`, which the communication thread waits for. What
 * is ready belongs to the thread that runs backward, and to the caller of begin and end while no
 * backward runs. A bucket's times and gradients are the communication thread's from its release to
 * its end. */
#include "parallel/reducer.h"

#include "comm/group.h"
#include "core/bf16.h"
#include "core/clock.h"
#include "core/sum_tree.h"
#include "core/threads.h"
#include "device/device.h"
#include "nn/module.h"
#include "parallel/failure.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct tracked_parameter {
    sl_parameter *parameter;
    int bucket;
    bool ready, missing; /* in the step: complete; complete without a gradient */
} tracked_parameter;

typedef struct tracked_bucket {
    sl_ddp_bucket exchange;
    int parameters, pending; /* of them, those that are not ready yet */
    int64_t offset;          /* in each of the reducer's sums */
    double ready, begun, ended;
} tracked_bucket;

struct sli_reducer {
    sl_parameter_set *set;
    sl_group *group, *device_group; /* the latter over the former, by NCCL; NULL: there is none */
    sl_precision comm_precision;
    sli_worker *thread;
    sli_pass_observer observer;
    sli_reduction reduction;
    sli_failure failure; /* of the step under way */

    tracked_parameter *trained; /* [trained_count] in the order of registration */
    int32_t *used;              /* [trained_count] for drop_unused: all ranks' answers */
    int *index_of;              /* [parameters of the set] index in `trained`, -1: not trained */
    uint32_t first_number;      /* of the set's parameters, which have successive numbers */
    int trained_count;

    tracked_bucket *buckets;
    int *order;    /* [bucket_count] in which they are sent */
    int *arrivals; /* [bucket_count] the order in which they became full in this step */
    int bucket_count, arrived;

    int terms, first_term, end_term;   /* of all ranks; this one's */
    int64_t elements;                  /* of all buckets */
    sl_tensor **sums;                  /* [room] the stack's nodes, each [elements] */
    int room, nodes;                   /* on the stack */
    int ends[SLI_SUM_TREE_MOST_NODES]; /* [nodes] where each ends among the terms */

    pthread_mutex_t lock; /* guards what follows; taken last */
    pthread_cond_t changed;
    int released; /* order[0 … released - 1] may be sent */
    bool aborted;
};

/* ---- What is exchanged ------------------------------------------------------------------ */

sl_status sl_ddp_average_hook(void *arg, sl_ddp_bucket *bucket)
{
    (void)arg;
    return sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_F32,
                               SL_REDUCE_AVERAGE, NULL);
}

static sl_status reduce_in_bf16(const sl_ddp_bucket *bucket, sl_reduce_op op)
{
    sli_narrow_in_place(bucket->grads, bucket->count);
    SL_TRY(sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_BF16, op, NULL));
    sli_widen_in_place(bucket->grads, bucket->count);
    return SL_OK;
}

sl_status sl_ddp_bf16_hook(void *arg, sl_ddp_bucket *bucket)
{
    (void)arg;
    return reduce_in_bf16(bucket, SL_REDUCE_AVERAGE);
}

/* A single term is nothing to exchange, and is not rounded. */
static bool exchanges_bf16(const sli_reducer *reducer)
{
    return reducer->comm_precision == SL_PRECISION_BF16 && reducer->terms > 1;
}

static sl_status reduce_bucket(const sli_reducer *reducer, const sl_ddp_bucket *bucket,
                               sl_reduce_op op)
{
    if (exchanges_bf16(reducer))
        return reduce_in_bf16(bucket, op);
    return sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_F32, op, NULL);
}

static sl_status divide_sum(const sli_reducer *reducer, const sl_ddp_bucket *bucket)
{
    SL_TRY(reduce_bucket(reducer, bucket, SL_REDUCE_SUM));
    float scale = 1.0f / (float)reducer->reduction.divisor;
    for (int64_t i = 0; i < bucket->count; i++)
        bucket->grads[i] *= scale;
    return SL_OK;
}

/* The first term of the stack's node `index`; where the next node begins, for `nodes`. */
static int node_start(const sli_reducer *reducer, int index)
{
    return index > 0 ? reducer->ends[index - 1] : reducer->first_term;
}

/* Whether the stack's node `index` and the nodes after it, up to term `end`, are one node. */
static bool completes_node(const sli_reducer *reducer, int index, int end)
{
    return sli_sum_tree_has_node(node_start(reducer, index), end, reducer->terms);
}

static float *sum_of(const sli_reducer *reducer, int node, const tracked_bucket *bucket)
{
    return sl_tensor_f32(reducer->sums[node]) + bucket->offset;
}

/* Averages this rank's nodes with those of the others. Plain loops: the device is backward's.
 *
 * In bf16, the terms and the average are rounded as reduce_in_bf16 rounds them, and the nodes,
 * which are sums in f32 there as well, are sent as they are: so the average is the same bits on any
 * number of ranks. */
static sl_status exchange_nodes(const sli_reducer *reducer, const sl_ddp_bucket *last,
                                const sli_host_array *sums)
{
    const void *nodes[SLI_SUM_TREE_MOST_NODES];
    int count = reducer->nodes;
    if (exchanges_bf16(reducer))
        sli_round_to_bf16(last->grads, last->count);
    for (; count > 0 && completes_node(reducer, count - 1, reducer->end_term); count--) {
        const float *sum = sums[count - 1].host;
        for (int64_t i = 0; i < last->count; i++)
            last->grads[i] += sum[i];
    }
    for (int n = 0; n < count; n++)
        nodes[n] = sums[n].host;
    nodes[count] = last->grads;
    SL_TRY(sli_group_all_reduce_nodes(reducer->group, nodes, reducer->terms, last->grads,
                                      last->count, SL_F32, SL_REDUCE_AVERAGE));
    if (exchanges_bf16(reducer))
        sli_round_to_bf16(last->grads, last->count);
    return SL_OK;
}

/* With the bucket's nodes in host memory. */
static sl_status open_and_exchange_nodes(const sli_reducer *reducer, const tracked_bucket *full)
{
    sli_host_array sums[SLI_SUM_TREE_MOST_NODES];
    size_t bytes = (size_t)full->exchange.count * sizeof(float);
    sl_status status = SL_OK;
    int open = 0;
    for (; open < reducer->nodes && status == SL_OK; open++)
        status = sli_host_array_open(sl_parameter_set_device(reducer->set),
                                     sum_of(reducer, open, full), bytes, true, &sums[open]);
    if (status == SL_OK)
        status = exchange_nodes(reducer, &full->exchange, sums);
    while (open-- > 0)
        sli_host_array_close(&sums[open], false);
    return status;
}

static sl_status exchange_on_host(const sli_reducer *reducer, tracked_bucket *full)
{
    const sli_reduction *reduction = &reducer->reduction;
    sl_ddp_bucket *bucket = &full->exchange;
    if (reducer->terms > sl_group_size(reducer->group))
        return open_and_exchange_nodes(reducer, full);
    if (reduction->hook)
        return reduction->hook(reduction->hook_arg, bucket);
    if (reduction->divisor > 0)
        return divide_sum(reducer, bucket);
    return reduce_bucket(reducer, bucket, SL_REDUCE_AVERAGE);
}

/* With NCCL: the bucket stays on the device. */
static sl_status reduce_bf16_on_device(const sli_reducer *reducer, const sl_ddp_bucket *bucket)
{
    sl_device *device = sl_parameter_set_device(reducer->set);
    size_t bytes = (size_t)bucket->count * sizeof(uint16_t);
    void *narrow;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &narrow));
    sli_convert in = {.count = bucket->count, .to_bf16 = true, .from = bucket->grads, .to = narrow};
    sli_convert out = {.count = bucket->count,
                       .from_bf16 = true,
                       .from = narrow,
                       .to = bucket->grads};
    sl_status status = sli_device_convert(device, &in);
    if (status == SL_OK)
        status = sl_group_all_reduce(reducer->device_group, narrow, bucket->count, SL_BF16,
                                     SL_REDUCE_AVERAGE, NULL);
    if (status == SL_OK)
        status = sli_device_convert(device, &out);
    sli_device_release(device, SL_MEMORY_WORKSPACE, narrow, bytes);
    return status;
}

/* As exchange_nodes. */
static sl_status exchange_nodes_on_device(const sli_reducer *reducer, const tracked_bucket *full)
{
    const sl_ddp_bucket *last = &full->exchange;
    sl_device *device = sl_parameter_set_device(reducer->set);
    sli_convert rounding = {.count = last->count, .from = last->grads, .to = last->grads};
    const void *nodes[SLI_SUM_TREE_MOST_NODES];
    int count = reducer->nodes;
    if (exchanges_bf16(reducer))
        SL_TRY(sli_device_convert(device, &rounding));
    for (; count > 0 && completes_node(reducer, count - 1, reducer->end_term); count--)
        SL_TRY(sli_device_add(device, last->count, last->grads, sum_of(reducer, count - 1, full)));
    for (int n = 0; n < count; n++)
        nodes[n] = sum_of(reducer, n, full);
    nodes[count] = last->grads;
    SL_TRY(sli_group_all_reduce_nodes(reducer->device_group, nodes, reducer->terms, last->grads,
                                      last->count, SL_F32, SL_REDUCE_AVERAGE));
    return exchanges_bf16(reducer) ? sli_device_convert(device, &rounding) : SL_OK;
}

static sl_status exchange_on_device(const sli_reducer *reducer, const tracked_bucket *full)
{
    const sl_ddp_bucket *bucket = &full->exchange;
    if (reducer->terms > sl_group_size(reducer->group))
        return exchange_nodes_on_device(reducer, full);
    if (exchanges_bf16(reducer))
        return reduce_bf16_on_device(reducer, bucket);
    return sl_group_all_reduce(reducer->device_group, bucket->grads, bucket->count, SL_F32,
                               SL_REDUCE_AVERAGE, NULL);
}

/* Without NCCL, and for hooks, groups exchange host memory. */
static sl_status exchange_bucket(const sli_reducer *reducer, tracked_bucket *full)
{
    sl_ddp_bucket *bucket = &full->exchange;
    sli_host_array grads;
    if (reducer->device_group && !reducer->reduction.hook && reducer->reduction.divisor == 0)
        return exchange_on_device(reducer, full);
    SL_TRY(sli_host_array_open(sl_parameter_set_device(reducer->set), bucket->grads,
                               (size_t)bucket->count * sizeof(float), true, &grads));
    bucket->grads = grads.host;
    sl_status status = exchange_on_host(reducer, full);
    bucket->grads = grads.memory;
    sl_status written = sli_host_array_close(&grads, status == SL_OK);
    return status == SL_OK ? written : status;
}

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
        sl_status status = exchange_bucket(reducer, next);
        next->ended = sli_clock_seconds();
        if (status == SL_OK)
            continue;
        sl_error_context(status, "gradients of stage %d, bucket %d: ", next->exchange.stage,
                         next->exchange.index);
        sli_failure_raise(&reducer->failure, 0, status);
        (void)sli_group_break(reducer->group, status);
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
    bucket->exchange.grads = sl_tensor_f32(grads);
    bucket->ready = sli_clock_seconds();
    reducer->arrivals[reducer->arrived++] = tracked->bucket;
    release_full_buckets(reducer);
    return SL_OK;
}

static sl_status mark_module_ready(sli_reducer *reducer, const sl_module *module)
{
    for (int i = 0; i < module->parameter_count; i++) {
        const sl_parameter *parameter = module->parameters[i];
        int index = reducer->index_of[parameter->number - reducer->first_number];
        if (index >= 0 && !parameter->ties)
            SL_TRY(mark_ready(reducer, index));
    }
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(mark_module_ready(reducer, module->children[i]));
    return SL_OK;
}

static bool runs_once(const sl_module *module)
{
    for (const sl_module *above = module->parent; above; above = above->parent)
        if (!sl_module_is_sequential(above))
            return false;
    return true;
}

static sl_status went_backward(void *arg, const sl_module *module)
{
    if (sl_module_is_sequential(module) || !runs_once(module))
        return SL_OK;
    return mark_module_ready(arg, module);
}

/* ---- Terms before the last one ---------------------------------------------------------- */

sl_status sli_reducer_set_terms(sli_reducer *reducer, int terms)
{
    int rank = sl_group_rank(reducer->group), ranks = sl_group_size(reducer->group);
    const sl_shape shape = sl_shape_1d(reducer->elements);
    reducer->terms = terms;
    reducer->first_term = sli_sum_tree_first(terms, rank, ranks);
    reducer->end_term = sli_sum_tree_first(terms, rank + 1, ranks);
    int room = sli_sum_tree_height(reducer->first_term, reducer->end_term, terms) - 1;
    if (reducer->elements == 0)
        return SL_OK;
    reducer->sums = calloc((size_t)room + 1, sizeof *reducer->sums);
    if (!reducer->sums)
        return sl_error(SL_ERR_MEMORY, "no memory for the sums of %d terms", terms);
    for (; reducer->room < room; reducer->room++)
        SL_TRY(sl_tensor_create(sl_parameter_set_device(reducer->set), SL_MEMORY_GRADIENTS, SL_F32,
                                &shape, &reducer->sums[reducer->room]));
    return SL_OK;
}

/* Adds the bucket's gradients to the node below, that to the one below it, …, down to node `to`. */
static sl_status push_bucket(const sli_reducer *reducer, int bucket, int to)
{
    const tracked_bucket *tracked = &reducer->buckets[bucket];
    sl_device *device = sl_parameter_set_device(reducer->set);
    size_t bytes = (size_t)tracked->exchange.count * sizeof(float);
    sl_tensor *grads;
    SL_TRY(sl_parameter_set_bucket_grads(reducer->set, bucket, &grads));
    float *from = sl_tensor_f32(grads);
    sli_convert rounding = {.count = tracked->exchange.count, .from = from, .to = from};
    if (exchanges_bf16(reducer))
        SL_TRY(sli_device_convert(device, &rounding));
    if (to == reducer->nodes)
        SL_TRY(sli_device_copy(device, sum_of(reducer, to, tracked), from, bytes));
    for (int n = reducer->nodes - 1; n >= to; n--) {
        float *sum = sum_of(reducer, n, tracked);
        SL_TRY(sli_device_add(device, tracked->exchange.count, sum, from));
        from = sum;
    }
    return SL_OK;
}

sl_status sli_reducer_add_term(sli_reducer *reducer)
{
    int end = node_start(reducer, reducer->nodes) + 1, to = reducer->nodes;
    assert(end < reducer->end_term);
    while (to > 0 && completes_node(reducer, to - 1, end))
        to--;
    for (int b = 0; b < reducer->bucket_count; b++)
        SL_TRY(push_bucket(reducer, b, to));
    reducer->nodes = to + 1;
    reducer->ends[to] = end;
    return SL_OK;
}

/* ---- A step ----------------------------------------------------------------------------- */

const sli_pass_observer *sli_reducer_observer(const sli_reducer *reducer)
{
    return &reducer->observer;
}

void sli_reducer_begin(sli_reducer *reducer, const sli_reduction *reduction)
{
    reducer->reduction = *reduction;
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
    reducer->nodes = 0;
    return sli_failure_take(&reducer->failure);
}

void sli_reducer_abort(sli_reducer *reducer, sl_status error)
{
    (void)sli_group_break(reducer->group, error);
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

/* Nodes of several terms are exchanged in f32. */
static size_t bytes_of_element(const sli_reducer *reducer)
{
    bool sends_bf16 = exchanges_bf16(reducer) && reducer->terms == sl_group_size(reducer->group);
    return sends_bf16 && !reducer->reduction.hook ? sizeof(uint16_t) : sizeof(float);
}

void sli_reducer_log(const sli_reducer *reducer, sl_ddp_bucket_log *logs)
{
    double start = reducer->reduction.start;
    for (int at = 0; at < reducer->bucket_count; at++) {
        const tracked_bucket *sent = &reducer->buckets[reducer->order[at]];
        logs[at] = (sl_ddp_bucket_log){
            .stage = sent->exchange.stage,
            .index = sent->exchange.index,
            .parameters = sent->parameters,
            .bytes = sent->exchange.count * (int64_t)bytes_of_element(reducer),
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
        if (i == 0)
            reducer->first_number = parameter->number;
        assert(parameter->number == reducer->first_number + (uint32_t)i);
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
        bucket->exchange = (sl_ddp_bucket){
            .group = reducer->group,
            .stage = stage,
            .index = b,
            .count = sl_tensor_count(sl_parameter_set_bucket_values(reducer->set, b)),
        };
        bucket->offset = reducer->elements;
        reducer->elements += bucket->exchange.count;
        bucket->parameters = sli_parameter_set_bucket(reducer->set, b, &in_bucket);
        for (int i = 0; i < bucket->parameters; i++)
            reducer->trained[reducer->index_of[in_bucket[i]->number - reducer->first_number]]
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
        return sl_error(SL_ERR_MEMORY, "sl_ddp_create: no memory for a reducer");
    reducer->set = set;
    reducer->group = group;
    reducer->device_group = device_group;
    reducer->comm_precision = comm_precision;
    reducer->bucket_count = sl_parameter_set_bucket_count(set);
    reducer->terms = sl_group_size(group);
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
    sl_status status = SL_ERR_MEMORY;
    if (!reducer->trained || !reducer->used || !reducer->index_of || !reducer->buckets ||
        !reducer->order || !reducer->arrivals) {
        sl_error(status, "sl_ddp_create: no memory for a list of %zu parameters", parameters - 1);
        goto fail;
    }
    list_parameters(reducer);
    list_buckets(reducer, stage);
    status = sli_worker_create(NULL, NULL, &reducer->thread);
    if (status != SL_OK)
        goto fail;
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
        free(dead->buckets[b].exchange.scratch);
    for (int n = 0; n < dead->room; n++)
        sl_tensor_destroy(&dead->sums[n]);
    pthread_cond_destroy(&dead->changed);
    pthread_mutex_destroy(&dead->lock);
    sli_failure_destroy(&dead->failure);
    free(dead->trained);
    free(dead->used);
    free(dead->index_of);
    free(dead->buckets);
    free(dead->order);
    free(dead->arrivals);
    free(dead->sums);
    free(dead);
    *reducer = NULL;
}
