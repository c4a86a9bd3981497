/* Steps of layouts on clusters whose devices take now more time, now less, and some of whose nodes
 * are slow. */
#ifndef SLI_PLANNER_JITTER_H
#define SLI_PLANNER_JITTER_H

#include "planner/search_cluster.h"

/* How many times as long as without jitter each of the first `used` devices takes in a step, by the
 * seed and the number of the draw. */
void sli_draw_factors(const sli_devices *devices, int used, uint64_t seed, uint32_t draw,
                      double *factors);

/* The step of a replica with these factors of devices; the table's ranks have times of their own.
 */
sl_status sli_time_replica(sli_found_table *table, const int *balance, int replica,
                           const double *factors, sl_step_costs *out);

/* The mean of drawn steps of a layout that was found, each of the replica that is the slowest then.
 * Without jitter its own costs, and no draws. */
sl_status sli_draw_step(const sli_cluster_job *job, const sli_cluster *cluster,
                        const sli_found_layout *found, uint64_t seed, sl_step_costs *out,
                        int *draws);

/* The table of a layout that was found, and its simulation in seconds: with jitter, of the slowest
 * replica of the first drawn step; else of any replica. Both are to be freed. NULL and nothing,
 * where the table has more than `most` actions. */
sl_status sli_simulate_found(const sli_cluster_job *job, const sli_cluster *cluster,
                             const sli_found_layout *found, uint64_t seed, int64_t most,
                             sl_schedule **table, sl_simulation *simulation);

#endif
