/* What the benchmarks share: clocks, the machine's measured bounds, and a language model in a pipe
 * that can be stepped. */
#ifndef BENCH_SUPPORT_H
#define BENCH_SUPPORT_H

#include "sluice/model.h"
#include "sluice/pipe_optimizer.h"

double bench_now(void); /* seconds */

/* Sorts values in place and returns the middle one. */
double bench_median(double *values, int count);

/* Best rate in FLOP/s of single-threaded dnnl_sgemm calls on `threads` cores at once, over square
 * and training-like shapes: the bound that training steps are held against. */
double bench_sgemm_rate(int threads);

/* Prints the heading of a table in Markdown, `| a | b |`, as bench/repeat.py and docs/figures have
 * it; its rows follow. */
void bench_heading(const char *row);

/* Says what failed and ends the program with 1; does nothing when status is SL_OK. */
void bench_check(sl_status status);

enum { BENCH_MAX_STAGES = 8, BENCH_MAX_STEPS = 1000 };

typedef struct bench_setup {
    sl_model_options model;
    int64_t batch, bptt; /* a step trains on batch x bptt tokens */
    const char *devices; /* of each rank */
    int stages, virtual_stages;
    int balance[BENCH_MAX_STAGES], balance_count; /* 0: the default rule's */
    int chunks, slices;                           /* 0 slices: 1 */
    sl_recompute recompute;
    sl_precision precision;
    sl_optimizer_kind optimizer;
    const char *schedule;
    int head_blocks; /* as in sl_pipe_options */
    sl_group *group; /* of the processes that have the stages; NULL: this one has all */
} bench_setup;

/* The tutorials' model at a given width: nhid = emsize, dropout 0.2, causal mask, 28,782 tokens. */
bench_setup bench_setup_lm(int64_t emsize, int64_t nlayers, int64_t nhead);

/* Changes what the command line names, and says in an error which options there are. --model takes
 * all sizes of a published model, without dropout; options behind it change them. Without both,
 * --nhid is --emsize.
 */
void bench_setup_parse(int argc, char **argv, bench_setup *setup, int *steps);

/* Times of the model's modules for one micro-batch, on the first device, into times[modules]. */
void bench_profile_modules(const bench_setup *setup, sl_module_profile *times);

typedef struct bench_trainer bench_trainer;

/* A model with its optimizer, clipping at 0.5, and one random batch. */
bench_trainer *bench_trainer_create(const bench_setup *setup);
void bench_trainer_destroy(bench_trainer *trainer);

/* One whole training step: zero_grad, forward, backward, clip, update. Returns its seconds. */
double bench_trainer_step(bench_trainer *trainer);
/* Seconds of the last step's sl_pipe_train. */
double bench_trainer_train_seconds(const bench_trainer *trainer);
/* An evaluation of the batch. */
void bench_trainer_evaluate(bench_trainer *trainer);
sl_pipe *bench_trainer_pipe(const bench_trainer *trainer);

/* The tensors' bytes at the peak, of all devices together. */
uint64_t bench_trainer_peak_bytes(const bench_trainer *trainer);

/* FLOP of one step by the usual count: a multiply-add is 2, backward twice the forward, nothing for
 * recomputation or look-ups. */
double bench_trainer_flop(const bench_trainer *trainer);

#endif
