/* Plans for a cluster, ordered by the tokens a day that they train with failures. */
#ifndef SLI_TRAIN_PLAN_ORDER_CLUSTER_H
#define SLI_TRAIN_PLAN_ORDER_CLUSTER_H

#include "planner/cluster.h"
#include "sluice/app/plan.h"

enum { SLI_MOST_VIRTUAL_STAGES = 8 };

/* A search, with the lists of its space. */
typedef struct sli_ordered_search {
    const sl_plan_search_options *options;
    const sl_train_options *run;
    sl_module *model;
    sli_cluster cluster;
    bool best_only; /* as in the options */
    int64_t rows;   /* of a step */
    int *chunks, chunk_count;
    int virtual_stages[SLI_MOST_VIRTUAL_STAGES];
    sli_cluster_job job;
    sli_found_layout *found; /* [results.wanted] */
    sli_search results;
} sli_ordered_search;

/* Fills in the plans, and how much was looked at: none, where nothing fits. *first: which one of
 * s->found the first plan is. */
sl_status sli_ordered_search_run(sli_ordered_search *s, sl_cluster_plans *out, int *first);

/* What would help the first plan, whose search bounded so many layouts. It searches again, and
 * leaves nothing of the first search. */
sl_status sli_ordered_search_help(sli_ordered_search *s, const sl_cluster_plan *first,
                                  int64_t layouts, sl_plan_helps *out);

#endif
