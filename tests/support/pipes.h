/* Pipes for tests: with devices, model and loss of their own, and what a test compares. */
#ifndef TESTS_SUPPORT_PIPES_H
#define TESTS_SUPPORT_PIPES_H

#include "sluice/pipe.h"

enum { TEST_MAX_STAGES = 8 };

typedef struct test_pipe {
    sl_device *devices[TEST_MAX_STAGES];
    int device_count;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
} test_pipe;

/* Takes the model and the loss (which may be NULL). The options lack them and the devices: stage s
 * gets device s % device_count, each with `threads` threads. */
test_pipe open_pipe(sl_module *model, sl_loss *loss, sl_pipe_options options, int device_count,
                    int threads);

/* Frees everything, and checks that no byte is left on any device. */
void test_pipe_destroy(test_pipe *pipe);

/* Checks that no activation and no workspace is in use on any device. */
void check_pipe_is_empty(const test_pipe *pipe);

/* Values or gradients of all trained parameters, in the model's order; malloc'ed. */
float *pipe_values(const sl_pipe *pipe, int64_t *count);
float *pipe_gradients(const sl_pipe *pipe, int64_t *count);

/* value -= lr * gradient, on every stage. */
void pipe_sgd_step(test_pipe *pipe, float lr);

/* Draws where to cut: `stages` parts of `modules`, none of them empty. */
void draw_balance(unsigned *seed, int modules, int stages, int *balance);

/* The library's table of a schedule. */
sl_schedule *library_table(const char *name, int ranks, int micros);

/* A valid table: random placement, orders, halves, joined cells, and (sometimes) recomputations
 * anywhere between forward and backward. */
sl_schedule *random_table(unsigned *seed, int ranks, int virtual_stages, int micros);

/* Checks that the timeline has every action of the table: each rank's in order, and each begins at
 * most `clock_error` seconds before what it needs of another stage ends. */
void check_timeline(const sl_timeline_entry *entries, int count, const sl_schedule *schedule,
                    int stages, double clock_error);

/* Calls sl_pipe_train on rows that start at sample `step * rows`, and checks that it succeeds. */
double pipe_train(test_pipe *pipe, const sl_tensor *input, const sl_tensor *targets, uint64_t step);

#endif
