/* Modules: pieces of a model that carry their own backward.
 *
 * There is no tape. `forward` computes a module's output and saves on the pass what `backward`
 * will need; `backward` pops it, in reverse order, adds to the gradients of the module's
 * parameters, and gives the gradient of the input. A pass is the record of one micro-batch through
 * one stage; throwing it away and running forward again later is all that activation checkpointing
 * is.
 *
 * A module is created without memory: it only declares its parameters. sl_parameter_set_create
 * gives them values and gradients on a device. A layer of one's own is a table of functions
 * (sl_module_ops) and a state; the library's layers are written in the same way. */
#ifndef SLUICE_MODULE_H
#define SLUICE_MODULE_H

#include "sluice/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_module sl_module;
typedef struct sl_pass sl_pass;
typedef struct sl_parameter sl_parameter;
typedef struct sl_parameter_set sl_parameter_set;

/* ---- Modules ---------------------------------------------------------------------------- */

typedef struct sl_module_ops {
    const char *type; /* "Linear": for layer tables and messages */

    /* in -> *out. Borrows `in` (to keep it for backward, sl_pass_save_alias it); the caller owns
     * *out, which may be another handle on `in`. What is saved is dropped at once by a pass that
     * does not keep. (optional, with backward: the module only groups its parent's parameters) */
    sl_status (*forward)(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out);

    /* grad_out -> *grad_in, and adds to the parameters' gradients. Pops exactly what forward
     * saved. May overwrite grad_out's content and give another handle on it as *grad_in. grad_in is
     * NULL when nobody needs it (the first module, whose input are data). (optional, with the two
     * halves) */
    sl_status (*backward)(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                          sl_tensor **grad_in);

    /* (optional, both or neither: backward_input then does all of `backward`, and backward_weight
     * nothing) Backward in two halves, for schedules that run the second one later.
     * backward_input is as `backward`, but leaves the gradients of parameters for which it is worth
     * it to backward_weight: what that needs, it puts on the pass with sl_pass_defer, and does not
     * overwrite it or give it as *grad_in. backward_weight takes exactly that. Each parameter's
     * gradient is added to in one of the halves, never in both. */
    sl_status (*backward_input)(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in);
    sl_status (*backward_weight)(sl_module *module, sl_pass *pass);

    /* (optional: output has the input's shape) Checks the input's shape, gives the output's; *out
     * is a copy of *in beforehand. Called before forward, which may rely on it. */
    sl_status (*output_shape)(const sl_module *module, const sl_shape *in, sl_shape *out);

    /* (optional: 0) Bytes that forward saves on a keeping pass for an input of this shape: what it
     * makes, and the input if it is saved, but not the output, which is the next module's input. So
     * the sum over a chain counts each tensor once. */
    int64_t (*saved_bytes)(const sl_module *module, const sl_shape *in);

    /* (optional: 0) Bytes that backward_input leaves on the pass for an input of this shape. */
    int64_t (*deferred_bytes)(const sl_module *module, const sl_shape *in);

    /* (optional: 0) Floating-point operations of forward's matrix products, a multiply-add as 2. */
    int64_t (*flops)(const sl_module *module, const sl_shape *in);

    /* (optional: not known) The last dimension that an input must have, into *in (it is 0
     * beforehand: any), and the output's, into *out (0: the input's). By these sl_pipe_create finds
     * modules that do not fit together before anything runs. */
    void (*widths)(const sl_module *module, int64_t *in, int64_t *out);

    /* (optional: free) Frees the state. */
    void (*destroy_state)(void *state);
} sl_module_ops;

/* A module with no parameters or children yet. `ops` must outlive it. Takes `state` (malloc'ed, or
 * what ops->destroy_state frees), also when it fails. */
sl_status sl_module_create(const sl_module_ops *ops, void *state, sl_module **out);

/* Frees the module, its children and its state. NULL is allowed. */
void sl_module_destroy(sl_module **module);

void *sl_module_state(const sl_module *module);
const char *sl_module_type(const sl_module *module);

/* Makes `child` part of `module` under `name` ("self_attn"). Takes the child. On error the child is
 * destroyed, unless it already has a parent, contains `module`, or a parameter set (of a pipe or a
 * DDP replica, say) holds its parameters. Errors: SL_ERR_INVALID for such a child ("module with
 * duplicate children is not supported" for one with a parent), for a name used twice, and while a
 * parameter set holds parameters of `module`'s model. */
sl_status sl_module_add_child(sl_module *module, const char *name, sl_module *child);
int sl_module_child_count(const sl_module *module);
sl_module *sl_module_child(const sl_module *module, int index);

/* Runs ops->forward / ops->backward; an error's text gets the path and type of the innermost module
 * that failed: "1.linear1 (Linear): …". An output, or a gradient that was asked for, that does not
 * come is an error. */
sl_status sl_module_forward(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out);
sl_status sl_module_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                             sl_tensor **grad_in);
/* Backward's halves: the weights' half of each module must follow its input's half on the same
 * pass, module by module in the same order. Between the two, other passes may run. Both halves
 * together add to the same gradients as sl_module_backward, bit for bit. */
sl_status sl_module_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                   sl_tensor **grad_in);
sl_status sl_module_backward_weight(sl_module *module, sl_pass *pass);
/* Checks an input's shape without running anything; an error's text has its place as well. */
sl_status sl_module_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out);
int64_t sl_module_saved_bytes(const sl_module *module, const sl_shape *in);
int64_t sl_module_deferred_bytes(const sl_module *module, const sl_shape *in);
int64_t sl_module_flops(const sl_module *module, const sl_shape *in);

/* Of the module and everything below it: how many elements its parameters have (buffers do not
 * count, frozen parameters do). */
int64_t sl_module_parameter_elements(const sl_module *module);

/* torch.nn.Sequential: children named "0", "1", … run one after the other. Takes the modules, as
 * sl_module_add_child does, also when it fails. */
sl_status sl_sequential_create(sl_module *const *modules, int count, sl_module **out);
bool sl_module_is_sequential(const sl_module *module);

/* ---- Parameters ------------------------------------------------------------------------- */

typedef enum sl_parameter_kind {
    SL_PARAMETER_TRAINED,
    SL_PARAMETER_FROZEN, /* counted and saved, never changed: requires_grad=False */
    SL_PARAMETER_BUFFER  /* saved, never changed, not counted: register_buffer */
} sl_parameter_kind;

typedef struct sl_parameter_spec {
    const char *name; /* within its module: "weight"; copied */
    sl_parameter_kind kind;
    sl_shape shape; /* f32 */
    /* Initial values: uniform in [low, high), or all `low` when low == high. A `fill` function, if
     * given, writes them instead: `count` floats in host memory. */
    float low, high;
    void (*fill)(const sl_module *module, float *values, int64_t count);
} sl_parameter_spec;

/* Declares a parameter. It belongs to the module. Errors: SL_ERR_INVALID for a name twice, a shape
 * without elements, a model in use (sl_module_add_child). */
sl_status sl_module_add_parameter(sl_module *module, const sl_parameter_spec *spec,
                                  sl_parameter **out);

/* Within its root: "1.self_attn.in_proj_weight", as PyTorch's state_dict names it. Changes when the
 * root becomes part of another module. */
const char *sl_parameter_name(const sl_parameter *parameter);
sl_parameter_kind sl_parameter_get_kind(const sl_parameter *parameter);
const sl_shape *sl_parameter_shape(const sl_parameter *parameter);

/* NULL before the parameter has been placed by a parameter set. */
sl_tensor *sl_parameter_value(const sl_parameter *parameter);

/* The gradient, for reading or adding to; NULL for what is not trained, or placed without
 * gradients. After zero_grad a parameter has no gradient (PyTorch's None), and optimizers skip it.
 * This call creates one of zeros, which optimizers then use. It lives as long as the set. Errors:
 * what the device reports. */
sl_status sl_parameter_grad(sl_parameter *parameter, sl_tensor **out);

/* The gradient, for a kernel that can either add to it or overwrite it. *beta is 0 for the first
 * contribution since zero_grad (the content is stale: overwrite it), 1 afterwards (add). */
sl_tensor *sl_parameter_grad_accumulate(sl_parameter *parameter, float *beta);

/* ---- Parameter sets --------------------------------------------------------------------- */

typedef struct sl_parameter_set_options {
    sl_device *device;
    uint64_t seed;              /* of the initial values */
    bool no_init;               /* leave random values undefined (they will be loaded) */
    bool no_gradients;          /* for evaluation only */
    int64_t first_bucket_bytes; /* 0: 1 MiB */
    int64_t bucket_bytes;       /* 0: 25 MiB */
} sl_parameter_set_options;

/* Places the parameters of the children `first` to `first + count - 1` of `root` (a sequential) on
 * a device; or, with first = 0 and count = 0, all of any `root`.
 *
 * Values and gradients lie in flat buckets: parameters in reverse order of registration, each
 * starting at a multiple of 64 bytes (the padding is 0 in both); a bucket closes when the bytes of
 * its parameters, without padding, reach its limit. Initial values are functions of (seed, the
 * parameter's number in root, element), so they do not depend on how root is cut. Borrows root,
 * which must outlive the set; a parameter is in one set at a time. Sets of different children may
 * be created and used by different threads. */
sl_status sl_parameter_set_create(sl_module *root, int first, int count,
                                  const sl_parameter_set_options *options, sl_parameter_set **out);
void sl_parameter_set_destroy(sl_parameter_set **set);

/* In order of registration, buffers and frozen parameters among them. */
int sl_parameter_set_count(const sl_parameter_set *set);
sl_parameter *sl_parameter_set_get(const sl_parameter_set *set, int index);
sl_device *sl_parameter_set_device(const sl_parameter_set *set);

/* Trained parameters only. Both tensors are flat f32 and live as long as the set; gradients are
 * NULL without gradients. Getting the gradients makes those that are missing 0, as
 * sl_parameter_grad. Errors: what the device reports. */
int sl_parameter_set_bucket_count(const sl_parameter_set *set);
sl_tensor *sl_parameter_set_bucket_values(const sl_parameter_set *set, int index);
sl_status sl_parameter_set_bucket_grads(sl_parameter_set *set, int index, sl_tensor **out);

/* PyTorch's zero_grad(set_to_none=True): no parameter has a gradient, and the first contribution
 * overwrites what was there. */
void sl_parameter_set_zero_grad(sl_parameter_set *set);

/* ---- Passes ----------------------------------------------------------------------------- */

typedef struct sl_pass_options {
    sl_device *device;
    bool training; /* dropout is on */
    bool keep;     /* what forward saves is kept for backward */
    uint64_t seed; /* of dropout; masks are functions of seed, step, sample, layer and position */
    uint64_t step;
    int64_t first_sample; /* global number of the micro-batch's first row */
} sl_pass_options;

sl_status sl_pass_create(const sl_pass_options *options, sl_pass **out);
void sl_pass_destroy(sl_pass **pass); /* with all that it holds */

sl_device *sl_pass_device(const sl_pass *pass);
bool sl_pass_is_training(const sl_pass *pass);
bool sl_pass_keeps(const sl_pass *pass);

/* Pushes a tensor: takes the handle and nulls the caller's. A pass that does not keep destroys it.
 * On an error the tensor is destroyed as well. */
sl_status sl_pass_save(sl_pass *pass, sl_tensor **tensor);
/* Pushes another handle on the tensor's storage. */
sl_status sl_pass_save_alias(sl_pass *pass, const sl_tensor *tensor);
/* Pops the newest; the caller owns it. SL_ERR_INVALID when there is none. */
sl_status sl_pass_pop(sl_pass *pass, sl_tensor **out);
int sl_pass_depth(const sl_pass *pass);

/* What backward_input leaves to backward_weight: a queue, the oldest first. Defer takes the handle
 * and nulls the caller's, also on an error; the alias is another handle on the same storage. */
sl_status sl_pass_defer(sl_pass *pass, sl_tensor **tensor);
sl_status sl_pass_defer_alias(sl_pass *pass, const sl_tensor *tensor);
/* Takes the oldest; the caller owns it. SL_ERR_INVALID when there is none. */
sl_status sl_pass_take_deferred(sl_pass *pass, sl_tensor **out);
int sl_pass_deferred(const sl_pass *pass); /* how many */

#ifdef __cplusplus
}
#endif
#endif
