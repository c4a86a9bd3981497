/* What no table of a layout on a cluster can be below, without the table.
 *
 * The bound of a rank is what no order of its actions can avoid. The first forward comes to it
 * through the stages before its first one. Its first backward waits for a forward through all
 * stages and for the gradient's way back to its last stage, and for all its own forwards where that
 * is longer. Then it has all its backwards, and the last gradient goes back through the stages
 * before its first one. Weights' gradients can be computed meanwhile, where a schedule has them
 * apart.
 *
 * The last tensor over a link has waited for all others, and its micro-batch has the whole way
 * through all stages and back besides.
 *
 * A rank holds all that goes forward before its first backward. Where that does not fit its memory,
 * the layout needs a slower recomputation.
 *
 * Of a split head a rank has its part besides, which no bubble takes away, and the first gradient
 * waits for an equal part of it at least.
 *
 * The last backward of a stage comes behind all backwards of the rank's later stages, and its
 * gradients' exchange behind that: exchanges that are ready no earlier than some time take their
 * sum from then on. */
#include "planner/search_cluster.h"

#include "core/error.h"
#include "nn/split_head.h"

#include <math.h>
#include <stdlib.h>

/* ---- Bounds ------------------------------------------------------------------------------- */

/* What a layout's bound is made of. */
typedef struct bounded {
    const sli_cluster_searcher *search;
    const sli_candidate *candidate;
    sli_micro_size *size;
    const sli_grid_costs *grid;
    const int *starts; /* [stages + 1] the first module of each; a split head is of none */
    double head_forward, head_backward; /* of all ranks' S and T of a micro-batch */
    bool cuts_embedding;                /* with a split head: no stage has it */
    int stages;
    bool halves, is_v;
    sli_used_devices used;
    double update_per_byte;
    /* [stages] what tensors take on their way to a stage's input, and gradients from it back to the
     * first stage that has any; NULL: no time */
    const double *there, *back;
    double busiest; /* the longest that a tensor occupies a link */
} bounded;

static int stage_of(const bounded *b, int rank, int k)
{
    int ranks = b->candidate->pipeline_ranks;
    return b->is_v && k % 2 == 1 ? (k + 1) * ranks - 1 - rank : k * ranks + rank;
}

static double sum_between(const double *sums, int first, int last)
{
    return sums[last] - sums[first];
}

/* Of what is not cut. */
static double bytes_between(const bounded *b, const double *sums, int first, int last)
{
    return sum_between(sums, first == 0 && b->cuts_embedding ? 1 : first, last);
}

/* What a stage computes of a micro-batch: `input` what the next gradient waits for. */
typedef struct stage_work {
    double forward, backward, input, again;
    double bytes; /* of gradients */
} stage_work;

static stage_work work_of(const bounded *b, int stage)
{
    int first = b->starts[stage], last = b->starts[stage + 1];
    double jitter = b->grid->jitter;
    stage_work work = {.forward = jitter * sum_between(b->size->forward, first, last),
                       .backward = jitter * sum_between(b->size->backward, first, last),
                       .bytes = bytes_between(b, b->search->gradient_bytes, first, last)};
    work.input = b->halves ? jitter * sum_between(b->size->input, first, last) : work.backward;
    work.again = stage + 1 < b->stages && last > b->search->frozen ? work.forward : 0;
    return work;
}

/* When the first gradient comes to the stage: through all stages, and back to it. */
static double find_turn(const bounded *b, int stage)
{
    int last = b->starts[b->stages], behind = b->starts[stage + 1], top = b->stages - 1;
    const double *back = b->halves ? b->size->input : b->size->backward;
    double links = b->there ? b->there[top] + b->back[top] - b->back[stage] : 0;
    return links + b->head_forward / b->candidate->pipeline_ranks +
           b->grid->jitter * (b->size->forward[last] + sum_between(back, behind, last));
}

/* A micro-batch's way through all stages and back. */
static double find_way(const bounded *b)
{
    int last = b->starts[b->stages], top = b->stages - 1;
    const double *back = b->halves ? b->size->input : b->size->backward;
    return b->there[top] + b->back[top] + b->head_forward / b->candidate->pipeline_ranks +
           b->grid->jitter * (b->size->forward[last] + back[last]);
}

/* Sums of a rank's stages. */
static stage_work sum_rank(const bounded *b, int rank)
{
    stage_work all = {0};
    for (int k = 0; k < sli_stages_of_rank(b->candidate); k++) {
        stage_work work = work_of(b, stage_of(b, rank, k));
        all.forward += work.forward;
        all.backward += work.backward;
        all.input += work.input;
        all.again += work.again;
        all.bytes += work.bytes;
    }
    return all;
}

/* What a stage holds of a micro-batch under way. */
static double held_bytes(const bounded *b, int stage)
{
    int first = b->starts[stage], last = b->starts[stage + 1];
    double saved = sum_between(b->size->saved, first, last);
    if (last <= b->search->frozen)
        return 0;
    if (stage + 1 == b->stages)
        return saved;
    if (b->candidate->recompute != SL_RECOMPUTE_NEVER)
        saved = fmin(saved, b->size->passed[first]);
    return saved + b->size->passed[last];
}

/* What a rank holds at least when its first backward begins. */
static double bound_bytes(const bounded *b, int rank)
{
    const sli_candidate *candidate = b->candidate;
    double state = (double)sl_optimizer_state_bytes(&b->search->job->optimizer) / sizeof(float),
           kept = 1 + state / (candidate->zero ? candidate->replicas : 1), bytes = 0;
    int each = sli_stages_of_rank(candidate);
    const sl_schedule_options options = {.ranks = candidate->pipeline_ranks,
                                         .virtual_stages = each,
                                         .micros = candidate->chunks};
    for (int k = 0; k < each; k++) {
        int stage = stage_of(b, rank, k), first = b->starts[stage], last = b->starts[stage + 1];
        int filling =
            options.ranks > 1 ? sl_schedule_filling(candidate->schedule, &options, rank, k) : 1;
        bytes += bytes_between(b, b->search->value_bytes, first, last) +
                 kept * bytes_between(b, b->search->gradient_bytes, first, last) +
                 filling * held_bytes(b, stage);
    }
    return bytes;
}

/* Of a rank, from the step's beginning. */
typedef struct rank_bound {
    stage_work all;
    double forwards; /* the end of all its forwards */
    double turn;     /* when the first gradient comes */
    double again;    /* how many micro-batches go forward twice */
    double table;    /* the table's end */
} rank_bound;

static rank_bound bound_rank(const bounded *b, int rank)
{
    int lowest = stage_of(b, rank, 0), first = b->starts[lowest],
        highest = stage_of(b, rank, sli_stages_of_rank(b->candidate) - 1);
    double micros = b->candidate->chunks, jitter = b->grid->jitter,
           there = b->there ? b->there[lowest] : 0, back = b->back ? b->back[lowest] : 0;
    rank_bound bound = {.all = sum_rank(b, rank)};
    const stage_work *all = &bound.all;
    bound.again = b->candidate->recompute == SL_RECOMPUTE_NEVER    ? 0
                  : b->candidate->recompute == SL_RECOMPUTE_ALWAYS ? micros
                                                                   : micros - 1;
    bound.forwards = jitter * b->size->forward[first] + there + micros * all->forward;
    bound.turn = all->backward > 0 ? find_turn(b, highest) : 0;
    double turned = fmax(bound.forwards + bound.again * all->again, bound.turn);
    back += jitter * (b->halves ? b->size->input : b->size->backward)[first];
    bound.table = turned + fmax(micros * all->input + back, micros * all->backward);
    if (b->candidate->splits_vocabulary) {
        double part = sli_split_head_fraction(b->search->job->head_blocks, rank,
                                              b->candidate->pipeline_ranks),
               head = part * (b->head_forward + b->head_backward);
        bound.table = fmax(bound.table, bound.forwards + bound.again * all->again +
                                            micros * (all->backward + head));
    }
    return bound;
}

/* When the rank has sent its gradients, if that goes on while it computes. Stages become ready from
 * the last one down: what is ready no earlier than stage k are those up to it. */
static double bound_exchange(const bounded *b, const rank_bound *bound, int rank)
{
    double micros = b->candidate->chunks, end = 0, ready = INFINITY, exchange = 0,
           input = bound->all.input, again = bound->all.again;
    for (int k = 0; k < sli_stages_of_rank(b->candidate); k++) {
        stage_work own = work_of(b, stage_of(b, rank, k));
        double turned = fmax(bound->forwards + bound->again * again, bound->turn),
               last = own.input - (micros - 1) * fmax(0, own.backward - own.input);
        ready = fmin(ready, turned + micros * input - last);
        exchange += sli_exchange_seconds(&b->grid->reduce, own.bytes);
        end = fmax(end, ready + exchange);
        input -= own.input;
        again -= own.again;
    }
    return end;
}

/* 0 where no link is occupied. */
static double bound_links(const bounded *b)
{
    return b->there ? (b->candidate->chunks - 1) * b->busiest + find_way(b) : 0;
}

/* All ranks end the table together; the exchange and the update are those of the slowest. */
static sli_layout_bound bound_ranks(const bounded *b, int step)
{
    const sli_candidate *candidate = b->candidate;
    bool hides = b->used.is_cuda;
    double table = bound_links(b), late = 0, behind = 0, update = 0, bytes = 0;
    for (int rank = 0; rank < candidate->pipeline_ranks; rank += step) {
        rank_bound bound = bound_rank(b, rank);
        double sent = bound.all.bytes,
               gather = candidate->zero ? sli_exchange_seconds(&b->grid->gather, sent) : 0;
        table = fmax(table, bound.table);
        if (candidate->replicas > 1 && hides)
            late = fmax(late, bound_exchange(b, &bound, rank) + gather);
        else if (candidate->replicas > 1)
            gather += sli_exchange_seconds(&b->grid->reduce, sent);
        behind = fmax(behind, gather);
        update = fmax(update, sent * b->update_per_byte);
        bytes = fmax(bytes, bound_bytes(b, rank));
    }
    /* The last shard's table hides the exchange. */
    int before = (sli_cluster_search_shards(b->search, candidate) - 1) / candidate->replicas;
    double work = before * table + fmax(table + behind, late) + update;
    return (sli_layout_bound){work, bytes <= b->used.memory_bytes ? work : INFINITY, bytes};
}

/* ---- Tensors on their way ------------------------------------------------------------------ */

/* The links between the ranks of neighbouring stages, where there are several. */
static sl_status find_hops(const sli_cluster_searcher *search, sli_grid_costs *grid)
{
    int ranks = grid->grid.pipeline_ranks;
    if (grid->hops)
        return SL_OK;
    grid->hops = calloc((size_t)ranks, sizeof *grid->hops);
    if (!grid->hops)
        return sli_no_memory(NULL, "the links of %d ranks", ranks);
    for (int rank = 0; rank < ranks && ranks > 1; rank++)
        grid->hops[rank] =
            sli_devices_rank_link(&search->devices, &grid->grid, rank, (rank + 1) % ranks);
    return SL_OK;
}

/* *busy: in which a tensor has the link to itself. */
static double hop_seconds(const bounded *b, int stage, double *busy)
{
    int ranks = b->candidate->pipeline_ranks, loop = stage / ranks, place = stage % ranks;
    const sl_link_cost *link = &b->grid->hops[place];
    *busy = 0;
    if (b->is_v && place == ranks - 1)
        return 0;
    if (b->is_v && loop % 2 == 1)
        link = &b->grid->hops[ranks - 2 - place];
    *busy = b->size->modules[b->starts[stage + 1] - 1].output_bytes * link->seconds_per_byte;
    return link->seconds + *busy;
}

/* *busiest: the link that tensors take longest. */
static void sum_hops(const bounded *b, double *there, double *back, double *busiest)
{
    there[0] = back[0] = *busiest = 0;
    for (int s = 1; s < b->stages; s++) {
        double busy, hop = hop_seconds(b, s - 1, &busy);
        there[s] = there[s - 1] + hop;
        back[s] = back[s - 1] + (b->starts[s] > b->search->frozen ? hop : 0);
        *busiest = fmax(*busiest, busy);
    }
}

/* ---- Layouts ------------------------------------------------------------------------------ */

/* What `balance` takes and needs at least. */
static sli_layout_bound bound_cut(const bounded *common, const int *balance, bool is_whole)
{
    bounded b = *common;
    double there[SLI_MAX_PLANNED_STAGES], back[SLI_MAX_PLANNED_STAGES];
    b.starts = balance + b.stages;
    if (is_whole && b.stages > 1) {
        sum_hops(&b, there, back, &b.busiest);
        b.there = there;
        b.back = back;
    }
    int last = b.candidate->pipeline_ranks - 1;
    return bound_ranks(&b, is_whole || last == 0 ? 1 : last);
}

/* Of the cut by time, and of that by bytes, which is there for what the other does not fit: it may
 * have a shorter exchange. */
static sl_status bound_cuts(sli_cluster_searcher *search, const bounded *b, bool is_whole,
                            sli_layout_bound *out)
{
    const int *balance = NULL;
    bool splits = b->candidate->splits_vocabulary;
    sli_micro_size *size = b->size;
    SL_TRY(sli_cluster_search_cut(search, size->by_time, splits, b->stages, &balance));
    *out = bound_cut(b, balance, is_whole);
    if (b->stages == 1)
        return SL_OK;
    SL_TRY(sli_cluster_search_cut(search, search->by_bytes, splits, b->stages, &balance));
    sli_layout_bound by_bytes = bound_cut(b, balance, is_whole);
    *out = (sli_layout_bound){fmin(out->work, by_bytes.work), fmin(out->seconds, by_bytes.seconds),
                              fmin(out->bytes, by_bytes.bytes)};
    return SL_OK;
}

static void add_head(bounded *b)
{
    const sl_module_profile *head = &b->size->modules[b->search->modules - 1];
    b->head_forward = b->grid->jitter * (head->forward + head->backward_input);
    b->head_backward = b->grid->jitter * head->backward_weight;
    b->cuts_embedding = b->search->cuts_embedding;
}

static sl_status bound_candidate(sli_cluster_searcher *search, const sli_candidate *candidate,
                                 size_t grid, bool is_whole, sli_layout_bound *out)
{
    const sli_schedule_facts *facts = sli_cluster_search_facts(search, candidate->schedule);
    bounded b = {.search = search,
                 .candidate = candidate,
                 .grid = &search->grids[grid],
                 .used = sli_cluster_search_used(search, candidate),
                 .stages = candidate->pipeline_ranks * sli_stages_of_rank(candidate),
                 .halves = facts->halves && candidate->pipeline_ranks > 1,
                 .is_v = facts->is_v};
    sli_micro_size *size;
    if (is_whole)
        SL_TRY(find_hops(search, &search->grids[grid]));
    SL_TRY(sli_cluster_search_size(search, candidate, &size));
    b.size = size;
    if (candidate->splits_vocabulary)
        add_head(&b);
    const sli_update_speed update =
        sli_cluster_update_speed(b.used.memory_bytes_per_s, b.used.flops_f32,
                                 &search->job->optimizer);
    b.update_per_byte =
        update.optimizer / (candidate->zero ? candidate->replicas : 1) + update.undivided;
    return bound_cuts(search, &b, is_whole, out);
}

sl_status sli_bound_recomputation(sli_cluster_searcher *search, const sli_bounded_layout *layout,
                                  sli_layout_bound *out)
{
    *out = (sli_layout_bound){0};
    return bound_candidate(search, &layout->candidate, layout->grid, true, out);
}

/* Recomputations are more work from one to the next. */
sl_status sli_bound_layout(sli_cluster_searcher *search, sli_bounded_layout *layout, bool is_whole)
{
    const sli_search_space *space = &search->job->space;
    sli_candidate candidate = layout->candidate;
    double seconds = INFINITY;
    for (int i = 0; i < space->recompute_count; i++) {
        sli_layout_bound bound = {0};
        candidate.recompute = space->recomputes[i];
        SL_TRY(bound_candidate(search, &candidate, layout->grid, is_whole, &bound));
        if (bound.work >= seconds)
            break;
        seconds = fmin(seconds, bound.seconds);
    }
    layout->seconds = fmax(layout->seconds, seconds);
    layout->is_whole = is_whole;
    return SL_OK;
}
