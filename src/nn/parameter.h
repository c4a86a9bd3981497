/* What the files of nn know about a parameter beyond its public interface. */
#ifndef SLI_NN_PARAMETER_H
#define SLI_NN_PARAMETER_H

#include "sluice/module.h"

struct sl_parameter {
    sl_module *module;
    char *name; /* within its module */
    char *path; /* within its root */
    sl_parameter_kind kind;
    sl_shape shape;
    float low, high;
    void (*fill)(const sl_module *module, float *values, int64_t count);
    uint32_t number; /* in its root; sli_module_number_tree keeps it */
    /* While a set holds the parameter; views into the set's buckets for trained ones. */
    sl_tensor *value;
    sl_tensor *grad;
    bool grad_is_stale; /* there has been no gradient since zero_grad (PyTorch's None): its content
                           does not count */
};

void sli_parameter_destroy(sl_parameter *parameter);

/* Gives the parameters of `module` and of everything below it their paths anew. On an error every
 * parameter keeps a path, the old one or the new one. */
sl_status sli_parameters_rename(sl_module *module);

/* The value, for a kernel on `device`. Errors: SL_ERR_INVALID if it has not been placed there. */
sl_status sli_parameter_values(const sl_parameter *parameter, const sl_device *device,
                               const float **out);

/* The gradient and beta as sl_parameter_grad_accumulate gives them. Errors: SL_ERR_INVALID if the
 * parameter has no gradient. */
sl_status sli_parameter_gradient(sl_parameter *parameter, float *beta, float **out);

/* The same for two that one kernel writes with one beta. */
sl_status sli_parameter_gradient_pair(sl_parameter *first, sl_parameter *second, float *beta,
                                      float **out_first, float **out_second);

/* Elements that a trained parameter takes in its bucket, the gap after it among them. */
int64_t sli_parameter_room(const sl_parameter *parameter);

/* A bucket's parameters as they lie in it, one after the other; gives their number. */
int sli_parameter_set_bucket(const sl_parameter_set *set, int index, sl_parameter *const **out);

/* A bucket's gradients as they are, stale ones among them; NULL without gradients. */
sl_tensor *sli_parameter_set_stale_grads(const sl_parameter_set *set, int index);

#endif
