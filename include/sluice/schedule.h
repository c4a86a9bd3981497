/* Schedules: tables of what each stage does, in which order.
 *
 * A schedule is data. Functions write it (GPipe, 1F1B), one validator proves it complete and free
 * of deadlock, one simulator plays it against a cost model, and the pipe's one interpreter runs it.
 *
 * Every schedule sends micro-batches backward from the last to the first at every stage, so that a
 * parameter's gradient is the same sum in the same order under each of them, bit for bit. GPipe
 * therefore runs them forward from the first to the last, and 1F1B forward from the last to the
 * first as well. */
#ifndef SLUICE_SCHEDULE_H
#define SLUICE_SCHEDULE_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_schedule sl_schedule;

typedef enum sl_schedule_kind { SL_SCHEDULE_GPIPE, SL_SCHEDULE_1F1B } sl_schedule_kind;

/* Which micro-batches give up their activations after forward and run it again before backward. */
typedef enum sl_recompute {
    SL_RECOMPUTE_EXCEPT_LAST, /* all but the last micro-batch: PyTorch's default */
    SL_RECOMPUTE_NEVER,
    SL_RECOMPUTE_ALWAYS
} sl_recompute;

typedef enum sl_action_kind {
    SL_ACTION_FORWARD,         /* keep the activations */
    SL_ACTION_FORWARD_DISCARD, /* keep only the stage's input. At the last stage of a table that
                                  goes backward, nobody waits for the output: nothing is computed */
    SL_ACTION_RECOMPUTE,       /* run forward again from the stage's input, keep the activations */
    SL_ACTION_BACKWARD
} sl_action_kind;

typedef struct sl_action {
    sl_action_kind kind;
    int micro; /* 0 … micros - 1 */
} sl_action;

/* Huang et al., "GPipe", 2019; torchgpipe's clock cycles. */
sl_status sl_schedule_gpipe(int stages, int micros, sl_recompute recompute, sl_schedule **out);

/* PipeDream-flush: Narayanan et al., "Memory-efficient pipeline-parallel DNN training", 2021. Stage
 * s holds at most stages - s micro-batches' activations. */
sl_status sl_schedule_1f1b(int stages, int micros, sl_recompute recompute, sl_schedule **out);

sl_status sl_schedule_create(sl_schedule_kind kind, int stages, int micros, sl_recompute recompute,
                             sl_schedule **out);

/* Forward only, for evaluation: every stage runs FORWARD_DISCARD of 0 … micros - 1. Every function
 * here takes a table without RECOMPUTE and BACKWARD, whose forwards all discard, for one of these.
 */
sl_status sl_schedule_forward_only(int stages, int micros, sl_schedule **out);

/* A table of one's own: `counts[s]` actions of stage s, one stage after the other in `actions`
 * (copied, not validated). Each of these functions: SL_ERR_INVALID for fewer than one stage or
 * micro-batch. */
sl_status sl_schedule_from_table(int stages, int micros, const int *counts,
                                 const sl_action *actions, sl_schedule **out);
void sl_schedule_destroy(sl_schedule **schedule);

int sl_schedule_stages(const sl_schedule *schedule);
int sl_schedule_micros(const sl_schedule *schedule);
/* Stage `stage`'s actions; they live as long as the schedule. */
int sl_schedule_actions(const sl_schedule *schedule, int stage, const sl_action **actions);

/* Proves that the table can run and is whole: each micro-batch once forward and (unless it is a
 * forward-only table) once backward at each stage; RECOMPUTE exactly once between FORWARD_DISCARD
 * and BACKWARD and never after FORWARD; no backward before its forward; and no deadlock when a
 * stage waits for its neighbours' results. SL_ERR_INVALID names the stage and the action; for a
 * deadlock, what the action waits for as well, and draws the table up to there. */
sl_status sl_schedule_validate(const sl_schedule *schedule);

typedef struct sl_cost_model {
    /* Seconds (any unit) of an action at a stage, [stages] each; borrowed. A recomputation costs a
     * forward; the last stage's FORWARD_DISCARD of a table that goes backward costs nothing. */
    const double *forward, *backward;
    double transfer; /* from an action's end to its result's arrival at the neighbour */
} sl_cost_model;

typedef struct sl_timeline_entry {
    int stage;
    sl_action action;
    double start, end;
} sl_timeline_entry;

typedef struct sl_simulation {
    double makespan;
    double bubble;     /* idle share of stages * makespan, 0 … 1 */
    int peak_held[64]; /* per stage (the first 64): most micro-batches whose activations are held at
                          once; the inputs that FORWARD_DISCARD keeps do not count */
    int entry_count;
    sl_timeline_entry *entries; /* in order of start; free with sl_simulation_clear */
} sl_simulation;

/* Plays a valid table: each action starts when its stage is free and its input is there.
 * SL_ERR_INVALID for a table that sl_schedule_validate refuses, or a cost that is not 0 or more. */
sl_status sl_schedule_simulate(const sl_schedule *schedule, const sl_cost_model *costs,
                               sl_simulation *out);
void sl_simulation_clear(sl_simulation *simulation);

/* The table as text: one row a stage, one column a clock in which every action takes one. F is a
 * forward, f one that discards, R a recomputation, B a backward; dots are idle clocks:
 *
 *     f0 f1 F2 .. .. B2 R1 B1 R0 B0 .. .. ..
 *
 * Of a table that deadlocks, what can run is drawn. malloc'ed, the caller frees it. */
sl_status sl_schedule_draw(const sl_schedule *schedule, char **text);

/* "gpipe", "1f1b" and "except_last", "never", "always", by the numbers of their enums; then NULL.
 */
extern const char *const sl_schedule_kind_names[], *const sl_recompute_names[];

/* SL_ERR_NOT_FOUND lists the names. */
sl_status sl_schedule_kind_parse(const char *text, sl_schedule_kind *out);
sl_status sl_recompute_parse(const char *text, sl_recompute *out);
const char *sl_schedule_kind_name(sl_schedule_kind kind);
const char *sl_recompute_name(sl_recompute recompute);

#ifdef __cplusplus
}
#endif
#endif
