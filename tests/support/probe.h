/* A module that passes its input on, and lets a test see, delay and fail its calls. */
#ifndef TESTS_SUPPORT_PROBE_H
#define TESTS_SUPPORT_PROBE_H

#include "sluice/module.h"

#include <stdatomic.h>

/* Calls are counted from 1; the counters may be read by any thread. */
typedef struct probe {
    atomic_int forwards, backwards;
    int fail_forward, fail_backward; /* the call that fails with SL_ERR_NUMERIC; 0: none */
    /* (optional) Called in each forward, before anything else. */
    void (*on_forward)(struct probe *probe, int call);
    void *arg;
    bool gives_nothing;  /* forward and backward report success, and no result */
    bool leaves_on_pass; /* backward does not pop */
} probe;

/* Forward makes a copy of its input and saves the input; backward gives the gradient on. The module
 * borrows the probe. */
sl_module *probe_module(probe *probe);

#endif
