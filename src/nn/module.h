/* What the files of nn know about a module beyond its public interface. */
#ifndef SLI_NN_MODULE_H
#define SLI_NN_MODULE_H

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
    atomic_int sets; /* of a root: parameter sets that hold parameters of its tree */
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

/* Can a parameter or child ("parameter", "child") of that name be added below the root? Not while
 * parameter sets hold parameters of its tree: they have those that were there, by their numbers. */
sl_status sli_module_check_open(sl_module *module, const char *what, const char *name);

/* Can `name` be given to a new child or parameter of `module`? Errors: SL_ERR_INVALID for an empty
 * name, one with a dot, one that is taken. */
sl_status sli_module_check_name(const sl_module *module, const char *name);

/* Does each module of a sequential expect inputs of the width that the one before it gives? Errors:
 * SL_ERR_INVALID, which names the first that does not. */
sl_status sli_module_check_widths(const sl_module *sequential);

#endif
