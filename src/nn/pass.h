/* What the files of nn know about a pass beyond its public interface. */
#ifndef SLI_NN_PASS_H
#define SLI_NN_PASS_H

#include "device/device.h"
#include "sluice/module.h"

/* Called for every module that has gone backward on a pass, children before their parent, on the
 * thread that runs the pass. Data parallelism sends gradients as soon as they are complete. */
typedef struct sli_pass_observer {
    sl_status (*went_backward)(void *arg, const sl_module *module);
    void *arg;
} sli_pass_observer;

struct sl_pass {
    sl_pass_options options;
    const sli_pass_observer *observer; /* NULL: none */
    sli_philox_key key;
    sl_tensor **saved; /* the stack: saved[count - 1] is the newest */
    int count;
    size_t capacity;
    sl_tensor **deferred; /* the queue: deferred[deferred_next] is the oldest */
    int deferred_count, deferred_next;
    size_t deferred_capacity;
    bool is_split;       /* the module that goes backward leaves its weights' half for later */
    int calls;           /* of modules, one inside the other */
    bool error_is_named; /* the current error's text names its module */
};

/* Sets the observer, which is borrowed; NULL: none. */
void sli_pass_observe(sl_pass *pass, const sli_pass_observer *observer);

/* Tells the observer. sl_module_backward does this; other code that runs a module's backward must
 * do it as well. */
sl_status sli_pass_went_backward(const sl_pass *pass, const sl_module *module);

/* Called before and after every run of a module. sli_pass_leave says whether the caller must name
 * the module in the error's text: only the innermost module is named there. */
void sli_pass_enter(sl_pass *pass);
bool sli_pass_leave(sl_pass *pass, sl_status status);
/* The current error's text names its module already. */
void sli_pass_error_is_named(sl_pass *pass);

/* Dropout number `local` (0 … 7) of `module` in this pass, over rows of which `rows_per_sample`
 * belong to one sample. p is 0 where the pass does not train. */
sli_dropout sli_pass_dropout(const sl_pass *pass, const sl_module *module, uint32_t local, float p,
                             int64_t rows_per_sample);

/* A tensor that forward will save: counted as an activation by a pass that keeps it, as workspace
 * by one that drops it. */
sl_status sli_pass_tensor(const sl_pass *pass, const sl_shape *shape, sl_tensor **out);

/* As sli_pass_tensor, but leaves *out NULL on a pass that does not keep: for what only backward
 * reads. */
sl_status sli_pass_tensor_if_kept(const sl_pass *pass, const sl_shape *shape, sl_tensor **out);

/* A tensor like another one for a gradient that the weights' half may need: counted as an
 * activation where that comes later, else as workspace. */
sl_status sli_pass_gradient_like(const sl_pass *pass, const sl_tensor *like, sl_tensor **out);

#endif
