/* Modules: layers, and models of them, that have their own backward.
 *
 * There is no autograd tape. `forward` computes a module's output and saves on the pass what
 * `backward` will need. `backward` pops it in reverse order, adds to the gradients of the module's
 * parameters, and computes the gradient of the input. A pass is the record of one micro-batch
 * through one stage. Recomputation (activation checkpointing) destroys the pass and runs forward
 * again later.
 *
 * A module is created without memory: it only declares its parameters. sl_parameter_set_create
 * gives them values and gradients on a device. Your own layer is a table of functions
 * (sl_module_ops) and a state, as the library's layers are. */
#ifndef SLUICE_MODULE_H
#define SLUICE_MODULE_H

#include "sluice/tensor.h"

SL_API_BEGIN

typedef struct sl_module sl_module;
typedef struct sl_pass sl_pass;
typedef struct sl_cache sl_cache;
typedef struct sl_parameter sl_parameter;
typedef struct sl_parameter_set sl_parameter_set;

/* ---- Modules ---------------------------------------------------------------------------- */

typedef struct sl_module_ops {
    const char *type; /* "Linear": for tables of layers and errors */

    /* in -> *out. Borrows `in`; the caller owns *out, which may be an alias of `in`. Saves what
     * backward needs: sl_pass_save_alias keeps `in` itself. After an error the caller destroys
     * *out, if it is there; likewise *grad_in below. (optional, together with backward: without
     * both, the module only holds parameters for its parent) */
    sl_status (*forward)(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out);

    /* grad_out -> *grad_in, which the caller owns; adds to the parameters' gradients. Pops exactly
     * what forward saved. May overwrite grad_out's content, and *grad_in may be an alias of it.
     * grad_in is NULL when it is not needed: the first module's input is data. (optional, with the
     * two halves) */
    sl_status (*backward)(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                          sl_tensor **grad_in);

    /* (optional, both or neither: backward_input then does all of `backward`, and backward_weight
     * nothing) Backward in two halves, for schedules that run the second one later.
     * backward_input does what `backward` does, but may leave the gradients of some parameters to
     * backward_weight. It puts what that needs on the pass with sl_pass_defer, and must not
     * overwrite it or return it as *grad_in. backward_weight takes exactly that. Each parameter's
     * gradient is computed in one of the halves, never in both. */
    sl_status (*backward_input)(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in);
    sl_status (*backward_weight)(sl_module *module, sl_pass *pass);

    /* (optional: the output has the input's shape) Checks the input's shape and computes the
     * output's; *out is a copy of *in before. Called before forward, which may rely on it. */
    sl_status (*output_shape)(const sl_module *module, const sl_shape *in, sl_shape *out);

    /* (optional: 0) Bytes that forward saves on a pass that keeps, for an input of this shape: its
     * own tensors, a tensor popped from a skip connection, and the input, if they are saved, but
     * not the output, which is the next module's input. So the sum over a sequential counts each
     * tensor once. */
    int64_t (*saved_bytes)(const sl_module *module, const sl_shape *in);

    /* (optional: saved_bytes and the output) The most bytes that forward has at once in f32 on a
     * pass that keeps nothing, beside its input: its output too, once it has that. */
    int64_t (*forward_bytes)(const sl_module *module, const sl_shape *in);

    /* (optional: 0) Bytes that backward_input leaves on the pass for an input of this shape. */
    int64_t (*deferred_bytes)(const sl_module *module, const sl_shape *in);

    /* (optional: saved_bytes + deferred_bytes) The most bytes that backward_input has at once of
     * what was saved and what it leaves: tensors that are both count once. */
    int64_t (*halfway_bytes)(const sl_module *module, const sl_shape *in);

    /* (optional: 0) Floating-point operations of forward's matrix products, a multiply-add as 2. */
    int64_t (*flops)(const sl_module *module, const sl_shape *in);

    /* (optional: no) Can forward run on a pass with a cache? It can if the output at a position
     * depends on the input at that position alone, or if the module keeps what it needs of earlier
     * positions in the cache (sl_pass_cache_tensor). */
    bool (*can_continue)(const sl_module *module);

    /* (optional: not known) Sets *in to the last dimension that an input must have (0: any), and
     * *out to the last dimension of the output (0: the input's). Both are 0 before. sl_pipe_create
     * compares them, so that modules that do not fit together are found before anything runs. */
    void (*widths)(const sl_module *module, int64_t *in, int64_t *out);

    /* (optional: free) Frees the state. */
    void (*destroy_state)(void *state);
} sl_module_ops;

/* A module with no parameters or children yet. `ops` must outlive it. Takes `state` (malloc'ed, or
 * what ops->destroy_state frees), also when it fails. */
sl_status sl_module_create(const sl_module_ops *ops, void *state, sl_module **out);

/* Frees the module, its children and its state. */
void sl_module_destroy(sl_module **module);

void *sl_module_state(const sl_module *module);
const char *sl_module_type(const sl_module *module);

/* Creates and adds a child in one line, so that nothing leaks where one of several fails:
 *
 *     sl_module *child;
 *     SL_TRY(sl_module_create(&ops, state, out));
 *     SL_TRY(sl_module_append(out, "fc", sl_linear_create(10, 5, false, &child), &child));
 *
 * *child becomes the last child of *module under `name` ("self_attn"; copied), which takes it.
 * `created` is the status of the call that made *child. Any error, that one or its own, destroys
 * *module with all that it has, sets it and *child to NULL, and destroys the child, unless it has a
 * parent, contains `module`, or has parameters in a parameter set (a pipe has such sets). Errors:
 * SL_ERR_INVALID for such a child ("module with duplicate children is not supported" for one with a
 * parent), for a name used twice, and while parameters of the module's model are in a parameter
 * set. */
sl_status sl_module_append(sl_module **module, const char *name, sl_status created,
                           sl_module **child);

int sl_module_child_count(const sl_module *module);
sl_module *sl_module_child(const sl_module *module, int index);

/* Run ops->forward and ops->backward. The caller owns *out and *grad_in; grad_in may be NULL. An
 * error's text begins with the path and type of the innermost module that failed:
 * "1.linear1 (Linear): …". A function that sets no output, or no gradient, is an error. */
sl_status sl_module_forward(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out);
sl_status sl_module_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                             sl_tensor **grad_in);
/* Checks an input's shape without running anything. Errors: as sl_module_forward. */
sl_status sl_module_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out);
int64_t sl_module_saved_bytes(const sl_module *module, const sl_shape *in);
int64_t sl_module_deferred_bytes(const sl_module *module, const sl_shape *in);
int64_t sl_module_flops(const sl_module *module, const sl_shape *in);

/* Can the module run on a pass with a cache (sl_pass_options.cache)? */
bool sl_module_can_continue(const sl_module *module);

/* How many elements the parameters of the module and of all below it have, frozen ones included,
 * buffers not. */
int64_t sl_module_parameter_elements(const sl_module *module);

/* PyTorch's module.eval() (`evaluation` true) and module.train(): in evaluation mode the module and
 * all below it have no dropout, whatever the pass says. A child that is added later keeps its own
 * mode. Must not be called while the model runs. */
void sl_module_set_evaluation(sl_module *module, bool evaluation);

/* Does the module train on this pass: is dropout on? */
bool sl_module_is_training(const sl_module *module, const sl_pass *pass);

/* PyTorch's module.requires_grad_(False): the trained parameters of the module and of all below it
 * become SL_PARAMETER_FROZEN. They get no gradient, are in no bucket, and optimizers neither change
 * nor decay them. Gradients still go through the module to those before it. Where a parameter of
 * these modules is tied to one outside, that one is frozen too. Errors: SL_ERR_INVALID while
 * parameters of the module's model are in a parameter set. */
sl_status sl_module_freeze(sl_module *module);

/* torch.nn.Sequential: children named "0", "1", … that run one after the other. As
 * sl_module_append; creates the sequential where *sequential is NULL. */
sl_status sl_sequential_append(sl_module **sequential, sl_status created, sl_module **child);

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
    /* Initial values: uniform in [low, high), or all `low` if low == high. If `fill` is not NULL,
     * it writes them: `count` floats in host memory. */
    float low, high;
    /* Not 0: normal with mean `low` and this standard deviation instead; `high` is not used. */
    float deviation;
    void (*fill)(const sl_module *module, float *values, int64_t count);
} sl_parameter_spec;

/* Declares a parameter, which the module owns. Errors: SL_ERR_INVALID for a name used twice, a
 * shape without elements or of other than 0 to SL_MAX_DIMS dimensions, a negative deviation, and
 * while parameters of the model are in a parameter set. */
sl_status sl_module_add_parameter(sl_module *module, const sl_parameter_spec *spec,
                                  sl_parameter **out);

/* PyTorch's weight tying, `decoder.weight = encoder.weight`: from then on the module of parameter
 * `name` uses the parameter `to`, of the same shape. There is one value, one gradient, one state of
 * an optimizer, and one tensor in a file, under the name `to`. Names are sl_parameter_name's, in
 * the model that `model` is a module of. The modules may be in different stages of a pipe.
 *
 * Each module adds to a gradient of its own. They are summed, that of `to` first, the others in the
 * order in which they were tied, at the end of sl_module_backward of the whole model (a module
 * without a parent), or of sl_pipe_train. Outside a pipe, if the backwards of several passes
 * interleave, the sum is equal only to rounding. Errors: SL_ERR_NOT_FOUND for a name that the model
 * does not have; SL_ERR_INVALID for other shapes, buffers, a `name` that another parameter is tied
 * to, and while parameters of the model are in a parameter set. */
sl_status sl_module_tie_parameter(sl_module *model, const char *name, const char *to);

/* Its path from the root: "1.self_attn.in_proj_weight", as in PyTorch's state_dict. Changes when
 * the root becomes another module's child. */
const char *sl_parameter_name(const sl_parameter *parameter);
sl_parameter_kind sl_parameter_get_kind(const sl_parameter *parameter);
const sl_shape *sl_parameter_shape(const sl_parameter *parameter);

/* The value, which the parameter set owns; NULL while the parameter is in no set. f32; of a frozen
 * base (sl_model_options.base_is_bf16) bf16. */
sl_tensor *sl_parameter_value(const sl_parameter *parameter);

/* The gradient, to read or to add to. It lives as long as the set. NULL for a parameter that is not
 * trained, or whose set has no gradients. After zero_grad a parameter has no gradient (PyTorch's
 * None), and optimizers skip it; after this call it has a gradient of zeros, and they do not.
 * Errors: what the device reports. */
sl_status sl_parameter_grad(sl_parameter *parameter, sl_tensor **out);

/* ---- Skip connections ------------------------------------------------------------------- */

/* torchgpipe's @skippable: a module may stash a tensor in forward, and one later module pops it; in
 * backward its gradient goes back. Each module declares its end before the model is used, and uses
 * it once in each forward and backward (sl_pass_stash_skip and the functions after it). Names are
 * copied, and unique in a model.
 *
 * A pipe sends tensor and gradient straight between the stages of the two modules. sl_pipe_create
 * checks that each stash has one pop, in the same module of the model's sequence or in a later one.
 *
 * Errors: SL_ERR_INVALID for an empty name, one that the module has declared before, and while
 * parameters of the model are in a parameter set. */
sl_status sl_module_add_stash(sl_module *module, const char *name);
sl_status sl_module_add_pop(sl_module *module, const char *name);

/* ---- Parameter sets --------------------------------------------------------------------- */

typedef struct sl_parameter_set_options {
    sl_device *device;
    uint64_t seed;              /* of the initial values, and of rounding (sluice/optim.h) */
    bool no_init;               /* random values but adapters' stay undefined; to be loaded */
    bool no_gradients;          /* for evaluation only */
    sl_precision precision;     /* of products with these parameters */
    int64_t first_bucket_bytes; /* 0: 1 MiB */
    int64_t bucket_bytes;       /* 0: 25 MiB */
} sl_parameter_set_options;

/* Gives the parameters of the children `first` to `first + count - 1` of `root`, a sequential,
 * values and gradients on a device; or, with first = 0 and count = 0, all parameters of any `root`.
 *
 * Values and gradients are in flat buckets: parameters in reverse order of registration, each at a
 * multiple of 64 bytes (the padding is 0). A bucket is closed when its parameters' bytes, without
 * padding, reach its limit; without gradients and in bf16 each parameter has one to itself. Initial
 * values are functions of (seed, the parameter's number in root, element), so they do not depend on
 * how root is cut into sets.
 *
 * Borrows root, which must outlive the set. A parameter is in one set at a time. Different threads
 * may create and use sets of different children. Errors: SL_ERR_INVALID for a parameter that is in
 * a set already, and for a range that root does not have. */
sl_status sl_parameter_set_create(sl_module *root, int first, int count,
                                  const sl_parameter_set_options *options, sl_parameter_set **out);
void sl_parameter_set_destroy(sl_parameter_set **set);

/* All parameters in order of registration, buffers and frozen ones included; NULL has none. */
int sl_parameter_set_count(const sl_parameter_set *set);
sl_parameter *sl_parameter_set_get(const sl_parameter_set *set, int index);
sl_device *sl_parameter_set_device(const sl_parameter_set *set);

/* The buckets of the trained parameters. Both tensors are flat f32 and live as long as the set;
 * *out is NULL if the set has no gradients. sl_parameter_set_bucket_grads sets missing gradients to
 * 0, as sl_parameter_grad does. Errors: what the device reports. */
int sl_parameter_set_bucket_count(const sl_parameter_set *set);
sl_tensor *sl_parameter_set_bucket_values(const sl_parameter_set *set, int index);
sl_status sl_parameter_set_bucket_grads(sl_parameter_set *set, int index, sl_tensor **out);

/* PyTorch's zero_grad(set_to_none=True): no parameter has a gradient afterwards. It touches no
 * memory: the first contribution overwrites the old content. */
void sl_parameter_set_zero_grad(sl_parameter_set *set);

/* ---- Passes ----------------------------------------------------------------------------- */

typedef struct sl_pass_options {
    sl_device *device;
    bool training; /* dropout is on, but in modules in evaluation mode */
    bool keep;     /* what forward saves is kept for backward */
    /* BF16: f32 tensors that forward saves are kept in bf16, and f32 again when they are popped.
     * The outputs of modules of a sequential, but for the last one, are bf16, and so are the
     * gradients of inputs, but for the first one's; modules themselves see f32. */
    sl_precision precision;
    uint64_t seed; /* of dropout: a mask is a function of seed, step, sample, layer and position */
    uint64_t step;
    int64_t first_sample;    /* global number of the micro-batch's first row */
    sl_cache *const *caches; /* (optional) one for each row of the input, [N]; both borrowed; for
                                evaluation without backward */
} sl_pass_options;

sl_status sl_pass_create(const sl_pass_options *options, sl_pass **out);
void sl_pass_destroy(sl_pass **pass); /* and what is saved on it */

sl_device *sl_pass_device(const sl_pass *pass);

/* Saves a tensor: takes it and sets the caller's pointer to NULL. If the pass does not keep, or on
 * an error, the tensor is destroyed. */
sl_status sl_pass_save(sl_pass *pass, sl_tensor **tensor);
/* Saves an alias of the tensor (sl_tensor_alias). */
sl_status sl_pass_save_alias(sl_pass *pass, const sl_tensor *tensor);
/* Removes the tensor that was saved last; the caller owns it. Errors: SL_ERR_INVALID if there is
 * none. */
sl_status sl_pass_pop(sl_pass *pass, sl_tensor **out);

/* What modules keep of the positions of a row that a model has seen: the keys and values of
 * attention. On a pass with caches, row n of the input [N, T, …] is the T positions that follow
 * those in caches[n], which may be more or fewer than in another, and forward computes the outputs
 * of these alone. They are what forward gives for all positions of a row at once, to rounding (with
 * the same bits on a device that sl_device_set_batch_invariant has set): a matrix product with
 * another number of rows may round differently. A cache has room for `positions`. Modules allocate
 * what they keep when they first run. Errors: SL_ERR_INVALID for fewer than 1 position. */
sl_status sl_cache_create(const sl_module *model, int64_t positions, sl_cache **out);
void sl_cache_destroy(sl_cache **cache);
int64_t sl_cache_position(const sl_cache *cache); /* how many positions it has */

/* For modules: the position of the first column of the input's row `row`, 0 without caches; and the
 * module's own tensor in the row's cache. The first call creates it, f32 [positions, width] with
 * undefined content; it lives as long as the cache. *out is NULL on a pass without caches. Errors:
 * SL_ERR_INVALID for an input [N, T, …] that does not fit in the cache. */
int64_t sl_pass_position(const sl_pass *pass, int64_t row);
sl_status sl_pass_cache_tensor(const sl_pass *pass, const sl_module *module, const sl_tensor *in,
                               int64_t row, int64_t width, sl_tensor **out);

/* What backward_input leaves to backward_weight: a queue. sl_pass_defer takes the tensor and sets
 * the caller's pointer to NULL, also on an error; sl_pass_defer_alias adds an alias. */
sl_status sl_pass_defer(sl_pass *pass, sl_tensor **tensor);
sl_status sl_pass_defer_alias(sl_pass *pass, const sl_tensor *tensor);
/* Removes the oldest tensor; the caller owns it. Errors: SL_ERR_INVALID if there is none. */
sl_status sl_pass_take_deferred(sl_pass *pass, sl_tensor **out);

/* The ends of a skip connection (sl_module_add_stash). Names are borrowed as long as the pass.
 *
 *     forward     sl_pass_stash_skip     ────▶  sl_pass_pop_skip
 *     backward    sl_pass_pop_skip_grad  ◀────  sl_pass_stash_skip_grad
 *
 * The module that pops must give a gradient, also where it is frozen; the one that stashed must add
 * it to the gradient of what it stashed. Of backward's two halves, backward_input does both.
 *
 * sl_pass_stash_skip stashes an alias of an f32 tensor, which must not be overwritten afterwards.
 * The caller of sl_pass_pop_skip owns the tensor; it may save it, but not overwrite it.
 * sl_pass_stash_skip_grad takes the gradient of the tensor that was popped, of the same shape, and
 * sets the caller's pointer to NULL, also on an error. A gradient whose storage is shared (an
 * alias) is copied. The caller of sl_pass_pop_skip_grad owns the gradient and may overwrite it.
 * Errors: SL_ERR_INVALID for a name that was not stashed, one that is stashed twice, and another
 * shape or data type. */
sl_status sl_pass_stash_skip(sl_pass *pass, const char *name, const sl_tensor *tensor);
sl_status sl_pass_pop_skip(sl_pass *pass, const char *name, sl_tensor **out);
sl_status sl_pass_stash_skip_grad(sl_pass *pass, const char *name, sl_tensor **grad);
sl_status sl_pass_pop_skip_grad(sl_pass *pass, const char *name, sl_tensor **out);

/* Further inputs of a batch: a mask, a condition, a second sequence. Any module on the pass finds
 * them by name, in forward and in backward; they have no gradients. */
typedef struct sl_input {
    const char *name;        /* borrowed */
    const sl_tensor *tensor; /* borrowed */
    bool whole;              /* a pipe gives all of it to each micro-batch (PyTorch's NoChunk) */
} sl_input;

/* The name of an input i32 [N, T] by which rows may have several documents, one behind the other:
 * the number of each position in its document, from 0 on. Attention then stays within a document,
 * and positions (rotary, learned, or encoded) begin anew with each. The same numbers come out as if
 * each were a row of its own, to rounding, or with the same bits (sl_device_set_batch_invariant). A
 * cache is refused. */
#define SL_DOCUMENTS_INPUT "sluice.documents"

/* One of sl_pipe_batch.inputs. *out lives as long as the pass. Errors: SL_ERR_NOT_FOUND. */
sl_status sl_pass_input(const sl_pass *pass, const char *name, const sl_tensor **out);

SL_API_END

#endif
