/* What the files of nn know about modules, parameters and passes beyond their public interface. */
#ifndef SLI_NN_MODULE_H
#define SLI_NN_MODULE_H

#include "device/device.h"
#include "sluice/module.h"

#include <stdatomic.h>

struct sl_module {
    const sl_module_ops *ops;
    void *state;
    sl_module *parent; /* NULL for a root */
    char *name;        /* within its parent; NULL for a root */
    sl_module **children;
    int child_count;
    size_t child_capacity;
    sl_parameter **parameters;
    int parameter_count;
    size_t parameter_capacity;
    uint32_t number;                      /* in its root, counted in preorder: the root's is 0 */
    uint32_t modules_end, parameters_end; /* the numbers after those of its last descendants */
    struct sli_skip_end *skip_ends;       /* in the order in which they were declared (skip.c) */
    atomic_int sets; /* of a root: parameter sets that hold parameters of its tree */
    bool is_in_evaluation;
    int64_t exact_columns;  /* f32 numbers that its forward saves for each row on bf16 passes too */
    int64_t cached_columns; /* what the allocator's cache holds after a forward that keeps nothing,
                               in f32 numbers for each row: a tensor of each size that it allocates;
                               0: no more than forward_bytes */
    int64_t operand_columns; /* those of them that products on bf16 passes take copies of */
    int64_t kept_width;      /* values that it keeps of each position for slices of rows; 0: none */
    bool takes_bf16_gradient; /* as it is where sli_pass_stores_bf16; else it gets a copy in f32 */
};

/* Each random mask of a module has a site of its own: number * 8 + 0 … 7. */
enum { SLI_SITES_PER_MODULE = 8 };

/* The module at the top of the tree that `module` belongs to. */
sl_module *sli_module_root(sl_module *module);

/* Counts a root's modules and parameters in preorder (a module's parameters before its children),
 * which is the order of PyTorch's state_dict. The numbers are what random functions know a module
 * or parameter by, so they do not depend on how the root is cut. Adding children and parameters
 * keeps them right; there is no need to call this afterwards, and it changes nothing then. */
void sli_module_number_tree(sl_module *root);

enum { SLI_PATH_BYTES = 256 };
/* Writes "1.self_attn" ("" for a root) to `text`, which holds SLI_PATH_BYTES, and returns it. */
const char *sli_module_path(const sl_module *module, char *text);

/* Can a parameter, child or tie ("parameter", "child", "tie") of that name be added below the root?
 * Not while parameter sets hold parameters of its tree: they have those that were there, by their
 * numbers. */
sl_status sli_module_check_open(sl_module *module, const char *what, const char *name);

/* Freezes the parameters whose names match one of the patterns, fnmatch's, with commas between
 * them; a * matches dots too. A tied parameter has all of its names. The model is in no parameter
 * set. Errors: SL_ERR_INVALID for a pattern that no name matches, and where none is left to train.
 */
sl_status sli_module_freeze_named(sl_module *root, const char *patterns);

/* Has frozen parameters in bf16 alone where products are of bf16: those that products and tables
 * use, and nothing else. Their values are bf16 numbers, so that nothing is lost. */
void sli_module_narrow_frozen(sl_module *module);

/* How many of a sequential's first children need no backward: none has a parameter that is trained,
 * nor one that is tied to such, and the last of them is frozen. 0 where nothing is trained, and
 * where there are skip connections, whose gradients may begin anywhere. */
int sli_module_frozen_count(const sl_module *sequential);

/* Elements of the parameters of this kind, of the module and of all below it. */
int64_t sli_module_elements(const sl_module *module, sl_parameter_kind kind);

/* Those of trained tables. Each shard's backward first writes zeros to all of their gradients,
 * since its ids add to few rows. */
int64_t sli_module_table_elements(const sl_module *module);

/* Bytes of a parameter's value in a set of this precision, with the copy that products take; and of
 * all parameters and buffers, tied ones once. */
int64_t sli_parameter_value_bytes(const sl_parameter *parameter, sl_precision precision);
int64_t sli_module_value_bytes(const sl_module *module, sl_precision precision);

/* What a pass over a child of a sequential takes. */
typedef struct sli_pass_work {
    int64_t rows, numbers;         /* of its input */
    double forward, input, weight; /* FLOP of forward, and of backward's halves where all before it
                                      goes backward: frozen weights get no gradient */
    double value_bytes; /* that forward reads of the values: of weights the copy that products take,
                           of tables a row for each id */
    bool trains;        /* some parameter of it gets a gradient */
} sli_pass_work;

/* The work of all children [child_count]; a tied weight is its user's too. Errors: those of the
 * modules' shapes. (work.c) */
sl_status sli_module_count_work(const sl_module *sequential, const sl_shape *in,
                                sl_precision precision, sli_pass_work *out);

/* The FLOP that training on such an input needs: those of forward, and of backward all but what
 * frozen weights save, without recomputation. Errors: SL_ERR_MEMORY; those of
 * sli_module_count_work. */
sl_status sli_module_count_step_flop(const sl_module *sequential, const sl_shape *in, double *out);

/* The most that a forward from `in` to `out` has at once beside its input, on a pass that keeps
 * nothing, in f32. */
int64_t sli_module_forward_bytes(const sl_module *module, const sl_shape *in, const sl_shape *out);
int64_t sli_module_halfway_bytes(const sl_module *module, const sl_shape *in);

/* The saved_bytes of a module that saves its input, in f32. */
int64_t sli_input_saved_bytes(const sl_module *module, const sl_shape *in);

/* What the allocator's cache holds after such a forward: bytes of a tensor of each size that it
 * allocates, its output among them; on bf16 passes with their copies. 0: no more than it has at
 * once. */
int64_t sli_module_cached_bytes(const sl_module *module, int64_t rows, sl_precision precision);

/* Bytes that stay f32 on a bf16 pass, of those that the module and all below it save for so many
 * rows. */
int64_t sli_module_exact_bytes(const sl_module *module, int64_t rows);

/* Can `name` be given to a new child or parameter of `module`? Errors: SL_ERR_INVALID for an empty
 * name, one with a dot, one that is taken. */
sl_status sli_module_check_name(const sl_module *module, const char *name);

/* Does each module of a sequential expect inputs of the width that the one before it gives? Errors:
 * SL_ERR_INVALID, which names the first that does not. */
sl_status sli_module_check_widths(const sl_module *sequential);

/* ---- Parameters -------------------------------------------------------------------------- */

struct sl_parameter {
    sl_module *module;
    char *name; /* within its module */
    char *path; /* within its root */
    sl_parameter_kind kind;
    sl_shape shape;
    float low, high, deviation;
    void (*fill)(const sl_module *module, float *values, int64_t count);
    uint32_t number; /* in its root; sli_module_number_tree keeps it */
    int64_t first;   /* of a part of a parameter, which has that one's number: its first element
                        there; else 0 */
    /* While a set holds the parameter; views into the set's buckets for trained ones. */
    sl_tensor *value;
    sl_tensor *grad;
    sl_tensor *bf16;      /* its value for products; NULL: they are of f32 */
    bool tf32;            /* its products are */
    bool in_products;     /* it is the weight of one */
    bool is_table;        /* its rows are looked up */
    bool is_narrow;       /* where products are of bf16, its value is in bf16 alone */
    bool is_adapter;      /* it is drawn also where the model is to be loaded (no_init) */
    bool is_cut;          /* sets have parts of it instead of itself */
    bool has_block_terms; /* its gradient's norm is that of a split head's blocks, not of its set */
    bool grad_is_stale; /* there has been no gradient since zero_grad (PyTorch's None): its content
                           does not count */
    /* The parameters tied to it, in the order in which they were tied; it owns them (tied.c). */
    sl_parameter *ties, *next_tie;
    sl_parameter *tied_to; /* NULL: it is not tied. If it is, it shares that one's value */
};

void sli_parameter_destroy(sl_parameter *parameter);

/* Does backward give it a gradient? Backward of a frozen parameter computes none, and defers
 * nothing to compute one later. */
bool sli_parameter_is_trained(const sl_parameter *parameter);

/* Is it a product's weight, or one that is tied to it? */
bool sli_parameter_is_in_products(const sl_parameter *parameter);

/* Refuses one that a set holds, or that has a value otherwise. */
sl_status sli_parameter_check_unplaced(const sl_parameter *parameter);

/* The data type of its value in a set of this precision. */
sl_dtype sli_parameter_dtype(const sl_parameter *parameter, sl_precision precision);

/* Gives the parameters of `module` and of everything below it their paths anew. On an error every
 * parameter keeps a path, the old one or the new one. */
sl_status sli_parameters_rename(sl_module *module);

/* The value, for a kernel on `device`. Errors: SL_ERR_INVALID if it has not been placed there, and
 * for one in bf16 alone. */
sl_status sli_parameter_values(const sl_parameter *parameter, const sl_device *device,
                               const float **out);

/* The value as products take it, of a set of precision BF16 in bf16; or a table's, one of *f32 and
 * *bf16. Errors: SL_ERR_INVALID if it has not been placed there. */
sl_status sli_parameter_product_values(const sl_parameter *parameter, const sl_device *device,
                                       const void **out);
sl_status sli_parameter_table_values(const sl_parameter *parameter, const sl_device *device,
                                     const float **f32, const uint16_t **bf16);

/* The gradient and beta as sli_parameter_grad_accumulate gives them. Errors: SL_ERR_INVALID if the
 * parameter has no gradient. */
sl_status sli_parameter_gradient(sl_parameter *parameter, float *beta, float **out);

/* The same for two parameters whose gradients one kernel writes, with one beta. */
sl_status sli_parameter_gradient_pair(sl_parameter *first, sl_parameter *second, float *beta,
                                      float **out_first, float **out_second);

/* Elements that a trained parameter takes in its bucket, the gaps before and after it among them.
 * The gap before a part is of `lead` elements, so that the parts of a parameter lie to the bounds
 * of 16 elements as they do in the whole one. */
int64_t sli_parameter_room(const sl_parameter *parameter);
int64_t sli_parameter_lead(const sl_parameter *parameter);

/* As sl_parameter_set_create, with parts of parameters (borrowed), which come first in the set and
 * are no module's of the tree; `count` may be 0 then. Parameters of the tree that are cut are left
 * out; without parts (NULL) they are refused. */
sl_status sli_parameter_set_create(sl_module *root, int first, int count,
                                   sl_parameter *const *parts, int part_count,
                                   const sl_parameter_set_options *options, sl_parameter_set **out);

/* Where a parameter of the set stands in it, for sl_parameter_set_get. */
int sli_parameter_set_index(const sl_parameter_set *set, const sl_parameter *parameter);

/* A bucket's parameters as they lie in it, one after the other; gives their number. */
int sli_parameter_set_bucket(const sl_parameter_set *set, int index, sl_parameter *const **out);

uint64_t sli_parameter_set_seed(const sl_parameter_set *set);

/* A bucket's gradients as they are, stale ones among them; NULL without gradients. */
sl_tensor *sli_parameter_set_stale_grads(const sl_parameter_set *set, int index);

/* ---- Tied parameters (tied.c) ------------------------------------------------------------ */

/* Calls fn for every parameter that is tied to one of the module or below it, until an error. */
sl_status sli_module_for_each_tie(const sl_module *module,
                                  sl_status (*fn)(sl_parameter *tied, void *arg), void *arg);

/* The index of the child of `model` that the module is or lies in; -1: it lies elsewhere. */
int sli_module_index_in(const sl_module *model, const sl_module *module);

/* Adds the gradients of those parameters to the gradients of the ones that they are tied to; the
 * former then have none. */
sl_status sli_module_sum_tied(const sl_module *module);

/* ---- Skip connections (skip.c) ----------------------------------------------------------- */

/* A module's declaration that it stashes or pops a tensor of this name. */
typedef struct sli_skip_end {
    const sl_module *module;
    bool pops;
    struct sli_skip_end *next; /* of the same module */
    char name[];
} sli_skip_end;

void sli_skip_ends_destroy(sl_module *module);

/* Calls fn for every end of the module and of all below it, in preorder, until an error. */
sl_status sli_module_for_each_skip_end(const sl_module *module,
                                       sl_status (*fn)(const sli_skip_end *end, void *arg),
                                       void *arg);

/* A skip connection on a pass, once its tensor was stashed or arrived. */
typedef struct sli_pass_skip {
    const char *name;         /* borrowed */
    sl_shape shape;           /* of both tensors */
    sl_tensor *tensor, *grad; /* NULL: not there, or popped */
} sli_pass_skip;

/* Puts a tensor that was stashed elsewhere on the pass; takes it, also on an error. */
sl_status sli_pass_put_skip(sl_pass *pass, const char *name, sl_tensor **tensor);

/* The skip of that name on the pass; NULL: none. */
sli_pass_skip *sli_pass_find_skip(const sl_pass *pass, const char *name);

/* Errors: SL_ERR_INVALID if a tensor is left that was stashed and not popped, or a gradient. */
sl_status sli_pass_check_skips(const sl_pass *pass);

/* ---- Passes ------------------------------------------------------------------------------ */

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
    sli_pass_skip *skips;
    int skip_count;
    size_t skip_capacity;
    struct sli_pass_input {
        const char *name; /* borrowed */
        sl_tensor *tensor;
    } * inputs;
    int input_count;
    size_t input_capacity;
    struct sli_slices *slices; /* what is kept for a micro-batch's slices; NULL: the pass is
                                  over whole rows */
    int64_t first_position, slice_length; /* of the slice; else 0 */
    struct sli_documents *documents; /* of the input SL_DOCUMENTS_INPUT (layers.h); NULL: none */
    const sl_tensor *wide, *narrow;  /* the running module's input, and the bf16 tensor that it is a
                                        copy of; NULL: none */
    bool is_split;                   /* the module that goes backward defers to backward_weight */
    int calls;                       /* of modules, one inside the other */
    bool error_is_named;             /* the current error's text names its module */
};

/* Refuses `count` more positions than the cache has room for. */
sl_status sli_cache_check_room(const sl_cache *cache, int64_t count);

/* Bytes of the distinct storages that a pass holds: saved, and deferred. */
int64_t sli_pass_bytes(const sl_pass *pass);

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

/* Refuses an array of further inputs that is NULL or incomplete. `who`: the function, in errors. */
sl_status sli_inputs_check(const char *who, const sl_input *inputs, int count);

/* Removes the two oldest tensors that are deferred; the caller owns them, neither on an error. */
sl_status sli_pass_take_pair(sl_pass *pass, sl_tensor **first, sl_tensor **second);

/* Adds an input; takes the tensor, also on an error. */
sl_status sli_pass_put_input(sl_pass *pass, const char *name, sl_tensor **tensor);

/* Dropout number `local` (0 … 7) of `module` in this pass, over rows of which `rows_per_sample`
 * belong to one sample: equally many to each of its positions. p is 0 where the module does not
 * train. */
sli_dropout sli_pass_dropout(const sl_pass *pass, const sl_module *module, uint32_t local, float p,
                             int64_t rows_per_sample);

/* Does the pass keep tensors in bf16, and pass them on so? */
static inline bool sli_pass_is_bf16(const sl_pass *pass)
{
    return pass->options.precision == SL_PRECISION_BF16;
}

/* Rounds a tensor that forward will save, and uses itself, to what backward will pop. */
sl_status sli_pass_round(const sl_pass *pass, sl_tensor *tensor);

/* As sl_pass_save, without conversion: for what must be f32. */
sl_status sli_pass_save_exact(sl_pass *pass, sl_tensor **tensor);

/* What products take of a tensor: an alias, or on a bf16 pass a copy in bf16, made once for all of
 * them. The copy counts as an activation if the pass keeps it, else as workspace. */
sl_status sli_pass_operand(const sl_pass *pass, const sl_tensor *tensor, bool is_kept,
                           sl_tensor **out);

/* As sl_pass_pop, without conversion: for products. */
sl_status sli_pass_pop_stored(sl_pass *pass, sl_tensor **out);

/* Such a tensor as sl_pass_pop gives it: an alias, or an f32 copy. */
sl_status sli_pass_widen(const sl_pass *pass, const sl_tensor *stored, sl_tensor **out);

/* A module's output or the gradient of its input. On a bf16 pass it becomes bf16 at once. */
sl_status sli_pass_create_output(const sl_pass *pass, const sl_shape *shape, sl_tensor **out);

/* A tensor that forward will save: counted as an activation by a pass that keeps it as it is, as
 * workspace by one that drops or converts it. */
sl_status sli_pass_create_tensor(const sl_pass *pass, const sl_shape *shape, sl_tensor **out);

/* Does a sequential's module pass its output on in bf16, on a device that stores it? */
bool sli_module_passes_on_bf16(const sl_module *module, const sl_pass *pass);

/* Does the pass keep tensors so, on a device whose operations read and write bf16 matrices? */
bool sli_pass_stores_bf16(const sl_pass *pass);

/* As sli_pass_create_tensor, in bf16 where sli_pass_stores_bf16; `is_kept`: it is to be saved. */
sl_status sli_pass_create_stored(const sl_pass *pass, const sl_shape *shape, bool is_kept,
                                 sl_tensor **out);

/* As sli_pass_create_tensor, for a tensor that only backward reads: *out is NULL on a pass that
 * keeps nothing. */
sl_status sli_pass_create_tensor_if_kept(const sl_pass *pass, const sl_shape *shape,
                                         sl_tensor **out);

/* The same for sli_pass_save_exact. */
sl_status sli_pass_create_exact_if_kept(const sl_pass *pass, const sl_shape *shape,
                                        sl_tensor **out);

/* A tensor like another one for a gradient that backward_weight may need: counted as an activation
 * on a split pass, else as workspace. */
sl_status sli_pass_create_gradient(const sl_pass *pass, const sl_tensor *like, sl_tensor **out);

/* ---- What pipes, optimizers and the layers use of modules, parameters and passes ------------ */

bool sli_module_is_sequential(const sl_module *module);

/* A sequential without modules, which gives what it gets. */
sl_status sli_sequential_create(sl_module **out);

/* Gives a child another name, which no other child begins with, and which may have dots: files of
 * other programs name a sequential's children "model.layers.0". */
sl_status sli_module_name_child(sl_module *module, int index, const char *name);

/* Makes `child` the last child of `module`. Takes the child, and fails, as sl_module_append. */
sl_status sli_module_add_child(sl_module *module, const char *name, sl_module *child);

/* Backward's halves. On each pass the modules' backward_weight must follow their backward_input, in
 * the same order; other passes may run in between. Both halves together give the same gradients as
 * sl_module_backward, bit for bit. */
sl_status sli_module_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                    sl_tensor **grad_in);
sl_status sli_module_backward_weight(sl_module *module, sl_pass *pass);

/* The gradient, for a kernel that can add to it or overwrite it. *beta is 0 for the first
 * contribution since zero_grad (overwrite: the content is old), 1 afterwards (add). NULL where
 * sl_parameter_grad gives NULL: a module's backward then computes none. */
sl_tensor *sli_parameter_grad_accumulate(sl_parameter *parameter, float *beta);

/* With SL_PRECISION_BF16, products with a weight use a copy of it in bf16. Makes the copies again,
 * after the values have changed. A pipe does so at the beginning of every batch. Errors: what the
 * device reports. */
sl_status sli_parameter_set_convert(sl_parameter_set *set);

bool sli_pass_keeps(const sl_pass *pass);
int sli_pass_depth(const sl_pass *pass);    /* how many tensors are saved */
int sli_pass_deferred(const sl_pass *pass); /* how many are deferred */

/* Adds an alias of a tensor as an input of the batch. The name is borrowed as long as the pass.
 * Errors: SL_ERR_INVALID for a name that the pass has. */
sl_status sli_pass_add_input(sl_pass *pass, const char *name, const sl_tensor *tensor);

/* Refuses a row without a cache, and one that has another row's. No other thread may use these
 * caches meanwhile. Errors: SL_ERR_INVALID. */
sl_status sli_cache_check_rows(const char *who, sl_cache *const *caches, int64_t rows);

/* Counts `count` more positions as seen. To be called after each successful forward of the whole
 * model; after one that failed, the cache can be used again. Errors: SL_ERR_INVALID if there is no
 * room for them, or `count` is negative. */
sl_status sli_cache_advance(sl_cache *cache, int64_t count);

/* ---- Slices (slices.c) -------------------------------------------------------------------- */

/* What the modules of a stage keep of a micro-batch that is cut into slices of rows, which have so
 * many positions together. */
typedef struct sli_slices sli_slices;

sl_status sli_slices_create(const sl_module *model, int64_t positions, sli_slices **out);
void sli_slices_destroy(sli_slices **slices);

/* Makes the pass one over a slice: `length` positions from `first_position` on. With the same
 * `slices` (borrowed) earlier slices have run forward before, and later ones backward. A pass over
 * a slice keeps, and drops out, as any other. */
void sli_pass_begin_slice(sl_pass *pass, sli_slices *slices, int64_t first_position,
                          int64_t length);

/* Stores `in` [N, T, width], of the slice's positions, in *out [N, positions, width], which is the
 * module's and has those of earlier slices. */
sl_status sli_slices_store(const sl_pass *pass, const sl_module *module, const sl_tensor *in,
                           sl_tensor **out);

/* What has been stored. */
sl_tensor *sli_slices_value(const sl_pass *pass, const sl_module *module);

/* Its gradient, to which backward of each slice adds. The first call creates it, f32 with undefined
 * content, and sets *is_new. */
sl_status sli_slices_gradient(const sl_pass *pass, const sl_module *module, sl_tensor **out,
                              bool *is_new);

/* The reverse of storing: *out, counted under `category`, is the slice's positions of `all`. */
sl_status sli_slices_load(const sl_pass *pass, const sl_tensor *all, sl_memory_category category,
                          sl_tensor **out);

/* Bytes of what the module, and all below it, keep of `rows` rows of so many positions for slices,
 * and as many of its gradient. */
int64_t sli_module_slice_bytes(const sl_module *module, int64_t rows, int64_t positions);

#endif
