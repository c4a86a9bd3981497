/* What tests of data parallelism share: a module whose gradients can be worked out by hand, and
 * checks that may run on a rank's thread. */
#ifndef TESTS_SUPPORT_REPLICAS_H
#define TESTS_SUPPORT_REPLICAS_H

#include "sluice/ddp.h"

/* cmocka's assertions may only fail on the main thread. A rank returns an error instead, which ends
 * the others and is the spawn's result. */
sl_status expect(bool condition, const char *what, ...) __attribute__((format(printf, 2, 3)));

/* Runs fn on `ranks` threads and fails the test, with the error, unless all succeed. */
void check_ranks(sl_status (*fn)(sl_group *group, void *arg), void *arg, int ranks);

typedef struct toy_options {
    float w;             /* initial value of `w`; 0: 1 */
    bool squared;        /* w is used twice: y = w^2 x */
    bool with_unused;    /* a second trained parameter, `unused`, that nothing touches */
    bool skips_w;        /* y = x: w gets no gradient */
    bool with_frozen;    /* `frozen`, [2] */
    bool with_buffer;    /* `buffer`, [1]: each keeping forward adds 1 to it */
    int64_t unused_size; /* elements of `unused`; 0: 1 */
} toy_options;

/* y = w x, element by element, with one weight. */
sl_module *toy_module(const toy_options *options);

/* A replica of it with a device of its own, under DDP. */
typedef struct toy {
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
    sl_ddp *ddp;
    uint64_t steps;
} toy;

sl_status toy_open(sl_group *group, const toy_options *options, const sl_ddp_options *ddp,
                   toy *out);
void toy_destroy(toy *replica);

/* Forward and backward with x and a gradient of 1 for y, so that w's gradient grows by x. */
sl_status toy_step(toy *replica, float x);

/* Parameter `name`'s gradient or value, first element. */
float toy_grad(const toy *replica, const char *name);
float toy_value(const toy *replica, const char *name);

#endif
