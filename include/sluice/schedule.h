/* Schedules: tables of what each pipeline rank does, in which order.
 *
 * A model is cut into S stages, placed on P pipeline ranks, S = P * V. A table has a row for each
 * rank. Each cell of it names a stage, an action and a micro-batch, in PyTorch's notation:
 *
 *     2F0   forward                          2B0   backward, both halves
 *     2I0   backward for the input           2R0   forward again (PyTorch has no such action)
 *     2W0   backward for the weights
 *
 * In a table whose last module, the head, is split over all ranks by its classes, each rank has two
 * more actions for each micro-batch, at its first stage. PyTorch has none of that kind; the letters
 * are those of the Vocabulary Parallelism paper (arXiv 2411.05288):
 *
 *     0S0   the rank's logits, and what they give to the loss and to the gradient of the input
 *     0T0   the gradient of the rank's weights of the head
 *
 * A table may cut each micro-batch along time into K slices (Seq1F1B, arXiv 2406.03488). Slices go
 * forward in order, since each attends to those before it, and backward in reverse. An action's
 * `micro` then numbers slices as they go backward: slice k of micro-batch m is number m K + K - 1 -
 * k, written m.k:
 *
 *     2F1.0   forward of the first slice of micro-batch 1, before 2F1.1
 *
 * A schedule is data: functions write it (GPipe, 1F1B, zero bubble ...) or a file holds it, one
 * validator proves it, one simulator plays it against costs, and the pipe's one interpreter runs
 * it.
 *
 * Canonical order: at every stage, backwards for the input ascend over `micro`, and so do
 * those for the weights (B is both), and S and T. A parameter's gradient is then the same sum in
 * the same order under every schedule, bit for bit.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_SCHEDULE_H
#define SLUICE_SCHEDULE_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

SL_API_BEGIN

typedef struct sl_schedule sl_schedule;

/* Which micro-batches recompute: they free their activations after forward, and run forward again
 * before backward. */
typedef enum sl_recompute {
    SL_RECOMPUTE_EXCEPT_LAST, /* all but the one that ran forward last: PyTorch's default */
    SL_RECOMPUTE_NEVER,
    SL_RECOMPUTE_ALWAYS
} sl_recompute;

typedef enum sl_action_kind {
    SL_ACTION_FORWARD,         /* F */
    SL_ACTION_RECOMPUTE,       /* R: forward again, from the stage's input */
    SL_ACTION_BACKWARD,        /* B: both halves */
    SL_ACTION_BACKWARD_INPUT,  /* I: the gradient of the input */
    SL_ACTION_BACKWARD_WEIGHT, /* W: the gradients of the weights; needs its I before it */
    SL_ACTION_HEAD_FORWARD,    /* S: needs the last stage's F; that stage's B or I needs all S */
    SL_ACTION_HEAD_BACKWARD    /* T: needs the last stage's B or I */
} sl_action_kind;

typedef struct sl_action {
    int stage, micro; /* with slices a slice's number */
    sl_action_kind kind;
    /* This action shares a cell with the one before it, PyTorch's (0F7;7B3)OVERLAP_F_B: a forward
     * and a backward. The cell begins when the inputs of both are there, and sends both results at
     * its end. */
    bool joined;
    /* Set by the library, whatever the caller gave: this forward keeps no activations, because an R
     * follows or the table never goes backward. Where an R follows, the last stage computes nothing
     * in this forward, as nobody needs its output yet, unless the head is split. */
    bool discards;
    /* Set by the library: the stage's gradients are complete when this action has run. */
    bool completes;
    /* Set by the library: the table's K; 0: it is in no table. */
    int slices;
} sl_action;

/* ---- Tables ----------------------------------------------------------------------------- */

/* The pipeline that a table is written for. */
typedef struct sl_schedule_options {
    int ranks;            /* P */
    int virtual_stages;   /* V, the stages of a rank; 0: the schedule's own number */
    const int *placement; /* [P * V] the rank of each stage, each rank V times; borrowed; NULL: the
                             schedule's own */
    int micros;           /* M, micro-batches */
    int slices;           /* K, of each; 0: 1 */
    /* For schedules that depend on costs: times of one micro-batch in all stages of a rank, in any
     * unit. All 0: 1 each. */
    double forward, backward_input, backward_weight;
    double link; /* from an action's end to its result's arrival at another rank */
    /* For sl_timeline_utilization alone, as in sl_cost_model. */
    const double *links;
    const int *cores;
    int forward_only; /* the same: so many first stages are frozen and do not go backward */
} sl_schedule_options;

/* Writes the order of computation, without recomputation. `context` is the writer's own. */
typedef sl_status (*sl_schedule_writer)(const void *context, const sl_schedule_options *options,
                                        sl_schedule **out);

/* The schedules that the library writes; then NULL. */
extern const char *const sl_schedule_names[];
bool sl_schedule_has_name(const char *name);
/* The default number of stages of a rank; 0: there is no such schedule. */
int sl_schedule_virtual_stages(const char *name);

/* The table of one of sl_schedule_names (NULL: the first). SL_ERR_NOT_FOUND lists the names.
 * SL_ERR_INVALID for what the schedule cannot do, a placement for example. */
sl_status sl_schedule_write(const char *name, const sl_schedule_options *options,
                            sl_schedule **out);

/* How many forwards of its k-th stage a rank of such a table runs before its first backward: what
 * it holds then, it holds at least. Takes ranks, virtual_stages (0: the schedule's own) and micros
 * of the options, which sl_schedule_write must accept. 0: there is no such schedule. */
int sl_schedule_filling(const char *name, const sl_schedule_options *options, int rank, int k);

/* A table of one's own: `counts[r]` actions of rank r, one rank after the other in `actions`
 * (copied, not validated). `actions` may be NULL if there are none. Takes ranks, placement (NULL: a
 * loop), virtual_stages (0: 1), micros and slices of the options. Errors: SL_ERR_INVALID for
 * numbers below 1, too many stages or micro-batches, a placement that does not give each rank V
 * stages, and a negative count. */
sl_status sl_schedule_from_table(const sl_schedule_options *options, const int *counts,
                                 const sl_action *actions, sl_schedule **out);

/* The table that a user's text names: a schedule, or where there is none of that name a file in
 * PyTorch's CSV, compute form: a line for each rank, a cell for each action, empty cells for
 * pauses; slices are written as above. P, V, M, K and the placement follow from the cells; each
 * option that is set must agree with them (to compare `placement`, ranks and virtual_stages must be
 * set). B means I where the micro-batch also has a W at that stage (an older dialect).
 * Micro-batches are numbered anew where that gives the canonical order. The table is validated.
 * Errors: as sl_schedule_write and sl_schedule_validate; SL_ERR_FORMAT with line and cell; what
 * reading the file reports. */
sl_status sl_schedule_open(const char *name_or_path, const sl_schedule_options *options,
                           sl_schedule **out);

void sl_schedule_destroy(sl_schedule **schedule);

int sl_schedule_ranks(const sl_schedule *schedule);
int sl_schedule_stages(const sl_schedule *schedule);
int sl_schedule_micros(const sl_schedule *schedule); /* M */
int sl_schedule_slices(const sl_schedule *schedule); /* K; 1: micro-batches are whole */
/* [stages] the rank of each stage; lives as long as the schedule. */
const int *sl_schedule_placement(const sl_schedule *schedule);
/* Rank `rank`'s actions; they live as long as the schedule and until it is rewritten. */
int sl_schedule_actions(const sl_schedule *schedule, int rank, const sl_action **actions);

/* Reads a placement into placement[ranks * virtual_stages]: "loop" (stage s on rank s mod ranks),
 * "v" (ranks 0 ... P-1, then back, and so on) or the rank of each stage, "0,1,1,0". Errors:
 * SL_ERR_INVALID. */
sl_status sl_placement_parse(const char *text, int ranks, int virtual_stages, int *placement);

/* ---- Rewrites --------------------------------------------------------------------------- */

/* The same table without micro-batches `micros` and above, for a smaller batch. */
sl_status sl_schedule_first_micros(const sl_schedule *schedule, int micros, sl_schedule **out);

/* Adds recomputations by mode. A table that has some of its own stays as it is. Errors:
 * SL_ERR_MEMORY; the table is then as it was. */
sl_status sl_schedule_recompute(sl_schedule *schedule, sl_recompute mode);

/* How much of backward a stage has. */
typedef enum sl_stage_backward {
    SL_STAGE_BACKWARD_WHOLE,
    SL_STAGE_BACKWARD_INPUT, /* no parameter is trained here: nothing is added to weights */
    SL_STAGE_BACKWARD_NONE   /* nor in any stage before it */
} sl_stage_backward;

/* Takes out what stages with frozen parameters have no use for, by `stages` [stages]: where only
 * the gradient of the input is wanted, I becomes B and W goes; the first stages, where none is,
 * keep their F alone. Recomputations are added before or after it. Errors: SL_ERR_INVALID for a
 * stage without backward behind one that has it, and where no stage has any; the table is then as
 * it was. */
sl_status sl_schedule_freeze(sl_schedule *schedule, const sl_stage_backward *stages);

/* Splits the head over the ranks: adds S and T of every micro-batch to each. S come in the order of
 * micro-batches, each as soon as its input is there and its rank has room for it, T where its rank
 * would wait otherwise, and forwards move ahead of up to two backwards where that makes the step
 * shorter, so that the last stage has work while others run their S. A rank holds at most two
 * micro-batches between S and T, and one more for each backward that forwards moved ahead of.
 * `head` is how long the whole head's forward takes, all stages' forwards of a micro-batch together
 * taking 1. Joined actions become single ones. Comes after the other rewrites. A table that has S
 * already, or never goes backward, stays as it is. Errors: SL_ERR_INVALID for a `head` that is not
 * above 0, a table with slices and one that deadlocks; the table is then as it was. */
sl_status sl_schedule_split_head(sl_schedule *schedule, double head);

/* ---- Proof ------------------------------------------------------------------------------ */

/* Proves that the table can run and is whole: at each stage each micro-batch goes once forward and
 * once backward, by B or by I and later W, unless the table never goes backward, or
 * sl_schedule_freeze has taken that from the stage; R comes once between F and backward, or not at
 * all; where there is any S, every rank has one and later a T of each micro-batch, at its first
 * stage; slices go forward in order; the order is canonical; every rank holds V stages; and there
 * is no deadlock when actions wait for their neighbours' results. SL_ERR_INVALID names rank, action
 * and reason, and draws the table around it, up to there. */
sl_status sl_schedule_validate(const sl_schedule *schedule);

typedef struct sl_cost_model {
    /* Seconds (any unit) of each action at a stage, a slice's where there are slices, [stages]
     * each; borrowed. R costs a forward; the last stage's discarding F of a table that goes
     * backward costs nothing where micro-batches are whole. */
    const double *forward, *backward_input, *backward_weight;
    const double *backward;                     /* of B; NULL: I and W together */
    const double *head_forward, *head_backward; /* of S and T; NULL: they take no time */
    const double *seconds; /* [actions of the table, rank 0's row first] each action's own instead;
                              borrowed; NULL: by stage. `forward` and so on are still given */
    double link;           /* from an action's end to its result's arrival at another rank */
    const double *links;   /* [stages - 1] `link` of stages s and s + 1, in both directions;
                              borrowed; NULL: `link` for all */
    const double *head_links; /* [2 * ranks] `link` of a split head: [r] from the last stage to S,
                                 and to T, of rank r, [ranks + r] from that S back; borrowed;
                                 NULL: that of the last two stages */
    const double *busy; /* [stages - 1] how long a tensor occupies the link between stages s and
                           s + 1: the next one from the same rank to the same rank leaves when it
                           is free. Those of S and T do not wait, nor occupy it. Borrowed; NULL:
                           links are never busy */
    const int *cores;   /* [ranks] ranks with the same number share cores: while k of them run an
                           action, each runs at 1/k of its speed; borrowed; NULL: every rank has cores
                           of its own */
    /* Bytes that passes hold of a micro-batch at a stage, [stages] each; NULL: not counted. */
    const double *held_bytes;        /* from forward to I or B */
    const double *weight_held_bytes; /* from I to W */
} sl_cost_model;

typedef struct sl_timeline_entry {
    sl_action action;
    double start, end;
} sl_timeline_entry;

typedef struct sl_simulation {
    double makespan;
    double bubble;      /* idle fraction of ranks * makespan, 0 ... 1 */
    double bubble_span; /* the same for the rank with the longest time from its first to its last
                           action (the Zero Bubble paper's measure) */
    double *idle;       /* [ranks] makespan less the rank's work */
    int *peak_held; /* [ranks] most pairs of stage and micro-batch (or slice) whose activations are
                       held at once, each from F (or R after an F that discards) until B or W */
    double *peak_bytes; /* [ranks] most bytes held at once; 0: the costs' are NULL */
    int entry_count;
    sl_timeline_entry *entries; /* in the table's order: rank 0's row, rank 1's ... */
} sl_simulation;

/* Plays a valid table: each action starts when its rank is free and its input is there. Joined
 * actions wait for the inputs of both, then run one after the other. Free the result with
 * sl_simulation_clear. Errors: SL_ERR_INVALID for a table that sl_schedule_validate refuses, or
 * a cost that is not 0 or more. */
sl_status sl_schedule_simulate(const sl_schedule *schedule, const sl_cost_model *costs,
                               sl_simulation *out);
void sl_simulation_clear(sl_simulation *simulation);

/* ---- Where a step's time went ------------------------------------------------------------ */

/* What the trace of a training step says. Times are seconds, or the trace's unit. */
typedef struct sl_utilization {
    int ranks, stages;
    double seconds;           /* from the step's start to the end of its last action */
    double bubble_measured;   /* idle fraction of ranks * seconds, 0 ... 1 */
    double bubble_predicted;  /* that of the table, simulated with the mean time of each stage's
                                 forwards and backwards (of each slice) in the trace, and the costs
                                 of links. Where ranks share cores, an action's time is its cores'
                                 time divided among the actions that ran at once */
    double predicted_seconds; /* of the simulation */
    double *idle;             /* [ranks] fraction of `seconds` in which the rank ran no action */
    double *waiting;          /* [ranks] fraction in which it waited for a tensor of another rank;
                                 `idle` also counts the time after its last action, and between a
                                 tensor's arrival and the action's start */
    double *stage_seconds;    /* [stages] of the stage's actions together */
    double *forward;          /* [stages] mean of a micro-batch's forward, on cores of its own */
    double *backward;         /* [stages] the same of its backward, both halves; 0: there is none */
    int slowest_stage;        /* the one with the most of them */
    int *placement;           /* [stages] the rank of each stage */
    int forward_only;         /* so many first stages do not go backward: the options' */
    double *links;            /* [stages - 1] used by the prediction; NULL: none were given */
    int *cores;               /* [ranks] the same */
    int action_count;
    sl_timeline_entry *measured;  /* [action_count] the trace, in the table's order */
    sl_timeline_entry *predicted; /* [action_count] the same actions in the simulation */
} sl_utilization;

/* From a trace in the table's order, as sl_pipe_timeline and sl_schedule_simulate give it. Takes
 * ranks, placement (NULL: a loop), virtual_stages (0: 1), slices, link, links, cores and
 * forward_only of the options. Free the result with sl_utilization_clear. Errors: SL_ERR_INVALID
 * for a trace that is not of a whole step, or a cost of a link that is not 0 or more. */
sl_status sl_timeline_utilization(const sl_timeline_entry *entries, int count,
                                  const sl_schedule_options *layout, sl_utilization *out);
void sl_utilization_clear(sl_utilization *utilization);

/* ---- Pictures --------------------------------------------------------------------------- */

/* The table as text: a row a rank, a column a clock in which every cell takes one, dots for pauses:
 *
 *     0F0 0F1 ... 0B0 0B1
 *     ... 1F0 1B0 1F1 1B1
 *
 * Of a table that deadlocks, what can run is drawn. malloc'ed, the caller frees it. Errors:
 * SL_ERR_INVALID for an action whose stage, micro-batch or kind does not exist, or that is joined
 * to one with which it cannot share a cell. */
sl_status sl_schedule_draw(const sl_schedule *schedule, char **text);

/* PyTorch's CSV, compute form, without pauses; malloc'ed. R is sluice's own. */
sl_status sl_schedule_csv(const sl_schedule *schedule, char **text);

/* What was played, to scale, `simulation` being that of the table; malloc'ed. The numbers do not
 * depend on the locale. */
sl_status sl_schedule_svg(const sl_schedule *schedule, const sl_simulation *simulation,
                          char **text);

/* One JSON object: ranks, stages, micros, slices, makespan, bubble, bubble_span, idle and peak_held
 * (arrays with an entry a rank), placement (the rank of each stage), and actions, [action, start,
 * end] each, in the table's order; malloc'ed. */
sl_status sl_schedule_json(const sl_schedule *schedule, const sl_simulation *simulation,
                           char **text);

/* "except_last", "never", "always", by the numbers of the enum; then NULL. */
extern const char *const sl_recompute_names[];

/* SL_ERR_NOT_FOUND lists the names. */
sl_status sl_recompute_parse(const char *text, sl_recompute *out);
const char *sl_recompute_name(sl_recompute recompute);

SL_API_END

#endif
